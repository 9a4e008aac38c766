"""Decision thresholds of labels: for the highest F1 on held-out rows, or for a minimum precision or recall.

For calibrated probabilities the best threshold is half of the F1 that it reaches (Lipton, Elkan and Naryanaswamy 2014,
arXiv:1402.1892), so 0.5 is too high for every label that is hard to predict. For a label that the model cannot predict
at all, F1 is highest if every row gets it; so a label's own threshold is used only if it does not lower the micro-F1
of all labels.

An operating point is chosen on the evaluated rows, so precision or recall may be a little lower on other rows; its
intervals are for this fixed threshold.

Shape letters: N rows, C labels, D decisions, K thresholds, R resamples.
"""

import numpy as np
from numpy.typing import ArrayLike

from bothways.choices import LabelValue
from bothways.errors import InvalidInput
from bothways.evaluation.inputs import BoolArray, FloatArray, IntArray, label_matrix, probability_array
from bothways.evaluation.intervals import bootstrap_estimates
from bothways.evaluation.report import OperatingPoint

USUAL = 0.5

MIN_POSITIVES = 10
"""Minimum number of positive rows to fit a label's own threshold; in total, to fit a common one other than 0.5."""


def fit_thresholds(truth_NC: ArrayLike, probabilities_NC: ArrayLike, *, least: int = MIN_POSITIVES) -> FloatArray:
    """Fit a threshold (C,) for each label on held-out rows.

    All labels share the threshold with the highest micro-F1, or 0.5 if they have fewer than ``least`` positives in
    total. A label with at least ``least`` positive rows gets the threshold with its own highest F1 instead, unless that
    lowers the micro-F1.
    """
    probabilities = probability_array(probabilities_NC, "probabilities", dimensions=2)
    truth = label_matrix(truth_NC, "truth", shape=probabilities.shape)
    common = fit_common_threshold(truth, probabilities, least=least)
    thresholds_C = np.full(truth.shape[1], common)
    hits, predicted = _hits(truth, probabilities, common), (probabilities >= common).sum(axis=0)
    micro_f1 = 2 * hits.sum() / max(1, predicted.sum() + truth.sum())
    for label in np.flatnonzero(truth.sum(axis=0) >= least):
        truth_N, probability_N = truth[:, label], probabilities[:, label]
        own = best_threshold_f1(truth_N, probability_N)
        more_hits = _hits(truth_N, probability_N, own) - hits[label]
        more_predicted = (probability_N >= own).sum() - predicted[label]
        # With F = 2 H / K: 2 (H + h) / (K + k) >= F if 2 h >= F k; the same holds for sums over several labels.
        if 2 * more_hits >= micro_f1 * more_predicted:
            thresholds_C[label] = own
    return thresholds_C


def fit_common_threshold(truth_NC: BoolArray, probabilities_NC: FloatArray, *, least: int = MIN_POSITIVES) -> float:
    """Return the threshold with the highest micro-F1, or 0.5 if there are fewer than ``least`` positives."""
    if truth_NC.sum() < least:
        return USUAL
    return best_threshold_f1(truth_NC.ravel(), probabilities_NC.ravel())


def best_threshold_f1(truth_D: BoolArray, probability_D: FloatArray) -> float:
    """Return the threshold with the highest F1, half way between two probabilities; the nearest to 0.5 in a tie.

    Probabilities at or above it are predicted as positive.
    """
    hits_K, positive_K, threshold_K = divisions(truth_D, probability_D)
    f1_K = 2 * hits_K / (positive_K + max(1, hits_K[-1]))
    best_K = threshold_K[f1_K >= f1_K.max() - 1e-12]
    return float(best_K[np.abs(best_K - USUAL).argmin()])


def divisions(truth_D: BoolArray, probability_D: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
    """Return true positives (K) and predicted positives (K) at every possible threshold (K), the highest first.

    Equal probabilities are never separated. A threshold lies half way between two probabilities; the lowest lies half
    way between the smallest probability and 0.
    """
    order = np.argsort(-probability_D, kind="stable")
    probability, hits = probability_D[order], np.cumsum(truth_D[order])
    below = np.append(probability[1:], 0.0)
    ends = np.append(probability[:-1] > below[:-1], True)
    half_way = (probability + below) / 2
    # The middle of two adjacent floats rounds to one of them, which must not be the lower one.
    thresholds = np.where(half_way > below, half_way, probability)
    return hits[ends], np.flatnonzero(ends) + 1, thresholds[ends]


def _hits(truth: BoolArray, probabilities: FloatArray, threshold: float) -> IntArray:
    hits: IntArray = (truth & (probabilities >= threshold)).sum(axis=0)
    return hits


def operating_point(
    label: LabelValue,
    truth_N: ArrayLike,
    probability_N: ArrayLike,
    *,
    precision: float | None = None,
    recall: float | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> OperatingPoint:
    """Return the threshold with the highest recall at a minimum precision, or highest precision at a minimum recall.

    It lies half way between two probabilities; rows at or above it are predicted as the class.

    Args:
        label: Name of the class.
        truth_N: 1 for rows of the class, else 0.
        probability_N: Probability of the class.
        precision: Minimum precision; give either this or ``recall``.
        recall: Minimum recall.
        resamples: Bootstrap resamples for the intervals.
        seed: Seed of the bootstrap.
    """
    if (precision is None) == (recall is None):
        raise InvalidInput("operating point: expected either a precision or a recall, got both or neither")
    target, minimum = ("recall", recall) if precision is None else ("precision", precision)
    if minimum is None or not 0 < minimum <= 1:
        raise InvalidInput(f"at_{target}: expected a share above 0 and up to 1, such as 0.9, got {minimum}")
    stated_N = probability_array(probability_N, "probabilities", dimensions=1)
    truth = label_matrix(np.asarray(truth_N)[:, None], "truth", shape=(len(stated_N), 1))[:, 0]
    if truth.all() or not truth.any():
        raise InvalidInput(
            f"precision and recall of {label!r} need rows with and without this class, got {int(truth.sum())} of "
            f"{len(truth)} rows with it"
        )
    precision_K, recall_K, threshold_K = precision_recall(truth, stated_N)
    given_K, best_K = (precision_K, recall_K) if target == "precision" else (recall_K, precision_K)
    reached = given_K >= minimum
    if not reached.any():
        return OperatingPoint(label, target, minimum, None, None, None, float(given_K.max()))
    # Of equally good thresholds, take the one with the higher target metric.
    chosen = np.lexsort((given_K, best_K, reached))[-1]
    threshold = float(threshold_K[chosen])
    predicted = stated_N >= threshold

    def statistic(counts_RN: FloatArray) -> FloatArray:
        hits_R = counts_RN @ (truth & predicted)
        all_R2 = np.column_stack([counts_RN @ predicted, counts_RN @ truth])
        return np.divide(hits_R[:, None], all_R2, out=np.zeros_like(all_R2), where=all_R2 != 0)

    of_rows = [int(predicted.sum()), int(truth.sum())]
    estimates = bootstrap_estimates(statistic, len(truth), resamples=resamples, seed=seed, of_rows=of_rows)
    return OperatingPoint(label, target, minimum, threshold, estimates[0], estimates[1], float(given_K.max()))


def precision_recall(truth_N: BoolArray, probability_N: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return precision (K) and recall (K) at every possible threshold (K), the highest threshold first."""
    hits_K, positive_K, threshold_K = divisions(truth_N, probability_N)
    return hits_K / positive_K, hits_K / hits_K[-1], threshold_K
