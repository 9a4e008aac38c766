"""Bias-corrected and accelerated (BCa) bootstrap of PPI++ means.

BCa: Efron 1987. Bootstrap of prediction-powered estimates: Zrnic 2024, arXiv 2405.18379.
Labelled rows and rows without labels are resampled apart, and lambda is estimated anew in every resample.

Shape letters: n labelled rows, N others, R resamples, U distinct rows.
"""

from collections.abc import Sequence

import numpy as np

from bothways.evaluation.bootstrap import CHUNK_CELLS, Interval
from bothways.evaluation.inputs import FloatArray
from bothways.evaluation.prediction_powered.located import least_variance_power
from bothways.evaluation.prediction_powered.samples import Moments, Sample


def resampled_means(sample: Sample, *, resamples: int, generator: np.random.Generator) -> FloatArray:
    """PPI++ means of resampled rows (R,)."""
    pairs_U2, pair_counts_U = np.unique(
        np.stack([sample.labels, sample.judge_scores], axis=1), axis=0, return_counts=True
    )
    scores_U, score_counts_U = np.unique(sample.unlabelled_judge_scores, return_counts=True)
    step = max(1, CHUNK_CELLS // (len(pairs_U2) + len(scores_U)))
    means = []
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        shares_RU = _shares(pair_counts_U, size, generator)
        label_mean, judge_mean = shares_RU @ pairs_U2[:, 0], shares_RU @ pairs_U2[:, 1]
        other_mean, other_variance = np.zeros(size), np.zeros(size)
        if len(scores_U):
            other_shares_RU = _shares(score_counts_U, size, generator)
            other_mean, other_variance = _mean_and_variance(other_shares_RU, scores_U)
        moments = Moments(
            labels=len(sample.labels),
            unlabelled=len(sample.unlabelled_judge_scores),
            label_mean=label_mean,
            judge_mean=judge_mean,
            label_variance=_mean_and_variance(shares_RU, pairs_U2[:, 0])[1],
            judge_variance=_mean_and_variance(shares_RU, pairs_U2[:, 1])[1],
            covariance=shares_RU @ pairs_U2.prod(axis=1) - label_mean * judge_mean,
            unlabelled_mean=other_mean,
            unlabelled_variance=other_variance,
        )
        means.append(label_mean + least_variance_power(moments) * (other_mean - judge_mean))
    return np.concatenate(means)


def bca_interval(
    value: float, resampled_R: FloatArray, influences: Sequence[tuple[FloatArray, int]], level: float
) -> Interval:
    """BCa interval (Efron 1987, equation 2.3).

    Args:
        value: The estimate on the data.
        resampled_R: In resamples.
        influences: For each set of rows that is resampled, its rows' influences on the estimate and their number.
        level: Share of such intervals that hold the truth.
    """
    from scipy.special import ndtr, ndtri

    count = len(resampled_R)
    # Ties count half, and the shift stays finite.
    below = ((resampled_R < value).sum() + (resampled_R == value).sum() / 2) / count
    shift = float(ndtri(np.clip(below, 0.5 / count, 1 - 0.5 / count)))
    squares = sum(float((each**2).sum()) / rows**2 for each, rows in influences)
    cubes = sum(float((each**3).sum()) / rows**3 for each, rows in influences)
    bend = cubes / (6 * squares**1.5) if squares > 0 else 0.0
    reach = float(ndtri((1 + level) / 2))
    ends = [shift + (shift + z) / (1 - bend * (shift + z)) for z in (-reach, reach)]
    low, high = np.quantile(resampled_R, ndtr(ends))
    return Interval(float(low), float(high), level)


def influences(sample: Sample, power: float, weight: float) -> list[tuple[FloatArray, int]]:
    """Influence of each row on a weighted PPI++ mean: of the labelled rows and of the others."""
    rectifier_n = sample.labels - power * sample.judge_scores
    found = [(weight * (rectifier_n - rectifier_n.mean()), len(rectifier_n))]
    if len(others_N := sample.unlabelled_judge_scores):
        found.append((weight * power * (others_N - others_N.mean()), len(others_N)))
    return found


def _shares(counts_U: np.ndarray, size: int, generator: np.random.Generator) -> FloatArray:
    rows = int(counts_U.sum())
    drawn: FloatArray = generator.multinomial(rows, counts_U / rows, size=size) / rows
    return drawn


def _mean_and_variance(shares_RU: FloatArray, values_U: FloatArray) -> tuple[FloatArray, FloatArray]:
    mean_R = shares_RU @ values_U
    return mean_R, np.maximum(shares_RU @ values_U**2 - mean_R**2, 0.0)
