"""Writing rows to files and standard output: JSON Lines, CSV, TSV and CoNLL; predictions as such rows."""

import csv
import gzip
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, get_args

from bothways.data.columns import Row, plain_scalar
from bothways.data.formats import guess_format, is_gzip_name
from bothways.errors import InvalidInput, one_of
from bothways.progress import rounded
from bothways.storage import is_opened_by_caller, is_stream, new_file

OutputFormat = Literal["jsonl", "csv", "tsv", "conll"]
OUTPUT_FORMATS: tuple[OutputFormat, ...] = get_args(OutputFormat)

_Row = Mapping[str, object]


def write_rows(
    target: str | Path,
    rows: Iterable[_Row],
    *,
    format: OutputFormat | None = None,  # noqa: A002 (the option's name)
    overwrite: bool = False,
) -> int:
    """Write rows one at a time, and return the number of rows.

    The file appears when all rows are written, or not at all. If its name ends in ``.gz``, it is compressed; the same
    rows always give the same bytes. In csv and tsv, the keys of the first row are the columns, null is an empty field,
    lists of strings are joined by ``|``, and other lists and objects are written as JSON. In CoNLL, the ``tokens`` and
    ``tags`` of each row are written.

    Args:
        target: A path, or ``"-"`` for standard output, where each row is written at once. A device such as /dev/null
            and a pipe are written to directly.
        rows: Column name to value.
        format: Default: from the file's name, see `output_format`.
        overwrite: Replace an existing file.

    Raises:
        InvalidInput: The name gives no supported format, or a row cannot be written in it.
        OutputExists: The target exists and ``overwrite`` is false.
        OutOfDisk: The disk is full; nothing is left behind.
    """
    chosen = format or output_format(target)
    one_of("the format of the output", chosen, OUTPUT_FORMATS)
    with _output(target, overwrite=overwrite) as stream:
        write = _WRITERS[chosen](stream)
        count = 0
        for count, row in enumerate(rows, start=1):
            _write_one(write, row, count)
    return count


def output_format(target: str | Path) -> OutputFormat:
    """Return the format of an output file by its name, ``jsonl`` for standard output, a device or a pipe.

    Raises:
        InvalidInput: It is a folder, or its name gives no supported format.
    """
    if str(target) == "-":
        return "jsonl"
    name = Path(target).name
    try:
        chosen = guess_format(name)
    except InvalidInput as error:
        if is_stream(target) or is_opened_by_caller(target):
            return "jsonl"
        if str(target).endswith(("/", os.sep)) or Path(target).is_dir():
            inside = Path(target) / "output.jsonl"
            raise InvalidInput(f"{str(target)!r} is a folder: name a file in it, such as {str(inside)!r}.") from error
        raise InvalidInput(
            f"the name {name!r} does not say what format to write: its ending must be one of "
            f"{', '.join(OUTPUT_FORMATS)}, with or without .gz."
        ) from error
    return one_of("the format of the output", chosen, OUTPUT_FORMATS)


def _write_one(write: Callable[[_Row], None], row: _Row, number: int) -> None:
    try:
        write(row)
    except UnicodeEncodeError as error:
        raise InvalidInput(f"row {number} holds half of a surrogate pair, which UTF-8 cannot represent.") from error
    except (InvalidInput, TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"row {number} cannot be written: {error}") from error


@contextmanager
def _output(target: str | Path, *, overwrite: bool) -> Iterator[IO[str]]:
    if str(target) == "-":
        with _standard_output() as stream:
            yield stream
    elif is_gzip_name(str(target)):
        with new_file(target, overwrite=overwrite, binary=True) as raw:
            # No time and no name in the header, so that the bytes depend on the rows alone.
            packed = gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0)
            with io.TextIOWrapper(packed, encoding="utf-8", newline="") as stream:
                yield stream
    else:
        with new_file(target, overwrite=overwrite) as plain:
            yield plain


@contextmanager
def _standard_output() -> Iterator[IO[str]]:
    """Yield standard output as UTF-8 whatever the locale, and leave it open."""
    below = getattr(sys.stdout, "buffer", None)
    if below is None:
        yield sys.stdout
        return
    sys.stdout.flush()
    stream = io.TextIOWrapper(below, encoding="utf-8", newline="", line_buffering=True)
    try:
        yield stream
    finally:
        stream.detach()


def _csv_writer(stream: IO[str], *, delimiter: str) -> Callable[[_Row], None]:
    # Every string is quoted: otherwise a carriage return inside of a field would end the row for some readers.
    writer = csv.writer(stream, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    columns: list[str] = []

    def write(row: _Row) -> None:
        if not columns:
            if not row:
                raise InvalidInput("it has no columns: give it at least one, or use jsonl.")
            columns.extend(row)
            writer.writerow(columns)
        if row.keys() != set(columns):
            raise InvalidInput(f"it has the columns {sorted(row)}, but the first row has {sorted(columns)}: use jsonl.")
        writer.writerow([_cell(row[column]) for column in columns])

    return write


def _conll_writer(stream: IO[str]) -> Callable[[_Row], None]:
    def write(row: _Row) -> None:
        tokens, tags = row.get("tokens"), row.get("tags")
        if not isinstance(tokens, list) or not isinstance(tags, list) or len(tokens) != len(tags):
            raise InvalidInput("CoNLL needs 'tokens' and 'tags', two lists of strings of the same length.")
        for value in (*tokens, *tags):
            # A tab separates the columns, so a word may hold spaces, but nothing that would end a column or a line.
            if not isinstance(value, str) or not value or any(each in value for each in "\t\r\n"):
                raise InvalidInput(f"CoNLL needs text without tabs and line breaks, got {value!r:.80}: use jsonl.")
        stream.write("".join(f"{token}\t{tag}\n" for token, tag in zip(tokens, tags, strict=True)) + "\n")

    return write


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, list | tuple) and value and all(isinstance(part, str) for part in value):
        if any("|" in part or not part.strip() for part in value):
            raise InvalidInput(f"{value!r} is joined by '|', but has a blank string or one with '|': use jsonl.")
        return "|".join(value)
    if isinstance(value, list | tuple) and not value:
        return ""
    if isinstance(value, Mapping | list | tuple):
        return json_line(value)
    plain = plain_scalar(value)
    if isinstance(plain, float) and not math.isfinite(plain):
        raise InvalidInput(f"{value!r} is not finite: write None instead, or drop the row.")
    return plain


def json_line(value: object) -> str:
    """Return a value as JSON on one line; a number that is not finite raises ValueError."""
    return _ENCODER.encode(value)


def _in_json(value: object) -> object:
    plain = plain_scalar(value)
    if plain is value:
        raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON: convert it first.")
    return plain


# Made once: `json.dumps` makes one for each call.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_in_json)

_WRITERS: Mapping[str, Callable[[IO[str]], Callable[[_Row], None]]] = {
    "jsonl": lambda stream: lambda row: print(json_line(dict(row)), file=stream),
    "csv": partial(_csv_writer, delimiter=","),
    "tsv": partial(_csv_writer, delimiter="\t"),
    "conll": _conll_writer,
}


# --- vectors ---


def array_header(stream: IO[bytes], rows: int, dimensions: int) -> None:
    """Write the header of a .npy file of float32 vectors."""
    from numpy.lib import format as npy

    npy.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (rows, dimensions)})


# --- predictions ---

# Columns of a .conll file, and the keys of a predicted word for them.
_CONLL_COLUMNS = (("tokens", "text"), ("tags", "tag"))


@dataclass(frozen=True, slots=True)
class PredictionTable:
    """Converts predictions to output rows."""

    format: OutputFormat
    keep: bool
    """Also write all columns of the input."""
    inputs: tuple[str, ...] = ()
    """Input columns with texts that a .csv or .tsv output repeats."""
    skip: bool = False
    """Leave out rows without a text, instead of writing null predictions."""
    listed: str | None = None
    """The field of a prediction whose items become the rows of a table, such as ``spans``."""
    ranked: bool = False
    """Write columns for the best label, the second best, ... to .csv or .tsv, instead of a column for each label."""

    def rows(self, rows: Iterable[Row], predictions: Iterable[Any]) -> Iterator[Mapping[str, object]]:
        """Yield the output rows.

        A table has the same columns in every row. If the first row has an id, there is a column for ids, which is empty
        in rows without an id.
        """
        ids: bool | None = None
        names: list[str] | None = None  # columns of a prediction, known from the first row with a text
        waiting: list[dict[str, object]] = []  # rows before the first row with a text
        for number, (row, prediction) in enumerate(zip(rows, predictions, strict=True), start=1):
            kept = {name: value for name, value in row.values.items() if self.keep or name == "id"}
            if not self.keep:
                kept |= {name: text if isinstance(text := row.values.get(name), str) else None for name in self.inputs}
            ids = "id" in kept if ids is None else ids
            if ids and self.format != "jsonl":
                kept.setdefault("id", None)
            if prediction is None:
                if not self.skip and not self.listed:
                    waiting.append(kept)
            else:
                for answer in self._answers(prediction.to_dict(), number):
                    names = list(answer)
                    yield from (beside(dict.fromkeys(names), each) for each in waiting)
                    waiting.clear()
                    yield beside(answer, kept)
            if names is not None:
                yield from (beside(dict.fromkeys(names), each) for each in waiting)
                waiting.clear()
        yield from (beside({"prediction": None}, each) for each in waiting)

    def _answers(self, prediction: Mapping[str, object], number: int) -> list[dict[str, object]]:
        answer = rounded(prediction)
        if self.format == "conll":
            words: Any = answer["words"]
            return [{column: [word[part] for word in words] for column, part in _CONLL_COLUMNS}]
        if self.format == "jsonl":
            return [answer]
        if self.listed:
            items: Any = answer[self.listed]
            return [{"row": number, **_flat(item)} for item in items]
        return [_flat({k: v for k, v in answer.items() if not _holds_objects(v)}, ranked=self.ranked)]


def _holds_objects(value: object) -> bool:
    """Return True for a list of objects, which does not fit into a cell."""
    return isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value)


def beside(answer: Mapping[str, object], kept: Mapping[str, object]) -> dict[str, object]:
    """Merge input columns (``kept``) with an answer; input columns of the same name get the prefix ``input_``."""
    named: dict[str, object] = {}
    for name, value in kept.items():
        free = name
        while free in answer or (free != name and (free in kept or free in named)):
            free = f"input_{free}"
        named[free] = value
    return named | dict(answer)


def _flat(values: Mapping[str, object], before: str = "", *, ranked: bool = False) -> dict[str, object]:
    """Flatten objects to the cells of a table: ``{"a": {"b": 1}}`` becomes ``{"a_b": 1}``."""
    flat: dict[str, object] = {}
    for name, value in values.items():
        if name == "probabilities" and ranked and isinstance(value, Mapping):
            columns: dict[str, object] = {}
            for rank, (label, probability) in enumerate(value.items(), start=1):
                columns |= {f"{before}label_{rank}": label, f"{before}probability_{rank}": probability}
        elif isinstance(value, Mapping):
            # Labels are ordered by probability in each row, but a table needs the same order in all rows.
            inner = dict(sorted(value.items())) if name == "probabilities" else value
            columns = _flat(inner, f"{before}{name}_", ranked=ranked)
        else:
            columns = {f"{before}{name}": value}
        twice = flat.keys() & columns.keys()
        if twice:
            raise InvalidInput(f"two columns would have the name {min(twice)!r}: write .jsonl instead.")
        flat |= columns
    return flat
