"""Calibration errors on cases worked by hand, on simulations of known calibration, and under ties."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.errors import InvalidInput
from bothways.evaluation.intervals import bootstrap_values
from bothways.evaluation.outcomes import (
    ReliabilityBin,
    calibration_error_interval,
    calibration_noise,
    expected_calibration_error,
    maximum_error_interval,
    reliability_bins,
    sweep_calibration_error,
)


def test_bins_and_errors_of_a_case_worked_by_hand():
    confidence = [0.9, 0.5, 0.6, 0.8, 0.7, 1.0]
    correct = [1, 1, 0, 1, 0, 1]
    bins = reliability_bins(confidence, correct, bins=3)
    assert bins == (
        ReliabilityBin(0.5, 0.6, 2, pytest.approx(0.55), 0.5),
        ReliabilityBin(0.7, 0.8, 2, pytest.approx(0.75), 0.5),
        ReliabilityBin(0.9, 1.0, 2, pytest.approx(0.95), 1.0),
    )
    assert expected_calibration_error(bins) == pytest.approx((0.05 + 0.25 + 0.05) / 3)


def test_uneven_bins_are_weighted_by_their_rows():
    bins = reliability_bins([0.6, 0.6, 0.6, 0.9], [1, 1, 1, 0], bins=2)
    assert [each.count for each in bins] == [3, 1]
    assert expected_calibration_error(bins) == pytest.approx(0.75 * 0.4 + 0.25 * 0.9)


def test_rows_of_one_confidence_share_a_bin():
    (only,) = reliability_bins([0.3] * 10, [1] * 4 + [0] * 6, bins=5)
    assert only == ReliabilityBin(0.3, 0.3, 10, 0.3, 0.4)


def test_rows_without_ties_are_spread_evenly():
    bins = reliability_bins(np.linspace(0, 1, 1003), np.zeros(1003), bins=15)
    counts = [each.count for each in bins]
    assert len(counts) == 15
    assert max(counts) - min(counts) <= 1


@given(
    st.lists(st.tuples(st.sampled_from([0.1, 0.25, 0.5, 0.8, 1.0]), st.integers(0, 1)), min_size=1, max_size=40),
    st.randoms(use_true_random=False),
    st.integers(1, 20),
)
def test_the_order_of_rows_does_not_matter_though_they_tie(rows, random, bins):
    one = reliability_bins(*zip(*rows, strict=True), bins=bins)
    other = reliability_bins(*zip(*random.sample(rows, len(rows)), strict=True), bins=bins)
    assert [(each.lower, each.upper, each.count) for each in one] == [
        (each.lower, each.upper, each.count) for each in other
    ]
    assert expected_calibration_error(one) == pytest.approx(expected_calibration_error(other), abs=1e-12)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 1)), min_size=1, max_size=50), st.integers(1, 20))
def test_errors_and_bins_stay_in_range_and_hold_every_row(rows, bins):
    result = reliability_bins(*zip(*rows, strict=True), bins=bins)
    assert sum(each.count for each in result) == len(rows)
    assert len(result) <= bins
    assert all(each.lower <= each.confidence <= each.upper for each in result)
    assert all(low.upper < high.lower for low, high in itertools.pairwise(result))
    mce = max(abs(each.accuracy - each.confidence) for each in result)
    assert 0 <= expected_calibration_error(result) <= mce + 1e-12 <= 1 + 2e-12


def simulated(gap, rows, rng):
    """Confidences, and outcomes that come true less often than stated by ``gap``."""
    confidence = rng.uniform(0.3, 1.0, rows)
    return confidence, rng.random(rows) < confidence - gap


def test_a_calibrated_model_has_a_low_error_and_an_overconfident_one_its_gap():
    rng = np.random.default_rng(0)
    calibrated = reliability_bins(*simulated(0.0, 50_000, rng))
    overconfident = reliability_bins(*simulated(0.2, 50_000, rng))
    assert expected_calibration_error(calibrated) < 0.01
    assert expected_calibration_error(overconfident) == pytest.approx(0.2, abs=0.01)


@pytest.mark.slow  # every day: the frozen reports
@pytest.mark.parametrize("gap", [0.0, 0.2])
def test_the_interval_of_the_error_covers_the_truth_and_holds_the_estimate(gap):
    rng = np.random.default_rng(11)
    covered = 0
    for trial in range(100):
        confidence, correct = simulated(gap, 600, rng)
        order = np.argsort(confidence)
        gaps_NB = np.zeros((600, 15))
        gaps_NB[order, np.arange(600) * 15 // 600] = (correct - confidence)[order] / 600
        gaps_RB = bootstrap_values(
            lambda counts_RN, gaps_NB=gaps_NB: counts_RN @ gaps_NB, 600, resamples=200, seed=trial
        )
        interval = calibration_error_interval(gaps_NB.sum(axis=0), gaps_RB)
        value = np.abs(gaps_NB.sum(axis=0)).sum()
        assert interval.low <= value <= interval.high
        covered += interval.low <= gap <= interval.high
    assert covered >= 80  # The docstring of calibration_error_interval: 84 to 97 % in simulations.


@pytest.mark.slow
@pytest.mark.parametrize(("gap", "bins"), [(0.0, 15), (0.15, 15), (0.15, 1)])
@pytest.mark.parametrize("rows", [150, 600])
def test_the_interval_of_the_maximum_error_covers_the_truth_and_holds_the_estimate(gap, bins, rows):
    rng = np.random.default_rng(12)
    covered = 0
    for trial in range(60):
        # The last ``bins`` of 15 are overconfident.
        confidence = np.sort(rng.uniform(0.3, 1.0, rows))
        bin_N = np.arange(rows) * 15 // rows
        correct = rng.random(rows) < confidence - np.where(bin_N >= 15 - bins, gap, 0)
        both_NB = np.zeros((rows, 30))
        both_NB[np.arange(rows), bin_N] = (correct - confidence) / rows
        both_NB[np.arange(rows), 15 + bin_N] = 1 / rows
        both_RB = bootstrap_values(
            lambda counts_RN, both_NB=both_NB: counts_RN @ both_NB, rows, resamples=150, seed=trial
        )
        gap_B, share_B = np.split(both_NB.sum(axis=0), 2)
        interval = maximum_error_interval(gap_B, share_B, *np.split(both_RB, 2, axis=1))
        assert interval.low <= np.abs(gap_B / share_B).max() <= interval.high
        covered += interval.low <= gap <= interval.high
    assert covered >= 54  # The docstring of maximum_error_interval: 93 to 100 % in simulations, here of 60 trials.


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reliability_bins([], []), "none empty"),
        (lambda: reliability_bins([0.5], [1], bins=0), "at least 1"),
        (lambda: reliability_bins([0.5, 0.5], [1]), "expected 2 values"),
        (lambda: reliability_bins([0.5], [0.5]), "0 or 1"),
        (lambda: reliability_bins([1.5], [1]), "from 0 to 1"),
        (lambda: expected_calibration_error([]), "at least one"),
    ],
)
def test_unusable_input_is_refused_with_what_was_expected(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()


@pytest.mark.parametrize("spread", [1.0, 3.0])
def test_the_noise_is_the_error_that_true_probabilities_show_on_average(spread):
    rng = np.random.default_rng(0)
    confidence = 1 / (1 + np.exp(-np.abs(rng.normal(0, spread, 1_500))))
    errors = [
        expected_calibration_error(reliability_bins(confidence, rng.random(1_500) < confidence)) for _ in range(300)
    ]
    assert calibration_noise(confidence) == pytest.approx(np.mean(errors), rel=0.06)


def test_sure_rows_have_no_noise():
    assert calibration_noise([1.0, 1.0, 0.0]) == 0


def swept(confidence, correct):
    """The definition, word for word: one bin more as long as the accuracy rises from bin to bin."""
    found = reliability_bins(confidence, correct, 1)
    for bins in range(2, len(confidence) + 1):
        finer = reliability_bins(confidence, correct, bins)
        if any(low.accuracy > high.accuracy for low, high in itertools.pairwise(finer)):
            break
        found = finer
    return expected_calibration_error(found)


@pytest.mark.parametrize("steps", [2, 5, 20, 10_000])  # few steps of confidence: many rows tie
@pytest.mark.parametrize(
    "outcome",
    [
        lambda rng, confidence: rng.random(len(confidence)) < confidence,
        lambda rng, confidence: rng.random(len(confidence)) < 0.95,
        lambda _, confidence: confidence > 0.5,
        lambda rng, confidence: (confidence > 0.1) | (rng.random(len(confidence)) < 0.5),
        lambda _, confidence: np.ones(len(confidence)),
        lambda _, confidence: np.zeros(len(confidence)),
    ],
)
def test_the_sweep_is_the_one_that_goes_through_all_numbers_of_bins(outcome, steps):
    rng = np.random.default_rng(steps)
    for _ in range(25):
        confidence = rng.integers(0, steps + 1, rng.integers(1, 60)) / steps
        correct = outcome(rng, confidence)
        assert sweep_calibration_error(confidence, correct) == pytest.approx(swept(confidence, correct), abs=1e-12)


@pytest.mark.parametrize("first", [[0, 1, 0], [1, 1, 0], [1, 0, 1, 0, 0], [0, 0, 1, 1, 0, 1, 0]])
def test_the_sweep_goes_on_for_long_where_only_the_least_sure_rows_are_wrong(first):
    confidence = np.sort(np.random.default_rng(1).random(150))
    correct = [*first, *[1] * (150 - len(first))]
    assert sweep_calibration_error(confidence, correct) == pytest.approx(swept(confidence, correct), abs=1e-12)


def test_the_sweep_of_many_rows_that_are_right_comes_back():
    confidence = np.random.default_rng(0).random(50_000)
    assert sweep_calibration_error(confidence, np.ones(50_000)) == pytest.approx(1 - confidence.mean())
    right = np.ones(50_000)
    right[np.argsort(confidence)[[0, 2]]] = 0
    assert sweep_calibration_error(confidence, right) == pytest.approx(1 - confidence.mean(), abs=1e-3)
