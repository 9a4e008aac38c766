"""Dense retrieval: exact nearest rows by inner product. Needs the extra ``search`` (faiss).

For the similarity ``cosine``, vectors have unit length, so that the inner product is the cosine; for ``dot`` they have
any length. faiss proposes candidates in float32; their scores are then computed in float64, so that the hits of a query
do not depend on the other queries of its batch, on the number of threads, or on faiss's order of equal scores.

Letters in names: N rows of the index, D dimensions, Q queries, K requested rows, F candidates, L allowed rows.
"""

import math
from collections.abc import Iterator
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from bothways.choices import SimilarityName
from bothways.errors import InvalidInput, MissingDependency
from bothways.retrieval.ranking import Ranking, Retrieved, Rows, Scores, best
from bothways.tasks.embedding.representation import DenseVectors

Vectors = npt.NDArray[np.floating]

# Number of candidates beyond K at first, and the factor by which the total grows for queries that need more.
_SPARE, _GROWTH = 16, 4
_ROWS_AT_ONCE = 8192
_UNIT_ROUNDOFF = 2.0**-24  # of float32
_LARGEST = float(np.finfo(np.float32).max)
# Binary exponents of a query's length, and of its product with the length of the longest row, in float32 arithmetic.
_QUERY_EXPONENT, _PRODUCT_EXPONENT = 60, 100


class DenseRetriever:
    """A retriever by the inner product of query and row, whose vectors must be those of `comparable_vectors`."""

    def __init__(self, documents: DenseVectors, similarity: SimilarityName) -> None:
        self.documents = documents
        self.similarity = similarity

    def retrieve(self, queries: DenseVectors, k: int, allowed_L: Rows | None = None) -> Iterator[Retrieved]:
        """Yield the ``k`` best rows of each query with their exact scores; fewer if ``allowed_L`` has fewer."""
        vectors_ND = self.documents.vectors_ND
        searched_ND = vectors_ND if allowed_L is None else vectors_ND[allowed_L]
        count = min(k, len(searched_ND))
        if not count:
            rankings = [Ranking(np.empty(0, np.int64), np.empty(0))] * len(queries)
        else:
            rankings = _nearest(queries.vectors_ND, searched_ND, count, self._longest)
        for query_D, ranking in zip(queries.vectors_ND, rankings, strict=True):
            rows_K = ranking.rows_K if allowed_L is None else allowed_L[ranking.rows_K]
            yield Retrieved(Ranking(rows_K, ranking.scores_K), partial(_products, query_D, vectors_ND))

    @cached_property
    def _longest(self) -> float | None:
        """The length of the longest row; None if all rows and queries have unit length."""
        if self.similarity == "cosine":
            return None
        vectors_ND = self.documents.vectors_ND
        starts = range(0, len(vectors_ND), _ROWS_AT_ONCE)
        return max(float(lengths(vectors_ND[start : start + _ROWS_AT_ONCE]).max()) for start in starts)


def comparable_vectors(
    vectors: DenseVectors | Vectors,
    dimensions: int,
    name: str,
    start: int = 0,
    *,
    similarity: SimilarityName = "cosine",
) -> DenseVectors:
    """Return a float32 copy of vectors to compare by their inner product.

    For ``cosine``, rows are scaled to unit length, in float64 and in blocks; for ``dot`` they stay as they are.
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
    copied_ND = np.empty(array.shape, dtype=np.float32)
    for first in range(0, len(array), _ROWS_AT_ONCE):
        block = array[first : first + _ROWS_AT_ONCE].astype(np.float64)
        largest = np.abs(block).max(axis=1, keepdims=True, initial=0.0)
        for place in np.flatnonzero(~_usable(largest, similarity)[:, 0]):
            raise InvalidInput(
                f"{name} {start + first + place} (counted from 0) {_problem(float(largest[place, 0]))}. Check its text "
                "and model."
            )
        if similarity == "cosine":
            # Dividing by the largest component first keeps the squares of huge and of tiny numbers in range.
            block /= largest
            block /= np.sqrt((block * block).sum(axis=1, keepdims=True))
        copied_ND[first : first + _ROWS_AT_ONCE] = block
    return DenseVectors(copied_ND)


def _usable(largest_N1: Scores, similarity: SimilarityName) -> npt.NDArray[np.bool_]:
    """Return True for rows whose largest component makes them usable: only a cosine needs a direction."""
    if similarity == "cosine":
        return np.isfinite(largest_N1) & (largest_N1 > 0)
    # Larger numbers would become infinite in float32.
    return np.less_equal(largest_N1, _LARGEST)


def _problem(largest: float) -> str:
    if largest == 0:
        return "is all zeros, so it has no direction"
    return f"has {largest:.2g}, which is beyond float32" if math.isfinite(largest) else "holds NaN or infinity"


def lengths(vectors_ND: Vectors) -> Scores:
    """Return the length of each vector in float64."""
    wide_ND = vectors_ND.astype(np.float64)  # squares of float32 numbers stay in its range
    lengths_N: Scores = np.sqrt((wide_ND * wide_ND).sum(axis=1))
    return lengths_N


def products(query_D: Vectors, vectors_FD: Vectors) -> Scores:
    """Return the inner products of a query and vectors in float64."""
    # Unlike a matrix product, a sum over each row gives equal vectors exactly equal scores.
    scores_F: Scores = (vectors_FD.astype(np.float64) * query_D).sum(axis=1)
    return scores_F


def relative_bound(dimensions: int) -> float:
    """Return a bound on the error of a float32 inner product, relative to the product of both lengths."""
    # Higham, Accuracy and Stability of Numerical Algorithms (2002), eq. 3.5 (2 units of slack for the rounding of unit
    # vectors, or of the lengths).
    return (dimensions + 2) * _UNIT_ROUNDOFF / (1 - (dimensions + 2) * _UNIT_ROUNDOFF)


def _products(query_D: Vectors, vectors_ND: Vectors, rows_F: Rows) -> Scores:
    return products(query_D, vectors_ND[rows_F])


def _nearest(queries_QD: Vectors, vectors_ND: Vectors, k: int, longest: float | None) -> list[Ranking]:
    """Return the ``k`` nearest of all vectors for each query; ``longest`` is None if all have unit length.

    With t the k-th best float32 score and g a bound on its error, k rows have an exact score of at least t - g, so
    no row of the exact top k has a float32 score below t - 2g. Fetching stops once the last candidate is below that.
    """
    try:
        import faiss
    except ImportError as error:
        raise MissingDependency.of("faiss", extra="search", purpose="searching an index") from error
    count, dimensions = vectors_ND.shape
    proposing_QD, bound_Q = queries_QD, np.full(len(queries_QD), relative_bound(dimensions))
    if longest is not None:
        proposing_QD = _in_range(queries_QD, longest)
        bound_Q = relative_bound(dimensions) * lengths(proposing_QD) * longest
    found: dict[int, Ranking] = {}
    pending = np.arange(len(queries_QD))
    fetch = min(count, k + _SPARE)
    while len(pending):
        scores_QF, rows_QF = faiss.knn(proposing_QD[pending], vectors_ND, fetch, metric=faiss.METRIC_INNER_PRODUCT)
        is_final = (
            scores_QF[:, -1] < scores_QF[:, k - 1] - 2 * bound_Q[pending]
            if fetch < count
            else np.full(len(pending), True)
        )
        for place in np.flatnonzero(is_final):
            rows_F = rows_QF[place]
            found[int(pending[place])] = best(rows_F, products(queries_QD[pending[place]], vectors_ND[rows_F]), k)
        pending = pending[~is_final]
        fetch = min(count, fetch * _GROWTH)
    return [found[query] for query in range(len(queries_QD))]


def _in_range(queries_QD: Vectors, longest: float) -> Vectors:
    """Scale each query by a power of two, which keeps the order of its scores.

    Products with rows up to the length ``longest`` then neither overflow float32 nor vanish in it.
    """
    with np.errstate(divide="ignore"):
        of_rows, of_queries_Q = np.log2(longest), np.log2(lengths(queries_QD))
    target = min(_PRODUCT_EXPONENT - of_rows, _QUERY_EXPONENT)
    shift_Q = np.where(np.isfinite(of_queries_Q), np.floor(target - of_queries_Q), 0.0)
    scaled_QD: Vectors = np.ldexp(queries_QD.astype(np.float64), shift_Q.astype(np.int64)[:, None]).astype(np.float32)
    return scaled_QD
