"""The comment on a table that is a search index, and what is checked before the table is read or built."""

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from bothways.errors import (
    CorruptCheckpoint,
    InvalidInput,
    OutputExists,
    StoreUnavailable,
    UnknownModel,
    did_you_mean,
)
from bothways.reading import parse_json
from bothways.retrieval.address import TableAddress
from bothways.retrieval.contents import EncoderIdentity, SourceColumns

if TYPE_CHECKING:
    from psycopg import Cursor

FORMAT = "bothways search table"
FORMAT_VERSION = 1
_PGVECTOR = (0, 8)  # the first version whose scans of an index go on until enough rows pass a filter
_WANTED = ".".join(map(str, _PGVECTOR))


class TableHeader(BaseModel):
    """The comment on a table that is a search index."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    encoder: EncoderIdentity
    fields: tuple[str, ...]
    language: str | None
    source: SourceColumns | None = None

    @property
    def configuration(self) -> str:
        """The text search configuration of the language."""
        return configuration_of(self.language)


def configuration_of(language: str | None) -> str:
    """Return the name of PostgreSQL's text search configuration for a language."""
    return f"pg_catalog.{language or 'simple'}"


def quoted(address: TableAddress) -> str:
    """Return the name of the table for a statement."""
    from psycopg.sql import Identifier

    parts = (address.table,) if address.schema is None else (address.schema, address.table)
    return Identifier(*parts).as_string()


def read_header(cursor: "Cursor", address: TableAddress) -> TableHeader:
    """Read and check the comment on a table.

    Raises:
        UnknownModel: There is no such table, or it is not a search index.
        CorruptCheckpoint: The comment was altered, or is of an unknown format version.
    """
    comment = _comment(cursor, address)
    if comment is None:
        raise _unknown_table(cursor, address)
    fields = _fields_of(comment)
    if fields is None:
        raise UnknownModel(
            f"the table {address.name!r} of {address.database} is not a search index: its comment is not that of one. "
            "Name a table that bothways search build made."
        )
    version = fields.get("format_version")
    if version != FORMAT_VERSION:
        raise CorruptCheckpoint(
            f"the table {str(address)!r} has format version {version!r}; this release reads version {FORMAT_VERSION}. "
            "Build the index again."
        )
    try:
        return TableHeader.model_validate_json(comment)
    except ValidationError as error:
        raise CorruptCheckpoint(
            f"the comment on the table {str(address)!r} is damaged: its fields are not those of format version "
            f"{version}. Build the index again."
        ) from error


def check_buildable(cursor: "Cursor", address: TableAddress, language: str | None, *, overwrite: bool) -> None:
    """Check that an index can be built as this table.

    Raises:
        OutputExists: The table exists and ``overwrite`` is false, or it is not a search index.
        InvalidInput: The text search of the database does not have the language.
        StoreUnavailable: The database does not have pgvector and cannot get it, or has an old one.
    """
    _check_pgvector(cursor, address)
    check_language(cursor, language)
    check_free(cursor, address, overwrite=overwrite)


def check_free(cursor: "Cursor", address: TableAddress, *, overwrite: bool) -> None:
    """Raise OutputExists if the table exists and ``overwrite`` is false, or if it is not a search index."""
    comment = _comment(cursor, address)
    if comment is None:
        return
    if _fields_of(comment) is None:
        raise OutputExists(
            f"the table {address.name!r} of {address.database} exists and is not a search index, so it is never "
            "replaced. Choose another name."
        )
    if not overwrite:
        raise OutputExists(
            f"the search index {str(address)!r} already exists. Choose another table, or replace it with "
            "overwrite=True (--overwrite)."
        )


def check_language(cursor: "Cursor", language: str | None) -> None:
    """Raise InvalidInput if the text search of the database does not have the language."""
    cursor.execute("select cfgname from pg_ts_config where cfgnamespace = 'pg_catalog'::regnamespace order by 1")
    names = [name for (name,) in cursor.fetchall() if name != "simple"]
    if language is not None and language not in names:
        raise InvalidInput(
            f"the text search of the database has no language {language!r}. Expected one of {', '.join(names)}, or "
            "none."
        )


def lock(cursor: "Cursor", address: TableAddress) -> None:
    """Lock an index against changes by others until the end of the transaction; searches go on.

    Raises:
        InvalidInput: Another process is changing the index.
    """
    cursor.execute(
        "select pg_try_advisory_xact_lock(hashtextextended("
        "'bothways ' || coalesce(%s::text, current_schema()) || '.' || %s::text, 0))",
        [address.schema, address.table],
    )
    if cursor.fetchone() != (True,):
        raise InvalidInput(f"another process is updating the index {str(address)!r}. Wait until it is done.")


def _comment(cursor: "Cursor", address: TableAddress) -> str | None:
    """Return the comment on a table, which is empty if it has none; None if there is no such table."""
    cursor.execute(
        "select coalesce(obj_description(oid, 'pg_class'), '') from pg_class where oid = to_regclass(%s)",
        [quoted(address)],
    )
    found = cursor.fetchone()
    return None if found is None else str(found[0])


def _fields_of(comment: str) -> dict[str, object] | None:
    """Return the fields of a comment that is one of ours, else None."""
    try:
        fields = parse_json(comment.encode())
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and fields.get("format") == FORMAT else None


def _unknown_table(cursor: "Cursor", address: TableAddress) -> UnknownModel:
    cursor.execute(
        "select nspname, relname, pg_table_is_visible(pg_class.oid) from pg_class "
        "join pg_namespace on pg_namespace.oid = relnamespace "
        "where obj_description(pg_class.oid, 'pg_class') like %s order by relname",
        [f'{{"format": "{FORMAT}"%'],
    )
    ours = [table if visible else f"{schema}.{table}" for schema, table, visible in cursor.fetchall()]
    shown = f"its indexes are {', '.join(map(repr, ours[:10]))}" if ours else "it has no search index"
    return UnknownModel(
        f"there is no table {address.name!r} in {address.database}; {shown}.{did_you_mean(address.name, ours)} Check "
        "the name, or build the index."
    )


def create_extension(cursor: "Cursor", address: TableAddress) -> None:
    """Create pgvector in a database that does not have it.

    Raises:
        StoreUnavailable: The server does not have it, or the user may not do so.
    """
    from psycopg import Error

    cursor.execute("select from pg_extension where extname = 'vector'")
    if cursor.fetchone() is not None:
        return
    try:
        with cursor.connection.transaction():
            cursor.execute("create extension vector")
    except Error as error:
        if cursor.connection.closed:
            raise
        raise _without_pgvector(address) from error


def _check_pgvector(cursor: "Cursor", address: TableAddress) -> None:
    cursor.execute(
        "select coalesce(extversion, default_version) from pg_available_extensions left join pg_extension "
        "on extname = name where name = 'vector'"
    )
    found = cursor.fetchone()
    if found is None:
        raise _without_pgvector(address)
    (version,) = found
    if tuple(map(int, version.split(".")[:2])) < _PGVECTOR:
        raise StoreUnavailable(
            f"{address.database} has pgvector {version}, expected {_WANTED} or newer. Let its owner run, after an "
            "update of the server's package: alter extension vector update"
        )


def _without_pgvector(address: TableAddress) -> StoreUnavailable:
    return StoreUnavailable(
        f"{address.database} does not have the extension 'vector' (pgvector {_WANTED} or newer). Install pgvector on "
        "its server, and let a user with the right to do so run: create extension vector"
    )
