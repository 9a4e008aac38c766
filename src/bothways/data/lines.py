"""Lines of data: one rule for line ends and encodings, for all formats of text.

Lines come from files and pipes in UTF-8 or a given encoding, plain or compressed with gzip, or from text streams. Their
length is limited. Only one line at a time is in memory, except in files without line feeds.
"""

import codecs
import gzip
import io
import os
import re
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, AnyStr, Generic

from bothways.errors import EncodingDoubtful, InvalidInput, did_you_mean, read_with
from bothways.reading import did_you_mean_path

GZIP_MAGIC = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
Bytes = IO[bytes] | gzip.GzipFile
# They split lines at the separators of Unicode.
_CODECS: tuple[type, ...] = (codecs.StreamReaderWriter, codecs.StreamReader)
# Byte order marks, the longer first, with the encodings that read them.
_MARKED = ((b"\xff\xfe\0\0", "utf-32"), (b"\0\0\xfe\xff", "utf-32"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
# Encodings to propose for bytes that are not UTF-8.
_PROPOSED = ("cp1252", "shift_jis", "gb18030")
_KNOWN_ENCODINGS = ("utf-8", "utf-16", *_PROPOSED, "cp1250", "cp1251", "latin-1", "euc_jp", "euc_kr", "big5")
_LOOKAHEAD = 2**20
_SAMPLE = 20  # characters shown on either side of the byte in question
_UNPACK = "Unpack it, or compress it with gzip."
# First bytes of files that are no text, with their kind, and advice or the format that reads them.
_OTHER_KINDS = (
    (b"PK\x03\x04", "a zip archive, as Excel workbooks are", "xlsx"),
    (b"PAR1", "a Parquet file", "parquet"),
    (b"\xd0\xcf\x11\xe0", "an old Office file", "If it is a table, save it as .xlsx or CSV UTF-8."),
    (b"%PDF-", "a PDF file", "Save its text as a .txt file."),
    (b"{\\rtf", "a file of rich text", "Save it as plain text."),
    (b"BZh91AY&SY", "compressed with bzip2", _UNPACK),
    (b"\xfd7zXZ", "compressed with xz", _UNPACK),
    (b"(\xb5/\xfd", "compressed with zstd", _UNPACK),
)


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


def check_encoding(encoding: str) -> str:
    """Return Python's name of a text encoding, or raise InvalidInput."""
    try:
        name = codecs.lookup(encoding).name
        io.TextIOWrapper(io.BytesIO(), encoding=name)  # refuses codecs such as base64
    except (LookupError, ValueError):
        raise InvalidInput(
            f"unknown encoding {encoding!r}: expected the name of one that Python reads, such as "
            f"{', '.join(_KNOWN_ENCODINGS)}.{did_you_mean(encoding, _KNOWN_ENCODINGS)}"
        ) from None
    return name


def decoded_lines(
    stream: Bytes, name: str, limit: LineLimit = LONGEST_LINE, encoding: str | None = None
) -> Iterator[str]:
    r"""Yield lines with their line ends, decoded from ``encoding`` (default: UTF-8), without a byte order mark.

    A line ends with ``\n``, ``\r\n`` or ``\r``, in any mixture, or with ``\r\r\n``, which results when ``\r\n`` is
    translated twice. All other separators of ``str.splitlines`` stay in texts.

    Warns:
        EncodingDoubtful: With another encoding, the first line that is not ASCII would be valid in UTF-8.
    """
    chosen = "utf-8" if encoding is None else check_encoding(encoding)
    if chosen not in ("utf-8", "utf-8-sig"):
        yield from _lines_in(chosen, stream, name, limit)
        return
    offset = blank = 0
    is_ascii = True
    read = partial(_read_bytes, stream, name, limit)
    for number, line in enumerate(_split(read, _IN_BYTES, name, limit), start=1):
        mark = len(BYTE_ORDER_MARK) if number == 1 and line.startswith(BYTE_ORDER_MARK) else 0
        if number == 1:
            _check_kind(line, name)
        try:
            text = line[mark:].decode("utf-8")
        except UnicodeDecodeError as error:
            at = mark + error.start
            raise InvalidInput(
                f"line {number} of {name} is not UTF-8: byte 0x{line[at]:02x} at byte offset {offset + at} "
                f"(column {at + 1} of the line). {_proposal(line, at, stream, is_ascii=is_ascii)}"
            ) from None
        if not text:  # a byte order mark and nothing else
            return
        is_ascii = is_ascii and text.isascii()
        blank = _checked_blank(text, blank, name, number)
        yield text
        offset += len(line)


def _check_kind(line: bytes, name: str) -> None:
    """Raise InvalidInput if the first line of a file is that of another kind of file, or of UTF-16."""
    for begin, kind, advice in _OTHER_KINDS:
        if line.startswith(begin):
            advice = f"Give {read_with('format', advice)}." if advice in ("xlsx", "parquet") else advice
            raise InvalidInput(f"{name} is {kind}: expected text. {advice}")
    encoding = next((encoding for mark, encoding in _MARKED if line.startswith(mark)), None)
    if encoding is None and 3 * line.count(0) >= len(line) > 1:  # every second byte of Latin letters is zero
        encoding = "utf-16-be" if line[0] == 0 else "utf-16-le"
    if encoding is not None:
        raise InvalidInput(
            f"line 1 of {name} is not UTF-8: byte 0x{line[0]:02x} at byte offset 0 (column 1 of the line). It looks "
            f"like {encoding.upper()}: give {read_with('encoding', encoding)}, or save the file as UTF-8."
        )


def _proposal(line: bytes, at: int, stream: Bytes, *, is_ascii: bool) -> str:
    """Return advice for a line that is not UTF-8 from the byte ``at``; ``is_ascii`` holds for all lines before it."""
    if not (is_ascii and line[:at].isascii()):
        return "The text before it is UTF-8, so this byte is damaged: correct or drop the line."
    ahead = line + (stream.read(_LOOKAHEAD) if stream.seekable() else b"")
    for encoding in _PROPOSED:
        try:
            codecs.getincrementaldecoder(encoding)().decode(ahead)
            text, place = line.decode(encoding), len(line[:at].decode(encoding))
        except UnicodeDecodeError:
            continue
        if encoding == "cp1252" and 2 * len(text.encode("ascii", "ignore")) < len(text):  # no language of Latin letters
            continue
        sample = text[max(0, place - _SAMPLE) : place + _SAMPLE].strip()
        return (
            f"In {encoding} it reads {sample!r}: if that is right, give {read_with('encoding', encoding)}; if not, "
            "give the encoding in which the file was saved, such as cp1251 or gb18030, or save it as UTF-8."
        )
    return f"Give the encoding in which it was saved, such as {read_with('encoding', 'cp1251')}, or save it as UTF-8."


def _lines_in(encoding: str, stream: Bytes, name: str, limit: LineLimit) -> Iterator[str]:
    """Yield lines in another encoding than UTF-8."""
    text, is_ascii = io.TextIOWrapper(stream, encoding=encoding, newline="\n"), True
    try:
        for number, line in enumerate(text_lines(text, name, limit, encoding), start=1):
            if is_ascii and not line.isascii():
                is_ascii = False
                _check_mistaken(line, number, name, encoding)
            yield line
    finally:
        text.detach()  # which would close the stream else


def _check_mistaken(line: str, number: int, name: str, encoding: str) -> None:
    try:
        meant = line.encode(encoding).decode("utf-8")
    except ValueError:
        return
    warnings.warn(
        f"line {number} of {name} is also valid in UTF-8, where it reads {meant.strip()!r:.60} and in {encoding} "
        f"{line.strip()!r:.60}. If the first is right, read the file with {read_with('encoding', 'utf-8')}.",
        EncodingDoubtful,
        stacklevel=2,
    )


def text_lines(
    stream: IO[str], name: str, limit: LineLimit = LONGEST_LINE, encoding: str | None = None
) -> Iterator[str]:
    """Yield lines with their line ends from a text stream, as `decoded_lines` does; ``encoding`` is for messages."""
    blank = 0
    read = partial(_read_text, stream, name, limit, encoding)
    for number, line in enumerate(_split(read, _IN_TEXT, name, limit), start=1):
        line = line.removeprefix("\ufeff") if number == 1 else line
        if not line:  # a byte order mark and nothing else
            return
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


def _read_text(stream: IO[str], name: str, limit: LineLimit, encoding: str | None, number: int) -> str:
    try:
        return stream.readline(limit.size + 1)
    except UnicodeError as error:
        expected, reason = encoding, str(error)
        if isinstance(error, UnicodeDecodeError):
            expected, reason = encoding or error.encoding, error.reason
        raise InvalidInput(
            f"line {number} of {name}, or a line soon after it, is not {expected}: {reason}. Give the "
            "encoding in which the file was saved."
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
