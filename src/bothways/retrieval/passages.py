"""Passages: the part of a text that best shows why a search found it."""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from bothways.retrieval.terms import is_unspaced
from bothways.text.characters import letter_run

MIN_SHARE = 0.2
"""Words with less than this share of the weight of the query's rarest, such as "the", are not marked."""

_TO_A_SPACE = 20  # a passage may lose so many characters at each end to begin and end between words


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a text, with an ellipsis where more stands before or after it.

    Attributes:
        text: The passage.
        marked: Starts and ends of the query's words in it, in order and without overlap.
    """

    text: str
    marked: tuple[tuple[int, int], ...] = ()

    def parts(self) -> Iterator[tuple[str, bool]]:
        """Yield the pieces of the passage, each with True for a word of the query."""
        place = 0
        for start, end in self.marked:
            yield self.text[place:start], False
            yield self.text[start:end], True
            place = end
        yield self.text[place:], False


@dataclass(frozen=True, slots=True)
class _Match:
    start: int
    end: int
    terms: frozenset[str]


def passage_of(
    text: str, weights: Mapping[str, float], terms_of: Callable[[str], Sequence[str]], *, width: int = 200
) -> Passage:
    """Return the passage with the most different and rarest words of a query; the beginning of a text without any.

    Args:
        text: The text; white space in the passage becomes single spaces.
        weights: The terms of the query, each with its inverse document frequency.
        terms_of: Returns the terms of a text, as in the index.
        width: Maximum number of characters, ellipses aside.
    """
    text = unicodedata.normalize("NFC", " ".join(text.split()))
    threshold = MIN_SHARE * max(weights.values(), default=0.0)
    rare = {term: weight for term, weight in weights.items() if weight >= threshold}
    matches = list(_matches(text, rare, cache(lambda run: frozenset(terms_of(run)))))
    begin, end = _window(text, matches, rare, width)
    before, after = "…" if begin else "", "…" if end < len(text) else ""
    shift = len(before) - begin
    marked = tuple(
        (each.start + shift, each.end + shift) for each in matches if begin <= each.start and each.end <= end
    )
    return Passage(f"{before}{text[begin:end]}{after}", marked)


def _matches(text: str, weights: Mapping[str, float], terms_of: Callable[[str], frozenset[str]]) -> Iterator[_Match]:
    if not weights:
        return
    for run in re.finditer(letter_run(), text):
        terms = terms_of(run[0]) & weights.keys()
        if terms and is_unspaced(run[0]):
            yield from _within(run[0], run.start(), terms)
        elif terms:
            yield _Match(run.start(), run.end(), terms)


def _within(run: str, start: int, terms: frozenset[str]) -> Iterator[_Match]:
    """Yield the longest terms in a run of a script without spaces between words."""
    at = 0
    while at < len(run):
        length = next((each for each in (2, 1) if run[at : at + each] in terms and at + each <= len(run)), 0)
        if length:
            yield _Match(start + at, start + at + length, frozenset({run[at : at + length]}))
        at += length or 1


def _window(text: str, matches: Sequence[_Match], weights: Mapping[str, float], width: int) -> tuple[int, int]:
    """Return the start and the end of the passage."""
    if len(text) <= width:
        return 0, len(text)
    best, first, last = 0.0, 0, 0
    for number, match in enumerate(matches):
        within: set[str] = set()
        for each in matches[number:]:
            if each.end - match.start > width - 2 * _TO_A_SPACE:
                break
            within |= each.terms
            weight = sum(weights[term] for term in within)
            if weight > best:
                best, first, last = weight, match.start, each.end
    begin = min(max(0, (first + last - width) // 2), len(text) - width)
    end = begin + width
    if begin and text[begin - 1] != " ":
        space = text.find(" ", begin, min(begin + _TO_A_SPACE, first))
        begin = space + 1 if space >= 0 else begin
    if end < len(text) and text[end] != " ":
        space = text.rfind(" ", max(end - _TO_A_SPACE, last), end)
        end = space if space >= 0 else end
    return begin, end
