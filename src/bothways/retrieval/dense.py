"""Dense retrieval: exact nearest rows by cosine similarity. Needs the extra ``search`` (faiss).

Vectors have unit length, so that the inner product is the cosine. faiss proposes candidates in float32; their scores
are then computed in float64, so that the hits of a query do not depend on the other queries of its batch, on the
number of threads, or on faiss's order of equal scores.

Letters in names: N rows of the index, D dimensions, Q queries, K requested rows, F candidates, L allowed rows.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from bothways.errors import InvalidInput, MissingDependency
from bothways.retrieval.ranking import Ranking, Retrieved, Rows, Scores, best
from bothways.tasks.embedding.representation import DenseVectors

Vectors = npt.NDArray[np.floating]

# Number of candidates beyond K at first, and the factor by which the total grows for queries that need more.
_SPARE, _GROWTH = 16, 4
_ROWS_AT_ONCE = 8192
_UNIT_ROUNDOFF = 2.0**-24  # of float32


class DenseRetriever:
    """A retriever by the cosine of query and row; their vectors must be float32 of unit length."""

    def __init__(self, documents: DenseVectors) -> None:
        self._vectors_ND = documents.vectors_ND

    def retrieve(self, queries: DenseVectors, k: int, allowed_L: Rows | None = None) -> Iterator[Retrieved]:
        """Yield the ``k`` best rows of each query with their exact scores; fewer if ``allowed_L`` has fewer."""
        searched_ND = self._vectors_ND if allowed_L is None else self._vectors_ND[allowed_L]
        count = min(k, len(searched_ND))
        if not count:
            rankings = [Ranking(np.empty(0, np.int64), np.empty(0))] * len(queries)
        else:
            rankings = _nearest(queries.vectors_ND, searched_ND, count)
        for query_D, ranking in zip(queries.vectors_ND, rankings, strict=True):
            rows_K = ranking.rows_K if allowed_L is None else allowed_L[ranking.rows_K]
            yield Retrieved(Ranking(rows_K, ranking.scores_K), partial(_cosines, query_D, self._vectors_ND))


def unit_vectors(vectors: DenseVectors | Vectors, dimensions: int, name: str, start: int = 0) -> DenseVectors:
    """Return a float32 copy with rows scaled to unit length, computed in float64 and in blocks.

    In error messages a vector is called ``name``, and the first one has the number ``start``.
    """
    array = vectors.vectors_ND if isinstance(vectors, DenseVectors) else np.asarray(vectors)
    what = "queries" if name == "query" else f"{name}s"
    if not np.issubdtype(array.dtype, np.floating):
        raise InvalidInput(f"{what} must be floating-point numbers, got {array.dtype}.")
    if array.ndim != 2 or array.shape[1] != dimensions:
        raise InvalidInput(
            f"{what} must be an array of shape (rows, {dimensions}), the encoder's dimensions, got {array.shape}."
        )
    unit_ND = np.empty(array.shape, dtype=np.float32)
    for first in range(0, len(array), _ROWS_AT_ONCE):
        block = array[first : first + _ROWS_AT_ONCE].astype(np.float64)
        # Dividing by the largest component first keeps the squares of huge and of tiny numbers in range.
        largest = np.abs(block).max(axis=1, keepdims=True, initial=0.0)
        for place in np.flatnonzero(~(np.isfinite(largest) & (largest > 0))[:, 0]):
            problem = "is all zeros, so it has no direction" if largest[place, 0] == 0 else "holds NaN or infinity"
            raise InvalidInput(f"{name} {start + first + place} (counted from 0) {problem}. Check its text and model.")
        block /= largest
        block /= np.sqrt((block * block).sum(axis=1, keepdims=True))
        unit_ND[first : first + _ROWS_AT_ONCE] = block
    return DenseVectors(unit_ND)


def _cosines(query_D: Vectors, vectors_ND: Vectors, rows_F: Rows) -> Scores:
    # Unlike a matrix product, a sum over each row gives equal vectors exactly equal scores.
    scores_F: Scores = (vectors_ND[rows_F].astype(np.float64) * query_D).sum(axis=1)
    return scores_F


def _nearest(queries_QD: Vectors, vectors_ND: Vectors, k: int) -> list[Ranking]:
    """Return the ``k`` nearest of all vectors for each query.

    With t the k-th best float32 score and g a bound on its error, k rows have an exact score of at least t - g, so
    no row of the exact top k has a float32 score below t - 2g. Fetching stops once the last candidate is below that.
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
        is_final = (
            scores_QF[:, -1] < scores_QF[:, k - 1] - 2 * error_bound if fetch < count else np.full(len(pending), True)
        )
        for place in np.flatnonzero(is_final):
            rows_F = rows_QF[place]
            found[int(pending[place])] = best(rows_F, _cosines(queries_QD[pending[place]], vectors_ND, rows_F), k)
        pending = pending[~is_final]
        fetch = min(count, fetch * _GROWTH)
    return [found[query] for query in range(len(queries_QD))]
