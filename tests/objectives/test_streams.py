"""Streams: every item once in a pass and in its order, and any update without those before it."""

from collections import Counter
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pytest
from scipy.stats import chisquare

from bothways.errors import InvalidInput
from bothways.objectives.sequences import TrainingSequence
from bothways.objectives.streams import BatchGrowth, EpochStream, PassOrder, PhasedStream, StreamPhase


@dataclass
class Numbers:
    """A source whose sequences are their own numbers and the epoch."""

    count: int
    digest: str = "numbers"

    def __len__(self):
        return self.count

    def read(self, places, epoch):
        return [TrainingSequence(np.array([place, epoch]), np.zeros(2, np.uint8), int(place)) for place in places]


def read(stream, update):
    return [(part.epoch, each.number) for part in stream.read(update) for each in part.sequences]


def test_passes_read_every_item_once_and_end_with_what_is_left():
    stream = EpochStream(Numbers(10), 4, seed=3)
    assert stream.updates_per_epoch == 3
    updates = [read(stream, update) for update in range(6)]
    assert [len(each) for each in updates] == [4, 4, 2, 4, 4, 2]
    for epoch in range(2):
        numbers = [
            number for update in updates[3 * epoch : 3 * epoch + 3] for found, number in update if found == epoch
        ]
        assert sorted(numbers) == list(range(10))
    assert updates[:3] != updates[3:]


@pytest.mark.parametrize(("items", "batch"), [(10, 4), (3, 8), (5, 5), (1, 3), (7, 1)])
def test_phases_read_on_behind_a_pass(items, batch):
    stream = PhasedStream([StreamPhase(Numbers(items), 9, batch)], seed=1)
    drawn = [each for update in range(9) for each in read(stream, update)]
    assert len(drawn) == 9 * batch
    assert [epoch for epoch, _ in drawn] == sorted(epoch for epoch, _ in drawn)
    counts = Counter(drawn)
    assert set(counts.values()) == {1}
    for epoch in range(9 * batch // items):
        assert sorted(number for found, number in drawn if found == epoch) == list(range(items))


def test_an_update_does_not_depend_on_those_before_it():
    phases = [StreamPhase(Numbers(10), 4, 3), StreamPhase(Numbers(6), 5, 2, growth=BatchGrowth(1, 3))]
    whole = [read(PhasedStream(phases, seed=2), update) for update in range(9)]
    stream = PhasedStream(phases, seed=2)
    assert [read(stream, update) for update in reversed(range(9))] == whole[::-1]
    assert stream.updates == 9
    assert [len(each) for each in whole] == [3] * 4 + [1, 1, 1, 2, 2]
    with pytest.raises(InvalidInput, match="from 0 to 8, got 9"):
        stream.read(9)


def test_conditions_know_sources_lengths_and_seed():
    def conditions(*phases, seed=0):
        stream = PhasedStream(phases, seed)
        return stream.digest, *stream.identity.items()

    first = StreamPhase(Numbers(4), 2, 2)
    others = [
        conditions(first, seed=1),
        conditions(StreamPhase(Numbers(4, "others"), 2, 2)),
        conditions(StreamPhase(Numbers(4), 3, 2)),
        conditions(StreamPhase(Numbers(4), 2, 1)),
        conditions(StreamPhase(Numbers(4), 2, 2, growth=BatchGrowth(1, 2))),
        conditions(first, first),
    ]
    assert len({conditions(first), *others}) == 7
    assert conditions(first) == conditions(StreamPhase(Numbers(4), 2, 2))


@pytest.mark.parametrize("phases", [[], [StreamPhase(Numbers(0), 1, 1)], [StreamPhase(Numbers(2), 0, 1)]])
def test_phases_without_anything_are_refused(phases):
    with pytest.raises(InvalidInput, match="batch_size and updates of at least 1"):
        PhasedStream(phases, seed=0)


# A right order fails by chance once in so many runs of a statistical test; seeds are fixed, so it does so never or
# always.
RARE = 1e-4


def whole(items, seed=3, epoch=0):
    return PassOrder(items, seed).of(epoch, 0, items)


@pytest.mark.parametrize("items", [*range(1, 40), 63, 64, 65, 127, 1000, 4096, 99_991])
def test_an_order_has_every_item_once(items):
    for epoch in range(3):
        assert np.array_equal(np.sort(whole(items, epoch=epoch)), np.arange(items))


def test_an_order_repeats_by_seed_and_epoch_and_differs_by_either():
    orders = [tuple(whole(50, seed, epoch).tolist()) for seed in range(5) for epoch in range(5)]
    assert len(set(orders)) == 25
    assert orders == [tuple(whole(50, seed, epoch).tolist()) for seed in range(5) for epoch in range(5)]


def test_places_are_those_of_the_whole_order_and_end_with_the_pass():
    order, expected = PassOrder(1001, 7), whole(1001, 7, 4)
    for begin, end in ((0, 1), (5, 300), (990, 1001), (990, 5000)):
        assert np.array_equal(order.of(4, begin, end), expected[begin:end])


def test_a_billion_items_take_no_memory():
    found = PassOrder(10**12, 1).of(0, 10**12 - 5, 10**12)
    assert len(set(found.tolist())) == 5
    assert found.min() >= 0
    assert found.max() < 10**12


def test_orders_stay_what_they_are():
    """A checkpointed run resumes in the order in which it began."""
    assert whole(10, seed=1, epoch=2).tolist() == [4, 0, 1, 9, 8, 7, 6, 3, 2, 5]
    assert PassOrder(10**9, 1).of(0, 7, 10).tolist() == [573349845, 8421783, 23262373]


@pytest.mark.parametrize(("items", "seeds"), [(2, 200), (3, 300), (4, 960)])
def test_all_orders_of_a_few_items_are_equally_frequent(items, seeds):
    numbers = {order: number for number, order in enumerate(permutations(range(items)))}
    counts = np.bincount([numbers[tuple(whole(items, seed).tolist())] for seed in range(seeds)], minlength=len(numbers))
    assert chisquare(counts).pvalue > RARE


@pytest.mark.parametrize("items", [1000, 4096, 20_011])
def test_items_know_neither_their_place_nor_their_neighbours_nor_the_pass_before(items):
    first, second = whole(items), whole(items, epoch=1)
    for one, other in ((np.arange(items), first), (first[:-1], first[1:]), (first, second)):
        counts, *_ = np.histogram2d(one, other, bins=12)
        assert chisquare(counts.ravel()).pvalue > RARE
    # Of N random places about one is that of its own number, and about two neighbours are.
    assert np.count_nonzero(first == np.arange(items)) <= 8
    assert np.count_nonzero(np.abs(np.diff(first)) == 1) <= 12


@pytest.mark.parametrize("rounds", [1, 4])
def test_the_statistics_tell_a_poor_order_from_a_random_one(rounds, monkeypatch):
    monkeypatch.setattr("bothways.objectives.streams._ROUNDS", rounds)
    counts, *_ = np.histogram2d(np.arange(4096), whole(4096), bins=12)
    assert chisquare(counts.ravel()).pvalue < RARE
