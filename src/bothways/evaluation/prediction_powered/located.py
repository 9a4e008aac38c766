"""Prediction-powered estimates of a mean from moments: the value, its standard error and degrees of freedom.

With labels Y, a judge's scores f, n labelled and N other rows and a power lambda, the estimate is ::

    lambda mean_N(f) + mean_n(Y - lambda f)

and its variance ``lambda**2 var(f) / N + var(Y - lambda f) / n``. Lambda is 0 for the classical mean, 1 for PPI
(Angelopoulos et al. 2023, "Prediction-powered inference", Science 382), and for PPI++ (Angelopoulos, Duchi and Zrnic
2023, arXiv 2311.01453, section 6) the value of least variance, ``cov(Y, f) / ((1 + n / N) var(f))``.

Corrections for few labels:

- Student's t with n - 1 degrees of freedom, for PPI++ with n - 2, since lambda is estimated from the same labels; sums
  of squares are divided by the same number.
- Labels of 0 and 1 get two pseudo-rows, one of either label, on which the judge is as wrong as it can be. They shift
  the centre and widen the interval, so that a judge without an error on 50 labels does not pass for flawless. With
  lambda = 1 that is the interval of Bonett and Price (2012) for paired proportions, with lambda = 0 nearly that of
  Agresti and Coull (1998).

Shape letters: ``...`` any number of samples computed at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bothways.choices import PowerCorrection, PpiMethod
from bothways.errors import InvalidInput
from bothways.evaluation.inputs import FloatArray
from bothways.evaluation.prediction_powered.samples import Moments

_FITTED = 2
"""Numbers that PPI++ estimates from the labels: a mean and lambda."""

PAIRED_WEIGHT = 0.5
"""Weight of a pseudo-row of paired differences (-1, 0 or 1), as in Agresti and Min (2005); 1 is wider than needed."""


def shared_weight(samples: int) -> float:
    """Weight of a pseudo-row of each of several samples whose estimates are added.

    The standard error of their sum falls with the square root of their number, so the shift of its centre has to fall
    as well: with a weight of 1, ten strata of ten labels cover .87 instead of .95.
    """
    return 1 / math.sqrt(samples)


@dataclass(frozen=True)
class Ends:
    """The two values that labels can have, and the judge's least and greatest score."""

    low: float
    high: float
    judge_low: float | FloatArray
    judge_high: float | FloatArray


@dataclass(frozen=True, eq=False)
class Located:
    """An estimate and its spread, shape (...).

    Attributes:
        value: The estimate.
        centre: The middle of its interval; differs from ``value`` by the pseudo-rows.
        variance: Squared standard error.
        degrees: Degrees of freedom of the variance; infinite without a correction.
        power: Lambda.
    """

    value: FloatArray
    centre: FloatArray
    variance: FloatArray
    degrees: FloatArray
    power: FloatArray

    def interval(self, level: float) -> tuple[FloatArray, FloatArray]:
        """Return the ends of the interval.

        Raises:
            InvalidInput: a level not between 0 and 1.
        """
        reach = t_quantile(level, self.degrees) * np.sqrt(self.variance)
        return self.centre - reach, self.centre + reach


def t_quantile(level: float, degrees: FloatArray | float) -> FloatArray:
    """Half-width of a two-sided interval in standard errors.

    Raises:
        InvalidInput: a level not between 0 and 1.
    """
    from scipy.stats import t

    if not 0 < level < 1:
        raise InvalidInput(f"level: expected a probability between 0 and 1, such as 0.95, got {level}")
    return np.asarray(t.ppf((1 + level) / 2, degrees))


def weighted_sum(parts: Sequence[Located], weights: Sequence[float]) -> Located:
    """Add estimates from samples that were drawn apart; degrees of freedom by Satterthwaite (1946).

    The power is the mean of theirs, weighted by the absolute weights.
    """
    pairs = list(zip(parts, weights, strict=True))
    variances = [weight**2 * part.variance for part, weight in pairs]
    variance = np.sum(variances, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = [(each / variance) ** 2 / part.degrees for each, part in zip(variances, parts, strict=True)]
        degrees = 1 / np.sum(shares, axis=0)
    least = np.min([np.broadcast_to(part.degrees, variance.shape) for part in parts], axis=0)
    return Located(
        value=np.sum([weight * part.value for part, weight in pairs], axis=0),
        centre=np.sum([weight * part.centre for part, weight in pairs], axis=0),
        variance=variance,
        degrees=np.where(variance > 0, degrees, least),
        power=np.sum([abs(weight) * part.power for part, weight in pairs], axis=0) / sum(map(abs, weights)),
    )


def least_variance_power(moments: Moments) -> FloatArray:
    """Lambda of the least estimated variance, ``cov / (var_n(f) + n / N var_N(f))``, and not below 0.

    It is 0 for a constant judge. PPI++ divides the covariance on the labelled rows by the variance on all rows, whose
    errors do not cancel: with 50 labels that are skewed numbers its intervals were a quarter wider. For many labels
    both are the same.
    """
    if moments.unlabelled == 0:
        return np.zeros_like(moments.covariance)
    others = moments.labels / moments.unlabelled * moments.unlabelled_variance
    scale = np.square(moments.judge_mean) + np.square(moments.unlabelled_mean)
    return np.maximum(_ratio(moments.covariance, moments.judge_variance + others, scale), 0.0)


def published_power(moments: Moments) -> FloatArray:
    """Lambda as PPI++ (example 6.1) and ppi-python have it, from 0 to 1; 0 for a constant judge."""
    n, others = moments.labels, moments.unlabelled
    if others == 0:
        return np.zeros_like(moments.covariance)
    between = n * others / (n + others) * (moments.judge_mean - moments.unlabelled_mean) ** 2
    squares = n * moments.judge_variance + others * moments.unlabelled_variance + between
    scale = np.square(moments.judge_mean) + np.square(moments.unlabelled_mean)
    return np.clip(_ratio(moments.covariance, (1 + n / others) * squares / (n + others - 1), scale), 0.0, 1.0)


def _ratio(covariance: FloatArray, variance: FloatArray, scale: FloatArray) -> FloatArray:
    """Divide, with 0 where the variance is nothing but rounding of numbers of that squared size."""
    varies = variance > 1e-14 * scale
    return np.where(varies, covariance / np.where(varies, variance, 1.0), 0.0)


def locate(
    moments: Moments,
    ends: Ends | None,
    *,
    method: PpiMethod,
    correction: PowerCorrection = "small-sample",
    weight: float = 1.0,
) -> Located:
    """Estimate means by ``classical``, ``ppi`` or ``ppi++``.

    Args:
        moments: Of the samples.
        ends: What the labels can be, for pseudo-rows; None adds none.
        method: The power; ``bootstrap`` has that of ``ppi++``.
        correction: For few labels, or none, as in the papers.
        weight: How often each of the two pseudo-rows counts.
    """
    corrected = correction == "small-sample"
    wide = moments
    if corrected and ends is not None:
        wide = moments.with_rows((ends.low, ends.high), (ends.judge_high, ends.judge_low), weight=weight)
    power = _power(wide, method, corrected)
    spent = _FITTED if method in ("ppi++", "bootstrap") and wide.labels > _FITTED else 1
    degrees = wide.labels - spent if corrected else math.inf
    residual = wide.label_variance - 2 * power * wide.covariance + power**2 * wide.judge_variance
    variance = np.maximum(residual, 0.0) / (degrees if corrected else wide.labels)
    if moments.unlabelled:
        others = moments.unlabelled - 1 if corrected and moments.unlabelled > 1 else moments.unlabelled
        variance = variance + power**2 * moments.unlabelled_variance / others
    return Located(_mean(moments, power), _mean(wide, power), variance, np.asarray(degrees), power)


def _power(moments: Moments, method: PpiMethod, corrected: bool) -> FloatArray:
    if method == "ppi":
        return np.ones_like(moments.covariance)
    if method == "classical" or moments.labels <= _FITTED:  # A line through two points fits without an error.
        return np.zeros_like(moments.covariance)
    return least_variance_power(moments) if corrected else published_power(moments)


def _mean(moments: Moments, power: FloatArray) -> FloatArray:
    return moments.label_mean + power * (moments.unlabelled_mean - moments.judge_mean)
