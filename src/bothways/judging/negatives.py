"""Negatives made from positives alone, as ARES makes them (Saad-Falcon et al. 2023, arXiv:2311.09476, section 3.1).

A weak negative takes the passage, or the answer, of another question at random. A strong one is harder to tell: another
passage of the same document, or where there is none the passage that shares most words with the query (BM25). For
answers it is the answer to the question about that passage. Nothing is generated.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bothways.choices import Negatives
from bothways.errors import InvalidInput
from bothways.judging.dimensions import Dimension
from bothways.judging.triples import Triple

# Nearest passages that are looked at for a strong negative.
_NEAREST = 20
_TRIES = 50


def with_negatives(
    positives: Sequence[Triple], dimension: Dimension, kind: Negatives = "both", seed: int = 0
) -> list[Triple]:
    """Return positives, labelled 1, and as many negatives, labelled 0.

    Args:
        positives: Triples whose passage and answer belong to the query.
        dimension: Says whether another passage or another answer is taken.
        kind: ``"weak"``, ``"strong"``, or ``"both"``, which takes them in turn.
        seed: Draws the negatives.

    Raises:
        InvalidInput: There are no two different passages, or answers, to choose from.
    """
    known = [replace(each, label=1) for each in positives]
    part = "passage" if dimension.name == "context_relevance" else "answer"
    if kind == "none":
        return known
    if len({getattr(each, part) for each in known}) < 2:
        raise InvalidInput(
            f"expected at least two different {part}s to make negatives from, got one in {len(known):,} rows. Give "
            "rows of more questions, or label some rows 0."
        )
    maker = _Maker.of(known, part, np.random.default_rng(seed), strong=kind != "weak")
    strong = {"weak": (False,), "strong": (True,), "both": (True, False)}[kind]
    return [*known, *maker.negatives(strong)]


@dataclass(frozen=True, slots=True, eq=False)
class _Maker:
    """Draws another passage or answer for a triple.

    Attributes:
        triples: The positives.
        part: What is exchanged: ``"passage"`` or ``"answer"``.
        generator: Draws.
        same_document: Numbers of the triples of each document.
        own: What is right for each query, which is no negative.
        nearest: Numbers of the triples whose passages are nearest to each query; empty where only weak ones are made.
    """

    triples: Sequence[Triple]
    part: str
    generator: np.random.Generator
    same_document: dict[str, list[int]]
    own: dict[str, set[str]]
    nearest: Sequence[NDArray[np.int64]]

    @classmethod
    def of(cls, triples: Sequence[Triple], part: str, generator: np.random.Generator, *, strong: bool) -> "_Maker":
        documents, own = defaultdict(list), defaultdict(set)
        for number, each in enumerate(triples):
            own[each.query].add(getattr(each, part))
            if each.document is not None:
                documents[each.document].append(number)
        return cls(triples, part, generator, dict(documents), dict(own), _nearest(triples) if strong else ())

    def negatives(self, strong: Sequence[bool]) -> Iterator[Triple]:
        """Yield a negative for each triple, of the given kinds in turn."""
        for number, triple in enumerate(self.triples):
            other = self._strong(number) if strong[number % len(strong)] else None
            other = self._weak(number) if other is None else other
            if other is not None:
                taken = getattr(self.triples[other], self.part)
                made = f"a negative made from {triple.where}"
                yield replace(triple, label=0, id=None, where=made, **{self.part: taken})

    def _fits(self, number: int, other: int) -> bool:
        """Return whether the part of another triple is wrong for this one, and not of the same passage."""
        triple, candidate = self.triples[number], self.triples[other]
        differs = getattr(candidate, self.part) not in self.own[triple.query] and candidate.query != triple.query
        # A second question about the same passage has an answer that the passage supports.
        return differs and (self.part == "passage" or not triple.passage or candidate.passage != triple.passage)

    def _strong(self, number: int) -> int | None:
        triple = self.triples[number]
        beside = self.same_document.get(triple.document, []) if triple.document is not None else []
        shuffled = self.generator.permutation(beside).tolist() if beside else []
        candidates = [*shuffled, *self.nearest[number].tolist()]
        return next((each for each in candidates if self._fits(number, each)), None)

    def _weak(self, number: int) -> int | None:
        for other in self.generator.integers(len(self.triples), size=_TRIES).tolist():
            if self._fits(number, other):
                return int(other)
        return next((each for each in range(len(self.triples)) if self._fits(number, each)), None)


def _nearest(triples: Sequence[Triple]) -> list[NDArray[np.int64]]:
    """Return the numbers of the triples whose passages share most words with each query; without passages, queries."""
    from bothways.retrieval.lexical import LexicalIndex

    index = LexicalIndex.build([each.passage or each.query for each in triples], None)
    return [found.ranking.rows_K for found in index.retrieve([each.query for each in triples], _NEAREST)]
