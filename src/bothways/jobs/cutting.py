"""Lines and records of files as bytes: where they end, and the header of a table."""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from bothways.choices import Format
from bothways.data.formats import named_separator, separator_of
from bothways.data.lines import BYTE_ORDER_MARK, LONGEST_LINE, Bytes, check_encoding

# Encodings in which a byte means one thing or another after an escape.
_WITH_SHIFTS = ("iso2022", "hz", "utf-7")
# Ends of lines as `bothways.data.lines` has them, and lines with them.
_LINE_END, _BARE_RETURN = re.compile(rb"\r\r?\n|\r|\n"), re.compile(rb"\r(?!\r?\n)")
LINE = re.compile(rb"[^\r\n]*(?:\r\r?\n|\r|\n)|[^\r\n]+")


def is_like_ascii(encoding: str | None) -> bool:
    """Return True for an encoding in which the bytes of line ends and quotes have no other meaning."""
    name = "utf-8" if encoding is None else check_encoding(encoding)
    return "\n".encode(name) == b"\n" and not name.startswith(_WITH_SHIFTS)


def lines_of(stream: Bytes, end: int | None = None) -> Iterator[bytes]:
    """Yield the lines of a stream that begin before ``end``; of one that is too long only the begin, which says so."""
    while (end is None or stream.tell() < end) and (line := stream.readline(LONGEST_LINE.size + 1)):
        if len(line) > LONGEST_LINE.size and not line.endswith(b"\n"):
            line += b"\n"
            skip_line(stream)
        yield line


def skip_line(stream: Bytes) -> None:
    """Read to the end of a line, however long it is."""
    while (part := stream.readline(2**20)) and not part.endswith(b"\n"):
        pass


def line_count(content: bytes) -> int:
    """Return the number of ends of lines."""
    return len(_LINE_END.findall(content)) if b"\r" in content else content.count(b"\n")


class RecordsHeader(NamedTuple):
    """The lines above the records of a table, with the blank ones before it, and what separates columns."""

    content: bytes
    separator: str

    def above_records(self, format_: Format) -> bytes:
        """Return the lines as they are put before the records of each block: they name what separates columns."""
        if format_ != "csv" or named_separator(text_of(self.content.splitlines(keepends=True)[0])):
            return self.content
        return f"sep={self.separator}\n".encode() + self.content.removeprefix(BYTE_ORDER_MARK)


def header_of(stream: Bytes, format_: Format) -> RecordsHeader | None:
    """Read the header of a table, after which the stream stands; None if its lines end with carriage returns."""
    lines = lines_of(stream)
    first = next(lines, b"")
    if _BARE_RETURN.search(first):
        return None
    named = named_separator(text_of(first))
    separator = named or separator_in(format_, [first, *islice(lines, 20)])
    content = first if named else b""
    stream.seek(len(content))
    for record in records(lines_of(stream), separator, at_start=not content):
        content += record
        if record.removeprefix(BYTE_ORDER_MARK).strip(b"\r\n"):
            break
    stream.seek(len(content))
    return RecordsHeader(content, separator) if content else None


def records(lines: Iterable[bytes], separator: str, *, at_start: bool = False) -> Iterator[bytes]:
    """Yield the bytes of each record of a table; one that cannot be read ends with the line that shows it."""
    held: list[bytes] = []

    def taken() -> Iterator[str]:
        for number, line in enumerate(lines):
            held.append(line)
            yield text_of(line) if at_start and not number else line.decode("latin-1")

    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE.size))
    source, more = taken(), True
    while more:
        more = False
        try:
            for _ in csv.reader(source, delimiter=separator, strict=True):
                yield b"".join(held)
                held.clear()
        except csv.Error:
            more = True
        if held:
            yield b"".join(held)
            held.clear()


def text_of(line: bytes) -> str:
    """Return a line for finding separators and quotes, which are ASCII."""
    return line.removeprefix(BYTE_ORDER_MARK).decode("latin-1")


def separator_in(format_: Format, lines: Sequence[bytes]) -> str:
    """Return the separator of a table, given its first lines."""
    return "\t" if format_ == "tsv" else separator_of(text_of(lines[0]), map(text_of, lines[1:]))[0]
