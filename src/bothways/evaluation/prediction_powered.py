"""Prediction-powered inference: means with valid intervals, from few human labels and many rows scored by a judge.

A judge's scores on all rows make the interval of a mean narrower, and a few human labels correct the judge's bias
(Angelopoulos et al. 2023, "Prediction-powered inference", Science 382). The interval is valid however bad the judge is,
if the labelled rows are a random sample. With labels Y, scores f, n labelled rows, N unlabelled rows and a power
lambda, the estimate is ::

    lambda mean_N(f) + mean_n(Y - lambda f)

and its variance ``lambda**2 var(f) / N + var(Y - lambda f) / n``. Lambda is 0 for the classical mean and 1 for PPI;
PPI++ (Angelopoulos, Duchi and Zrnic 2023, arXiv 2311.01453) takes the value that minimises the variance.

Corrections for few labels:

- Student's t with n - 1 degrees of freedom; n - 2 for PPI++, which estimates lambda from the same labels.
- For labels of 0 and 1, two pseudo-rows are added, one of each label, on which the judge is as wrong as possible, so
  that a judge without an error on 50 labels does not count as perfect. With lambda = 1 that is the interval of Bonett
  and Price (2012) for paired proportions; with lambda = 0 it is nearly that of Agresti and Coull (1998).

Shape letters: n labelled rows, N rows without labels; ``...`` stands for any number of samples computed at once.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike

from bothways.choices import Pairing, PpiMethod
from bothways.errors import InvalidInput, one_of
from bothways.evaluation.inputs import FloatArray, real_array
from bothways.evaluation.intervals import LEVEL, Estimate

FEW_LABELS = 30
LARGE_BIAS = 0.1
SHIFT_LEVEL = 0.01  # p-value below which labelled rows are reported as not being a random sample
_SIGNIFICANT = 2.0  # standard errors
_CERTAINTY = 0.8
_FITTED = 2  # parameters that PPI++ estimates from the labels: a mean and lambda


@dataclass(frozen=True, init=False, eq=False)
class Sample:
    """Human labels of a few rows, and a judge's scores on them and on many rows without labels.

    The labelled rows must be a random sample of all rows; otherwise the intervals are not valid.

    Raises:
        InvalidInput: A vector is not finite, or there are fewer than two labels or not one score for each label.
    """

    labels: FloatArray  # human labels (n,): 0 and 1, or real values
    judge_scores: FloatArray  # the judge's decisions or scores on the same rows (n,), in the same order
    unlabelled_judge_scores: FloatArray  # the judge's decisions or scores on the rows without labels (N,); may be empty

    def __init__(self, labels: ArrayLike, judge_scores: ArrayLike, unlabelled_judge_scores: ArrayLike) -> None:
        given = {"labels": labels, "judge_scores": judge_scores, "unlabelled_judge_scores": unlabelled_judge_scores}
        for name, values in given.items():
            none = name == "unlabelled_judge_scores" and np.shape(values) == (0,)
            own = np.empty(0) if none else real_array(values, name, dimensions=1).copy()
            own.setflags(write=False)
            object.__setattr__(self, name, own)
        if (rows := len(self.labels)) < 2:
            raise InvalidInput(f"labels: expected at least 2, got {rows}; label more rows")
        if (scores := len(self.judge_scores)) != rows:
            raise InvalidInput(f"judge_scores: expected {rows} scores, one for each label, got {scores}")

    @property
    def binary(self) -> bool:
        """True if every label is 0 or 1, so that their mean is a proportion."""
        return bool(np.isin(self.labels, (0.0, 1.0)).all())


@dataclass(frozen=True, kw_only=True)
class PoweredEstimate(Estimate):
    """An estimate from labelled and judged rows, with its interval."""

    level: float  # nominal coverage of the interval
    method: PpiMethod
    labels: int  # labelled rows, summed over both systems of an unpaired difference
    unlabelled: int  # rows without labels, summed likewise
    power: float  # lambda, the weight of the judge, 0 to ignore it; the mean of both for an unpaired difference
    standard_error: float
    degrees: float  # degrees of freedom of Student's t
    effective_labels: float  # number of labels with which the classical method would have this standard error
    warnings: tuple[str, ...] = ()  # sentences that name reasons to doubt the interval


@dataclass(frozen=True, eq=False)
class Moments:
    """Moments of one sample or of many, shape (...); variances are divided by the number of rows, not by one less."""

    labels: float
    unlabelled: float
    mean_2: FloatArray  # means of the labels and of the judge's scores on the same rows
    covariance_22: FloatArray  # covariance matrix of both
    unlabelled_mean: FloatArray
    unlabelled_variance: FloatArray

    @classmethod
    def from_sample(cls, sample: Sample) -> "Moments":
        """Compute the moments of a sample."""
        both_2n, others_N = np.stack([sample.labels, sample.judge_scores]), sample.unlabelled_judge_scores
        spread = (others_N.mean(), others_N.var()) if len(others_N) else (0.0, 0.0)
        moments = both_2n.mean(axis=1), np.cov(both_2n, bias=True), *map(np.asarray, spread)
        return cls(len(sample.labels), len(others_N), *moments)

    def with_row(self, label: float, score: float, weight: float) -> "Moments":
        """Add a labelled row that counts ``weight`` times."""
        rows = self.labels + weight
        kept, share = self.labels / rows, weight / rows
        gap_2 = np.stack([label - self.mean_2[0], score - self.mean_2[1]])
        covariance_22 = kept * (self.covariance_22 + share * gap_2[:, None] * gap_2)
        return replace(self, labels=rows, mean_2=self.mean_2 + share * gap_2, covariance_22=covariance_22)


@dataclass(frozen=True, eq=False)
class PoweredMean:
    """A mean with its variance, shape (...); ``centre`` is the middle of its interval and includes the pseudo-rows."""

    value: FloatArray
    centre: FloatArray
    variance: FloatArray
    degrees: FloatArray
    power: FloatArray

    def interval(self, level: float) -> tuple[FloatArray, FloatArray]:
        """Return the ends of the interval."""
        reach = _t_quantile(level, self.degrees) * np.sqrt(self.variance)
        return self.centre - reach, self.centre + reach

    def minus(self, other: "PoweredMean") -> "PoweredMean":
        """Subtract the mean of an independent sample; degrees of freedom by Satterthwaite (1946)."""
        variance = self.variance + other.variance
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = [(each.variance / variance) ** 2 / each.degrees for each in (self, other)]
            degrees = 1 / (shares[0] + shares[1])
        return PoweredMean(
            value=self.value - other.value,
            centre=self.centre - other.centre,
            variance=variance,
            degrees=np.where(variance > 0, degrees, np.minimum(self.degrees, other.degrees)),
            power=(self.power + other.power) / 2,
        )


def powered_mean(
    moments: Moments, pseudo_rows: Sequence[tuple[float, float]] = (), *, method: PpiMethod, weight: float = 1.0
) -> PoweredMean:
    """Estimate the mean of one sample or many, with pseudo-rows that count ``weight`` times each."""
    wide = moments
    for label, score in pseudo_rows:
        wide = wide.with_row(label, score, weight)
    power = _power(wide, method)
    degrees = wide.labels - (_FITTED if method == "ppi++" and wide.labels > _FITTED else 1)
    (label_variance, covariance), (_, judge_variance) = wide.covariance_22
    variance = np.maximum(label_variance - 2 * power * covariance + power**2 * judge_variance, 0.0) / degrees
    if moments.unlabelled:
        variance = variance + power**2 * moments.unlabelled_variance / max(1, moments.unlabelled - 1)
    value, centre = (each.mean_2[0] + power * (each.unlabelled_mean - each.mean_2[1]) for each in (moments, wide))
    return PoweredMean(value, centre, variance, np.asarray(degrees), power)


def _power(moments: Moments, method: PpiMethod) -> FloatArray:
    """Return lambda; for PPI++ ``cov / (var_n(f) + n / N var_N(f))``, at least 0, and 0 for a constant judge.

    The paper (example 6.1) divides the covariance on the labelled rows by the variance on all rows. The errors of these
    two do not cancel: with 50 skewed numeric labels, the intervals were a quarter wider.
    """
    covariance, judge_variance = moments.covariance_22[1]
    # Two labels always lie on a line, so they do not show how well the judge fits.
    if method != "ppi++" or moments.labels <= _FITTED or not moments.unlabelled:
        return np.full_like(covariance, float(method == "ppi"))
    variance = judge_variance + moments.labels / moments.unlabelled * moments.unlabelled_variance
    varies = variance > 1e-14 * (np.square(moments.mean_2[1]) + np.square(moments.unlabelled_mean))  # beyond rounding
    return np.maximum(np.where(varies, covariance / np.where(varies, variance, 1.0), 0.0), 0.0)


def _t_quantile(level: float, degrees: FloatArray | float) -> FloatArray:
    from scipy.stats import t

    if not 0 < level < 1:
        raise InvalidInput(f"level: expected a probability between 0 and 1, such as 0.95, got {level}")
    return np.asarray(t.ppf((1 + level) / 2, degrees))


def estimate_mean(sample: Sample, *, method: PpiMethod = "ppi++", level: float = LEVEL) -> PoweredEstimate:
    """Estimate the mean label, or the proportion of ones.

    In simulations with 20 labels, 95 % intervals by ``ppi++`` contained the true proportion in at least 94.7 % of
    samples, and the true mean of skewed values in 93 to 94 %.

    Args:
        sample: Labelled rows, drawn at random, and judged rows.
        method: ``ppi++`` weights the judge by how informative it is, ``ppi`` weights it by 1, ``classical`` ignores it.
        level: Nominal coverage of the interval.
    """
    return _estimate([sample], (0.0, 1.0) if sample.binary else None, 1.0, method, level)


def estimate_difference(
    first: Sample, second: Sample, *, pairing: Pairing, method: PpiMethod = "ppi++", level: float = LEVEL
) -> PoweredEstimate:
    """Estimate the difference of the means of two systems, the first minus the second.

    Args:
        first: The first system.
        second: The second system.
        pairing: ``paired`` if row i of both samples is the same question, both for labelled and for unlabelled rows;
            this gives narrower intervals. ``unpaired`` if the questions were drawn separately.
        method: See `estimate_mean`.
        level: Nominal coverage of the interval.
    """
    return _estimate(*_compared(first, second, pairing), method, level)


def _compared(
    first: Sample, second: Sample, pairing: Pairing
) -> tuple[list[Sample], tuple[float, float] | None, float]:
    """Return the samples of a difference, the bounds of binary labels, and the weight of pseudo-rows."""
    binary = first.binary and second.binary
    if pairing == "paired":
        # Half a pseudo-row of each kind, as in Agresti and Min (2005); a whole one would widen the interval too much.
        return [_paired_difference(first, second)], (-1.0, 1.0) if binary else None, 0.5
    # The standard error of a difference is sqrt(2) times that of one mean, not twice; so pseudo-rows count less.
    return [first, second], (0.0, 1.0) if binary else None, 1 / math.sqrt(2)


def _pseudo_rows(sample: Sample, bounds: tuple[float, float] | None) -> Sequence[tuple[float, float]]:
    """Return a row of each label on which the judge is as wrong as possible; none without bounds."""
    scores = np.concatenate([sample.judge_scores, sample.unlabelled_judge_scores])
    return () if bounds is None else ((bounds[0], float(scores.max())), (bounds[1], float(scores.min())))


def _estimate(
    samples: Sequence[Sample], bounds: tuple[float, float] | None, weight: float, method: PpiMethod, level: float
) -> PoweredEstimate:
    """Estimate a mean, or the difference of the means of two independent samples."""
    one_of("method", method, get_args(PpiMethod))
    if method == "ppi" and not all(len(each.unlabelled_judge_scores) for each in samples):
        raise InvalidInput(
            "unlabelled_judge_scores: method 'ppi' expects rows without labels, got none; use 'classical'"
        )

    def estimated(method: PpiMethod) -> PoweredMean:
        means = []
        for each in samples:
            wrong = _pseudo_rows(each, bounds)
            means.append(powered_mean(Moments.from_sample(each), wrong, method=method, weight=weight))
        return means[0] if len(means) == 1 else means[0].minus(means[1])

    mean, classical = estimated(method), estimated("classical")
    value, (low, high) = float(mean.value), map(float, mean.interval(level))
    if bounds is not None:
        least, most = bounds if len(samples) == 1 else (bounds[0] - bounds[1], bounds[1] - bounds[0])
        value, low, high = np.clip([value, low, high], least, most).tolist()
    labels, variance = sum(len(each.labels) for each in samples), float(mean.variance)
    effective = labels * (float(classical.variance) / variance if variance > 0 else 1.0)
    names = ("",) if len(samples) == 1 else ("first: ", "second: ")
    warnings = [
        name + sentence
        for name, sample in zip(names, samples, strict=True)
        for sentence in _warnings(sample, method, bounded=bounds is not None)
    ]
    if method == "ppi" and effective < labels:
        warnings.append(
            f"with method 'ppi', {labels} labels are worth only {effective:.0f}: the judge adds more noise than "
            "information. Use method 'ppi++', which weights the judge by how informative it is."
        )
    return PoweredEstimate(
        value=value,
        low=min(low, value),
        high=max(high, value),
        level=level,
        method=method,
        labels=labels,
        unlabelled=sum(len(each.unlabelled_judge_scores) for each in samples),
        power=float(mean.power),
        standard_error=math.sqrt(variance),
        degrees=float(mean.degrees),
        effective_labels=effective,
        warnings=tuple(warnings),
    )


def _paired_difference(first: Sample, second: Sample) -> Sample:
    pairs = [
        (first.labels, second.labels),
        (first.judge_scores, second.judge_scores),
        (first.unlabelled_judge_scores, second.unlabelled_judge_scores),
    ]
    for here, there in pairs:
        if len(here) != len(there):
            raise InvalidInput(
                f"expected the same questions for both systems, got {len(here)} and {len(there)} rows; "
                "drop the questions that only one of them has, or compare them as unpaired"
            )
    return Sample(*(here - there for here, there in pairs))


def probability_better(difference: PoweredEstimate) -> float:
    """Return the probability that the first of two systems is better, from the difference of their means.

    The true difference is assumed to follow Student's t around the estimate, scaled by its standard error. This is the
    posterior probability under a flat prior, and equals one minus the one-sided p-value.
    """
    from scipy.stats import t

    if difference.standard_error == 0:
        return 0.5 + 0.5 * float(np.sign(difference.value))
    return float(t.cdf(difference.value / difference.standard_error, difference.degrees))


@dataclass(frozen=True, slots=True)
class SeparatingLabels:
    """The labels that would show which of two systems is better, if their difference is as estimated."""

    # Questions to label in addition, for both systems: 0 if the interval of the difference already excludes 0, None if
    # labels on all rows would give a lower power.
    labels: int | None
    power: float  # probability that the interval then excludes 0
    low: float  # the interval that labels on all rows would give
    high: float
    power_of_all: float  # probability that this interval excludes 0


def separation(first: Sample, second: Sample, *, pairing: Pairing, level: float = LEVEL) -> SeparatingLabels:
    """Return the number of questions to label until PPI++ shows which of two systems is better, and the power.

    With these labels, the interval of the difference excludes 0 in four of five cases, if the true difference is the
    current estimate, the rows to label are drawn at random and the variances do not change.
    """
    from scipy.special import ndtr

    samples, bounds, weight = _compared(first, second, pairing)
    now = _estimate(samples, bounds, weight, "ppi++", level)
    moments = [(Moments.from_sample(each), _pseudo_rows(each, bounds)) for each in samples]
    most = int(min(each.unlabelled for each, _ in moments))

    def planned(more: int) -> PoweredMean:
        """Return the mean with more labels, if means and variances stay."""
        means = [
            powered_mean(
                replace(each, labels=each.labels + more, unlabelled=each.unlabelled - more),
                wrong,
                method="ppi++",
                weight=weight,
            )
            for each, wrong in moments
        ]
        return means[0] if len(means) == 1 else means[0].minus(means[1])

    def power(more: int) -> float:
        mean = planned(more)
        error, value = math.sqrt(float(mean.variance)), abs(now.value)
        apart = value / error if error else math.inf if value else 0.0
        quantile = float(_t_quantile(level, mean.degrees))
        return float(ndtr(apart - quantile) + ndtr(-apart - quantile))

    enough: int | None = 0
    if now.low <= 0 <= now.high:
        enough = bisect_left(range(1, most + 1), True, key=lambda more: power(more) >= _CERTAINTY) + 1
        enough = enough if enough <= most else None
    ends, bound = planned(most).interval(level), math.inf if bounds is None else 1.0
    reach = float(ends[1] - ends[0]) / 2
    low, high = max(-bound, now.value - reach), min(bound, now.value + reach)
    return SeparatingLabels(enough, _CERTAINTY, low, high, power(most))


def shift_p_value(sample: Sample) -> float:
    """Test the hypothesis that the judge's scores have the same distribution on labelled and on unlabelled rows.

    Return the p-value of Fisher's exact test if there are only two distinct scores, else of the Kolmogorov-Smirnov
    test; 1 without unlabelled rows.
    """
    from scipy.stats import fisher_exact, ks_2samp

    judge_n, judge_N = sample.judge_scores, sample.unlabelled_judge_scores
    values = np.unique(np.concatenate([judge_n, judge_N]))
    if not len(judge_N) or len(values) == 1:
        return 1.0
    if len(values) > 2:
        return float(ks_2samp(judge_n, judge_N).pvalue)
    table = [[int((scores == value).sum()) for value in values] for scores in (judge_n, judge_N)]
    return float(fisher_exact(table).pvalue)


def _warnings(sample: Sample, method: PpiMethod, *, bounded: bool) -> list[str]:
    """Return reasons to doubt the interval; the coverages in them are from simulations in docs/LOG.md."""
    labels_n, judge_n, judge_N = sample.labels, sample.judge_scores, sample.unlabelled_judge_scores
    count, constant = len(labels_n), np.ptp(labels_n) == 0
    warnings = []
    if count < FEW_LABELS:
        warnings.append(
            f"{count} labels are fewer than {FEW_LABELS}: in simulations with 20 labels, 95 % intervals contained the "
            f"true value in {94 if bounded else 93} % of samples and were wide; label more rows."
        )
    if constant:
        warnings.append(
            f"all {count} labels are {labels_n[0]:g}: they do not show how often the judge is wrong "
            "on rows with another label; label more rows."
        )
    if method == "classical":
        return warnings
    if not len(judge_N):
        return [*warnings, "there are no rows without labels: the judge adds nothing to the labels."]
    if not constant and np.ptp(judge_n) == 0:
        warnings.append("the judge gives every labelled row the same score: it adds nothing to the labels.")
    elif not constant:
        correlation = float(np.corrcoef(labels_n, judge_n)[0, 1])
        if correlation * math.sqrt(count) <= _SIGNIFICANT:
            warnings.append(
                f"the judge's correlation with the {count} labels is {correlation:.2f}, which chance could give: "
                "it adds next to nothing to the labels."
            )
    errors_n, scores = judge_n - labels_n, np.concatenate([judge_n, judge_N])
    bias, error = float(errors_n.mean()), float(errors_n.std()) / math.sqrt(count)
    comparable = sample.binary and scores.min() >= 0 and scores.max() <= 1
    if comparable and abs(bias) >= max(LARGE_BIAS, _SIGNIFICANT * error):
        side = "above" if bias > 0 else "below"
        warnings.append(
            f"the judge's scores are on average {abs(bias):.2f} {side} the labels: the estimate corrects this, "
            "the judge's own mean does not."
        )
    p_value = shift_p_value(sample)
    if p_value < SHIFT_LEVEL:
        warnings.append(
            f"the judge scores labelled and unlabelled rows differently (mean {judge_n.mean():.2f} and "
            f"{judge_N.mean():.2f}, p = {p_value:.1g}): the labelled rows may not be a random sample, and then the "
            "interval is not valid; label rows drawn at random."
        )
    return warnings
