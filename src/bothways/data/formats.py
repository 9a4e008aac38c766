"""Rows from files: JSON Lines, CSV, TSV, plain text, CoNLL, CoNLL-U and Parquet (extra ``parquet``).

`bothways.data.lines` splits all of them into lines.
"""

import csv
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, get_args

from typing_extensions import TypedDict  # pydantic needs this one

from bothways.choices import Format as Format
from bothways.data.columns import Row, check_columns, first_duplicate
from bothways.data.conll import conll_rows, conllu_rows
from bothways.data.lines import LONGEST_LINE, unended_lines
from bothways.errors import InvalidInput, MissingDependency, read_with

if TYPE_CHECKING:
    import pyarrow.parquet as pq

FORMATS: tuple[Format, ...] = get_args(Format)


class FileSettings(TypedDict):
    """The format and the encoding of a file, where they are not the usual ones."""

    format: Format | None
    encoding: str | None


_SUFFIXES: Mapping[str, Format] = {
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "json": "json",
    "csv": "csv",
    "tsv": "tsv",
    "parquet": "parquet",
    "xlsx": "xlsx",
    "xlsm": "xlsx",
    "txt": "txt",
    "conll": "conll",
    "conllu": "conllu",
}

_SAVE, _UNPACK = (
    "Save the sheet as .xlsx or CSV UTF-8.",
    "Unpack it; files compressed with gzip (.gz) are read as they are.",
)
_UNREAD = dict.fromkeys(("xls", "xlsb", "ods"), _SAVE) | dict.fromkeys(("zip", "bz2", "xz", "zst", "7z"), _UNPACK)


def is_gzip_name(name: str) -> bool:
    """Test whether a file name ends in ``.gz``."""
    return name.lower().endswith(".gz")


def guess_format(name: str) -> Format:
    """Guess the format from the ending of a file name, in any case; a final ``.gz`` is ignored.

    >>> guess_format("TRAIN.JSONL.GZ")
    'jsonl'
    """
    suffix = _suffix(name)
    if suffix in _UNREAD:
        raise InvalidInput(f"expected a file of rows or texts, got {name!r}. {_UNREAD[suffix]}")
    if suffix not in _SUFFIXES:
        raise InvalidInput(
            f"{f'the name {name!r}' if name else 'a stream without a name'} does not say its format. Expected one of "
            f"{', '.join('.' + known for known in _SUFFIXES)}, with or without .gz; "
            f"otherwise give the format (--format): {', '.join(FORMATS)}."
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
        instead = _instead_of_objects(line) if number == 1 else ""
        # Without the line end, so that an error at the end of the text is reported for this line.
        value = parse_json(line.rstrip("\r\n"), where, hint=f"Write one complete object per line.{instead}")
        if not isinstance(value, dict):
            kinds = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
            raise InvalidInput(
                f"{where} is not a JSON object but {kinds.get(type(value), 'null')}. Write one object per line, "
                f'such as {{"text": "...", "label": "..."}}.{instead}'
            )
        yield Row(number, value, where)


def _instead_of_objects(line: str) -> str:
    """Return advice if the first line of JSON Lines seems to be that of another format."""
    if line.lstrip().startswith("{"):
        return ""
    other = next(
        (other for mark, other in (("[", "json"), ("\t", "tsv"), (",", "csv"), (";", "csv")) if mark in line), "txt"
    )
    return f" If the file is no JSON Lines, give its format, such as {read_with('format', other)}."


def parse_json(text: str, where: str, *, hint: str) -> object:
    """Parse a JSON text; in error messages ``where`` names it, and ``hint`` says what is expected."""
    try:
        return _DECODER.decode(text)
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


# Made once: `json.loads` makes one for each call.
_DECODER = json.JSONDecoder(object_pairs_hook=_object_without_duplicates)


def csv_rows(lines: Iterator[str], name: str, *, delimiter: str, skipped: int = 0) -> Iterator[Row]:
    """Yield one row per record below a header line (RFC 4180); quoted fields may contain line breaks.

    ``skipped`` is the number of lines of the file before ``lines``.
    """
    # The limit holds for the whole process, so it is never lowered.
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE.size))
    records = _csv_records(lines, name, delimiter, skipped)
    _, header = next(records, (0, None))
    if header is None:
        return
    check_columns(header, f"the header of {name}")
    number = 0
    for number, fields in records:
        where = f"line {number} of {name}"
        if len(fields) != len(header):
            shown = "" if delimiter in ",\t" else f", separated by {delimiter!r}"
            other = next((mark for mark in _SEPARATORS if mark != delimiter and mark in "".join(header)), None)
            instead = "" if other is None else f" If {other!r} separates the columns, put the line sep={other} first."
            raise InvalidInput(
                f"{where} has {len(fields)} fields, but the header has {len(header)}{shown}. "
                f"Put quotes around fields that hold {delimiter!r}, quotes or line breaks.{instead}"
            )
        yield Row(number, dict(zip(header, fields, strict=True)), where)
    if not number:
        raise InvalidInput(f"{name} has a header but no rows below it. Expected at least one row.")


_SEPARATORS = ",;\t|"
_LINES_TO_TRY = 20
# The first line of files that Excel writes or reads with another separator.
_NAMED_SEPARATOR = re.compile(r'"?sep=(.)"?[\r\n]*', re.IGNORECASE)


def separated_rows(lines: Iterator[str], name: str) -> Iterator[Row]:
    """Yield rows like `csv_rows`, with the separator found in the header.

    A first line such as ``sep=;`` names the separator. Else it is a comma, unless the header has other separators,
    between names that are not empty, and no comma, or a comma by which the rows below do not have its columns.
    """
    header = next(lines, "")
    if named := named_separator(header):
        yield from csv_rows(lines, name, delimiter=named, skipped=1)
        return
    separator, read = separator_of(header, lines)
    yield from csv_rows(itertools.chain([header, *read], lines), name, delimiter=separator)


def named_separator(line: str) -> str | None:
    """Return the separator that a first line such as ``sep=;`` names, else None."""
    found = _NAMED_SEPARATOR.fullmatch(line)
    return found and found[1]


def separator_of(header: str, lines: Iterator[str]) -> tuple[str, list[str]]:
    """Return the separator of a table, and the lines below its header that were read to find it."""
    bare = re.sub(r'"(?:[^"]|"")*"', "x", header.strip("\r\n"))  # without the contents of quotes
    found = [mark for mark in _SEPARATORS if mark in bare and (mark == "," or all(map(str.strip, bare.split(mark))))]
    read = list(itertools.islice(lines, _LINES_TO_TRY if len(found) > 1 else 0))
    if len(found) > 1:
        even = [mark for mark in found if _is_even([header, *read], mark)]
        found = [","] if "," in even or len(even) != 1 else even
    return found[0] if found else ",", read


def _is_even(lines: list[str], mark: str) -> bool:
    """Test whether all records have the same number of fields."""
    try:
        sizes = [len(fields) for fields in csv.reader(lines, delimiter=mark) if fields]
    except csv.Error:
        return False
    # The last record may be incomplete, unless these are all lines of the file.
    return len(set(sizes[: -1 if len(lines) > _LINES_TO_TRY else None])) == 1


def tsv_rows(lines: Iterator[str], name: str) -> Iterator[Row]:
    """Yield rows like `csv_rows`, from fields separated by tabs.

    Many programs write such tables without quotes, so a quote may be part of a text. Two such quotes, at the start and
    at the end of fields on different lines, would join the rows between them into one: this raises InvalidInput.
    """
    header = next(lines, "")
    if named_separator(header):
        yield from separated_rows(itertools.chain([header], lines), name)
        return
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


def _csv_records(lines: Iterator[str], name: str, delimiter: str, skipped: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line number of each record, and its fields, skipping blank lines."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        start = skipped + reader.line_num + 1
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


# A word in columns that ends in the tag of a span, or in columns separated by tabs; a token of CoNLL-U.
_WORD_LINE = re.compile(r"\S+([ \t]+\S+)*[ \t]+(O|[BIESLU]-\S+)\s*|\S+(\t\S+)+")
_TOKEN_LINE = re.compile(r"[0-9]+([.-][0-9]+)?(\t[^\t]+){9}")


def texts_not_words(rows: Iterator[Row], name: str) -> Iterator[Row]:
    """Yield the rows of lines of text, or raise InvalidInput if all of the first lines are those of a CoNLL file."""
    head: list[Row] = []
    found: list[Format] = []
    for row in itertools.islice(rows, _LINES_TO_TRY):
        head.append(row)
        line = str(row.values["text"])
        if _TOKEN_LINE.fullmatch(line):
            found.append("conllu")
        elif _WORD_LINE.fullmatch(line):
            found.append("conll")
        elif line.strip() and not line.startswith("#"):
            found.clear()
            break
    if len(found) > 1:
        raise InvalidInput(
            f"{name} seems to have a word and its tags on each line: give {read_with('format', found[-1])}. If its "
            f"lines are texts, give {read_with('format', 'txt')}."
        )
    yield from itertools.chain(head, rows)


# A JSON object, which has no quoted names in other formats.
_OBJECT = re.compile(r'\s*\{\s*"[^"]*"\s*:.*\}\s*')


def no_objects(lines: Iterator[str], name: str) -> Iterator[str]:
    """Yield the lines of a table or of words, or raise InvalidInput if the first is a JSON object."""
    for number, line in enumerate(lines):
        if number == 0 and _OBJECT.fullmatch(line):
            raise InvalidInput(f"line 1 of {name} is a JSON object: give {read_with('format', 'jsonl')}.")
        yield line


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


def parquet_rows(
    stream: IO[bytes], name: str, columns: Collection[str] | None = None, among: range | None = None
) -> Iterator[Row]:
    """Yield rows of a Parquet file; nulls are ``None``, lists and structs are Python lists and dicts.

    Only ``columns`` and ``id`` are read. If one of ``columns`` is missing, all are read, so that a later error message
    can list them. ``among`` are the places of the rows to read, from 0; None for all.
    """
    number = 0 if among is None else among.start
    with _parquet_errors(name, lambda: number):
        file = _parquet_file(stream, name)
        known = file.schema_arrow.names
        chosen = None if columns is None or not set(columns) <= set(known) else [*{*columns, "id"} & set(known)]
        size = max(1, min(ROWS_AT_ONCE, _CELLS_AT_ONCE // max(1, len(known if chosen is None else chosen))))
        ends = list(itertools.accumulate(_sizes_in(file)))
        wanted = range(ends[-1] if ends else 0) if among is None else among
        groups = [
            group
            for group, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
            if start < wanted.stop and end > wanted.start
        ]
        place = ends[groups[0] - 1] if groups and groups[0] else 0
        for batch in file.iter_batches(batch_size=size, columns=chosen, row_groups=groups):
            first, last = max(0, wanted.start - place), min(len(batch), wanted.stop - place)
            place += len(batch)
            for values in batch.slice(first, max(0, last - first)).to_pylist():
                number += 1
                yield Row(number, values, f"row {number} of {name}")


def row_group_sizes(stream: IO[bytes], name: str) -> list[int]:
    """Return the number of rows of each row group of a Parquet file."""
    with _parquet_errors(name, lambda: 0):
        return _sizes_in(_parquet_file(stream, name))


def _sizes_in(file: "pq.ParquetFile") -> list[int]:
    return [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]


def _parquet_file(stream: IO[bytes], name: str) -> "pq.ParquetFile":
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingDependency.of("pyarrow", extra="parquet", purpose="reading Parquet files") from error
    file = pq.ParquetFile(stream, pre_buffer=False)
    check_columns(file.schema_arrow.names, name)
    return file


@contextmanager
def _parquet_errors(name: str, rows_read: Callable[[], int]) -> Iterator[None]:
    """Turn errors of a damaged file into InvalidInput."""
    try:
        yield
    except (InvalidInput, MissingDependency):
        raise
    # ArrowInvalid and undecodable strings are ValueErrors, other errors of Arrow RuntimeErrors or KeyErrors; damaged
    # pages surface as OSError.
    except (OSError, ValueError, RuntimeError, LookupError, NotImplementedError, TypeError) as error:
        number = rows_read()
        problem = f"is damaged after row {number}" if number else "is not a Parquet file, or is damaged"
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InvalidInput(f"{name} {problem}: {reason}. Check what the file is, or fetch it again.") from error
