"""From a text with masks to its fillings: reads it, spells the words that it is restricted to, has them searched."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypedDict, TypeVar

from bothways.errors import InvalidInput
from bothways.tasks.masks.filled import FilledMask, FilledText, Filling
from bothways.tasks.masks.filling import AnyWord, Choice, GivenWords, Pieces, ScoredFill, Search, search
from bothways.tasks.masks.masked_text import MaskedText, MaskReader

T = TypeVar("T")

# Combinations of numbers of pieces that are searched, each with beams of its own.
MOST_COMBINATIONS = 64


class FillOptions(TypedDict, total=False):
    """What may fill masks, and how it is searched for.

    Attributes:
        top: How many words and fillings to give, at most; 5 when left out.
        words: Only these may fill a mask; they may have several pieces.
        max_pieces: Otherwise, most pieces of a word; 1 when left out. With 1 every token may fill a mask; with more,
            only what begins a word may follow white space, and only what goes on with a word, without punctuation or
            white space, may follow that; and a word that comes in pieces of several kinds is given once.
        beam: Partial fillings that are kept; 16 when left out.
    """

    top: int
    words: Sequence[str] | None
    max_pieces: int
    beam: int


@dataclass(frozen=True, slots=True)
class MaskFiller:
    """Fills the masks of texts.

    Attributes:
        reader: How texts are read.
        words: See `FillOptions`, as for the others.
        max_pieces: Most pieces of a word.
        top: How many fillings to give, at most.
        beam: Partial fillings that are kept.

    Raises:
        InvalidInput: A number is below 1, or there are no words in ``words``.
    """

    reader: MaskReader
    words: Sequence[str] | None = None
    max_pieces: int = 1
    top: int = 5
    beam: int = 16

    def __post_init__(self) -> None:
        for name in ("top", "max_pieces", "beam"):
            value = getattr(self, name)
            if value < 1:
                raise InvalidInput(f"{name} must be at least 1, but it is {value}.")
        if self.words is None:
            return
        if not isinstance(self.words, Sequence) or isinstance(self.words, str) or not self.words:
            raise InvalidInput(f"expected words as a list of at least one string, got {self.words!r}.")
        if self.max_pieces != 1:
            raise InvalidInput("given words have the pieces that spell them: leave max_pieces out.")

    def search(self, text: str, index: int) -> Search[FilledText]:
        """The search for the fillings of a text, to be run.

        Args:
            text: The text.
            index: Its number, for messages.

        Raises:
            InvalidInput: It has no mask or too many, a word cannot be spelt there, or there are too many ways to
                share pieces out among the masks.
            TextTooLong: It is too long and the policy is ``"error"``, or its masks are too far apart.
        """
        if self.words is None:
            read = self.reader.read(text, index=index, pieces=self.max_pieces)
            choice: Choice = AnyWord(self.max_pieces)
            names: tuple[dict[Pieces, str], ...] = ({},) * len(read.slots)
        else:
            read = self.reader.read(text, index=index)
            names = tuple(self._spelt(self.words, read, slot) for slot in range(len(read.slots)))
            longest = max(len(pieces) for known in names for pieces in known)
            if longest > 1:
                read = self.reader.read(text, index=index, pieces=longest)
            choice = GivenWords(tuple(tuple(known) for known in names))
        self._check_combinations(choice, len(read.slots), index)
        mask = self.reader.tokenizer.mask_id
        found = yield from search(read, choice, mask, top=self.top, beam=self.beam)
        fillings = [self._filling(read, names, scored) for scored in found.together]
        words = [
            [self._word(known, scored) for scored in best] for known, best in zip(names, found.of_mask, strict=True)
        ]
        if self.max_pieces > 1:  # a word may be cut into pieces in several ways
            fillings = _first_of_each(fillings, lambda filling: filling.text)
            words = [_first_of_each(best, lambda word: (word.word, self._continues(word.pieces[0]))) for best in words]
        return FilledText(
            fillings=tuple(fillings),
            masks=tuple(map(tuple, words)),
            dropped_tokens=read.dropped_tokens,
        )

    def _spelt(self, words: Sequence[str], read: MaskedText, slot: int) -> dict[Pieces, str]:
        """The words by their pieces; of several with the same pieces the first."""
        spelt: dict[Pieces, str] = {}
        for word in words:
            spelt.setdefault(self.reader.spelt(word, read.slots[slot]), word.strip())
        return spelt

    def _check_combinations(self, choice: Choice, masks: int, index: int) -> None:
        combinations = math.prod(len(choice.lengths(slot)) for slot in range(masks))
        if masks > 1 and combinations > MOST_COMBINATIONS:
            raise InvalidInput(
                f"text {index + 1} has {masks} masks, whose words may share out pieces in {combinations} ways, but at "
                f"most {MOST_COMBINATIONS} are searched. Allow fewer pieces, or fill some of the masks in."
            )

    def _filling(self, read: MaskedText, names: Sequence[dict[Pieces, str]], scored: ScoredFill) -> Filling:
        words = [self._name(known, pieces) for known, pieces in zip(names, scored.fill, strict=True)]
        first = self.reader.tokenizer.tokens([pieces[0] for pieces in scored.fill])
        joined = [not known and self._continues(token) for known, token in zip(names, first, strict=True)]
        text = read.filled(words, joined)
        return Filling(text, tuple(words), math.exp(scored.log_probability), scored.log_probability)

    def _word(self, known: dict[Pieces, str], scored: ScoredFill) -> FilledMask:
        (pieces,) = scored.fill
        tokens = tuple(self.reader.tokenizer.tokens(pieces))
        return FilledMask(self._name(known, pieces), tokens, math.exp(scored.log_probability), scored.log_probability)

    def _name(self, known: dict[Pieces, str], pieces: Pieces) -> str:
        if pieces in known:
            return known[pieces]
        return self.reader.tokenizer.spellings([pieces])[0]

    def _continues(self, token: str) -> bool:
        return self.reader.tokenizer.word_marks.continues(token)


def _first_of_each(listed: Iterable[T], name: Callable[[T], object]) -> list[T]:
    """Of those with the same name the first, which is the likeliest."""
    named: dict[object, T] = {}
    for each in listed:
        named.setdefault(name(each), each)
    return list(named.values())
