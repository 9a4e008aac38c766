"""Texts and their checks, encoded texts, and the overlapping windows of texts that are too long.

Policies for a text with more tokens than the model reads:

``"window"``
    Split it into overlapping windows that together hold every token.
``"error"``
    Raise ``TextTooLong``.
``"truncate"``
    Keep the first window and report the number of dropped tokens.
``"truncate_left"``
    Keep the last tokens that fit into one window and report the number of dropped tokens.

For a pair that is too long, ``cut`` selects the text that is split into parts; each window holds:

``"longer"``
    A part of the longer text and the whole shorter one; if that takes more than half a window, parts of both.
``"second"``
    A part of the second text and the whole first one, for pairs of a question and a context.

A window is ``head + body[start : start + room] + tail``: head and tail are the special tokens around the text (and, for
a pair, the text that is not split), ``room`` is ``max_length`` without their tokens. Neighbouring windows share
``stride`` tokens, so window k starts at ``k * (room - stride)`` and together they hold every token of the body. If both
texts of a pair are split, each window holds one part of each, and there are as many windows as the text with more parts
needs; pairing every part of one text with every part of the other would need far more.

Windows are cut after the template is applied, because the template changes the offsets of a text's first token, which
later windows do not contain.

Shapes: n tokens of a window.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias, TypeVar, get_args

import numpy as np
import tokenizers
from numpy.typing import NDArray

from bothways.choices import Cut as Cut
from bothways.choices import Overflow as Overflow
from bothways.errors import InvalidInput, TextTooLong, not_one_of, shown

Text: TypeAlias = str | tuple[str, str]

MOST_CHARACTERS = 20_000_000
LONGEST_WORD = 1_000_000
"""Maximum characters of a word; a tokenizer takes a second and 60 MB for this many."""

_BLOCK_CHARACTERS = 2_000_000
_WORD = re.compile(r"\S+")


def check_text(index: int, text: object) -> bool:
    """Check one text or pair; return True for a pair."""
    pair = isinstance(text, tuple)
    if isinstance(text, str):
        parts: tuple[str, ...] = (text,)
    elif isinstance(text, tuple) and len(text) == 2 and all(isinstance(part, str) for part in text):
        parts = text
    else:
        found = type(text).__name__
        if isinstance(text, tuple):
            found = f"tuple[{', '.join(type(part).__name__ for part in text)}]"
        raise InvalidInput(f"expected text {index + 1} to be a str or a tuple of two str, got {found}: {shown(text)}")
    for part in parts:
        if len(part) > LONGEST_WORD:
            check_length(part, f"text {index + 1}")
        if not part.isascii():  # known without looking at the characters
            _check_unicode(index, part)
    return pair


def check_length(text: str, what: str) -> None:
    """Raise an error, beginning with ``what``, for a text or word that would take minutes and gigabytes to tokenize."""
    if len(text) > MOST_CHARACTERS:
        raise InvalidInput(
            f"{what} has {len(text):,} characters: expected at most {MOST_CHARACTERS:,}. Split it into several texts."
        )
    if len(text) > LONGEST_WORD and any(each.end() - each.start() > LONGEST_WORD for each in _WORD.finditer(text)):
        raise InvalidInput(
            f"{what} has more than {LONGEST_WORD:,} characters without white space between them, too "
            "many for a word. Remove what is not text, or split it."
        )


def _check_unicode(index: int, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"text {index + 1} has half of a surrogate pair (U+{ord(text[error.start]):04X}) at character "
            f"{error.start}, which no encoding can hold: it was decoded wrongly. Read the source as UTF-8, or drop "
            "that character."
        ) from error


def blocks(texts: Sequence[Text]) -> Iterator[list[Text]]:
    """Yield consecutive texts in lists of at most two million characters; a longer text is yielded alone."""
    block: list[Text] = []
    characters = 0
    for text in texts:
        length = len(text) if isinstance(text, str) else len(text[0]) + len(text[1])
        if block and characters + length > _BLOCK_CHARACTERS:
            yield block
            block, characters = [], 0
        block.append(text)
        characters += length
    if block:
        yield block


OVERFLOWS: tuple[Overflow, ...] = get_args(Overflow)


def check_overflow(value: Overflow) -> Overflow:
    """Return ``value`` if it is a policy for long texts, else raise an error."""
    if value not in OVERFLOWS:
        raise not_one_of("on_overflow", value, OVERFLOWS)
    return value


_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Window:
    """One input for the model.

    The last three attributes are ``None`` unless offsets were requested; each has one entry per token.

    Attributes:
        ids: Token ids, special ones included.
        types: Token types: 0, or 1 for a second text if the model distinguishes them.
        start: Position of this window in its text, in tokens of that text (of the second text, for a pair).
        offsets: ``(begin, end)`` of each token in the original text, in characters: ``text[begin:end]``. Special
            tokens have ``(0, 0)``.
        words: Index of the word that each token belongs to; ``None`` for special tokens.
        sequences: 0 for tokens of the first text, 1 for those of the second; ``None`` for special tokens.
    """

    ids: list[int]
    types: list[int]
    start: int = 0
    offsets: list[tuple[int, int]] | None = None
    words: list[int | None] | None = None
    sequences: list[int | None] | None = None

    @property
    def body(self) -> range:
        """Positions of a single text's tokens, without special ones; empty without offsets."""
        return _body(self.sequences or [], 0, 0)


@dataclass(frozen=True, slots=True)
class EncodedText:
    """A text, or a pair of texts, ready for the model.

    Attributes:
        windows: One window, or several overlapping ones for a long text.
        tokens: Tokens of the whole text (or of both), without special ones.
        dropped_tokens: Number of these tokens that are in no window; above 0 only if the text was truncated.
    """

    windows: tuple[Window, ...]
    tokens: int
    dropped_tokens: int = 0


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """Length, policy and stride of one call to ``encode``; stride None is a quarter of a window's text tokens."""

    max_length: int
    overflow: Overflow
    stride: int | None
    offsets: bool
    cut: Cut = "longer"


def encoded_text(
    raw: tokenizers.Encoding, limits: WindowLimits, *, index: int, pair: bool, special: int
) -> EncodedText:
    """Convert the library's encoding of text ``index``, with ``special`` special tokens, into windows."""
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
    first, second = _bodies(raw, pair=pair)
    rooms = _rooms((len(first), len(second)), limits, special, index)
    parts = [_parts(body, room, limits, index) for body, room in zip((first, second), rooms, strict=True)]
    count = max(map(len, parts))
    cuts = [_Cut(first, second, *(each[number * len(each) // count] for each in parts)) for number in range(count)]
    dropped = 0 if limits.overflow == "window" else tokens - len(cuts[0].first) - len(cuts[0].second)
    return EncodedText(_cut_all(raw, ids, cuts, offsets=limits.offsets), tokens, dropped)


@dataclass(frozen=True, slots=True)
class _Cut:
    """The token ranges of two texts, and the parts that one window keeps. A single text counts as the second."""

    all_first: range
    all_second: range
    first: range
    second: range

    def of(self, values: Sequence[_V]) -> list[_V]:
        return [
            *values[: self.all_first.start],
            *values[self.first.start : self.first.stop],
            *values[self.all_first.stop : self.all_second.start],
            *values[self.second.start : self.second.stop],
            *values[self.all_second.stop :],
        ]

    @property
    def start(self) -> int:
        return self.second.start - self.all_second.start


def _cut_all(raw: tokenizers.Encoding, ids: list[int], cuts: Sequence[_Cut], *, offsets: bool) -> tuple[Window, ...]:
    """Return the windows of an encoding; each of its lists is fetched only once, since fetching copies it."""
    types = raw.type_ids
    if not offsets:
        return tuple(Window(cut.of(ids), cut.of(types), cut.start) for cut in cuts)
    spans, words, sequences = raw.offsets, raw.word_ids, raw.sequence_ids
    return tuple(
        Window(cut.of(ids), cut.of(types), cut.start, cut.of(spans), cut.of(words), cut.of(sequences)) for cut in cuts
    )


def _bodies(raw: tokenizers.Encoding, *, pair: bool) -> tuple[range, range]:
    """Return the token ranges of both texts; a single text is the second, and the first is empty."""
    sequences = raw.sequence_ids
    end = len(sequences)
    return (_body(sequences, 0, 0), _body(sequences, 1, end)) if pair else (range(0), _body(sequences, 0, end))


def _body(sequences: Sequence[int | None], number: int, nowhere: int) -> range:
    if number not in sequences:
        return range(nowhere, nowhere)
    return range(sequences.index(number), len(sequences) - sequences[::-1].index(number))


def _rooms(lengths: tuple[int, int], limits: WindowLimits, special: int, index: int) -> tuple[int, int]:
    """Return the maximum tokens of each text in a window, for texts that do not fit into one window."""
    first, second = lengths
    room = limits.max_length - special
    if limits.cut == "second":
        rooms = first, room - first
    elif min(lengths) <= room // 2:
        rooms = (first, room - first) if first <= second else (room - second, second)
    else:
        rooms = room // 2, room - room // 2
    if any(has < min(1, length) for has, length in zip(rooms, lengths, strict=True)):
        raise TextTooLong(
            f"pair {index + 1} has texts of {first} and {second} tokens; a window of {limits.max_length} tokens, "
            f"{special} of them special, leaves no room for both"
            + (
                ", as the first must fit whole. Shorten the first text, or choose a larger max_length."
                if limits.cut == "second"
                else ". Choose a larger max_length."
            )
        )
    return rooms


def _parts(body: range, room: int, limits: WindowLimits, index: int) -> list[range]:
    """Return the overlapping parts of a text, of at most ``room`` tokens each; one part if it is truncated."""
    stride = limits.stride
    if len(body) <= room:
        return [body]
    if limits.overflow != "window":
        return [body[len(body) - room :] if limits.overflow == "truncate_left" else body[:room]]
    if stride is not None and stride >= room:
        raise InvalidInput(
            f"expected a stride below {room}, as a window holds {room} tokens of text {index + 1}, got {stride}. "
            "Choose a smaller stride or a larger max_length."
        )
    step = room - (room // 4 if stride is None else stride)
    count = 1 + -(-(len(body) - room) // step)
    return [body[step * number : step * number + room] for number in range(count)]


# The value for special tokens, instead of the index of a text (0 or 1).
NO_TEXT = -1


@dataclass(frozen=True, slots=True)
class Places:
    """Positions of the tokens of one window in their texts.

    Attributes:
        begins_n: Index of each token's first character in its text, int32; 0 for special tokens.
        ends_n: Index after each token's last character, int32; 0 for special tokens.
        sequences_n: 0 for tokens of the first text, 1 for those of the second, -1 for special tokens, int8.
        start: Position of the window in its text, in tokens of that text (of the second text, for a pair).
    """

    begins_n: NDArray[np.int32]
    ends_n: NDArray[np.int32]
    sequences_n: NDArray[np.int8]
    start: int

    @classmethod
    def of(cls, window: Window) -> "Places":
        """Return the token positions of a window that was encoded with offsets."""
        if window.offsets is None or window.sequences is None:
            raise InvalidInput("the offsets of tokens are known only for texts that were encoded with offsets=True.")
        spans_n2 = np.array(window.offsets, dtype=np.int32)
        sequences = [NO_TEXT if number is None else number for number in window.sequences]
        return cls(spans_n2[:, 0], spans_n2[:, 1], np.array(sequences, dtype=np.int8), window.start)


@dataclass(frozen=True)
class TextsRead:
    """Counts of texts that were read in several windows, of truncated texts, and of the tokens that they lost."""

    texts: int
    in_windows: int  # texts read in more than one window
    cut: int  # truncated texts, which have tokens that were not read
    dropped_tokens: int  # tokens that were not read, summed over the texts

    @classmethod
    def of(cls, windows: Sequence[int], dropped_tokens: Sequence[int]) -> "TextsRead":
        """Compute the counts from the number of windows and of dropped tokens of each text."""
        return cls(
            texts=len(windows),
            in_windows=sum(count > 1 for count in windows),
            cut=sum(count > 0 for count in dropped_tokens),
            dropped_tokens=sum(dropped_tokens),
        )

    def to_dict(self) -> dict[str, int]:
        """Return JSON values."""
        return asdict(self)

    def summary(self) -> str:
        """Return one line; empty if every text was read completely in one window."""
        parts = []
        if self.in_windows:
            parts.append(f"{self.in_windows} of {self.texts} texts were read in several windows")
        if self.cut:
            parts.append(f"{self.cut} of {self.texts} texts were truncated: {self.dropped_tokens} tokens were not read")
        return "; ".join(parts)
