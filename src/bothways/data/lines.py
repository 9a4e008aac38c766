"""Lines of UTF-8 text from plain or gzip-compressed byte streams, with errors that say where.

One line is held at a time, so memory stays flat.
"""

import gzip
import itertools
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bothways.errors import InvalidInput
from bothways.reading import did_you_mean_path

GZIP_MAGIC = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
Bytes = IO[bytes] | gzip.GzipFile
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True)
class LineLimit:
    """A limit on lines: without one, a binary file or a decompression bomb would fill the memory.

    Attributes:
        size: In bytes, or in characters of a stream of text.
        advice: A sentence of advice for longer lines.
    """

    size: int
    advice: str


LONGEST_LINE = LineLimit(64 * 1024 * 1024, "Check that this is a text file with one row a line.")
# A document is read whole, and most are written on a single line. Its values take some four times as much.
LONGEST_IN_DOCUMENT = LineLimit(
    512 * 1024**2, "Save it as JSON Lines (.jsonl), one object a line, which is read a row at a time."
)
MAX_BLANK_LINES = 1_000_000
"""Maximum in succession: a gigabyte of them fits into a few megabytes of gzip, and takes many minutes to pass over."""


def open_file(path: Path) -> IO[bytes]:
    """Open a file for reading bytes, or raise InvalidInput."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        near = did_you_mean_path(path)
        raise InvalidInput(f"there is no file {str(path)!r}.{near} Check the path and its spelling.") from None
    except IsADirectoryError:
        raise InvalidInput(f"{str(path)!r} is a folder: expected a file. Name one file in it.") from None
    except PermissionError:
        raise InvalidInput(
            f"permission denied: {str(path)!r} may not be read by this user. Change its permissions or copy it."
        ) from None
    except OSError as error:
        raise InvalidInput(f"{str(path)!r} could not be opened: {error.strerror}.") from error
    except ValueError as error:  # a NUL character in the path
        raise InvalidInput(f"{str(path)!r} is not a path: {error}.") from error


def decompressed(stream: IO[bytes], name: str, *, gzip_expected: bool) -> Bytes:
    """Return the stream itself, or a view that decompresses it if it starts like gzip data; neither is closed.

    No UTF-8 text starts with the two bytes of gzip.

    Raises:
        InvalidInput: gzip was expected (by the file's name) and the stream starts otherwise, or it cannot be read.
    """
    try:
        head = _first_bytes(stream)
    except OSError as error:
        raise InvalidInput(
            f"{name} could not be read: {_reason(error)}. Expected a file or a pipe that is open for reading."
        ) from error
    if head == GZIP_MAGIC:
        return gzip.GzipFile(fileobj=stream, mode="rb")
    if gzip_expected and head:
        raise InvalidInput(
            f"{name} is not gzip data, although its name ends in '.gz'. Compress it, or drop '.gz' from its name."
        )
    return stream


def _first_bytes(stream: IO[bytes]) -> bytes:
    if hasattr(stream, "peek"):
        return bytes(stream.peek(2)[:2])
    if not stream.seekable():
        return b""
    position = stream.tell()
    head = stream.read(2)
    stream.seek(position)
    return head


def decoded_lines(stream: Bytes, name: str, limit: LineLimit = LONGEST_LINE) -> Iterator[str]:
    r"""Yield lines with their line ends, decoded from UTF-8, without a byte order mark.

    Only ``\n`` ends a line, so the other separators of ``str.splitlines`` stay in texts.

    Raises:
        InvalidInput: A line is not UTF-8 or too long, a million lines in a row are blank, or the compressed data is
            truncated or broken.
    """
    offset = blank = 0
    for number in itertools.count(1):
        line = _read_line(stream, name, number, limit)
        if not line:
            return
        mark = len(BYTE_ORDER_MARK) if number == 1 and line.startswith(BYTE_ORDER_MARK) else 0
        try:
            text = line[mark:].decode("utf-8")
        except UnicodeDecodeError as error:
            at = mark + error.start
            hint = "It looks like UTF-16: save" if number == 1 and line.startswith(UTF16_MARKS) else "Save"
            raise InvalidInput(
                f"line {number} of {name} is not UTF-8: byte 0x{line[at]:02x} at byte offset {offset + at} "
                f"(column {at + 1} of the line). {hint} the file as UTF-8."
            ) from None
        if not text:  # a byte order mark and nothing else
            return
        blank = _checked_blank(text, blank, name, number)
        yield text
        offset += len(line)


def text_lines(stream: IO[str], name: str, limit: LineLimit = LONGEST_LINE) -> Iterator[str]:
    """Yield lines with their line ends from a text stream.

    Raises:
        InvalidInput: The stream's own decoding failed, a line is too long, or a million in a row are blank.
    """
    blank = 0
    for number in itertools.count(1):
        try:
            line = stream.readline(limit.size + 1)
        except UnicodeDecodeError as error:
            raise InvalidInput(
                f"line {number} of {name} or one soon after it is not {error.encoding}: {error.reason}."
            ) from error
        _check_length(line, name, number, limit)
        if not line:
            return
        blank = _checked_blank(line, blank, name, number)
        yield line


def _read_line(stream: Bytes, name: str, number: int, limit: LineLimit) -> bytes:
    try:
        line = stream.readline(limit.size + 1)
    except EOFError:
        raise InvalidInput(
            f"{name} is truncated: the gzip data ends in line {number}, before its end marker. Fetch the file again."
        ) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InvalidInput(
            f"{name} is broken: its gzip data cannot be decompressed at line {number} ({error}). Fetch the file again."
        ) from error
    except OSError as error:
        raise InvalidInput(f"{name} could not be read at line {number}: {_reason(error)}.") from error
    _check_length(line, name, number, limit)
    return line


def _checked_blank(line: str, blank: int, name: str, number: int) -> int:
    if not line.isspace():
        return 0
    if blank == MAX_BLANK_LINES:
        raise InvalidInput(
            f"{blank:,} lines of {name} up to line {number - 1:,} are blank: expected rows. Check what the file is."
        )
    return blank + 1


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def _check_length(line: str | bytes, name: str, number: int, limit: LineLimit) -> None:
    if len(line) > limit.size:
        raise InvalidInput(f"line {number} of {name} is longer than {limit.size // 2**20} MiB. {limit.advice}")
