"""Operating points of two-class models, and evaluation of out-of-domain detection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from bothways.data import Source
from bothways.errors import InvalidInput, did_you_mean
from bothways.evaluation.out_of_domain import out_of_domain_report
from bothways.evaluation.report import OperatingPoint, Report
from bothways.evaluation.thresholds import operating_point
from bothways.tasks.outputs import scores_of_others
from bothways.tasks.predict import AnyPredictor
from bothways.tasks.scores import ScoredRows, Scores, texts_read


@runtime_checkable
class BinaryOutputs(Protocol):
    """Outputs that may belong to a binary classifier.

    Attributes:
        two_classes: Names of the two classes of a binary classifier; else empty.
    """

    @property
    def two_classes(self) -> tuple[str, ...]: ...

    def class_probabilities(self, scores: Sequence[Scores[object]]) -> NDArray[np.float64]:
        """Return the class probabilities (N, C), calibrated if the model is."""


def operating_points(
    model: AnyPredictor,
    rows: ScoredRows,
    *,
    at_precision: float | None = None,
    at_recall: float | None = None,
    label: str | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[OperatingPoint, ...]:
    """Return the highest recall at a minimum precision, and the highest precision at a minimum recall.

    Args:
        model: A binary classifier.
        rows: Its scored rows.
        at_precision: Minimum precision.
        at_recall: Minimum recall.
        label: The positive class. Default: the one with fewer rows.
        resamples: Bootstrap resamples for the intervals.
        seed: Seed of the bootstrap.

    Raises:
        InvalidInput: The model is not binary, has no such class, or there are no rows of one.
    """
    names = check_class(model, label)
    rows_C = np.bincount(rows.truth, minlength=2)
    number = int(rows_C[1] <= rows_C[0]) if label is None else names.index(label)
    probability_N = model.fitted.outputs.class_probabilities(rows.scores)[:, number]
    minima = [{"precision": at_precision}] * (at_precision is not None)
    minima += [{"recall": at_recall}] * (at_recall is not None)
    return tuple(
        operating_point(names[number], rows.truth == number, probability_N, **each, resamples=resamples, seed=seed)
        for each in minima
    )


def check_class(model: AnyPredictor, label: str | None = None) -> tuple[str, ...]:
    """Return the names of the two classes of a binary classifier.

    Raises:
        InvalidInput: It is not one, or has no class of this name.
    """
    outputs = model.fitted.outputs
    names = outputs.two_classes if isinstance(outputs, BinaryOutputs) else ()
    if not names:
        count = len(outputs.labels)
        has = f"has {count} classes" if count > 2 else "is not one"
        raise InvalidInput(f"precision and recall at a threshold need a binary classifier; {model.name!r} {has}.")
    if label is not None and label not in names:
        raise InvalidInput(
            f"expected a class of {names[0]!r} and {names[1]!r}, got {label!r}.{did_you_mean(label, names)}"
        )
    return names


def out_of_domain(
    model: AnyPredictor,
    in_domain: ScoredRows,
    others: Source,
    *,
    resamples: int = 1000,
    seed: int = 0,
    show_progress: bool | None = None,
) -> Report:
    """Report how well a model separates rows of its domain from others.

    Args:
        model: A classifier with an out-of-domain detector.
        in_domain: Its scored rows of the domain.
        others: Out-of-domain rows; their labels are not read.
        resamples: Bootstrap resamples for the intervals.
        seed: Seed of the bootstrap.
        show_progress: Force the progress bar on or off.

    Raises:
        NotCalibrated: The model has no detector.
        InvalidInput: The data are not usable.
    """
    scores, outputs = scores_of_others(model.fitted, model.name, others, show_progress), model.fitted.outputs
    found = outputs.confidence.detector(model.name)
    pairs = (found.detector.score(outputs.evidence(each)) for each in (in_domain.scores, scores))
    report = out_of_domain_report(*pairs, threshold=found.threshold, resamples=resamples, seed=seed)
    return replace(report, tokens_read=texts_read(each.read for each in scores))
