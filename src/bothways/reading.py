"""Bounded reading of untrusted files: regular files only, limited bytes, JSON of limited size, lines of limited length.

A named pipe or a device may have no end, so a model or index file of this kind is refused. Data may come from one: all
formats of text read their lines by one rule for line ends, from UTF-8, plain or compressed with gzip, or from text
streams. Only one line at a time is in memory, except in files without line feeds.
"""

import codecs
import gzip
import io
import itertools
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, AnyStr, Generic

from bothways.errors import CorruptCheckpoint, InvalidInput, UnknownModel, nearest

MIB = 2**20

MAX_JSON = 32 * MIB
"""Maximum bytes of a JSON file with settings, which is 10,000 times the usual size."""

# A tokenizer with a million tokens has 3 million values.
_MAX_VALUES = 8_000_000
_MAX_DEPTH = 100
# Maximum number of names in a folder to compare with a misspelt one.
_MAX_NAMES = 1000
# Valid integers are shorter: int(1e30), which tokenizers write for "no limit", has 31 digits, a 64-bit id 19.
_MAX_DIGITS = 100


def did_you_mean_path(path: Path) -> str:
    """Return a hint for the end of an error message: the most similar path in the folder; empty if none is similar."""
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in itertools.islice(entries, _MAX_NAMES)]
    except OSError:
        return ""
    near = nearest(path.name, names)
    return "" if near is None else f" Did you mean {str(path.parent / near)!r}?"


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading bytes; refuse a pipe or a device without blocking."""
    waitless = getattr(os, "O_NONBLOCK", 0)
    try:
        stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | waitless))  # noqa: SIM115
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # a name with a null character is a ValueError
        reason = error.strerror if isinstance(error, OSError) else error
        raise UnknownModel(
            f"{str(path)!r} cannot be read ({reason}): check that it is a file and that you may read it."
        ) from error
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise CorruptCheckpoint(
            f"expected {str(path)!r} to be a regular file, but it is a pipe or a device. Put a file there."
        )
    return stream


def read_bytes(path: Path, max_bytes: int = MAX_JSON) -> bytes:
    """Read a regular file of at most ``max_bytes`` bytes."""
    with open_regular(path) as stream:
        if os.fstat(stream.fileno()).st_size <= max_bytes and len(content := stream.read(max_bytes + 1)) <= max_bytes:
            return content
    raise CorruptCheckpoint(
        f"expected {str(path)!r} to have at most {max_bytes // MIB} MiB, but it is larger: it is damaged, or another "
        "kind of file. Download or create it again."
    )


class JsonTooLarge(ValueError):
    """JSON that exceeds a limit: too many values, nested too deeply, or a number with too many digits."""


def parse_json(content: bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:  # noqa: ANN401 (what json.loads returns)
    """Parse bounded JSON in UTF-8 or raise ValueError; ``pairs`` is the ``object_pairs_hook`` of `json.loads`."""
    if sum(map(content.count, (b",", b"[", b"{"))) > _MAX_VALUES:
        raise JsonTooLarge(f"more than {_MAX_VALUES} values")
    try:
        value = json.loads(content.decode("utf-8"), parse_int=_whole, object_pairs_hook=pairs)
    except RecursionError as error:
        raise JsonTooLarge("nested too deeply") from error
    _check_depth(value)
    if b"\\u" in content:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError("a \\u escape is half of a surrogate pair") from error
    return value


def _whole(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise JsonTooLarge(f"a whole number of {len(digits)} digits")
    return int(digits)


def _check_depth(value: object) -> None:
    level, depth = [value], 0
    while level:
        if depth > _MAX_DEPTH:
            raise JsonTooLarge(f"nested more than {_MAX_DEPTH} levels deep")
        level, depth = [part for each in level for part in _parts(each)], depth + 1


def _parts(value: object) -> Collection[object]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


# --- lines of data ---

GZIP_MAGIC = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
Bytes = IO[bytes] | gzip.GzipFile
# They split lines at the separators of Unicode.
_CODECS: tuple[type, ...] = (codecs.StreamReaderWriter, codecs.StreamReader)
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True)
class LineLimit:
    """A maximum length in bytes or characters, against binary files and decompression bombs; advice for the message."""

    size: int
    advice: str


LONGEST_LINE = LineLimit(64 * 1024 * 1024, "Check that this is a text file with one row per line.")
# A JSON document is read whole, and most are a single line. The parsed values take about four times as much memory.
LONGEST_IN_DOCUMENT = LineLimit(
    512 * 1024**2, "Save it as JSON Lines (.jsonl), one object per line, which is read row by row."
)
MAX_BLANK_LINES = 1_000_000
"""Maximum number of consecutive blank lines: a gzip file of a few megabytes can hold a gigabyte of them."""


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
    """Return the stream, in a `gzip.GzipFile` if it begins with the two bytes of gzip, as no UTF-8 text does."""
    if isinstance(stream, _CODECS):
        raise InvalidInput(f"{name} is a codecs.{type(stream).__name__}: expected a file opened with open(path, 'rb').")
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

    A line ends with ``\n``, ``\r\n`` or ``\r``, in any mixture, or with ``\r\r\n``, which results when ``\r\n`` is
    translated twice. All other separators of ``str.splitlines`` stay in texts.
    """
    offset = blank = 0
    read = partial(_read_bytes, stream, name, limit)
    for number, line in enumerate(_split(read, _IN_BYTES, name, limit), start=1):
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
    """Yield lines with their line ends from a text stream, as `decoded_lines` does."""
    blank = 0
    for number, line in enumerate(_split(partial(_read_text, stream, name, limit), _IN_TEXT, name, limit), start=1):
        blank = _checked_blank(line, blank, name, number)
        yield line


def unended_lines(lines: Iterable[str], name: str) -> Iterator[tuple[int, str]]:
    r"""Yield the number and the text of each line, for formats in which an empty line has a meaning.

    Between lines with other ends, ``\r\r\n`` may be one line end or a line end and an empty line, so it is refused.
    """
    first: bool | None = None
    for number, line in enumerate(lines, start=1):
        text = line.rstrip("\r\n")
        doubled = line.endswith("\r\r\n")
        first = doubled if first is None else first
        if doubled != first and len(text) < len(line):
            ended = " ".join(f"0x{ord(mark):02x}" for mark in line[len(text) :])
            raise InvalidInput(
                f"line {number} of {name} ends with {ended} after {len(text.encode())} bytes, unlike the lines before "
                "it. The bytes 0x0d 0x0d 0x0a may be one line end, or two with an empty line between them: save the "
                "file with one kind of line end, such as \\n."
            )
        yield number, text


@dataclass(frozen=True, slots=True)
class _Marks(Generic[AnyStr]):
    """The marks that end lines, as bytes or as text."""

    carriage_return: AnyStr
    line_feed: AnyStr
    ends: re.Pattern[AnyStr]
    """Line ends with a carriage return that no further data can make longer."""


_IN_BYTES = _Marks(b"\r", b"\n", re.compile(rb"\r(?:\r?\n|(?!\r?\Z))"))
_IN_TEXT = _Marks("\r", "\n", re.compile(r"\r(?:\r?\n|(?!\r?\Z))"))


def _split(read: Callable[[int], AnyStr], marks: _Marks[AnyStr], name: str, limit: LineLimit) -> Iterator[AnyStr]:
    """Yield lines from ``read``, which returns data up to a line feed or the limit; it takes the line's number."""
    number, held = 1, marks.carriage_return[:0]
    while piece := read(number):
        place = piece.find(marks.carriage_return)
        if not held and (place < 0 or (place == len(piece) - 2 and piece.endswith(marks.line_feed))):
            _check_length(piece, name, number, limit)
            yield piece
            number += 1
            continue
        held, start = held + piece, 0
        for end in marks.ends.finditer(held):
            _check_length(held[start : end.end()], name, number, limit)
            yield held[start : end.end()]
            number, start = number + 1, end.end()
        held = held[start:]
        _check_length(held.rstrip(marks.carriage_return), name, number, limit)
        if held.endswith(marks.line_feed):
            yield held
            number, held = number + 1, held[:0]
    while held:
        line, mark, held = held.partition(marks.carriage_return)
        _check_length(line + mark, name, number, limit)
        yield line + mark
        number += 1


def _read_text(stream: IO[str], name: str, limit: LineLimit, number: int) -> str:
    try:
        return stream.readline(limit.size + 1)
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"line {number} of {name}, or a line soon after it, is not {error.encoding}: {error.reason}. Open "
            "the file with the encoding in which it was saved."
        ) from error


def _read_bytes(stream: Bytes, name: str, limit: LineLimit, number: int) -> bytes:
    try:
        return stream.readline(limit.size + 1)
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


def _checked_blank(line: str, blank: int, name: str, number: int) -> int:
    if not line.isspace():
        return 0
    if blank == MAX_BLANK_LINES:
        raise InvalidInput(
            f"the {blank:,} lines of {name} before line {number:,} are blank: expected rows. Check what the file is."
        )
    return blank + 1


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def _check_length(line: str | bytes, name: str, number: int, limit: LineLimit) -> None:
    if len(line) > limit.size:
        raise InvalidInput(f"line {number} of {name} is longer than {limit.size // 2**20} MiB. {limit.advice}")
