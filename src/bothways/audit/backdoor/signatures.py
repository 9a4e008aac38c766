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
        silhouette = _silhouette(points, smaller)
        if silhouette.mean() >= _SEPARATED:
            found_N[rows[smaller]] = np.maximum(silhouette, 1e-6)
    return found_N


def _two_means(points: Floats) -> NDArray[np.bool_]:
    """Return which points are in the smaller of two clusters."""
    rng = np.random.default_rng(0)
    best, least = np.zeros(len(points), dtype=bool), np.inf
    for _ in range(_STARTS):
        centres = points[rng.choice(len(points), 2, replace=False)]
        for _ in range(_ROUNDS):
            distances = ((points[:, None] - centres[None]) ** 2).sum(axis=2)
            second = distances[:, 1] < distances[:, 0]
            if second.all() or not second.any():
                break
            moved = np.stack([points[~second].mean(axis=0), points[second].mean(axis=0)])
            if np.allclose(moved, centres):
                break
            centres = moved
        spread = float(distances.min(axis=1).sum())
        if spread < least:
            best, least = second, spread
    return ~best if best.sum() > len(best) / 2 else best


def _silhouette(points: Floats, smaller: NDArray[np.bool_]) -> Floats:
    """Return the silhouette of the smaller cluster's points (Rousseeuw 1987)."""
    inside, outside = points[smaller], points[~smaller]
    own = np.array([np.linalg.norm(inside - point, axis=1).sum() / max(1, len(inside) - 1) for point in inside])
    other = np.array([np.linalg.norm(outside - point, axis=1).mean() for point in inside])
    found: Floats = (other - own) / np.maximum(np.maximum(own, other), 1e-12)
    return found
