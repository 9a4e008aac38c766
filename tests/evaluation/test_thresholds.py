"""Thresholds are the best that scikit-learn's curves have: of labels by F1, of a class at a precision or recall."""

from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics as oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from bothways.errors import InvalidInput
from bothways.evaluation.metrics.classification import class_outcomes, label_outcomes
from bothways.evaluation.thresholds import (
    best_threshold_f1,
    fit_common_threshold,
    fit_thresholds,
    operating_point,
    precision_recall,
)


def sets(rows=200, labels=6, seed=0, ties=False):
    """Labels of which some are rare, and calibrated probabilities that say something about them."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(np.linspace(0, -3, labels), 1.5, (rows, labels))
    stated = 1 / (1 + np.exp(-odds))
    return rng.random((rows, labels)) < stated, np.round(stated, 1) if ties else stated


def best_f1(truth, stated):
    precision, recall, _ = oracle.precision_recall_curve(truth, stated)
    return (2 * precision * recall / np.maximum(precision + recall, 1e-12)).max()


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 0.1, 0.4, 0.40000000000000002, 0.7, 1.0])), min_size=1))
@settings(deadline=None)
def test_a_threshold_has_the_best_f1_and_lies_half_way_between_probabilities(decisions):
    truth, stated = (np.array(each) for each in zip(*decisions, strict=True))
    threshold = best_threshold_f1(truth, stated)
    assert 0 <= threshold <= 1
    if truth.any():
        assert oracle.f1_score(truth, stated >= threshold) == pytest.approx(best_f1(truth, stated), abs=1e-12)
    below, above = max([0.0, *stated[stated < threshold]]), min(stated[stated >= threshold])
    assert threshold == pytest.approx((below + above) / 2) or threshold == above


def test_of_equally_good_thresholds_the_nearest_to_one_half_is_taken():
    # One of them, or all four, have an F1 of 2/3.
    truth, stated = np.array([True, False, False, True]), np.array([0.9, 0.6, 0.4, 0.2])
    assert best_threshold_f1(truth, stated) == pytest.approx(0.75)
    assert best_threshold_f1(truth, stated - 0.19) == pytest.approx(0.56)


@pytest.mark.parametrize("seed", range(5))
def test_own_thresholds_are_those_of_the_best_f1_and_never_lower_the_micro_f1(seed):
    truth, stated = sets(400, seed=seed)
    thresholds, common = fit_thresholds(truth, stated), fit_common_threshold(truth, stated)
    together = oracle.f1_score(truth, stated >= thresholds, average="micro")
    assert together >= oracle.f1_score(truth, stated >= common, average="micro") - 1e-12
    for label, threshold in enumerate(thresholds):
        own = oracle.f1_score(truth[:, label], stated[:, label] >= threshold)
        assert threshold == common or own == pytest.approx(best_f1(truth[:, label], stated[:, label]), abs=1e-12)
    assert (thresholds != common).any()


def test_labels_with_few_rows_share_a_threshold():
    truth, stated = sets(60, labels=4)
    truth[:, 3] = False
    truth[:9, 3] = True
    stated[:9, 3] += 0.1
    thresholds = fit_thresholds(truth, stated)
    assert thresholds[3] == fit_common_threshold(truth, stated)
    assert (fit_thresholds(truth, stated, least=1000) == 0.5).all()
    assert (fit_thresholds(np.zeros((20, 2), dtype=int), stated[:20, :2]) == 0.5).all()


def test_a_label_that_cannot_be_found_is_not_given_to_every_row():
    rng = np.random.default_rng(0)
    truth, stated = sets(500, labels=3)
    truth[:, 2], stated[:, 2] = rng.random(500) < 0.05, rng.uniform(0.03, 0.07, 500)
    assert best_threshold_f1(truth[:, 2], stated[:, 2]) < 0.07  # where most rows are given it
    thresholds = fit_thresholds(truth, stated)
    assert (stated[:, 2] >= thresholds[2]).mean() < 0.1


def test_a_report_says_at_which_thresholds_labels_are_given():
    truth, stated = sets(80, labels=3)
    names = ["ant", "bee", "cow"]
    common = label_outcomes(names, truth, stated, threshold=[0.25] * 3).report(resamples=5)
    assert common.to_dict() == label_outcomes(names, truth, stated, threshold=0.25).report(resamples=5).to_dict()
    assert "Labels are predicted at a probability of at least 0.25." in common.summary()
    own = label_outcomes(names, truth, stated, threshold=[0.25, 0.5, 0.1]).report(resamples=5)
    assert own.values["threshold"] is None
    assert [own.to_dict()["per_class"][name]["threshold"] for name in names] == [0.25, 0.5, 0.1]
    assert "its own probability threshold, from 0.1 to 0.5." in own.summary()
    expected = oracle.f1_score(truth, stated >= np.array([0.25, 0.5, 0.1]), average=None)
    assert [row.f1.value for row in own.per_class] == pytest.approx(list(expected))


FEW = {"resamples": 20}


def decisions(rows=200, seed=0, ties=False):
    rng = np.random.default_rng(seed)
    stated = 1 / (1 + np.exp(-rng.normal(-1, 2, rows)))
    return rng.random(rows) < stated, np.round(stated, 1) if ties else stated


def curve(truth, stated):
    """Precision and recall of every threshold, without the end that no threshold has."""
    precision, recall, thresholds = oracle.precision_recall_curve(truth, stated)
    return precision[:-1], recall[:-1], thresholds


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0])), min_size=1))
@settings(deadline=None)
def test_every_way_to_divide_the_rows_is_on_the_curve(rows):
    truth, stated = (np.array(each) for each in zip(*rows, strict=True))
    if not truth.any():
        return
    precision, recall, thresholds = precision_recall(truth, stated)
    theirs = curve(truth, stated)
    assert precision[::-1] == pytest.approx(theirs[0])
    assert recall[::-1] == pytest.approx(theirs[1])
    for own, at in zip(thresholds[::-1], theirs[2], strict=True):
        assert ((stated >= own) == (stated >= at)).all()


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("least", [0.3, 0.7, 0.9, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_point_of_the_curve_is_chosen(least, seed, ties):
    truth, stated = decisions(seed=seed, ties=ties)
    precision, recall, _ = curve(truth, stated)
    for wanted, given_, other in (("precision", precision, recall), ("recall", recall, precision)):
        found = operating_point("spam", truth, stated, **{wanted: least}, **FEW)
        assert found.highest == pytest.approx(given_.max())
        if given_.max() < least:
            assert (found.threshold, found.precision, found.recall) == (None, None, None)
            continue
        best = other[given_ >= least].max()
        assert (found.recall if wanted == "precision" else found.precision).value == pytest.approx(best)
        at = stated >= found.threshold
        assert found.precision.value == pytest.approx(oracle.precision_score(truth, at))
        assert found.recall.value == pytest.approx(oracle.recall_score(truth, at))
        assert found.precision.low <= found.precision.value <= found.precision.high


def test_of_equal_recall_the_higher_precision_is_taken():
    truth, stated = np.array([True, True, False, False]), np.array([0.9, 0.6, 0.5, 0.1])
    found = operating_point("a", truth, stated, precision=0.5, **FEW)
    assert (found.precision.value, found.recall.value, found.threshold) == (1.0, 1.0, pytest.approx(0.55))
    found = operating_point("a", truth, stated, recall=0.5, **FEW)
    assert (found.precision.value, found.recall.value) == (1.0, 1.0)


def test_a_precision_that_no_threshold_has_is_said():
    found = operating_point("a", [0, 1, 0, 1], [0.9, 0.8, 0.7, 0.6], precision=0.9, **FEW)
    assert found.summary() == "No threshold has a precision of 0.9 for 'a'; the highest is 0.5000."
    assert found.to_dict() == {
        "label": "a", "wanted": "precision", "at_least": 0.9, "threshold": None, "precision": None, "recall": None,
        "highest_precision": 0.5,
    }  # fmt: skip


def test_a_report_has_its_operating_points():
    truth, stated = decisions()
    report = class_outcomes(["b", "a"], truth.astype(int), np.column_stack([1 - stated, stated])).report(**FEW)
    assert "operating_points" not in report.to_dict()
    found = operating_point("a", truth, stated, precision=0.8, **FEW)
    report = replace(report, operating_points=(found,))
    (point,) = report.to_dict()["operating_points"]
    assert point["recall"] == found.recall.value
    assert point["recall_low"] == found.recall.low
    assert f"'a' with a precision of at least 0.8: recall {found.recall.value:.4f}" in report.summary()
    assert "of at least 0.8" in report._repr_html_()


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        (([1, 0], [0.5, 0.4], {}), "a precision or a recall"),
        (([1, 0], [0.5, 0.4], {"precision": 0.5, "recall": 0.5}), "a precision or a recall"),
        (([1, 0], [0.5, 0.4], {"precision": 0.0}), "at_precision: expected a share above 0 and up to 1"),
        (([1, 0], [0.5, 0.4], {"recall": 1.5}), "at_recall: expected a share above 0 and up to 1"),
        (([1, 1], [0.5, 0.4], {"recall": 0.5}), "need rows with and without this class, got 2 of 2 rows with it"),
        (([0, 0], [0.5, 0.4], {"recall": 0.5}), "got 0 of 2 rows with it"),
        (([1, 0], [0.5, 1.4], {"recall": 0.5}), "probabilities"),
    ],
)
def test_what_has_no_operating_point_is_refused(given_, said):
    truth, stated, wanted = given_
    with pytest.raises(InvalidInput, match=said):
        operating_point("a", truth, stated, **wanted)
