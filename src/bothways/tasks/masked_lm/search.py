"""Beam search for the words that fill the masks of a text.

**Score.** The masks are filled one piece (subword token) at a time, in some order, and the model gives the probability
of each piece given the pieces filled in before. Their product is the probability of the filling in this order. A word
of several pieces is filled from left to right, with its later pieces still masked, as Kauf & Ivanova 2023
(arXiv:2305.10588) score a word by pseudo-log-likelihood. The conditional probabilities of a masked language model do
not come from one joint distribution, so each order gives another product: the log-probability of a filling is the mean
over the orders. These are left to right, right to left and, for three masks or more, the most confident mask first. One
mask has a single order, and the probability of a word of one piece is the softmax of the logits.

**Several pieces.** The model reads a word of k pieces as k masks, so its probabilities are conditional on k; it does
not predict k. All k are assumed equally likely, so log-probabilities are compared as they are. Dividing them by k would
favour long words, whose last pieces follow from the first.

**Search.** For each number of pieces and each order, beam search keeps the best partial fillings and runs the model on
each of them. All complete fillings are scored in all orders. For a single mask, the search is exact for words of one
piece and for given words; otherwise the beam may miss the best filling.

The queries of many texts, orders and beams share batches; see `bothways.inference.queries.Search`.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bothways.inference.queries import Best, Named, Query, Search, together
from bothways.tasks.masked_lm.masked_text import MaskedText

Pieces = tuple[int, ...]
Fill = tuple[Pieces, ...]  # the pieces for each mask
_State = tuple[dict[int, Pieces], float]  # the pieces for some slots, and their log-probability


@dataclass(frozen=True, slots=True)
class WordChoice:
    """The words that may fill a text's masks: ``words`` maps pieces to given words for each mask; None allows any word.

    If ``most_pieces`` is 1, any token may fill a mask; if it is more, a word after white space must start with a
    word-initial piece.
    """

    most_pieces: int = 1
    words: tuple[Mapping[Pieces, str], ...] | None = None

    def lengths(self, slot: int) -> tuple[int, ...]:
        """Return the possible numbers of pieces of a word for one mask."""
        if self.words is None:
            return tuple(range(1, self.most_pieces + 1))
        return tuple(sorted({len(pieces) for pieces in self.words[slot]}))

    def wanted(self, text: MaskedText, slot: int, prefix: Pieces, length: int, width: int) -> Best | Named:
        """Return the request for the next piece of a word of ``length`` pieces that begins with ``prefix``."""
        begun = len(prefix)
        if self.words is not None:
            fitting = (one for one in self.words[slot] if len(one) == length and one[:begun] == prefix)
            return Named(tuple(dict.fromkeys(one[begun] for one in fitting)))
        if begun:
            return Best(width, "continues")
        return Best(width, "begins" if self.most_pieces > 1 and text.slots[slot].after_space else "any")


@dataclass(frozen=True, slots=True)
class ScoredFill:
    """A filling and its log-probability, as defined in the module docstring."""

    fill: Fill
    log_probability: float


@dataclass(frozen=True, slots=True)
class FoundFills:
    """The best fillings of a text.

    ``together`` has fillings of all masks; ``of_mask`` has words for each mask, with the other masks left unfilled.
    """

    text: MaskedText
    choice: WordChoice
    of_mask: tuple[tuple[ScoredFill, ...], ...]
    together: tuple[ScoredFill, ...]


def search(text: MaskedText, choice: WordChoice, mask: int, *, top: int, beam: int) -> Search[FoundFills]:
    """Search for the ``top`` best fillings of a text's masks, keeping ``beam`` partial fillings."""
    slots = range(len(text.slots))
    filler = _Filler(text, choice, mask, max(beam, top, *map(len, choice.words or ())))
    found = yield from together([filler.alone(slot) for slot in slots])
    of_mask = tuple(tuple(words[:top]) for words in found)
    if len(slots) == 1:
        return FoundFills(text, choice, of_mask, of_mask[0])
    orders = _orders(found)
    lengths = itertools.product(*map(choice.lengths, slots))
    ends = yield from together([filler.beam(each, order) for each in lengths for order in orders])
    fills = {tuple(filled[slot] for slot in slots): None for states in ends for filled, _ in states}
    scored = yield from together([filler.rescored(fill, orders) for fill in fills])
    return FoundFills(text, choice, of_mask, tuple(_ranked(scored)[:top]))


@dataclass(frozen=True, slots=True)
class _Filler:
    """Fills the slots of a text with words of given numbers of pieces; a slot has one mask for each piece.

    ``width`` is the beam width: the number of partial fillings that are kept.
    """

    text: MaskedText
    choice: WordChoice
    mask: int
    width: int

    def alone(self, slot: int) -> Search[list[ScoredFill]]:
        """Search for the best words for one mask, with the other masks left unfilled."""
        others = [1] * len(self.text.slots)
        lengths = [(*others[:slot], length, *others[slot + 1 :]) for length in self.choice.lengths(slot)]
        ends = yield from together([self.beam(each, (slot,)) for each in lengths])
        return _ranked(ScoredFill((filled[slot],), log) for states in ends for filled, log in states)

    def beam(self, lengths: Sequence[int], order: Sequence[int]) -> Search[list[_State]]:
        """Fill the slots in ``order``, one after the other, by beam search; return the best ``width`` fillings."""
        states: list[_State] = [({}, 0.0)]
        for slot in order:
            for _ in range(lengths[slot]):
                queries = []
                for filled, _ in states:
                    wanted = self.choice.wanted(self.text, slot, filled.get(slot, ()), lengths[slot], self.width)
                    queries.append(self._query(lengths, filled, slot, wanted))
                answers = yield queries
                grown = [
                    ({**filled, slot: (*filled.get(slot, ()), piece)}, log + more)
                    for (filled, log), answer in zip(states, answers, strict=True)
                    for piece, more in zip(answer.ids, answer.log_probabilities, strict=True)
                ]
                states = sorted(grown, key=lambda state: -state[1])[: self.width]
        return states

    def rescored(self, fill: Fill, orders: Sequence[Sequence[int]]) -> Search[ScoredFill]:
        """Return a filling with its log-probability, the mean over the orders of filling the masks."""
        lengths, queries = tuple(map(len, fill)), []
        for order in orders:
            filled: dict[int, Pieces] = {}
            for slot in order:
                for number, piece in enumerate(fill[slot]):
                    filled[slot] = fill[slot][:number]
                    queries.append(self._query(lengths, filled, slot, Named((piece,))))
                filled[slot] = fill[slot]
        answers = yield queries
        total = sum(answer.log_probabilities[0] for answer in answers)
        return ScoredFill(fill, total / len(orders))

    def _query(self, lengths: Sequence[int], filled: Mapping[int, Pieces], slot: int, wanted: Best | Named) -> Query:
        """Return the query for the next piece of a slot, given the pieces filled in so far."""
        ids: list[int] = []
        types: list[int] = []
        place = start = 0
        for number, (one, length) in enumerate(zip(self.text.slots, lengths, strict=True)):
            pieces = filled.get(number, ())
            ids += self.text.ids[start : one.place]
            types += self.text.types[start : one.place]
            if number == slot:
                place = len(ids) + len(pieces)
            ids += [*pieces, *[self.mask] * (length - len(pieces))]
            types += [self.text.types[one.place]] * length
            start = one.place + 1
        return Query([*ids, *self.text.ids[start:]], [*types, *self.text.types[start:]], place, wanted)


def _orders(found: Sequence[Sequence[ScoredFill]]) -> list[tuple[int, ...]]:
    """Return the orders of filling the masks; the third fills first the mask whose best word is most probable."""
    forward = tuple(range(len(found)))
    sure = [max((scored.log_probability for scored in words), default=float("-inf")) for words in found]
    surest = tuple(sorted(forward, key=lambda slot: -sure[slot]))
    return list(dict.fromkeys((forward, forward[::-1], surest)))


def _ranked(scored: Iterable[ScoredFill]) -> list[ScoredFill]:
    return sorted(scored, key=lambda one: -one.log_probability)
