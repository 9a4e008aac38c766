"""Isotonic regression against scikit-learn, and the choice between methods."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from bothways.errors import InvalidInput
from bothways.evaluation.calibration import (
    METHODS,
    HeldOutRows,
    Isotonic,
    calibration_from,
    isotonic_regression,
    stored_form,
)
from bothways.evaluation.metrics.classification import negative_log_likelihood
from bothways.evaluation.temperature import Temperature, softmax


def fit_calibration(method, logits_NC, labels_N):
    return HeldOutRows.from_arrays(logits_NC, labels_N).fit(method)


def choose_calibration(logits_NC, labels_N, seed=0):
    return HeldOutRows.from_arrays(logits_NC, labels_N).choose(seed)


def steps(rows, seed=0):
    """Logits of two classes, and labels whose probability steps from 0.1 to 0.5 to 0.9 as the stated one rises."""
    random = np.random.default_rng(seed)
    gap_N = random.uniform(-4, 4, rows)
    truth_N = random.random(rows) < np.select([gap_N < -1, gap_N < 1], [0.1, 0.5], 0.9)
    return np.column_stack([np.zeros(rows), gap_N]), truth_N.astype(int)


def drawn(rows, classes, true_logits, seed=0, spread=3.0):
    """Logits, and labels drawn from the probabilities of what a function makes of them."""
    random = np.random.default_rng(seed)
    logits_NC = random.normal(0, spread, (rows, classes))
    cumulated_NC = softmax(true_logits(logits_NC)).cumsum(1)
    return logits_NC, (random.random((rows, 1)) > cumulated_NC).sum(1).clip(max=classes - 1)


@given(st.integers(0, 2**16), st.integers(1, 60), st.integers(1, 20))
def test_isotonic_regression_is_that_of_scikit_learn(seed, rows, values):
    random = np.random.default_rng(seed)
    x_N, y_N = random.integers(0, values, rows) / values, random.integers(0, 2, rows).astype(float)
    knots_K, values_K = isotonic_regression(x_N, y_N)
    asked = np.linspace(-0.2, 1.2, 141)
    expected = IsotonicRegression(out_of_bounds="clip").fit(x_N, y_N).predict(asked)
    np.testing.assert_allclose(np.interp(asked, knots_K, values_K), expected, atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("classes", [2, 5])
def test_every_method_gives_probabilities_lowers_the_nll_and_survives_json(method, classes):
    logits_NC, labels_N = drawn(2_000, classes, lambda logits: logits / 3)
    fitted = fit_calibration(method, logits_NC, labels_N)
    found_NC = fitted.apply(logits_NC)
    np.testing.assert_allclose(found_NC.sum(1), 1)
    assert found_NC.min() > 0
    assert negative_log_likelihood(labels_N, found_NC) < negative_log_likelihood(labels_N, softmax(logits_NC)) - 0.1
    assert calibration_from(json.loads(json.dumps(stored_form(fitted)))) == fitted


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_a_class_without_rows_and_huge_logits(method):
    random = np.random.default_rng(0)
    fitted = fit_calibration(method, random.normal(0, 3, (40, 4)), random.integers(0, 3, 40))
    found_NC = fitted.apply(np.array([[1e6, 0, 0, 0], [0, 0, 0, 1e6], [-1e6, 1e6, 0, 0.0]]))
    assert np.isfinite(found_NC).all()
    np.testing.assert_allclose(found_NC.sum(1), 1)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("seed", range(2))
def test_the_temperature_is_kept_where_nothing_is_clearly_better(classes, seed):
    chosen = choose_calibration(*drawn(600, classes, lambda logits: logits / 2, seed), seed=seed)
    assert chosen.method == "temperature"
    assert isinstance(chosen.calibration, Temperature)
    assert [score.method for score in chosen.scores] == list(METHODS)


def test_a_curve_that_no_sigmoid_follows_asks_for_isotonic_fitted_to_all_rows():
    logits_NC, labels_N = steps(2_000)
    chosen = choose_calibration(logits_NC, labels_N, seed=3)
    assert chosen.method == "isotonic"
    kept, taken = chosen.scores
    assert taken.nll < kept.nll
    assert taken.accuracy >= kept.accuracy
    assert chosen == choose_calibration(logits_NC, labels_N, seed=3)
    assert chosen.calibration == fit_calibration(chosen.method, logits_NC, labels_N)


@pytest.mark.parametrize("rare", [0, 9])
def test_a_class_that_is_hardly_there_is_not_unlearnt(rare):
    logits_NC, labels_N = drawn(3_000, 4, lambda logits: logits * [1, 0.5, 0.3, 0.2])
    inside_N = (labels_N != 3) | ((labels_N == 3).cumsum() <= rare)
    chosen = choose_calibration(logits_NC[inside_N], labels_N[inside_N])
    assert (chosen.method, chosen.scores) == ("temperature", ())
    others_NC = logits_NC[~inside_N]
    assert (chosen.calibration.apply(others_NC).argmax(1) == others_NC.argmax(1)).all()


@pytest.mark.parametrize(
    "stored",
    [
        None,
        {},
        {"method": "magic"},
        {"method": "temperature"},
        {"method": "temperature", "value": "1"},
        {"method": "temperature", "value": True, "slope": 0.0},
        {"method": "temperature", "value": -1.0, "slope": 0.0},
        {"method": "isotonic", "knots": [[0.1, 0.1], [0.1]], "values": [[0.2, 0.3], [0.5]]},
        {"method": "isotonic", "knots": [[0.1, 0.2], [0.1]], "values": [[0.4, 0.3], [0.5]]},
        {"method": "isotonic", "knots": [[0.1, 0.2], [0.1]], "values": [[0.0, 0.3], [0.5]]},
        {"method": "isotonic", "knots": [[0.1], [0.1]], "values": [[0.2], [0.5]], "more": [1.0]},
        {"method": "isotonic", "knots": [[float("nan")], [0.1]], "values": [[0.2], [0.5]]},
        {"method": "isotonic", "knots": [[0.1], [0.1]], "values": [[0.2]]},
        {"method": "isotonic", "knots": 3, "values": [[0.4, 0.3], [0.5]]},
    ],
)
def test_what_is_no_calibration_is_refused(stored):
    with pytest.raises(InvalidInput):
        calibration_from(stored)


def test_logits_of_another_number_of_classes_are_refused():
    with pytest.raises(InvalidInput, match="3 classes"):
        Isotonic(((0.5,), (0.5,), (0.5,)), ((0.5,), (0.5,), (0.5,))).apply([[1.0, 2.0]])


def test_an_unknown_method_is_refused_by_name():
    with pytest.raises(InvalidInput, match="'temperature', 'isotonic'"):
        fit_calibration("beta", [[1.0, 2.0]], [0])
