"""Words of a text (their positions, the string that the model reads, their first tokens), and sentences.

The model always reads words with a single space between them, whether they came as a list or were found in a raw text:
the input looks alike in training and inference, and the position of a word in the original does not depend on how
the tokenizer normalises the word.

Sentences end at the marks of most scripts, unless the word before a full stop is a known abbreviation or a single
letter, or the next one begins in lower case. Pre-training splits documents there; a few errors do little harm.

Shapes: W words of a text, n tokens of a window.
"""

import functools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InvalidInput
from bothways.text.characters import SEPARATOR, UNSEEN, joiners, marks
from bothways.text.windows import Places, Text

# Replaces a word without visible characters, so that no two spaces follow each other.
_STAND_IN = "\N{REPLACEMENT CHARACTER}"
_BLANK = frozenset(("Cc", "Cf", "Zs", "Zl", "Zp"))


@dataclass(frozen=True, slots=True)
class Words:
    """The words of one text.

    Attributes:
        text: The original; for a list of words, the words with single spaces between them.
        spans: Start and end of each word in `text`, in characters.
    """

    text: str
    spans: tuple[tuple[int, int], ...]

    @classmethod
    def of_text(cls, text: str) -> "Words":
        """Split a raw text into words, see `word_spans`."""
        return cls(text, tuple(word_spans(text)))

    @classmethod
    def of_list(cls, words: Sequence[str]) -> "Words":
        """Return the words of a list, unchanged."""
        spans, begin = [], 0
        for number, word in enumerate(words):
            if not word:
                raise InvalidInput(f"word {number + 1} is empty: a word needs at least one character.")
            spans.append((begin, begin + len(word)))
            begin += len(word) + 1
        return cls(" ".join(words), tuple(spans))

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, number: int) -> str:
        begin, end = self.spans[number]
        return self.text[begin:end]

    def listed(self) -> list[str]:
        """Return all words as a list of strings."""
        return [self.text[begin:end] for begin, end in self.spans]


@dataclass(frozen=True, slots=True)
class ReadWords:
    """Words as the model reads them: without invisible characters, joined by single spaces.

    Attributes:
        text: The words with single spaces between them.
        begins_W: Start of each word in `text`, in characters.
        ends_W: End of each word in `text`, in characters.
    """

    text: str
    begins_W: NDArray[np.int64]
    ends_W: NDArray[np.int64]

    @classmethod
    def of(cls, words: Words) -> "ReadWords":
        """Remove invisible characters from words and join them by single spaces."""
        listed = [_readable(word) for word in words.listed()]
        ends_W = np.cumsum([len(word) + 1 for word in listed]) - 1
        return cls(" ".join(listed), ends_W - np.fromiter(map(len, listed), np.int64, len(listed)), ends_W)

    def first_tokens(self, places: Sequence[Places]) -> "WordStarts":
        """Return the first token of each word, in every window that holds it.

        A word's tokens spell its characters. The mark of the space before the word also counts: SentencePiece and
        byte-level BPE give it a token of its own if no piece of the vocabulary joins the two. A window that begins in
        the middle of a word has no first token of that word.
        """
        parts = [_first_in_window(self.begins_W, self.ends_W, each) for each in places]
        if len(parts) == 1:
            return parts[0]
        first_W = np.full(len(self.begins_W), np.iinfo(np.int64).max)
        for part, place in zip(parts, places, strict=True):
            np.minimum.at(first_W, part.words_M, _numbers(part, place))
        kept = [
            part.only(_numbers(part, place) == first_W[part.words_M]) for part, place in zip(parts, places, strict=True)
        ]
        windows = [np.full(len(part.rows_M), number) for number, part in enumerate(kept)]
        return WordStarts(
            np.concatenate([part.words_M for part in kept]),
            np.concatenate([part.rows_M for part in kept]),
            np.concatenate(windows),
            np.concatenate([part.context_M for part in kept]),
        )


@dataclass(frozen=True, slots=True)
class WordStarts:
    """The first tokens of M words: indices of the word, of the token in its window, and of the window.

    `context_M` counts the tokens from the first token to the nearer end of its window, both included.
    """

    words_M: NDArray[np.int64]
    rows_M: NDArray[np.int64]
    windows_M: NDArray[np.int64]
    context_M: NDArray[np.int64]

    def only(self, keep_M: NDArray[np.bool_]) -> "WordStarts":
        """Return the entries for which ``keep_M`` is True."""
        return WordStarts(self.words_M[keep_M], self.rows_M[keep_M], self.windows_M[keep_M], self.context_M[keep_M])


def blanked_in_front(text: str) -> str:
    """Replace control characters at the start of a text by spaces, so that all characters keep their positions.

    The ``tokenizers`` library (0.23) gives wrong offsets for such a text if a normaliser drops those characters.
    """
    if text[:1].isprintable():
        return text
    shown = next((place for place, each in enumerate(text) if unicodedata.category(each) != "Cc"), len(text))
    return " " * shown + text[shown:]


def read_as_words(text: Text) -> Text:
    """Return a raw text, or a pair of them, as its words with single spaces between them.

    A text without any word is returned unchanged.
    """
    if isinstance(text, str):
        return ReadWords.of(Words.of_text(text)).text or text
    first, second = text
    return str(read_as_words(first)), str(read_as_words(second))


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return start and end of each word of a raw text, by rules for scripts with spaces.

    A run of letters, digits and their marks is a word, also across a single apostrophe, full stop or hyphen within it,
    or a comma between digits; so is a name behind an @ or #, and an address behind ``http://``. Every other character
    that is not white space is a word of its own, with the marks that follow it; so is the English 's, which tagged
    data always separate from a name. Scripts without spaces give long words: pass such texts as lists of words.

    Invisible format characters, such as soft hyphens, word joiners and marks of direction, are treated as if they
    were not there: they stand within a word or between words, and never form one. The zero-width space alone
    ends a word, as white space does, since that is its purpose.

    >>> text = "Dr. Lee's e-mail, to @lee: 1,000 naïve."
    >>> [text[begin:end] for begin, end in word_spans(text)]
    ['Dr', '.', 'Lee', "'s", 'e-mail', ',', 'to', '@lee', ':', '1,000', 'naïve', '.']
    """
    if text.isascii():
        return _matched(text, further=False)
    shown = UNSEEN.sub(lambda found: SEPARATOR if found[0] == SEPARATOR else "", text)
    if len(shown) == len(text):
        return _matched(text, further=True)
    places = [place for place, each in enumerate(text) if each == SEPARATOR or not UNSEEN.match(each)]
    return [(places[begin], places[end - 1] + 1) for begin, end in _matched(shown, further=True)]


def _matched(text: str, *, further: bool) -> list[tuple[int, int]]:
    return [match.span() for match in _pattern(further=further).finditer(text)]


@functools.cache
def _pattern(*, further: bool) -> re.Pattern[str]:
    """Compile the regular expression for words: of ASCII, or with ``further`` of all characters."""
    letter = rf"[\w{marks()}]" if further else r"\w"
    first = rf"(?![{joiners()}]){letter}" if further else letter
    mark = rf"[{marks()}]*" if further else ""
    between = SEPARATOR if further else ""
    alone = rf"[^\s{between}{joiners()}]" if further else r"\S"
    possessive = rf"['\u2019][sS](?!{letter})"
    run = rf"{first}{letter}*(?:(?!{possessive})(?:['\u2019.\-\u00b7]|(?<=\d),(?=\d)){letter}+)*"
    return re.compile(rf"https?://[^\s{between}]+|(?:(?<!\w)[@#])?{run}|(?<={letter}){possessive}|{alone}{mark}")


def _readable(word: str) -> str:
    """Return a word without invisible characters and without leading controls and spaces.

    If a text begins with characters that a SentencePiece normaliser drops, the ``tokenizers`` library (0.23) shifts all
    later offsets by their number.
    """
    if word.isprintable() and word[0] != " ":
        return word
    shown = UNSEEN.sub("", word)
    place = next((place for place, each in enumerate(shown) if unicodedata.category(each) not in _BLANK), None)
    return _STAND_IN if place is None else shown[place:]


def _first_in_window(begins_W: NDArray[np.int64], ends_W: NDArray[np.int64], places: Places) -> WordStarts:
    body_m = np.flatnonzero(places.sequences_n == 0)
    token_begins_m = places.begins_n[body_m]
    # A token that spells no character may end before the preceding token does.
    token_ends_m = np.maximum.accumulate(places.ends_n[body_m])
    # The first token that ends after the word's start, or the preceding one if that is the space before the word.
    spelling_W = np.searchsorted(token_ends_m, begins_W, side="right")
    token_W = np.searchsorted(token_ends_m, begins_W - 1, side="right")
    words_M = np.flatnonzero(token_W < len(body_m))
    in_front_M = token_begins_m[token_W[words_M]] >= begins_W[words_M] - 1
    token_M = np.where(in_front_M, token_W[words_M], spelling_W[words_M])
    words_M, token_M = words_M[token_M < len(body_m)], token_M[token_M < len(body_m)]
    spells_M = token_begins_m[token_M] < ends_W[words_M]
    words_M, rows_M = words_M[spells_M], body_m[token_M[spells_M]]
    context_M = np.minimum(rows_M + 1, len(places.sequences_n) - rows_M)
    return WordStarts(words_M, rows_M, np.zeros_like(rows_M), context_M)


def _numbers(tokens: WordStarts, places: Places) -> NDArray[np.int64]:
    """Return numbers that increase with the position of tokens in the whole text, across windows."""
    return tokens.rows_M + places.start


# --- sentences ---

# A sentence ends at a line break, after a mark before white space, or after a mark of a script without spaces.
# Each mark may be followed by quotes.
_QUOTES = "\"'”’»)\\]"  # noqa: RUF001 (quotes, as written)
_UNSPACED = "。！？｡؟۔।॥"  # noqa: RUF001 (full stops of other scripts)
_END = re.compile(rf"(?P<line>\s*\n\s*)|(?P<mark>[.!?…]+[{_QUOTES}]*)(?=\s)|[{_UNSPACED}]+[{_QUOTES}」』）]*")  # noqa: RUF001
_OPENING = "\"'“‘«(["  # noqa: RUF001
_WORD_BEFORE = re.compile(r"[^\W\d_]+(?:\.[^\W\d_]+)*$")
_LISTED = (
    "adj al approx apr aug ave bros ca capt cf ch cmdr co col corp cpl dec dept dr ed eds e.g eg esp est et etc ex "
    "feb fig figs fr gen gov hon i.e ie inc jan jr jul jun lt ltd maj mar messrs mgr mr mrs ms mt nos nov oct p pl pp "
    "prof pt rep rev sec sen sep sept sgt sr st u.k u.s univ viz vol vols vs bzw bspw evtl ggf hr hrsg nr sog usw vgl "
    "z.b mme mlle"
)
_ABBREVIATIONS = frozenset(_LISTED.split())


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return start and end of each sentence, ascending, without the surrounding white space.

    >>> text = "Dr. Ames left at 5 p.m. yesterday. Why? Nobody knows."
    >>> [text[begin:end] for begin, end in sentence_spans(text)]
    ['Dr. Ames left at 5 p.m. yesterday.', 'Why?', 'Nobody knows.']
    """
    spans: list[tuple[int, int]] = []
    begin = 0
    for found in _END.finditer(text):
        if found["mark"] is not None and not _ends(text, found.start(), found.end(), found["mark"]):
            continue
        begin = _add(spans, text, begin, found.start() if found["line"] is not None else found.end())
    _add(spans, text, begin, len(text))
    return spans


def _add(spans: list[tuple[int, int]], text: str, begin: int, end: int) -> int:
    """Append the span of the sentence between two positions, if any, to ``spans``; return ``end``."""
    sentence = text[begin:end]
    left = len(sentence) - len(sentence.lstrip())
    if left < len(sentence):
        spans.append((begin + left, begin + len(sentence.rstrip())))
    return end


def _ends(text: str, start: int, end: int, mark: str) -> bool:
    """Test whether a punctuation mark before white space ends a sentence."""
    after = text[end : end + 20].lstrip().lstrip(_OPENING)
    if after[:1].islower():
        return False
    if mark != ".":
        return True
    word = _WORD_BEFORE.search(text, max(0, start - 20), start)
    if word is None:
        return True
    last = word[0].rpartition(".")[2]
    return word[0].lower() not in _ABBREVIATIONS and len(last) > 1
