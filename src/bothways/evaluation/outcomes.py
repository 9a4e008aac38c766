"""One model's results on labelled rows, from which reports and comparisons are computed.

All metrics of a report come from the same resamples of rows. Intervals are 95 % percentiles, except those of ECE and
MCE, see `calibration_error_interval` and `maximum_error_interval`.

The calibration error is the gap between predicted confidence and observed frequency (Naeini et al. 2015, "Obtaining
well calibrated probabilities using Bayesian binning"). Its bins have equal numbers of rows (Nguyen and O'Connor 2015,
arXiv:1508.05154), not equal widths: most confidences of fine-tuned models are near 1, so equal widths would leave most
bins empty. Rows are ranked by confidence, and the bin of a row is ``floor(rank * bins / N)``. Rows of equal confidence
all have the rank of the first, so they share a bin; splitting them would depend on the order of the rows. Ties can
therefore make bins uneven or empty; empty bins are left out.

Shape letters: N rows, C classes or labels, R resamples, B reliability bins, K columns of a statistic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bothways.errors import InvalidInput
from bothways.evaluation.inputs import BoolArray, FloatArray, IntArray, probability_array, real_array
from bothways.evaluation.intervals import (
    LEVEL,
    Estimate,
    Statistic,
    bootstrap_values,
    percentile_estimates,
    percentile_interval,
)
from bothways.evaluation.report import ClassRow, ReliabilityBin, Report

if TYPE_CHECKING:
    from bothways.text.windows import TextsRead


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcomes:
    """One model's results on labelled rows."""

    frame: Report  # the report without its estimates: kind, title, counts, tables
    # True labels or values (N, ...); two models are compared only if these are equal.
    truth: NDArray[np.generic]
    metrics: tuple[str, ...]  # names of the first columns of the statistic
    # Maps counts of resampled rows (R, N) to values (R, K): the metrics, then precision, recall and F1 of every label.
    statistic: Statistic
    of_rows: Sequence[float]  # number of rows for the interval of each column (K,), see `percentile_estimates`
    compared: tuple[str, ...] = ()  # metrics for comparisons of two models; undefined ones are left out
    # Name and values (N,) of the quantity that the permutation test compares.
    tested: tuple[str, FloatArray] | None = None
    right_N: BoolArray | None = None  # True for each row that the model predicts correctly, for McNemar's test
    labels: tuple[str, ...] = ()  # names of the classes or labels (C)
    label_counts: tuple[IntArray, IntArray] | None = None  # numbers of true and of predicted rows of each label (C,)
    thresholds: tuple[float, ...] = ()  # threshold of each label, if they differ
    # Contribution of each row to the gap of each reliability bin (N, B), then to the bin's share of decisions (N, B).
    bins: tuple[FloatArray, ...] = ()
    scheme: str = ""  # tag scheme of the spans; word accuracies in different schemes are not compared
    tokens_read: "TextsRead | None" = None  # tokens read and not read; None for results from bare arrays

    def values(self) -> dict[str, float]:
        """Return the metrics without intervals."""
        value_K = self.statistic(np.ones((1, len(self.truth))))[0]
        return dict(zip(self.metrics, value_K.tolist(), strict=False))

    def report(self, *, resamples: int = 1000, seed: int = 0) -> Report:
        """Compute the metrics with 95 % bootstrap intervals over rows."""
        bins_NB = np.hstack(self.bins) if self.bins else None

        def statistic(counts_RN: FloatArray) -> FloatArray:
            values_RK = self.statistic(counts_RN)
            return values_RK if bins_NB is None else np.column_stack([values_RK, counts_RN @ bins_NB])

        rows, end = len(self.truth), len(self.of_rows)
        value_K = statistic(np.ones((1, rows)))[0]
        values_RK = bootstrap_values(statistic, rows, resamples=resamples, seed=seed)
        columns = percentile_estimates(value_K[:end], values_RK[:, :end], of_rows=self.of_rows)
        estimates = dict(zip(self.metrics, columns, strict=False))
        if self.bins:
            value, *shares = np.split(value_K[end:], len(self.bins))
            resampled, *resampled_shares = np.split(values_RK[:, end:], len(self.bins), axis=1)
            estimates["ece"] = calibration_error_interval(value, resampled)
            if shares:
                estimates["mce"] = maximum_error_interval(value, shares[0], resampled, resampled_shares[0])
        per_class = self._class_rows(columns[len(self.metrics) :])
        return replace(self.frame, estimates=estimates, per_class=per_class, tokens_read=self.tokens_read)

    def _class_rows(self, scores: Sequence[Estimate]) -> tuple[ClassRow, ...]:
        if self.label_counts is None:
            return ()
        count, (support_C, predicted_C) = len(self.labels), self.label_counts
        columns = [scores[start : start + count] for start in (0, count, 2 * count)]
        thresholds = self.thresholds or (None,) * count
        labels = self.frame.labels or self.labels  # the former in the types of the data
        rows = zip(labels, *columns, support_C.tolist(), predicted_C.tolist(), thresholds, strict=True)
        return tuple(ClassRow(*row) for row in rows)


def mean_outcomes(
    frame: Report, scores: Mapping[str, ArrayLike], *, compared: Sequence[str] = (), truth: ArrayLike | None = None
) -> Outcomes:
    """Return outcomes whose metrics are means; ``scores`` maps each metric to the scores of the rows (N), 0 to 1.

    ``compared`` names the metrics for comparisons of two models, of which the first is also tested; default: all.
    """
    values = {name: real_array(each, name, dimensions=1) for name, each in scores.items()}
    values_NK = np.column_stack(list(values.values()))
    rows, names = len(values_NK), tuple(compared or values)
    return Outcomes(
        frame=frame,
        truth=np.zeros(rows) if truth is None else np.asarray(truth),
        metrics=tuple(values),
        statistic=lambda counts_RN: counts_RN @ values_NK / rows,
        of_rows=[rows] * len(values),
        compared=names,
        tested=(names[0], values[names[0]]),
    )


@dataclass(frozen=True)
class TokenLosses:
    """Losses of masked tokens, summed over each text."""

    losses_N: FloatArray  # negative log-probabilities of the tokens, in nats
    right_N: FloatArray  # number of tokens predicted correctly
    tokens_N: FloatArray  # number of masked tokens; their sum is at least 1


def token_outcomes(losses: TokenLosses) -> Outcomes:
    """Return the outcomes of masked tokens; texts are resampled with all of their tokens."""

    def statistic(counts_RN: FloatArray) -> FloatArray:
        # A resample without masked tokens takes the value of all texts.
        tokens_R = counts_RN @ losses.tokens_N
        empty_R = tokens_R == 0
        counts_RN = np.where(empty_R[:, None], 1.0, counts_RN)
        tokens_R = counts_RN @ losses.tokens_N
        loss_R = counts_RN @ losses.losses_N / tokens_R
        return np.stack([loss_R, np.exp(loss_R), counts_RN @ losses.right_N / tokens_R], axis=1)

    texts, tokens = len(losses.tokens_N), int(losses.tokens_N.sum())
    return Outcomes(
        frame=Report(
            kind="masked language modelling",
            title=f"{texts} texts, {tokens} masked tokens",
            counts={"n": texts, "tokens": tokens},
        ),
        truth=losses.tokens_N,
        metrics=("loss", "perplexity", "accuracy"),
        statistic=statistic,
        of_rows=[0, 0, texts],
    )


# --- calibration error ---

BINS = 15

_BLOCK_CELLS = 500_000
"""Maximum number of bins that `_rising_bins` checks at once."""


def equal_mass_bins(confidence_N: FloatArray, bins: int = BINS) -> IntArray:
    """Return the bin (N,) of each row, numbered from 0 by increasing confidence; empty bins get no number."""
    if bins < 1:
        raise InvalidInput(f"bins: expected at least 1, got {bins}")
    first_rank_N = np.searchsorted(np.sort(confidence_N), confidence_N, side="left")
    _, bin_N = np.unique(first_rank_N * bins // len(confidence_N), return_inverse=True)
    return bin_N.astype(np.int64)


def reliability_bins(confidence_N: ArrayLike, correct_N: ArrayLike, bins: int = BINS) -> tuple[ReliabilityBin, ...]:
    """Group rows into at most ``bins`` bins of equal mass, by increasing confidence."""
    confidence, correct = _confident(confidence_N, correct_N)
    bin_N = equal_mass_bins(confidence, bins)
    count_B = np.bincount(bin_N)
    lower_B = np.full(len(count_B), np.inf)
    upper_B = np.full(len(count_B), -np.inf)
    np.minimum.at(lower_B, bin_N, confidence)
    np.maximum.at(upper_B, bin_N, confidence)
    # A mean of equal values can round past them.
    confidence_B = np.clip(np.bincount(bin_N, weights=confidence) / count_B, lower_B, upper_B)
    accuracy_B = np.bincount(bin_N, weights=correct) / count_B
    return tuple(
        ReliabilityBin(float(lower), float(upper), int(count), float(stated), float(observed))
        for lower, upper, count, stated, observed in zip(
            lower_B, upper_B, count_B, confidence_B, accuracy_B, strict=True
        )
    )


def expected_calibration_error(bins: Sequence[ReliabilityBin]) -> float:
    """Return the ECE: the mean of ``|accuracy - confidence|`` over bins, weighted by their rows; from 0 to 1."""
    if not bins:
        raise InvalidInput("bins: expected at least one reliability bin, got none")
    rows = sum(each.count for each in bins)
    return sum(each.count * abs(each.accuracy - each.confidence) for each in bins) / rows


def calibration_noise(confidence_N: ArrayLike, bins: int = BINS) -> float:
    """Return the expected ECE if these confidences were perfectly calibrated.

    By chance, the accuracy of a bin varies around its confidence, and the ECE sums these gaps: with n rows in a bin and
    a variance v = mean of p (1 - p), a gap is roughly normal with a mean magnitude of ``sqrt(2 v / (pi n))``. An ECE of
    about this size is no sign of miscalibration, and calibrating the model cannot be expected to lower it.
    """
    confidence = probability_array(confidence_N, "confidence", dimensions=1)
    bin_N = equal_mass_bins(confidence, bins)
    variance_B = np.bincount(bin_N, weights=confidence * (1 - confidence))
    return float(np.sqrt(2 / np.pi * variance_B).sum() / len(confidence))


def sweep_calibration_error(confidence_N: ArrayLike, correct_N: ArrayLike) -> float:
    """Return the monotonic-sweep ECE, with as many equal-mass bins as possible before accuracy falls between bins.

    If accuracy never falls from one confidence to the next, each confidence has its own bin. Few rows get fewer bins,
    and so less noise, than with a fixed number; of the estimators that its authors compare, it is the least biased.
    Source: Roelofs et al. (2022), "Mitigating bias in calibration error estimation", arXiv:2012.08668.
    """
    confidence, correct = _confident(confidence_N, correct_N)
    bin_N = equal_mass_bins(confidence, _rising_bins(confidence, correct))
    return float(np.abs(np.bincount(bin_N, weights=correct - confidence)).sum() / len(confidence))


def _rising_bins(confidence_N: FloatArray, correct_N: FloatArray) -> int:
    """Return the largest B such that, with any number of bins up to B, accuracy never falls from bin to bin.

    A fall is a confidence whose accuracy is below that of the next lower confidence. Accuracy can fall between two
    neighbouring bins only if one of them contains a fall, so a bin with a fall is compared with both neighbours, and no
    other bin is checked. With as many bins as rows, every fall shows.

    Shape letters: G confidences, F falls, A numbers of bins, R = N + 1 ranks and their end.
    """
    rows, order_N = len(confidence_N), np.argsort(confidence_N)
    sorted_N = confidence_N[order_N]
    first_N = np.searchsorted(sorted_N, sorted_N, side="left").astype(
        np.int64
    )  # the lowest rank of the same confidence
    starts_G = np.append(np.unique(first_N), rows)
    next_R = starts_G[np.searchsorted(starts_G, np.arange(rows + 1))]  # the next rank at which a confidence begins
    hits_R = np.concatenate([[0], correct_N[order_N].astype(np.int64).cumsum()])  # correct rows below each rank
    hits_G, rows_G = np.diff(hits_R[starts_G]), np.diff(starts_G)
    falls_F = starts_G[1:-1][hits_G[:-1] * rows_G[1:] > hits_G[1:] * rows_G[:-1]]
    if not len(falls_F):
        return rows

    def start(number_AF: IntArray, bins_A1: IntArray) -> IntArray:
        """Return the rank at which a bin starts, or the next one if the bin is empty; N after the last bin."""
        start_AF: IntArray = next_R[-(-number_AF * rows // bins_A1)]
        return start_AF

    def falling(number_AF: IntArray, bins_A1: IntArray) -> BoolArray:
        """Test whether the accuracy of a bin is below that of the bin before it."""
        border_AF = start(number_AF, bins_A1)
        low_AF = start(first_N[np.maximum(border_AF - 1, 0)] * bins_A1 // rows, bins_A1)
        high_AF = start(np.minimum(border_AF, rows - 1) * bins_A1 // rows + 1, bins_A1)
        below_AF, above_AF = hits_R[border_AF] - hits_R[low_AF], hits_R[high_AF] - hits_R[border_AF]
        falling_AF: BoolArray = below_AF * (high_AF - border_AF) > above_AF * (border_AF - low_AF)
        return falling_AF

    low = 2
    while True:
        # Each step at most doubles the highest number of bins checked, so that few are checked beyond the result.
        bins_A1 = np.arange(low, low + max(1, min(low, _BLOCK_CELLS // len(falls_F))))[:, None]
        number_AF = falls_F * bins_A1 // rows
        falling_A = (falling(number_AF, bins_A1) | falling(number_AF + 1, bins_A1)).any(axis=1)
        if falling_A.any():
            return low + int(falling_A.argmax()) - 1
        low += len(bins_A1)


def calibration_error_interval(gap_B: FloatArray, gaps_RB: FloatArray, level: float = LEVEL) -> Estimate:
    """Return the ECE with its bootstrap interval, with the bins held fixed.

    The ECE sums absolute values, so noise raises it, and resampling adds noise a second time: percentiles are too high,
    and for a well calibrated model both are above the truth. They are therefore reflected about the estimate (the basic
    bootstrap, Davison and Hinkley 1997, section 5.2), and the lower end is 0 if the estimate is no larger than noise
    alone gives at this level. The interval always contains the estimate. In simulations, from perfect calibration to an
    ECE of 0.15, it covered the truth in 84 to 97 % of trials at a level of 95 %; for perfect calibration, percentiles
    never covered it.

    Args:
        gap_B: For each bin, the sum of (correct - confidence) over its rows, divided by the number of all rows.
        gaps_RB: The same in each resample.
        level: Nominal coverage.
    """
    value = float(np.abs(gap_B).sum())
    resampled = percentile_interval(np.abs(gaps_RB).sum(axis=1), level)
    noise = percentile_interval(np.abs(gaps_RB - gap_B).sum(axis=1), level)
    low = 0.0 if value <= noise.high else max(0.0, min(value, 2 * value - resampled.high))
    return Estimate(value, low, min(1.0, max(value, 2 * value - resampled.low)))


def maximum_error_interval(
    gap_B: FloatArray, share_B: FloatArray, gaps_RB: FloatArray, shares_RB: FloatArray, level: float = LEVEL
) -> Estimate:
    """Return the MCE and its interval, with the bins held fixed: plus or minus the largest error of any bin.

    The MCE is the largest of noisy absolute values, so it is biased upwards, and percentiles of resamples do not show
    by how much. But its error is at most the largest error of any bin, which is estimated from the resamples: the
    quantile of the largest deviation of a bin's gap from its value on the data. The interval is therefore wide, and
    conservative. In simulations, from perfect calibration to a gap of 0.2 in one or in all of 15 bins, it covered the
    truth in 93 to 100 % of trials at a level of 95 % with at least 150 rows, and in 83 % with 40 rows and a model that
    is nearly always certain. Reflected percentiles, as for the ECE, covered it in as little as 72 %.

    The arguments are those of `calibration_error_interval`, and each bin's share of all rows.
    """
    mean_gap_B = gap_B / share_B
    # A bin that is empty in a resample has a gap of 0 there, so it deviates by its whole gap.
    mean_gaps_RB = np.divide(gaps_RB, shares_RB, out=np.zeros_like(gaps_RB), where=shares_RB > 0)
    off = float(np.quantile(np.abs(mean_gaps_RB - mean_gap_B).max(axis=1), level))
    value = float(np.abs(mean_gap_B).max())
    return Estimate(value, max(0.0, value - off), min(1.0, value + off))


def _confident(confidence_N: ArrayLike, correct_N: ArrayLike) -> tuple[FloatArray, FloatArray]:
    confidence = probability_array(confidence_N, "confidence", dimensions=1)
    correct = real_array(correct_N, "correct", dimensions=1)
    if correct.shape != confidence.shape or not np.isin(correct, (0.0, 1.0)).all():
        raise InvalidInput(f"correct: expected {len(confidence)} values of 0 or 1, got others")
    return confidence, correct
