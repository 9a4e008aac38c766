"""Recall at a given precision, and precision at a given recall, are those of scikit-learn's curve."""

from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics as oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from bothways.errors import InvalidInput
from bothways.evaluation.metrics.classification import class_outcomes
from bothways.evaluation.thresholds import operating_point, precision_recall

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
        (([1, 1], [0.5, 0.4], {"recall": 0.5}), "need rows of it and of the other class, got 2 of it among 2"),
        (([0, 0], [0.5, 0.4], {"recall": 0.5}), "got 0 of it among 2"),
        (([1, 0], [0.5, 1.4], {"recall": 0.5}), "probabilities"),
    ],
)
def test_what_has_no_operating_point_is_refused(given_, said):
    truth, stated, wanted = given_
    with pytest.raises(InvalidInput, match=said):
        operating_point("a", truth, stated, **wanted)
