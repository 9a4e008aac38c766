"""The passage of a text that shows best why a search found it."""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from bothways.retrieval.terms import is_unspaced
from bothways.text.characters import letter_run

LEAST_SHARE = 0.2
"""Words that weigh less than this share of the query's rarest, such as "the", are not marked."""

_TO_A_SPACE = 20  # characters that a passage is cut shorter by, so that it begins and ends between words


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a text, with an ellipsis where more stands before or after it.

    Attributes:
        text: The passage.
        marked: Where the words of the query stand in it, as starts and ends, in order and apart.
    """

    text: str
    marked: tuple[tuple[int, int], ...] = ()

    def parts(self) -> Iterator[tuple[str, bool]]:
        """Yield the passage piece by piece, and whether a piece is a word of the query."""
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
    """Return the passage with the most different and rarest words of a query; the beginning where there is none.

    Args:
        text: The text; white space in the passage becomes single spaces.
        weights: The terms of the query, each with its inverse document frequency.
        terms_of: From a text to its terms, as in the index.
        width: Most characters, ellipses aside.
    """
    text = unicodedata.normalize("NFC", " ".join(text.split()))
    least = LEAST_SHARE * max(weights.values(), default=0.0)
    wanted = {term: weight for term, weight in weights.items() if weight >= least}
    found = list(_matches(text, wanted, cache(lambda run: frozenset(terms_of(run)))))
    begin, end = _window(text, found, wanted, width)
    before, after = "…" if begin else "", "…" if end < len(text) else ""
    shift = len(before) - begin
    marked = tuple((each.start + shift, each.end + shift) for each in found if begin <= each.start and each.end <= end)
    return Passage(f"{before}{text[begin:end]}{after}", marked)


def _matches(text: str, wanted: Mapping[str, float], terms_of: Callable[[str], frozenset[str]]) -> Iterator[_Match]:
    if not wanted:
        return
    for run in re.finditer(letter_run(), text):
        terms = terms_of(run[0]) & wanted.keys()
        if terms and is_unspaced(run[0]):
            yield from _within(run[0], run.start(), terms)
        elif terms:
            yield _Match(run.start(), run.end(), terms)


def _within(run: str, start: int, terms: frozenset[str]) -> Iterator[_Match]:
    """Yield the places of the longest terms in a run of a script without spaces between words."""
    at = 0
    while at < len(run):
        length = next((each for each in (2, 1) if run[at : at + each] in terms and at + each <= len(run)), 0)
        if length:
            yield _Match(start + at, start + at + length, frozenset({run[at : at + length]}))
        at += length or 1


def _window(text: str, found: Sequence[_Match], wanted: Mapping[str, float], width: int) -> tuple[int, int]:
    """Return where the passage begins and ends."""
    if len(text) <= width:
        return 0, len(text)
    best, first, last = 0.0, 0, 0
    for number, match in enumerate(found):
        within: set[str] = set()
        for each in found[number:]:
            if each.end - match.start > width - 2 * _TO_A_SPACE:
                break
            within |= each.terms
            weight = sum(wanted[term] for term in within)
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
