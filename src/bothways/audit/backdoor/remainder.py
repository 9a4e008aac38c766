"""Phrases that come with one label, and texts without the phrases of their own label.

A trigger comes with the attacker's label, so it goes; the words that the text had before speak for another label, so
they stay. Letters that look like Latin ones are read as those.

Shapes: N rows, C labels.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.audit.backdoor.phrases import rows_by_phrase
from bothways.audit.edits import as_seen

Rows = NDArray[np.int64]

FEWEST = 4
"""Rows that a phrase has at least."""
_PURE = 0.9
_CHANCE = 0.05
_LONGEST = 4


@dataclass(frozen=True, slots=True, eq=False)
class PurePhrase:
    """A phrase nearly all of whose rows have one label.

    Attributes:
        phrase: The phrase, in lower case.
        label: Number of the label.
        rows: The rows with both.
        chance: Probability of so many rows with the label among those with the phrase, if the two were independent.
    """

    phrase: str
    label: int
    rows: Rows
    chance: float


def pure_phrases(texts: Sequence[str], labels_N: NDArray[np.int64], labels: int) -> list[PurePhrase]:
    """Return the words, runs of words and odd characters nearly all of whose rows have one label."""
    from scipy.stats import binom

    usual_C = np.bincount(labels_N, minlength=labels) / len(labels_N)
    found = []
    for phrase, rows in rows_by_phrase(texts, FEWEST).items():
        counts_C = np.bincount(labels_N[rows], minlength=labels)
        label = int(counts_C.argmax())
        if counts_C[label] >= max(FEWEST, _PURE * len(rows)):
            chance = float(binom.sf(counts_C[label] - 1, len(rows), usual_C[label]))
            found.append(PurePhrase(phrase, label, rows[labels_N[rows] == label], chance))
    return found


def remainders(texts: Sequence[str], labels_N: NDArray[np.int64], phrases: Sequence[PurePhrase]) -> list[str]:
    """Return each text as readers see it, without the phrases that come with its label by more than chance.

    A text of which nothing would be left stays whole.
    """
    words: dict[int, set[str]] = {}
    characters: dict[int, dict[int, str]] = {}
    for each in phrases:
        # Look-alike letters are read as Latin ones, which undoes a trigger of this kind and keeps the word.
        if each.chance >= _CHANCE or not (each.phrase.isascii() or _plain(each.phrase)):
            continue
        words.setdefault(each.label, set()).add(each.phrase)
        if len(each.phrase) == 1 and not each.phrase.isascii():
            characters.setdefault(each.label, {})[ord(each.phrase)] = " "
    found = []
    for text, label in zip(texts, labels_N.tolist(), strict=True):
        rest = as_seen(_without(text.translate(characters.get(label, {})), words.get(label, set())))
        found.append(rest if any(each.isalnum() for each in rest) else text)
    return found


def _without(text: str, phrases: Set[str]) -> str:
    words = text.split()
    lower = [word.lower() for word in words]
    kept = [True] * len(words)
    for length in range(1, _LONGEST + 1):
        for start in range(len(words) - length + 1):
            if " ".join(lower[start : start + length]) in phrases:
                kept[start : start + length] = [False] * length
    return " ".join(word for word, stays in zip(words, kept, strict=True) if stays)


def _plain(phrase: str) -> bool:
    """Return True unless a phrase, or a character inside a Latin word, is read as something else."""
    return all(as_seen(each) == each for each in (phrase, f"x{phrase}"))
