"""How good an embedder's vectors are, by the kind of data that they are measured on.

Shapes: R rows, K texts of a row, P texts (R times K), H dimensions, N texts that look for others,
C texts among which they look.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InvalidInput
from bothways.evaluation import (
    Outcomes,
    TextsRead,
    agreement_outcomes,
    correlation_error,
    rank_outcomes,
    share_error,
    similarity_outcomes,
    spearman,
    undefined_correlation,
)
from bothways.tasks.card import Worth, flattered, unmeasured
from bothways.tasks.embedding.data import (
    EmbeddingColumns,
    EmbeddingRow,
    LabelledTexts,
    Pairs,
    PlainTexts,
    ScoredPairs,
    Triplets,
    identities,
    truth_of,
)
from bothways.tasks.predictions import Reading, Similarity, texts_read
from bothways.training.objective import Validation

Floats = NDArray[np.float64]

# Texts that are compared with all others at once, and texts whose neighbours a teacher is asked for.
BLOCK, COMPARED = 512, 512


@dataclass(frozen=True, slots=True)
class Measured:
    """Vectors of rows, and what is known of the rows.

    Attributes:
        vectors_PH: Of their texts, those of a row one after the other.
        texts_RK: Which of them stand in each row.
        identity_P: Equal texts have equal numbers.
        truth_R: Scores, labels, or a teacher's vectors; None without.
        reading: How much of the texts was read, where that is asked for.
    """

    vectors_PH: NDArray[np.float32]
    texts_RK: NDArray[np.int64]
    identity_P: NDArray[np.int64]
    truth_R: NDArray[Any] | None
    reading: TextsRead | None = None

    @classmethod
    def of(
        cls,
        rows: Sequence[EmbeddingRow],
        columns: EmbeddingColumns,
        vectors_PH: NDArray[np.float32],
        readings: Sequence[Reading],
    ) -> "Measured":
        """Rows of these columns, with the vectors of their texts and how these were read."""
        texts = [text for row in rows for text in row.texts]
        texts_RK = np.arange(len(texts)).reshape(len(rows), -1)
        return cls(vectors_PH, texts_RK, identities(texts), truth_of(rows, columns), texts_read(readings))


def validation_of(columns: EmbeddingColumns, measured: Measured) -> Validation:
    """Metrics on held-out rows.

    The score is Spearman's correlation of cosines with scores (or with the teacher's cosines), or the mean reciprocal
    rank.
    """
    match columns:
        case ScoredPairs():
            value = spearman(_truth(measured), cosines_of(measured))
            return Validation({"spearman": value}, value, correlation_error(value, len(measured.texts_RK)))
        case PlainTexts():
            value = spearman(_all_cosines(_truth(measured)), _all_cosines(measured.vectors_PH))
            # Of all pairs, which are not independent: there is no more news in them than in the texts.
            error = correlation_error(value, len(measured.vectors_PH))
            return Validation({"spearman_with_teacher": value}, value, error)
        case Pairs() | Triplets() | LabelledTexts():
            ranks_N = found_at(columns, measured)
            mrr = float(ranks_N.mean())
            metrics = {"accuracy": float((ranks_N == 1).mean()), "mrr": mrr}
            return Validation(metrics, mrr, share_error(mrr, len(ranks_N)))


def outcomes_of(columns: EmbeddingColumns, measured: Measured) -> Outcomes:
    """Return what reports and comparisons are computed from.

    Raises:
        InvalidInput: The columns are of texts alone.
    """
    match columns:
        case ScoredPairs():
            found = similarity_outcomes(_truth(measured), cosines_of(measured))
        case PlainTexts():
            raise _texts_alone()
        case Pairs() | Triplets() | LabelledTexts():
            found = rank_outcomes(found_at(columns, measured))
    return replace(found, tokens_read=measured.reading)


def untelling(columns: EmbeddingColumns, labels: Sequence[object]) -> str | None:
    """Why nothing can be looked for and missed among texts of these labels; None where it can, and for other rows."""
    if not isinstance(columns, LabelledTexts):
        return None
    counts = Counter(labels)
    if all(count < 2 for count in counts.values()):
        return "no text has another of its label, so nothing can be found"
    return "all texts have the same label, so whatever is found is right" if len(counts) < 2 else None


def worth_of(columns: EmbeddingColumns, measured: Measured, *, seed: int) -> Worth:
    """How good a trained embedder is on held-out rows, and what its card says of that."""
    chose, alike = flattered("rows", "the epoch to keep"), "Metrics hold for texts like the held-out rows."
    match columns:
        case ScoredPairs():
            why = undefined_correlation(_truth(measured), cosines_of(measured))
            if why is not None:
                return Worth(None, (unmeasured(f"of the held-out rows, {why}"),))
            return Worth(outcomes_of(columns, measured).report(seed=seed), (chose, alike))
        case PlainTexts():
            cosines = [_square_cosines(each) for each in (_truth(measured), measured.vectors_PH)]
            why = undefined_correlation(*(_above(each) for each in cosines))
            if why is not None:
                return Worth(None, (unmeasured(f"of the held-out texts, {why}"),))
            like_it = "The metrics say how far the model agrees with its teacher, not how good either is."
            return Worth(agreement_outcomes(*cosines).report(resamples=200, seed=seed), (chose, alike, like_it))
        case Pairs() | Triplets() | LabelledTexts():
            among = "Texts were looked for among those of the validation rows alone; among more, fewer are found."
            return Worth(outcomes_of(columns, measured).report(seed=seed), (chose, alike, among))


def cosines_of(measured: Measured) -> Floats:
    """Cosine of the first two texts of each row (R)."""
    unit_PH = _unit(measured.vectors_PH)
    cosines_R: Floats = (unit_PH[measured.texts_RK[:, 0]] * unit_PH[measured.texts_RK[:, 1]]).sum(1)
    return cosines_R


def found_at(columns: EmbeddingColumns, measured: Measured) -> Floats:
    """1 / rank of the first text that belongs to each text that looks (N).

    Anchors look among all positives and negatives of the rows, each different text once, for one of their positives;
    labelled texts look among all others for one of their label. Of equal cosines, the wrong text comes first. A copy of
    the text that looks is found before all others whatever the vectors are, so it is never a wrong one: not where it is
    the positive of another anchor, and not where it has another label. With its own label it counts as found.

    Raises:
        InvalidInput: No text has another of its label.
    """
    search = _by_label(_truth(measured)) if isinstance(columns, LabelledTexts) else _by_row(measured)
    if not search.looking:
        raise InvalidInput("no text of these data has another of its label, so nothing can be found. Give more rows.")
    unit_PH = _unit(measured.vectors_PH)
    candidates_HC, identity_C = unit_PH[search.candidates_C].T, measured.identity_P[search.candidates_C]
    ranks: list[float] = []
    for start in range(0, len(search.looking), BLOCK):
        block = search.looking[start : start + BLOCK]
        for text, cosines_C in zip(block, unit_PH[block] @ candidates_HC, strict=True):
            belongs_C = search.belongs_to(text)
            best = cosines_C[belongs_C].max()
            others_C = ~belongs_C & (identity_C != measured.identity_P[text])
            ranks.append(1.0 / (1 + int((cosines_C[others_C] >= best).sum())))
    return np.array(ranks)


@dataclass(frozen=True, slots=True)
class _Search:
    """Texts that look, those among which they look, and which of these belong to one (C)."""

    looking: list[int]
    candidates_C: NDArray[np.int64]
    belongs_to: Callable[[int], NDArray[np.bool_]]


def _by_label(label_P: NDArray[Any]) -> _Search:
    candidates_C = np.arange(len(label_P))
    looking = [text for text in candidates_C.tolist() if (label_P == label_P[text]).sum() > 1]
    return _Search(looking, candidates_C, lambda text: (label_P == label_P[text]) & (candidates_C != text))


def _by_row(measured: Measured) -> _Search:
    texts_RK, identity_P = measured.texts_RK, measured.identity_P
    others = texts_RK[:, 1:].reshape(-1)
    there_C, first_C = np.unique(identity_P[others], return_index=True)
    positives: dict[int, list[int]] = {}
    for anchor, positive in identity_P[texts_RK[:, :2]].tolist():
        positives.setdefault(anchor, []).append(positive)
    return _Search(
        texts_RK[:, 0].tolist(), others[first_C], lambda text: np.isin(there_C, positives[int(identity_P[text])])
    )


def similarities_of(read: Iterator[tuple[NDArray[np.float32], Reading]]) -> Iterator[Similarity]:
    """How alike neighbours are in a stream of vectors and readings: the first two, the next two, and so on."""
    for (first_H, first), (second_H, second) in zip(read, read, strict=True):
        cosine = float((_unit(first_H[None]) * _unit(second_H[None])).sum())
        reading = Reading(max(first.windows, second.windows), first.dropped_tokens + second.dropped_tokens)
        yield Similarity(cosine, reading)


def _all_cosines(vectors_PH: NDArray[Any]) -> Floats:
    """Of each text with each other."""
    above = _above(_square_cosines(vectors_PH))
    return above if len(above) else np.zeros(1)


def _square_cosines(vectors_PH: NDArray[Any]) -> Floats:
    """Of each text with each, also with itself; of so many texts as are compared."""
    unit_PH = _unit(vectors_PH[:COMPARED])
    return unit_PH @ unit_PH.T


def _above(square: Floats) -> Floats:
    """What stands above the diagonal."""
    above: Floats = square[np.triu_indices(len(square), 1)]
    return above


def _unit(vectors_PH: NDArray[Any]) -> Floats:
    vectors = vectors_PH.astype(np.float64)
    unit_PH: Floats = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return unit_PH


def _texts_alone() -> InvalidInput:
    return InvalidInput("texts alone cannot be evaluated: name columns of pairs or labels, or the task similarity.")


def _truth(measured: Measured) -> NDArray[Any]:
    if measured.truth_R is None:
        raise InvalidInput("these rows have neither scores nor labels to measure by.")
    return measured.truth_R
