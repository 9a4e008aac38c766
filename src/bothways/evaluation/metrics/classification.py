"""The outcomes of classification: one label per row, or any number of them.

Shape letters: N rows, C classes or labels, R resamples, B reliability bins, D decisions for a row,
K losses.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bothways.errors import InvalidInput
from bothways.evaluation.inputs import (
    FloatArray,
    IntArray,
    class_indices,
    class_probabilities,
    label_matrix,
    probability_array,
)
from bothways.evaluation.metrics import scores
from bothways.evaluation.metrics.scores import ClassCounts
from bothways.evaluation.outcomes import Outcomes
from bothways.evaluation.reliability import (
    BINS,
    calibration_noise,
    equal_mass_bins,
    reliability_bins,
    sweep_calibration_error,
)
from bothways.evaluation.report import MULTI_LABEL, Report

MAX_CONFUSION_CLASSES = 1_000
"""Classes up to which a report has a confusion matrix."""

MAJORITY = 0.8
"""Share of the rows above which a label dominates: a report then has the scores of always giving it."""


def class_outcomes(
    labels: Sequence[str], truth_N: ArrayLike, probabilities_NC: ArrayLike | Iterator[FloatArray], *, bins: int = BINS
) -> Outcomes:
    """Return the outcomes of single-label classification; the most probable class is predicted.

    Args:
        labels: Class names, one for each column.
        truth_N: True class numbers.
        probabilities_NC: Class probabilities, rows summing to 1; or an iterator of blocks of their rows.
        bins: Number of reliability bins to aim at.
    """
    blocks = probabilities_NC if isinstance(probabilities_NC, Iterator) else iter([probabilities_NC])
    truth, predicted_N, confidence_N, losses_NK = _class_rows(labels, np.asarray(truth_N), blocks)
    classes, right_N = len(labels), truth == predicted_N
    label_counts = np.bincount(truth, minlength=classes), np.bincount(predicted_N, minlength=classes)
    confusion: tuple[tuple[int, ...], ...] = ()
    if classes <= MAX_CONFUSION_CLASSES:
        confusion = tuple(tuple(row) for row in scores.confusion_matrix(truth, predicted_N, classes).tolist())

    majority, notes = _majority_of_classes(labels, label_counts[0])

    def statistic(counts_RN: FloatArray) -> FloatArray:
        counts = ClassCounts.resampled(truth, predicted_N, classes, counts_RN)
        headline = [scores.accuracy(counts), scores.macro_f1(counts), scores.mcc(counts)]
        return np.column_stack([*headline, counts_RN @ losses_NK / len(truth), scores.class_scores(counts)])

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
            labels=tuple(labels),
            confusion=confusion,
            reliability=reliability_bins(confidence_N, right_N, bins),
        ),
        truth=np.array(list(labels))[truth],
        metrics=names,
        statistic=statistic,
        of_rows=[*scores.single_label_rows(truth, predicted_N, classes), *(0, 0), *scores.score_rows(*label_counts)],
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
    """Return true and predicted classes, the probability of the predicted ones, and Brier score and NLL (N, 2)."""
    parts = []
    start = classes = 0
    for block in blocks:
        stated_BC = class_probabilities(block)
        classes = _checked_labels(labels, stated_BC)
        truth_B = class_indices(truth_N[start : start + len(stated_BC)], "truth", classes=classes, rows=len(stated_BC))
        start += len(stated_BC)
        losses = scores.brier_per_row(truth_B, stated_BC), scores.nll_per_row(truth_B, stated_BC)
        parts.append((truth_B, stated_BC.argmax(axis=1), stated_BC.max(axis=1), np.column_stack(losses)))
    class_indices(truth_N, "truth", classes=classes, rows=start)
    truth, predicted_N, confidence_N, losses_NK = (np.concatenate(each) for each in zip(*parts, strict=True))
    return truth, predicted_N, confidence_N, losses_NK


def label_outcomes(
    labels: Sequence[str],
    truth_NC: ArrayLike,
    probabilities_NC: ArrayLike,
    *,
    threshold: float | Sequence[float] = 0.5,
    bins: int = BINS,
) -> Outcomes:
    """Return the outcomes of multi-label classification; labels at or above their threshold are predicted.

    A decision is one label of one row. Rows are resampled, not decisions, since the labels of one row depend on each
    other. The threshold is one for all labels, or one for each.
    """
    probabilities = probability_array(probabilities_NC, "probabilities", dimensions=2)
    _checked_labels(labels, probabilities)
    truth = label_matrix(truth_NC, "truth", shape=probabilities.shape)
    thresholds_C = np.broadcast_to(np.asarray(threshold, dtype=np.float64), len(labels))
    common = bool((thresholds_C == thresholds_C[0]).all())
    predicted_NC = probabilities >= thresholds_C
    wrong_NC = truth != predicted_NC
    right_N, nll_N = ~wrong_NC.any(axis=1), scores.label_nll(truth, probabilities).mean(axis=1)
    losses_NK = np.column_stack([right_N, wrong_NC.mean(axis=1), ((probabilities - truth) ** 2).mean(axis=1), nll_N])
    label_counts, rows = (truth.sum(axis=0), predicted_NC.sum(axis=0)), len(truth)
    majority, notes = _majority_of_sets(labels, label_counts[0], rows)

    def statistic(counts_RN: FloatArray) -> FloatArray:
        counts = ClassCounts.resampled_labels(truth, predicted_NC, counts_RN)
        headline = [scores.micro_f1(counts), scores.multi_label_macro_f1(counts)]
        return np.column_stack([*headline, counts_RN @ losses_NK / rows, scores.class_scores(counts)])

    return Outcomes(
        frame=Report(
            kind=MULTI_LABEL,
            title=f"{rows} rows, {len(labels)} labels",
            counts={"n": rows},
            values={"threshold": float(thresholds_C[0]) if common else None, **majority},
            notes=notes,
            labels=tuple(labels),
            reliability=reliability_bins(probabilities.ravel(), truth.ravel(), bins),
        ),
        truth=truth[:, np.argsort(list(labels))],
        metrics=("micro_f1", "macro_f1", "subset_accuracy", "hamming_loss", "brier", "nll"),
        statistic=statistic,
        of_rows=[*scores.label_set_rows(truth, predicted_NC), rows, rows, 0, 0, *scores.score_rows(*label_counts)],
        compared=("micro_f1", "macro_f1", "subset_accuracy", "nll"),
        tested=("nll", nll_N),
        right_N=right_N,
        labels=tuple(labels),
        label_counts=label_counts,
        thresholds=() if common else tuple(thresholds_C.tolist()),
        bins=_gaps_and_shares(truth - probabilities, equal_mass_bins(probabilities.ravel(), bins).reshape(truth.shape)),
    )


def _majority_of_classes(labels: Sequence[str], rows_C: IntArray) -> tuple[dict[str, float], tuple[str, ...]]:
    """Score always predicting the most frequent class, if it dominates."""
    most, rows = int(rows_C.argmax()), int(rows_C.sum())
    accuracy = float(rows_C[most]) / rows
    if accuracy <= MAJORITY:
        return {}, ()
    macro_f1 = 2 * accuracy / (1 + accuracy) / int((rows_C > 0).sum())
    note = (
        f"{labels[most]!r} is the label of {accuracy:.1%} of the rows: always giving it has an accuracy of "
        f"{accuracy:.4f} and a macro F1 of {macro_f1:.4f}."
    )
    return {"majority_accuracy": accuracy, "majority_macro_f1": macro_f1}, (note,)


def _majority_of_sets(labels: Sequence[str], rows_C: IntArray, rows: int) -> tuple[dict[str, float], tuple[str, ...]]:
    """Score always predicting the most frequent label alone, if it dominates."""
    most = int(rows_C.argmax())
    share = float(rows_C[most]) / rows
    if share <= MAJORITY:
        return {}, ()
    micro_f1 = 2 * float(rows_C[most]) / (rows + float(rows_C.sum()))
    note = f"{share:.1%} of the rows have {labels[most]!r}: always giving it alone has a micro F1 of {micro_f1:.4f}."
    return {"majority_micro_f1": micro_f1}, (note,)


def _gaps_and_shares(gaps_ND: FloatArray, bin_ND: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return the contribution of each row to the gap of each bin, and to its share of all decisions (N, B)."""
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
