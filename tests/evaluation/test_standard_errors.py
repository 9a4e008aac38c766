"""Standard errors against the spread that simulated held-out rows really show."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from bothways.evaluation.intervals import correlation_error, mean_error, share_error

DRAWS = 4_000


@pytest.mark.parametrize(("share", "rows"), [(0.5, 40), (0.9, 100), (0.97, 1_000)])
def test_a_share_spreads_by_its_standard_error(share, rows):
    found = np.random.default_rng(0).binomial(rows, share, DRAWS) / rows
    assert np.mean([share_error(each, rows) for each in found]) == pytest.approx(found.std(), rel=0.12)


def test_nothing_is_certain_because_all_of_a_few_rows_were_right():
    assert share_error(1.0, 10) > share_error(1.0, 1_000) > 0
    assert share_error(1.0, 2) == 0.5  # one of the two
    assert share_error(0.0, 0) == pytest.approx(0.5 / np.sqrt(2))


def test_a_share_bounds_the_error_of_any_mean_between_0_and_1():
    values = np.random.default_rng(1).beta(2, 3, 500)
    assert mean_error(values) < share_error(values.mean(), 500)


def test_a_mean_spreads_by_its_standard_error():
    draws = np.random.default_rng(2).exponential(size=(DRAWS, 60))
    assert np.mean([mean_error(each) for each in draws]) == pytest.approx(draws.mean(1).std(), rel=0.05)
    assert mean_error([3.0]) == 0


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.9])
def test_a_rank_correlation_spreads_by_its_standard_error(correlation):
    generator, rows = np.random.default_rng(3), 200
    mixed = np.array([[1, 0], [correlation, np.sqrt(1 - correlation**2)]])
    found = [spearmanr(*(mixed @ generator.normal(size=(2, rows))))[0] for _ in range(1_000)]
    assert correlation_error(float(np.mean(found)), rows) == pytest.approx(np.std(found), rel=0.15)
    assert correlation_error(0.5, 3) == 1
