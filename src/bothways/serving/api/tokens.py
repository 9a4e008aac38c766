"""The tokens of texts with the numbers that a model gives for each, once for a token that is in several windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InvalidInput
from bothways.inference import Rows, TextRunner, TokenOutputs
from bothways.text.windows import EncodedText, Places, Window


@dataclass(frozen=True, slots=True, eq=False)
class TextTokens:
    """The tokens of a text.

    Attributes:
        indices: Place of each token in the sequence that the model would read without a limit of its length.
        ids: Their ids.
        places: Begin and end of each in the text as the model reads it, in code points; (0, 0) for special tokens.
        rows_TK: The numbers of each.
        dropped_tokens: Tokens that were not read.
    """

    indices: list[int]
    ids: list[int]
    places: list[tuple[int, int]]
    rows_TK: NDArray[np.floating]
    dropped_tokens: int


def rows_of_tokens(runner: TextRunner, encoded: Sequence[EncodedText], *, special: bool) -> list[TextTokens]:
    """Return the tokens of tokenised texts with their numbers; ``special`` also those around a text.

    A token that is in several windows has the numbers of that in which it stands farthest from the ends.
    """
    return [_rows_of(text, found, special) for text, found in zip(encoded, runner.rows(encoded), strict=True)]


def _rows_of(text: EncodedText, found: Rows, special: bool) -> TextTokens:
    match found:
        case TokenOutputs(rows=rows, places=places):
            chosen = _chosen(places, special)
        case _:
            raise TypeError("expected a row of numbers for each token")
    return TextTokens(
        [places[window].start + row for window, row in chosen],
        [text.windows[window].ids[row] for window, row in chosen],
        [(int(places[window].begins_n[row]), int(places[window].ends_n[row])) for window, row in chosen],
        np.stack([rows[window][row] for window, row in chosen]) if chosen else rows[0][:0],
        found.dropped_tokens,
    )


def _chosen(places: Sequence[Places], special: bool) -> list[tuple[int, int]]:
    """Return the window and the place in it of each token, in the order of the text."""
    best: dict[int, tuple[int, int, int]] = {}
    inside = [np.flatnonzero(each.sequences_n == 0).tolist() for each in places]
    for window, (each, body) in enumerate(zip(places, inside, strict=True)):
        for row in body:
            context = min(row + 1, len(each.sequences_n) - row)
            if context > best.get(each.start + row, (0,))[0]:
                best[each.start + row] = context, window, row
    chosen = [best[number][1:] for number in sorted(best)]
    if not special:
        return chosen
    last = len(places) - 1
    head = inside[0][0] if inside[0] else len(places[0].sequences_n)
    tail = range(inside[last][-1] + 1, len(places[last].sequences_n)) if inside[last] else ()
    return [*((0, row) for row in range(head)), *chosen, *((last, row) for row in tail)]


def encoded_ids(ids: Sequence[Sequence[int]], runner: TextRunner, entries: int) -> list[EncodedText]:
    """Return texts that are given as the ids of all their tokens; ``entries`` is the size of the vocabulary.

    Raises:
        InvalidInput: A text has no token, too many for one window, or an id that the vocabulary does not have.
    """
    limit = runner.options.max_length
    for number, own in enumerate(ids, start=1):
        if not 0 < len(own) <= limit:
            raise InvalidInput(f"expected 1 to {limit:,} token ids for text {number}, got {len(own):,}.")
        if not 0 <= min(own) <= max(own) < entries:
            raise InvalidInput(f"expected token ids from 0 to {entries - 1:,}, text {number} has others.")
    return [_encoded(list(own)) for own in ids]


def _encoded(ids: list[int]) -> EncodedText:
    size = len(ids)
    return EncodedText((Window(ids, [0] * size, 0, [(0, 0)] * size, None, [0] * size),), size)
