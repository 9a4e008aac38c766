"""Intervals and standard errors: coverage, agreement with the plain method and with simulations, seeds and memory."""

import numpy as np
import pytest
import scipy.stats

from bothways.errors import InvalidInput
from bothways.evaluation.intervals import (
    bootstrap_estimates,
    bootstrap_values,
    correlation_error,
    mean_error,
    percentile_estimates,
    percentile_interval,
    resampled_counts,
    share_error,
)


def mean_of(values_N):
    return lambda counts_RN: (counts_RN @ values_N / len(values_N))[:, None]


def test_intervals_agree_with_those_of_scipy():
    values_N = np.random.default_rng(3).exponential(size=200)
    (ours,) = bootstrap_estimates(mean_of(values_N), 200, resamples=5000)
    theirs = scipy.stats.bootstrap(
        (values_N,), np.mean, n_resamples=5000, method="percentile", rng=np.random.default_rng(8)
    ).confidence_interval
    assert ours.value == pytest.approx(values_N.mean(), abs=1e-12)
    assert (ours.low, ours.high) == (pytest.approx(theirs.low, abs=0.008), pytest.approx(theirs.high, abs=0.008))


@pytest.mark.parametrize("level", [0.9, 0.95])
@pytest.mark.parametrize("rows", [1, 5, 60, 2000])
def test_where_all_rows_are_right_or_wrong_the_interval_is_the_exact_one(rows, level):
    for share in (1.0, 0.0):
        (estimate,) = bootstrap_estimates(mean_of(np.full(rows, share)), rows, resamples=20, level=level, of_rows=rows)
        exact = scipy.stats.binomtest(int(share * rows), rows).proportion_ci(level, method="exact")
        assert estimate.value == share
        assert (estimate.low, estimate.high) == (pytest.approx(exact.low), pytest.approx(exact.high))


def test_of_what_is_no_share_the_resamples_alone_speak():
    values_R2 = np.tile([1.0, 0.0], (30, 1))
    for estimate in percentile_estimates(values_R2[0], values_R2):
        assert estimate.low == estimate.value == estimate.high
    share, other = percentile_estimates(values_R2[0], values_R2, of_rows=[10, 0])
    assert share.low == pytest.approx(0.025 ** (1 / 10))
    assert other.high == 0


def test_every_resample_draws_as_many_rows_as_there_are():
    counts_RN = np.concatenate(list(resampled_counts(50, resamples=30, seed=1)))
    assert counts_RN.shape == (30, 50)
    np.testing.assert_array_equal(counts_RN.sum(axis=1), 50)
    assert len(np.unique(counts_RN, axis=0)) == 30


def test_draws_depend_on_the_seed_and_not_on_the_size_of_chunks(monkeypatch):
    def values(seed):
        return bootstrap_values(mean_of(np.arange(70.0)), 70, resamples=101, seed=seed)

    whole = values(seed=5)
    assert not np.array_equal(whole, values(seed=6))
    for cells in (1, 70, 7 * 70):
        monkeypatch.setattr("bothways.evaluation.intervals.CHUNK_CELLS", cells)
        np.testing.assert_array_equal(whole, values(seed=5))


def test_chunks_stay_within_their_cells_however_many_resamples_are_asked_for():
    sizes = [chunk.size for chunk in resampled_counts(300_000, resamples=7)]
    assert sizes == [900_000, 900_000, 300_000]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: list(resampled_counts(0)), "at least 1 row"),
        (lambda: bootstrap_values(mean_of(np.ones(3)), 3, resamples=0), "1 resample"),
        (lambda: bootstrap_values(mean_of(np.ones(3)), 3, seed=-1), "a seed of at least 0, got -1"),
        (lambda: percentile_interval(np.ones(3), 95), "between 0 and 1"),
    ],
)
def test_unusable_input_is_refused_with_what_was_expected(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()


# --- standard errors, against the spread of simulated rows ---

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
    found = [scipy.stats.spearmanr(*(mixed @ generator.normal(size=(2, rows))))[0] for _ in range(400)]
    assert correlation_error(float(np.mean(found)), rows) == pytest.approx(np.std(found), rel=0.15)
    assert correlation_error(0.5, 3) == 1
