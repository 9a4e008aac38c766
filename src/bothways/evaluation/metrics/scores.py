"""Classification metrics, single-label and multi-label.

Every count-based metric is a formula over `ClassCounts`, whose arrays may carry leading axes: the same code
gives one value, or one value for each bootstrap resample. A ratio whose denominator is zero (the precision of
a class that was never predicted, the recall of one that never occurs) is 0.0, scikit-learn's default.

Shape letters: N rows, C classes or labels, R bootstrap resamples.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from bothways.evaluation.inputs import (
    BoolArray,
    FloatArray,
    IntArray,
    class_indices,
    class_probabilities,
    label_matrix,
    probability_array,
)

SMALLEST_PROBABILITY = float(np.finfo(np.float64).eps)
"""Lower bound on probabilities in the NLL, which keeps it finite."""


def confusion_matrix(truth_N: ArrayLike, predicted_N: ArrayLike, classes: int) -> IntArray:
    """Return counts (C, C), true classes in rows, predicted classes in columns."""
    truth = class_indices(truth_N, "truth", classes=classes)
    predicted = class_indices(predicted_N, "predicted", classes=classes, rows=len(truth))
    cells = np.bincount(truth * classes + predicted, minlength=classes * classes)
    return cells.astype(np.int64).reshape(classes, classes)


def group_sums(values_RN: FloatArray, groups_N: IntArray, groups: int) -> FloatArray:
    """Sum the columns of ``values_RN`` by group: (R, groups), 0 for an empty group."""
    sums = np.zeros((len(values_RN), groups))
    if len(groups_N):
        order_N = np.argsort(groups_N, kind="stable")
        present, starts = np.unique(groups_N[order_N], return_index=True)
        sums[:, present] = np.add.reduceat(values_RN[:, order_N], starts, axis=1)
    return sums


@dataclass(frozen=True)
class ClassCounts:
    """Counts of a confusion matrix that the metrics need."""

    hits: FloatArray  # rows (..., C) whose true and predicted class are both this one (true positives)
    truth: FloatArray  # rows (..., C) of this true class
    predicted: FloatArray  # rows (..., C) predicted as this class

    @classmethod
    def of(cls, truth_N: IntArray, predicted_N: IntArray, classes: int) -> Self:
        """Count single-label rows: (C,)."""
        each = (truth_N[truth_N == predicted_N], truth_N, predicted_N)
        return cls(*(np.bincount(numbers, minlength=classes).astype(np.float64) for numbers in each))

    @classmethod
    def resampled(cls, truth_N: IntArray, predicted_N: IntArray, classes: int, counts_RN: FloatArray) -> Self:
        """Count single-label rows: (R, C), row ``i`` taken ``counts_RN[r, i]`` times in resample r."""
        right_N = truth_N == predicted_N
        return cls(
            group_sums(counts_RN[:, right_N], truth_N[right_N], classes),
            group_sums(counts_RN, truth_N, classes),
            group_sums(counts_RN, predicted_N, classes),
        )

    @classmethod
    def resampled_labels(cls, truth_NC: BoolArray, predicted_NC: BoolArray, counts_RN: FloatArray) -> Self:
        """Count multi-label rows likewise."""
        return cls(
            counts_RN @ (truth_NC & predicted_NC).astype(np.float64),
            counts_RN @ truth_NC.astype(np.float64),
            counts_RN @ predicted_NC.astype(np.float64),
        )


def _ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """Divide, with 0.0 for a denominator of 0."""
    quotient = np.zeros(np.broadcast_shapes(np.shape(numerator), np.shape(denominator)))
    return np.divide(numerator, denominator, out=quotient, where=np.asarray(denominator) != 0)


def precision(counts: ClassCounts) -> FloatArray:
    """Return the share of true rows among those predicted as each class: (..., C); 0.0 if none was predicted."""
    return _ratio(counts.hits, counts.predicted)


def recall(counts: ClassCounts) -> FloatArray:
    """Return the share of each class's rows that were predicted as it: (..., C); 0.0 if it never occurs."""
    return _ratio(counts.hits, counts.truth)


def f1(counts: ClassCounts) -> FloatArray:
    """Return F1, ``2 hits / (truth + predicted)``, of every class: (..., C); 0.0 if precision and recall are 0."""
    return _ratio(2 * counts.hits, counts.truth + counts.predicted)


def class_scores(counts: ClassCounts) -> FloatArray:
    """Return precision, then recall, then F1 of every class: (..., 3 C)."""
    return np.concatenate([precision(counts), recall(counts), f1(counts)], axis=-1)


def score_rows(support_C: IntArray, predicted_C: IntArray) -> IntArray:
    """Return the number of rows behind precision, recall and F1 of each class: (3 C,)."""
    return np.concatenate([predicted_C, support_C, np.maximum(support_C, predicted_C)])


def macro_rows(support_C: IntArray, predicted_C: IntArray) -> int:
    """Return the number of rows behind a mean over classes: those of the rarest class that occurs, or 0."""
    rows_C = np.maximum(support_C, predicted_C)
    occurring = rows_C[rows_C > 0]
    return int(occurring.min()) if len(occurring) else 0


def single_label_rows(truth_N: IntArray, predicted_N: IntArray, classes: int) -> tuple[int, int, int]:
    """Return the number of rows behind accuracy, macro F1 and MCC; for the MCC only if it is 1, since 0 is no bound."""
    support_C, predicted_C = (np.bincount(each_N, minlength=classes) for each_N in (truth_N, predicted_N))
    macro = macro_rows(support_C, predicted_C)
    flawless = bool((truth_N == predicted_N).all()) and np.count_nonzero(support_C) > 1
    return len(truth_N), macro, macro if flawless else 0


def label_set_rows(truth_NC: BoolArray, predicted_NC: BoolArray) -> tuple[int, int]:
    """Return the number of rows behind micro and macro F1 of label sets: rows with a label, true or predicted."""
    rows = int((truth_NC | predicted_NC).any(axis=1).sum())
    return rows, macro_rows(truth_NC.sum(axis=0), predicted_NC.sum(axis=0))


def accuracy(counts: ClassCounts) -> FloatArray:
    """Return the share of single-label rows predicted right: (...)."""
    return _ratio(counts.hits.sum(axis=-1), counts.truth.sum(axis=-1))


def macro_f1(counts: ClassCounts) -> FloatArray:
    """Return the mean F1 over the classes that occur in truth or predictions, as scikit-learn does: (...)."""
    occurs = (counts.truth + counts.predicted) > 0
    return _ratio(f1(counts).sum(axis=-1), occurs.sum(axis=-1).astype(np.float64))


def mcc(counts: ClassCounts) -> FloatArray:
    """Return the Matthews correlation of single-label rows, from -1 to 1: (...).

    The multi-class form R_K of Gorodkin (2004), "Comparing two K-category assignments by a K-category
    correlation coefficient". 0.0 where the truth or the predictions are all of one class.
    """
    rows = counts.truth.sum(axis=-1)
    right = counts.hits.sum(axis=-1)
    covariance = right * rows - (counts.truth * counts.predicted).sum(axis=-1)
    truth_variance = rows**2 - (counts.truth**2).sum(axis=-1)
    predicted_variance = rows**2 - (counts.predicted**2).sum(axis=-1)
    # Two roots, not the root of the product: equal variances then divide out exactly.
    return _ratio(covariance, np.sqrt(truth_variance) * np.sqrt(predicted_variance))


def micro_f1(counts: ClassCounts) -> FloatArray:
    """Return F1 over all (row, label) decisions together: (...)."""
    total = counts.truth.sum(axis=-1) + counts.predicted.sum(axis=-1)
    return _ratio(2 * counts.hits.sum(axis=-1), total)


def multi_label_macro_f1(counts: ClassCounts) -> FloatArray:
    """Return the mean F1 over all labels: (...). As in scikit-learn, it is 0.0 for a label that never occurs."""
    return np.asarray(f1(counts).mean(axis=-1))


def brier_per_row(truth_N: IntArray, probabilities_NC: FloatArray) -> FloatArray:
    """Return the squared distance of probabilities and truth, summed over classes: (N,), from 0 to 2."""
    true_N = probabilities_NC[np.arange(len(truth_N)), truth_N]
    others_N = (probabilities_NC**2).sum(axis=1) - true_N**2
    brier_N: FloatArray = np.maximum(others_N, 0.0) + (1 - true_N) ** 2
    return brier_N


def nll_per_row(truth_N: IntArray, probabilities_NC: FloatArray) -> FloatArray:
    """Return the negative natural logarithm of the probability of each row's true class: (N,), in nats."""
    true_N = probabilities_NC[np.arange(len(truth_N)), truth_N]
    nll_N: FloatArray = -np.log(np.maximum(true_N, SMALLEST_PROBABILITY))
    return nll_N


def label_nll(truth_NC: BoolArray, probabilities_NC: FloatArray) -> FloatArray:
    """Return the binary cross-entropy of every (row, label) decision: (N, C), in nats."""
    likelihood_NC = np.where(truth_NC, probabilities_NC, 1 - probabilities_NC)
    nll_NC: FloatArray = -np.log(np.maximum(likelihood_NC, SMALLEST_PROBABILITY))
    return nll_NC


def negative_log_likelihood(truth_N: ArrayLike, probabilities_NC: ArrayLike) -> float:
    """Return the mean negative log likelihood of the true class, in nats; it is always finite."""
    probabilities = class_probabilities(probabilities_NC)
    truth = class_indices(truth_N, "truth", classes=probabilities.shape[1], rows=len(probabilities))
    return float(nll_per_row(truth, probabilities).mean())


def multi_label_nll(truth_NC: ArrayLike, probabilities_NC: ArrayLike) -> float:
    """Return the mean binary cross-entropy over all (row, label) decisions, in nats."""
    probabilities = probability_array(probabilities_NC, "probabilities", dimensions=2)
    truth = label_matrix(truth_NC, "truth", shape=probabilities.shape)
    return float(label_nll(truth, probabilities).mean())
