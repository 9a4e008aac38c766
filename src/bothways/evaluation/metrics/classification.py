"""Metrics and outcomes of single-label and multi-label classification.

Every count-based metric is a formula over `ClassCounts`, whose arrays may carry leading axes: the same code gives one
value, or one value for each bootstrap resample. A ratio whose denominator is zero (the precision of a class that was
never predicted, the recall of one that never occurs) is 0.0, scikit-learn's default.

Shape letters: N rows, C classes or labels, R resamples, B reliability bins, D decisions of a row, K losses.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bothways.choices import LabelValue
from bothways.errors import InvalidInput
from bothways.evaluation.inputs import (
    BoolArray,
    FloatArray,
    IntArray,
    class_indices,
    class_probabilities,
    label_matrix,
    probability_array,
)
from bothways.evaluation.outcomes import (
    BINS,
    Outcomes,
    calibration_noise,
    equal_mass_bins,
    reliability_bins,
    sweep_calibration_error,
)
from bothways.evaluation.report import MULTI_LABEL, Report
from bothways.progress import figure

MAX_CONFUSION_CLASSES = 1_000
"""Maximum number of classes for a confusion matrix in a report."""

MAJORITY = 0.8
"""Share of rows with the same label above which a report has the scores of always predicting this label."""


def class_outcomes(
    labels: Sequence[str],
    truth_N: ArrayLike,
    probabilities_NC: ArrayLike | Iterator[FloatArray],
    *,
    values: Sequence[LabelValue] = (),
    bins: int = BINS,
) -> Outcomes:
    """Return the outcomes of single-label classification; the most probable class is predicted.

    Args:
        labels: Class names, one for each column.
        truth_N: True class indices.
        probabilities_NC: Class probabilities, rows summing to 1; or an iterator over blocks of rows.
        values: The classes in the types of the data, for the report. Default: their names.
        bins: Maximum number of reliability bins.
    """
    blocks = probabilities_NC if isinstance(probabilities_NC, Iterator) else iter([probabilities_NC])
    truth, predicted_N, confidence_N, losses_NK = _class_rows(labels, np.asarray(truth_N), blocks)
    classes, right_N = len(labels), truth == predicted_N
    label_counts = np.bincount(truth, minlength=classes), np.bincount(predicted_N, minlength=classes)
    confusion: tuple[tuple[int, ...], ...] = ()
    if classes <= MAX_CONFUSION_CLASSES:
        confusion = tuple(tuple(row) for row in confusion_matrix(truth, predicted_N, classes).tolist())

    majority, notes = _majority_of_classes(labels, label_counts[0])

    def statistic(counts_RN: FloatArray) -> FloatArray:
        counts = ClassCounts.resampled(truth, predicted_N, classes, counts_RN)
        headline = [accuracy(counts), macro_f1(counts), mcc(counts)]
        return np.column_stack([*headline, counts_RN @ losses_NK / len(truth), class_scores(counts)])

    names = ("accuracy", "macro_f1", "mcc", "brier", "nll")
    return Outcomes(
        frame=Report(
            kind="classification",
            title=f"{len(truth)} rows, {classes} classes",
            counts={"n": len(truth)},
            values={
                "ece_noise": calibration_noise(confidence_N, bins),
                "ece_sweep": sweep_calibration_error(confidence_N, right_N),
                **majority,
            },
            notes=notes,
            labels=tuple(values or labels),
            confusion=confusion,
            reliability=reliability_bins(confidence_N, right_N, bins),
        ),
        truth=np.array(list(labels))[truth],
        metrics=names,
        statistic=statistic,
        of_rows=[*single_label_rows(truth, predicted_N, classes), *(0, 0), *score_rows(*label_counts)],
        compared=names,
        tested=("nll", losses_NK[:, 1]),
        right_N=right_N,
        labels=tuple(labels),
        label_counts=label_counts,
        bins=_gaps_and_shares((right_N - confidence_N)[:, None], equal_mass_bins(confidence_N, bins)[:, None]),
    )


def _class_rows(
    labels: Sequence[str], truth_N: NDArray[np.generic], blocks: Iterator[ArrayLike]
) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """Return true classes, predicted classes, their probabilities (N), and Brier score and NLL (N, 2)."""
    parts = []
    start = classes = 0
    for block in blocks:
        stated_BC = class_probabilities(block)
        classes = _checked_labels(labels, stated_BC)
        truth_B = class_indices(truth_N[start : start + len(stated_BC)], "truth", classes=classes, rows=len(stated_BC))
        start += len(stated_BC)
        losses = brier_per_row(truth_B, stated_BC), nll_per_row(truth_B, stated_BC)
        parts.append((truth_B, stated_BC.argmax(axis=1), stated_BC.max(axis=1), np.column_stack(losses)))
    class_indices(truth_N, "truth", classes=classes, rows=start)
    truth, predicted_N, confidence_N, losses_NK = (np.concatenate(each) for each in zip(*parts, strict=True))
    return truth, predicted_N, confidence_N, losses_NK


def label_outcomes(
    labels: Sequence[str],
    truth_NC: ArrayLike,
    probabilities_NC: ArrayLike,
    *,
    values: Sequence[LabelValue] = (),
    threshold: float | Sequence[float] = 0.5,
    bins: int = BINS,
) -> Outcomes:
    """Return the outcomes of multi-label classification; labels at or above their threshold are predicted.

    A decision is one label of one row. Rows are resampled, not decisions, since the labels of one row depend on each
    other. ``threshold`` is one number for all labels, or one for each label. The report has the labels as ``values``,
    by default their names.
    """
    probabilities = probability_array(probabilities_NC, "probabilities", dimensions=2)
    _checked_labels(labels, probabilities)
    truth = label_matrix(truth_NC, "truth", shape=probabilities.shape)
    thresholds_C = np.broadcast_to(np.asarray(threshold, dtype=np.float64), len(labels))
    common = bool((thresholds_C == thresholds_C[0]).all())
    predicted_NC = probabilities >= thresholds_C
    wrong_NC = truth != predicted_NC
    right_N, nll_N = ~wrong_NC.any(axis=1), label_nll(truth, probabilities).mean(axis=1)
    losses_NK = np.column_stack([right_N, wrong_NC.mean(axis=1), ((probabilities - truth) ** 2).mean(axis=1), nll_N])
    label_counts, rows = (truth.sum(axis=0), predicted_NC.sum(axis=0)), len(truth)
    majority, notes = _majority_of_sets(labels, label_counts[0], rows)

    def statistic(counts_RN: FloatArray) -> FloatArray:
        counts = ClassCounts.resampled_labels(truth, predicted_NC, counts_RN)
        headline = [micro_f1(counts), multi_label_macro_f1(counts)]
        return np.column_stack([*headline, counts_RN @ losses_NK / rows, class_scores(counts)])

    return Outcomes(
        frame=Report(
            kind=MULTI_LABEL,
            title=f"{rows} rows, {len(labels)} labels",
            counts={"n": rows},
            values={"threshold": float(thresholds_C[0]) if common else None, **majority},
            notes=notes,
            labels=tuple(values or labels),
            reliability=reliability_bins(probabilities.ravel(), truth.ravel(), bins),
        ),
        truth=truth[:, np.argsort(list(labels))],
        metrics=("micro_f1", "macro_f1", "subset_accuracy", "hamming_loss", "brier", "nll"),
        statistic=statistic,
        of_rows=[*label_set_rows(truth, predicted_NC), rows, rows, 0, 0, *score_rows(*label_counts)],
        compared=("micro_f1", "macro_f1", "subset_accuracy", "nll"),
        tested=("nll", nll_N),
        right_N=right_N,
        labels=tuple(labels),
        label_counts=label_counts,
        thresholds=() if common else tuple(thresholds_C.tolist()),
        bins=_gaps_and_shares(truth - probabilities, equal_mass_bins(probabilities.ravel(), bins).reshape(truth.shape)),
    )


def _majority_of_classes(labels: Sequence[str], rows_C: IntArray) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the scores of always predicting the most frequent class, with a note; empty if its share is low."""
    most, rows = int(rows_C.argmax()), int(rows_C.sum())
    share = float(rows_C[most]) / rows
    if share <= MAJORITY:
        return {}, ()
    f1_of_classes = 2 * share / (1 + share) / int((rows_C > 0).sum())
    note = (
        f"{labels[most]!r} is the label of {share:.1%} of the rows: always predicting it has an accuracy of "
        f"{figure(share)} and a macro F1 of {figure(f1_of_classes)}."
    )
    return {"majority_accuracy": share, "majority_macro_f1": f1_of_classes}, (note,)


def _majority_of_sets(labels: Sequence[str], rows_C: IntArray, rows: int) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the score of always predicting only the most frequent label, with a note; empty if its share is low."""
    most = int(rows_C.argmax())
    share = float(rows_C[most]) / rows
    if share <= MAJORITY:
        return {}, ()
    f1_of_label = 2 * float(rows_C[most]) / (rows + float(rows_C.sum()))
    note = (
        f"{share:.1%} of the rows have {labels[most]!r}: always predicting it alone has micro F1 {figure(f1_of_label)}."
    )
    return {"majority_micro_f1": f1_of_label}, (note,)


def _gaps_and_shares(gaps_ND: FloatArray, bin_ND: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return the contribution of each row to the gap of each bin (N, B), and to the bin's share of decisions (N, B)."""
    rows, bins = len(gaps_ND), int(bin_ND.max()) + 1
    cells = (np.arange(rows)[:, None] * bins + bin_ND).ravel()
    sums = (np.bincount(cells, weights=each, minlength=rows * bins) for each in (gaps_ND.ravel(), None))
    gaps, shares = (each.reshape(rows, bins) / gaps_ND.size for each in sums)
    return gaps, shares


def _checked_labels(labels: Sequence[str], probabilities_NC: FloatArray) -> int:
    """Check labels against columns, and return the number of classes."""
    columns = int(probabilities_NC.shape[1])
    if len(labels) != columns or len(set(labels)) != columns:
        raise InvalidInput(
            f"labels: expected {columns} different names, one for each column, "
            f"got {len(labels)} ({len(set(labels))} different)"
        )
    return columns


# --- metrics ---

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
        """Count multi-label rows: (R, C), with the same ``counts_RN`` as for `resampled`."""
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
    """Return the number of rows that precision, recall and F1 of each class are computed from: (3 C,)."""
    return np.concatenate([predicted_C, support_C, np.maximum(support_C, predicted_C)])


def macro_rows(support_C: IntArray, predicted_C: IntArray) -> int:
    """Return the number of rows for the interval of a mean over classes: those of the rarest class, or 0."""
    rows_C = np.maximum(support_C, predicted_C)
    occurring = rows_C[rows_C > 0]
    return int(occurring.min()) if len(occurring) else 0


def single_label_rows(truth_N: IntArray, predicted_N: IntArray, classes: int) -> tuple[int, int, int]:
    """Return the number of rows for the intervals of accuracy, macro F1 and MCC; 0 for an MCC below 1."""
    support_C, predicted_C = (np.bincount(each_N, minlength=classes) for each_N in (truth_N, predicted_N))
    macro = macro_rows(support_C, predicted_C)
    flawless = bool((truth_N == predicted_N).all()) and np.count_nonzero(support_C) > 1
    return len(truth_N), macro, macro if flawless else 0


def label_set_rows(truth_NC: BoolArray, predicted_NC: BoolArray) -> tuple[int, int]:
    """Return the number of rows for the intervals of micro F1 (rows with a true or predicted label) and macro F1."""
    rows = int((truth_NC | predicted_NC).any(axis=1).sum())
    return rows, macro_rows(truth_NC.sum(axis=0), predicted_NC.sum(axis=0))


def accuracy(counts: ClassCounts) -> FloatArray:
    """Return the share of single-label rows that are predicted correctly: (...)."""
    return _ratio(counts.hits.sum(axis=-1), counts.truth.sum(axis=-1))


def macro_f1(counts: ClassCounts) -> FloatArray:
    """Return the mean F1 over the classes that occur in truth or predictions, as scikit-learn does: (...)."""
    occurs = (counts.truth + counts.predicted) > 0
    return _ratio(f1(counts).sum(axis=-1), occurs.sum(axis=-1).astype(np.float64))


def mcc(counts: ClassCounts) -> FloatArray:
    """Return the Matthews correlation of single-label rows, from -1 to 1: (...).

    This is the multi-class form R_K of Gorodkin (2004), "Comparing two K-category assignments by a K-category
    correlation coefficient". It is 0.0 if the truth or the predictions are all of one class.
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
