"""Hard negatives: passages that a search finds for a query but that do not answer it.

They teach an embedder or a cross-encoder to reject near misses. A passage that scores nearly as high as the positive
may be an unlabelled answer, so only passages with at most ``share`` times the positive's score are taken
("TopK-PercPos" of Moreira et al. 2024, arXiv:2407.15831).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from bothways.errors import InvalidInput
from bothways.progress import progress
from bothways.retrieval.ranking import Dense
from bothways.retrieval.search import SemanticSearch
from bothways.tasks.embedding.outputs import similarities

_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Mining:
    """Options for mining negatives.

    Attributes:
        per_query: Maximum number of negatives for each pair.
        depth: Number of nearest passages to choose from.
        share: Passages whose similarity exceeds this share of the positive passage's are skipped; None keeps them.
        exact: As for `Dense`.
    """

    per_query: int = 3
    depth: int = 100
    share: float | None = 0.95
    exact: bool = False

    def __post_init__(self) -> None:
        if self.per_query < 1 or self.depth < self.per_query:
            raise InvalidInput(
                f"per_query must be at least 1, and depth at least per_query, got {self.per_query} and {self.depth}."
            )
        if self.share is not None and not 0 < self.share <= 1:
            raise InvalidInput(f"share must be None, or above 0 and at most 1, got {self.share}.")


@dataclass(frozen=True, slots=True)
class Mined:
    """A pair and its negatives, the hardest first; there may be fewer than ``per_query``."""

    query: str
    positive: str
    negatives: tuple[str, ...]


def mine_negatives(
    search: SemanticSearch,
    pairs: Iterable[tuple[str, str]],
    mining: Mining | None = None,
    *,
    show_progress: bool | None = None,
) -> Iterator[Mined]:
    """Yield hard negatives for pairs of a query and a passage that answers it (the positive), in order.

    The positives of other pairs with the same query, and the text of the query itself, are never negatives.

    Args:
        search: The search over the candidate passages.
        pairs: Queries and positives; they are held in memory.
        mining: The options; default: ``Mining()``.
        show_progress: Force the progress bar on or off.
    """
    chosen, listed = mining or Mining(), list(pairs)
    answers: dict[str, set[str]] = {}
    for query, positive in listed:
        answers.setdefault(query, {query}).add(positive)
    with progress("mining", len(listed), show=show_progress) as bar:
        for start in range(0, len(listed), _AT_ONCE):
            block = listed[start : start + _AT_ONCE]
            queries, mode = [query for query, _ in block], Dense(chosen.exact)
            found = search.search(queries, chosen.depth, mode=mode, show_progress=False)
            for (query, positive), hits, score in zip(block, found, _scores(search, block), strict=True):
                highest = np.inf if chosen.share is None else chosen.share * score
                hard = [hit.text for hit in hits if hit.text not in answers[query] and hit.score <= highest]
                yield Mined(query, positive, tuple(dict.fromkeys(hard))[: chosen.per_query])
                bar.advance()


def _scores(search: SemanticSearch, pairs: list[tuple[str, str]]) -> list[float]:
    """Return the similarity of each pair, as the index would score it."""
    queries, positives = (list(texts) for texts in zip(*pairs, strict=True))
    scores_P = similarities(
        search.represent(queries, role="query", show_progress=False).vectors_ND,
        search.represent(positives, role="document", show_progress=False).vectors_ND,
        search.index.encoder.similarity,
    )
    scores: list[float] = scores_P.tolist()
    return scores
