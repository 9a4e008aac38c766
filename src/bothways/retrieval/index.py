"""An index of texts: their sentence embeddings and their words, to search by either or by both.

Searching needs the extra ``search`` (faiss, bm25s, PyStemmer). In every mode the hits of a query depend neither on the
other queries of the call nor on the number of threads, and rows of equal score come in the order of the index.

Letters in names: N rows of the index, D dimensions, Q queries, K hits per query.
"""

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bothways.errors import InvalidInput
from bothways.retrieval.contents import EncoderIdentity, IndexContents, RowBatch, SourceColumns, collect, with_rows
from bothways.retrieval.dense import DenseRetriever, Vectors, comparable_vectors
from bothways.retrieval.index_files import read_index, write_index
from bothways.retrieval.lexical import DEFAULT_LANGUAGE, LexicalIndex, Passage, check_available
from bothways.retrieval.ranking import (
    Choice,
    Fields,
    Filter,
    Hit,
    Hybrid,
    HybridRetriever,
    QueriesT,
    Ranking,
    Retrievers,
    allowed_rows,
    checked_k,
)
from bothways.tasks.embedding.representation import DenseVectors

_HYBRID = Hybrid()


class VectorStore(Protocol):
    """Texts with their vectors, ids and fields, wherever they are stored: `SearchIndex` or `PostgresIndex`."""

    def __len__(self) -> int: ...

    @property
    def encoder(self) -> EncoderIdentity:
        """The identity of the encoder that made the vectors."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The id of each row."""

    @property
    def field_names(self) -> tuple[str, ...]:
        """The names of the fields that are stored with the texts."""

    @property
    def source(self) -> SourceColumns | None:
        """The columns of the rows that the texts were read from; None if unknown."""

    @property
    def language(self) -> str | None:
        """The language of lexical search; None for words without stemming."""

    @property
    def lexical_score(self) -> str:
        """The name of the score of lexical search, such as ``BM25``."""

    def texts_of(self, ids: Collection[str]) -> dict[str, str]:
        """Return the texts of the rows that have these ids, by id; other ids are left out."""

    def add_batches(self, batches: Iterable[RowBatch]) -> None:
        """Add the rows of several batches at the end."""

    def delete(self, ids: Iterable[str]) -> None:
        """Delete rows by their ids."""

    def search(
        self, queries_QD: DenseVectors | Vectors, k: int, *, filters: Sequence[Filter] = (), exact: bool = False
    ) -> list[list[Hit]]:
        """Return the ``k`` nearest texts of each query, best first; equal scores in the order of the rows.

        Args:
            queries_QD: Query vectors from the index's encoder; for ``cosine`` they are scaled to unit length.
            k: Hits for each query; fewer if fewer texts pass the filters.
            filters: Conditions that a text must meet, all of them.
            exact: As for `Dense`.

        Raises:
            InvalidInput: ``k`` is below 1, the width is not the index's, a query is not finite or (for ``cosine``) all
                zeros, or a filter names a field that the index does not have; or the table of the index was built again
                since it was opened.
            MissingDependency: faiss is not installed, for an index in files.
            StoreUnavailable: The database of the index cannot be reached.
        """
        found = self._retrieve(
            lambda rows: rows.dense(exact=exact), self._comparable(queries_QD), checked_k(k), filters
        )
        if self.encoder.similarity == "dot":
            return found
        # By rounding, the cosine of a vector with itself may exceed 1.
        return [[replace(hit, score=min(max(hit.score, -1.0), 1.0)) for hit in hits] for hits in found]

    def search_lexical(self, queries: Sequence[str], k: int, *, filters: Sequence[Filter] = ()) -> list[list[Hit]]:
        """Return the ``k`` best texts of each query by their words; texts without a word of the query are left out.

        Raises:
            InvalidInput: ``k`` is below 1, or a filter names a field that the index does not have.
            MissingDependency: bm25s or PyStemmer is not installed, for an index in files.
            StoreUnavailable: The database of the index cannot be reached.
        """
        return self._retrieve(lambda rows: rows.lexical, queries, checked_k(k), filters)

    def search_hybrid(
        self,
        queries: Sequence[str],
        queries_QD: DenseVectors | Vectors,
        k: int,
        *,
        mode: Hybrid = _HYBRID,
        filters: Sequence[Filter] = (),
    ) -> list[list[Hit]]:
        """Return the ``k`` best texts of each query by a combination of both scores.

        Args:
            queries: The texts of the queries.
            queries_QD: Their vectors.
            k: As for ``search``.
            mode: The rule that combines both scores.
            filters: As for ``search``.

        Raises:
            InvalidInput: As for ``search``, or the numbers of vectors and queries differ.
            MissingDependency: faiss, bm25s or PyStemmer is not installed, for an index in files.
            StoreUnavailable: The database of the index cannot be reached.
        """
        dense = self._comparable(queries_QD)
        if len(dense) != len(queries):
            raise InvalidInput(f"expected a vector for each query, got {len(dense)} for {len(queries)}.")

        def hybrid(rows: Retrievers) -> HybridRetriever:
            return HybridRetriever(rows.dense(exact=mode.exact), rows.lexical, mode)

        return self._retrieve(hybrid, (dense, queries), checked_k(k), filters)

    def passage(self, query: str, text: str, *, width: int = 200) -> Passage:
        """Return the passage of a hit's text whose words of the query have the highest total rarity (IDF).

        Args:
            query: The query; its words are marked in the passage.
            text: The text of a hit.
            width: Maximum number of characters.

        Raises:
            MissingDependency: bm25s or PyStemmer is not installed, for an index in files.
            StoreUnavailable: The database of the index cannot be reached.
        """

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the index as a folder, whole or not at all: a process killed at any moment leaves the previous index.

        Raises:
            OutputExists: The folder exists and ``overwrite`` is false, or it holds something other than an index.
            OutOfDisk: The disk is full; nothing was left behind.
            MissingDependency: The extra ``search`` is not installed.
        """

    def _comparable(self, queries_QD: DenseVectors | Vectors) -> DenseVectors:
        encoder = self.encoder
        return comparable_vectors(queries_QD, encoder.dimensions, "query", similarity=encoder.similarity)

    def _retrieve(
        self, chosen: Choice[QueriesT], queries: QueriesT, k: int, filters: Sequence[Filter]
    ) -> list[list[Hit]]:
        """Return the hits of the retriever that is chosen of those of the rows at one moment."""
        ...


class _Snapshot:
    """The rows of one moment with their retrievers; a search keeps to one, whatever other threads change meanwhile."""

    def __init__(self, contents: IndexContents[DenseVectors]) -> None:
        self.contents = contents
        self._dense = DenseRetriever(contents.documents, contents.encoder.similarity)

    def dense(self, *, exact: bool) -> DenseRetriever:
        """Return the retriever by meaning, which is always exact."""
        del exact
        return self._dense

    @cached_property
    def lexical(self) -> LexicalIndex:
        """The index of the words, built when a search needs it."""
        return self.contents.lexical or LexicalIndex.build(self.contents.texts, self.contents.language)

    def hits(self, ranking: Ranking) -> list[Hit]:
        """Return the rows of a ranking as hits."""
        ids, texts, columns = self.contents.ids, self.contents.texts, self.contents.columns
        return [
            Hit(ids[row], texts[row], float(score), rank, {name: column[row] for name, column in columns.items()})
            for rank, (row, score) in enumerate(zip(*ranking, strict=True), start=1)
        ]


class SearchIndex(VectorStore):
    """Texts with their vectors, ids and fields, and the identity of the encoder that made the vectors.

    Several threads may search while one changes the index: each search sees the rows of one moment.
    """

    def __init__(self, contents: IndexContents[DenseVectors]) -> None:
        self._snapshot = _Snapshot(contents)

    @property
    def _contents(self) -> IndexContents[DenseVectors]:
        return self._snapshot.contents

    @classmethod
    def build(
        cls,
        vectors_ND: DenseVectors | Vectors,
        *,
        texts: Sequence[str],
        ids: Sequence[str] | None = None,
        fields: Sequence[Fields] | None = None,
        encoder: EncoderIdentity,
        language: str | None = DEFAULT_LANGUAGE,
    ) -> "SearchIndex":
        """Index one array of vectors, which are copied and, for the similarity ``cosine``, scaled to unit length.

        Args:
            vectors_ND: One row for each text, as an array or as returned by an embedder.
            texts: The texts, for lexical search and to be shown in hits.
            ids: A unique id for each text. Default: its position in ``texts``: ``"0"``, ``"1"``, ...
            fields: Values to store with each text, for filters; the same field names for all texts.
            encoder: The identity of the encoder that made the vectors; its ``similarity`` is that of the index.
            language: The language of the stemmer for lexical search; None indexes words without stemming.

        Raises:
            InvalidInput: There are no texts, counts or widths differ, an id occurs twice, a vector is zero (for
                ``cosine``) or not finite, fields are unusable, the similarity is neither ``cosine`` nor ``dot``, or
                there is no stemmer for the language.
        """
        batch = RowBatch(vectors_ND, texts, ids, fields)
        return cls.build_from_batches([batch], encoder=encoder, language=language)

    @classmethod
    def build_from_batches(
        cls,
        batches: Iterable[RowBatch],
        *,
        encoder: EncoderIdentity,
        language: str | None = DEFAULT_LANGUAGE,
        source: SourceColumns | None = None,
    ) -> "SearchIndex":
        """Index batches of rows, which may be a stream; there is one copy of the corpus in memory.

        Args:
            batches: The rows.
            encoder: The identity of the encoder that made the vectors.
            language: As for ``build``.
            source: The columns of the rows that the texts were read from, if known.

        Raises:
            InvalidInput: As for ``build``.
            MissingDependency: The packages for lexical search are not installed.
        """
        encoder.check_similarity()
        check_available(language)
        return cls(collect(batches, encoder, language, source=source))

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "SearchIndex":
        """Open a saved index: its arrays are memory-mapped, and its checksums are verified.

        Raises:
            UnknownModel: The folder does not exist, or is not a search index.
            CorruptCheckpoint: A file is missing, altered or truncated, or of an unknown format version.
        """
        return cls(read_index(Path(folder)))

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        now = self._snapshot
        write_index(Path(folder), replace(now.contents, lexical=now.lexical), overwrite=overwrite)

    def __len__(self) -> int:
        return len(self._contents.ids)

    @property
    def encoder(self) -> EncoderIdentity:
        return self._contents.encoder

    @property
    def ids(self) -> tuple[str, ...]:
        return self._contents.ids

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of each row."""
        return self._contents.texts

    def texts_of(self, ids: Collection[str]) -> dict[str, str]:
        wanted, contents = set(ids), self._contents
        return {id_: text for id_, text in zip(contents.ids, contents.texts, strict=True) if id_ in wanted}

    @property
    def field_names(self) -> tuple[str, ...]:
        return tuple(self._contents.columns)

    @property
    def source(self) -> SourceColumns | None:
        return self._contents.source

    @property
    def language(self) -> str | None:
        """The language of the stemmer; None for words without stemming."""
        return self._contents.language

    @property
    def lexical_score(self) -> str:
        return "BM25"

    @property
    def vectors_ND(self) -> npt.NDArray[np.floating]:
        """The vectors, ``(N, D)`` float32, for ``cosine`` of unit length; do not modify them."""
        return self._contents.documents.vectors_ND

    def add(
        self,
        vectors_ND: DenseVectors | Vectors,
        *,
        texts: Sequence[str],
        ids: Sequence[str] | None = None,
        fields: Sequence[Fields] | None = None,
    ) -> None:
        """Add rows at the end. The next ``save`` changes the index on disk.

        Args:
            vectors_ND: As for ``build``, from the same encoder.
            texts: As for ``build``.
            ids: As for ``build``. Default: consecutive numbers above the highest numeric id.
            fields: As for ``build``, with the field names of the index.

        Raises:
            InvalidInput: As for ``build``, or an id is already in the index, or the fields differ from the index's. The
                index stays as it was.
        """
        self.add_batches([RowBatch(vectors_ND, texts, ids, fields)])

    def add_batches(self, batches: Iterable[RowBatch]) -> None:
        """Add the rows of several batches at the end, see ``add``.

        Raises:
            InvalidInput: As for ``add``.
        """
        old = self._contents
        new = collect(batches, old.encoder, old.language, first_number=old.next_number())
        self._snapshot = _Snapshot(with_rows(old, new))

    def delete(self, ids: Iterable[str]) -> None:
        """Delete rows by their ids. The next ``save`` changes the index on disk.

        Raises:
            InvalidInput: The index has no such id, or no row would be left; the index stays as it was.
        """
        self._snapshot = _Snapshot(self._contents.without_rows(ids))

    def passage(self, query: str, text: str, *, width: int = 200) -> Passage:
        return self._snapshot.lexical.passage(query, text, width=width)

    def _retrieve(
        self, chosen: Choice[QueriesT], queries: QueriesT, k: int, filters: Sequence[Filter]
    ) -> list[list[Hit]]:
        now = self._snapshot
        allowed_L = allowed_rows(filters, now.contents.columns)
        return [now.hits(found.ranking) for found in chosen(now).retrieve(queries, k, allowed_L)]
