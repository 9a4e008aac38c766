"""The order of a pass: a permutation of any number of items, computed at any place without the rest."""

from itertools import permutations

import numpy as np
import pytest
from scipy.stats import chisquare

from bothways.objectives.streams import PassOrder

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
