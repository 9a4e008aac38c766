"""A temperature that depends on how undecided the model is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bothways.errors import InvalidInput
from bothways.evaluation.temperature import (
    MAX_SLOPE,
    Temperature,
    apply_temperature,
    fit_adaptive_temperature,
    fit_temperature,
    normalised_entropy,
    softmax,
)


def drawn(rows, classes, temperature, seed=0, spread=3.0):
    """Logits, and labels that are drawn from what a temperature makes of them."""
    random = np.random.default_rng(seed)
    logits_NC = random.normal(0, spread, (rows, classes))
    cumulated_NC = apply_temperature(logits_NC, temperature).cumsum(1)
    return logits_NC, (random.random((rows, 1)) > cumulated_NC).sum(1).clip(max=classes - 1)


def nll(logits_NC, labels_N, temperature):
    return -np.log(apply_temperature(logits_NC, temperature)[np.arange(len(labels_N)), labels_N]).sum()


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("temperature", [Temperature(4.0, 0.4), Temperature(2.0, 0.2)])
def test_a_known_temperature_and_slope_are_recovered(classes, temperature):
    found = fit_adaptive_temperature(*drawn(40_000, classes, temperature))
    assert found.slope == pytest.approx(temperature.slope, abs=0.04)
    assert found.value == pytest.approx(temperature.value, rel=0.08)


@pytest.mark.parametrize("seed", range(5))
def test_a_slope_that_is_worth_nothing_is_left_out(seed):
    logits_NC, labels_N = drawn(600, 3, Temperature(2.0), seed)
    found = fit_adaptive_temperature(logits_NC, labels_N)
    plain = fit_temperature(logits_NC, labels_N)
    if found.slope:
        assert nll(logits_NC, labels_N, plain) - nll(logits_NC, labels_N, found) > 1
    else:
        assert found.value == pytest.approx(plain)
    assert found.slope < 0.3


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(2, 40), st.integers(0, 2**16))
def test_the_fit_is_never_worse_than_one_temperature_and_stays_within_bounds(classes, rows, seed):
    random = np.random.default_rng(seed)
    logits_NC, labels_N = random.normal(0, 4, (rows, classes)), random.integers(0, classes, rows)
    found = fit_adaptive_temperature(logits_NC, labels_N)
    assert 0 <= found.slope <= MAX_SLOPE
    assert nll(logits_NC, labels_N, found) <= nll(logits_NC, labels_N, fit_temperature(logits_NC, labels_N)) + 1e-9


@given(st.integers(2, 5), st.integers(0, 2**16), st.floats(0.2, 5), st.floats(0, 1))
def test_predictions_stay_and_probabilities_are_probabilities(classes, seed, value, slope):
    logits_NC = np.random.default_rng(seed).normal(0, 5, (20, classes))
    found_NC = apply_temperature(logits_NC, Temperature(value, slope))
    np.testing.assert_allclose(found_NC.sum(1), 1)
    best_N = logits_NC.argmax(1)
    assert (found_NC[np.arange(20), best_N] >= found_NC.max(1) - 1e-12).all()


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=30), st.floats(0.2, 5), st.floats(0, 1))
def test_of_two_classes_a_surer_row_stays_the_surer(differences, value, slope):
    """Sorting rows by confidence gives the same order before and after."""
    logits_NC = np.stack([np.array(differences), np.zeros(len(differences))], 1)
    order = softmax(logits_NC).max(1).argsort(kind="stable")
    after = apply_temperature(logits_NC, Temperature(value, slope)).max(1)[order]
    assert (np.diff(after) >= -1e-9).all()


def test_normalised_entropy_goes_from_a_hundredth_to_one():
    logits_NC = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [900.0, 0.0, 0.0]])
    most, middle, least = normalised_entropy(logits_NC)[:, 0]
    assert (most, least) == (pytest.approx(1), 0.01)
    probabilities = softmax(logits_NC[1])
    assert middle == pytest.approx(-(probabilities * np.log(probabilities)).sum() / np.log(3))


@given(st.integers(0, 2**16), st.floats(0.2, 5), st.floats(0, 0.5))
def test_no_row_becomes_surer_than_the_model_is_or_the_value_alone_makes_it(seed, value, slope):
    logits_NC = np.random.default_rng(seed).normal(0, 6, (20, 3))
    found_N = apply_temperature(logits_NC, Temperature(value, slope)).max(1)
    assert (found_N <= apply_temperature(logits_NC, min(1.0, value)).max(1) + 1e-12).all()


@pytest.mark.parametrize("slope", [-0.1, float("nan"), float("inf")])
def test_a_slope_that_makes_no_sense_is_refused(slope):
    with pytest.raises(InvalidInput, match="slope of the temperature"):
        Temperature(1.0, slope)


def test_labels_that_do_not_fit_are_refused():
    with pytest.raises(InvalidInput, match="labels"):
        fit_adaptive_temperature([[0.0, 1.0]], [2])
