"""The steps of a pickle, read one by one with their arguments; long arguments stay where they are."""

import pickletools
from dataclasses import dataclass
from typing import IO, Any, cast

from bothways.audit.provenance.streams import FilePart

# Longer arguments are skipped over; no name is as long.
_LONGEST = 2**16


@dataclass(frozen=True, slots=True)
class BytesThere:
    """Bytes that stay where they are.

    Attributes:
        place: Their first byte in the file.
        size: Their number.
    """

    place: int
    size: int


_COUNTS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_OPCODES = {each.code: each for each in pickletools.opcodes}
_TEXTS = frozenset({"unicodestring1", "unicodestring4", "unicodestring8", "string1", "string4"})


def next_step(window: FilePart) -> tuple[str, Any]:
    """Read one opcode and its argument; long arguments stay where they are.

    Raises:
        ValueError: There is no such opcode, or its argument is cut off or malformed.
    """
    code = window.read(1)
    if not code:
        raise ValueError("the end of the file before the end of the pickle")
    opcode = _OPCODES.get(code.decode("latin-1"))
    if opcode is None:
        raise ValueError(f"byte {code!r} is no step of a pickle")
    kind = opcode.arg
    if kind is None:
        return opcode.name, None
    if kind.n == pickletools.UP_TO_NEWLINE:
        return opcode.name, _line(window, kind.name)
    if kind.n >= 0:
        return opcode.name, kind.reader(cast("IO[bytes]", _Exact(window)))
    width = _COUNTS[kind.n]
    count = int.from_bytes(_Exact(window).read(width), "little")
    place = window.place
    if count > _LONGEST:
        window.skip(count)
        return opcode.name, BytesThere(place, count)
    content = _Exact(window).read(count)
    if kind.name in _TEXTS:
        return opcode.name, content.decode("utf-8", "surrogatepass")
    if kind.name.startswith("long"):
        return opcode.name, int.from_bytes(content, "little", signed=True)
    return opcode.name, BytesThere(place, count)


def _line(window: FilePart, kind: str) -> Any:  # noqa: ANN401 (a string or a number)
    lines = [window.line(_LONGEST)]
    if kind == "stringnl_noescape_pair":
        lines.append(window.line(_LONGEST))
    text = " ".join(line.decode("utf-8") for line in lines)
    if kind == "decimalnl_short":
        return int(text) if text not in ("00", "01") else text == "01"
    if kind == "decimalnl_long":
        if len(text) > 4000:
            raise ValueError(f"a whole number of {len(text)} digits")
        return int(text.rstrip("L") or "0")
    if kind == "floatnl":
        return float(text)
    if kind == "stringnl":
        if len(text) < 2 or text[0] not in "\"'" or text[-1] != text[0]:
            raise ValueError("a string without quotes")
        return text[1:-1].encode("latin-1", "backslashreplace").decode("unicode_escape")
    if kind == "unicodestringnl":
        return text.encode("latin-1", "backslashreplace").decode("raw_unicode_escape")
    return text


class _Exact:
    """A window that pickletools reads from; it gives all that is asked for or fails."""

    def __init__(self, window: FilePart) -> None:
        self._window = window

    def read(self, count: int) -> bytes:
        content = self._window.read(count)
        if len(content) < count:
            raise ValueError(f"{count} bytes are announced, and {len(content)} are there")
        return content
