"""Characters that are no words by themselves: marks on the character in front of them, joiners, and unseen ones."""

import functools
import itertools
import re
import unicodedata

SEPARATOR = "\u200b"
"""The zero-width space: where a word ends in scripts without spaces (Unicode 16, section 23.2)."""

_ZERO_WIDTH_JOINER = "\u200d"

# The joiners of Persian, Indic and Mongolian words and of emoji, and the tags of flags.
_JOINERS = frozenset(("\u200c", _ZERO_WIDTH_JOINER, "\u180e", *map(chr, range(0xE0020, 0xE0080))))

_UNSEEN = "\u00ad\u061c\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001"

UNSEEN = re.compile(f"[{SEPARATOR}{_UNSEEN}]")
"""Format characters (Cf) with no form of their own, joiners aside: soft hyphens, word joiners, marks of direction."""


def is_mark(character: str) -> bool:
    r"""Return whether a character belongs to the one in front of it: an accent, a vowel sign, a variation, a joiner.

    >>> [is_mark(each) for each in ("e", "\u0301", "\ufe0f", "-")]
    [False, True, True, False]
    """
    return unicodedata.category(character) in ("Mn", "Mc", "Me") or character in _JOINERS


def within_word(text: str) -> bool:
    r"""Return whether a text may stand within a word: it has no white space, no controls and no punctuation.

    Punctuation is what BERT's tokenizer cuts words at (Devlin et al. 2019): that of Unicode, and all that ASCII has
    beside letters and digits.

    >>> [within_word(each) for each in ("ing", "2é", "", ",", "a-b", "\n")]
    [True, True, False, False, False, False]
    """
    return bool(text) and not any(map(_cuts_words, text))


def _cuts_words(character: str) -> bool:
    if character.isascii():
        return not character.isalnum()
    category = unicodedata.category(character)
    return category[0] in "PZ" or category == "Cc"


@functools.cache
def marks() -> str:
    """All marks, joiners among them, as ranges: what a pattern has between brackets.

    One by one, those beyond the first plane would make such a pattern slow.
    """
    places = [place for place in (*range(0x300, 0x1F000), *range(0xE0020, 0xE01F0)) if is_mark(chr(place))]
    runs = itertools.groupby(enumerate(places), lambda numbered: numbered[1] - numbered[0])
    ends = ((run[0][1], run[-1][1]) for run in (list(run) for _, run in runs))
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ends)


def joiners() -> str:
    """Return the marks that cannot be seen when they stand alone."""
    return "".join(sorted(_JOINERS))


def letter_run() -> str:
    r"""Return the pattern of a run of letters and digits, with the marks and the unseen characters within it.

    ``\w`` alone matches no marks: it would cut Hindi words at each vowel sign, and decomposed ones at each accent.

    >>> re.findall(letter_run(), "हिन्दी भाषा!")
    ['हिन्दी', 'भाषा']
    """
    return rf"\w[\w{marks()}{_UNSEEN}]*"


def behind_marks(text: str, end: int) -> int:
    r"""Return the end of a part of a text, moved on over the marks of its last character.

    Tokenizers leave marks out of their offsets where they drop accents or compose characters. What a joiner joins to an
    emoji is a character of its own, so the joiner stays with that.

    >>> behind_marks("Cafe\u0301 Noir", 4)
    5
    """
    while 0 < end < len(text) and is_mark(text[end]) and not _joins_symbols(text, end):
        end += 1
    return end


def _joins_symbols(text: str, place: int) -> bool:
    following = text[place + 1 : place + 2]
    return text[place] == _ZERO_WIDTH_JOINER and following != "" and unicodedata.category(following) == "So"
