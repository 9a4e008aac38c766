"""Statistics that compare several tokenizers on the same texts.

A word is a run of characters without white space, so all tokenizers have the same words; in scripts written
without spaces, a word is a clause or a sentence.
"""

import sys
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from re import finditer

from bothways.errors import InvalidInput
from bothways.text.tokenizer import TextTokenizer
from bothways.text.windows import Window

_BLOCK = 256


@dataclass(frozen=True, slots=True)
class CutWord:
    """A word that a tokenizer splits, and its pieces."""

    word: str
    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TokenizerSummary:
    """Counts of one tokenizer on the texts, without the special tokens around a text.

    Attributes:
        name: The caller's name for the tokenizer.
        texts: Number of texts.
        words: Number of words.
        characters: Number of characters in words, without white space.
        pieces: Number of tokens of all texts.
        unknown_pieces: Number of unknown tokens, which replace text that the vocabulary cannot represent.
        unknown_words: Number of words with an unknown token. Unlike `unknown_pieces`, this number is comparable between
            tokenizers that replace a whole word, or each unknown character, by an unknown token.
        vocabulary: Size of the vocabulary, special tokens included.
        used: Number of vocabulary entries that occur in the texts.
        most_cut: The words that are split into the most tokens (at least two), in descending order.
    """

    name: str
    texts: int
    words: int
    characters: int
    pieces: int
    unknown_pieces: int
    unknown_words: int
    vocabulary: int
    used: int
    most_cut: tuple[CutWord, ...]

    @property
    def pieces_per_word(self) -> float:
        """Pieces per word, also called fertility; 0 without words."""
        return self.pieces / self.words if self.words else 0.0

    @property
    def characters_per_piece(self) -> float:
        """Characters per piece; 0 without pieces."""
        return self.characters / self.pieces if self.pieces else 0.0

    @property
    def unknown_rate(self) -> float:
        """Share of unknown pieces."""
        return self.unknown_pieces / self.pieces if self.pieces else 0.0

    @property
    def unknown_word_rate(self) -> float:
        """Share of words with an unknown piece."""
        return self.unknown_words / self.words if self.words else 0.0

    @property
    def used_share(self) -> float:
        """Share of the vocabulary that occurs in the texts."""
        return self.used / self.vocabulary if self.vocabulary else 0.0


def compare_tokenizers(
    tokenizers: Mapping[str, TextTokenizer], texts: Iterable[str], *, most_cut: int = 10
) -> tuple[TokenizerSummary, ...]:
    """Tokenize the same texts with each tokenizer and return statistics.

    Texts are read once, a few hundred at a time; memory grows with the vocabularies, not with the texts.

    Args:
        tokenizers: The tokenizers by name.
        texts: The texts; long ones are not truncated.
        most_cut: Number of words with the most tokens to keep for each tokenizer.

    Returns:
        One summary for each tokenizer, in the order of ``tokenizers``.

    Raises:
        InvalidInput: There are no tokenizers or no texts, ``most_cut`` is negative, or a text cannot be read.
    """
    if not tokenizers:
        raise InvalidInput("expected at least one tokenizer to compare, got none.")
    if most_cut < 0:
        raise InvalidInput(f"expected most_cut of 0 or more, got {most_cut}.")
    if isinstance(texts, str):
        raise InvalidInput("expected a sequence of texts, got one string: put it into a list.")
    counts = [_Counts(name, tokenizer, most_cut, _unk_id(tokenizer)) for name, tokenizer in tokenizers.items()]
    remaining = iter(texts)
    done = 0
    while block := list(islice(remaining, _BLOCK)):
        for count in counts:
            count.add(block, first=done)
        done += len(block)
    if not done:
        raise InvalidInput("expected texts to compare tokenizers on, got none.")
    return tuple(count.summary(done) for count in counts)


def text_pieces(tokenizer: TextTokenizer, text: str) -> tuple[str, ...]:
    """Return the pieces of a text as they stand in the vocabulary, without special tokens."""
    (window,) = tokenizer.encode([text], max_length=sys.maxsize, offsets=True)[0].windows
    return tuple(tokenizer.token(number) for number, _ in _of_the_text(window))


@dataclass(slots=True)
class _Counts:
    name: str
    tokenizer: TextTokenizer
    most_cut: int
    unk_id: int | None
    words: int = 0
    characters: int = 0
    pieces: int = 0
    unknown_pieces: int = 0
    unknown_words: int = 0
    used: set[int] = field(default_factory=set)
    worst: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def add(self, texts: list[str], *, first: int) -> None:
        encoded = self.tokenizer.encode(texts, max_length=sys.maxsize, offsets=True, first=first)
        for text, windows in zip(texts, encoded, strict=True):
            pieces = list(_of_the_text(windows.windows[0]))
            self.pieces += len(pieces)
            self.unknown_pieces += sum(number == self.unk_id for number, _ in pieces)
            self.used.update(number for number, _ in pieces)
            for word, ids in _by_word(text, pieces):
                self.words += 1
                self.characters += len(word)
                self.unknown_words += self.unk_id in ids
                if len(ids) > max(1, len(self.worst.get(word, ()))):
                    self.worst[word] = tuple(ids)
        # Only the requested number of words is kept between blocks.
        self.worst = dict(self._ranked()[: self.most_cut])

    def summary(self, texts: int) -> TokenizerSummary:
        return TokenizerSummary(
            name=self.name,
            texts=texts,
            words=self.words,
            characters=self.characters,
            pieces=self.pieces,
            unknown_pieces=self.unknown_pieces,
            unknown_words=self.unknown_words,
            vocabulary=len(self.tokenizer.vocabulary()),
            used=len(self.used),
            most_cut=tuple(CutWord(word, tuple(self.tokenizer.tokens(ids))) for word, ids in self._ranked()),
        )

    def _ranked(self) -> list[tuple[str, tuple[int, ...]]]:
        """Sort words by falling number of pieces, then alphabetically."""
        return sorted(self.worst.items(), key=lambda item: (-len(item[1]), item[0]))


def _unk_id(tokenizer: TextTokenizer) -> int | None:
    """Return the id of the unknown token; None for a tokenizer that can spell everything."""
    try:
        return tokenizer.unk_id
    except InvalidInput:
        return None


def _of_the_text(window: Window) -> Iterable[tuple[int, tuple[int, int]]]:
    """Return the ids and offsets of a window's tokens, without special ones."""
    tokens = zip(window.ids, window.offsets or (), window.sequences or (), strict=True)
    return ((number, span) for number, span, sequence in tokens if sequence is not None)


def _by_word(text: str, pieces: Iterable[tuple[int, tuple[int, int]]]) -> list[tuple[str, list[int]]]:
    """Return every word with the ids of its pieces; a piece of white space belongs to the word after it."""
    words = [(match.group(), match.end()) for match in finditer(r"\S+", text)]
    ends = [end for _, end in words]
    ids: list[list[int]] = [[] for _ in words]
    for number, (begin, end) in pieces:
        place = bisect_right(ends, max(begin, end - 1))
        if place < len(words):
            ids[place].append(number)
    return [(word, of_word) for (word, _), of_word in zip(words, ids, strict=True)]
