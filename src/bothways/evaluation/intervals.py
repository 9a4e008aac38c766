"""Percentile bootstrap intervals (Efron and Tibshirani 1993, chapter 13) in bounded memory, and standard errors.

A resample is not a list of rows but the number of times each row is drawn, ``counts_RN``. A statistic computes many
resamples at once from those counts; the estimate itself is the statistic with every count at 1::

    mean, = bootstrap_estimates(lambda counts_RN: (counts_RN @ values_N / n)[:, None], rows=n)

Two models on the same rows are compared by a statistic that returns the difference of their scores.

If all rows are right, all rows of every resample are right too, and the percentiles would claim certainty. So a share
of 1, or a share that is 0 in every resample, gets the bound of its exact interval (Clopper and Pearson 1934) instead:
at 95 %, ``0.025 ** (1 / n)`` with n rows, which is 0.94 for 60 of 60. It is exact only for the share of right rows; for
scores such as F1 it merely reflects the number of rows. All other intervals, also those of differences, are the
percentiles.

Shape letters: N rows, R resamples, K statistics.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bothways.errors import InvalidInput
from bothways.evaluation.inputs import FloatArray

LEVEL = 0.95
CHUNK_CELLS = 1_000_000
"""Maximum number of counts in one chunk of resamples: an array of them takes 8 MB."""

Statistic = Callable[[FloatArray], FloatArray]
"""A function that takes ``counts_RN`` and returns ``values_RK``."""


@dataclass(frozen=True)
class Interval:
    """A confidence interval; a share ``level`` of such intervals contains the true value."""

    low: float
    high: float
    level: float = LEVEL


@dataclass(frozen=True)
class Estimate:
    """A statistic on the data, and the ends of its confidence interval."""

    value: float
    low: float
    high: float

    def named(self, name: str) -> dict[str, float]:
        """Return flat entries for a JSON object: ``name``, ``name_low`` and ``name_high``."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def check_draws(resamples: int, seed: int) -> None:
    """Check the number of resamples and the seed."""
    if resamples < 1:
        raise InvalidInput(f"bootstrap: expected at least 1 resample, got {resamples}")
    if seed < 0:
        raise InvalidInput(f"bootstrap: expected a seed of at least 0, got {seed}")


def resampled_counts(rows: int, *, resamples: int = 1000, seed: int = 0) -> Iterator[FloatArray]:
    """Draw bootstrap resamples of ``rows`` rows; yield how often each row was drawn (R, N), in chunks.

    The draws depend on the seed, but not on the size of the chunks.
    """
    if rows < 1:
        raise InvalidInput(f"bootstrap: expected at least 1 row, got {rows}")
    check_draws(resamples, seed)
    generator = np.random.default_rng(seed)
    per_chunk = max(1, CHUNK_CELLS // rows)
    for start in range(0, resamples, per_chunk):
        size = min(per_chunk, resamples - start)
        drawn_RN = generator.integers(0, rows, size=(size, rows))
        drawn_RN += np.arange(size)[:, None] * rows
        counts = np.bincount(drawn_RN.ravel(), minlength=size * rows)
        yield counts.reshape(size, rows).astype(np.float64)


def bootstrap_values(statistic: Statistic, rows: int, *, resamples: int = 1000, seed: int = 0) -> FloatArray:
    """Return the values of ``statistic`` in every resample: (R, K)."""
    chunks = resampled_counts(rows, resamples=resamples, seed=seed)
    return np.concatenate([statistic(counts_RN) for counts_RN in chunks])


def percentile_interval(values_R: FloatArray, level: float = LEVEL) -> Interval:
    """Return the interval that contains the central share ``level`` of the resampled values."""
    low, high = _percentiles(values_R, level)
    return Interval(float(low), float(high), level)


def percentile_estimates(
    value_K: FloatArray, values_RK: FloatArray, level: float = LEVEL, *, of_rows: ArrayLike = 0
) -> tuple[Estimate, ...]:
    """Return the statistics on the data, with the percentile intervals of their resampled values.

    Args:
        value_K: The statistics on the data.
        values_RK: The statistics in resamples.
        level: Nominal coverage of the intervals.
        of_rows: For a share of rows, or a score that is 1 if all rows are right, the number of these rows; 0 for other
            statistics, such as losses and differences. One number for each statistic (K,), or one for all.
    """
    low_K, high_K = _percentiles(values_RK, level)
    rows_K = np.broadcast_to(np.asarray(of_rows, dtype=np.float64), value_K.shape)
    # With 0 rows the exponent is 1 / inf = 0, and the bound does not change.
    least_K = ((1 - level) / 2) ** (1 / np.where(rows_K > 0, rows_K, np.inf))
    # Percentiles of a perfect score would be too low: in resamples without any of its rows, it is 0 by definition.
    flawless_K = (rows_K > 0) & np.isclose(value_K, 1, rtol=0, atol=1e-12)
    low_K, high_K = np.where(flawless_K, least_K, low_K), np.where(flawless_K, 1.0, high_K)
    high_K = np.where((values_RK == 0).all(axis=0), 1 - least_K, high_K)
    return tuple(
        Estimate(float(value), float(low), float(high)) for value, low, high in zip(value_K, low_K, high_K, strict=True)
    )


def bootstrap_estimates(
    statistic: Statistic,
    rows: int,
    *,
    resamples: int = 1000,
    level: float = LEVEL,
    seed: int = 0,
    of_rows: ArrayLike = 0,
) -> tuple[Estimate, ...]:
    """Return the K values of ``statistic`` on the data with percentile intervals; see `percentile_estimates`."""
    values_RK = bootstrap_values(statistic, rows, resamples=resamples, seed=seed)
    return percentile_estimates(statistic(np.ones((1, rows)))[0], values_RK, level, of_rows=of_rows)


def _percentiles(values: FloatArray, level: float) -> FloatArray:
    if not 0 < level < 1:
        raise InvalidInput(f"level: expected a probability between 0 and 1, such as 0.95, got {level}")
    tail = (1 - level) / 2
    return np.quantile(values, [tail, 1 - tail], axis=0)


def share_error(share: float, rows: float) -> float:
    """Return the standard error of a share of rows; it is an upper bound for a mean of values from 0 to 1.

    It is sqrt(p (1 - p) / n) with one right and one wrong row added (Laplace), so that a few rows that are all right do
    not count as certainty, and at least 1 / n, the effect of a single row. For an F1, ``rows`` is the mean of the
    numbers of true and of predicted rows.
    """
    smoothed = (share * rows + 1) / (rows + 2)
    error = math.sqrt(smoothed * (1 - smoothed) / (rows + 2))
    return max(error, 1 / rows) if rows else error


def mean_error(values_N: ArrayLike) -> float:
    """Return the standard error of a mean; 0 for a single value."""
    values = np.asarray(values_N, dtype=np.float64)
    return float(values.std() / math.sqrt(len(values)))


def correlation_error(correlation: float, rows: int) -> float:
    """Return the standard error of a rank correlation; 1 for fewer than four rows.

    The variance of its inverse hyperbolic tangent is about 1.06 / (n - 3) (Fieller, Hartley and Pearson 1957).
    """
    return (1 - correlation**2) * math.sqrt(1.06 / (rows - 3)) if rows > 3 else 1.0
