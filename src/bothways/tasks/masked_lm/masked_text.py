"""A text with masks, as the model reads it: places of the masks, the context around them, spelling of words there.

Each mask is a slot for one word, of one piece or of several; a word of k pieces takes the place of k masks.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bothways.errors import InvalidInput, TextTooLong
from bothways.text import Overflow, TextTokenizer, Window
from bothways.text.windows import check_text

# Spelling of a mask that is accepted for every model.
MASK = "[MASK]"
# Maximum masks of a text, which are filled together; the search fills them in three orders.
MOST_MASKS = 8

# Characters of the text before a mask, enough to tokenise a word as in its context.
_CONTEXT = 40
_NO_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Slot:
    """A mask: the place of its token in the input sequence, and the text on its left.

    That text reaches back to the previous mask, if there is one (``follows_mask``).
    """

    place: int
    left: str
    follows_mask: bool

    @property
    def after_space(self) -> bool:
        """True if white space stands before it, so that a word starts there."""
        return self.left[-1:].isspace()


@dataclass(frozen=True, slots=True)
class MaskedText:
    """A text with masks, ready for the model.

    There is one part of the text more than there are masks. The ids include special tokens and one for each mask.
    Dropped tokens were too far from the masks to be read with them.
    """

    parts: tuple[str, ...]
    ids: tuple[int, ...]
    types: tuple[int, ...]
    slots: tuple[Slot, ...]
    dropped_tokens: int

    def filled(self, words: Sequence[str], joined: Sequence[bool]) -> str:
        """Return the text with the masks replaced by words; a joined word loses the white space before it."""
        text = self.parts[0]
        for word, join, part in zip(words, joined, self.parts[1:], strict=True):
            text = (text.rstrip() if join else text) + word + part
        return text


@dataclass(frozen=True, slots=True)
class MaskReader:
    """Reads texts with masks for one model, within ``max_length`` tokens, special ones included.

    ``on_overflow`` reads the window around the masks of a longer text, raises an error, or truncates it.
    """

    tokenizer: TextTokenizer
    max_length: int
    on_overflow: Overflow

    def read(self, text: str, *, index: int = 0, pieces: int = 1) -> MaskedText:
        """Return a text, tokenised and shortened to the model's maximum length; ``index`` is its number in messages.

        Room is left for words of ``pieces`` pieces. A text without masks or with too many is refused, and so is one
        that is too long (`TextTooLong`) if the policy is ``"error"`` or a mask lies outside the part read.
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
        """Return the pieces of a word in place of a mask; refuse one that cannot be spelt there."""
        if not isinstance(word, str) or not word.strip():
            raise InvalidInput(f"expected non-empty words to fill a mask with, got {word!r}.")
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
                f"{'nothing is left of it' if not pieces else f'it holds {self.tokenizer.token(unknown[0])}'}. "
                "Leave it out, or take a model whose tokenizer knows its characters."
            )
        if spans[inside[0]][0] < border:
            raise InvalidInput(
                f"the word {word!r} runs together with {context[-20:]!r} before the mask: they share the piece "
                f"{self.tokenizer.token(pieces[0])!r}. Put the mask in the place of the whole word."
            )
        return pieces

    def _tokenised(self, text: str, index: int) -> Window:
        (encoded,) = self.tokenizer.encode([text], max_length=_NO_LIMIT, offsets=True, first=index)
        return encoded.windows[0]

    def _check_masks(self, written: int, found: int, own: str, index: int) -> None:
        if not written:
            spelling = f"{own} or {MASK}" if own != MASK else MASK
            raise InvalidInput(f"text {index + 1} has no mask: write {spelling} where a word is to be filled in.")
        if written > MOST_MASKS:
            raise InvalidInput(
                f"text {index + 1} has {written} masks, but at most {MOST_MASKS} can be filled together, since "
                "every mask multiplies the combinations. Fill some of them in, or give parts of the text."
            )
        if found != written:
            raise InvalidInput(
                f"text {index + 1} has {written} masks, but the tokenizer finds {found}: {own} must stand by itself, "
                "with no letters right beside it."
            )

    def _cut(self, window: Window, places: list[int], index: int, extra: int) -> tuple[int, int]:
        """Return the bounds of the part of a sequence that is read, without its special tokens."""
        begin, end = window.body.start, window.body.stop
        room = self.max_length - (len(window.ids) - (end - begin)) - extra
        if end - begin <= room:
            return begin, end
        if self.on_overflow == "error":
            added = f", to which words of several pieces may add {extra}" if extra else ""
            raise TextTooLong(
                f"text {index + 1} has {len(window.ids)} tokens with the special ones{added}: more than the limit of "
                f"{self.max_length}. Choose on_overflow='window' to read what stands around the masks, or shorten it."
            )
        span = places[-1] + 1 - places[0]
        if span > room:
            raise TextTooLong(
                f"the masks of text {index + 1} lie {span} tokens apart, but only {max(room, 0)} tokens fit beside the "
                f"special ones{' and further pieces of words' if extra else ''}. Predict one mask at a time, each with "
                "the text around it."
            )
        if self.on_overflow == "truncate":
            if places[-1] >= begin + room:
                raise TextTooLong(
                    f"mask {sum(place < begin + room for place in places) + 1} of text {index + 1} lies behind the "
                    f"first {room} tokens, and on_overflow='truncate' drops the rest. Choose on_overflow='window'."
                )
            return begin, begin + room
        start = (places[0] + places[-1] + 1 - room) // 2
        start = max(begin, min(start, end - room))
        return start, start + room


def _tail(text: str) -> str:
    """Return the end of a text, from the start of a word if possible."""
    tail = text[-_CONTEXT:]
    _, space, words = tail.partition(" ")
    return words if space and words.strip() else tail
