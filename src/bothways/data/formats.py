"""Lines and rows from files: JSON Lines, CSV, TSV, plain text, CoNLL, CoNLL-U and Parquet (extra ``parquet``).

`bothways.reading` splits all of them into lines.
"""

import csv
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import IO, get_args

from bothways.choices import Format as Format
from bothways.data.columns import Row, check_columns, first_duplicate
from bothways.data.conll import conll_rows, conllu_rows
from bothways.errors import InvalidInput, MissingDependency
from bothways.reading import LONGEST_LINE, unended_lines

FORMATS: tuple[Format, ...] = get_args(Format)

_SUFFIXES: Mapping[str, Format] = {
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "json": "json",
    "csv": "csv",
    "tsv": "tsv",
    "parquet": "parquet",
    "txt": "txt",
    "conll": "conll",
    "conllu": "conllu",
}


def is_gzip_name(name: str) -> bool:
    """Test whether a file name ends in ``.gz``."""
    return name.lower().endswith(".gz")


def guess_format(name: str) -> Format:
    """Guess the format from the ending of a file name, in any case; a final ``.gz`` is ignored.

    >>> guess_format("TRAIN.JSONL.GZ")
    'jsonl'
    """
    suffix = _suffix(name)
    if suffix not in _SUFFIXES:
        raise InvalidInput(
            f"{f'the name {name!r}' if name else 'a stream without a name'} does not say its format. Expected one of "
            f"{', '.join('.' + known for known in _SUFFIXES)}, with or without .gz; "
            f"otherwise give the format: {', '.join(FORMATS)}."
        )
    return _SUFFIXES[suffix]


def has_format(name: str) -> bool:
    """Test whether a file name has the ending of a known format."""
    return _suffix(name) in _SUFFIXES


def _suffix(name: str) -> str:
    stem = name[: -len(".gz")] if is_gzip_name(name) else name
    return stem.lower().rpartition(".")[2] if "." in stem else ""


def jsonl_rows(lines: Iterator[str], name: str) -> Iterator[Row]:
    """Yield one JSON object per line (https://jsonlines.org), skipping blank lines."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"line {number} of {name}"
        # Without the line end, so that an error at the end of the text is reported for this line.
        value = parse_json(line.rstrip("\r\n"), where, hint="Write one complete object per line.")
        if not isinstance(value, dict):
            kinds = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
            raise InvalidInput(
                f"{where} is not a JSON object but {kinds.get(type(value), 'null')}. Write one object per line, "
                'such as {"text": "...", "label": "..."}.'
            )
        yield Row(number, value, where)


def parse_json(text: str, where: str, *, hint: str) -> object:
    """Parse a JSON text; in error messages ``where`` names it, and ``hint`` says what is expected."""
    try:
        return json.loads(text, object_pairs_hook=_object_without_duplicates)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from None
    except json.JSONDecodeError as error:
        place = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        raise InvalidInput(f"{where} is not valid JSON: {error.msg} at {place}. {hint}") from None
    except RecursionError:
        raise InvalidInput(f"{where} is not usable JSON: it is nested too deeply.") from None
    except ValueError:  # an integer with more digits than Python converts
        raise InvalidInput(
            f"{where} is not usable JSON: it has a whole number of thousands of digits. Write it as a string."
        ) from None


def _object_without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) < len(pairs):
        duplicate = first_duplicate(key for key, _ in pairs)
        raise InvalidInput(f"the key {duplicate!r} appears twice in one object. Keep one of the two.")
    return values


def csv_rows(lines: Iterator[str], name: str, *, delimiter: str) -> Iterator[Row]:
    """Yield one row per record below a header line (RFC 4180); quoted fields may contain line breaks."""
    # The limit holds for the whole process, so it is never lowered.
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE.size))
    records = _csv_records(lines, name, delimiter)
    _, header = next(records, (0, None))
    if header is None:
        return
    check_columns(header, f"the header of {name}")
    number = 0
    for number, fields in records:
        where = f"line {number} of {name}"
        if len(fields) != len(header):
            shown = "" if delimiter in ",\t" else f", separated by {delimiter!r} as it has no comma"
            raise InvalidInput(
                f"{where} has {len(fields)} fields, but the header has {len(header)}{shown}. "
                f"Put quotes around fields that hold {delimiter!r}, quotes or line breaks."
            )
        yield Row(number, dict(zip(header, fields, strict=True)), where)
    if not number:
        raise InvalidInput(f"{name} has a header but no rows below it. Expected at least one row.")


_OTHER_SEPARATORS = ";\t|"


def separated_rows(lines: Iterator[str], name: str) -> Iterator[Row]:
    """Yield rows like `csv_rows`, with the separator found in the header.

    The separator is a comma, unless the header has no comma but exactly one of semicolon, tab and vertical bar, between
    names that are not empty.
    """
    header = next(lines, "")
    yield from csv_rows(itertools.chain([header], lines), name, delimiter=_separator(header))


def _separator(header: str) -> str:
    bare = re.sub(r'"(?:[^"]|"")*"', "x", header.strip("\r\n"))  # without the contents of quotes
    found = [mark for mark in _OTHER_SEPARATORS if mark in bare]
    if "," in bare or len(found) != 1 or not all(part.strip() for part in bare.split(found[0])):
        return ","
    return found[0]


def tsv_rows(lines: Iterator[str], name: str) -> Iterator[Row]:
    """Yield rows like `csv_rows`, from fields separated by tabs.

    Many programs write such tables without quotes, so a quote may be part of a text. Two such quotes, at the start and
    at the end of fields on different lines, would join the rows between them into one: this raises InvalidInput.
    """
    header = next(lines, "")
    rows = csv_rows(itertools.chain([header], lines), name, delimiter="\t")
    # A file whose column names are quoted follows the rules of quoting, as files from `write_rows` do.
    yield from rows if header.startswith('"') else map(_not_joined, rows)


def _not_joined(row: Row) -> Row:
    for column, value in row.values.items():
        if isinstance(value, str) and "\t" in value and ("\n" in value or "\r" in value):
            raise InvalidInput(
                f"{row.where}: the quotes around the field {column!r} hold tabs and line breaks, so they may join rows "
                f"by mistake: {value!r:.80}. If a quote is part of a text, put quotes around the field and write the "
                "quote twice; otherwise save the table as .csv or .jsonl."
            )
    return row


def _csv_records(lines: Iterator[str], name: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line number of each record, and its fields, skipping blank lines."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        start = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise InvalidInput(
                f"the row that starts on line {start} of {name} cannot be read: {error}. "
                "Check for a quote that is not closed; a quote inside of a quoted field is written twice."
            ) from None
        if fields is None:
            return
        if fields:
            yield start, fields


def txt_rows(lines: Iterator[str], name: str) -> Iterator[Row]:
    """Yield one text per line, in the column ``text``."""
    for number, line in unended_lines(lines, name):
        yield Row(number, {"text": line}, f"line {number} of {name}")


TEXT_FORMATS: Mapping[Format, Callable[[Iterator[str], str], Iterator[Row]]] = {
    "jsonl": jsonl_rows,
    "csv": separated_rows,
    "tsv": tsv_rows,
    "txt": txt_rows,
    "conll": conll_rows,
    "conllu": conllu_rows,
}


ROWS_AT_ONCE = 1024
_CELLS_AT_ONCE = 300_000


def parquet_rows(stream: IO[bytes], name: str, columns: Collection[str] | None = None) -> Iterator[Row]:
    """Yield rows of a Parquet file; nulls are ``None``, lists and structs are Python lists and dicts.

    Only ``columns`` and ``id`` are read. If one of ``columns`` is missing, all are read, so that a later error message
    can list them.
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
        chosen = None if columns is None or not set(columns) <= set(known) else [*{*columns, "id"} & set(known)]
        size = max(1, min(ROWS_AT_ONCE, _CELLS_AT_ONCE // max(1, len(known if chosen is None else chosen))))
        for batch in file.iter_batches(batch_size=size, columns=chosen):
            for values in batch.to_pylist():
                number += 1
                yield Row(number, values, f"row {number} of {name}")
    except InvalidInput:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        problem = f"is damaged after row {number}" if number else "is not a Parquet file, or is damaged"
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InvalidInput(f"{name} {problem}: {reason}. Check what the file is, or fetch it again.") from error
