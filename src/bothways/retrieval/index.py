"""An index of texts: their sentence embeddings and their words, to search by either or by both.

Searching needs the extra ``search`` (faiss, bm25s, PyStemmer). Whatever the mode, the hits of a query do not depend on
the batch that it is in or on the number of threads, and rows of equal score come in their order.

Letters in names: N rows of the index, D dimensions, Q queries, K hits asked for, F candidates.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bothways.errors import InvalidInput
from bothways.retrieval.dense import Vectors, checked_array, cosines, nearest, unit_rows
from bothways.retrieval.filters import Fields, Filter, allowed_rows
from bothways.retrieval.gathering import RowBatch, gather
from bothways.retrieval.hits import Hit
from bothways.retrieval.index_files import IndexContents, read_index, write_index
from bothways.retrieval.index_header import EncoderIdentity
from bothways.retrieval.lexical import DEFAULT_LANGUAGE, LexicalIndex, analyser, check_available, matches
from bothways.retrieval.modes import Dense, Hybrid, fused
from bothways.retrieval.passages import Passage, passage_of
from bothways.retrieval.ranking import Ranking, best
from bothways.retrieval.updates import with_rows, without_rows

_HYBRID = Hybrid()


class SearchIndex:
    """Texts, their unit-length vectors, ids and fields, and the encoder that made the vectors."""

    def __init__(self, contents: IndexContents, default_mode: Dense | Hybrid = _HYBRID) -> None:
        self._contents = contents
        self._default_mode = default_mode

    @classmethod
    def build(
        cls,
        vectors_ND: Vectors,
        *,
        texts: Sequence[str],
        ids: Sequence[str] | None = None,
        fields: Sequence[Fields] | None = None,
        encoder: EncoderIdentity,
        language: str | None = DEFAULT_LANGUAGE,
    ) -> "SearchIndex":
        """Return an index of one array of vectors; they are copied and scaled to unit length.

        Args:
            vectors_ND: One row for each text.
            texts: What a hit shows, and what lexical search reads.
            ids: A name for each text, each different; by default its place in ``texts``: ``"0"``, ``"1"``, ...
            fields: Values to keep with each text and to filter by, under the same names for all texts.
            encoder: What made the vectors.
            language: Of the stemmer of lexical search; None for words as they are.

        Raises:
            InvalidInput: No texts, counts or widths that differ, an id twice, a vector that is zero or not finite,
                unusable fields, or a language without a stemmer.
        """
        batch = RowBatch(vectors_ND, texts, ids, fields)
        return cls.build_from_batches([batch], encoder=encoder, language=language)

    @classmethod
    def build_from_batches(
        cls, batches: Iterable[RowBatch], *, encoder: EncoderIdentity, language: str | None = DEFAULT_LANGUAGE
    ) -> "SearchIndex":
        """Return an index of batches, which may come from a stream; a corpus is not held twice.

        Args:
            batches: The rows.
            encoder: What made the vectors.
            language: As for ``build``.

        Raises:
            InvalidInput: As for ``build``.
            MissingDependency: What lexical search needs is not installed.
        """
        check_available(language)
        vectors_ND, ids, texts, columns = gather(batches, encoder.dimensions)
        return cls(IndexContents(vectors_ND, ids, texts, encoder, columns, language))

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "SearchIndex":
        """Open a saved index: its arrays are memory-mapped, its checksums verified.

        Raises:
            UnknownModel: There is no such folder, or it is no search index.
            CorruptCheckpoint: A file is missing, altered or truncated, or of a format version that is not known.
        """
        contents = read_index(Path(folder))
        # Of an index without usable words, preparing them would take each process minutes for a large corpus.
        return cls(contents, Dense() if contents.lexical is None else _HYBRID)

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the index folder, whole or not at all: killed at any moment, it leaves the index that was there.

        Raises:
            OutputExists: The folder is there and ``overwrite`` is false, or it holds something else than an index.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        self._lexical()
        self._default_mode = _HYBRID
        write_index(Path(folder), self._contents, overwrite=overwrite)

    def __len__(self) -> int:
        return len(self._contents.ids)

    @property
    def default_mode(self) -> Dense | Hybrid:
        """The mode of a search that names none: hybrid.

        Dense for an index on disk whose words are not prepared as queries are cut (format versions 1 to 3); saved
        again, it is hybrid.
        """
        return self._default_mode

    @property
    def encoder(self) -> EncoderIdentity:
        """The encoder that made the vectors."""
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
    def field_names(self) -> tuple[str, ...]:
        """The fields that were kept with the texts."""
        return tuple(self._contents.columns)

    @property
    def vectors_ND(self) -> npt.NDArray[np.float32]:
        """The unit-length vectors, ``(N, D)`` float32; not to be written to."""
        return self._contents.vectors_ND

    def add(
        self,
        vectors_ND: Vectors,
        *,
        texts: Sequence[str],
        ids: Sequence[str] | None = None,
        fields: Sequence[Fields] | None = None,
    ) -> None:
        """Add rows behind those there are. What is on disk changes with the next ``save``.

        Args:
            vectors_ND: As for ``build``, of the same encoder.
            texts: As for ``build``.
            ids: As for ``build``; by default numbers on from the highest that is an id.
            fields: As for ``build``, under the names that the index has.

        Raises:
            InvalidInput: As for ``build``, an id that the index has, or other fields; the index is then as it was.
        """
        self.add_batches([RowBatch(vectors_ND, texts, ids, fields)])

    def add_batches(self, batches: Iterable[RowBatch]) -> None:
        """Add rows of batches, as ``add`` does.

        Raises:
            InvalidInput: As for ``add``.
        """
        self._contents = with_rows(self._contents, batches)

    def delete(self, ids: Iterable[str]) -> None:
        """Delete rows by their ids. What is on disk changes with the next ``save``.

        Raises:
            InvalidInput: The index has no such id, or nothing would be left; the index is then as it was.
        """
        self._contents = without_rows(self._contents, ids)

    def check_encoder(self, encoder: EncoderIdentity) -> None:
        """Refuse to be searched with vectors of another model than the index was built with.

        The name is not compared: a model that was moved is still the same model.

        Raises:
            InvalidInput: Weights, vocabulary, pooling or dimensions differ.
        """
        built = self.encoder
        differences = [
            f"{field} is {theirs!r} instead of {ours!r}"
            for field, ours, theirs in (
                ("weights fingerprint", built.fingerprint, encoder.fingerprint),
                ("pooling", built.pooling, encoder.pooling),
                ("dimensions", built.dimensions, encoder.dimensions),
                ("vocabulary", built.vocabulary, encoder.vocabulary),
            )
            # What an index or an identity does not know is None.
            if ours != theirs and None not in (ours, theirs)
        ]
        if differences:
            raise InvalidInput(
                f"the index was built with the model {built.name!r}; {encoder.name!r} is another one: its "
                f"{', its '.join(differences)}. Search with the model of the index, or build the index again."
            )

    def search(self, queries_QD: Vectors, k: int, *, filters: Sequence[Filter] = ()) -> list[list[Hit]]:
        """Return the ``k`` nearest texts of each query, best first; equal scores in the order of the rows.

        Args:
            queries_QD: Query vectors of the index's encoder; they are scaled to unit length.
            k: Hits for each query; fewer where fewer texts pass the filters.
            filters: What a text must pass, all of them.

        Raises:
            InvalidInput: ``k`` below 1, another width than the index has, a query that is zero or not finite, or a
                filter on a field that the index does not have.
            MissingDependency: faiss is not installed.
        """
        unit_QD = self._unit_queries(queries_QD)
        allowed_L = allowed_rows(filters, self._contents.columns)
        # Rounding may carry the cosine of a vector with itself past 1.
        return [
            self._hits(Ranking(rows_K, np.clip(scores_K, -1.0, 1.0)))
            for rows_K, scores_K in nearest(unit_QD, self.vectors_ND, _checked_count(k), allowed_L)
        ]

    def search_lexical(self, queries: Sequence[str], k: int, *, filters: Sequence[Filter] = ()) -> list[list[Hit]]:
        """Return the ``k`` best texts of each query by BM25; a text without a word of the query is no hit.

        Raises:
            InvalidInput: ``k`` below 1, or a filter on a field that the index does not have.
            MissingDependency: bm25s or PyStemmer is not installed.
        """
        count = _checked_count(k)
        allowed_L = allowed_rows(filters, self._contents.columns)
        return [self._hits(matches(self._lexical().scores(query), count, allowed_L)) for query in queries]

    def search_hybrid(
        self,
        queries: Sequence[str],
        queries_QD: Vectors,
        k: int,
        *,
        mode: Hybrid = _HYBRID,
        filters: Sequence[Filter] = (),
    ) -> list[list[Hit]]:
        """Return the ``k`` best texts of each query by cosine and BM25 together.

        Args:
            queries: The queries.
            queries_QD: Their vectors.
            k: As for ``search``.
            mode: How two scores become one.
            filters: As for ``search``.

        Raises:
            InvalidInput: As for ``search``, or another number of vectors than of queries.
            MissingDependency: faiss, bm25s or PyStemmer is not installed.
        """
        unit_QD = self._unit_queries(queries_QD)
        if len(unit_QD) != len(queries):
            raise InvalidInput(f"expected a vector for each query, got {len(unit_QD)} for {len(queries)}.")
        count = _checked_count(k)
        depth = max(mode.depth, count)
        allowed_L = allowed_rows(filters, self._contents.columns)
        found: list[list[Hit]] = []
        by_meaning = nearest(unit_QD, self.vectors_ND, depth, allowed_L)
        for query, query_D, near in zip(queries, unit_QD, by_meaning, strict=True):
            lexical_N = self._lexical().scores(query)
            rows_F = np.union1d(near.rows_K, matches(lexical_N, depth, allowed_L).rows_K)
            dense_F = cosines(query_D, self.vectors_ND, rows_F)
            found.append(self._hits(best(rows_F, fused(mode.fusion, dense_F, lexical_N[rows_F], depth), count)))
        return found

    def passage(self, query: str, text: str, *, width: int = 200) -> Passage:
        """Return the part of a text, about ``width`` characters, that shows best what a query has to do with it.

        Args:
            query: The query, whose words are marked.
            text: The text of a hit.
            width: Most characters.

        Raises:
            MissingDependency: bm25s or PyStemmer is not installed.
        """
        if self._contents.lexical is not None:
            return self._contents.lexical.passage(query, text, width=width)
        # Preparing all words of the index takes minutes for a large one: here they all weigh the same.
        terms_of = analyser(self._contents.language)
        return passage_of(text, dict.fromkeys(terms_of(query), 1.0), terms_of, width=width)

    def _unit_queries(self, queries_QD: Vectors) -> npt.NDArray[np.float32]:
        return unit_rows(checked_array(queries_QD, self.encoder.dimensions, "queries"), "query", 0)

    def _lexical(self) -> LexicalIndex:
        if self._contents.lexical is None:
            lexical = LexicalIndex.build(self.texts, self._contents.language)
            self._contents = replace(self._contents, lexical=lexical)
            return lexical
        return self._contents.lexical

    def _hits(self, ranking: Ranking) -> list[Hit]:
        columns = self._contents.columns
        return [
            Hit(
                self.ids[row],
                self.texts[row],
                float(score),
                rank,
                {name: column[row] for name, column in columns.items()},
            )
            for rank, (row, score) in enumerate(zip(*ranking, strict=True), start=1)
        ]


def _checked_count(k: int) -> int:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InvalidInput(f"k must be a whole number of at least 1, got {k!r}.")
    return int(k)
