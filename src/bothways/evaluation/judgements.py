"""What a model said of labelled rows and what is right, in the form that two models are compared in.

Shape letters: N rows, C classes or labels.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InvalidInput
from bothways.evaluation.comparing import (
    compare_classifications,
    compare_labellings,
    compare_regressions,
    compare_row_scores,
    compare_similarities,
)
from bothways.evaluation.comparing_tags import compare_spans, compare_tags
from bothways.evaluation.differences import ComparisonReport
from bothways.evaluation.inputs import FloatArray, IntArray
from bothways.evaluation.reading import TextsRead
from bothways.evaluation.tag_counts import TaggingCounts
from bothways.evaluation.tag_schemes import Scheme

# Of what is counted of tags: that which is right, there, predicted.
_THERE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What every judgement may know: how much of the texts was read; None where it is of numbers alone."""

    reading: TextsRead | None = None


@dataclass(frozen=True, slots=True)
class ClassJudgement(Judged):
    """One of C classes for each row: numbers of the true ones (N), and stated probabilities (N, C)."""

    labels: Sequence[str]
    truth_N: IntArray
    stated_NC: FloatArray


@dataclass(frozen=True, slots=True)
class LabelJudgement(Judged):
    """Any of C labels for each row: 0 or 1 (N, C), stated probabilities (N, C), and from where on one is predicted."""

    labels: Sequence[str]
    truth_NC: IntArray
    stated_NC: FloatArray
    threshold: float


@dataclass(frozen=True, slots=True)
class NumberJudgement(Judged):
    """A number for each row: what is right (N), and what was predicted (N)."""

    truth_N: FloatArray
    predicted_N: FloatArray


@dataclass(frozen=True, slots=True)
class SimilarityJudgement(Judged):
    """A similarity for each pair (N), and its score (N), in whatever units."""

    truth_N: FloatArray
    similarity_N: FloatArray


@dataclass(frozen=True, slots=True)
class RowScores(Judged):
    """Metrics that are the mean of their rows' scores (N), from 0 to 1, by name; the first is the one to test."""

    scores: Mapping[str, FloatArray]


@dataclass(frozen=True, slots=True)
class SpanJudgement(Judged):
    """Spans of texts: what is right, there and predicted of each label; and the scheme of the words' tags."""

    labels: Sequence[str]
    counts: TaggingCounts
    scheme: Scheme = "BIO"


@dataclass(frozen=True, slots=True)
class TagJudgement(Judged):
    """Tags of words that are no spans: what is right, there and predicted of each."""

    labels: Sequence[str]
    counts: TaggingCounts


Judgement: TypeAlias = (
    ClassJudgement | LabelJudgement | NumberJudgement | SimilarityJudgement | RowScores | SpanJudgement | TagJudgement
)


def compare_judgements(
    first: Judgement, second: Judgement, *, resamples: int = 1000, seed: int = 0
) -> ComparisonReport:
    """Two models' judgements of the same rows, in the same order.

    Args:
        first: One model's.
        second: The other's, with the same labels in whatever order; differences are second minus first.
        resamples: Bootstrap resamples for the paired intervals.
        seed: Of resamples and permutations.

    Raises:
        InvalidInput: They are of different kinds, labels, metrics or rows, or were not judged by the same truth.
    """
    report = _compared(first, second, resamples, seed)
    return replace(report, readings=(first.reading, second.reading))


def _compared(first: Judgement, second: Judgement, resamples: int, seed: int) -> ComparisonReport:
    match first, second:
        case ClassJudgement(), ClassJudgement():
            places = _places(first.labels, second.labels)
            _check_truth(np.asarray(places)[first.truth_N], second.truth_N)
            return compare_classifications(
                first.truth_N, first.stated_NC, second.stated_NC[:, places], resamples=resamples, seed=seed
            )
        case LabelJudgement(), LabelJudgement():
            places = _places(first.labels, second.labels)
            _check_truth(first.truth_NC, second.truth_NC[:, places])
            return compare_labellings(
                first.truth_NC,
                first.stated_NC,
                second.stated_NC[:, places],
                threshold=first.threshold,
                resamples=resamples,
                seed=seed,
            )
        case NumberJudgement(), NumberJudgement():
            _check_truth(first.truth_N, second.truth_N)
            return compare_regressions(
                first.truth_N, first.predicted_N, second.predicted_N, resamples=resamples, seed=seed
            )
        case SimilarityJudgement(), SimilarityJudgement():
            _check_truth(first.truth_N, second.truth_N)
            return compare_similarities(
                first.truth_N, first.similarity_N, second.similarity_N, resamples=resamples, seed=seed
            )
        case RowScores(), RowScores():
            return compare_row_scores(first.scores, second.scores, resamples=resamples, seed=seed)
        case SpanJudgement(), SpanJudgement():
            counts = _in_order(first, second)
            same = first.scheme == second.scheme
            return compare_spans(first.counts, counts, same_scheme=same, resamples=resamples, seed=seed)
        case TagJudgement(), TagJudgement():
            return compare_tags(first.counts, _in_order(first, second), resamples=resamples, seed=seed)
        case _:
            raise InvalidInput(
                f"expected two models that say the same sort of thing, got {_SORTS[type(first)]} and "
                f"{_SORTS[type(second)]}: choose models of the same task."
            )


_SORTS: Mapping[type[Judgement], str] = {
    ClassJudgement: "one label for a row",
    LabelJudgement: "several labels for a row",
    NumberJudgement: "a number for a row",
    SimilarityJudgement: "the similarity of a pair",
    RowScores: "answers, or ranks, that are scored",
    SpanJudgement: "spans of words",
    TagJudgement: "tags of words",
}


def _check_truth(first: NDArray[Any], second: NDArray[Any]) -> None:
    """Refuse two models of which each was judged by labels of its own; without as many rows, others say so."""
    if first.shape != second.shape or np.array_equal(first, second):
        return
    differing_N = (first != second).reshape(len(first), -1).any(axis=1)
    raise InvalidInput(
        f"the two models were judged by different labels in {int(differing_N.sum()):,} of {len(first):,} rows, the "
        f"first of them number {int(differing_N.argmax()) + 1}: each reads the columns of its training. Name those "
        "that both are to be judged by (on the command line --label, --score or --tags)."
    )


def _in_order(first: SpanJudgement | TagJudgement, second: SpanJudgement | TagJudgement) -> TaggingCounts:
    """The counts of the second, of the same truth, in the order of the labels of the first."""
    counts_N3L = second.counts.counts_N3L[:, :, _places(first.labels, second.labels)]
    _check_truth(first.counts.counts_N3L[:, _THERE], counts_N3L[:, _THERE])
    return TaggingCounts(counts_N3L, second.counts.words_N2)


def check_labels(first: Iterable[str], second: Iterable[str]) -> None:
    """Refuse two models that were trained on different labels.

    Raises:
        InvalidInput: They were; the message names some.
    """
    different = sorted(set(first) ^ set(second))
    if different:
        shown = ", ".join(map(repr, different[:5]))
        raise InvalidInput(f"the models were trained on different labels; only one of them knows {shown}.")


def _places(first: Sequence[str], second: Sequence[str]) -> list[int]:
    """Where the first model's labels stand among those of the second."""
    check_labels(first, second)
    places = {label: number for number, label in enumerate(second)}
    return [places[label] for label in first]
