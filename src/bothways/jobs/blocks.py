"""Blocks of the input of a job: the unit of retry and of output.

A file of lines is cut after so many bytes: a block has the lines that begin in its range. A file of records with
quotes (.csv, .tsv) is read once and cut between two records, a Parquet file after so many rows. Other files, and
compressed ones, are one block each.
"""

import csv
import io
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import IO, Literal, NamedTuple

from bothways.choices import Format
from bothways.data.columns import Row
from bothways.data.formats import (
    FileSettings,
    guess_format,
    named_separator,
    parquet_rows,
    row_group_sizes,
    separator_of,
)
from bothways.data.lines import BYTE_ORDER_MARK, GZIP_MAGIC, LONGEST_LINE, decompressed
from bothways.data.sources import read_rows
from bothways.errors import InvalidInput
from bothways.jobs.files import FileState, opened, state_of

Unit = Literal["lines", "records", "rows", "whole"]

BLOCK_BYTES = 2**20
BLOCK_ROWS = 10_000
# Rows that are held at a time; a block of a compressed file may have any number.
ROWS_AT_ONCE = 10_000
# Encodings whose line ends are those of ASCII.
_LINES: dict[Format, Unit] = {"jsonl": "lines", "txt": "lines", "csv": "records", "tsv": "records"}


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of the input: how it is read, and where it is cut.

    Attributes:
        state: The file as it was when the job began.
        format: Its format.
        encoding: The encoding of a file of text; None for UTF-8.
        unit: What its blocks consist of.
        cuts: The begin of each block and the end of the last one, in bytes or rows.
        header: The lines above the records, as they are put before those of each block.
    """

    state: FileState
    format: Format
    encoding: str | None
    unit: Unit
    cuts: tuple[int, ...]
    header: bytes = b""


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a file: lines that begin from byte ``start`` to ``end``, records between them, or rows."""

    number: int
    file: InputFile
    start: int
    end: int


class Rejected(NamedTuple):
    """A row that could not be read or computed.

    Attributes:
        file: The path or URL of its file.
        line: Its line in the file or in the block, its row in a Parquet file; None for a whole file.
        reason: The error.
    """

    file: str
    line: int | None
    reason: str


class Chunk(NamedTuple):
    """Some rows of a block, and those that could not be read; lines are counted from the begin of the block."""

    rows: list[Row]
    rejected: list[Rejected]


def plan(states: Iterable[FileState], settings: FileSettings, block_bytes: int = BLOCK_BYTES) -> Iterator[InputFile]:
    """Yield the files of the input with their cuts.

    Raises:
        InvalidInput: The format of a file cannot be told by its name, or a file cannot be read.
    """
    for state in states:
        format_ = settings["format"] or guess_format(state.url.rpartition("/")[2])
        whole = InputFile(state, format_, settings["encoding"], "whole", (0, max(state.size, 1)))
        unit = _LINES.get(format_)
        if format_ == "parquet":
            yield _of_rows(whole)
        elif unit is None or not _is_plain(whole):
            yield whole
        elif unit == "lines":
            yield replace(whole, unit=unit, cuts=(*range(0, state.size, block_bytes), max(state.size, 1)))
        else:
            yield _of_records(whole, block_bytes)


def blocks_of(files: Iterable[InputFile]) -> Iterator[Block]:
    """Yield the blocks of files, numbered from 0."""
    number = 0
    for file in files:
        for start, end in zip(file.cuts, file.cuts[1:], strict=False):
            yield Block(number, replace(file, cuts=()), start, end)
            number += 1


def count_of(files: Iterable[InputFile]) -> int:
    """Return the number of blocks of files."""
    return sum(max(0, len(file.cuts) - 1) for file in files)


def _is_plain(file: InputFile) -> bool:
    """Return True for a file that can be cut at its bytes: not compressed, with the line ends of ASCII."""
    if file.encoding is not None and "\n".encode(file.encoding) != b"\n":
        return False
    with opened(file.state.url) as stream:
        return stream.read(2) != GZIP_MAGIC


def _of_rows(file: InputFile) -> InputFile:
    """Cut a Parquet file; one that is damaged is a block whose rows are rejected when it is read."""
    try:
        with opened(file.state.url) as stream:
            groups = row_group_sizes(stream, repr(file.state.url))
    except InvalidInput:
        return file
    cuts = [0]
    for end in accumulate(groups):
        # Small groups are read together, large ones in parts.
        while end - cuts[-1] > BLOCK_ROWS:
            cuts.append(cuts[-1] + BLOCK_ROWS)
    total = sum(groups)
    cuts += [total] if cuts[-1] < total or total == 0 else []
    return replace(file, unit="rows", cuts=tuple(cuts))


def _of_records(file: InputFile, block_bytes: int) -> InputFile:
    with opened(file.state.url) as stream:
        first = stream.readline()
        named = named_separator(_text(first))
        above = first if named else b""
        separator = named or _separator(file.format, [first, *islice(stream, 20)])
        stream.seek(len(above))
        ends = record_ends(stream, separator, len(above))
        cuts = [next(ends, file.state.size)]
        for end in ends:
            if end - cuts[-1] >= block_bytes:
                cuts.append(end)
        stream.seek(0)
        header = stream.read(cuts[0])
    if cuts[0] >= file.state.size:
        return file  # no rows: refused when it is read
    cuts += [file.state.size] if cuts[-1] < file.state.size else []
    if file.format == "csv" and not named:
        header = f"sep={separator}\n".encode() + header.removeprefix(BYTE_ORDER_MARK)
    return replace(file, unit="records", cuts=tuple(cuts), header=header)


def _text(line: bytes) -> str:
    """Return a line for finding separators and quotes, which are ASCII."""
    return line.removeprefix(BYTE_ORDER_MARK).decode("latin-1")


def _separator(format_: Format, lines: Sequence[bytes]) -> str:
    """Return the separator of a table, given its first lines."""
    if named := named_separator(_text(lines[0])):
        return named
    return "\t" if format_ == "tsv" else separator_of(_text(lines[0]), map(_text, lines[1:]))[0]


def record_ends(stream: Iterable[bytes], separator: str, place: int = 0) -> Iterator[int]:
    """Yield the place after each record of a table in bytes; nothing after a record that cannot be read."""

    def counted() -> Iterator[str]:
        nonlocal place
        for line in stream:
            text = _text(line) if not place else line.decode("latin-1")
            place += len(line)
            yield text

    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE.size))
    try:
        for _ in csv.reader(counted(), delimiter=separator, strict=True):
            yield place
    except csv.Error:
        return


# --- reading ---


def chunks(block: Block, columns: Collection[str] | None) -> Iterator[Chunk]:
    """Yield the rows of a block; ``columns`` are read from a Parquet file, None for all.

    Raises:
        InvalidInput: The file is another one than when the job began.
    """
    check_unchanged(block.file.state)
    match block.file.unit:
        case "lines":
            yield from _chunks_of(_lines(block), block)
        case "records":
            yield from _chunks_of(_records(block), block)
        case "rows":
            yield from _row_chunks(block, columns)
        case "whole":
            yield from _whole_chunks(block, columns)
    check_unchanged(block.file.state)


def check_unchanged(state: FileState) -> None:
    """Raise InvalidInput if a file has changed since the job began."""
    now = state_of(state.url)
    if now != state:
        raise InvalidInput(
            f"{state.url!r} has changed since the job began: it has {now.size:,} bytes of version {now.version}, and "
            f"had {state.size:,} of version {state.version}. Put the file back, or begin again elsewhere."
        )


def _lines(block: Block) -> Iterator[bytes]:
    with opened(block.file.state.url) as stream:
        if block.file.unit == "whole":
            yield from decompressed(stream, repr(block.file.state.url), gzip_expected=False)
            return
        if block.start:  # the rest of a line that begins in the block before
            stream.seek(block.start - 1)
            stream.readline()
        while stream.tell() < block.end and (line := stream.readline()):
            yield line


def _records(block: Block) -> Iterator[bytes]:
    with opened(block.file.state.url) as stream:
        stream.seek(block.start)
        content = stream.read(block.end - block.start)
    separator = _separator(block.file.format, block.file.header.splitlines(keepends=True))
    begin = 0
    for end in record_ends(io.BytesIO(content), separator):
        yield content[begin:end]
        begin = end
    if begin < len(content):
        yield content[begin:]


def _chunks_of(units: Iterator[bytes], block: Block) -> Iterator[Chunk]:
    line = 1
    while part := list(islice(units, ROWS_AT_ONCE)):
        chunk = Chunk([], [])
        _read_halves(block, part, line, chunk)
        line += sum(unit.count(b"\n") for unit in part)
        yield chunk


def _read_halves(block: Block, units: Sequence[bytes], line: int, chunk: Chunk) -> None:
    """Read lines or records, all at once or, if that fails, each half."""
    try:
        chunk.rows.extend(_parsed(block, units, line))
    except InvalidInput as error:
        if len(units) == 1:
            chunk.rejected.append(Rejected(block.file.state.url, line, reason_of(error, block)))
            return
        half = len(units) // 2
        _read_halves(block, units[:half], line, chunk)
        _read_halves(block, units[half:], line + sum(unit.count(b"\n") for unit in units[:half]), chunk)


class _Named(io.BytesIO):
    """Bytes with the name of their file, for messages."""

    name: str


def _parsed(block: Block, units: Sequence[bytes], line: int) -> list[Row]:
    """Return the rows of some lines or records, with their lines in the block."""
    content = b"".join(units)
    if block.file.format != "txt" and not content.strip():
        return []
    stream = _Named(block.file.header + content)
    stream.name = block.file.state.url
    above = block.file.header.count(b"\n")
    rows = read_rows(stream, format=block.file.format, encoding=block.file.encoding)
    return [replace(row, number=row.number - above + line - 1) for row in rows]


def _row_chunks(block: Block, columns: Collection[str] | None) -> Iterator[Chunk]:
    """Read rows of a Parquet file; a file that is damaged there has its rest rejected."""
    url, number = block.file.state.url, block.start
    try:
        with opened(url) as stream:
            rows = parquet_rows(stream, repr(url), columns, range(block.start, block.end))
            while part := list(islice(rows, ROWS_AT_ONCE)):
                number = part[-1].number
                yield Chunk(part, [])
    except InvalidInput as error:
        yield Chunk([], [Rejected(url, number + 1, reason_of(error, block))])


def _whole_chunks(block: Block, columns: Collection[str] | None) -> Iterator[Chunk]:
    file = block.file
    if file.format in ("jsonl", "txt"):
        yield from _chunks_of(_lines(block), block)
        return
    number = 0
    try:
        with opened(file.state.url) as remote:
            stream = _Named(remote.read()) if "://" in file.state.url else remote
            rows = read_rows(stream, format=file.format, encoding=file.encoding, columns=columns)
            while part := list(islice(rows, ROWS_AT_ONCE)):
                number = part[-1].number
                yield Chunk(part, [])
    except InvalidInput as error:
        yield Chunk([], [Rejected(file.state.url, number + 1 if number else None, reason_of(error, block))])


def reason_of(error: BaseException, block: Block) -> str:
    """Return the message of an error about a row, without the row's place in the block."""
    place = rf"\b(?:line|row) \d+ of {re.escape(repr(block.file.state.url))}"
    return re.sub(place, "the row", str(error) or type(error).__name__)


def lines_above(url: str, blocks: Sequence[Block]) -> dict[int, int]:
    """Return the number of lines above each of some blocks of a file, by the number of the block.

    Rows of Parquet files and of files that are not cut have their numbers in the file already: 0 for their blocks.
    """
    found = dict.fromkeys((block.number for block in blocks), 0)
    cut = sorted(
        (block for block in blocks if block.start and block.file.unit in ("lines", "records")),
        key=lambda each: each.start,
    )
    if not cut:
        return found
    lines = place = 0
    with opened(url) as stream:
        for block in cut:
            # The line that goes on where a block of lines begins is that of the block before.
            across = block.file.unit == "lines"
            lines += _line_ends(stream, block.start - across - place)
            place = block.start - across
            found[block.number] = lines + across
    return found


def _line_ends(stream: IO[bytes], size: int) -> int:
    found = 0
    while size > 0 and (part := stream.read(min(size, 2**22))):
        found += part.count(b"\n")
        size -= len(part)
    return found
