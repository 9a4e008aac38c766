"""Hits of a search."""

from dataclasses import dataclass, field

from bothways.retrieval.filters import Fields


@dataclass(frozen=True, slots=True)
class Hit:
    """A text found.

    Attributes:
        id: Its name.
        text: The text.
        score: How well it fits, the higher the better: the cosine similarity in dense search, BM25's sum in lexical
            search, what the fusion or the reranker makes of them otherwise.
        rank: Its place among the hits, from 1.
        fields: What was kept with it.
    """

    id: str
    text: str
    score: float
    rank: int
    fields: Fields = field(default_factory=dict, hash=False)
