"""Rows, texts and labelled examples from files, standard input, tables and lists.

All sources are streams of rows, except JSON documents, which are read whole. An error is raised when its row is read.
"""

import io
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Generic, Protocol, TypedDict, TypeVar, Unpack, cast, overload

from bothways.choices import LabelValue, Unlabelled
from bothways.data.columns import Row, check_encodable, tags_at, text_at, words_at
from bothways.data.conll import DOCUMENT
from bothways.data.documents import json_rows, xlsx_rows
from bothways.data.formats import (
    FORMATS,
    TEXT_FORMATS,
    Format,
    guess_format,
    is_gzip_name,
    no_objects,
    parquet_rows,
    texts_not_words,
)
from bothways.data.label_rows import BLANK, RowsWithoutLabel, class_label, converted, respelled
from bothways.data.labels import BLANKS, names_of, placed, reading_numbers
from bothways.data.lines import (
    LONGEST_IN_DOCUMENT,
    LONGEST_LINE,
    decoded_lines,
    decompressed,
    open_file,
    text_lines,
)
from bothways.data.tables import DataFrameLike, categories_of, is_column, plain, remedy, table_rows
from bothways.errors import InvalidInput, one_of

if TYPE_CHECKING:
    from bothways.text import Words

_READERS = {**TEXT_FORMATS, "json": json_rows}

Source = str | os.PathLike[str] | IO[str] | IO[bytes] | Iterable[Mapping[str, object] | Row] | DataFrameLike

# What rows made from CoNLL files hold beside words: the mark between documents, and comments.
_NO_WORD = re.compile(rf"{DOCUMENT}|#[ \t]+\S.*", re.DOTALL)

LabelT = TypeVar("LabelT", covariant=True)


class InputColumns(Protocol):
    """The columns of an input (a text, or the two texts of a pair), and how it is read from them."""

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The names of the columns."""

    def read(self, row: Row) -> object:
        """Return the input of a row."""


@dataclass(frozen=True, slots=True)
class Example(Generic[LabelT]):
    """An input (a text, a pair, the words of a text) with its converted label.

    Attributes:
        row: Its line or row in the source, from 1.
        where: A description of the row for messages, such as ``line 3 of 'train.csv'``.
        given: The label before the conversion.
    """

    text: Any
    label: LabelT
    row: int
    where: str = field(default="a row", compare=False)
    given: object = field(default=None, compare=False)

    @property
    def known_by(self) -> object:
        """The input, by which a training row is recognised."""
        return self.text


@dataclass(frozen=True, slots=True)
class LabelReading:
    """Rules for reading the labels of a column.

    Attributes:
        names: The labels that numbers stand for, in the order that was declared; empty if none was.
        normalise: True if labels that look alike are one label.
    """

    names: tuple[str, ...] = ()
    normalise: bool = False

    def with_options(self, normalise: bool | None, labels: Sequence[LabelValue] | None = None) -> "LabelReading":
        """Return the reading with the options of a call, which are None by default."""
        names = self.names if labels is None else names_of(labels)
        return LabelReading(names, self.normalise if normalise is None else normalise)


PLAIN_READING = LabelReading()


@dataclass(frozen=True, slots=True)
class TaggedRow:
    """The words of a row and their tags, with the row's number and its description for messages."""

    words: "Words"
    label: tuple[str, ...]
    where: str = field(default="a row", compare=False)
    row: int = field(default=0, compare=False)


def read_rows(
    source: Source,
    *,
    format: Format | None = None,  # noqa: A002 (the option's name)
    encoding: str | None = None,
    columns: Collection[str] | None = None,
) -> Iterator[Row]:
    """Yield the rows of a source.

    Args:
        source: A path, ``"-"`` for standard input, an open stream (not closed here), a DataFrame of pandas or polars, a
            Table of pyarrow, a Dataset of datasets, or a list or other iterable of mappings (or rows), but no iterator.
            Files have or lack a byte order mark, and are plain or compressed with gzip. In tables and mappings,
            NumPy values become Python values, missing ones (NaN, pandas.NA) become None, and the integers of a
            ``ClassLabel`` become names.
        format: Default: from the file's name; ``jsonl`` for standard input.
        encoding: Encoding of a file of text, such as ``"cp1252"`` or ``"utf-16"``. Default: UTF-8.
        columns: Columns to read from a Parquet file; None for all.

    Raises:
        InvalidInput: The source cannot be read, is malformed, or has no rows; the message says where.
        MissingDependency: The source is a Parquet file or Excel workbook, and pyarrow or openpyxl is not installed.
    """
    if format is not None:
        one_of("format", format, FORMATS)
    rows, name = _rows_of(source, _Reading(format, encoding, columns))
    first = next(rows, None)
    if first is None:
        raise InvalidInput(f"{name} is empty: expected at least one row.")
    yield first
    yield from rows


class ReadingArguments(TypedDict, total=False):
    """The options of `read_examples`."""

    text: str | tuple[str, ...] | InputColumns
    label: str
    format: Format | None
    encoding: str | None
    unlabelled: Unlabelled
    known: Collection[str]
    names: Sequence[str]
    normalise: bool | None


@overload
def read_examples(source: Source, **options: Unpack[ReadingArguments]) -> list[Example[str]]: ...


@overload
def read_examples(
    source: Source, *, convert: Callable[[object], LabelT], **options: Unpack[ReadingArguments]
) -> list[Example[LabelT]]: ...


def read_examples(
    source: Source,
    *,
    text: str | tuple[str, ...] | InputColumns = "text",
    label: str = "label",
    convert: Callable[[object], object] = class_label,
    format: Format | None = None,  # noqa: A002 (the option's name)
    encoding: str | None = None,
    unlabelled: Unlabelled = "error",
    known: Collection[str] = (),
    names: Sequence[str] = (),
    normalise: bool | None = None,
) -> list[Example[Any]]:
    """Read all labelled texts of a source.

    Args:
        source: As for `read_rows`.
        text: The text column, or several whose texts are joined by a space, or an `InputColumns` that reads them.
        label: The label column.
        convert: Converter of the labels: ``class_label``, ``label_set`` or ``number``.
        format: As for `read_rows`.
        encoding: As for `read_rows`.
        unlabelled: ``"drop"`` leaves out rows without a label, ``"error"`` refuses them, see `unlabelled_marks`.
        known: The classes of the model that reads the labels, if there is one.
        names: The labels that numbers stand for, in vectors or as places, see `bothways.data.labels.reading_numbers`.
        normalise: True to give labels that look alike one name, see `bothways.data.label_rows.one_spelling`.

    Raises:
        InvalidInput: As for `read_rows`, a row has no usable text or no label, or ``convert`` refuses a label.
    """
    columns: tuple[str, ...]
    read: Callable[[Row], object]
    if isinstance(text, str | Sequence):
        columns = (text,) if isinstance(text, str) else tuple(text)
        read = partial(text_at, columns=columns)
    else:
        columns, read = text.input_columns, text.read
    without, examples = RowsWithoutLabel(label, unlabelled, known, normalise), []
    blank = BLANKS.get(convert, BLANK)
    found = read_rows(source, format=format, encoding=encoding, columns={*columns, label})
    rows: Iterable[Row] = (row for row in found if not without.holds(row, blank))
    if names:
        rows = list(rows)
        convert = reading_numbers(convert, names, (row.values.get(label) for row in rows))
    for row in rows:
        value = converted(row, label, convert)
        examples.append(Example(read(row), value, row.number, row.where, row.values[label]))
    kept = without.settle(examples)
    if not normalise:
        return kept
    return [
        replace(each, label=name)
        for each, name in zip(kept, respelled([each.label for each in kept], known), strict=True)
    ]


def category_names(source: object, column: str | None) -> tuple[str, ...]:
    """Return the names of the categories of a column in their order, also of a Parquet file; see `categories_of`."""
    if column is None:
        return ()
    if isinstance(source, str | os.PathLike):
        found = _parquet_categories(str(source), column) if str(source).lower().endswith(".parquet") else ()
    else:
        found = categories_of(source, column)
    try:
        return tuple(map(class_label, found))
    except InvalidInput:  # of a category that does not occur, since the labels of the rows were read before
        return ()


def _parquet_categories(path: str, column: str) -> tuple[object, ...]:
    """Return the values of a dictionary column of a Parquet file that was read before, in their order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, pre_buffer=False) as file:
        schema = file.schema_arrow
        if column not in schema.names or not pa.types.is_dictionary(schema.field(column).type):
            return ()
        return categories_of(file.read(columns=[column]), column)


def read_tagged(
    source: Source,
    tokens: str = "tokens",
    tags: str = "tags",
    unlabelled: Unlabelled = "error",
    names: Sequence[str] = (),
) -> Iterator[TaggedRow]:
    """Yield words with their tags, row by row; see `read_rows`. Numbers are places among the ``names`` of tags.

    Raises:
        InvalidInput: As for `read_rows` and `words_at`, a row has different numbers of words and tags, or there are
            rows without tags that are not to be dropped.
    """
    without, count = RowsWithoutLabel(tags, unlabelled), 0
    for row in read_rows(source):
        if without.holds(row):
            continue
        words, labels = words_at(row, tokens), tags_at(row, tags, numbers=bool(names))
        if all(_NO_WORD.fullmatch(words[place]) for place in range(len(words))):
            continue
        if not labels:
            without.add(row.where, row.values[tags])
            continue
        if len(labels) != len(words):
            raise InvalidInput(
                f"{row.where} has {len(words)} words in {tokens!r} but {len(labels)} tags in {tags!r}: each word needs "
                "one tag."
            )
        for number, label in enumerate(labels, start=1):
            try:
                labels[number - 1] = placed(label, names)
            except InvalidInput as error:
                raise InvalidInput(f"{row.where}: tag {number} in {tags!r}: {error}") from error
            if not label.strip():
                raise InvalidInput(f"{row.where}: tag {number} in {tags!r} is empty. Expected a tag, such as 'O'.")
            if len(label) > 1 and label[-1] in ",;":
                raise InvalidInput(
                    f"{row.where}: tag {number} in {tags!r} is {label!r}. Expected tags with white space between, "
                    'or a list such as \'["B-PER", "O"]\'.'
                )
            check_encodable(label, f"{row.where}: tag {number} in {tags!r}")
        count += 1
        yield TaggedRow(words, tuple(labels), row.where, row.number)
    without.check(count)


@dataclass(frozen=True, slots=True)
class _Reading:
    """The arguments of `read_rows` about a file."""

    format: Format | None
    encoding: str | None
    columns: Collection[str] | None


def _rows_of(source: Source, reading: _Reading) -> tuple[Iterator[Row], str]:
    """Return the rows of any kind of source, and a name of the source for messages."""
    if isinstance(source, str | os.PathLike):
        if str(source) == "-":
            name = "standard input"
            return _stream_rows(_standard_input(), name, reading.format or "jsonl", reading), name
        path = Path(source)
        return _file_rows(path, reading), repr(str(path))
    name = "the given list" if isinstance(source, Sequence) else f"the given {type(source).__name__}"
    rows: Iterable[object] | None = table_rows(source, name)
    if rows is None and hasattr(source, "readline"):
        stream, file_name = cast("IO[bytes] | IO[str]", source), getattr(source, "name", None)
        if not isinstance(file_name, str):
            file_name, called = "", "the given stream"
        else:
            called = repr(file_name)
        return _stream_rows(stream, called, reading.format or guess_format(file_name), reading), called
    if rows is None:
        rows = _readable_again(source)
    given = {"format": reading.format, "encoding": reading.encoding}
    for option, value in given.items():
        if value is not None:
            raise InvalidInput(f"{option}: expected None for {name}, got {value!r}. It is for files and streams.")
    return _mapping_rows(rows, name), name


def _readable_again(source: object) -> Iterable[object]:
    """Return the source if it can be iterated more than once, as training may need; else raise InvalidInput."""
    advice = remedy(source)
    if advice is None:
        if is_column(source):
            advice = "It has no named columns: give the table that it belongs to, or a list of dicts."
        elif isinstance(source, Mapping):
            advice = "Put a single row into a list: [row]."
        elif isinstance(source, Iterator):
            advice = "It can be read only once: write list(rows)."
        elif isinstance(source, bytes | bytearray) or not isinstance(source, Iterable):
            advice = "Turn it into a list of dicts first."
        else:
            return source
    raise InvalidInput(
        "expected a path, '-', an open file, a DataFrame, an Arrow table, a Dataset or a list of dicts, got "
        f"{type(source).__name__}. {advice}"
    )


def _standard_input() -> IO[bytes] | IO[str]:
    if sys.stdin is None:
        raise InvalidInput("standard input is closed: expected rows from it. Pipe them in, or name a file.")
    # A test or a notebook may have replaced standard input by a text stream without a buffer of bytes.
    return cast("IO[bytes] | IO[str]", getattr(sys.stdin, "buffer", sys.stdin))


def _file_rows(path: Path, reading: _Reading) -> Iterator[Row]:
    with open_file(path) as stream:
        chosen = reading.format or guess_format(path.name)
        yield from _stream_rows(stream, repr(str(path)), chosen, reading, gzip_expected=is_gzip_name(path.name))


def _stream_rows(
    stream: IO[bytes] | IO[str], name: str, format_: Format, reading: _Reading, *, gzip_expected: bool = False
) -> Iterator[Row]:
    if format_ in ("parquet", "xlsx"):
        kind = "Parquet" if format_ == "parquet" else "an Excel workbook"
        # Both keep their index at the end, so the file must be seekable.
        if gzip_expected or isinstance(stream, io.TextIOBase) or not stream.seekable():
            raise InvalidInput(
                f"{name} cannot be read as {kind}: expected a plain file, not text, gzip or a pipe. "
                "Save it to a file without .gz (its content is already compressed)."
            )
        if format_ == "xlsx":
            return xlsx_rows(cast("IO[bytes]", stream), name)
        return parquet_rows(cast("IO[bytes]", stream), name, reading.columns)
    limit = LONGEST_IN_DOCUMENT if format_ == "json" else LONGEST_LINE
    if isinstance(stream, io.TextIOBase):
        if reading.encoding is not None:
            raise InvalidInput(
                f"encoding: expected None for {name}, which is decoded already, got {reading.encoding!r}. Give a "
                "stream of bytes, or open the file with this encoding."
            )
        lines = text_lines(cast("IO[str]", stream), name, limit)
    else:
        raw = decompressed(cast("IO[bytes]", stream), name, gzip_expected=gzip_expected)
        lines = decoded_lines(raw, name, limit, reading.encoding)
    if format_ not in ("jsonl", "json", "txt"):
        lines = no_objects(lines, name)
    rows = _READERS[format_](lines, name)
    return texts_not_words(rows, name) if format_ == "txt" and reading.format is None else rows


def _mapping_rows(rows: Iterable[object], name: str) -> Iterator[Row]:
    for number, values in enumerate(rows, start=1):
        if isinstance(values, Row):  # already read, with its place in the source
            yield values
            continue
        where = f"row {number} of {name}"
        if not isinstance(values, Mapping):
            raise InvalidInput(f"{where} is of type {type(values).__name__}. Expected a dict of column to value.")
        try:
            cells = {column: plain(value) for column, value in values.items()}
        except InvalidInput as error:
            raise InvalidInput(f"{where}: {error}") from error
        yield Row(number, cells, where)
