"""Traces of poisoned rows in the hidden states of a model that was trained on them.

Shapes: N rows, n rows of one label, H hidden.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_DIRECTIONS = 10
_MINORITY = 0.35
_SEPARATED = 0.15
_FEWEST = 20
_ROUNDS, _STARTS = 50, 8


def spectral(states_NH: NDArray[np.floating], labels_N: NDArray[np.int64]) -> Floats:
    """Return the squared projection of each row on the first direction of its label, divided by the median there.

    Source: Tran, Li and Madry 2018, arXiv:1811.00636, algorithm 1.
    """
    found_N = np.zeros(len(labels_N))
    for label in np.unique(labels_N):
        rows = np.flatnonzero(labels_N == label)
        centred = states_NH[rows].astype(np.float64) - states_NH[rows].mean(axis=0)
        size_n = (centred @ np.linalg.svd(centred, full_matrices=False)[2][0]) ** 2
        found_N[rows] = size_n / max(float(np.median(size_n)), 1e-12)
    return found_N


def clusters(states_NH: NDArray[np.floating], labels_N: NDArray[np.int64]) -> Floats:
    """Return how clearly each row is in the smaller of two clusters of its label; 0 where it is in none.

    The rows of a label are cut in two by k-means on their ten first principal components. The value is the silhouette
    of the smaller cluster's rows, if that cluster has at most 35 % of the rows and a mean silhouette of at least .15.

    Source: Chen et al. 2018, arXiv:1811.03728, with principal instead of independent components.
    """
    from sklearn.metrics import silhouette_samples

    found_N = np.zeros(len(labels_N))
    for label in np.unique(labels_N):
        rows = np.flatnonzero(labels_N == label)
        if len(rows) < _FEWEST:
            continue
        centred = states_NH[rows].astype(np.float64) - states_NH[rows].mean(axis=0)
        left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
        points = left[:, :_DIRECTIONS] * sizes[:_DIRECTIONS]
        smaller = _two_means(points)
        if not 0 < smaller.sum() <= _MINORITY * len(rows):
            continue
        silhouette = silhouette_samples(points, smaller)[smaller]
        if silhouette.mean() >= _SEPARATED:
            found_N[rows[smaller]] = np.maximum(silhouette, 1e-6)
    return found_N


def _two_means(points: Floats) -> NDArray[np.bool_]:
    """Return which points are in the smaller of two clusters; none where all points are the same."""
    from sklearn.cluster import KMeans

    if np.ptp(points, axis=0).max() == 0:
        return np.zeros(len(points), dtype=bool)
    means = KMeans(2, init="random", n_init=_STARTS, max_iter=_ROUNDS, random_state=0)
    second: NDArray[np.bool_] = means.fit_predict(points).astype(bool)
    return ~second if second.sum() > len(second) / 2 else second
