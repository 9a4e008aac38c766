"""Search modes, and the fusion of a dense and a lexical ranking into one.

Letters in names: F candidates, L rows that pass the filters.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from bothways.errors import InvalidInput
from bothways.retrieval.ranking import Retrieved, Retriever, Rows, Scores, best
from bothways.tasks.embedding.representation import DenseVectors


@dataclass(frozen=True, slots=True)
class Dense:
    """Search by the cosine similarity of sentence embeddings; every row has one."""


@dataclass(frozen=True, slots=True)
class Lexical:
    """Search by BM25; rows without a word of the query are not found."""


@dataclass(frozen=True, slots=True)
class ReciprocalRank:
    """The sum of 1 / (constant + rank) over both rankings (Cormack et al. 2009, SIGIR, who use 60).

    Attributes:
        constant: The larger, the less the first ranks stand out.
    """

    constant: int = 60

    def __post_init__(self) -> None:
        if not 0 <= self.constant < math.inf:
            raise InvalidInput(f"constant must be at least 0, got {self.constant!r}.")


@dataclass(frozen=True, slots=True)
class Weighted:
    """A weighted mean of both scores, each scaled to 0 to 1 over the candidates of the query.

    Bruch et al. 2023 (ACM TOIS 42:1, arXiv:2210.11934) compare such sums with reciprocal ranks and find them better.

    Attributes:
        dense: The weight of the cosine, between 0 and 1; BM25 has the rest.
    """

    dense: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.dense <= 1:
            raise InvalidInput(f"the weight of the dense score must be between 0 and 1, got {self.dense!r}.")


Fusion = ReciprocalRank | Weighted


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Search by both: the candidates are the best of each ranking, and ``fusion`` combines their two scores.

    Attributes:
        fusion: The rule that combines the scores.
        depth: Candidates from each ranking, unless more hits are requested.
    """

    fusion: Fusion = field(default_factory=Weighted)
    depth: int = 100

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise InvalidInput(f"depth must be at least 1, got {self.depth!r}.")


Mode = Dense | Lexical | Hybrid


class HybridRetriever:
    """Ranks the union of a dense and a lexical ranking by the fusion of both scores."""

    def __init__(self, dense: Retriever[DenseVectors], lexical: Retriever[Sequence[str]], mode: Hybrid) -> None:
        self._dense = dense
        self._lexical = lexical
        self._mode = mode

    def retrieve(
        self, queries: tuple[DenseVectors, Sequence[str]], k: int, allowed_L: Rows | None = None
    ) -> Iterator[Retrieved]:
        """Yield the ``k`` best rows of each query; the queries are their vectors and their texts."""
        depth = max(self._mode.depth, k)
        dense = self._dense.retrieve(queries[0], depth, allowed_L)
        lexical = self._lexical.retrieve(queries[1], depth, allowed_L)
        for near, matching in zip(dense, lexical, strict=True):

            def score(rows_F: Rows, near: Retrieved = near, matching: Retrieved = matching) -> Scores:
                return fused(self._mode.fusion, near.score(rows_F), matching.score(rows_F), depth)

            rows_F = np.union1d(near.ranking.rows_K, matching.ranking.rows_K)
            yield Retrieved(best(rows_F, score(rows_F), k), score)


def fused(fusion: Fusion, dense_F: Scores, lexical_F: Scores, depth: int) -> Scores:
    """Return one score for each candidate.

    Args:
        fusion: The rule.
        dense_F: The cosine of each candidate, in the order of the rows.
        lexical_F: The BM25 score of each; 0 without a word in common.
        depth: The candidates are the first ``depth`` of each ranking, so ranks beyond are unknown.
    """
    match fusion:
        case ReciprocalRank(constant):
            dense_rank_F = _reciprocal_ranks(dense_F, constant, depth)
            lexical_rank_F = np.where(lexical_F > 0, _reciprocal_ranks(lexical_F, constant, depth), 0.0)
            return dense_rank_F + lexical_rank_F
        case Weighted(weight):
            return weight * _zero_to_one(dense_F) + (1 - weight) * _zero_to_one(lexical_F)


def _reciprocal_ranks(scores_F: Scores, constant: int, depth: int) -> Scores:
    ranks_F = np.empty(len(scores_F))
    ranks_F[np.argsort(-scores_F, kind="stable")] = np.arange(1, len(scores_F) + 1)
    return np.where(ranks_F <= depth, 1 / (constant + ranks_F), 0.0)


def _zero_to_one(scores_F: Scores) -> Scores:
    """Scale scores to a minimum of 0 and a maximum of 1; all become 0 if they are equal."""
    low, high = scores_F.min(initial=np.inf), scores_F.max(initial=-np.inf)
    return (scores_F - low) / (high - low) if high > low else np.zeros(len(scores_F))
