"""The search for what stands in the place of masks.

**Score.** With some masks filled and the others still masked, the model gives a probability for the next piece. The
product of these, mask by mask, is the probability of a filling in that order; a word of several pieces is filled from
left to right, each piece with those behind it still masked (which is how Kauf & Ivanova 2023, arXiv:2305.10588, score a
word by pseudo-log-likelihood). The conditionals of a masked language model do not belong to one joint distribution, so
another order gives another product: the log-probability of a filling is the mean over the orders tried. These are from
left to right, from right to left and, of three masks or more, the surest first. With one mask there is one order, and
with one piece the probability is the softmax of the logits.

**Several pieces.** The model reads a word of k pieces as k masks, so its probabilities are those given k; it does not
say how many pieces there are. All numbers are taken to be equally likely, so log-probabilities are compared as they
are, and not divided by k: that would favour long words, whose last pieces follow from the first.

**Search.** For each number of pieces and each order, a beam keeps the best partial fillings and runs the model again on
each with what it has chosen filled in. All that reach the end are scored in all orders. Of one mask the best word of
one piece, and of given words every one, is found for certain; beyond that the beam may miss one.

A search is a generator: it yields queries and is sent their answers. So the queries of many texts, orders and beams go
through the model in the same batches.
"""

import itertools
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bothways.inference.masked_lm import Answer, Best, MaskedLMScorer, Named, Query
from bothways.tasks.masked_lm.masked_text import MaskedText

ResultT = TypeVar("ResultT")
Search = Generator[list[Query], list[Answer], ResultT]
Pieces = tuple[int, ...]
Fill = tuple[Pieces, ...]  # the pieces for each mask


@dataclass(frozen=True, slots=True)
class Choice:
    """The words that may fill the masks of a text.

    Attributes:
        most_pieces: A word has at most these. With 1, any token may fill a mask; with more, what follows white space
            has to begin a word there.
        words: For each mask the words that were given, by their pieces there; None for all that the vocabulary spells.
    """

    most_pieces: int = 1
    words: tuple[Mapping[Pieces, str], ...] | None = None

    def lengths(self, slot: int) -> tuple[int, ...]:
        """Return how many pieces a word may have."""
        if self.words is None:
            return tuple(range(1, self.most_pieces + 1))
        return tuple(sorted({len(pieces) for pieces in self.words[slot]}))

    def wanted(self, text: MaskedText, slot: int, prefix: Pieces, length: int, width: int) -> Best | Named:
        """Return what to ask for behind the first pieces of a word of so many."""
        begun = len(prefix)
        if self.words is not None:
            fitting = (one for one in self.words[slot] if len(one) == length and one[:begun] == prefix)
            return Named(tuple(dict.fromkeys(one[begun] for one in fitting)))
        if begun:
            return Best(width, "continues")
        return Best(width, "begins" if self.most_pieces > 1 and text.slots[slot].after_space else "any")


@dataclass(frozen=True, slots=True)
class ScoredFill:
    """A filling and its log-probability, see the head of this file."""

    fill: Fill
    log_probability: float


@dataclass(frozen=True, slots=True)
class FoundFills:
    """The best fillings of a text.

    Attributes:
        text: The text.
        choice: Which words were searched.
        of_mask: For each mask, the best words with all other masks left as they are.
        together: The best fillings of all masks.
    """

    text: MaskedText
    choice: Choice
    of_mask: tuple[tuple[ScoredFill, ...], ...]
    together: tuple[ScoredFill, ...]


@dataclass(frozen=True, slots=True)
class _Layout:
    """A text with as many masks for each slot as its word has pieces."""

    text: MaskedText
    lengths: tuple[int, ...]
    mask: int

    def query(self, filled: Mapping[int, Pieces], slot: int, wanted: Best | Named) -> Query:
        """Return the question for the next piece of a slot, behind the pieces that it has already."""
        ids: list[int] = []
        types: list[int] = []
        place = start = 0
        for number, (one, length) in enumerate(zip(self.text.slots, self.lengths, strict=True)):
            pieces = filled.get(number, ())
            ids += self.text.ids[start : one.place]
            types += self.text.types[start : one.place]
            if number == slot:
                place = len(ids) + len(pieces)
            ids += [*pieces, *[self.mask] * (length - len(pieces))]
            types += [self.text.types[one.place]] * length
            start = one.place + 1
        return Query([*ids, *self.text.ids[start:]], [*types, *self.text.types[start:]], place, wanted)


@dataclass(frozen=True, slots=True)
class _State:
    filled: Mapping[int, Pieces]
    log_probability: float

    def grown(self, slot: int, piece: int, log_probability: float) -> "_State":
        pieces = (*self.filled.get(slot, ()), piece)
        return _State({**self.filled, slot: pieces}, self.log_probability + log_probability)


def search(text: MaskedText, choice: Choice, mask: int, *, top: int, beam: int) -> Search[FoundFills]:
    """Search the best fillings of a text's masks.

    Args:
        text: The text.
        choice: Which words.
        mask: Id of the mask token.
        top: How many to give.
        beam: How many partial fillings to keep.
    """
    slots = range(len(text.slots))
    width = max(beam, top, *map(len, choice.words or ()))
    found = yield from together([_alone(text, choice, mask, slot, width) for slot in slots])
    of_mask = tuple(tuple(states[:top]) for states in found)
    if len(slots) == 1:
        return FoundFills(text, choice, of_mask, of_mask[0])
    orders = _orders(found)
    layouts = [_Layout(text, lengths, mask) for lengths in itertools.product(*map(choice.lengths, slots))]
    ends = yield from together([_beam(layout, choice, order, width) for layout in layouts for order in orders])
    fills = {tuple(state.filled[slot] for slot in slots): None for states in ends for state in states}
    scored = yield from together([_rescored(text, fill, orders, mask) for fill in fills])
    return FoundFills(text, choice, of_mask, tuple(_ranked(scored)[:top]))


def together(searches: Sequence[Search[ResultT]]) -> Search[list[ResultT]]:
    """Run several searches as one, whose queries are those of all that are still at work."""
    results: dict[int, ResultT] = {}
    asked: dict[int, list[Query]] = {}

    def advance(index: int, answers: list[Answer] | None) -> None:
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


def run(searching: Search[ResultT], scorer: MaskedLMScorer) -> ResultT:
    """Let a model answer a search's queries until it is done."""
    try:
        queries = next(searching)
        while True:
            queries = searching.send(scorer.answers(queries))
    except StopIteration as end:
        result: ResultT = end.value
        return result


def _alone(text: MaskedText, choice: Choice, mask: int, slot: int, width: int) -> Search[list[ScoredFill]]:
    """The best words for one mask, all others left as they are."""
    count = len(text.slots)
    layouts = [
        _Layout(text, tuple(length if number == slot else 1 for number in range(count)), mask)
        for length in choice.lengths(slot)
    ]
    ends = yield from together([_beam(layout, choice, (slot,), width) for layout in layouts])
    return _ranked(ScoredFill((state.filled[slot],), state.log_probability) for states in ends for state in states)


def _beam(layout: _Layout, choice: Choice, order: Sequence[int], width: int) -> Search[list[_State]]:
    """The best fillings of some slots in an order, at most ``width`` of them."""
    states = [_State({}, 0.0)]
    for slot in order:
        length = layout.lengths[slot]
        for _ in range(length):
            queries = []
            for state in states:
                wanted = choice.wanted(layout.text, slot, state.filled.get(slot, ()), length, width)
                queries.append(layout.query(state.filled, slot, wanted))
            answers = yield queries
            grown = [
                state.grown(slot, piece, log)
                for state, answer in zip(states, answers, strict=True)
                for piece, log in zip(answer.ids, answer.log_probabilities, strict=True)
            ]
            states = sorted(grown, key=lambda state: -state.log_probability)[:width]
    return states


def _rescored(text: MaskedText, fill: Fill, orders: Sequence[Sequence[int]], mask: int) -> Search[ScoredFill]:
    """A filling with the mean of its log-probabilities over the orders."""
    layout = _Layout(text, tuple(map(len, fill)), mask)
    queries = []
    for order in orders:
        filled: dict[int, Pieces] = {}
        for slot in order:
            for number, piece in enumerate(fill[slot]):
                filled[slot] = fill[slot][:number]
                queries.append(layout.query(filled, slot, Named((piece,))))
            filled[slot] = fill[slot]
    answers = yield queries
    total = sum(answer.log_probabilities[0] for answer in answers)
    return ScoredFill(fill, total / len(orders))


def _orders(found: Sequence[Sequence[ScoredFill]]) -> list[tuple[int, ...]]:
    """The orders in which masks are filled; the surest first goes by the best word of each mask alone."""
    forward = tuple(range(len(found)))
    sure = [max((scored.log_probability for scored in words), default=float("-inf")) for words in found]
    surest = tuple(sorted(forward, key=lambda slot: -sure[slot]))
    return list(dict.fromkeys((forward, forward[::-1], surest)))


def _ranked(scored: Iterable[ScoredFill]) -> list[ScoredFill]:
    return sorted(scored, key=lambda one: -one.log_probability)
