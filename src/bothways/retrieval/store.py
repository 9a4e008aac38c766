"""Places of an index: a folder, or a table of a PostgreSQL database, behind one protocol.

An address is the path of a folder, or ``postgresql://user@host:port/database#table``.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bothways.lazy import imported
from bothways.retrieval.address import is_database
from bothways.retrieval.contents import EncoderIdentity, RowBatch, SourceColumns
from bothways.retrieval.index import SearchIndex, VectorStore
from bothways.retrieval.index_files import check_index_free, locked, read_header, updating
from bothways.retrieval.lexical import DEFAULT_LANGUAGE, check_available

if TYPE_CHECKING:
    from bothways.retrieval.postgres.index import PostgresIndex

Address = str | os.PathLike[str]


class IndexFacts(NamedTuple):
    """The facts of an index."""

    texts: int  # their number
    encoder: EncoderIdentity
    fields: tuple[str, ...]  # names of the fields
    language: str | None
    source: SourceColumns | None
    format_version: int


def open_index(address: Address) -> VectorStore:
    """Open an index.

    Args:
        address: The folder of the index, or the address of its table.

    Raises:
        UnknownModel: The folder, the database's table or the index in it does not exist.
        CorruptCheckpoint: The index is damaged, or of an unknown format version.
        InvalidInput: The address is none.
        StoreUnavailable: The database cannot be reached.
        MissingDependency: psycopg is not installed.
    """
    return _postgres().open(address) if is_database(address) else SearchIndex.open(address)


def check_language(address: Address, language: str | None) -> None:
    """Check that lexical search of an index in files has the language; a database is asked by `building`.

    Raises:
        InvalidInput: There is no stemmer for the language.
        MissingDependency: bm25s or PyStemmer is not installed.
    """
    if not is_database(address):
        check_available(language)


@contextmanager
def building(address: Address, language: str | None = DEFAULT_LANGUAGE, *, overwrite: bool = False) -> Iterator[None]:
    """Check that an index can be built at an address, and lock a folder that is being replaced meanwhile.

    Raises:
        OutputExists: There is an index and ``overwrite`` is false, or there is something other than an index.
        InvalidInput: Another process is updating the index, or a database does not have the language.
        StoreUnavailable: The database cannot be reached, or does not have pgvector.
    """
    if is_database(address):
        _postgres().check_buildable(address, language, overwrite=overwrite)
        yield
        return
    folder = Path(address)
    check_index_free(folder, overwrite=overwrite)
    # A simultaneous update would undo the new index, or be lost.
    with locked(folder) if folder.is_dir() else nullcontext():
        yield


def build_index(
    address: Address | None,
    batches: Iterable[RowBatch],
    *,
    encoder: EncoderIdentity,
    language: str | None = DEFAULT_LANGUAGE,
    source: SourceColumns | None = None,
    overwrite: bool = False,
) -> VectorStore:
    """Build an index from batches of rows at an address; in memory without one.

    Raises:
        InvalidInput: As for `SearchIndex.build`. All errors of `building` are raised too.
    """
    if is_database(address):
        return _postgres().build_from_batches(
            address, batches, encoder=encoder, language=language, source=source, overwrite=overwrite
        )
    index = SearchIndex.build_from_batches(batches, encoder=encoder, language=language, source=source)
    if address is not None:
        index.save(address, overwrite=overwrite)
    return index


@contextmanager
def changing(address: Address) -> Iterator[VectorStore]:
    """Open an index to add or delete rows; one in files is locked, and saved at the end unless there is an error.

    Raises:
        InvalidInput: Another process is updating the index. All errors of `open_index` are raised too.
    """
    if is_database(address):
        yield _postgres().open(address)
        return
    with updating(address):
        index = SearchIndex.open(address)
        yield index
        index.save(address, overwrite=True)


def facts_of(address: Address) -> IndexFacts:
    """Return the facts of an index; only the header of one in files is read.

    Raises:
        UnknownModel: As for `open_index`, whose other errors are raised too.
    """
    if is_database(address):
        index = _postgres().open(address)
        version = index.format_version
        return IndexFacts(len(index), index.encoder, index.field_names, index.language, index.source, version)
    header = read_header(Path(address))
    version = header.format_version
    return IndexFacts(header.count, header.encoder, header.fields, header.language, header.source, version)


def _postgres() -> "type[PostgresIndex]":
    kind: type[PostgresIndex] = imported("bothways.retrieval.postgres.index:PostgresIndex")
    return kind
