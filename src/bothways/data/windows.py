"""Tokenised texts kept compactly: one flat array instead of many lists.

Shapes: N texts, W windows, T tokens of all windows.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.packing import Packed, pack
from bothways.text import EncodedText


@dataclass(frozen=True, slots=True)
class WindowStore:
    """The windows of a list of texts.

    Attributes:
        ids_T: Token ids of all windows, end to end.
        types_T: Segment ids.
        starts: Where each window starts in them, and at last T; W + 1 long.
        text_of_window: Index of the text that each window belongs to, ascending.
        dropped_tokens: For each text, its tokens that are in no window.
    """

    ids_T: NDArray[np.int32]
    types_T: NDArray[np.uint8]
    starts: NDArray[np.int64]
    text_of_window: NDArray[np.int64]
    dropped_tokens: NDArray[np.int64]

    @classmethod
    def of(cls, encoded: Iterable[EncodedText]) -> "WindowStore":
        """Store encoded texts, one at a time, so that only the compact form of all of them is in memory."""
        ids: list[NDArray[np.int32]] = []
        types: list[NDArray[np.uint8]] = []
        text_of_window: list[int] = []
        dropped: list[int] = []
        for index, text in enumerate(encoded):
            ids += [np.asarray(window.ids, dtype=np.int32) for window in text.windows]
            types += [np.asarray(window.types, dtype=np.uint8) for window in text.windows]
            text_of_window += [index] * len(text.windows)
            dropped.append(text.dropped_tokens)
        starts = np.cumsum([0, *map(len, ids)], dtype=np.int64)
        return cls(np.concatenate(ids), np.concatenate(types), starts, np.asarray(text_of_window), np.asarray(dropped))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each window (W)."""
        return np.diff(self.starts)

    @property
    def texts(self) -> int:
        """Number of texts, N."""
        return len(self.dropped_tokens)

    @property
    def digest(self) -> str:
        """A checksum of the tokens and of where windows start."""
        return digest_of(self.ids_T, self.starts)

    def windows_of(self, texts: Sequence[int] | NDArray[np.int64]) -> list[int]:
        """Indices of all windows of some texts."""
        first = np.searchsorted(self.text_of_window, texts, side="left")
        last = np.searchsorted(self.text_of_window, texts, side="right")
        return [window for low, high in zip(first, last, strict=True) for window in range(low, high)]

    def pack(self, windows: Sequence[int]) -> Packed:
        """Some windows as a packed batch, on the CPU."""
        spans = [slice(self.starts[window], self.starts[window + 1]) for window in windows]
        return pack([self.ids_T[span] for span in spans], [self.types_T[span] for span in spans])


def digest_of(*arrays: NDArray[Any]) -> str:
    """A checksum of arrays."""
    content = hashlib.sha256()
    for array in arrays:
        content.update(np.ascontiguousarray(array).tobytes())
    return content.hexdigest()
