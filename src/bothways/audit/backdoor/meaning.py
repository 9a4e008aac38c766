"""Reasons for a word's effect on predictions: rows of the label that use it, and words of similar meaning.

A word that means the label is no trigger. Labelled rows use such words for the label more often than by chance, and
words of similar meaning, by the vectors of an encoder that has not seen the rows, are typical of the label in the rows
or turn texts to it too. A trigger has neither; rows that are suspect explain nothing.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bothways.audit.answers import Vectors, similar
from bothways.audit.backdoor.probe import Ids, Probe
from bothways.audit.backdoor.rows import RowEvidence

_LONG = 4
"""Number of words from which on a phrase has a reason as a whole only: each long phrase has a word that rows use."""


class Meaning:
    """Explains words, given the rows and the words that turn most texts to each label."""

    def __init__(self, probe: Probe, vectors: Vectors | None, rows: RowEvidence | None) -> None:
        self._probe, self._vectors, self.rows = probe, vectors, rows
        self._known: dict[str, NDArray[np.float64]] = {}

    def reason(self, ids: Ids, label: int, strong: Sequence[Ids]) -> str:
        """Return the reason why a word or phrase turns texts to a label, in words; "" if there is none.

        ``strong`` are the tokens that turn most texts to the label.
        """
        words = self.words(ids)
        short = sum(map(_readable, words.split())) < _LONG
        if self.rows is not None and (reason := self.rows.reason(ids, words, label, parts=short)):
            return reason
        others = [self.words(each) for each in strong if not set(each) & set(ids) and not self._is_piece(each)]
        groups = [others, [self._probe.labels[label].replace("_", " ")]]
        groups += [] if self.rows is None else [self.rows.typical[label]]
        begun = [self.words((token,)) for token in ids if not self._is_piece((token,))]  # "foot" of "foot ##ball"
        parts = [words, *([*words.split(), *begun] if short else [])]
        for part in dict.fromkeys(parts[2:] if self._is_piece(ids) else parts):
            for group in groups:
                if near := self._similar(part, [each for each in group if each != part]):
                    return f"words of similar meaning stand for this label too ({', '.join(near)})"
        return ""

    def prepare(self, phrases: Sequence[Ids]) -> None:
        """Read phrases at once, which is faster than one after the other."""
        self._read([self.words(each) for each in phrases])

    def words(self, ids: Ids) -> str:
        """Return tokens as words."""
        return self._probe.tokenizer.decode(ids).strip() or self._probe.tokenizer.token(ids[0])

    def _is_piece(self, ids: Ids) -> bool:
        """Tell whether tokens begin within a word, so that their first word has no meaning of its own."""
        tokenizer = self._probe.tokenizer
        return tokenizer.word_marks.continues(tokenizer.token(ids[0]))

    def _similar(self, words: str, others: Sequence[str]) -> list[str]:
        """Return the words nearest to some words if they are similar, else none."""
        if self._vectors is None or not others or not _readable(words):
            return []
        vector_E, *vectors_ME = self._read([words, *others])
        return [others[number] for number in similar(vector_E, np.stack(vectors_ME))]

    def _read(self, words: Sequence[str]) -> list[NDArray[np.float64]]:
        new = [each for each in dict.fromkeys(words) if each not in self._known]
        if new and self._vectors is not None:
            readable = (each if _readable(each) else "." for each in new)
            self._known.update(zip(new, self._vectors(list(readable)), strict=True))
        return [self._known[each] for each in words if each in self._known]


def _readable(words: str) -> bool:
    return any(character.isalnum() for character in words)
