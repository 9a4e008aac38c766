"""Means, differences and stratified means with prediction-powered intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike

from bothways.choices import Pairing, PowerCorrection, PpiMethod
from bothways.errors import InvalidInput
from bothways.evaluation.bootstrap import LEVEL, Estimate, check_draws
from bothways.evaluation.inputs import real_array
from bothways.evaluation.prediction_powered.checks import estimate_warnings, power_warning
from bothways.evaluation.prediction_powered.located import (
    PAIRED_WEIGHT,
    Ends,
    Located,
    locate,
    shared_weight,
    weighted_sum,
)
from bothways.evaluation.prediction_powered.resampling import bca_interval, influences, resampled_means
from bothways.evaluation.prediction_powered.samples import Moments, Sample

RESAMPLES = 1000


@dataclass(frozen=True, kw_only=True)
class PoweredEstimate(Estimate):
    """An estimate from labelled and judged rows, with its interval.

    Attributes:
        value: The estimate.
        low: Lower end of the interval.
        high: Upper end of the interval.
        level: Share of such intervals that hold the truth, as asked for.
        method: ``ppi++``, ``ppi``, ``classical`` or ``bootstrap``.
        labels: Labelled rows; of two systems or several strata, all of them together.
        unlabelled: Rows without labels, counted likewise.
        power: Lambda, the weight of the judge: 0 ignores it. Of several samples, the mean by their weights.
        standard_error: Standard error of the estimate.
        degrees: Degrees of freedom of Student's t; infinite for a normal approximation.
        effective_labels: Labels that the classical method needs for this standard error.
        warnings: Sentences on what makes the interval doubtful.
    """

    level: float
    method: PpiMethod
    labels: int
    unlabelled: int
    power: float
    standard_error: float
    degrees: float
    effective_labels: float
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Part:
    """One sample of a weighted sum."""

    name: str
    sample: Sample
    weight: float
    bounds: tuple[float, float] | None
    """The two values that labels can have."""

    pseudo_weight: float = 1.0

    def located(self, method: PpiMethod, correction: PowerCorrection) -> Located:
        scores = np.concatenate([self.sample.judge_scores, self.sample.unlabelled_judge_scores])
        ends = None if self.bounds is None else Ends(*self.bounds, float(scores.min()), float(scores.max()))
        moments = Moments.of(self.sample)
        return locate(moments, ends, method=method, correction=correction, weight=self.pseudo_weight)

    def warnings(self, method: PpiMethod, correction: PowerCorrection) -> list[str]:
        bounded = self.bounds is not None
        return estimate_warnings(self.sample, name=self.name, method=method, correction=correction, bounded=bounded)


def estimate_mean(
    sample: Sample,
    *,
    method: PpiMethod = "ppi++",
    level: float = LEVEL,
    correction: PowerCorrection = "small-sample",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> PoweredEstimate:
    """Estimate the mean label, or the proportion of ones.

    Args:
        sample: Labelled rows, drawn at random, and judged rows.
        method: ``ppi++`` weighs the judge by what it is worth, ``ppi`` by 1, ``classical`` ignores it; ``bootstrap``
            is a BCa interval of the PPI++ mean, without small-sample correction: it held the truth in 59 % of samples
            with 20 labels, 82 % with 50, 92 % with 150 and 94 % with 300 in the worst population.
        level: Share of such intervals that hold the truth.
        correction: ``small-sample``: simulated 95 % intervals of proportions by ``ppi++`` hold the truth in 94.7 % of
            samples or more from 20 labels on, those of skewed numbers with a weak judge in 93 to 94 %. ``none`` is
            the interval of the papers: in the worst population 61 % with 20 labels, 84 % with 50, 91 % with 150 and
            93 % with 300.
        resamples: For ``bootstrap``.
        seed: For ``bootstrap``.

    Raises:
        InvalidInput: a level not between 0 and 1, no resamples, a seed below 0, or ``ppi`` without unlabelled rows.
    """
    parts = [_Part("", sample, 1.0, _bounds(sample))]
    return _sum(parts, method, level, correction, resamples, seed)


def estimate_difference(
    first: Sample,
    second: Sample,
    *,
    pairing: Pairing,
    method: PpiMethod = "ppi++",
    level: float = LEVEL,
    correction: PowerCorrection = "small-sample",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> PoweredEstimate:
    """Estimate the difference of the means of two systems, the first minus the second.

    Args:
        first: The first system's rows.
        second: The second system's.
        pairing: ``paired`` if row i of both samples is the same question, of labelled rows and of the others; its
            intervals are narrower. ``unpaired`` if the questions were drawn apart.
        method: As for `estimate_mean`.
        level: Share of such intervals that hold the truth.
        correction: As for `estimate_mean`.
        resamples: For ``bootstrap``.
        seed: For ``bootstrap``.

    Raises:
        InvalidInput: paired samples with other numbers of rows, and as for `estimate_mean`.
    """
    if pairing == "unpaired":
        weight = shared_weight(2)
        parts = [
            _Part("first", first, 1.0, _bounds(first), weight),
            _Part("second", second, -1.0, _bounds(second), weight),
        ]
        return _sum(parts, method, level, correction, resamples, seed)
    bounds = (-1.0, 1.0) if first.binary and second.binary else None
    parts = [_Part("", paired_difference(first, second), 1.0, bounds, PAIRED_WEIGHT)]
    return _sum(parts, method, level, correction, resamples, seed)


def stratified_mean(
    strata: Mapping[str, Sample],
    *,
    weights: ArrayLike | None = None,
    method: PpiMethod = "ppi++",
    level: float = LEVEL,
    correction: PowerCorrection = "small-sample",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> PoweredEstimate:
    """Estimate a mean from labels that were drawn in strata, each with its own lambda (Fisch et al. 2024).

    Args:
        strata: A sample for each stratum, by its name; the labelled rows are random within their stratum.
        weights: Share of each stratum in the population, in the same order; they are divided by their sum. Default:
            its share of all rows, labelled or not.
        method: As for `estimate_mean`.
        level: Share of such intervals that hold the truth.
        correction: As for `estimate_mean`.
        resamples: For ``bootstrap``.
        seed: For ``bootstrap``.

    Raises:
        InvalidInput: no strata, weights that are not positive or not one each, and as for `estimate_mean`.
    """
    if not strata:
        raise InvalidInput("strata: expected at least one sample, got none")
    rows = [len(each.labels) + len(each.unlabelled_judge_scores) for each in strata.values()]
    shares = real_array(rows if weights is None else weights, "weights", dimensions=1)
    if len(shares) != len(strata) or shares.min() <= 0:
        raise InvalidInput(
            f"weights: expected {len(strata)} positive numbers, one for each stratum, got {weights!r:.80}"
        )
    binary = all(each.binary for each in strata.values())
    parts = [
        _Part(name, each, float(share), (0.0, 1.0) if binary else None, shared_weight(len(strata)))
        for (name, each), share in zip(strata.items(), shares / shares.sum(), strict=True)
    ]
    return _sum(parts, method, level, correction, resamples, seed)


def paired_difference(first: Sample, second: Sample) -> Sample:
    """Subtract the second sample from the first, row by row.

    Raises:
        InvalidInput: other numbers of labelled or of unlabelled rows.
    """
    for name in ("labels", "unlabelled_judge_scores"):
        here, there = len(getattr(first, name)), len(getattr(second, name))
        if here != there:
            raise InvalidInput(
                f"{name}: expected the same questions for both systems, got {here} and {there} rows; "
                "drop the questions that only one of them has, or compare them unpaired"
            )
    return Sample(
        first.labels - second.labels,
        first.judge_scores - second.judge_scores,
        first.unlabelled_judge_scores - second.unlabelled_judge_scores,
    )


def check_method(method: PpiMethod, sample: Sample) -> None:
    """Refuse a method that is none, or that the sample has no rows for.

    Raises:
        InvalidInput: see above.
    """
    if method not in get_args(PpiMethod):
        raise InvalidInput(f"method: expected one of {', '.join(map(repr, get_args(PpiMethod)))}, got {method!r}")
    if method == "ppi" and not len(sample.unlabelled_judge_scores):
        raise InvalidInput(
            "unlabelled_judge_scores: method 'ppi' expects rows without labels, got none; use 'classical'"
        )


def gain(classical: float, variance: float) -> float:
    """Return the factor by which a classical interval would need more labels; 1 if neither has any variance."""
    return classical / variance if variance > 0 else 1.0


def _bounds(sample: Sample) -> tuple[float, float] | None:
    return (0.0, 1.0) if sample.binary else None


def _sum(
    parts: Sequence[_Part],
    method: PpiMethod,
    level: float,
    correction: PowerCorrection,
    resamples: int,
    seed: int,
) -> PoweredEstimate:
    """Estimate a weighted sum of means of samples that were drawn apart."""
    check_draws(resamples, seed)
    for part in parts:
        check_method(method, part.sample)
    weights = [part.weight for part in parts]
    located = [part.located(method, correction) for part in parts]
    total = weighted_sum(located, weights)
    value, error = float(total.value), math.sqrt(float(total.variance))
    low, high = (float(end) for end in total.interval(level))
    if method == "bootstrap":
        low, high = _resampled(parts, located, value, level, resamples, seed)
    if correction == "small-sample":
        value, low, high = _within_range(parts, value, low, high)
    classical = weighted_sum([part.located("classical", correction) for part in parts], weights)
    labels = sum(len(part.sample.labels) for part in parts)
    effective = labels * gain(float(classical.variance), error**2)
    return PoweredEstimate(
        value=value,
        low=min(low, value),
        high=max(high, value),
        level=level,
        method=method,
        labels=labels,
        unlabelled=sum(len(part.sample.unlabelled_judge_scores) for part in parts),
        power=float(total.power),
        standard_error=error,
        degrees=float(total.degrees),
        effective_labels=effective,
        warnings=(
            *(sentence for part in parts for sentence in part.warnings(method, correction)),
            *power_warning(labels, effective, method),
        ),
    )


def _resampled(
    parts: Sequence[_Part], located: Sequence[Located], value: float, level: float, resamples: int, seed: int
) -> tuple[float, float]:
    generator = np.random.default_rng(seed)
    resampled_R = np.zeros(resamples)
    rows = []
    for part, each in zip(parts, located, strict=True):
        resampled_R += part.weight * resampled_means(part.sample, resamples=resamples, generator=generator)
        rows += influences(part.sample, float(each.power), part.weight)
    interval = bca_interval(value, resampled_R, rows, level)
    return interval.low, interval.high


def _within_range(parts: Sequence[_Part], *values: float) -> list[float]:
    """Clip to what a weighted sum of such labels can be."""
    if any(part.bounds is None for part in parts):
        return [*values]
    ends = [sorted(part.weight * bound for bound in part.bounds or ()) for part in parts]
    least, most = sum(low for low, _ in ends), sum(high for _, high in ends)
    return [min(max(value, least), most) for value in values]
