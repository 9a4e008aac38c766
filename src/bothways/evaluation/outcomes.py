"""One model's results on labelled rows, from which reports and comparisons are computed.

All numbers of a report come from the same resamples of rows. Intervals are 95 % percentiles, except those of ECE and
MCE, see `calibration_error_interval` and `maximum_error_interval`.

Shape letters: N rows, C classes or labels, R resamples, B reliability bins, K columns of a statistic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bothways.evaluation.inputs import BoolArray, FloatArray, IntArray, real_array
from bothways.evaluation.intervals import Estimate, Statistic, bootstrap_values, percentile_estimates
from bothways.evaluation.reliability import calibration_error_interval, maximum_error_interval
from bothways.evaluation.report import ClassRow, Report, TextsRead


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcomes:
    """One model's results on labelled rows."""

    frame: Report  # the report without its estimates: kind, title, counts, tables
    # The truth of each row, (N, ...), so that two models are not compared on different labels.
    truth: NDArray[np.generic]
    metrics: tuple[str, ...]  # names of the first columns of the statistic
    # From counts of resampled rows (R, N) to the metrics, then precision, recall and F1 of every label.
    statistic: Statistic
    of_rows: Sequence[float]  # number of rows behind each of its columns (K,), see `percentile_estimates`
    compared: tuple[str, ...] = ()  # metrics for comparisons of two models; undefined ones are left out
    # Name and values (N,) of the quantity that the permutation test exchanges.
    tested: tuple[str, FloatArray] | None = None
    right_N: BoolArray | None = None  # true for each row that is right, for McNemar's test
    labels: tuple[str, ...] = ()  # names of the classes or labels (C)
    label_counts: tuple[IntArray, IntArray] | None = None  # true rows of each label (C,), and predicted rows
    thresholds: tuple[float, ...] = ()  # probability from which each label is predicted, if they differ
    # Contribution of each row to the gap of each reliability bin (N, B), then to its share of all decisions.
    bins: tuple[FloatArray, ...] = ()
    scheme: str = ""  # tag scheme behind spans; accuracies of words in different schemes are not compared
    tokens_read: TextsRead | None = None  # tokens read and not read; None for results on numbers alone

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
            count = len(self.bins)
            estimates |= _errors(np.split(value_K[end:], count), np.split(values_RK[:, end:], count, axis=1))
        per_class = self._class_rows(columns[len(self.metrics) :])
        return replace(self.frame, estimates=estimates, per_class=per_class, tokens_read=self.tokens_read)

    def _class_rows(self, scores: Sequence[Estimate]) -> tuple[ClassRow, ...]:
        if self.label_counts is None:
            return ()
        count, (support_C, predicted_C) = len(self.labels), self.label_counts
        columns = [scores[start : start + count] for start in (0, count, 2 * count)]
        thresholds = self.thresholds or (None,) * count
        rows = zip(self.labels, *columns, support_C.tolist(), predicted_C.tolist(), thresholds, strict=True)
        return tuple(ClassRow(*row) for row in rows)


def mean_outcomes(
    frame: Report, scores: Mapping[str, ArrayLike], *, compared: Sequence[str] = (), truth: ArrayLike | None = None
) -> Outcomes:
    """Return the outcomes of metrics that are means over the rows, of scores from 0 to 1 for each row (N) by name.

    ``compared`` are the metrics for comparisons of two models, the tested one first; default: all.
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


def _errors(value: Sequence[FloatArray], resampled: Sequence[FloatArray]) -> dict[str, Estimate]:
    """Return the ECE from the gaps of the bins, and the MCE if their shares are given."""
    gap_B, expected = value[0], calibration_error_interval(value[0], resampled[0])
    errors = {"ece": Estimate(float(np.abs(gap_B).sum()), expected.low, expected.high)}
    if len(value) > 1:
        maximum = maximum_error_interval(gap_B, value[1], resampled[0], resampled[1])
        errors["mce"] = Estimate(float(np.abs(gap_B / value[1]).max()), maximum.low, maximum.high)
    return errors


@dataclass(frozen=True)
class TokenLosses:
    """Losses of masked tokens, summed over each text."""

    losses_N: FloatArray  # negative log-probabilities of the tokens, in nats
    right_N: FloatArray  # tokens that were predicted right
    tokens_N: FloatArray  # masked tokens; at least one in all


def token_outcomes(losses: TokenLosses) -> Outcomes:
    """Return the outcomes of masked tokens; texts are resampled with all of their tokens."""

    def statistic(counts_RN: FloatArray) -> FloatArray:
        # A resample without masked tokens counts as the whole.
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
