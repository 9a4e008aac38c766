"""Prediction-powered quantiles (Angelopoulos et al. 2023, algorithm 2).

At each value the rectified distribution function is a prediction-powered mean of the labels that are at most that
value; the interval holds the values at which it could be the wanted probability.

Shape letters: n labelled rows, N others, G values of the grid.
"""

import numpy as np

from bothways.choices import PowerCorrection, PpiMethod
from bothways.errors import InvalidInput
from bothways.evaluation.bootstrap import LEVEL
from bothways.evaluation.inputs import FloatArray
from bothways.evaluation.prediction_powered.checks import estimate_warnings
from bothways.evaluation.prediction_powered.estimates import PoweredEstimate, check_method, gain
from bothways.evaluation.prediction_powered.located import Ends, locate, t_quantile
from bothways.evaluation.prediction_powered.samples import Moments, Sample


def estimate_quantile(
    sample: Sample,
    probability: float,
    *,
    method: PpiMethod = "ppi++",
    level: float = LEVEL,
    correction: PowerCorrection = "small-sample",
) -> PoweredEstimate:
    """Estimate the value that a share ``probability`` of the labels does not exceed.

    Args:
        sample: Labelled rows, drawn at random, and judged rows, with scores on the scale of the labels.
        probability: Between 0 and 1; 0.5 is the median.
        method: ``ppi++`` with a lambda for each value of the grid, ``ppi`` or ``classical``.
        level: Share of such intervals that hold the truth.
        correction: As for `estimate_mean`.

    Returns:
        The estimate; its ends are values of the data. ``power`` and ``effective_labels`` are those of the distribution
        function at the estimate, ``standard_error`` is half the width divided by the quantile of t.

    Raises:
        InvalidInput: a probability or level not between 0 and 1, ``bootstrap``, or ``ppi`` without unlabelled rows.
    """
    if not 0 < probability < 1:
        raise InvalidInput(f"probability: expected a number between 0 and 1, such as 0.5, got {probability}")
    if method == "bootstrap":
        raise InvalidInput("method: expected 'ppi++', 'ppi' or 'classical' for a quantile, got 'bootstrap'")
    check_method(method, sample)
    judge_scores = (sample.judge_scores, sample.unlabelled_judge_scores) if method != "classical" else ()
    grid_G = np.unique(np.concatenate([sample.labels, *judge_scores]))
    moments, ends = _moments_at_most(sample, grid_G), Ends(0.0, 1.0, 0.0, 1.0)
    located = locate(moments, ends, method=method, correction=correction)
    # Of values that are as good but for rounding, the least.
    best = int(np.argmin(np.round(np.abs(located.value - probability), 12)))
    low_G, high_G = located.interval(level)
    kept = [best, *np.flatnonzero((low_G <= probability) & (probability <= high_G))]
    low, high = grid_G[[min(kept), max(kept)]]
    classical = locate(moments, ends, method="classical", correction=correction)
    degrees = float(located.degrees)
    return PoweredEstimate(
        value=float(grid_G[best]),
        low=float(low),
        high=float(high),
        level=level,
        method=method,
        labels=len(sample.labels),
        unlabelled=len(sample.unlabelled_judge_scores),
        power=float(located.power[best]),
        standard_error=float(high - low) / 2 / float(t_quantile(level, degrees)),
        degrees=degrees,
        effective_labels=len(sample.labels) * gain(float(classical.variance[best]), float(located.variance[best])),
        warnings=tuple(estimate_warnings(sample, name="", method=method, correction=correction, bounded=True)),
    )


def _moments_at_most(sample: Sample, grid_G: FloatArray) -> Moments:
    """Moments of the indicators of being at most each value of the grid."""

    def share(values: FloatArray) -> FloatArray:
        if not len(values):
            return np.zeros(len(grid_G))
        shares: FloatArray = np.searchsorted(np.sort(values), grid_G, side="right") / len(values)
        return shares

    label_G, judge_G, other_G = share(sample.labels), share(sample.judge_scores), share(sample.unlabelled_judge_scores)
    both_G = share(np.maximum(sample.labels, sample.judge_scores))
    return Moments(
        labels=len(sample.labels),
        unlabelled=len(sample.unlabelled_judge_scores),
        label_mean=label_G,
        judge_mean=judge_G,
        label_variance=label_G * (1 - label_G),
        judge_variance=judge_G * (1 - judge_G),
        covariance=both_G - label_G * judge_G,
        unlabelled_mean=other_G,
        unlabelled_variance=other_G * (1 - other_G),
    )
