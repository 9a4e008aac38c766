"""Reranking: the first hits of a search are scored again and put into a new order.

`bothways.retrieval.rerankers` has the models that do this.

Letters in names: P passages.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bothways.errors import InvalidInput
from bothways.progress import progress
from bothways.retrieval.ranking import Hit, best
from bothways.tasks.scores import TokensRead, texts_read, warn_of_cut


class Reranker(Protocol):
    """A scorer of passages for a query, such as a model that reads both at once (a cross-encoder)."""

    def score(self, query: str, passages: Sequence[str]) -> npt.NDArray[np.floating]:
        """Return a score for each passage (P), higher is better; comparable within the query only."""
        ...


class ModelReranker(ABC):
    """A reranker that also reports how much of the texts it read."""

    @abstractmethod
    def read(self, query: str, passages: Sequence[str]) -> tuple[npt.NDArray[np.float64], list[TokensRead]]:
        """Return a score for each passage (P), and the tokens read of each text or pair.

        Raises:
            InvalidInput: A text is empty.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """

    def score(self, query: str, passages: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return a score for each passage (P).

        Raises:
            InvalidInput: A text is empty.
            TextTooLong: A text is too long and the policy is ``"error"``.

        Warns:
            TextsTruncated: Texts were cut (only with ``on_overflow="truncate"``).
        """
        scores_P, reads = self.read(query, passages)
        warn_of_cut(texts_read(reads))
        return scores_P


def checked_scores(
    reranker: Reranker, query: str, passages: Sequence[str]
) -> tuple[npt.NDArray[np.float64], list[TokensRead]]:
    """Return a reranker's scores (P), and the tokens that it read if it reports them.

    Raises:
        InvalidInput: The reranker did not give one finite score for each passage.
    """
    if isinstance(reranker, ModelReranker):
        scores_P, reads = reranker.read(query, passages)
    else:
        scores_P, reads = np.asarray(reranker.score(query, passages), dtype=np.float64), []
    if scores_P.shape != (len(passages),) or not np.isfinite(scores_P).all():
        raise InvalidInput(
            f"the reranker must give one finite number for each of the {len(passages)} passages, got an array of shape "
            f"{scores_P.shape}{'' if np.isfinite(scores_P).all() else ' with NaN or infinity'}."
        )
    return scores_P, reads


@dataclass(frozen=True, slots=True)
class Rerank:
    """Options of reranking: the first hits are reordered and stay in front of the others.

    Attributes:
        by: The reranker.
        depth: The number of first hits to score.
    """

    by: Reranker
    depth: int = 50

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise InvalidInput(f"depth must be at least 1, got {self.depth!r}.")


def reranked(hits: Sequence[Hit], query: str, rerank: Rerank) -> list[Hit]:
    """Return the hits, the first of them reordered by the reranker's scores, which replace their own.

    Among equal scores the earlier hit comes first. Hits beyond the depth keep their order and scores, which are not
    comparable with the reranker's.

    Raises:
        InvalidInput: The reranker did not give one finite score for each passage.

    Warns:
        TextsTruncated: Texts were cut (only with ``on_overflow="truncate"``).
    """
    reordered, reads = _reranked(hits, query, rerank)
    warn_of_cut(texts_read(reads))
    return reordered


def search_reranked(
    find: Callable[[int], list[list[Hit]]],
    queries: Sequence[str],
    k: int,
    rerank: Rerank | None,
    *,
    show_progress: bool | None = None,
) -> list[list[Hit]]:
    """Return the ``k`` best hits of each query, reranked unless ``rerank`` is None.

    Args:
        find: Returns a given number of hits for each query.
        queries: The queries.
        k: Hits for each query.
        rerank: The reranker; it may look at more than ``k`` hits.
        show_progress: Force the progress bar on or off.

    Raises:
        InvalidInput: The reranker did not give one finite score for each passage.

    Warns:
        TextsTruncated: Texts were cut (only with ``on_overflow="truncate"``); once for all queries.
    """
    if rerank is None:
        return find(k)
    answers, found = find(max(k, rerank.depth)), []
    reads: list[TokensRead] = []
    with progress("reranking", len(queries), show=show_progress) as bar:
        for query, hits in zip(queries, answers, strict=True):
            reordered, read = _reranked(hits, query, rerank)
            found.append(reordered[:k])
            reads += read
            bar.advance()
    warn_of_cut(texts_read(reads))
    return found


def _reranked(hits: Sequence[Hit], query: str, rerank: Rerank) -> tuple[list[Hit], list[TokensRead]]:
    first, rest = hits[: rerank.depth], hits[rerank.depth :]
    if not first:
        return [], []
    scores_P, reads = checked_scores(rerank.by, query, [hit.text for hit in first])
    order = best(np.arange(len(first)), scores_P, len(first))
    front = [replace(first[place], score=float(score)) for place, score in zip(*order, strict=True)]
    return [replace(hit, rank=rank) for rank, hit in enumerate([*front, *rest], start=1)], reads
