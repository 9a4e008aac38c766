"""Exact nearest rows by cosine similarity. Needs the extra ``search`` (faiss).

Vectors have unit length, so that the inner product is the cosine. faiss proposes candidates in float32; their scores
are then computed in float64, so that the answers to a query do not depend on the batch that it is in, on the number of
threads, or on faiss's order of equal scores.

Letters in names: N rows of the index, D dimensions, Q queries, K rows asked for, F candidates, L rows allowed.
"""

import numpy as np
import numpy.typing as npt

from bothways.errors import InvalidInput, MissingDependency
from bothways.retrieval.ranking import Ranking, Rows, Scores, best

Vectors = npt.NDArray[np.floating]

# Candidates fetched beyond K at first, and the factor for queries that need more.
_SPARE, _GROWTH = 16, 4
_ROWS_AT_ONCE = 8192
_UNIT_ROUNDOFF = 2.0**-24  # of float32


def nearest(
    queries_QD: npt.NDArray[np.float32], vectors_ND: npt.NDArray[np.float32], k: int, allowed_L: Rows | None = None
) -> list[Ranking]:
    """Return the ``k`` best rows of each query with their exact scores; only allowed rows, where those are given.

    Raises:
        MissingDependency: faiss is not installed.
    """
    if allowed_L is None:
        return _nearest_of_all(queries_QD, vectors_ND, min(k, len(vectors_ND)))
    if not len(allowed_L):
        nothing = Ranking(np.empty(0, np.int64), np.empty(0))
        return [nothing] * len(queries_QD)
    found = _nearest_of_all(queries_QD, vectors_ND[allowed_L], min(k, len(allowed_L)))
    return [Ranking(allowed_L[rows_K], scores_K) for rows_K, scores_K in found]


def cosines(query_D: npt.NDArray[np.float32], vectors_ND: npt.NDArray[np.float32], rows_F: Rows) -> Scores:
    """Return the scores of these rows in float64."""
    # A sum along each row by itself, unlike a matrix product, gives equal vectors equal scores.
    scores_F: Scores = (vectors_ND[rows_F].astype(np.float64) * query_D).sum(axis=1)
    return scores_F


def _nearest_of_all(queries_QD: npt.NDArray[np.float32], vectors_ND: npt.NDArray[np.float32], k: int) -> list[Ranking]:
    """Return the ``k`` nearest of all vectors for each query.

    With t the k-th best float32 score and g a bound on its error, k rows have an exact score of at least t - g, so
    no row of the exact top k has a float32 score below t - 2g. Candidates are fetched until their last is below.
    """
    try:
        import faiss
    except ImportError as error:
        raise MissingDependency.of("faiss", extra="search", purpose="searching an index") from error
    count, dimensions = vectors_ND.shape
    # Higham, Accuracy and Stability of Numerical Algorithms (2002), eq. 3.5, for vectors of unit length (2 units of
    # slack for their own rounding).
    error_bound = (dimensions + 2) * _UNIT_ROUNDOFF / (1 - (dimensions + 2) * _UNIT_ROUNDOFF)
    found: dict[int, Ranking] = {}
    pending = np.arange(len(queries_QD))
    fetch = min(count, k + _SPARE)
    while len(pending):
        scores_QF, rows_QF = faiss.knn(queries_QD[pending], vectors_ND, fetch, metric=faiss.METRIC_INNER_PRODUCT)
        settled = (
            scores_QF[:, -1] < scores_QF[:, k - 1] - 2 * error_bound if fetch < count else np.full(len(pending), True)
        )
        for place in np.flatnonzero(settled):
            rows_F = rows_QF[place]
            found[int(pending[place])] = best(rows_F, cosines(queries_QD[pending[place]], vectors_ND, rows_F), k)
        pending = pending[~settled]
        fetch = min(count, fetch * _GROWTH)
    return [found[query] for query in range(len(queries_QD))]


def checked_array(vectors: Vectors, dimensions: int, what: str) -> Vectors:
    """Return the vectors, of floating-point numbers and of this width.

    Raises:
        InvalidInput: They are not.
    """
    array = np.asarray(vectors)
    if not np.issubdtype(array.dtype, np.floating):
        raise InvalidInput(f"{what} must be floating-point numbers, got {array.dtype}.")
    if array.ndim != 2 or array.shape[1] != dimensions:
        raise InvalidInput(
            f"{what} must be an array of shape (rows, {dimensions}), the encoder's dimensions, got {array.shape}."
        )
    return array


def unit_rows(vectors_ND: Vectors, what: str, start: int) -> npt.NDArray[np.float32]:
    """Return a float32 copy with rows of unit length, computed in float64 a block at a time.

    Raises:
        InvalidInput: A vector is zero or not finite; the message calls it ``what`` and counts from ``start``.
    """
    unit_ND = np.empty(vectors_ND.shape, dtype=np.float32)
    for first in range(0, len(vectors_ND), _ROWS_AT_ONCE):
        block = vectors_ND[first : first + _ROWS_AT_ONCE].astype(np.float64)
        # Dividing by the largest part first keeps the squares of huge and of tiny numbers in range.
        largest = np.abs(block).max(axis=1, keepdims=True, initial=0.0)
        for place in np.flatnonzero(~(np.isfinite(largest) & (largest > 0))[:, 0]):
            problem = "is all zeros, so it has no direction" if largest[place, 0] == 0 else "holds NaN or infinity"
            raise InvalidInput(f"{what} {start + first + place} (counted from 0) {problem}. Check its text and model.")
        block /= largest
        block /= np.sqrt((block * block).sum(axis=1, keepdims=True))
        unit_ND[first : first + _ROWS_AT_ONCE] = block
    return unit_ND
