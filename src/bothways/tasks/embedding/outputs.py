"""Rows of texts for training and evaluating an embedder, and its outputs: similarities, ranks and metrics.

Shapes: R rows, K texts per row, P texts (R times K), H dimensions, N query texts, C candidate texts.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways import data
from bothways.choices import SimilarityName
from bothways.confidence.confidence import Confidence
from bothways.data.label_rows import BLANK, respelled
from bothways.data.labels import BLANKS
from bothways.errors import InvalidInput
from bothways.tasks.embedding.spec import EmbeddingColumns, LabelledTexts, PlainTexts, ScoredPairs, usual_kind
from bothways.tasks.scores import Scores, TaskPrediction, TokensRead
from bothways.tasks.spec import AlikeLabelData, options_of

if TYPE_CHECKING:
    from bothways.data import Source
    from bothways.evaluation.outcomes import Outcomes
    from bothways.text.windows import TextsRead

Truth: TypeAlias = NDArray[np.floating] | NDArray[np.int64]
"""Scores, encoded labels, or a teacher's vectors."""

Vectors: TypeAlias = NDArray[np.floating]
Floats: TypeAlias = NDArray[np.float64]

# Number of query texts compared with all candidates at once.
BLOCK = 512


# --- rows ---

_AS_USUAL = AlikeLabelData()


@dataclass(frozen=True, slots=True)
class EmbeddingRow:
    """A row of texts with its score or label, if it has one."""

    text: tuple[str, ...]
    label: float | str | None
    where: str  # the line or row in words, for messages
    columns: EmbeddingColumns  # the kind of row
    given: object = None  # the label before the conversion

    @property
    def known_by(self) -> tuple[str, ...]:
        """The texts without mined negatives, by which a training row is recognised."""
        return self.text[:2]


def with_usual_kind(
    source: Source | Iterable[Any], otherwise: EmbeddingColumns | None = None
) -> tuple[Source, EmbeddingColumns]:
    """Return a source and the kind of its rows, which the columns of the first row determine, or else ``otherwise``.

    Standard input and open streams can be read only once, so they are returned as lists of rows.
    """
    kept: Source = source
    match source:
        case str() | os.PathLike() if str(source) == "-":
            kept = list(data.read_rows(source))
        case _ if hasattr(source, "readline"):
            kept = list(data.read_rows(source))
    return kept, usual_kind(next(data.read_rows(kept)).values, otherwise)


def read_embedding_rows(
    source: Source, columns: EmbeddingColumns, options: AlikeLabelData = _AS_USUAL, known: Collection[str] = ()
) -> list[EmbeddingRow]:
    """Return the rows of a source, with their texts and their scores or labels.

    Labels that look alike, also like ``known`` ones, may be read as one.
    """
    if len(set(columns.texts)) < len(columns.texts):
        raise InvalidInput(f"the texts of a row must be in different columns, got {columns.texts}.")
    if options.normalise_labels and columns.part != "label":
        raise InvalidInput(
            f"normalise_labels needs rows with labels (text and label), got {columns.kind}: leave it out."
        )
    rows, name, normalise = [], columns.truth, options.normalise_labels or False
    without = data.RowsWithoutLabel(name, options.unlabelled, normalise=normalise)
    for row in data.read_rows(source):
        if name and without.holds(row, BLANKS.get(columns.converter, BLANK)):
            continue
        texts = tuple(data.text_at(row, column, columns.argument_of(column)) for column in columns.texts)
        given = data.value_at(row, name, columns.part) if name else None
        try:
            label = columns.convert(given)
        except InvalidInput as error:
            advice = ""
            if columns.texts == ("anchor", "positive"):
                advice = f" Drop {name!r} to read all rows as pairs of texts that belong together."
            raise InvalidInput(f"{row.where}: {name!r}: {error}{advice}") from error
        rows.append(EmbeddingRow(texts, label, row.where, columns, given))
    kept = without.settle(rows)
    if not normalise:
        return kept
    labels = respelled([row.label for row in kept], known)
    return [replace(row, label=str(label)) for row, label in zip(kept, labels, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class RowTexts:
    """The texts of rows, and the labels or scores to train on."""

    columns: EmbeddingColumns  # the kind of rows
    texts_RK: NDArray[np.int64]  # indices of each row's texts
    identity_P: NDArray[np.int64]  # an id for each text, the same for equal texts
    truth_R: Truth | None  # the targets of the loss; None if the rows have none

    @classmethod
    def of(cls, rows: Sequence[EmbeddingRow]) -> RowTexts:
        """Index the texts of rows, row by row, and encode the labels."""
        numbers: dict[str, int] = {}
        identity = [numbers.setdefault(text, len(numbers)) for row in rows for text in row.text]
        identity_P, labels = np.array(identity, dtype=np.int64), [row.label for row in rows]
        truth_R: Truth | None = None
        match rows[0].columns:
            case ScoredPairs():
                truth_R = np.array(labels, dtype=np.float64)
            case LabelledTexts():
                truth_R = np.unique(np.array(labels, dtype=np.object_), return_inverse=True)[1]
        return RowTexts(rows[0].columns, np.arange(len(identity)).reshape(len(rows), -1), identity_P, truth_R)

    @property
    def scores_R(self) -> Truth | None:
        """The scores of scored pairs; None for other kinds of rows, which are evaluated by ranking."""
        return self.truth_R if isinstance(self.columns, ScoredPairs) else None

    @property
    def truth(self) -> Truth:
        """The targets of the loss; raises `InvalidInput` if the rows have none."""
        if self.truth_R is None:
            raise InvalidInput("these rows have neither scores nor labels: name a column of scores or labels.")
        return self.truth_R


# --- outputs ---


@dataclass(frozen=True, slots=True)
class Similarity(TaskPrediction):
    """The similarity of two texts.

    Attributes:
        similarity: Cosine of their vectors, -1 to 1; for an embedder of another similarity, their inner product or
            negative distance.
        tokens_read: Maximum windows of the two texts, and total tokens dropped from them.
    """

    similarity: float
    tokens_read: TokensRead


@dataclass(frozen=True, slots=True, eq=False)
class EvaluatedRows:
    """The expected scores of evaluated rows, and the counts of texts and tokens that were read."""

    truth_N: Truth | None  # the scores of scored pairs; None for rows evaluated by ranking
    tokens_read: TextsRead


@dataclass(frozen=True, slots=True)
class EmbeddingOutputs:
    """The outputs of an embedder: similarities of pairs, or reciprocal ranks; without labels and calibration."""

    labels: ClassVar[tuple[str, ...]] = ()
    comparable: ClassVar[tuple[str, ...]] = ()
    confidence: ClassVar[Confidence] = Confidence()

    def read(self, data: Source, columns: EmbeddingColumns, options: object = None) -> list[EmbeddingRow]:
        """Return the rows of a source; refuse plain texts, which cannot be evaluated."""
        if isinstance(columns, PlainTexts):
            raise InvalidInput(
                "texts alone cannot be evaluated: name columns of pairs or labels, or use the task 'similarity'."
            )
        return read_embedding_rows(data, columns, options_of(AlikeLabelData, options))

    def decide(self, scores: Sequence[Scores[None]], options: object = None) -> list[Similarity]:
        """Return the similarities of pairs."""
        del options
        return [Similarity(float(each.logits_RC[0, 0]), each.read) for each in scores]

    def outcomes(
        self, scores: Sequence[Scores[object]], truth: EvaluatedRows, *, calibrated: bool | None = None
    ) -> Outcomes:
        """Return the results on evaluated rows: similarities with the expected scores, or reciprocal ranks."""
        del calibrated
        measured_N = np.array([each.logits_RC[0, 0] for each in scores])
        return replace(outcomes_of(measured_N, truth.truth_N), tokens_read=truth.tokens_read)


def measured(vectors_PH: Vectors, rows: RowTexts, similarity: SimilarityName) -> Floats:
    """Return the similarity of each scored pair (R), or 1 / rank of the first match of each query text (N)."""
    if rows.scores_R is None:
        return found_at(vectors_PH, rows, similarity)
    return similarities_of(vectors_PH, rows, similarity)


def outcomes_of(measured_N: Floats, truth_N: Truth | None) -> Outcomes:
    """Return the results on rows: similarities with the scores ``truth_N``, or reciprocal ranks if it is None."""
    from bothways.evaluation.metrics.ranking import rank_outcomes
    from bothways.evaluation.metrics.regression import similarity_outcomes

    return rank_outcomes(measured_N) if truth_N is None else similarity_outcomes(truth_N, measured_N)


def without_contrast(columns: EmbeddingColumns, labels: Sequence[object]) -> str | None:
    """Return the reason why texts with these labels cannot be ranked; None if they can."""
    if not isinstance(columns, LabelledTexts):
        return None
    counts = Counter(labels)
    if all(count < 2 for count in counts.values()):
        return "every label occurs once, and ranking needs a label with at least two texts"
    return "all texts have the same label, so every ranking is correct" if len(counts) < 2 else None


def similarities_of(vectors_PH: Vectors, rows: RowTexts, similarity: SimilarityName) -> Floats:
    """Return the similarity of each row's first two texts (R), rounded to six digits to hide float32 noise."""
    first_R, second_R = rows.texts_RK[:, 0], rows.texts_RK[:, 1]
    return similarities(vectors_PH[first_R], vectors_PH[second_R], similarity).round(6)


def found_at(vectors_PH: Vectors, rows: RowTexts, similarity: SimilarityName) -> Floats:
    """Return the reciprocal rank of the first match of each query text (N).

    The query texts are anchors or labelled texts. The candidates of an anchor are all different positives and
    negatives; its own positives match. The candidates of a labelled text are all other texts; those with its label
    match. Among equal similarities, candidates that do not match rank first. A copy of the query has the same vector
    under any encoder, so it never counts as an error: it is a match if it has the query's label, otherwise it is left
    out.
    """
    queries, candidates_C, belongs_to = _by_label(rows) if isinstance(rows.columns, LabelledTexts) else _by_row(rows)
    if not queries:
        raise InvalidInput("every label occurs once, and ranking needs a label with two texts: give more rows.")
    prepared_PH = unit_rows(vectors_PH) if similarity == "cosine" else vectors_PH.astype(np.float64)
    candidates_CH, identity_C = prepared_PH[candidates_C], rows.identity_P[candidates_C]
    ranks: list[float] = []
    for start in range(0, len(queries), BLOCK):
        block = queries[start : start + BLOCK]
        similar_NC = _prepared_similarities(prepared_PH[block], candidates_CH, similarity)
        for text, similar_C in zip(block, similar_NC, strict=True):
            belongs_C = belongs_to(text)
            best = similar_C[belongs_C].max()
            others_C = ~belongs_C & (identity_C != rows.identity_P[text])
            ranks.append(1.0 / (1 + int((similar_C[others_C] >= best).sum())))
    return np.array(ranks)


# Query texts, their candidates, and a function that returns a mask of the candidates that match a query (C).
_Search: TypeAlias = tuple[list[int], NDArray[np.int64], Callable[[int], NDArray[np.bool_]]]


def _by_label(rows: RowTexts) -> _Search:
    label_P, candidates_C = rows.truth, np.arange(len(rows.truth))
    queries = [text for text in candidates_C.tolist() if (label_P == label_P[text]).sum() > 1]
    return queries, candidates_C, lambda text: (label_P == label_P[text]) & (candidates_C != text)


def _by_row(rows: RowTexts) -> _Search:
    texts_RK, identity_P = rows.texts_RK, rows.identity_P
    others = texts_RK[:, 1:].reshape(-1)
    there_C, first_C = np.unique(identity_P[others], return_index=True)
    positives: dict[int, list[int]] = {}
    for anchor, positive in identity_P[texts_RK[:, :2]].tolist():
        positives.setdefault(anchor, []).append(positive)
    return texts_RK[:, 0].tolist(), others[first_C], lambda text: np.isin(there_C, positives[int(identity_P[text])])


def similarities(first_NH: Vectors, second_NH: Vectors, similarity: SimilarityName) -> Floats:
    """Return the similarity of each pair of vectors (N), in float64; distances are negative."""
    if similarity == "cosine":
        first_NH, second_NH = unit_rows(first_NH), unit_rows(second_NH)
    first_NH, second_NH = first_NH.astype(np.float64), second_NH.astype(np.float64)
    found_N: Floats
    match similarity:
        case "cosine" | "dot":
            found_N = (first_NH * second_NH).sum(1)
        case "euclidean" | "manhattan":
            found_N = -np.linalg.norm(first_NH - second_NH, 1 if similarity == "manhattan" else 2, axis=1)
    return found_N


def similarity_matrix(first_NH: Vectors, second_MH: Vectors, similarity: SimilarityName) -> Floats:
    """Return the similarity of every vector to every other (N, M), in float64; distances are negative."""
    if similarity == "cosine":
        return _prepared_similarities(unit_rows(first_NH), unit_rows(second_MH), similarity)
    return _prepared_similarities(first_NH.astype(np.float64), second_MH.astype(np.float64), similarity)


def _prepared_similarities(first_NH: Floats, second_MH: Floats, similarity: SimilarityName) -> Floats:
    """Return the similarities (N, M) of float64 vectors, which have length 1 for the cosine."""
    found_NM: Floats
    match similarity:
        case "cosine" | "dot":
            found_NM = first_NH @ second_MH.T
        case "euclidean" | "manhattan":
            order = 1 if similarity == "manhattan" else 2
            found_NM = np.stack([-np.linalg.norm(second_MH - each_H, order, axis=1) for each_H in first_NH])
    return found_NM


def unit_rows(vectors_PH: Vectors) -> Floats:
    """Scale vectors to length 1, in float64."""
    vectors = vectors_PH.astype(np.float64)
    unit_PH: Floats = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return unit_PH
