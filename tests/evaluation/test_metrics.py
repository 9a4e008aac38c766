"""Metrics equal scikit-learn's, also where classes are absent and predictions degenerate."""

import numpy as np
import pytest
import sklearn.metrics as oracle
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bothways.errors import InvalidInput
from bothways.evaluation.inputs import probability_array
from bothways.evaluation.metrics.classification import (
    ClassCounts,
    accuracy,
    brier_per_row,
    confusion_matrix,
    f1,
    macro_f1,
    mcc,
    micro_f1,
    multi_label_macro_f1,
    multi_label_nll,
    negative_log_likelihood,
    precision,
    recall,
)
from bothways.evaluation.temperature import softmax

CLASSES = 4
LABELLED = st.lists(st.tuples(st.integers(0, CLASSES - 1), st.integers(0, CLASSES - 1)), min_size=1, max_size=40)


@pytest.mark.filterwarnings("ignore:A single label was found")
@settings(deadline=None)
@given(LABELLED)
@example([(2, 2)] * 3)
def test_single_label_metrics_equal_scikit_learn(rows):
    truth, predicted = np.array(rows).T
    confusion = confusion_matrix(truth, predicted, CLASSES)
    counts = ClassCounts.of(truth, predicted, CLASSES)
    classes = range(CLASSES)
    np.testing.assert_array_equal(confusion, oracle.confusion_matrix(truth, predicted, labels=classes))
    expected = oracle.precision_recall_fscore_support(truth, predicted, labels=classes, zero_division=0)
    for ours, theirs in zip((precision(counts), recall(counts), f1(counts), counts.truth), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)
    assert accuracy(counts) == pytest.approx(oracle.accuracy_score(truth, predicted), abs=1e-12)
    assert macro_f1(counts) == pytest.approx(
        oracle.f1_score(truth, predicted, average="macro", zero_division=0), abs=1e-12
    )
    assert mcc(counts) == pytest.approx(oracle.matthews_corrcoef(truth, predicted), abs=1e-12)


@given(LABELLED)
def test_counts_of_a_resample_equal_those_of_its_rows(rows):
    truth, predicted = np.array(rows).T
    counts_RN = np.random.default_rng(0).integers(0, 3, (4, len(truth))).astype(float)
    counts_RN[:, 0] += 1
    resampled = ClassCounts.resampled(truth, predicted, CLASSES, counts_RN)
    for index, times_N in enumerate(counts_RN.astype(int)):
        rows = np.repeat(np.arange(len(truth)), times_N)
        expected = ClassCounts.of(truth[rows], predicted[rows], CLASSES)
        for name in ("hits", "truth", "predicted"):
            np.testing.assert_array_equal(getattr(resampled, name)[index], getattr(expected, name))


@pytest.mark.parametrize("classes", [2, 7])
def test_probability_scores_equal_scikit_learn(classes):
    rng = np.random.default_rng(classes)
    probabilities = softmax(rng.normal(size=(300, classes)) * 3)
    truth = rng.integers(0, classes, 300)
    truth[truth == 1] = 0
    every = range(classes)
    assert negative_log_likelihood(truth, probabilities) == pytest.approx(
        oracle.log_loss(truth, probabilities, labels=every), abs=1e-12
    )
    assert brier_per_row(truth, probabilities).mean() == pytest.approx(
        oracle.brier_score_loss(truth, probabilities, labels=every, scale_by_half=False), abs=1e-12
    )


def test_an_impossible_truth_leaves_the_nll_finite():
    assert negative_log_likelihood([0], [[0.0, 1.0]]) == pytest.approx(-np.log(np.finfo(float).eps))
    assert multi_label_nll([[1]], [[0.0]]) == pytest.approx(-np.log(np.finfo(float).eps))


@pytest.mark.parametrize("case", ["ordinary", "label absent", "nothing predicted", "nothing true", "neither"])
def test_multi_label_metrics_equal_scikit_learn(case):
    rng = np.random.default_rng(5)
    probabilities = rng.random((150, 5))
    truth = (rng.random((150, 5)) < probabilities).astype(int)
    predicted = (probabilities >= 0.5).astype(int)
    if case == "label absent":
        truth[:, 1], predicted[:, 1] = 0, 0
    if case in ("nothing predicted", "neither"):
        predicted[:] = 0
    if case in ("nothing true", "neither"):
        truth[:] = 0
    counts = ClassCounts.resampled_labels(truth == 1, predicted == 1, np.ones((1, 150)))
    for average, ours in (("micro", micro_f1(counts)[0]), ("macro", multi_label_macro_f1(counts)[0])):
        theirs = oracle.f1_score(truth, predicted, average=average, zero_division=0)
        assert ours == pytest.approx(theirs, abs=1e-12)
    theirs = oracle.precision_recall_fscore_support(truth, predicted, average=None, zero_division=0)
    for ours, expected in zip((precision(counts), recall(counts), f1(counts)), theirs[:3], strict=True):
        np.testing.assert_allclose(ours[0], expected, atol=1e-12)
    flat_truth, flat = truth.ravel(), probabilities.ravel()
    assert multi_label_nll(truth, probabilities) == pytest.approx(
        oracle.log_loss(flat_truth, flat, labels=[0, 1]), abs=1e-12
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: confusion_matrix([], [], 2), "truth: expected a non-empty vector"),
        (lambda: confusion_matrix([0.5], [0], 2), "truth: expected a non-empty vector of class indices"),
        (lambda: confusion_matrix([0, 2], [0, 1], 2), "from 0 to 1, got 0 to 2"),
        (lambda: confusion_matrix([0, -1], [0, 1], 2), "got -1 to 0"),
        (lambda: confusion_matrix([0, 1], [0], 2), "predicted: expected 2 rows"),
        (lambda: negative_log_likelihood([0], [[2.0, -1.0]]), "from 0 to 1, got -1 to 2"),
        (lambda: negative_log_likelihood([0], [[0.5, 0.4]]), "sum to 1"),
        (lambda: negative_log_likelihood([0], [[np.nan, 1.0]]), "finite"),
        (lambda: negative_log_likelihood([0, 1], [[0.5, 0.5]]), "truth: expected 1 rows"),
        (lambda: negative_log_likelihood([0], [["a", "b"]]), "array of numbers"),
        (lambda: multi_label_nll([[1, 0]], [[1]]), "expected the shape"),
        (lambda: multi_label_nll([[2]], [[1]]), "only 0 and 1"),
    ],
)
def test_unusable_input_is_refused_with_what_was_expected(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()


@pytest.mark.parametrize("wrong", [1.5, 1 + 1e-5, -1e-5])
def test_numbers_outside_of_0_to_1_are_no_probabilities_but_for_rounding(wrong):
    assert probability_array([[1 + 1e-7, -1e-7]], "p", dimensions=2).tolist() == [[1.0, 0.0]]
    with pytest.raises(InvalidInput, match="p: expected probabilities from 0 to 1"):
        probability_array([[wrong, 0.5]], "p", dimensions=2)
