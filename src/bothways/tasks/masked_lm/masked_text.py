"""Texts with masks: tokenisation, the window around the masks, and the spelling of words at a mask.

Each mask is a slot for one word of one or more pieces (subword tokens); a word of k pieces replaces k mask tokens.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bothways.errors import InvalidInput, TextTooLong
from bothways.inference.texts import overflow_of
from bothways.text import Overflow, TextTokenizer, Window
from bothways.text.windows import check_text

# A mask in this spelling is accepted for every model.
MASK = "[MASK]"
# Maximum masks of a text; they are filled together, in up to three orders.
MOST_MASKS = 8

# Maximum characters before a mask that are tokenised together with a word.
_CONTEXT = 40
_NO_LIMIT = 2**31 - 1


def with_mask(text: str) -> str:
    """Return a text with a mask in place of its middle word; behind its only word if it has one; as it is with masks.

    >>> with_mask("Paris is the capital.")
    'Paris is [MASK] capital.'
    """
    words = text.split()
    if MASK in text:
        return text
    if len(words) < 2:
        return f"{text} {MASK}"
    words[len(words) // 2] = MASK
    return " ".join(words)


@dataclass(frozen=True, slots=True)
class Slot:
    """A mask: the index of its token in the input sequence, and the text on its left.

    The text starts after the previous mask if there is one (``follows_mask``), else at the beginning of the whole text.
    """

    place: int
    left: str
    follows_mask: bool

    @property
    def after_space(self) -> bool:
        """True if white space precedes the mask, so a word starts there."""
        return self.left[-1:].isspace()


@dataclass(frozen=True, slots=True)
class MaskedText:
    """A text with masks, tokenised for the model.

    ``parts`` are the texts before, between and after the masks. ``ids`` include special tokens and one token for each
    mask. ``dropped_tokens`` counts the tokens that did not fit into the window around the masks.
    """

    parts: tuple[str, ...]
    ids: tuple[int, ...]
    types: tuple[int, ...]
    slots: tuple[Slot, ...]
    dropped_tokens: int

    def filled(self, words: Sequence[str], joined: Sequence[bool]) -> str:
        """Replace the masks by words; for a word that is ``joined``, drop the white space before it."""
        text = self.parts[0]
        for word, join, part in zip(words, joined, self.parts[1:], strict=True):
            text = (text.rstrip() if join else text) + word + part
        return text


@dataclass(frozen=True, slots=True)
class MaskReader:
    """Tokenises texts with masks for one model, up to ``max_length`` tokens including special tokens.

    For longer texts, ``on_overflow``, or the policy of the caller's schedule, reads the window around the masks, raises
    an error, or truncates.
    """

    tokenizer: TextTokenizer
    max_length: int
    on_overflow: Overflow

    def read(self, text: str, *, index: int = 0, pieces: int = 1) -> MaskedText:
        """Tokenise a text and shorten it to ``max_length``; messages give the text's number, ``index`` + 1.

        The text stays within ``max_length`` if each mask is replaced by ``pieces`` tokens. Raises `InvalidInput` for a
        text with no mask or too many, and `TextTooLong` if the text is too long and ``on_overflow`` is ``"error"``, or
        if the masks do not fit into the window.
        """
        if not isinstance(text, str):
            raise InvalidInput(f"expected text {index + 1} to be a string with a mask, got {type(text).__name__}.")
        check_text(index, text)
        own = self.tokenizer.token(self.tokenizer.mask_id)
        parts = re.split("|".join(map(re.escape, {own, MASK})), text)
        window = self._tokenised(own.join(parts), index)
        places = [place for place, number in enumerate(window.ids) if number == self.tokenizer.mask_id]
        self._check_masks(len(parts) - 1, len(places), own, index)
        begin, stop = self._cut(window, places, index, len(places) * (pieces - 1))
        body = window.body
        kept = [*range(body.start), *range(begin, stop), *range(body.stop, len(window.ids))]
        slots = tuple(
            Slot(place - (begin - body.start), part, number > 0)
            for number, (place, part) in enumerate(zip(places, parts, strict=False))
        )
        return MaskedText(
            parts=tuple(parts),
            ids=tuple(window.ids[place] for place in kept),
            types=tuple(window.types[place] for place in kept),
            slots=slots,
            dropped_tokens=len(body) - (stop - begin),
        )

    def spelt(self, word: str, slot: Slot) -> tuple[int, ...]:
        """Return the piece ids of a word at a mask; refuse a word that the vocabulary cannot spell there."""
        if not isinstance(word, str) or not word.strip():
            raise InvalidInput(f"expected a non-empty word to fill a mask with, got {word!r}.")
        context = ("a" if slot.follows_mask and not slot.left.strip() else "") + slot.left
        context = context if len(context) <= _CONTEXT else _tail(context)
        border = len(context.rstrip())
        # Line breaks and other white space before the word are not part of it.
        context = context.rstrip() + (" " if slot.after_space and border else "")
        window = self._tokenised(context + word.strip(), 0)
        spans, sequences = window.offsets or [], window.sequences or []
        inside = [place for place, sequence in enumerate(sequences) if sequence == 0 and spans[place][1] > border]
        pieces = tuple(window.ids[place] for place in inside)
        unknown = [number for number in pieces if number in self.tokenizer.special_ids]
        if not pieces or unknown:
            raise InvalidInput(
                f"this model's vocabulary cannot spell the word {word!r}: "
                f"{'the tokenizer drops it' if not pieces else f'it becomes {self.tokenizer.token(unknown[0])}'}. "
                "Leave it out, or choose a model whose tokenizer knows its characters."
            )
        if spans[inside[0]][0] < border:
            raise InvalidInput(
                f"the word {word!r} merges with {context[-20:]!r} before the mask: they share the token "
                f"{self.tokenizer.token(pieces[0])!r}. Replace the whole word by the mask."
            )
        return pieces

    def _tokenised(self, text: str, index: int) -> Window:
        (encoded,) = self.tokenizer.encode([text], max_length=_NO_LIMIT, offsets=True, first=index)
        return encoded.windows[0]

    def _check_masks(self, written: int, found: int, own: str, index: int) -> None:
        if not written:
            spelling = f"{own} or {MASK}" if own != MASK else MASK
            raise InvalidInput(f"text {index + 1} has no mask: write {spelling} where a word is missing.")
        if written > MOST_MASKS:
            raise InvalidInput(
                f"text {index + 1} has {written} masks, but at most {MOST_MASKS} can be filled together, since "
                "every mask multiplies the combinations. Fill in some of them, or split the text."
            )
        if found != written:
            raise InvalidInput(
                f"text {index + 1} has {written} masks, but the tokenizer recognises {found}: separate each {own} "
                "from the letters beside it by a space."
            )

    def _cut(self, window: Window, places: list[int], index: int, extra: int) -> tuple[int, int]:
        """Return the start and end of the tokens to keep, without special tokens."""
        begin, end = window.body.start, window.body.stop
        room = self.max_length - (len(window.ids) - (end - begin)) - extra
        if end - begin <= room:
            return begin, end
        on_overflow = overflow_of(self.on_overflow)
        if on_overflow == "error":
            added = f", and words of several pieces may add {extra}" if extra else ""
            raise TextTooLong(
                f"text {index + 1} has {len(window.ids)} tokens (special ones included){added}: more than the limit "
                f"of {self.max_length}. Use on_overflow='window' to read the part around the masks, or shorten it."
            )
        span = places[-1] + 1 - places[0]
        if span > room:
            raise TextTooLong(
                f"the masks of text {index + 1} span {span} tokens, but only {max(room, 0)} tokens fit besides special "
                f"tokens{' and the further pieces of candidate words' if extra else ''}. Predict one mask at a "
                "time, each with the text around it."
            )
        if on_overflow != "window":
            start = begin if on_overflow == "truncate" else end - room
            lost = [number for number, place in enumerate(places, start=1) if not start <= place < start + room]
            if lost:
                where = "after the first" if on_overflow == "truncate" else "before the last"
                raise TextTooLong(
                    f"mask {lost[0]} of text {index + 1} comes {where} {room} tokens, and on_overflow={on_overflow!r} "
                    "drops the rest. Use on_overflow='window'."
                )
            return start, start + room
        start = (places[0] + places[-1] + 1 - room) // 2
        start = max(begin, min(start, end - room))
        return start, start + room


def _tail(text: str) -> str:
    """Return the last `_CONTEXT` characters of a text, from the start of a word if possible."""
    tail = text[-_CONTEXT:]
    _, space, words = tail.partition(" ")
    return words if space and words.strip() else tail
