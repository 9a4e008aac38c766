"""Rows of blocks, and the rows that cannot be read, with their lines."""

import gzip
import io
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import IO, NamedTuple, TypeVar

from bothways.data.columns import Row
from bothways.data.formats import named_separator, parquet_rows
from bothways.data.lines import Bytes, decompressed
from bothways.data.sources import read_rows
from bothways.errors import InvalidInput
from bothways.jobs.blocks import LINES, Block, InputFile
from bothways.jobs.cutting import (
    LINE,
    RecordsHeader,
    header_of,
    is_like_ascii,
    line_count,
    lines_of,
    records,
    separator_in,
    skip_line,
    text_of,
)
from bothways.jobs.files import FileState, is_remote, opened, state_of

# Rows that are held at a time, and their bytes; a block of a compressed file may have any number.
ROWS_AT_ONCE, BYTES_AT_ONCE = 10_000, 2**24

_DAMAGED = "the gzip data is damaged from here on ({}). Fetch the file again."

_T = TypeVar("_T")


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
        if block.start:  # the rest of a line that begins in the block before
            stream.seek(block.start - 1)
            skip_line(stream)
        yield from lines_of(stream, block.end)


def _records(block: Block) -> Iterator[bytes]:
    with opened(block.file.state.url) as stream:
        stream.seek(block.start)
        content = stream.read(block.end - block.start)
    first = text_of(block.file.header.splitlines(keepends=True)[0])
    yield from records(io.BytesIO(content), named_separator(first) or separator_in(block.file.format, [b""]))


def _portions(items: Iterator[_T], size: Callable[[_T], int]) -> Iterator[tuple[list[_T], Exception | None]]:
    """Yield items, so many that memory holds them, and the error with which they end, if it is the data's."""
    part: list[_T] = []
    total = 0
    try:
        for item in items:
            part.append(item)
            total += size(item)
            if len(part) == ROWS_AT_ONCE or total >= BYTES_AT_ONCE:
                yield part, None
                part, total = [], 0
    except (InvalidInput, EOFError, gzip.BadGzipFile, zlib.error) as error:
        yield part, error
    else:
        if part:
            yield part, None


def _chunks_of(units: Iterator[bytes], block: Block, line: int = 1) -> Iterator[Chunk]:
    for part, error in _portions(units, len):
        chunk = Chunk([], [])
        _read_halves(block, part, line, chunk)
        line += sum(map(line_count, part))
        if error is not None:
            chunk.rejected.append(Rejected(block.file.state.url, line, _DAMAGED.format(error)))
        yield chunk


def _read_halves(block: Block, units: Sequence[bytes], line: int, chunk: Chunk) -> None:
    """Read lines or records, all at once or, if that fails, each half."""
    if not units:
        return
    try:
        chunk.rows.extend(_parsed(block, units, line))
    except InvalidInput as error:
        if len(units) == 1:
            units = LINE.findall(units[0]) if LINES[block.file.format] == "lines" else units
        if len(units) == 1:
            chunk.rejected.append(Rejected(block.file.state.url, line, reason_of(error, block)))
            return
        half = len(units) // 2
        _read_halves(block, units[:half], line, chunk)
        _read_halves(block, units[half:], line + sum(map(line_count, units[:half])), chunk)


def _parsed(block: Block, units: Sequence[bytes], line: int) -> list[Row]:
    """Return the rows of some lines or records, with their lines in the block."""
    content, above, file = b"".join(units), block.file.header, block.file
    if _is_blank(content, file):
        return []
    if not above and (block.start or line > 1):
        # The first line of a file is read in its own way, so another line comes first, with the same line end.
        above = units[0][len(units[0].rstrip(b"\r\n")) :] or b"\n"
    rows = read_rows(_named(above + content, file.state.url), format=file.format, encoding=file.encoding)
    before = line_count(above)
    return [Row(row.number - before + line - 1, row.values, row.where) for row in rows if row.number > before]


def _is_blank(content: bytes, file: InputFile) -> bool:
    """Return True for lines that are no rows."""
    if file.format == "jsonl":
        return not content.strip() or not content.decode(file.encoding or "utf-8", "replace").strip("\ufeff").strip()
    return file.format != "txt" and not content.strip(b"\r\n")


def _row_chunks(block: Block, columns: Collection[str] | None) -> Iterator[Chunk]:
    """Read rows of a Parquet file; a file that is damaged there has its rest rejected."""
    url = block.file.state.url
    with opened(url) as stream:
        yield from _of_read(parquet_rows(stream, repr(url), columns, range(block.start, block.end)), block, block.start)


def _of_read(rows: Iterator[Row], block: Block, number: int | None = None) -> Iterator[Chunk]:
    """Yield rows; where they end with an error, the rest of the file is rejected."""
    for part, error in _portions(rows, lambda _: 0):
        number = part[-1].number if part else number
        chunk = Chunk(part, [])
        if error is not None:
            place = re.search(rf"\b(?:line|row) ([\d,]+) of {re.escape(repr(block.file.state.url))}", str(error))
            line = int(place[1].replace(",", "")) if place else None if number is None else number + 1
            chunk.rejected.append(Rejected(block.file.state.url, line, reason_of(error, block)))
        yield chunk


def _whole_chunks(block: Block, columns: Collection[str] | None) -> Iterator[Chunk]:
    file, url = block.file, block.file.state.url
    with opened(url) as stream:
        if file.format in LINES:
            try:
                raw = decompressed(stream, repr(url), gzip_expected=False)
                found = _header_in(raw, file)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                yield Chunk([], [Rejected(url, 1, _DAMAGED.format(error))])
                return
            if found is not None:
                units = records(lines_of(raw), found.separator) if found.content else lines_of(raw)
                headed = replace(block, file=replace(file, header=found.content and found.above_records(file.format)))
                yield from _chunks_of(units, headed, 1 + line_count(found.content))
                return
        stream.seek(0)
        source = _named(stream.read(), url) if is_remote(url) else url
        yield from _of_read(read_rows(source, format=file.format, encoding=file.encoding, columns=columns), block)


def _header_in(stream: Bytes, file: InputFile) -> RecordsHeader | None:
    """Return the header of a file that is read line by line, empty where it has none; None for other files."""
    if not stream.read(1):
        return RecordsHeader(b"", "")
    stream.seek(0)
    if not is_like_ascii(file.encoding):
        return None
    return header_of(stream, file.format) if LINES[file.format] == "records" else RecordsHeader(b"", "")


class _Named(io.BytesIO):
    """Bytes with the name of their file, for messages."""

    name: str


def _named(content: bytes, url: str) -> _Named:
    stream = _Named(content)
    stream.name = url
    return stream


def reason_of(error: BaseException, block: Block) -> str:
    """Return the message of an error about a row, without the row's place in the block."""
    place = rf"(?:the row that starts on )?\b(?:line|row) [\d,]+ of {re.escape(repr(block.file.state.url))}"
    reason = re.sub(place, "the row", str(error) or type(error).__name__)
    return re.sub(r"at byte offset \d+ \(column (\d+) of the line\)", r"at byte \1 of the line", reason)


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
            begin = block.start
            if block.file.unit == "lines":  # behind the line that goes on there
                stream.seek(block.start - 1)
                skip_line(stream)
                begin = stream.tell()
            stream.seek(place)
            lines += _line_ends(stream, begin - place)
            place = begin
            found[block.number] = lines
    return found


def _line_ends(stream: IO[bytes], size: int) -> int:
    found, held = 0, b""
    while size > 0 and (part := stream.read(min(size, 2**22))):
        size -= len(part)
        part = held + part
        held = part[len(part.rstrip(b"\r")) :]  # a line feed may follow
        found += line_count(part[: len(part) - len(held)])
    return found + line_count(held)
