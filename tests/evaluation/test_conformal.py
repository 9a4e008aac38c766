"""Prediction sets and intervals: equal to MAPIE's, and as often right as promised."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mapie.classification import SplitConformalClassifier
from mapie.conformity_scores import LACConformityScore
from mapie.regression import SplitConformalRegressor
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from bothways.errors import InvalidInput
from bothways.evaluation.calibration import MOST_KEPT, ConformalInterval, ConformalSets, held_out_quantile
from bothways.evaluation.temperature import softmax


class Stated(ClassifierMixin, BaseEstimator):
    """A classifier whose probabilities are its input."""

    def __init__(self, classes):
        self.classes = classes

    def __sklearn_is_fitted__(self):
        return True

    @property
    def classes_(self):
        return np.arange(self.classes)

    def fit(self, X, y):  # noqa: ARG002
        return self

    def predict_proba(self, X):
        return X

    def predict(self, X):
        return X.argmax(1)


class Predicted(RegressorMixin, BaseEstimator):
    """A regressor whose prediction is its input."""

    def __sklearn_is_fitted__(self):
        return True

    def fit(self, X, y):  # noqa: ARG002
        return self

    def predict(self, X):
        return X[:, 0]


def drawn(rows, classes, seed):
    random = np.random.default_rng(seed)
    stated_NC = softmax(random.normal(0, 2, (rows, classes)))
    truth_N = (random.random((rows, 1)) > stated_NC.cumsum(1)).sum(1).clip(max=classes - 1)
    return stated_NC, truth_N


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
def test_the_sets_are_those_of_mapie(coverage):
    held_MC, held_M = drawn(300, 6, 0)
    asked_NC, _ = drawn(500, 6, 1)
    score = LACConformityScore()
    peer = SplitConformalClassifier(Stated(6), confidence_level=coverage, conformity_score=score, prefit=True)
    peer.conformalize(held_MC, held_M)
    _, expected_NC1 = peer.predict_set(asked_NC)
    found_NC = ConformalSets.fit(held_MC, held_M).at(coverage).includes(asked_NC, never_empty=False)
    np.testing.assert_array_equal(found_NC, expected_NC1[:, :, 0])


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
def test_the_intervals_are_those_of_mapie(coverage):
    random = np.random.default_rng(0)
    truth_M = random.normal(0, 1, 250)
    predicted_M = truth_M + random.standard_t(3, 250)
    predictor = Predicted()
    predictor.is_fitted = True  # one of the names that MAPIE looks for
    peer = SplitConformalRegressor(predictor, confidence_level=coverage, prefit=True)
    peer.conformalize(predicted_M[:, None], truth_M)
    _, expected = peer.predict_interval(np.array([[1.5]]))
    half = ConformalInterval.fit(predicted_M, truth_M).at(coverage)
    np.testing.assert_allclose(expected[0, :, 0], [1.5 - half, 1.5 + half])


@given(st.integers(0, 2**16), st.floats(0.05, 0.9), st.floats(0.0, 0.09))
def test_a_higher_promise_never_drops_a_label_and_no_set_is_empty(seed, coverage, more):
    stated_NC, truth_N = drawn(120, 4, seed)
    sets = ConformalSets.fit(stated_NC, truth_N)
    lower, higher = (sets.at(each).includes(stated_NC) for each in (coverage, coverage + more))
    assert (lower <= higher).all()
    assert lower[np.arange(120), stated_NC.argmax(1)].all()


def test_the_quantile_counts_the_new_row_and_rounding_adds_none():
    scores = np.arange(1.0, 10.0)  # 9 rows: 10 * 0.9 is the 9th, 10 * 0.8 the 8th
    assert held_out_quantile(scores, 0.9) == 9
    assert held_out_quantile(scores, 0.8) == 8
    assert held_out_quantile(scores, 0.81) == 9


@pytest.mark.parametrize("coverage", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_a_coverage_that_is_no_share_is_refused(coverage):
    with pytest.raises(InvalidInput, match="between 0 and 1"):
        held_out_quantile(np.ones(10), coverage)


def test_too_few_rows_for_a_promise_say_how_many_it_takes():
    with pytest.raises(InvalidInput, match="99"):
        held_out_quantile(np.ones(98), 0.99)
    assert held_out_quantile(np.ones(99), 0.99) == 1


@pytest.mark.parametrize("rows", [1, 2, 6, 8, 98, 99, 999, 1_000, 4_321, 9_999, MOST_KEPT])
def test_the_coverage_that_is_said_to_be_the_highest_is_kept(rows):
    with pytest.raises(InvalidInput) as caught:
        held_out_quantile(np.ones(rows), 0.999999)
    highest = float(re.search(r"at most (0\.\d+),", str(caught.value))[1])
    assert held_out_quantile(np.ones(rows), highest) == 1
    assert highest > rows / (rows + 1) - 1e-3


def test_more_rows_than_are_kept_give_nearly_the_same_quantile():
    errors = np.random.default_rng(0).normal(size=5 * MOST_KEPT)
    interval = ConformalInterval.fit(errors, np.zeros_like(errors))
    assert len(interval.held_out_M) == MOST_KEPT
    assert interval.at(0.9) == pytest.approx(np.quantile(np.abs(errors), 0.9), rel=0.03)
