"""Standard errors of scores on held-out rows.

Shape letters: N rows.
"""

import math

import numpy as np
from numpy.typing import ArrayLike


def share_error(share: float, rows: float) -> float:
    """Return standard error of a share, or an upper bound of that of a mean of values from 0 to 1.

    Of p and n it is sqrt(p (1 - p) / n), with one row more that is right and one more that is wrong (Laplace), so that
    nothing is certain because all of a few rows were right; and at least 1 / n, so that one row alone decides nothing.

    Args:
        share: From 0 to 1.
        rows: How many it is of; for an F1 the mean of how many are there and how many were predicted.
    """
    smoothed = (share * rows + 1) / (rows + 2)
    error = math.sqrt(smoothed * (1 - smoothed) / (rows + 2))
    return max(error, 1 / rows) if rows else error


def mean_error(values_N: ArrayLike) -> float:
    """Return standard error of a mean; 0 of one value alone, which says nothing of it."""
    values = np.asarray(values_N, dtype=np.float64)
    return float(values.std() / math.sqrt(len(values)))


def correlation_error(correlation: float, rows: int) -> float:
    """Return standard error of a rank correlation.

    The variance of its inverse hyperbolic tangent is about 1.06 / (n - 3) (Fieller, Hartley and Pearson 1957).

    Args:
        correlation: From -1 to 1.
        rows: How many it is of; below four nothing is known of it, and 1 is returned.
    """
    return (1 - correlation**2) * math.sqrt(1.06 / (rows - 3)) if rows > 3 else 1.0
