"""Hits, rankings of an index's rows, and the interface of the retrievers that make them.

A search is a pipeline of three stages. One or two retrievers rank the rows of an index (`Retriever`), fusion makes one
ranking of two (`bothways.retrieval.fusion`), and a reranker may reorder the first hits
(`bothways.retrieval.reranking`).

Letters in names: K rows asked for, F candidate rows, L rows that pass the filters.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]

Scalar = str | int | float | bool | None
Fields = Mapping[str, Scalar]

QueriesT = TypeVar("QueriesT", contravariant=True)


@dataclass(frozen=True, slots=True)
class Hit:
    """A text that a search found.

    Attributes:
        id: Its name in the index.
        text: The text.
        score: Higher is better: the cosine similarity in dense search, BM25's sum in lexical search, otherwise the
            score of the fusion or the reranker.
        rank: Its place among the hits, from 1.
        fields: The values stored with it.
    """

    id: str
    text: str
    score: float
    rank: int
    fields: Fields = field(default_factory=dict, hash=False)


class Ranking(NamedTuple):
    """Rows and their scores, best first; equal scores in the order of the rows."""

    rows_K: Rows
    scores_K: Scores


class Retrieved(NamedTuple):
    """The result of a retriever for one query.

    Attributes:
        ranking: The best rows.
        score: Scores any rows for the same query, as fusion needs it.
    """

    ranking: Ranking
    score: Callable[[Rows], Scores]


class Retriever(Protocol[QueriesT]):
    """Ranks the rows of an index for queries of one kind: texts, or their representations."""

    def retrieve(self, queries: QueriesT, k: int, allowed_L: Rows | None) -> Iterator[Retrieved]:
        """Yield the ``k`` best rows of each query in order; only allowed rows, unless all are."""


def best(rows_F: Rows, scores_F: Scores, k: int) -> Ranking:
    """Return the ``k`` rows with the highest scores."""
    order = np.lexsort((rows_F, -scores_F))[:k]
    return Ranking(rows_F[order], scores_F[order])
