"""A second, closer look at the first hits.

Letters in names: P passages.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bothways.errors import InvalidInput, NotFitted
from bothways.progress import progress
from bothways.retrieval.hits import Hit
from bothways.retrieval.ranking import best
from bothways.tasks.classification.classifiers import PairClassifier
from bothways.tasks.embedding.embedder import SentenceEmbedder
from bothways.tasks.predictions import Prediction, RegressionPrediction, warn_of_cut
from bothways.tasks.scores import TokensRead, texts_read
from bothways.tasks.targets import Regression, SingleLabel, Target

# What the label of a passage that answers is usually called, where labels are no grades.
AFFIRMATIVE = ("relevant", "yes", "true", "positive", "entailment", "match")


class Reranker(Protocol):
    """A scorer of passages for a query, such as a model that reads both at once (a cross-encoder)."""

    def score(self, query: str, passages: Sequence[str]) -> npt.NDArray[np.floating]:
        """Return a number for each passage, ``(P,)``, the higher the better; comparable within the query only."""
        ...


class ModelReranker(ABC):
    """A model as a reranker, which knows how much it has read of what it scores."""

    @abstractmethod
    def read(self, query: str, passages: Sequence[str]) -> tuple[npt.NDArray[np.float64], list[TokensRead]]:
        """Return a number for each passage, ``(P,)``, and how much of each text or pair the model read.

        Raises:
            InvalidInput: A text is empty.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """

    def score(self, query: str, passages: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return the number of each passage, ``(P,)``.

        Raises:
            InvalidInput: A text is empty.
            TextTooLong: A text is too long and the policy is ``"error"``.

        Warns:
            TextsTruncated: Texts were cut (only with ``on_overflow="truncate"``).
        """
        scores_P, readings = self.read(query, passages)
        warn_of_cut(texts_read(readings))
        return scores_P


def scores_and_readings(
    by: Reranker, query: str, passages: Sequence[str]
) -> tuple[npt.NDArray[np.float64], list[TokensRead]]:
    """Return a reranker's numbers, ``(P,)``, and how much of the texts it has read, where it is one that knows.

    Raises:
        InvalidInput: It gave no finite number for each passage.
    """
    scores, readings = by.read(query, passages) if isinstance(by, ModelReranker) else (by.score(query, passages), [])
    scores_P = np.asarray(scores, dtype=np.float64)
    if scores_P.shape != (len(passages),) or not np.isfinite(scores_P).all():
        raise InvalidInput(
            f"the reranker must give one finite number for each of the {len(passages)} passages, got an array of shape "
            f"{scores_P.shape}{'' if np.isfinite(scores_P).all() else ' with NaN or infinity'}."
        )
    return scores_P, readings


class CrossEncoder(ModelReranker):
    """A trained pair model as a reranker: it reads query and passage at once.

    A model of scores ranks by its score, one of labels by the probability of ``relevant``, the label that says that the
    second text answers the first; where it is left out, the one label that is usually called so (``AFFIRMATIVE``). If
    all labels are grades from 0 on, it ranks by the expected grade instead. Nogueira and Cho 2019, arXiv:1901.04085.

    The probabilities are those of the head as it is: a calibration may state the same for several passages, and would
    take their order away.

    Attributes:
        relevant: The label that it goes by; None of a model of scores or grades.

    Raises:
        NotFitted: The model has no trained head.
        InvalidInput: ``relevant`` is none of the labels, it is not clear which, or one was named for a model of scores.
    """

    def __init__(self, pairs: PairClassifier[Prediction], relevant: str | None = None) -> None:
        try:
            target: Target = pairs.outputs.target
        except NotFitted as error:
            raise NotFitted(
                "a reranker needs a trained pair model: train one, or name the folder of a trained one."
            ) from error
        self.relevant = _relevant_label(target, relevant)
        self._worths = _worths(target, self.relevant)
        self._pairs = pairs

    def read(self, query: str, passages: Sequence[str]) -> tuple[npt.NDArray[np.float64], list[TokensRead]]:
        """Return the score, probability or expected grade of each passage, ``(P,)``, and how the pairs were read."""
        pairs = [(query, passage) for passage in passages]
        found = self._pairs.predict(pairs, calibrated=False, show_progress=False)
        return np.array([self._worth(each) for each in found]), [each.tokens_read for each in found]

    def _worth(self, prediction: Prediction) -> float:
        if isinstance(prediction, RegressionPrediction):
            return prediction.value
        return sum(worth * prediction.probabilities[label] for label, worth in self._worths.items())


class BiEncoder(ModelReranker):
    """The cosine of query and passage, each embedded by itself: what a cross-encoder has to beat."""

    def __init__(self, embedder: SentenceEmbedder) -> None:
        self.embedder = embedder

    def read(self, query: str, passages: Sequence[str]) -> tuple[npt.NDArray[np.float64], list[TokensRead]]:
        """Return the cosine of each passage, ``(P,)``, and how query and passages were read."""
        read, readings = self.embedder.read([query, *passages], show_progress=False)
        vectors_PD = read.astype(np.float64)
        vectors_PD /= np.linalg.norm(vectors_PD, axis=1, keepdims=True)
        cosines_P: npt.NDArray[np.float64] = vectors_PD[1:] @ vectors_PD[0]
        return cosines_P, readings


@dataclass(frozen=True, slots=True)
class Rerank:
    """The first hits put into another order, in front of the others.

    Attributes:
        by: What scores them.
        depth: How many of the first hits are scored.
    """

    by: Reranker
    depth: int = 50

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise InvalidInput(f"depth must be at least 1, got {self.depth!r}.")


def reranked(hits: Sequence[Hit], query: str, rerank: Rerank) -> list[Hit]:
    """Return the hits with the first of them in the order of the reranker's scores, which they then carry.

    Of equal scores the earlier hit comes first. Hits beyond keep their order and their scores, which say nothing beside
    those of the reranker.

    Raises:
        InvalidInput: The reranker gave no finite number for each passage.

    Warns:
        TextsTruncated: Texts were cut (only with ``on_overflow="truncate"``).
    """
    found, readings = _reranked(hits, query, rerank)
    warn_of_cut(texts_read(readings))
    return found


def _reranked(hits: Sequence[Hit], query: str, rerank: Rerank) -> tuple[list[Hit], list[TokensRead]]:
    """Rerank like `reranked`, and return how much was read instead of a warning."""
    first, rest = hits[: rerank.depth], hits[rerank.depth :]
    if not first:
        return [], []
    scores_P, readings = scores_and_readings(rerank.by, query, [hit.text for hit in first])
    order = best(np.arange(len(first)), scores_P, len(first))
    front = [replace(first[place], score=float(score)) for place, score in zip(*order, strict=True)]
    return [replace(hit, rank=rank) for rank, hit in enumerate([*front, *rest], start=1)], readings


def search_reranked(
    find: Callable[[int], list[list[Hit]]],
    queries: Sequence[str],
    k: int,
    rerank: Rerank | None,
    *,
    show_progress: bool | None = None,
) -> list[list[Hit]]:
    """Return the ``k`` best hits of each query after a second look, if there is one.

    Args:
        find: From a number to as many hits of each query.
        queries: The queries.
        k: Hits for each.
        rerank: What looks at the first hits again; of these, more than ``k`` are found if it wants more.
        show_progress: Force the progress bar on or off.

    Raises:
        InvalidInput: The reranker gave no finite number for each passage.

    Warns:
        TextsTruncated: Texts were cut (only with ``on_overflow="truncate"``); once for all queries.
    """
    if rerank is None:
        return find(k)
    answers, found = find(max(k, rerank.depth)), []
    readings: list[TokensRead] = []
    with progress("reranking", len(queries), show=show_progress) as bar:
        for query, hits in zip(queries, answers, strict=True):
            ordered, read = _reranked(hits, query, rerank)
            found.append(ordered[:k])
            readings += read
            bar.advance()
    warn_of_cut(texts_read(readings))
    return found


def are_grades(labels: Iterable[str]) -> bool:
    """Return whether labels are whole numbers from 0 on."""
    return all(label.isdecimal() for label in labels)


def _is_graded(target: Target) -> bool:
    return isinstance(target, SingleLabel) and are_grades(target.labels)


def _worths(target: Target, relevant: str | None) -> dict[str, int]:
    """Return what each label counts."""
    if relevant is not None:
        return {relevant: 1}
    return {label: int(label) for label in target.labels} if _is_graded(target) else {}


def _relevant_label(target: Target, wanted: str | None) -> str | None:
    """Return the label that a reranker goes by; None for a model of scores or grades."""
    if wanted is None and _is_graded(target):
        return None
    labels = () if isinstance(target, Regression) else target.labels
    if wanted is None and labels:
        usual = [label for label in labels if label.lower() in AFFIRMATIVE]
        wanted = usual[0] if len(usual) == 1 else None
    if wanted not in (labels or (None,)):
        expected = f"one of the labels {', '.join(map(repr, labels))}" if labels else "none, as it predicts scores"
        raise InvalidInput(f"which label of the reranker means relevant: expected {expected}, got {wanted!r}.")
    return wanted
