"""A search index as a table: one row for each text, and a comment that says what the table is.

::

    number    bigint    the order of the rows
    id        text      unique
    text      text
    fields    jsonb     the values that are stored with the text
    numbers   jsonb     those of them that are numbers or spell one, for filters
    odd       jsonb     strings with digits that spell no number, which filters on numbers refuse; mostly null
    vector    vector    of the encoder; for the cosine of unit length, so that inner products are cosines
    words     tsvector  of the text, by PostgreSQL's text search

The comment on the table is JSON: format and version, the encoder with its prompts, the fields, the language and the
columns of the source (`TableHeader`). A change takes an advisory lock on the name of the table, so that of two changes
at the same time the second one is refused, and searches go on meanwhile.
"""

import json
import math
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bothways.errors import InvalidInput
from bothways.retrieval.address import TableAddress
from bothways.retrieval.contents import CheckedBatch
from bothways.retrieval.postgres.header import TableHeader, check_buildable, check_free, create_extension, lock, quoted
from bothways.retrieval.ranking import Scalar, is_odd, number_of
from bothways.tasks.embedding.representation import DenseVectors

if TYPE_CHECKING:
    from psycopg import Cursor

# The graph of the vectors: links of a node, and candidates for them (Malkov and Yashunin 2020, TPAMI 42:4).
LINKS, CONSTRUCTION = 16, 128
MOST_INDEXED = 2000  # the most dimensions that pgvector indexes; searches of wider vectors are exact

_COLUMNS = """
    number bigint generated always as identity primary key,
    id text not null unique,
    text text not null,
    fields jsonb not null,
    numbers jsonb not null,
    odd jsonb,
    vector vector({dimensions}) not null,
    words tsvector not null generated always as (to_tsvector({language}::regconfig, text)) stored
"""


def build(
    cursor: "Cursor", address: TableAddress, header: TableHeader, batches: Iterable[CheckedBatch], *, overwrite: bool
) -> None:
    """Build a table of rows; until the transaction is committed, an earlier index of this name answers searches.

    Raises:
        InvalidInput: The rows have something that PostgreSQL cannot store, or another process changes the index.
        OutputExists: As for `check_free`.
    """
    create_extension(cursor, address)
    check_buildable(cursor, address, header.language, overwrite=overwrite)
    lock(cursor, address)
    # If an earlier table may not be replaced, the server says so before the texts are embedded.
    with cursor.connection.transaction(force_rollback=True):
        cursor.execute(f"drop table if exists {quoted(address)}")
    new = replace(address, table=f"bothways_{secrets.token_hex(8)}")
    columns = _COLUMNS.format(dimensions=header.encoder.dimensions, language=f"'{header.configuration}'")
    cursor.execute(f"create table {quoted(new)} ({columns})")
    names: tuple[str, ...] = ()
    start = 0
    for batch in batches:
        names = tuple(batch.columns)
        copy_rows(cursor, new, batch, start)
        start += len(batch.ids)
    _create_indexes(cursor, new, header.encoder.dimensions)
    _write_comment(cursor, new, header.model_copy(update={"fields": names}))
    check_free(cursor, address, overwrite=overwrite)  # another program may have made a table of this name
    cursor.execute(f"drop table if exists {quoted(address)}")
    cursor.execute(f"alter table {quoted(new)} rename to {quoted(replace(address, schema=None))}")


def copy_rows(cursor: "Cursor", address: TableAddress, batch: CheckedBatch, start: int) -> None:
    """Copy rows to the end of a table; ``start`` is the number of the first one in error messages.

    Raises:
        InvalidInput: A string holds a NUL character.
    """
    statement = f"copy {quoted(address)} (id, text, fields, numbers, odd, vector) from stdin (format binary)"
    with cursor.copy(statement) as copy:
        for row in _binary_rows(batch, start):
            copy.write_row(row)


def vectors_of(values: Sequence[bytes], dimensions: int) -> DenseVectors:
    """Return the vectors of pgvector's binary format: two 16-bit numbers, and then big-endian float32."""
    if not values:
        return DenseVectors(np.empty((0, dimensions), dtype=np.float32))
    wide = np.frombuffer(b"".join(values), dtype=">f4").reshape(len(values), dimensions + 1)
    return DenseVectors(wide[:, 1:].astype(np.float32))


def _binary_rows(batch: CheckedBatch, start: int) -> Iterator[tuple[str, str, bytes, bytes, bytes | None, bytes]]:
    head = np.array([batch.vectors.dimensions, 0], dtype=">i2").tobytes()
    vectors_ND = batch.vectors.vectors_ND.astype(">f4")
    for place, (id_, text) in enumerate(zip(batch.ids, batch.texts, strict=True)):
        fields = {name: column[place] for name, column in batch.columns.items()}
        if any(isinstance(each, str) and "\0" in each for each in (id_, text, *fields, *fields.values())):
            raise InvalidInput(
                f"text {start + place} (counted from 0), its id or one of its fields has a NUL character, which "
                "PostgreSQL cannot store. Drop that character."
            )
        numbers = {name: _finite(number) for name, each in fields.items() if (number := number_of(each)) is not None}
        odd = {name: each for name, each in fields.items() if is_odd(each)}
        yield (
            id_,
            text,
            _jsonb(fields),
            _jsonb(numbers),
            _jsonb(odd) if odd else None,
            head + vectors_ND[place].tobytes(),
        )


def _finite(number: float) -> float | str:
    """Return a number that JSON can write; the text of an infinite one, which PostgreSQL reads as a number."""
    return number if isinstance(number, int) or math.isfinite(number) else ("Infinity" if number > 0 else "-Infinity")


def _jsonb(values: Mapping[str, Scalar]) -> bytes:
    """Return the binary format of jsonb: the version 1, and the text."""
    return b"\1" + json.dumps(values, ensure_ascii=False, allow_nan=False).encode()


def _create_indexes(cursor: "Cursor", address: TableAddress, dimensions: int) -> None:
    table = quoted(address)
    cursor.execute(f"create index on {table} using gin (words)")
    cursor.execute(f"create index on {table} (number) where odd is not null")
    if dimensions <= MOST_INDEXED:
        cursor.execute(
            f"create index on {table} using hnsw (vector vector_ip_ops) "
            f"with (m = {LINKS}, ef_construction = {CONSTRUCTION})"
        )
    cursor.execute(f"analyze {table}")


def _write_comment(cursor: "Cursor", address: TableAddress, header: TableHeader) -> None:
    from psycopg.sql import SQL, Literal

    comment = json.dumps(header.model_dump(mode="json"), ensure_ascii=False)
    cursor.execute(SQL("comment on table {} is {}").format(SQL(quoted(address)), Literal(comment)))
