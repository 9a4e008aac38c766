"""Search modes: by meaning, by words, or by both, with the two scores of a row made into one.

Letters in names: F candidates.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from bothways.errors import InvalidInput
from bothways.retrieval.ranking import Scores


@dataclass(frozen=True, slots=True)
class Dense:
    """Search by the cosine similarity of sentence embeddings; every row has one."""


@dataclass(frozen=True, slots=True)
class Lexical:
    """Search by BM25; a row without a word of the query is not found."""


@dataclass(frozen=True, slots=True)
class ReciprocalRank:
    """The sum of 1 / (constant + rank) over both rankings (Cormack et al. 2009, SIGIR, who take 60).

    Attributes:
        constant: The larger, the less the first ranks stand out.
    """

    constant: int = 60

    def __post_init__(self) -> None:
        if not 0 <= self.constant < math.inf:
            raise InvalidInput(f"constant must be at least 0, got {self.constant!r}.")


@dataclass(frozen=True, slots=True)
class Weighted:
    """A weighted mean of both scores, each brought to 0 to 1 over the candidates of the query.

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
    """Search by both: the candidates are the best of each, and ``fusion`` makes one score of two.

    Attributes:
        fusion: How.
        depth: Candidates taken of each ranking, if no more hits are asked for.
    """

    fusion: Fusion = field(default_factory=Weighted)
    depth: int = 100

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise InvalidInput(f"depth must be at least 1, got {self.depth!r}.")


Mode = Dense | Lexical | Hybrid


def fused(fusion: Fusion, dense_F: Scores, lexical_F: Scores, depth: int) -> Scores:
    """One score for each candidate.

    Args:
        fusion: How.
        dense_F: The cosine of each candidate, in the order of the rows.
        lexical_F: The BM25 score of each, 0 for no word in common.
        depth: The candidates are the first ``depth`` of each ranking, so that ranks beyond are not known.
    """
    match fusion:
        case ReciprocalRank(constant):
            by_meaning_F = _reciprocal_ranks(dense_F, constant, depth)
            by_words_F = np.where(lexical_F > 0, _reciprocal_ranks(lexical_F, constant, depth), 0.0)
            return by_meaning_F + by_words_F
        case Weighted(weight):
            return weight * _zero_to_one(dense_F) + (1 - weight) * _zero_to_one(lexical_F)


def _reciprocal_ranks(scores_F: Scores, constant: int, depth: int) -> Scores:
    ranks_F = np.empty(len(scores_F))
    ranks_F[np.argsort(-scores_F, kind="stable")] = np.arange(1, len(scores_F) + 1)
    return np.where(ranks_F <= depth, 1 / (constant + ranks_F), 0.0)


def _zero_to_one(scores_F: Scores) -> Scores:
    """Return scores moved and scaled to the least 0 and the greatest 1; all 0 where they are equal."""
    low, high = scores_F.min(initial=np.inf), scores_F.max(initial=-np.inf)
    return (scores_F - low) / (high - low) if high > low else np.zeros(len(scores_F))
