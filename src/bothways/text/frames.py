"""The special tokens that a tokenizer's template puts around one text or a pair of texts.

Shapes: n tokens of a sequence, m tokens of a text.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InvalidInput
from bothways.text.tokenizer import TextTokenizer
from bothways.text.windows import Text, Window


@dataclass(frozen=True, slots=True)
class Frame:
    """Special tokens before, between and after encoded texts.

    `gaps` has the ids before each text, then those after the last one; `gap_types` and `text_types` are segment ids.
    """

    gaps: tuple[tuple[int, ...], ...]
    gap_types: tuple[tuple[int, ...], ...]
    text_types: tuple[int, ...]

    @classmethod
    def of_text(cls, tokenizer: TextTokenizer) -> "Frame":
        """Return the frame of one text."""
        return _frame(tokenizer, _PROBE, 1)

    @classmethod
    def of_pair(cls, tokenizer: TextTokenizer) -> "Frame":
        """Return the frame of a pair of texts."""
        return _frame(tokenizer, (_PROBE, _PROBE), 2)

    @property
    def special(self) -> int:
        """Number of special tokens."""
        return sum(map(len, self.gaps))

    @property
    def identity(self) -> str:
        """All special ids and segment ids as a string, for a checksum."""
        return repr(astuple(self))

    def around(self, texts: Sequence[NDArray[np.int32]]) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Return the token ids and segment ids (n) of the texts, given as token ids, with their special tokens.

        >>> frame = Frame(gaps=((101,), (102,)), gap_types=((0,), (0,)), text_types=(0,))
        >>> frame.around([np.array([7, 8, 9], dtype=np.int32)])[0].tolist()
        [101, 7, 8, 9, 102]
        """
        ids = [np.array(self.gaps[0], dtype=np.int32)]
        types = [np.array(self.gap_types[0], dtype=np.uint8)]
        framed = zip(texts, self.text_types, self.gaps[1:], self.gap_types[1:], strict=True)
        for ids_m, text_type, gap, gap_types in framed:
            ids += [ids_m, np.array(gap, dtype=np.int32)]
            types += [np.full(len(ids_m), text_type, dtype=np.uint8), np.array(gap_types, dtype=np.uint8)]
        return np.concatenate(ids), np.concatenate(types)

    def places(self, lengths: Sequence[int]) -> NDArray[np.int64]:
        """Return the positions of the texts' tokens in a sequence, given the length of each text.

        >>> frame = Frame(gaps=((101,), (102,), (102,)), gap_types=((0,), (0,), (1,)), text_types=(0, 1))
        >>> frame.places([2, 3]).tolist()
        [1, 2, 4, 5, 6]
        """
        before = np.cumsum([len(gap) for gap in self.gaps])[: len(lengths)]
        return np.arange(sum(lengths), dtype=np.int64) + np.repeat(before, lengths).astype(np.int64)


def _frame(tokenizer: TextTokenizer, probe: Text, texts: int) -> Frame:
    """Return the special tokens around ``texts`` short texts, found by encoding ``probe``."""
    window = tokenizer.encode([probe], max_length=_LONGEST, offsets=True)[0].windows[0]
    places = [_places(window, number) for number in range(texts)]
    borders = [0, *(border for place in places for border in (place.start, place.stop)), len(window.ids)]
    between = [slice(*borders[at : at + 2]) for at in range(0, len(borders), 2)]
    return Frame(
        tuple(tuple(window.ids[gap]) for gap in between),
        tuple(tuple(window.types[gap]) for gap in between),
        tuple(window.types[place.start] for place in places),
    )


def _places(window: Window, text: int) -> range:
    found = [place for place, number in enumerate(window.sequences or ()) if number == text]
    if not found:
        raise InvalidInput(
            f"the tokenizer gives no token for {_PROBE!r}, so the positions of special tokens around a text cannot be "
            "found: add a token for unknown words to the tokenizer."
        )
    return range(found[0], found[-1] + 1)


_PROBE = "a"
_LONGEST = 1000
