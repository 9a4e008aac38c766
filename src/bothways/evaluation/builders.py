"""Reports from truth and predictions: metrics, bootstrap intervals and reliability in one pass.

All numbers of a report come from the same resamples of rows, 95 % percentile intervals but for ECE and MCE, whose
intervals are those of `calibration_error_interval` and `maximum_error_interval`.

Shape letters: N rows, C classes or labels, R resamples, B reliability bins, K statistics.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bothways.errors import InvalidInput
from bothways.evaluation import metrics, regression
from bothways.evaluation.bootstrap import (
    Estimate,
    Statistic,
    bootstrap_estimates,
    bootstrap_values,
    percentile_estimates,
)
from bothways.evaluation.inputs import (
    FloatArray,
    IntArray,
    class_indices,
    class_probabilities,
    label_matrix,
    paired_vectors,
    probability_array,
)
from bothways.evaluation.metrics import ClassCounts
from bothways.evaluation.reliability import (
    BINS,
    calibration_error_interval,
    calibration_noise,
    equal_mass_bins,
    maximum_error_interval,
    reliability_bins,
    sweep_calibration_error,
)
from bothways.evaluation.report import ClassificationReport, ClassRow, MultiLabelReport, RegressionReport


def classification_report(
    labels: Sequence[str],
    truth_N: ArrayLike,
    probabilities_NC: ArrayLike,
    *,
    resamples: int = 1000,
    seed: int = 0,
    bins: int = BINS,
) -> ClassificationReport:
    """Evaluate single-label predictions; the predicted class is the most probable, the first of equals.

    Args:
        labels: class names, one for each column.
        truth_N: true class numbers.
        probabilities_NC: class probabilities, rows summing to 1.
        resamples: bootstrap resamples.
        seed: seed of the resamples.
        bins: reliability bins to aim at.

    Raises:
        InvalidInput: no rows, shapes that do not fit, repeated labels, or values that are not probabilities.
    """
    probabilities = class_probabilities(probabilities_NC)
    classes = _checked_labels(labels, probabilities)
    truth = class_indices(truth_N, "truth", classes=classes, rows=len(probabilities))
    predicted_N = probabilities.argmax(axis=1)
    confidence_N = probabilities.max(axis=1)
    right_N = truth == predicted_N
    losses_NK = np.column_stack(
        [metrics.brier_per_row(truth, probabilities), metrics.nll_per_row(truth, probabilities)]
    )
    bins_NB = _gaps_and_shares((right_N - confidence_N)[:, None], equal_mass_bins(confidence_N, bins)[:, None])

    confusion_CC = metrics.confusion_matrix(truth, predicted_N, classes)

    def statistic(counts_RN: FloatArray) -> FloatArray:
        counts = ClassCounts.resampled(truth, predicted_N, classes, counts_RN)
        headline = [metrics.accuracy(counts), metrics.macro_f1(counts), metrics.mcc(counts)]
        return np.column_stack([*headline, counts_RN @ losses_NK / len(truth), _per_class(counts), counts_RN @ bins_NB])

    (accuracy, macro_f1, mcc, brier, nll), scores, ece, mce = _estimates(
        statistic,
        rows=len(truth),
        of_rows=(*metrics.single_label_rows(truth, predicted_N, classes), 0, 0),
        support_C=confusion_CC.sum(axis=1),
        predicted_C=confusion_CC.sum(axis=0),
        resamples=resamples,
        seed=seed,
    )
    reliability = reliability_bins(confidence_N, right_N, bins)
    return ClassificationReport(
        n=len(truth),
        labels=tuple(labels),
        accuracy=accuracy,
        macro_f1=macro_f1,
        mcc=mcc,
        brier=brier,
        nll=nll,
        ece=ece,
        mce=mce,
        ece_noise=calibration_noise(confidence_N, bins),
        ece_sweep=sweep_calibration_error(confidence_N, right_N),
        per_class=_class_rows(labels, scores, confusion_CC.sum(axis=1), confusion_CC.sum(axis=0)),
        confusion=tuple(tuple(row) for row in confusion_CC.tolist()),
        reliability=reliability,
    )


def multi_label_report(
    labels: Sequence[str],
    truth_NC: ArrayLike,
    probabilities_NC: ArrayLike,
    *,
    threshold: float = 0.5,
    resamples: int = 1000,
    seed: int = 0,
    bins: int = BINS,
) -> MultiLabelReport:
    """Evaluate multi-label predictions; a label is predicted where its probability is at least ``threshold``.

    Rows are resampled, not decisions: the labels of one row belong together.

    Args:
        labels: label names, one for each column.
        truth_NC: 0 or 1, whether the row has the label.
        probabilities_NC: probability of each label.
        threshold: probability from which a label counts as predicted.
        resamples: bootstrap resamples.
        seed: seed of the resamples.
        bins: reliability bins to aim at.

    Raises:
        InvalidInput: no rows, shapes that do not fit, repeated labels, or values that are not probabilities.
    """
    probabilities = probability_array(probabilities_NC, "probabilities", dimensions=2)
    _checked_labels(labels, probabilities)
    truth = label_matrix(truth_NC, "truth", shape=probabilities.shape)
    predicted_NC = probabilities >= threshold
    wrong_NC = truth != predicted_NC
    losses_NK = np.column_stack(
        [
            ~wrong_NC.any(axis=1),
            wrong_NC.mean(axis=1),
            ((probabilities - truth) ** 2).mean(axis=1),
            metrics.label_nll(truth, probabilities).mean(axis=1),
        ]
    )
    bin_NC = equal_mass_bins(probabilities.ravel(), bins).reshape(truth.shape)
    bins_NB = _gaps_and_shares(truth - probabilities, bin_NC)

    def statistic(counts_RN: FloatArray) -> FloatArray:
        counts = ClassCounts.resampled_labels(truth, predicted_NC, counts_RN)
        headline = [metrics.micro_f1(counts), metrics.multi_label_macro_f1(counts)]
        return np.column_stack([*headline, counts_RN @ losses_NK / len(truth), _per_class(counts), counts_RN @ bins_NB])

    (micro_f1, macro_f1, subset_accuracy, hamming_loss, brier, nll), scores, ece, mce = _estimates(
        statistic,
        rows=len(truth),
        of_rows=(*metrics.label_set_rows(truth, predicted_NC), len(truth), len(truth), 0, 0),
        support_C=truth.sum(axis=0),
        predicted_C=predicted_NC.sum(axis=0),
        resamples=resamples,
        seed=seed,
    )
    reliability = reliability_bins(probabilities.ravel(), truth.ravel(), bins)
    return MultiLabelReport(
        n=len(truth),
        labels=tuple(labels),
        threshold=threshold,
        micro_f1=micro_f1,
        macro_f1=macro_f1,
        subset_accuracy=subset_accuracy,
        hamming_loss=hamming_loss,
        brier=brier,
        nll=nll,
        ece=ece,
        mce=mce,
        per_class=_class_rows(labels, scores, truth.sum(axis=0), predicted_NC.sum(axis=0)),
        reliability=reliability,
    )


def regression_report(
    truth_N: ArrayLike, predicted_N: ArrayLike, *, resamples: int = 1000, seed: int = 0
) -> RegressionReport:
    """Evaluate predicted numbers; a correlation, or R2, that is undefined is left out.

    Raises:
        InvalidInput: empty, not finite, or of different lengths.
    """
    truth, predicted = paired_vectors(truth_N, predicted_N)
    losses_NK = np.column_stack([(truth - predicted) ** 2, np.abs(truth - predicted)])

    def statistic(counts_RN: FloatArray) -> FloatArray:
        return np.column_stack(
            [
                counts_RN @ losses_NK / len(truth),
                regression.weighted_pearson(truth, predicted, counts_RN),
                regression.weighted_spearman(truth, predicted, counts_RN),
                regression.weighted_r2(truth, predicted, counts_RN),
            ]
        )

    mse, mae, pearson, spearman, r2 = bootstrap_estimates(statistic, len(truth), resamples=resamples, seed=seed)
    related = regression.undefined_correlation(truth, predicted) is None
    return RegressionReport(
        len(truth),
        mse=mse,
        mae=mae,
        pearson=pearson if related else None,
        spearman=spearman if related else None,
        # What is to be explained is the truth alone.
        r2=r2 if regression.undefined_correlation(truth, truth) is None else None,
    )


class _Estimates(NamedTuple):
    headline: tuple[Estimate, ...]
    scores: tuple[Estimate, ...]
    """Precision of every class, then recall of every class, then F1 of every class."""
    ece: Estimate
    mce: Estimate


def _estimates(
    statistic: Statistic,
    *,
    rows: int,
    of_rows: Sequence[int],
    support_C: IntArray,
    predicted_C: IntArray,
    resamples: int,
    seed: int,
) -> _Estimates:
    """Split the columns of ``statistic``: headline, three scores for each class, gaps and shares of the bins.

    ``of_rows`` says of the headline what `percentile_estimates` wants to know.
    """
    value_K = statistic(np.ones((1, rows)))[0]
    values_RK = bootstrap_values(statistic, rows, resamples=resamples, seed=seed)
    headline = len(of_rows)
    end = headline + 3 * len(support_C)
    of_rows_K = np.concatenate([of_rows, metrics.score_rows(support_C, predicted_C)])
    estimates = percentile_estimates(value_K[:end], values_RK[:, :end], of_rows=of_rows_K)
    (gap_B, share_B), (gaps_RB, shares_RB) = np.split(value_K[end:], 2), np.split(values_RK[:, end:], 2, axis=1)
    expected = calibration_error_interval(gap_B, gaps_RB)
    maximum = maximum_error_interval(gap_B, share_B, gaps_RB, shares_RB)
    return _Estimates(
        estimates[:headline],
        estimates[headline:],
        Estimate(float(np.abs(gap_B).sum()), expected.low, expected.high),
        Estimate(float(np.abs(gap_B / share_B).max()), maximum.low, maximum.high),
    )


def _per_class(counts: ClassCounts) -> FloatArray:
    return np.concatenate([metrics.precision(counts), metrics.recall(counts), metrics.f1(counts)], axis=1)


def _gaps_and_shares(gaps_ND: FloatArray, bin_ND: IntArray) -> FloatArray:
    """What each row adds to the gap of each bin, and then to its share (N, 2 B), of all decisions (D to a row)."""
    rows, bins = len(gaps_ND), int(bin_ND.max()) + 1
    cells = (np.arange(rows)[:, None] * bins + bin_ND).ravel()
    sums = [np.bincount(cells, weights=each, minlength=rows * bins) for each in (gaps_ND.ravel(), None)]
    return np.hstack([each.reshape(rows, bins) for each in sums]) / gaps_ND.size


def _class_rows(
    labels: Sequence[str], scores: tuple[Estimate, ...], support_C: IntArray, predicted_C: IntArray
) -> tuple[ClassRow, ...]:
    classes = len(labels)
    return tuple(
        ClassRow(
            label=label,
            precision=scores[index],
            recall=scores[classes + index],
            f1=scores[2 * classes + index],
            support=int(support_C[index]),
            predicted=int(predicted_C[index]),
        )
        for index, label in enumerate(labels)
    )


def _checked_labels(labels: Sequence[str], probabilities_NC: FloatArray) -> int:
    """The number of classes, which labels and columns must agree on."""
    columns = int(probabilities_NC.shape[1])
    if len(labels) != columns or len(set(labels)) != columns:
        raise InvalidInput(
            f"labels: expected {columns} different names, one for each column, "
            f"got {len(labels)} ({len(set(labels))} different)"
        )
    return columns
