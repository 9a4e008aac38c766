"""Vector scaling, Platt and isotonic against scikit-learn and scipy, and the choice between methods."""

import json

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import _SigmoidCalibration
from sklearn.isotonic import IsotonicRegression

from bothways.errors import InvalidInput
from bothways.evaluation import (
    Temperature,
    calibration_from,
    choose_calibration,
    fit_calibration,
    fit_temperature,
    negative_log_likelihood,
    softmax,
    stored_form,
)
from bothways.evaluation.calibrating import METHODS
from bothways.evaluation.one_vs_rest import Isotonic, Platt, fit_platt, fit_sigmoid, isotonic_regression, log_odds
from bothways.evaluation.vector_scaling import VectorScaling, fit_vector_scaling


def drawn(rows, classes, true_logits, seed=0, spread=3.0):
    """Logits, and labels drawn from the probabilities of what a function makes of them."""
    random = np.random.default_rng(seed)
    logits_NC = random.normal(0, spread, (rows, classes))
    cumulated_NC = softmax(true_logits(logits_NC)).cumsum(1)
    return logits_NC, (random.random((rows, 1)) > cumulated_NC).sum(1).clip(max=classes - 1)


def test_a_known_vector_scaling_is_recovered():
    scale, shift = np.array([1.5, 0.4, 0.8]), np.array([0.5, -1.0, 0.5])
    found = fit_vector_scaling(*drawn(40_000, 3, lambda logits: logits * scale + shift))
    np.testing.assert_allclose(found.scale, scale, rtol=0.05)
    np.testing.assert_allclose(np.array(found.shift) - np.mean(found.shift), shift, atol=0.05)


def test_vector_scaling_finds_what_a_general_optimiser_finds():
    logits_NC, labels_N = drawn(200, 4, lambda logits: logits * [1, 0.5, 0.3, 0.2])
    temperature = fit_temperature(logits_NC, labels_N)

    def objective(point):
        shifted_NC = logits_NC / temperature * point[:4] + point[4:]
        nll = (np.logaddexp.reduce(shifted_NC, axis=1) - shifted_NC[np.arange(200), labels_N]).sum()
        return nll + ((point[:4] - 1) ** 2).sum() / 2 + (point[4:] ** 2).sum() / 2

    expected = scipy.optimize.minimize(objective, [1.0] * 4 + [0.0] * 4, method="BFGS", options={"gtol": 1e-6}).x
    found = fit_vector_scaling(logits_NC, labels_N)
    np.testing.assert_allclose(np.array(found.scale) * temperature, expected[:4], atol=1e-5)
    np.testing.assert_allclose(found.shift, expected[4:], atol=1e-5)


def test_few_rows_leave_vector_scaling_near_the_temperature():
    logits_NC, labels_N = drawn(6, 150, lambda logits: logits)
    found = fit_vector_scaling(logits_NC, labels_N)
    factors = np.array(found.scale) * fit_temperature(logits_NC, labels_N)
    # Six rows say next to nothing of 300 numbers, and all but the six classes' own stay where they were.
    assert np.median(np.abs(factors - 1)) < 0.05
    assert np.median(np.abs(found.shift)) < 0.05


@pytest.mark.parametrize("seed", range(3))
def test_platts_sigmoid_is_that_of_scikit_learn(seed):
    logits_N2, labels_N = drawn(500, 2, lambda logits: logits / 2 + [0.0, 1.0], seed)
    scores_N = logits_N2[:, 1] - logits_N2[:, 0]
    expected = _SigmoidCalibration().fit(scores_N, labels_N)
    # Theirs is 1 / (1 + exp(a x + b)), found to their optimiser's tolerance.
    assert fit_sigmoid(scores_N, labels_N == 1) == pytest.approx((-expected.a_, -expected.b_), abs=1e-4)
    np.testing.assert_allclose(fit_platt(logits_N2, labels_N).apply(logits_N2)[:, 1], expected.predict(scores_N), 1e-3)


def test_platts_sigmoid_is_finite_where_the_classes_are_apart():
    scores_N = np.concatenate([np.linspace(-30, -20, 50), np.linspace(20, 30, 50)])
    factor, shift = fit_sigmoid(scores_N, scores_N > 0)
    assert np.isfinite([factor, shift]).all()
    assert factor > 0


@given(st.integers(0, 2**16), st.integers(1, 60), st.integers(1, 20))
def test_isotonic_regression_is_that_of_scikit_learn(seed, rows, values):
    random = np.random.default_rng(seed)
    x_N, y_N = random.integers(0, values, rows) / values, random.integers(0, 2, rows).astype(float)
    knots_K, values_K = isotonic_regression(x_N, y_N)
    asked = np.linspace(-0.2, 1.2, 141)
    expected = IsotonicRegression(out_of_bounds="clip").fit(x_N, y_N).predict(asked)
    np.testing.assert_allclose(np.interp(asked, knots_K, values_K), expected, atol=1e-9)


def test_log_odds_are_exact_where_one_class_is_nearly_sure():
    odds_NC = log_odds(np.array([[30.0, 0.0], [0.0, 30.0], [1.0, 1.0]]))
    np.testing.assert_allclose(odds_NC, [[30, -30], [-30, 30], [0, 0]], rtol=1e-12)
    logits_NC = np.random.default_rng(0).normal(0, 3, (50, 4))
    stated_NC = softmax(logits_NC)
    np.testing.assert_allclose(log_odds(logits_NC), np.log(stated_NC / (1 - stated_NC)), rtol=1e-9)


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
@pytest.mark.parametrize("seed", range(4))
def test_the_temperature_is_kept_where_nothing_is_clearly_better(classes, seed):
    chosen = choose_calibration(*drawn(600, classes, lambda logits: logits / 2, seed), seed=seed)
    assert chosen.method == "temperature"
    assert isinstance(chosen.calibration, Temperature)
    assert [score.method for score in chosen.scores] == list(METHODS)


def test_a_shift_between_two_classes_is_worth_another_method():
    chosen = choose_calibration(*drawn(900, 2, lambda logits: logits / 2 + [0.0, 1.5]))
    assert chosen.method in ("vector", "platt")
    kept, taken = (
        next(each for each in chosen.scores if each.method == name) for name in ("temperature", chosen.method)
    )
    assert taken.nll < kept.nll
    assert taken.accuracy >= kept.accuracy


def test_classes_of_different_sharpness_ask_for_vector_scaling():
    chosen = choose_calibration(*drawn(3_000, 4, lambda logits: logits * [1, 0.5, 0.3, 0.2]))
    assert chosen.method == "vector"


def test_a_curve_that_no_sigmoid_follows_asks_for_isotonic():
    # The true probability steps from 0.1 to 0.5 to 0.9 as the stated one rises.
    random = np.random.default_rng(0)
    gap_N = random.uniform(-4, 4, 4_000)
    truth_N = random.random(4_000) < np.select([gap_N < -1, gap_N < 1], [0.1, 0.5], 0.9)
    chosen = choose_calibration(np.column_stack([np.zeros(4_000), gap_N]), truth_N.astype(int))
    assert chosen.method == "isotonic"


def test_few_rows_are_not_chosen_on():
    chosen = choose_calibration(*drawn(30, 4, lambda logits: logits * [1, 0.5, 0.3, 0.2]))
    assert (chosen.method, chosen.scores) == ("temperature", ())


@pytest.mark.parametrize("rare", [0, 9])
def test_a_class_that_is_hardly_there_is_not_unlearnt(rare):
    logits_NC, labels_N = drawn(3_000, 4, lambda logits: logits * [1, 0.5, 0.3, 0.2])
    inside_N = (labels_N != 3) | ((labels_N == 3).cumsum() <= rare)
    chosen = choose_calibration(logits_NC[inside_N], labels_N[inside_N])
    assert (chosen.method, chosen.scores) == ("temperature", ())
    others_NC = logits_NC[~inside_N]
    assert (chosen.calibration.apply(others_NC).argmax(1) == others_NC.argmax(1)).all()


def test_the_choice_is_that_of_its_seed_and_the_fit_that_of_all_rows():
    logits_NC, labels_N = drawn(900, 2, lambda logits: logits / 2 + [0.0, 1.5])
    chosen = choose_calibration(logits_NC, labels_N, seed=3)
    assert chosen == choose_calibration(logits_NC, labels_N, seed=3)
    assert chosen.calibration == fit_calibration(chosen.method, logits_NC, labels_N)


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
        {"method": "vector", "scale": [1.0, 1.0], "shift": [0.0]},
        {"method": "vector", "scale": [1.0, 0.0], "shift": [0.0, 0.0]},
        {"method": "vector", "scale": [1.0, float("nan")], "shift": [0.0, 0.0]},
        {"method": "platt", "factor": 1.0, "shift": [0.0, 0.0]},
        {"method": "platt", "factor": [1.0, 1.0], "shift": [0.0, 0.0], "more": [1.0]},
        {"method": "isotonic", "knots": [[0.1, 0.1], [0.1]], "values": [[0.2, 0.3], [0.5]]},
        {"method": "isotonic", "knots": [[0.1, 0.2], [0.1]], "values": [[0.4, 0.3], [0.5]]},
        {"method": "isotonic", "knots": [[0.1, 0.2], [0.1]], "values": [[0.0, 0.3], [0.5]]},
        {"method": "isotonic", "knots": 3, "values": [[0.4, 0.3], [0.5]]},
    ],
)
def test_what_is_no_calibration_is_refused(stored):
    with pytest.raises(InvalidInput):
        calibration_from(stored)


@pytest.mark.parametrize(
    "calibration",
    [
        VectorScaling((1.0, 1.0, 1.0), (0.0, 0.0, 0.0)),
        Platt((1.0, 1.0, 1.0), (0.0, 0.0, 0.0)),
        Isotonic(((0.5,), (0.5,), (0.5,)), ((0.5,), (0.5,), (0.5,))),
    ],
)
def test_logits_of_another_number_of_classes_are_refused(calibration):
    with pytest.raises(InvalidInput, match="3 classes"):
        calibration.apply([[1.0, 2.0]])


def test_an_unknown_method_is_refused_by_name():
    with pytest.raises(InvalidInput, match="temperature, vector, platt, isotonic"):
        fit_calibration("beta", [[1.0, 2.0]], [0])
