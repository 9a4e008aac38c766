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

from dataclasses import dataclass

import numpy as np

from bothways.choices import PowerCorrection, PpiMethod
from bothways.evaluation.inputs import FloatArray
from bothways.evaluation.prediction_powered.samples import Moments

_FITTED = 2
"""Numbers that PPI++ estimates from the labels: a mean and lambda."""


@dataclass(frozen=True)
class Ends:
    """The two values that labels can have, and the judge's least and greatest score."""

    low: float
    high: float
    judged_low: float
    judged_high: float


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
    degrees: float
    power: FloatArray


def least_variance_power(moments: Moments, *, limit: float = np.inf) -> FloatArray:
    """Lambda of least variance (PPI++, example 6.1), at least 0 and at most ``limit``; 0 if the judge is constant."""
    n, others = moments.labels, moments.unlabelled
    if others == 0:
        return np.zeros_like(moments.covariance)
    between = n * others / (n + others) * (moments.judged_mean - moments.unlabelled_mean) ** 2
    squares = n * moments.judged_variance + others * moments.unlabelled_variance + between
    pooled = squares / (n + others - 1)
    varies = pooled > 1e-15 * (1 + moments.judged_mean**2)
    power = moments.covariance / ((1 + n / others) * np.where(varies, pooled, 1.0))
    return np.clip(np.where(varies, power, 0.0), 0.0, limit)


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
        wide = moments.with_rows((ends.low, ends.high), (ends.judged_high, ends.judged_low), weight=weight)
    power = _power(wide, method, limit=np.inf if corrected else 1.0)
    spent = _FITTED if method in ("ppi++", "bootstrap") and wide.labels > _FITTED else 1
    degrees = wide.labels - spent if corrected else np.inf
    residual = wide.label_variance - 2 * power * wide.covariance + power**2 * wide.judged_variance
    variance = np.maximum(residual, 0.0) / (degrees if corrected else wide.labels)
    if moments.unlabelled:
        others = moments.unlabelled - 1 if corrected and moments.unlabelled > 1 else moments.unlabelled
        variance = variance + power**2 * moments.unlabelled_variance / others
    return Located(_mean(moments, power), _mean(wide, power), variance, degrees, power)


def _power(moments: Moments, method: PpiMethod, *, limit: float) -> FloatArray:
    if method == "ppi":
        return np.ones_like(moments.covariance)
    if method == "classical" or moments.labels <= _FITTED:  # A line through two points fits without an error.
        return np.zeros_like(moments.covariance)
    return least_variance_power(moments, limit=limit)


def _mean(moments: Moments, power: FloatArray) -> FloatArray:
    return moments.label_mean + power * (moments.unlabelled_mean - moments.judged_mean)
