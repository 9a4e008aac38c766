"""Functions for trained models of any task: comparison, operating points, out-of-domain evaluation."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, Unpack, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from bothways.choices import LabelValue
from bothways.confidence.confidence import Confidence
from bothways.data import Row, Source, class_label, read_rows
from bothways.data.columns import with_gaps, with_text
from bothways.data.label_rows import spelled
from bothways.errors import InvalidInput, did_you_mean
from bothways.evaluation.out_of_domain import out_of_domain_report
from bothways.evaluation.report import OperatingPoint, Report
from bothways.evaluation.thresholds import operating_point
from bothways.lazy import imported
from bothways.tasks.card import CONSTANTS
from bothways.tasks.heads.targets import without_thresholds
from bothways.tasks.outputs import (
    READING_OTHERS,
    AnyOutputs,
    TrainedHead,
    inputs_of_others,
    logits_of_all,
    score_inputs,
)
from bothways.tasks.scores import BaselineScores, ScoredRows, Scores, texts_read
from bothways.tasks.spec import DataArguments, PredictArguments
from bothways.tasks.task import AnyTask, InputT, PredictionT, Task, TrainedT

if TYPE_CHECKING:
    from bothways.evaluation.comparison import ComparisonReport


def baseline_scores(
    model: TrainedHead, rows: ScoredRows, show_progress: bool | None = None
) -> dict[str, BaselineScores]:
    """Return the scores of a model's baseline for rows that the model has scored; empty without a baseline.

    It is the best constant prediction if the base model of the training is not on this machine any more.
    """
    saved, remark = model.baseline, ""
    if saved is None:
        return {}
    if saved.base is not None:
        if (located := saved.base.located()) is not None:
            # Only this needs torch.
            opened: TrainedHead = imported("bothways.tasks.heads.linear_start:open_baseline")(saved, located, model)
            of = "evaluating the baseline"
            scores = score_inputs(opened, rows.inputs, description=of, show_progress=show_progress)
            return {"": BaselineScores(saved.name, partial(opened.outputs.outcomes, scores, rows.truth))}
        remark = f"The {saved.name} was not evaluated: its base model, {saved.base.name!r}, was not found or changed."
    if not saved.constant:
        return {}
    outputs, target = model.outputs.with_confidence(Confidence()), model.outputs.row_target
    if target.kind == "multi":
        outputs = replace(outputs, target=without_thresholds(target))  # type: ignore[type-var]  # each is a dataclass
    alike = [
        replace(each, logits_RC=np.tile(saved.constant, (len(each.logits_RC), 1)), features_LH=None)
        for each in rows.scores
    ]
    return {"": BaselineScores(CONSTANTS[target.kind], partial(outputs.outcomes, alike, rows.truth), remark)}


@runtime_checkable
class BinaryOutputs(Protocol):
    """Outputs that name the ``two_classes`` of a binary classifier; the tuple is empty for other models."""

    @property
    def two_classes(self) -> tuple[str, ...]: ...


def stated_probabilities(outputs: AnyOutputs, scores: Sequence[Scores[object]]) -> NDArray[np.float64]:
    """Return the label probabilities of scored rows (N, C), calibrated if the model is calibrated."""
    return outputs.row_target.probabilities(logits_of_all(scores), outputs.confidence.calibration)


def predict_or_none(
    model: Task[InputT, PredictionT, TrainedT],
    rows: Iterable[Row],
    *,
    show_progress: bool | None = None,
    **options: Unpack[PredictArguments],
) -> Iterator[PredictionT | None]:
    """Yield a prediction for each row, as `Task.predict_stream` does, but None for a row without a text."""
    read, has_text = model.fitted.columns.read, deque[bool]()  # for each row without a prediction yet

    def checked(row: Row) -> Row:
        read(row)
        return row

    answers = model.predict_stream(with_text(checked, rows, has_text), show_progress=show_progress, **options)
    return with_gaps(answers, has_text)


def compare(
    first: AnyTask,
    second: AnyTask,
    data: Source,
    *,
    resamples: int = 1000,
    seed: int = 0,
    show_progress: bool | None = None,
    **options: Unpack[DataArguments],
) -> ComparisonReport:
    """Return metrics of two models, their differences with paired intervals, and significance tests.

    Each model reads the columns that it was trained on, and uses its own calibrated probabilities. Taggers with
    different schemes are compared only by their spans, not by the accuracy of word tags.

    Args:
        first: A model.
        second: A model with the same labels in any order, such as an ensemble or another training run. Differences
            are the second's metrics minus the first's.
        data: Labelled rows, or their file.
        resamples: Bootstrap resamples for the intervals.
        seed: Seed of resamples and permutations.
        show_progress: Force the progress bar on or off.
        options: Columns by their names (default: those of each training), and the task's ``spec.data_options``.

    Raises:
        InvalidInput: The models have different tasks or labels, or the data are not usable.
    """
    from bothways.evaluation import comparison

    for model in (first, second):
        match model:
            case Task(spec=spec) if spec.comparable:
                pass
            case _:
                kind = type(model).__name__
                raise InvalidInput(f"expected models with right or wrong predictions, got a {kind}: use evaluate.")
    # Checked before predicting, which may take minutes.
    comparison.check_labels(first.fitted.outputs.comparable, second.fitted.outputs.comparable)
    rows = list(read_rows(data))
    read = [each._compared(rows, options) for each in (first, second)]
    kept = set.intersection(*({row.where for row in own} for own, _, _ in read))
    if not kept:
        raise InvalidInput("all rows are training rows of one of the models: expected some that are not.")
    ours, theirs = (
        model._scored([row for row in own if row.where in kept], given, seed, show_progress)
        for model, (own, _, given) in zip((first, second), read, strict=True)
    )
    one, other = first.fitted.outputs, second.fitted.outputs
    report = comparison.compare(
        one.outcomes(ours.scores, ours.truth),
        other.outcomes(theirs.scores, theirs.truth),
        resamples=resamples,
        seed=seed,
    )
    return replace(report, shared=(read[0][1].get(""), read[1][1].get("")))


def operating_points(
    model: AnyTask,
    rows: ScoredRows,
    *,
    at_precision: float | None = None,
    at_recall: float | None = None,
    label: LabelValue | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[OperatingPoint, ...]:
    """Return the highest recall at a minimum precision, and the highest precision at a minimum recall.

    Args:
        model: A binary classifier.
        rows: Rows that the model has scored.
        at_precision: Minimum precision.
        at_recall: Minimum recall.
        label: The positive class. Default: the one with fewer rows.
        resamples: Bootstrap resamples for the intervals.
        seed: Seed of the bootstrap.

    Raises:
        InvalidInput: The model is not binary, has no such class, or one of its classes has no rows.
    """
    names, labels = check_class(model, label), model.labels
    rows_C = np.bincount(rows.truth, minlength=2)
    number = int(rows_C[1] <= rows_C[0]) if label is None else names.index(class_label(label))
    probability_N = stated_probabilities(model.fitted.outputs, rows.scores)[:, number]
    minima = [{"precision": at_precision}] * (at_precision is not None)
    minima += [{"recall": at_recall}] * (at_recall is not None)
    return tuple(
        operating_point(labels[number], rows.truth == number, probability_N, **each, resamples=resamples, seed=seed)
        for each in minima
    )


def check_class(model: AnyTask, label: LabelValue | None = None) -> tuple[str, ...]:
    """Return the names of the two classes of a binary classifier.

    Raises:
        InvalidInput: The model is not a binary classifier, or has no class of this name.
    """
    outputs = model.fitted.outputs
    names = outputs.two_classes if isinstance(outputs, BinaryOutputs) else ()
    if not names:
        count = len(outputs.labels)
        has = f"has {count} classes" if count > 2 else "is not one"
        raise InvalidInput(f"precision and recall at a threshold need a binary classifier; {model.name!r} {has}.")
    name = names[0] if label is None else class_label(label)
    if name not in names:
        raise InvalidInput(
            f"expected the class {' or '.join(spelled(each, [name]) for each in names)}, got {spelled(name, names)}."
            f"{did_you_mean(name, names)}"
        )
    return names


def out_of_domain(
    model: AnyTask,
    in_domain: ScoredRows,
    others: Source,
    *,
    resamples: int = 1000,
    seed: int = 0,
    show_progress: bool | None = None,
) -> Report:
    """Report how well a model separates in-domain from out-of-domain rows.

    Args:
        model: A classifier with an out-of-domain detector.
        in_domain: In-domain rows that the model has scored.
        others: Out-of-domain rows; their labels are not read.
        resamples: Bootstrap resamples for the intervals.
        seed: Seed of the bootstrap.
        show_progress: Force the progress bar on or off.

    Raises:
        NotCalibrated: The model has no detector.
        InvalidInput: The data are not usable.
    """
    inputs, outputs = inputs_of_others(model.fitted, model.name, others), model.fitted.outputs
    scores = score_inputs(model.fitted, inputs, description=READING_OTHERS, show_progress=show_progress)
    found = outputs.confidence.detector(model.name)
    pairs = (found.detector.score(outputs.evidence(each)) for each in (in_domain.scores, scores))
    report = out_of_domain_report(*pairs, threshold=found.threshold, resamples=resamples, seed=seed)
    return replace(report, tokens_read=texts_read(each.read for each in scores))
