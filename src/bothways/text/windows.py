"""Encoded texts, and how one that is too long becomes overlapping windows.

A window is ``head + body[start : start + room] + tail``: head and tail are the special tokens around the text (and,
for a pair, the whole first text), ``room`` is what they leave of the model's length. Neighbouring windows share
``stride`` tokens, so window k starts at ``k * (room - stride)`` and together they hold every token of the body.

The cut is made after the template was laid on, not before: offsets of the first token of a sequence are treated
specially there, and a window in the middle of a text has no such token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import tokenizers

from bothways.errors import InvalidInput, TextTooLong
from bothways.text.overflow import Overflow

_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Window:
    """One input for the model.

    The last three are ``None`` unless offsets were asked for; each has one entry a token.

    Attributes:
        ids: Token ids, special ones included.
        types: Token types: 0, or 1 for a second text where the model tells them apart.
        start: Where this window begins in its text, in tokens of that text (of the second text, for a pair).
        offsets: ``(begin, end)`` of each token in the original text, in characters: ``text[begin:end]``. Special
            tokens have ``(0, 0)``.
        words: The number of the word that each token belongs to; ``None`` for special tokens.
        sequences: 0 for tokens of the first text, 1 for those of the second; ``None`` for special tokens.
    """

    ids: list[int]
    types: list[int]
    start: int = 0
    offsets: list[tuple[int, int]] | None = None
    words: list[int | None] | None = None
    sequences: list[int | None] | None = None


@dataclass(frozen=True, slots=True)
class EncodedText:
    """A text, or a pair of texts, ready for the model.

    Attributes:
        windows: One window, or several overlapping ones for a long text.
        tokens: Tokens of the whole text (or of both), special ones not counted.
        dropped_tokens: How many of them are in no window; above 0 only with ``"truncate"``.
    """

    windows: tuple[Window, ...]
    tokens: int
    dropped_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call to ``encode`` asks for.

    Attributes:
        max_length: Most tokens a window may have, special ones included.
        overflow: What to do beyond that.
        stride: Tokens that neighbouring windows share; ``None`` for a quarter of the room.
        offsets: Whether to keep offsets, words and sequences.
    """

    max_length: int
    overflow: Overflow
    stride: int | None
    offsets: bool


def encoded_text(raw: tokenizers.Encoding, limits: Limits, *, index: int, pair: bool, special: int) -> EncodedText:
    """Turn the library's encoding of one text into windows.

    Args:
        raw: The encoding of the whole text with special tokens.
        limits: What was asked for.
        index: The text's place among the caller's, for messages.
        pair: Whether it is a pair of texts; then the second is cut and the first kept whole.
        special: How many special tokens the template adds.

    Raises:
        TextTooLong: It is too long and the policy is ``"error"``, or the first text of a pair leaves no room.
        InvalidInput: The stride is not smaller than the room.
    """
    ids = raw.ids
    tokens = len(ids) - special
    if len(ids) <= limits.max_length:
        if not limits.offsets:
            return EncodedText((Window(ids, raw.type_ids),), tokens)
        window = Window(ids, raw.type_ids, 0, raw.offsets, raw.word_ids, raw.sequence_ids)
        return EncodedText((window,), tokens)
    if limits.overflow == "error":
        raise TextTooLong(
            f"text {index + 1} has {tokens} tokens and {special} special ones, more than the limit of "
            f"{limits.max_length}. Choose on_overflow='window' to read it in overlapping windows, 'truncate' to keep "
            "its start, or keep 'error' and shorten the text."
        )
    begin, end = _body(raw, last=1 if pair else 0)
    room = limits.max_length - (len(ids) - (end - begin))
    if room < 1:
        raise TextTooLong(
            f"the first text of pair {index + 1} has {tokens - (end - begin)} tokens, which with {special} special "
            f"ones leaves no room for the second within {limits.max_length}: only the second text of a pair is cut. "
            "Shorten the first, or swap the two."
        )
    starts = _starts(end - begin, room, _stride(limits.stride, room, index))
    if limits.overflow == "truncate":
        starts = starts[:1]
    cuts = [_Cut(begin, end, begin + start, min(begin + start + room, end)) for start in starts]
    return EncodedText(_cut_all(raw, ids, cuts, offsets=limits.offsets), tokens, end - cuts[-1].stop)


@dataclass(frozen=True, slots=True)
class _Cut:
    """Keep everything but the body ``[begin, end)``, and of the body only ``[start, stop)``."""

    begin: int
    end: int
    start: int
    stop: int

    def of(self, values: Sequence[_V]) -> list[_V]:
        return [*values[: self.begin], *values[self.start : self.stop], *values[self.end :]]


def _cut_all(raw: tokenizers.Encoding, ids: list[int], cuts: Sequence[_Cut], *, offsets: bool) -> tuple[Window, ...]:
    """Cut every per-token list of an encoding; each is fetched once, as fetching copies it."""
    types = raw.type_ids
    if not offsets:
        return tuple(Window(cut.of(ids), cut.of(types), cut.start - cut.begin) for cut in cuts)
    spans, words, sequences = raw.offsets, raw.word_ids, raw.sequence_ids
    return tuple(
        Window(cut.of(ids), cut.of(types), cut.start - cut.begin, cut.of(spans), cut.of(words), cut.of(sequences))
        for cut in cuts
    )


def _body(raw: tokenizers.Encoding, *, last: int) -> tuple[int, int]:
    """Where the tokens of the last text lie; an empty range at the end if it has none."""
    sequences = raw.sequence_ids
    if last not in sequences:
        return len(sequences), len(sequences)
    return sequences.index(last), len(sequences) - sequences[::-1].index(last)


def _stride(stride: int | None, room: int, index: int) -> int:
    if stride is None:
        return room // 4
    if stride < room:
        return stride
    raise InvalidInput(
        f"stride is {stride}, but text {index + 1} leaves room for {room} tokens in a window: windows would not "
        "advance. Choose a smaller stride or a larger max_length."
    )


def _starts(length: int, room: int, stride: int) -> list[int]:
    """Starts of the windows over ``length`` tokens, which are more than ``room``."""
    step = room - stride
    count = 1 + -(-(length - room) // step)
    return [step * number for number in range(count)]
