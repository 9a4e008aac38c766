"""Reranking: the first hits of a search are scored again and put into a new order.

The reranker may be a pair classifier, which reads query and passage together, or an embedder.

Letters in names: P passages, D dimensions.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bothways.errors import InvalidInput, NotFitted
from bothways.progress import progress
from bothways.retrieval.ranking import Hit, best
from bothways.tasks.classification.classifiers import PairClassifier
from bothways.tasks.embedding.embedder import SentenceEmbedder
from bothways.tasks.embedding.outputs import similarity_matrix
from bothways.tasks.heads.targets import Prediction, Regression, RegressionPrediction, SingleLabel, Target
from bothways.tasks.scores import TokensRead, texts_read, warn_of_cut

AFFIRMATIVE = ("relevant", "yes", "true", "positive", "entailment", "match")
"""Usual labels of relevant passages, for data and models whose labels are not grades."""


class Reranker(Protocol):
    """A scorer of passages for a query, such as a model that reads both together (a cross-encoder)."""

    def score(self, query: str, passages: Sequence[str]) -> npt.NDArray[np.floating]:
        """Return a score for each passage (P), higher is better; comparable within the query only."""
        ...


class ModelReranker(ABC):
    """A reranker that also reports how many tokens of each text it read."""

    @abstractmethod
    def read(self, query: str, passages: Sequence[str]) -> tuple[npt.NDArray[np.float64], list[TokensRead]]:
        """Return a score for each passage (P), and the numbers of tokens read of each text or pair."""

    def score(self, query: str, passages: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return a score for each passage (P).

        Warns:
            TextsTruncated: Texts were truncated (only if ``on_overflow`` truncates).
        """
        scores_P, reads = self.read(query, passages)
        warn_of_cut(texts_read(reads))
        return scores_P


def checked_scores(
    reranker: Reranker, query: str, passages: Sequence[str]
) -> tuple[npt.NDArray[np.float64], list[TokensRead]]:
    """Return a reranker's scores (P), and the numbers of tokens that it read; empty if it does not report them."""
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
    """Options for reranking: the first ``depth`` hits are reordered, and stay before the remaining hits.

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
    """Return the hits with the first ones reordered by the reranker, whose scores replace theirs.

    Hits with equal scores keep their order. Hits beyond the depth keep their order and scores, which are not comparable
    with the reranker's.

    Raises:
        InvalidInput: The reranker did not give one finite score for each passage.

    Warns:
        TextsTruncated: Texts were truncated (only if ``on_overflow`` truncates).
    """
    reordered, reads = _reranked(hits, query, rerank)
    warn_of_cut(texts_read(reads))
    return reordered


def search_reranked(
    find: Callable[[int], list[list[Hit]]],
    queries: Sequence[str],
    k: int,
    rerank: Rerank,
    *,
    show_progress: bool | None = None,
) -> list[list[Hit]]:
    """Return the ``k`` best hits of each query after reranking; a warning counts truncated texts of all queries.

    ``find`` takes a number and returns that many hits for each query.
    """
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


# --- models ---


class CrossEncoder(ModelReranker):
    """A trained pair classifier as a reranker (Nogueira and Cho 2019, arXiv:1901.04085).

    The score of a passage is the predicted value of a regression model, the expected grade if all labels are whole
    numbers, and otherwise the probability of the label ``relevant``. Default for ``relevant``: the only label that is
    in `AFFIRMATIVE`.

    Probabilities are not calibrated: isotonic calibration would give many passages the same probability, and so lose
    their order.

    Attributes:
        relevant: The label of relevant passages; None for regression and graded models.

    Raises:
        NotFitted: The model has no trained head.
        InvalidInput: ``relevant`` is not a label of the model, is missing though needed, or is given for regression.
    """

    def __init__(self, pairs: PairClassifier[Prediction], relevant: str | None = None) -> None:
        try:
            target: Target = pairs.fitted.outputs.target
        except NotFitted as error:
            raise NotFitted(
                "a reranker needs a trained pair model: train one, or name the folder of a trained one."
            ) from error
        graded = isinstance(target, SingleLabel) and are_grades(target.labels)
        self.relevant = None if graded and relevant is None else _relevant_label(target, relevant)
        values = dict(zip(target.labels, target.values or target.labels, strict=True))
        self._grades = {value: int(label) for label, value in values.items()} if graded else {}
        if self.relevant is not None:
            self._grades = {values[self.relevant]: 1}
        self.pairs = pairs

    def read(self, query: str, passages: Sequence[str]) -> tuple[npt.NDArray[np.float64], list[TokensRead]]:
        """Return the score of each passage (P), and the numbers of tokens read of each pair."""
        pairs = [(query, passage) for passage in passages]
        found = self.pairs.predict(pairs, calibrated=False, show_progress=False)
        return np.array([self._relevance(each) for each in found]), [each.tokens_read for each in found]

    def _relevance(self, prediction: Prediction) -> float:
        if isinstance(prediction, RegressionPrediction):
            return prediction.value
        return sum(grade * prediction.probabilities[label] for label, grade in self._grades.items())


class BiEncoder(ModelReranker):
    """An embedder as a reranker: it scores by the similarity of query and passage, a baseline for cross-encoders.

    Query and passages have the prompts that the embedder names for queries and documents.
    """

    def __init__(self, embedder: SentenceEmbedder) -> None:
        self.embedder = embedder

    def read(self, query: str, passages: Sequence[str]) -> tuple[npt.NDArray[np.float64], list[TokensRead]]:
        """Return the similarity of each passage (P), and the numbers of tokens read of the query and each passage."""
        fitted, settings = self.embedder.fitted, self.embedder.fitted.settings
        prompts = settings.prompt_of(role="query"), settings.prompt_of(role="document")
        if prompts[0] == prompts[1]:
            vectors, reads = fitted.encode([query, *passages], prompt=prompts[0], show_progress=False)
            query_1D, passages_PD = vectors[:1], vectors[1:]
        else:
            query_1D, of_query = fitted.encode([query], prompt=prompts[0], show_progress=False)
            passages_PD, of_passages = fitted.encode(passages, prompt=prompts[1], show_progress=False)
            reads = of_query + of_passages
        return similarity_matrix(query_1D, passages_PD, settings.similarity)[0], reads


def are_grades(labels: Iterable[str]) -> bool:
    """Return True if all labels are whole numbers of at least 0."""
    return all(label.isdecimal() for label in labels)


def _relevant_label(target: Target, name: str | None) -> str | None:
    """Return the label of relevant passages; None for a regression model."""
    labels = () if isinstance(target, Regression) else target.labels
    if name is None and labels:
        usual = [label for label in labels if label.lower() in AFFIRMATIVE]
        name = usual[0] if len(usual) == 1 else None
    if name not in (labels or (None,)):
        expected = f"one of the labels {', '.join(map(repr, labels))}" if labels else "None, as it predicts scores"
        raise InvalidInput(f"the reranker's label of relevant passages must be {expected}, got {name!r}.")
    return name
