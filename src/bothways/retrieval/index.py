"""Exact search among sentence embeddings by cosine similarity. Searching needs the extra ``search`` (faiss).

Vectors are scaled to unit length, so that the inner product is the cosine. faiss proposes candidates in float32;
their scores are then computed in float64, so that the hits of a query do not depend on the batch that it is in, on
the number of threads, or on faiss's order of equal scores.

Letters in names: N rows of the index, D dimensions, Q queries, K hits asked for, F candidates fetched.
"""

import os
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bothways.errors import InvalidInput, MissingDependency
from bothways.retrieval.index_files import EncoderIdentity, IndexContents, read_index, write_index

Vectors = npt.NDArray[np.floating]
Batch = tuple[Vectors, Sequence[str], Sequence[str] | None]

# Candidates fetched beyond K at first, and the factor for queries that need more.
_SPARE, _GROWTH = 16, 4
_ROWS_AT_ONCE = 8192
_UNIT_ROUNDOFF = 2.0**-24  # of float32


@dataclass(frozen=True, slots=True)
class Hit:
    """A text found: its id, the text, its cosine similarity to the query, and its rank from 1."""

    id: str
    text: str
    score: float
    rank: int


class SearchIndex:
    """Texts, their unit-length vectors and ids, and the encoder that made the vectors."""

    def __init__(self, contents: IndexContents) -> None:
        self._contents = contents

    @classmethod
    def build(
        cls,
        vectors_ND: Vectors,
        *,
        texts: Sequence[str],
        ids: Sequence[str] | None = None,
        encoder: EncoderIdentity,
    ) -> "SearchIndex":
        """An index of one array of vectors; they are copied and scaled to unit length.

        Args:
            vectors_ND: One row for each text.
            texts: What a hit shows.
            ids: A name for each text, each different; by default its place in ``texts``: ``"0"``, ``"1"``, ...
            encoder: What made the vectors.

        Raises:
            InvalidInput: No texts, counts or widths that differ, an id twice, or a vector that is zero or not finite.
        """
        return cls.build_from_batches([(vectors_ND, texts, ids)], encoder=encoder)

    @classmethod
    def build_from_batches(cls, batches: Iterable[Batch], *, encoder: EncoderIdentity) -> "SearchIndex":
        """An index of ``(vectors, texts, ids)`` batches; a corpus is not held twice.

        Args:
            batches: Each as for ``build``; ids of None count on from the rows before.
            encoder: What made the vectors.

        Raises:
            InvalidInput: As for ``build``.
        """
        blocks: deque[npt.NDArray[np.float32]] = deque()
        ids: list[str] = []
        texts: list[str] = []
        for vectors, batch_texts, batch_ids in batches:
            start = len(texts)
            given = [str(start + place) for place in range(len(batch_texts))] if batch_ids is None else batch_ids
            array = _checked_array(vectors, encoder.dimensions, "vectors")
            if not len(array) == len(batch_texts) == len(given):
                raise InvalidInput(
                    f"expected as many vectors as texts and ids, got {len(array)} vectors, {len(batch_texts)} texts "
                    f"and {len(given)} ids."
                )
            blocks.append(_unit_rows(array, "vector", start))
            texts.extend(_checked_strings(batch_texts, "text", start))
            ids.extend(_checked_strings(given, "id", start))
        if not texts:
            raise InvalidInput("an index needs at least one text, got none.")
        _refuse_duplicates(ids)
        vectors_ND = _joined(blocks, len(texts), encoder.dimensions)
        return cls(IndexContents(vectors_ND, tuple(ids), tuple(texts), encoder))

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "SearchIndex":
        """Open a saved index: its vectors are memory-mapped, its checksums verified.

        Raises:
            UnknownModel: There is no such folder, or it is no search index.
            CorruptCheckpoint: A file is missing, altered or truncated, or of a format version that is not known.
        """
        return cls(read_index(Path(folder)))

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the index folder, whole or not at all.

        Raises:
            OutputExists: The folder is there and ``overwrite`` is false, or it holds something else than an index.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        write_index(Path(folder), self._contents, overwrite=overwrite)

    def __len__(self) -> int:
        return len(self._contents.ids)

    @property
    def encoder(self) -> EncoderIdentity:
        """What made the vectors."""
        return self._contents.encoder

    @property
    def ids(self) -> tuple[str, ...]:
        """The id of each row."""
        return self._contents.ids

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of each row."""
        return self._contents.texts

    @property
    def vectors_ND(self) -> npt.NDArray[np.float32]:
        """The unit-length vectors, ``(N, D)`` float32; not to be written to."""
        return self._contents.vectors_ND

    def check_encoder(self, encoder: EncoderIdentity) -> None:
        """Refuse to be searched with vectors of another model than the index was built with.

        The name is not compared: a model that was moved is still the same model.

        Raises:
            InvalidInput: Weights, pooling or dimensions differ.
        """
        built = self.encoder
        differences = [
            f"{field} is {theirs!r} instead of {ours!r}"
            for field, ours, theirs in (
                ("weights fingerprint", built.fingerprint, encoder.fingerprint),
                ("pooling", built.pooling, encoder.pooling),
                ("dimensions", built.dimensions, encoder.dimensions),
            )
            if ours != theirs
        ]
        if differences:
            raise InvalidInput(
                f"the index was built with the model {built.name!r}; {encoder.name!r} is another one: its "
                f"{', its '.join(differences)}. Search with the model of the index, or build the index again."
            )

    def search(self, queries_QD: Vectors, k: int) -> list[list[Hit]]:
        """The ``k`` nearest texts of each query, best first; equal scores in the order of the rows.

        Args:
            queries_QD: Query vectors of the index's encoder; they are scaled to unit length.
            k: Hits for each query; an index with fewer texts gives them all.

        Raises:
            InvalidInput: ``k`` below 1, another width than the index has, or a query that is zero or not finite.
            MissingDependency: faiss is not installed.
        """
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise InvalidInput(f"k must be a whole number of at least 1, got {k!r}.")
        array = _checked_array(queries_QD, self.encoder.dimensions, "queries")
        unit_QD = _unit_rows(array, "query", 0)
        return [self._hits(*found) for found in _nearest(unit_QD, self.vectors_ND, min(int(k), len(self)))]

    def _hits(self, rows_K: npt.NDArray[np.int64], scores_K: npt.NDArray[np.float64]) -> list[Hit]:
        # Rounding may carry the cosine of a vector with itself past 1.
        return [
            Hit(self.ids[row], self.texts[row], max(-1.0, min(1.0, float(score))), rank)
            for rank, (row, score) in enumerate(zip(rows_K, scores_K, strict=True), start=1)
        ]


def _nearest(
    queries_QD: npt.NDArray[np.float32], vectors_ND: npt.NDArray[np.float32], k: int
) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
    """Rows and exact scores of the ``k`` best of each query.

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
    found: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]] = {}
    pending = np.arange(len(queries_QD))
    fetch = min(count, k + _SPARE)
    while len(pending):
        scores_QF, rows_QF = faiss.knn(queries_QD[pending], vectors_ND, fetch, metric=faiss.METRIC_INNER_PRODUCT)
        settled = (
            scores_QF[:, -1] < scores_QF[:, k - 1] - 2 * error_bound if fetch < count else np.full(len(pending), True)
        )
        for place in np.flatnonzero(settled):
            found[int(pending[place])] = _ranked(queries_QD[pending[place]], vectors_ND, rows_QF[place], k)
        pending = pending[~settled]
        fetch = min(count, fetch * _GROWTH)
    return [found[query] for query in range(len(queries_QD))]


def _ranked(
    query_D: npt.NDArray[np.float32], vectors_ND: npt.NDArray[np.float32], rows_F: npt.NDArray[np.int64], k: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The best ``k`` of the candidate rows by float64 score; ties in the order of the rows."""
    # A sum along each row by itself, unlike a matrix product, gives equal vectors equal scores.
    scores_F = (vectors_ND[rows_F].astype(np.float64) * query_D).sum(axis=1)
    order = np.lexsort((rows_F, -scores_F))[:k]
    return rows_F[order], scores_F[order]


def _checked_array(vectors: Vectors, dimensions: int, what: str) -> Vectors:
    array = np.asarray(vectors)
    if not np.issubdtype(array.dtype, np.floating):
        raise InvalidInput(f"{what} must be floating-point numbers, got {array.dtype}.")
    if array.ndim != 2 or array.shape[1] != dimensions:
        raise InvalidInput(
            f"{what} must be an array of shape (rows, {dimensions}), the encoder's dimensions, got {array.shape}."
        )
    return array


def _unit_rows(vectors_ND: Vectors, what: str, start: int) -> npt.NDArray[np.float32]:
    """A float32 copy with rows of unit length, computed in float64 a block at a time."""
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


def _joined(blocks: deque[npt.NDArray[np.float32]], rows: int, dimensions: int) -> npt.NDArray[np.float32]:
    if len(blocks) == 1:
        return blocks.popleft()
    joined_ND = np.empty((rows, dimensions), dtype=np.float32)
    filled = 0
    while blocks:  # each block is let go as soon as it is copied
        block = blocks.popleft()
        joined_ND[filled : filled + len(block)] = block
        filled += len(block)
    return joined_ND


def _checked_strings(values: Sequence[str], what: str, start: int) -> list[str]:
    for place, value in enumerate(values, start=start):
        if not isinstance(value, str):
            raise InvalidInput(f"{what} {place} (counted from 0) must be a string, got {type(value).__name__}.")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidInput(
                f"{what} {place} (counted from 0) holds half of a surrogate pair, which UTF-8 cannot represent. "
                "Repair or drop it."
            ) from None
    return list(values)


def _refuse_duplicates(ids: list[str]) -> None:
    if len(set(ids)) < len(ids):
        first_row: dict[str, int] = {}
        for row, id_ in enumerate(ids):
            if id_ in first_row:
                raise InvalidInput(f"the id {id_!r} is that of rows {first_row[id_]} and {row}: ids must differ.")
            first_row[id_] = row
