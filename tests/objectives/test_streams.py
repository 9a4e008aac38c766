"""Streams: every item once in a pass, and any update without those before it."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from bothways.errors import InvalidInput
from bothways.objectives.sequences import TrainingSequence
from bothways.objectives.streams import EpochStream, PhasedStream, StreamPhase


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
    phases = [StreamPhase(Numbers(10), 4, 3), StreamPhase(Numbers(6), 5, 2)]
    whole = [read(PhasedStream(phases, seed=2), update) for update in range(9)]
    stream = PhasedStream(phases, seed=2)
    assert [read(stream, update) for update in reversed(range(9))] == whole[::-1]
    assert stream.updates == 9
    assert [len(each) for each in whole] == [3] * 4 + [2] * 5
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
        conditions(first, first),
    ]
    assert len({conditions(first), *others}) == 6
    assert conditions(first) == conditions(StreamPhase(Numbers(4), 2, 2))


@pytest.mark.parametrize("phases", [[], [StreamPhase(Numbers(0), 1, 1)], [StreamPhase(Numbers(2), 0, 1)]])
def test_phases_without_anything_are_refused(phases):
    with pytest.raises(InvalidInput, match="at least one update of one sequence"):
        PhasedStream(phases, seed=0)
