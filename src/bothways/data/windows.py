"""Tokenised texts in a compact form: flat arrays instead of many lists.

Shapes: N texts, W windows, T tokens of all windows, n tokens of one window.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InvalidInput
from bothways.text import EncodedText, Places

if TYPE_CHECKING:
    from bothways.packing import Packed


@dataclass(frozen=True, slots=True)
class StoredPlaces:
    """Positions of the tokens of all windows in their texts, see `Places`."""

    begins_T: NDArray[np.int32]  # index of the first character of each token
    ends_T: NDArray[np.int32]  # index of the last character of each token, plus 1
    sequences_T: NDArray[np.int8]  # index of each token's text in a pair (0 or 1); -1 for special tokens
    starts_W: NDArray[np.int64]  # position of each window in its text, in tokens

    @classmethod
    def of(cls, places: Sequence[Places]) -> StoredPlaces:
        return cls(
            np.concatenate([each.begins_n for each in places]),
            np.concatenate([each.ends_n for each in places]),
            np.concatenate([each.sequences_n for each in places]),
            np.array([each.start for each in places], dtype=np.int64),
        )


@dataclass(frozen=True, slots=True)
class StoredWindow:
    """One window of a store: views of its arrays (n), and its index in the store."""

    ids: NDArray[np.int32]
    types: NDArray[np.uint8]
    number: int


@dataclass(frozen=True, slots=True)
class WindowStore:
    """The tokenised windows of a list of texts, end to end in flat arrays.

    Attributes:
        ids_T: Token ids of all windows, end to end.
        types_T: Segment ids.
        starts: Start of each window in `ids_T`, then T; W + 1 long.
        text_of_window: Index of each window's text, ascending.
        dropped_tokens: Number of tokens of each text that are in no window.
        stored_places: Positions of the tokens in their texts; None for texts that were encoded without offsets.
    """

    ids_T: NDArray[np.int32]
    types_T: NDArray[np.uint8]
    starts: NDArray[np.int64]
    text_of_window: NDArray[np.int64]
    dropped_tokens: NDArray[np.int64]
    stored_places: StoredPlaces | None = None

    @classmethod
    def of(cls, encoded: Iterable[EncodedText]) -> WindowStore:
        """Store encoded texts one at a time, so that only their compact form is in memory.

        The positions of tokens are kept for texts that were encoded with offsets.
        """
        places: list[Places] = []
        ids: list[NDArray[np.int32]] = []
        types: list[NDArray[np.uint8]] = []
        text_of_window: list[int] = []
        dropped: list[int] = []
        for index, text in enumerate(encoded):
            ids += [np.asarray(window.ids, dtype=np.int32) for window in text.windows]
            types += [np.asarray(window.types, dtype=np.uint8) for window in text.windows]
            text_of_window += [index] * len(text.windows)
            places += [Places.of(window) for window in text.windows if window.offsets is not None]
            dropped.append(text.dropped_tokens)
        return cls(
            np.concatenate(ids),
            np.concatenate(types),
            np.cumsum([0, *map(len, ids)], dtype=np.int64),
            np.asarray(text_of_window),
            np.asarray(dropped),
            StoredPlaces.of(places) if places else None,
        )

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each window (W)."""
        return np.diff(self.starts)

    @property
    def texts(self) -> int:
        """Number of texts, N."""
        return len(self.dropped_tokens)

    @property
    def digest(self) -> str:
        """A checksum of the tokens and of the starts of windows."""
        return digest_of(self.ids_T, self.starts)

    @property
    def windows_of_texts(self) -> list[range]:
        """Indices of the windows of each text."""
        ends = np.cumsum(np.bincount(self.text_of_window, minlength=self.texts)).tolist()
        return [range(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    @property
    def shares_W(self) -> NDArray[np.float64]:
        """Weight of each window (W): 1 divided by the number of windows of its text."""
        shares_W: NDArray[np.float64] = 1.0 / np.bincount(self.text_of_window)[self.text_of_window]
        return shares_W

    def windows_of(self, texts: Sequence[int] | NDArray[np.int64]) -> list[int]:
        """Return the indices of all windows of the texts with these indices."""
        first = np.searchsorted(self.text_of_window, texts, side="left")
        last = np.searchsorted(self.text_of_window, texts, side="right")
        return [window for low, high in zip(first, last, strict=True) for window in range(low, high)]

    def take(self, texts: Sequence[int] | NDArray[np.int64]) -> WindowStore:
        """Return a store of the texts with these indices, in this order, without the positions of their tokens."""
        windows = self.windows_of(texts)
        spans = [slice(self.starts[window], self.starts[window + 1]) for window in windows]
        counts_N = np.bincount(self.text_of_window, minlength=self.texts)[texts]
        return WindowStore(
            np.concatenate([self.ids_T[span] for span in spans]),
            np.concatenate([self.types_T[span] for span in spans]),
            np.cumsum([0, *(span.stop - span.start for span in spans)], dtype=np.int64),
            np.repeat(np.arange(len(texts)), counts_N),
            self.dropped_tokens[texts],
        )

    def places(self, window: int) -> Places:
        """Return the positions of one window's tokens in its text; InvalidInput if encoded without offsets."""
        if self.stored_places is None:
            raise InvalidInput("expected texts that were encoded with offsets=True, got texts without token offsets.")
        span, stored = slice(self.starts[window], self.starts[window + 1]), self.stored_places
        start = int(stored.starts_W[window])
        return Places(stored.begins_T[span], stored.ends_T[span], stored.sequences_T[span], start)

    def windows(self, numbers: Iterable[int] | None = None) -> list[StoredWindow]:
        spans = [
            (number, slice(self.starts[number], self.starts[number + 1]))
            for number in (range(len(self.text_of_window)) if numbers is None else map(int, numbers))
        ]
        return [StoredWindow(self.ids_T[span], self.types_T[span], number) for number, span in spans]

    def pack(self, windows: Sequence[int]) -> Packed:
        """Return the windows with these indices as a packed batch, on the CPU."""
        from bothways.packing import pack

        stored = self.windows(windows)
        return pack([window.ids for window in stored], [window.types for window in stored])


def digest_of(*arrays: NDArray[np.generic]) -> str:
    """Return a checksum of arrays."""
    content = hashlib.sha256()
    for array in arrays:
        content.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)  # no copy of a large corpus
    return content.hexdigest()


def digest_of_texts(texts: Iterable[str | Sequence[str]]) -> str:
    """Return a checksum of texts, pairs or lists of words."""
    content = hashlib.sha256()
    for text in texts:
        content.update(f"{json.dumps(text)}\n".encode())
    return content.hexdigest()
