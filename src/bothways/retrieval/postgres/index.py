"""A search index in a table of PostgreSQL: dense by pgvector, lexical by the text search of the database."""

import os
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from bothways.retrieval.address import TableAddress
from bothways.retrieval.contents import (
    EncoderIdentity,
    RowBatch,
    SourceColumns,
    check_addable,
    check_deletable,
    checked_batches,
    refuse_string,
)
from bothways.retrieval.index import SearchIndex, VectorStore
from bothways.retrieval.lexical import DEFAULT_LANGUAGE, Passage
from bothways.retrieval.postgres import table as tables
from bothways.retrieval.postgres.database import Database
from bothways.retrieval.postgres.filters import condition_of
from bothways.retrieval.postgres.header import TableHeader, check_buildable, quoted
from bothways.retrieval.postgres.retrievers import TableRetrievers
from bothways.retrieval.postgres.rows import batches_of, hits_of, number_from, passage
from bothways.retrieval.postgres.session import IndexSession
from bothways.retrieval.postgres.words import storable, word_weights
from bothways.retrieval.ranking import Choice, Filter, Hit, QueriesT

if TYPE_CHECKING:
    from psycopg import Cursor

# The highest numeric id plus 1, which is the id of the next row added without an id.
_NEXT = "select coalesce(max(id::numeric), -1) + 1 from {} where id ~ '^[0-9]{{1,18}}$'"


class PostgresIndex(VectorStore):
    """Texts with their vectors, ids and fields in a table, and the identity of the encoder that made the vectors.

    Several threads may search at the same time. A search is one transaction, and sees the rows of one moment. Changes
    are transactions too: they are in the table as soon as a call returns. If the server ends a connection, a search
    opens another one and is done again.

    Args:
        session: The table and its database.
    """

    def __init__(self, session: IndexSession) -> None:
        self._session = session
        self._table = quoted(session.address)
        self._weights: tuple[str, dict[str, float]] = "", {}  # the query of the last passage, and of its words

    @classmethod
    def open(cls, address: str) -> "PostgresIndex":
        """Open the index in a table, such as ``postgresql://localhost/demo#docs``.

        Raises:
            InvalidInput: The address is none of a table.
            UnknownModel: There is no such table, or it is not a search index.
            CorruptCheckpoint: The comment on the table was altered, or is of an unknown format version.
            StoreUnavailable: The database cannot be reached.
            MissingDependency: psycopg is not installed.
        """
        return cls(IndexSession.open(TableAddress.parse(address)))

    @classmethod
    def check_buildable(cls, address: str, language: str | None, *, overwrite: bool = False) -> None:
        """Check that an index can be built as this table, before hours of embedding; errors are those of the build."""
        parsed = TableAddress.parse(address)
        Database(parsed).read(lambda cursor: check_buildable(cursor, parsed, language, overwrite=overwrite))

    @classmethod
    def build_from_batches(
        cls,
        address: str,
        batches: Iterable[RowBatch],
        *,
        encoder: EncoderIdentity,
        language: str | None = DEFAULT_LANGUAGE,
        source: SourceColumns | None = None,
        overwrite: bool = False,
    ) -> "PostgresIndex":
        """Write batches of rows, which may be a stream, into a new table, in one transaction.

        Args:
            address: The address of the table.
            batches: The rows.
            encoder: The identity of the encoder that made the vectors.
            language: The language of the text search, by PostgreSQL's name; None indexes words without stemming.
            source: The columns of the rows that the texts were read from, if known.
            overwrite: Replace the index of this name, which answers searches until the new one is complete.

        Raises:
            InvalidInput: As for `SearchIndex.build`, a string has a NUL character, or the text search does not have the
                language.
            OutputExists: The table exists and ``overwrite`` is false, or it is not a search index.
            StoreUnavailable: The database cannot be reached, or does not have pgvector.
            OutOfDisk: The disk of the database is full; nothing was written.
        """
        encoder.check_similarity()
        database = Database(TableAddress.parse(address))
        header = TableHeader(encoder=encoder, fields=(), language=language, source=source)
        with database.writing() as cursor:
            rows = checked_batches(batches, encoder)
            tables.build(cursor, database.address, header, rows, overwrite=overwrite)
        return cls.open(address)

    def __len__(self) -> int:
        return self._session.read(lambda cursor: number_from(cursor, f"select count(*) from {self._table}"))

    @property
    def encoder(self) -> EncoderIdentity:
        return self._session.header.encoder

    @property
    def field_names(self) -> tuple[str, ...]:
        return self._session.header.fields

    @property
    def source(self) -> SourceColumns | None:
        return self._session.header.source

    @property
    def language(self) -> str | None:
        """The language of the text search; None for words without stemming."""
        return self._session.header.language

    @property
    def ids(self) -> tuple[str, ...]:
        def read(cursor: "Cursor") -> tuple[str, ...]:
            cursor.execute(f"select id from {self._table} order by number")
            return tuple(id_ for (id_,) in cursor.fetchall())

        return self._session.read(read)

    @property
    def lexical_score(self) -> str:
        return "IDF x ts_rank"

    @property
    def format_version(self) -> int:
        """The version of the table's format."""
        return self._session.header.format_version

    def texts_of(self, ids: Collection[str]) -> dict[str, str]:

        def read(cursor: "Cursor") -> dict[str, str]:
            cursor.execute(f"select id, text from {self._table} where id = any(%s)", [storable(ids)])
            return dict(cursor.fetchall())

        return self._session.read(read)

    def add_batches(self, batches: Iterable[RowBatch]) -> None:
        """Add the rows of several batches at the end, in one transaction.

        Raises:
            InvalidInput: As for `SearchIndex.add`, a string has a NUL character, or another process is changing the
                index. The index stays as it was after this and after any other error.
            StoreUnavailable: The database cannot be reached.
            OutOfDisk: The disk of the database is full.
        """
        with self._session.changing() as cursor:
            first, start = number_from(cursor, _NEXT.format(self._table)), 0
            for batch in checked_batches(batches, self.encoder, first_number=first):
                cursor.execute(f"select id from {self._table} where id = any(%s)", [storable(batch.ids)])
                check_addable({id_ for (id_,) in cursor.fetchall()}, self.field_names, batch.columns)
                tables.copy_rows(cursor, self._session.address, batch, start)
                start += len(batch.ids)

    def delete(self, ids: Iterable[str]) -> None:
        """Delete rows by their ids, in one transaction.

        Raises:
            InvalidInput: The index has no such id, no row would be left, or another process is changing the index. The
                index stays as it was after this and after any other error.
            StoreUnavailable: The database cannot be reached.
        """
        gone = set(refuse_string(ids, "ids"))
        with self._session.changing() as cursor:
            cursor.execute(f"delete from {self._table} where id = any(%s) returning id", [storable(gone)])
            unknown = gone.difference(id_ for (id_,) in cursor.fetchall())
            check_deletable(unknown, number_from(cursor, f"select count(*) from {self._table}"))

    def passage(self, query: str, text: str, *, width: int = 200) -> Passage:
        return self._session.read(lambda cursor: self._passage(cursor, query, text, width))

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        def copied(cursor: "Cursor") -> SearchIndex:
            batches = batches_of(cursor, self._table, self.field_names, self.encoder.dimensions)
            return SearchIndex.build_from_batches(
                batches, encoder=self.encoder, language=self._session.header.language, source=self.source
            )

        self._session.read(copied).save(folder, overwrite=overwrite)

    def close(self) -> None:
        """Close the connections that no search is using; a later call opens one again."""
        self._session.close()

    def _retrieve(
        self, chosen: Choice[QueriesT], queries: QueriesT, k: int, filters: Sequence[Filter]
    ) -> list[list[Hit]]:
        header = self._session.header

        def found(cursor: "Cursor") -> list[list[Hit]]:
            condition = condition_of(cursor, self._table, filters, header.fields)
            rows = TableRetrievers(cursor, self._table, condition, header)
            rankings = [each.ranking for each in chosen(rows).retrieve(queries, k, None)]
            return hits_of(cursor, self._table, header.fields, rankings)

        return self._session.read(found)

    def _passage(self, cursor: "Cursor", query: str, text: str, width: int) -> Passage:
        configuration = self._session.header.configuration
        known, weights = self._weights  # other threads may set those of another query
        if known != query:
            weights = word_weights(cursor, self._table, configuration, query)
            self._weights = query, weights
        return passage(cursor, configuration, weights, text, width)
