"""A second, closer look at the first hits.

Letters in names: P passages.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bothways.errors import InvalidInput
from bothways.retrieval.hits import Hit
from bothways.retrieval.ranking import best


class Reranker(Protocol):
    """What says how well a passage answers a query, such as a model that reads both at once (a cross-encoder)."""

    def score(self, query: str, passages: Sequence[str]) -> npt.NDArray[np.floating]:
        """A number for each passage, ``(P,)``, the higher the better; comparable within the query only."""
        ...


@dataclass(frozen=True, slots=True)
class Rerank:
    """The first hits put into another order.

    Attributes:
        by: What scores them.
        depth: How many of the first hits are scored, if no more are asked for; the rest is not looked at.
    """

    by: Reranker
    depth: int = 50

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise InvalidInput(f"depth must be at least 1, got {self.depth!r}.")


def reranked(hits: Sequence[Hit], query: str, reranker: Reranker, k: int) -> list[Hit]:
    """The ``k`` best of the hits by the reranker's scores, which they then carry; of equals, the earlier hit.

    Raises:
        InvalidInput: The reranker gave no finite number for each passage.
    """
    if not hits:
        return []
    scores_P = np.asarray(reranker.score(query, [hit.text for hit in hits]), dtype=np.float64)
    if scores_P.shape != (len(hits),) or not np.isfinite(scores_P).all():
        raise InvalidInput(
            f"the reranker must give one finite number for each of the {len(hits)} passages, got an array of shape "
            f"{scores_P.shape}{'' if np.isfinite(scores_P).all() else ' with NaN or infinity'}."
        )
    order = best(np.arange(len(hits)), scores_P, k)
    return [
        replace(hits[place], score=float(score), rank=rank)
        for rank, (place, score) in enumerate(zip(*order, strict=True), start=1)
    ]
