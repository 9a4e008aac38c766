"""How the updates of an epoch are shared among tasks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.compose.multitask.data import Proportional, Tempered, Uniform, order, shares
from bothways.errors import InvalidInput

updates = st.lists(st.integers(1, 500), min_size=2, max_size=5)
samplings = st.one_of(st.just(Proportional()), st.just(Uniform()), st.builds(Tempered, st.floats(1, 50)))


@given(updates, samplings)
def test_together_they_are_an_epoch_and_no_task_is_left_out(updates_K, sampling):
    shares_K = shares(updates_K, sampling)
    assert sum(shares_K) == sum(updates_K)
    assert min(shares_K) >= 1


@given(updates)
def test_in_proportion_every_row_is_seen_once(updates_K):
    assert shares(updates_K, Proportional()) == tuple(updates_K)
    assert max(np.abs(np.subtract(shares(updates_K, Tempered(1.0)), updates_K))) <= len(updates_K)


@given(updates)
def test_uniform_shares_differ_by_one_at_most(updates_K):
    shares_K = shares(updates_K, Uniform())
    assert max(shares_K) - min(shares_K) <= 1


@given(updates, st.floats(1, 20), st.floats(1, 20))
def test_the_higher_the_temperature_the_more_a_small_task_is_seen(updates_K, one, other):
    smallest = int(np.argmin(updates_K))
    cool, hot = (shares(updates_K, Tempered(each))[smallest] for each in sorted((one, other)))
    assert hot >= cool - 1


def test_shares_go_with_the_root_of_the_data():
    # 2 left over after one each; 100 ** 0.5 : 9 ** 0.5 = 10 : 3
    assert shares([100, 9], Tempered(2.0)) == (1 + round(107 * 10 / 13), 1 + round(107 * 3 / 13))


@given(updates, st.integers(0, 5), st.integers(0, 5))
def test_the_order_of_an_epoch_is_its_own_and_always_the_same(updates_K, seed, epoch):
    tasks_U = order(updates_K, seed, epoch)
    assert np.bincount(tasks_U, minlength=len(updates_K)).tolist() == updates_K
    assert np.array_equal(tasks_U, order(updates_K, seed, epoch))


def test_another_epoch_has_another_order():
    assert not np.array_equal(order([50, 50], 0, 0), order([50, 50], 0, 1))


@pytest.mark.parametrize("temperature", [0.5, 0.0, -1.0, float("inf"), float("nan")])
def test_a_temperature_out_of_range_is_refused(temperature):
    with pytest.raises(InvalidInput, match="finite number of at least 1"):
        Tempered(temperature)
