"""Output files of blocks: JSON Lines, Parquet, and arrays of NumPy."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Literal, TypeAlias, get_args

import numpy as np

from bothways.data.output import array_header, json_line
from bothways.errors import InvalidInput, MissingDependency, one_of
from bothways.jobs.work import KEPT, Kind, OpenedWork, OutputRow

JobFormat = Literal["npy", "parquet", "jsonl"]
FORMATS: tuple[JobFormat, ...] = get_args(JobFormat)
SUFFIXES: Mapping[JobFormat, str] = {"npy": ".npy", "parquet": ".parquet", "jsonl": ".jsonl"}


def check_format(chosen: str | None, verb: str) -> JobFormat:
    """Return the format of the output of a verb; by default arrays for vectors, else JSON Lines.

    Raises:
        InvalidInput: There is no such format, or it cannot hold the results.
        MissingDependency: pyarrow is not installed, for Parquet.
    """
    if chosen is None:
        return "npy" if verb == "embed" else "jsonl"
    format_ = one_of("the format of the output", chosen, FORMATS)
    if format_ == "npy" and verb != "embed":
        raise InvalidInput(f"an array (npy) holds vectors, and {verb} has none: choose jsonl or parquet.")
    if format_ == "parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise MissingDependency.of("pyarrow", extra="parquet", purpose="writing Parquet files") from error
    return format_


def check_writable(rows: Sequence[OutputRow]) -> None:
    """Raise InvalidInput if a value of a row has no JSON, such as a date."""
    try:
        for row in rows:
            for name, value in row.items():
                if name != "vector" and not (_is_plain(value) and name.isascii()):
                    json_line({name: value}).encode()
    except UnicodeEncodeError as error:
        raise InvalidInput("the row holds half of a surrogate pair, which UTF-8 cannot represent.") from error
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the row has a value that cannot be written: {error}.") from error


def _is_plain(value: object) -> bool:
    """Return True for values that JSON and UTF-8 certainly have."""
    return value is None or isinstance(value, int) or (isinstance(value, str) and value.isascii())


def part_writer(format_: JobFormat, path: Path, ids: Path, work: OpenedWork) -> "PartWriter":
    """Return the writer of a block; arrays have their rows' ids in another file, if rows have any."""
    match format_:
        case "npy":
            return ArrayWriter(path, ids, work.dimensions or 0)
        case "parquet":
            return ParquetWriter(path, work.kinds, work.dimensions)
        case "jsonl":
            return LinesWriter(path)


class LinesWriter(ExitStack):
    """Writes JSON Lines."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._stream = self.enter_context(path.open("w", encoding="utf-8", newline=""))

    def write(self, rows: Sequence[OutputRow]) -> None:
        """Write a line for each row; vectors have the shortest digits that are exact."""
        self._stream.writelines(f"{json_line(_plain(row))}\n" for row in rows)


def _plain(row: OutputRow) -> OutputRow:
    vector_D = row.get("vector")
    if isinstance(vector_D, np.ndarray):
        return {**row, "vector": [float(str(value)) for value in vector_D]}
    return row


class ArrayWriter(ExitStack):
    """Writes vectors as the rows of a float32 array in constant memory.

    NumPy pads headers so that the number of rows can grow: a header for 0 rows is written first, and the final one
    replaces it. A row without a vector becomes a row of NaN.
    """

    def __init__(self, path: Path, ids: Path, dimensions: int) -> None:
        super().__init__()
        self._stream, self._ids = self.enter_context(path.open("wb")), ids
        self._dimensions, self._count = dimensions, 0
        self._lines: IO[str] | None = None
        array_header(self._stream, 0, dimensions)
        self.callback(self._finish)  # before the stream is closed

    def write(self, rows: Sequence[OutputRow]) -> None:
        """Write the vectors of rows, and their ids."""
        vectors_BD = np.full((len(rows), self._dimensions), np.nan, "<f4")
        for number, row in enumerate(rows):
            if row["vector"] is not None:
                vectors_BD[number] = row["vector"]
        self._stream.write(vectors_BD.data)
        self._count += len(rows)
        if self._lines is None and any("id" in row for row in rows):
            self._lines = self.enter_context(self._ids.open("w", encoding="utf-8", newline=""))
        if self._lines is not None:
            self._lines.writelines(f"{json_line(row.get('id'))}\n" for row in rows)

    def _finish(self) -> None:
        self._stream.seek(0)
        array_header(self._stream, self._count, self._dimensions)


class ParquetWriter(ExitStack):
    """Writes Parquet with a row group for each call; ids are strings, objects and lists are JSON.

    A column for what is kept of the input has all of its columns as one object.
    """

    def __init__(self, path: Path, kinds: Mapping[str, Kind], dimensions: int | None) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        super().__init__()
        types = {
            "number": pa.float64(),
            "integer": pa.int64(),
            "boolean": pa.bool_(),
            "vector": pa.list_(pa.float32(), dimensions or -1),
        }
        self._kinds: dict[str, Kind] = {"id": "text", **kinds}
        self._schema = pa.schema([(name, types.get(kind, pa.string())) for name, kind in self._kinds.items()])
        self._writer = self.enter_context(pq.ParquetWriter(path, self._schema))

    def write(self, rows: Sequence[OutputRow]) -> None:
        """Write rows as a row group."""
        import pyarrow as pa

        if KEPT in self._kinds:
            rows = [{**row, KEPT: {name: row[name] for name in row if name not in self._kinds}} for row in rows]
        columns = {name: [_cell(row.get(name), kind) for row in rows] for name, kind in self._kinds.items()}

        self._writer.write_table(pa.table(columns, self._schema))


def _cell(value: object, kind: Kind) -> object:
    """Return a value as its column holds it."""
    if value is None or kind not in ("text", "json"):
        return value
    return value if isinstance(value, str) and kind == "text" else json_line(value)


PartWriter: TypeAlias = LinesWriter | ArrayWriter | ParquetWriter
