"""The terms that a text is found by, before they are stemmed.

A term is a run of letters and digits with their marks: accents, vowel signs of Hindi, Arabic and Hebrew. Forms that
mean the same become one by NFKC and case folding: composed and decomposed letters, full and half width, ligatures, the
letters of Arabic by their place in a word, CO₂ and CO2. This is done to what was cut out and not to the text before,
because NFKC makes letters of signs that stand beside words, such as ™.

Scripts without spaces between words give each character, and each two that stand side by side, as Lucene's
``CJKBigramFilter`` does with ``outputUnigrams``. Kwok 1999 (JASIS 50:8) found pairs alone to work well for Chinese, and
better with the characters beside them; without these, a word of one character would be found in no run of several.
"""

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator

from bothways.text.characters import UNSEEN, letter_run, marks

_ASCII_RUN = re.compile(r"\w+", re.ASCII)

# Between the letters of Persian the zero-width non-joiner stands before endings, where others write a space.
_BEFORE_ENDING = re.compile("(?<=[\u0600-\u06ff])\u200c")

# What makes no other word: format characters, joiners, and selectors among the forms of a character.
_WITHOUT_MEANING = re.compile(rf"{UNSEEN.pattern}|[\u034f\u180b-\u180f\u200c\u200d\ufe00-\ufe0f\U000e0020-\U000e01ef]")

# Thai and Lao, Burmese, Khmer, kana, Chinese characters.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff"
_UNSPACED += "\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")
_PART = re.compile(rf"([{_UNSPACED}]+)|[^\s{_UNSPACED}]+")


def terms_of(text: str) -> list[str]:
    """Return the terms of a text, each as often as it is there.

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
    """Return whether a run has characters of a script without spaces between words."""
    return _UNSPACED_CHARACTER.search(run) is not None


def _folded(text: str) -> str:
    folded = unicodedata.normalize("NFKC", _WITHOUT_MEANING.sub("", text)).casefold()
    # The capital of Turkish that has a dot is folded to an i with a dot above its own.
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
