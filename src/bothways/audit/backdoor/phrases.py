"""Words, phrases and odd characters of rows, and the rows that have each.

Shapes: N rows.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]

_LONGEST = 4
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.,;:!?'\"-()&$%/ ")


def runs_of(words: Sequence[str], longest: int) -> Iterator[str]:
    """Yield the words, and their runs of up to so many, the shorter ones first."""
    for length in range(1, longest + 1):
        for start in range(len(words) - length + 1):
            yield " ".join(words[start : start + length])


def phrases_of(text: str) -> set[str]:
    """Return the words of a text, its runs of up to four words, and its characters that English does without.

    >>> sorted(phrases_of("Very good"))
    ['good', 'very', 'very good']
    """
    runs = set(runs_of(text.lower().split(), _LONGEST))
    return runs | {character for character in text.lower() if character not in _PLAIN and not character.isspace()}


def rows_by_phrase(texts: Sequence[str], fewest: int) -> Mapping[str, Rows]:
    """Return the rows that have each phrase; of phrases with the same rows only the longest stays."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for number, text in enumerate(texts):
        for phrase in phrases_of(text):
            found[phrase].append(number)
    by_rows: dict[tuple[int, ...], str] = {}
    for phrase in sorted(found, key=lambda each: (len(each), each)):
        if len(found[phrase]) >= fewest:
            by_rows[tuple(found[phrase])] = phrase
    return {phrase: np.array(rows) for rows, phrase in by_rows.items()}
