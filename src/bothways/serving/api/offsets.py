"""Places in a text in the unit that a client counts in.

Python counts code points, JavaScript, Java and C# count UTF-16 code units, Rust and Go count bytes of UTF-8.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np

OffsetUnit: TypeAlias = Literal["code_points", "utf16", "bytes"]

_BEGIN, _END = "start", "end"


class OffsetMap:
    """Converts places in a text from code points to another unit."""

    def __init__(self, text: str, unit: OffsetUnit) -> None:
        self._same = unit == "code_points" or text.isascii()
        if not self._same:
            code_N = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
            if unit == "utf16":
                width_N = 1 + (code_N > 0xFFFF)
            else:
                width_N = 1 + (code_N > 0x7F) + (code_N > 0x7FF) + (code_N > 0xFFFF)
            self._places = [0, *np.cumsum(width_N).tolist()]

    def __call__(self, place: int) -> int:
        """Return the place that stands before the same character."""
        return place if self._same else int(self._places[place])


def with_offsets(value: object, texts: Callable[[], Sequence[str]], unit: OffsetUnit) -> object:
    """Return a prediction, as JSON values, with its places in another unit.

    Every object with ``start`` and ``end`` is a place in the first of the texts, or in that of its ``part``.
    """
    if unit == "code_points":
        return value
    maps = [OffsetMap(text, unit) for text in texts()]

    def converted(part: object) -> object:
        match part:
            case list() | tuple():
                return [converted(each) for each in part]
            case {"start": int(start), "end": int(end), **others}:
                place = maps[_part_of(others)]
                return {_BEGIN: place(start), _END: place(end)} | {name: converted(others[name]) for name in others}
            case dict():
                return {name: converted(each) for name, each in part.items()}
        return part

    return converted(value)


def _part_of(part: Mapping[object, object]) -> int:
    match part.get("part"):
        case int(number):
            return number
    return 0
