"""The terms of a text for lexical search, before they are stemmed.

A term is a run of letters and digits with their marks: accents, vowel signs of Hindi, Arabic and Hebrew. NFKC and case
folding unite forms of the same meaning: composed and decomposed letters, full and half width, ligatures, the positional
letters of Arabic, CO₂ and CO2. They are applied to the runs and not to the whole text, because NFKC turns signs that
stand beside words, such as ™, into letters.

Scripts without spaces between words give each character and each pair of neighbours, as Lucene's ``CJKBigramFilter``
does with ``outputUnigrams``. Kwok 1999 (JASIS 50:8) found that pairs alone work well for Chinese, and better together
with single characters; without these, a word of one character would not be found in longer runs.
"""

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator

from bothways.text.characters import UNSEEN, letter_run, marks

_ASCII_RUN = re.compile(r"\w+", re.ASCII)

# In Persian words the zero-width non-joiner precedes endings, where others write a space.
_BEFORE_ENDING = re.compile("(?<=[\u0600-\u06ff])\u200c")

# Characters that do not distinguish words: format characters, joiners, and variation selectors.
_WITHOUT_MEANING = re.compile(rf"{UNSEEN.pattern}|[\u034f\u180b-\u180f\u200c\u200d\ufe00-\ufe0f\U000e0020-\U000e01ef]")

# Thai and Lao, Burmese, Khmer, kana, Chinese characters.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff"
_UNSPACED += "\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")
_PART = re.compile(rf"([{_UNSPACED}]+)|[^\s{_UNSPACED}]+")


def terms_of(text: str) -> list[str]:
    """Return the terms of a text, with repetitions.

    >>> terms_of("Ange\N{SOFT HYPHEN}la's CAFE\N{COMBINING ACUTE ACCENT}")
    ['angela', 's', 'café']
    >>> terms_of("हिन्दी 東京")
    ['हिन्दी', '東', '京', '東京']
    """
    if text.isascii():
        return _ASCII_RUN.findall(text.lower())
    runs = _run().findall(_BEFORE_ENDING.sub(" ", unicodedata.normalize("NFC", text)))
    return [term for part in _PART.finditer(_folded(" ".join(runs))) for term in _terms(part)]


def is_unspaced(run: str) -> bool:
    """Return True for a run with characters of a script without spaces between words."""
    return _UNSPACED_CHARACTER.search(run) is not None


def _folded(text: str) -> str:
    folded = unicodedata.normalize("NFKC", _WITHOUT_MEANING.sub("", text)).casefold()
    # Case folding turns the dotted capital I of Turkish into an i with another dot.
    return unicodedata.normalize("NFKC", folded.replace("i\u0307", "i"))


def _terms(part: re.Match[str]) -> Iterator[str]:
    if part[1] is None:
        yield part[0]
        return
    characters = _character().findall(part[1])
    yield from characters
    yield from map("".join, itertools.pairwise(characters))


@functools.cache
def _run() -> re.Pattern[str]:
    return re.compile(letter_run())


@functools.cache
def _character() -> re.Pattern[str]:
    return re.compile(f".[{marks()}]*")
