"""Rows out of Parquet files, a batch at a time. Needs the extra ``parquet``."""

from collections.abc import Collection, Iterator
from typing import IO

from bothways.data.row import Row, check_columns
from bothways.errors import InvalidInput, MissingDependency

ROWS_AT_ONCE = 1024
_CELLS_AT_ONCE = 300_000


def parquet_rows(stream: IO[bytes], name: str, columns: Collection[str] | None = None) -> Iterator[Row]:
    """Yield rows of a Parquet file; nulls are ``None``, lists and structs are Python lists and dicts.

    Args:
        stream: The file.
        name: What to call it in messages.
        columns: Those to read, with an ``id`` where there is one; all of them if one is missing, so that messages can
            say which there are.

    Raises:
        InvalidInput: The stream is not Parquet, is damaged, or names a column twice.
        MissingDependency: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingDependency.of("pyarrow", extra="parquet", purpose="reading Parquet files") from error
    number = 0
    # ArrowInvalid and undecodable strings are ValueErrors; damaged pages surface as OSError.
    try:
        file = pq.ParquetFile(stream, pre_buffer=False)
        check_columns(file.schema_arrow.names, name)
        known = file.schema_arrow.names
        wanted = None if columns is None or not set(columns) <= set(known) else [*{*columns, "id"} & set(known)]
        size = max(1, min(ROWS_AT_ONCE, _CELLS_AT_ONCE // max(1, len(known if wanted is None else wanted))))
        for batch in file.iter_batches(batch_size=size, columns=wanted):
            for values in batch.to_pylist():
                number += 1
                yield Row(number, values, f"row {number} of {name}")
    except InvalidInput:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        problem = f"is damaged after row {number}" if number else "is not a Parquet file, or is damaged"
        raise InvalidInput(
            f"{name} {problem}: {_first_line(error)}. Check what the file is, or fetch it again."
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
