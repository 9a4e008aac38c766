"""Planning of labels: the difference of two systems, the labels that would settle it, and the rows to label."""

import math

import numpy as np
from numpy.typing import ArrayLike

from bothways.choices import Pairing
from bothways.errors import InvalidInput
from bothways.evaluation.bootstrap import LEVEL
from bothways.evaluation.inputs import IntArray, paired_vectors, real_array
from bothways.evaluation.prediction_powered.estimates import (
    PoweredEstimate,
    estimate_difference,
    paired_difference,
)
from bothways.evaluation.prediction_powered.located import t_quantile
from bothways.evaluation.prediction_powered.samples import Moments, Sample

POWER = 0.8


def probability_better(difference: PoweredEstimate) -> float:
    """Probability that the first of two systems is better, from the difference of their means.

    The true difference is taken to follow Student's t (normal for infinite degrees of freedom) about the estimate,
    with its standard error: the posterior under a flat prior, and one minus the one-sided p-value.

    Args:
        difference: From `estimate_difference`, the first system minus the second.
    """
    from scipy.stats import t

    if difference.standard_error == 0:
        return 0.5 + 0.5 * float(np.sign(difference.value))
    return float(t.cdf(difference.value / difference.standard_error, difference.degrees))


def labels_to_separate(
    first: Sample,
    second: Sample,
    *,
    pairing: Pairing,
    level: float = LEVEL,
    power: float = POWER,
) -> int | None:
    """Count the further labels that would separate two systems by PPI++, if their difference is as estimated now.

    The rows to label are drawn at random from those without labels; the variances stay as they are.

    Args:
        first: The first system's rows.
        second: The second system's.
        pairing: As for `estimate_difference`.
        level: Of the interval that has to leave out 0.
        power: Probability that it does; 0.5 if the estimate is to leave out 0 just so.

    Returns:
        Further questions to label: 0 if the interval leaves out 0 already, None if labels on all rows would not do.
        Each question needs a label for both systems.

    Raises:
        InvalidInput: as for `estimate_difference`, or a power not from 0.5 to below 1.
    """
    if not 0.5 <= power < 1:
        raise InvalidInput(f"power: expected a probability from 0.5 to below 1, such as 0.8, got {power}")
    from scipy.special import ndtri

    now = estimate_difference(first, second, pairing=pairing, level=level)
    if now.low > 0 or now.high < 0:
        return 0
    if now.value == 0:
        return None
    samples = [paired_difference(first, second)] if pairing == "paired" else [first, second]
    moments = [Moments.of(each) for each in samples]
    most = int(min(each.unlabelled for each in moments))

    def separates(more: int) -> bool:
        error = math.sqrt(sum(_variance(each, more) for each in moments))
        degrees = sum(each.labels + more - 2 for each in moments)
        return abs(now.value) >= (float(t_quantile(level, max(degrees, 1))) + float(ndtri(power))) * error

    if not separates(most):
        return None
    enough, few = most, 0
    while enough - few > 1:
        middle = (enough + few) // 2
        enough, few = (middle, few) if separates(middle) else (enough, middle)
    return enough


def rows_to_label(judge_scores: ArrayLike, *, count: int, seed: int = 0) -> IntArray:
    """Choose rows without labels that are worth most to look at.

    Of several systems these are the rows on which the judge's scores differ most, of one system those with a score
    nearest to 0.5. Ties go to the more uncertain row, then to a random one. Rows chosen in this way are no random
    sample: their labels correct or train a judge, or are a stratum of their own, and must not be mixed with labels
    drawn at random.

    Args:
        judge_scores: Probabilities by the judge, of one system (N,) or of several on the same rows (systems, N).
        count: How many rows to choose; at most all are.
        seed: Of the ties.

    Returns:
        Indices of rows, the most useful first.

    Raises:
        InvalidInput: not finite numbers from 0 to 1 in one or two axes, or a count below 1.
    """
    if count < 1:
        raise InvalidInput(f"count: expected at least 1, got {count}")
    array = np.asarray(judge_scores)
    scores = np.atleast_2d(real_array(judge_scores, "judge_scores", dimensions=2 if array.ndim > 1 else 1))
    if scores.min() < 0 or scores.max() > 1:
        raise InvalidInput(
            f"judge_scores: expected probabilities from 0 to 1, got {scores.min():g} to {scores.max():g}"
        )
    uncertain = (scores * (1 - scores)).sum(axis=0)
    disagreement = np.ptp(scores, axis=0)
    chance = np.random.default_rng(seed).random(scores.shape[1])
    return np.lexsort((chance, -uncertain, -disagreement))[:count]


def kendall_tau(first: ArrayLike, second: ArrayLike) -> float:
    """Kendall's tau-b of two rankings, from -1 to 1.

    Raises:
        InvalidInput: empty, not finite, of different lengths, or constant, which has no ranking.
    """
    from scipy.stats import kendalltau

    first_K, second_K = paired_vectors(first, second)
    if np.ptp(first_K) == 0 or np.ptp(second_K) == 0:
        raise InvalidInput("Kendall's tau: expected at least two different values on both sides, got a constant")
    return float(kendalltau(first_K, second_K).statistic)


def _variance(moments: Moments, more: int) -> float:
    """Variance of the PPI++ mean at its best lambda, with ``more`` of the other rows labelled."""
    total = moments.labels + moments.unlabelled
    labels = moments.labels + more
    explained = 0.0
    if moments.judge_variance > 0:
        explained = max(float(moments.covariance), 0.0) ** 2 / float(moments.judge_variance)
    return (float(moments.label_variance) - explained * (1 - labels / total)) / labels
