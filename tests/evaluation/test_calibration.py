"""Temperatures, with and without a slope: recovered where known, never worse than none, no change of prediction."""

import numpy as np
import pytest
import scipy.optimize
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bothways.errors import InvalidInput
from bothways.evaluation.temperature import (
    MAX_SLOPE,
    TEMPERATURE_BOUNDS,
    Temperature,
    apply_sigmoid_temperature,
    apply_temperature,
    fit_adaptive_temperature,
    fit_sigmoid_temperature,
    fit_temperature,
    normalised_entropy,
    prior,
    sigmoid,
    softmax,
)

LOGITS = hnp.arrays(np.float64, st.tuples(st.integers(1, 20), st.integers(2, 5)), elements=st.floats(-30, 30))


def drawn(probabilities_NC, rng):
    """One class for each row, drawn from its probabilities."""
    return (probabilities_NC.cumsum(axis=1) < rng.random((len(probabilities_NC), 1))).sum(axis=1)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5, 8.0])
def test_a_known_temperature_is_recovered(temperature):
    rng = np.random.default_rng(0)
    truthful_NC = rng.normal(size=(20_000, 3)) * 2
    labels_N, labels_NC = drawn(softmax(truthful_NC), rng), rng.random(truthful_NC.shape) < sigmoid(truthful_NC)
    assert fit_temperature(truthful_NC * temperature, labels_N) == pytest.approx(temperature, rel=0.03)
    assert fit_sigmoid_temperature(truthful_NC * temperature, labels_NC) == pytest.approx(temperature, rel=0.03)


@pytest.mark.parametrize("scale", [0.2, 1.0, 10.0, 60.0])
def test_the_fit_is_the_minimum_that_scipy_finds(scale):
    rng = np.random.default_rng(4)
    logits_NC = rng.normal(size=(400, 6))
    labels_N = drawn(softmax(logits_NC), rng)
    logits_NC *= scale

    def nll(log_temperature):
        log_probabilities = scipy.special.log_softmax(logits_NC / np.exp(log_temperature), axis=1)
        return (prior(np.exp(-log_temperature)) - log_probabilities[np.arange(400), labels_N].sum()) / 400

    bounds = tuple(np.log(TEMPERATURE_BOUNDS))
    best = scipy.optimize.minimize_scalar(nll, bounds=bounds, method="bounded", options={"xatol": 1e-10})
    fitted = fit_temperature(logits_NC, labels_N)
    assert nll(np.log(fitted)) <= best.fun + 1e-12
    assert fitted == pytest.approx(np.exp(best.x), rel=1e-4)


@given(LOGITS, st.data())
def test_a_fitted_temperature_never_raises_the_nll(logits_NC, data):
    labels_N = data.draw(hnp.arrays(np.int64, len(logits_NC), elements=st.integers(0, logits_NC.shape[1] - 1)))
    labels_NC = data.draw(hnp.arrays(np.bool_, logits_NC.shape))
    of_softmax, of_sigmoid = fit_temperature(logits_NC, labels_N), fit_sigmoid_temperature(logits_NC, labels_NC)
    assert TEMPERATURE_BOUNDS[0] <= of_softmax <= TEMPERATURE_BOUNDS[1]
    before, after = (
        -scipy.special.log_softmax(logits_NC / each, axis=1)[np.arange(len(labels_N)), labels_N].mean()
        for each in (1.0, of_softmax)
    )
    assert after <= before + 1e-12
    margins_NC = np.where(labels_NC, -logits_NC, logits_NC)
    before, after = (np.logaddexp(0, margins_NC / each).mean() for each in (1.0, of_sigmoid))
    assert after <= before + 1e-12


@given(LOGITS, st.floats(*TEMPERATURE_BOUNDS), st.floats(0, 1))
def test_a_temperature_keeps_the_prediction(logits_NC, temperature, slope):
    probabilities_NC = apply_temperature(logits_NC, Temperature(temperature, slope))
    predicted_N = logits_NC.argmax(axis=1)
    rows = np.arange(len(logits_NC))
    np.testing.assert_array_equal(probabilities_NC[rows, predicted_N], probabilities_NC.max(axis=1))
    np.testing.assert_allclose(probabilities_NC.sum(axis=1), 1, atol=1e-12)
    decided_NC = apply_sigmoid_temperature(logits_NC, temperature) >= 0.5
    # A logit within rounding of zero may fall on 0.5 itself.
    clear_NC = np.abs(logits_NC) > 1e-9
    np.testing.assert_array_equal(decided_NC[clear_NC], logits_NC[clear_NC] >= 0)


def test_the_search_ends_at_its_bounds_or_at_one_where_there_is_no_minimum():
    rows = 20_000
    all_right, all_wrong = (([[0.01, 0.0]] * rows, [label] * rows) for label in (0, 1))
    assert fit_temperature(*all_right) == pytest.approx(TEMPERATURE_BOUNDS[0])
    assert fit_temperature(*all_wrong) == pytest.approx(TEMPERATURE_BOUNDS[1])
    assert fit_temperature([[2.0, 2.0]], [0]) == 1.0
    assert fit_temperature([[90.0, 0.0]], [0]) == 1.0


def test_few_rows_without_an_error_do_not_make_a_model_certain():
    logits_NC = np.array([[margin, 0.0] for margin in (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)])
    labels_N = np.zeros(len(logits_NC), dtype=np.int64)
    assert 0.5 < fit_temperature(logits_NC, labels_N) < 1
    assert 0.5 < fit_sigmoid_temperature(logits_NC[:, :1], labels_N[:, None] == 0) < 1


def test_softmax_and_sigmoid_equal_scipy_also_where_exponentials_overflow():
    logits_NC = np.array([[1000.0, 0.0, -1000.0], [1.0, 2.0, 3.0], [-800.0, -801.0, -800.5]])
    np.testing.assert_allclose(softmax(logits_NC), scipy.special.softmax(logits_NC, axis=1), atol=1e-15)
    with np.errstate(over="raise", invalid="raise"):
        np.testing.assert_allclose(sigmoid(logits_NC), scipy.special.expit(logits_NC), rtol=1e-14)


def test_masked_logits_of_single_precision_are_read():
    masked = float(np.finfo(np.float32).min)
    rows, labels = [[2.0, 0.0, masked]] * 30_000, [0] * 20_000 + [1] * 10_000
    assert fit_temperature(rows, labels) == pytest.approx(2 / np.log(2), rel=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit_temperature(np.zeros((0, 3)), []), "none empty"),
        (lambda: fit_temperature([[1.0]], [0]), "at least 2 classes, got 1"),
        (lambda: fit_temperature([[np.nan, 1.0]], [0]), "finite"),
        (lambda: fit_temperature([[np.inf, 1.0]], [0]), "finite"),
        (lambda: fit_temperature([[1e200, 1.0]], [0]), "magnitudes"),
        (lambda: fit_temperature([[0.0, 1.0]], [2]), "from 0 to 1"),
        (lambda: fit_temperature([[0.0, 1.0]], [0, 1]), "expected 1 rows"),
        (lambda: fit_sigmoid_temperature(np.zeros((0, 3)), np.zeros((0, 3))), "none empty"),
        (lambda: fit_sigmoid_temperature([[np.nan]], [[1]]), "finite"),
        (lambda: fit_sigmoid_temperature([[1.0]], [[0.5]]), "only 0 and 1"),
        (lambda: fit_sigmoid_temperature([[1.0]], [[0, 1]]), "shape"),
        (lambda: apply_temperature([[0.0, 1.0]], 0.0), "above 0"),
        (lambda: apply_sigmoid_temperature([[0.0]], -1.0), "above 0"),
        (lambda: Temperature(float("nan")), "above 0"),
        (lambda: Temperature(float("inf")), "above 0"),
        *((lambda slope=slope: Temperature(1.0, slope), "slope of the") for slope in (-0.1, np.nan, np.inf)),
        (lambda: fit_adaptive_temperature([[0.0, 1.0]], [2]), "labels"),
    ],
)
def test_unusable_input_is_refused_with_what_was_expected(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()


def drawn_by(rows, classes, temperature, seed=0, spread=3.0):
    """Logits, and labels that are drawn_by from what a temperature makes of them."""
    random = np.random.default_rng(seed)
    logits_NC = random.normal(0, spread, (rows, classes))
    cumulated_NC = apply_temperature(logits_NC, temperature).cumsum(1)
    return logits_NC, (random.random((rows, 1)) > cumulated_NC).sum(1).clip(max=classes - 1)


def summed_nll(logits_NC, labels_N, temperature):
    return -np.log(apply_temperature(logits_NC, temperature)[np.arange(len(labels_N)), labels_N]).sum()


@pytest.mark.parametrize(
    ("rows", "classes", "temperature"), [(40_000, 2, Temperature(4.0, 0.4)), (20_000, 5, Temperature(2.0, 0.2))]
)
def test_a_known_temperature_and_slope_are_recovered(rows, classes, temperature):
    found = fit_adaptive_temperature(*drawn_by(rows, classes, temperature))
    assert found.slope == pytest.approx(temperature.slope, abs=0.04)
    assert found.value == pytest.approx(temperature.value, rel=0.08)


@pytest.mark.parametrize("seed", range(5))
def test_a_slope_that_is_worth_nothing_is_left_out(seed):
    logits_NC, labels_N = drawn_by(600, 3, Temperature(2.0), seed)
    found = fit_adaptive_temperature(logits_NC, labels_N)
    plain = fit_temperature(logits_NC, labels_N)
    if found.slope:
        assert summed_nll(logits_NC, labels_N, plain) - summed_nll(logits_NC, labels_N, found) > 1
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
    assert (
        summed_nll(logits_NC, labels_N, found)
        <= summed_nll(logits_NC, labels_N, fit_temperature(logits_NC, labels_N)) + 1e-9
    )


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
