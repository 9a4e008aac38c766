"""Models as rerankers: pair classifiers, which read query and passage at once, and embedders.

Letters in names: P passages, D dimensions.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from bothways.errors import InvalidInput, NotFitted
from bothways.retrieval.reranking import ModelReranker
from bothways.tasks.classification.classifiers import PairClassifier
from bothways.tasks.embedding.embedder import SentenceEmbedder
from bothways.tasks.heads.targets import Prediction, Regression, RegressionPrediction, SingleLabel, Target
from bothways.tasks.scores import TokensRead

AFFIRMATIVE = ("relevant", "yes", "true", "positive", "entailment", "match")
"""Usual labels of relevant passages, for data and models whose labels are no grades."""


class CrossEncoder(ModelReranker):
    """A trained pair classifier as a reranker: it reads query and passage at once (Nogueira and Cho 2019).

    The score is the prediction of a regression model, the expected grade if all labels are whole numbers from 0 on, and
    otherwise the probability of ``relevant``. By default that is the only label with a usual name (`AFFIRMATIVE`).
    arXiv:1901.04085.

    Probabilities are uncalibrated: isotonic calibration gives many passages the same probability, and so loses their
    order.

    Attributes:
        relevant: The label of relevant passages; None for regression and graded models.

    Raises:
        NotFitted: The model has no trained head.
        InvalidInput: ``relevant`` is no label of the model, is needed and missing, or is given for a regression model.
    """

    def __init__(self, pairs: PairClassifier[Prediction], relevant: str | None = None) -> None:
        try:
            target: Target = pairs.outputs.target
        except NotFitted as error:
            raise NotFitted(
                "a reranker needs a trained pair model: train one, or name the folder of a trained one."
            ) from error
        graded = isinstance(target, SingleLabel) and are_grades(target.labels)
        self.relevant = None if graded and relevant is None else _relevant_label(target, relevant)
        self._grades = {label: int(label) for label in target.labels} if graded else {}
        if self.relevant is not None:
            self._grades = {self.relevant: 1}
        self._pairs = pairs

    def read(self, query: str, passages: Sequence[str]) -> tuple[npt.NDArray[np.float64], list[TokensRead]]:
        """Return the score, probability or expected grade of each passage (P), and the tokens read of each pair."""
        pairs = [(query, passage) for passage in passages]
        found = self._pairs.predict(pairs, calibrated=False, show_progress=False)
        return np.array([self._relevance(each) for each in found]), [each.tokens_read for each in found]

    def _relevance(self, prediction: Prediction) -> float:
        if isinstance(prediction, RegressionPrediction):
            return prediction.value
        return sum(grade * prediction.probabilities[label] for label, grade in self._grades.items())


class BiEncoder(ModelReranker):
    """The cosine of query and passage, each embedded by itself: the baseline of a cross-encoder."""

    def __init__(self, embedder: SentenceEmbedder) -> None:
        self.embedder = embedder

    def read(self, query: str, passages: Sequence[str]) -> tuple[npt.NDArray[np.float64], list[TokensRead]]:
        """Return the cosine of each passage (P), and the tokens read of the query and the passages."""
        vectors, reads = self.embedder.fitted.encode([query, *passages], show_progress=False)
        vectors_PD = vectors.astype(np.float64)
        vectors_PD /= np.linalg.norm(vectors_PD, axis=1, keepdims=True)
        cosines_P: npt.NDArray[np.float64] = vectors_PD[1:] @ vectors_PD[0]
        return cosines_P, reads


def are_grades(labels: Iterable[str]) -> bool:
    """Return True if all labels are whole numbers from 0."""
    return all(label.isdecimal() for label in labels)


def _relevant_label(target: Target, name: str | None) -> str | None:
    """Return the label of relevant passages; None for a regression model."""
    labels = () if isinstance(target, Regression) else target.labels
    if name is None and labels:
        usual = [label for label in labels if label.lower() in AFFIRMATIVE]
        name = usual[0] if len(usual) == 1 else None
    if name not in (labels or (None,)):
        expected = f"one of the labels {', '.join(map(repr, labels))}" if labels else "none, as it predicts scores"
        raise InvalidInput(f"the reranker's label of relevant passages must be {expected}, got {name!r}.")
    return name
