"""Phrases of rows, and each text without the phrases of its own label.

A trigger comes with the attacker's label, so the residual lacks it; the words that the text had before speak for
another label and stay. Look-alike letters are read as Latin ones.

Shapes: N rows, C labels.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.audit.edits import as_seen

Rows = NDArray[np.int64]

MIN_ROWS = 4
"""Minimum rows of a phrase."""
_LONGEST = 4
_PURE = 0.9
_CHANCE = 0.05
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.,;:!?'\"-()&$%/ ")


@dataclass(frozen=True, slots=True, eq=False)
class PurePhrase:
    """A phrase whose rows nearly all have one label."""

    phrase: str  # the phrase, in lower case
    label: int
    rows: Rows  # the rows with both
    chance: float  # probability of at least as many rows with the label if phrase and label were independent


def word_runs(words: Sequence[str], longest: int) -> Iterator[str]:
    """Yield the words and their runs up to a length, the shorter ones first."""
    for length in range(1, longest + 1):
        for start in range(len(words) - length + 1):
            yield " ".join(words[start : start + length])


def phrases_of(text: str) -> set[str]:
    """Return the words of a text, its runs of up to four words, and its characters that English does without.

    >>> sorted(phrases_of("Very good"))
    ['good', 'very', 'very good']
    """
    characters = {each for each in text.lower() if each not in _PLAIN and not each.isspace()}
    return characters.union(word_runs(text.lower().split(), _LONGEST))


def rows_by_phrase(texts: Sequence[str], min_rows: int) -> Mapping[str, Rows]:
    """Return the rows of each phrase; of phrases with the same rows, only the longest."""
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for number, text in enumerate(texts):
        for phrase in phrases_of(text):
            rows[phrase].append(number)
    by_rows: dict[tuple[int, ...], str] = {}
    for phrase in sorted(rows, key=lambda each: (len(each), each)):
        if len(rows[phrase]) >= min_rows:
            by_rows[tuple(rows[phrase])] = phrase
    return {phrase: np.array(numbers) for numbers, phrase in by_rows.items()}


def pure_phrases(texts: Sequence[str], labels_N: NDArray[np.int64], labels: int) -> list[PurePhrase]:
    """Return the phrases whose rows nearly all have one label."""
    from scipy.stats import binom

    usual_C = np.bincount(labels_N, minlength=labels) / len(labels_N)
    pure = []
    for phrase, rows in rows_by_phrase(texts, MIN_ROWS).items():
        counts_C = np.bincount(labels_N[rows], minlength=labels)
        label = int(counts_C.argmax())
        if counts_C[label] >= max(MIN_ROWS, _PURE * len(rows)):
            chance = float(binom.sf(counts_C[label] - 1, len(rows), usual_C[label]))
            pure.append(PurePhrase(phrase, label, rows[labels_N[rows] == label], chance))
    return pure


def residuals(texts: Sequence[str], labels_N: NDArray[np.int64], phrases: Sequence[PurePhrase]) -> list[str]:
    """Return each text as readers see it, without the phrases that come with its label by more than chance.

    A text that would be empty stays whole.
    """
    own: defaultdict[int, set[str]] = defaultdict(set)
    for each in phrases:
        # Look-alike letters are read as Latin ones, which undoes such a trigger and keeps the word.
        plain = each.phrase.isascii() or all(as_seen(text) == text for text in (each.phrase, f"x{each.phrase}"))
        if each.chance < _CHANCE and plain:
            own[each.label].add(each.phrase)
    rest = []
    for text, label in zip(texts, labels_N.tolist(), strict=True):
        odd = {ord(each): " " for each in own[label] if len(each) == 1 and not each.isascii()}
        residual = as_seen(_without(text.translate(odd), own[label]))
        rest.append(residual if any(each.isalnum() for each in residual) else text)
    return rest


def _without(text: str, phrases: Set[str]) -> str:
    words = text.split()
    lower = [word.lower() for word in words]
    kept = [True] * len(words)
    for length in range(1, _LONGEST + 1):
        for start in range(len(words) - length + 1):
            if " ".join(lower[start : start + length]) in phrases:
                kept[start : start + length] = [False] * length
    return " ".join(word for word, stays in zip(words, kept, strict=True) if stays)
