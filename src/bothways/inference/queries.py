"""Queries to a masked language model for the token at one position, and searches made of them; needs no torch.

Shapes: V vocabulary.
"""

import itertools
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from bothways.text import TextTokenizer
from bothways.text.characters import within_word

ResultT = TypeVar("ResultT")

Among = Literal["any", "begins", "continues"]

# Maximum logits at once: 128 MiB in float32, much more than a batch of a small model takes.
MOST_LOGITS = 2**25


@dataclass(frozen=True, slots=True)
class Best:
    """A request for the ``count`` most probable tokens that are not special; see `refused_tokens` for `among`."""

    count: int
    among: Among = "any"


@dataclass(frozen=True, slots=True)
class Named:
    """A request for the log-probabilities of the given tokens."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Query:
    """A query for the token at position `place` of a sequence, usually a mask; `wanted` is the kind of answer."""

    ids: Sequence[int] | NDArray[np.integer]
    types: Sequence[int] | NDArray[np.integer]
    place: int
    wanted: Best | Named


@dataclass(frozen=True, slots=True)
class RankedTokens:
    """Tokens, and the natural logarithms of their probabilities over the whole vocabulary.

    For `Best`, the most probable token comes first; for `Named`, the tokens are in the requested order.
    """

    ids: tuple[int, ...]
    log_probabilities: tuple[float, ...]


Search: TypeAlias = Generator[list[Query], list[RankedTokens], ResultT]
"""A generator that yields lists of queries, is sent their answers, and returns a result."""


def together(searches: Sequence[Search[ResultT]]) -> Search[list[ResultT]]:
    """Combine several searches into one, which yields the queries of all unfinished ones in each step."""
    results: dict[int, ResultT] = {}
    asked: dict[int, list[Query]] = {}

    def advance(index: int, answers: list[RankedTokens] | None) -> None:
        try:
            asked[index] = next(searches[index]) if answers is None else searches[index].send(answers)
        except StopIteration as end:
            asked.pop(index, None)
            results[index] = end.value

    for index in range(len(searches)):
        advance(index, None)
    while asked:
        waiting = list(asked.items())
        answers = iter((yield [query for _, queries in waiting for query in queries]))
        for index, queries in waiting:
            advance(index, list(itertools.islice(answers, len(queries))))
    return [results[index] for index in range(len(searches))]


class Scorer(Protocol):
    """A masked language model that answers queries."""

    def answers(self, queries: Sequence[Query]) -> list[RankedTokens]:
        """Return one answer for each query, in order."""


def run_search(searching: Search[ResultT], scorer: Scorer) -> ResultT:
    """Answer the queries of a search with a model until the search ends; return its result."""
    try:
        queries = next(searching)
        while True:
            queries = searching.send(scorer.answers(queries))
    except StopIteration as end:
        result: ResultT = end.value
        return result


def refused_tokens(tokenizer: TextTokenizer, vocabulary: int, among: Among) -> NDArray[np.bool_]:
    """Return a mask that is True for the vocabulary entries (V) that an answer must not contain.

    A token that begins a word must not decode to an empty text. A token that continues a word must not contain
    punctuation or white space: if a vocabulary marks word beginnings, commas and line breaks look like continuations.
    Rows of the embedding table without a token are refused too, since some tables are padded to a round size.
    """
    refused_V = np.ones(vocabulary, dtype=np.bool_)
    marks = tokenizer.word_marks
    special = tokenizer.special_ids
    ordinary = {number: token for number, token in tokenizer.vocabulary().items() if number not in special}
    if among == "any":
        allowed = list(ordinary)
    else:
        inner = among == "continues"
        placed = [number for number, token in ordinary.items() if marks.continues(token) == inner]
        spelt = zip(placed, tokenizer.spellings([[number] for number in placed]), strict=True)
        allowed = [number for number, text in spelt if (within_word(text) if inner else text)]
    refused_V[allowed] = False
    return refused_V
