"""Two trained models on the same labelled data."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from bothways.data import Source
from bothways.errors import InvalidInput
from bothways.evaluation import (
    ComparisonReport,
    compare_classifications,
    compare_labellings,
    compare_regressions,
    compare_row_scores,
)
from bothways.tasks.labelling.sequence import SequenceTask
from bothways.tasks.targets import MultiLabel, Regression, SingleLabel, Target
from bothways.tasks.task import Task


@runtime_checkable
class ScoresRows(Protocol):
    """A task whose metric is the mean of its rows' scores."""

    def row_scores(self, data: Source, *, show_progress: bool | None = None) -> tuple[str, NDArray[np.float64]]:
        """The metric's name, and the score of each row (N)."""


def compare_tasks(
    first: Task,
    second: Task,
    data: Source,
    *,
    resamples: int = 1000,
    seed: int = 0,
    show_progress: bool | None = None,
) -> ComparisonReport:
    """Metrics of both models, their difference with paired intervals, and tests of it.

    Each model reads the columns that it was trained on and states its own calibrated probabilities.

    Args:
        first: One model.
        second: Another of the same task, with the same labels in whatever order; differences are second minus first.
        data: A file, or a list of mappings.
        resamples: Bootstrap resamples for the intervals.
        seed: Of resamples and permutations.
        show_progress: Force the progress bar on or off.

    Raises:
        InvalidInput: The models are for different tasks or labels, or the data are not usable.
    """
    if isinstance(first, SequenceTask) and isinstance(second, SequenceTask):
        return _compare_targets(first, second, data, resamples=resamples, seed=seed, show_progress=show_progress)
    if type(first) is type(second) and isinstance(first, ScoresRows) and isinstance(second, ScoresRows):
        name, first_N = first.row_scores(data, show_progress=show_progress)
        _, second_N = second.row_scores(data, show_progress=show_progress)
        return compare_row_scores(name, first_N, second_N, resamples=resamples, seed=seed)
    raise InvalidInput(
        f"expected two models of the same task to compare, got a {type(first).__name__} and a {type(second).__name__}."
    )


def _compare_targets(
    first: SequenceTask[Any],
    second: SequenceTask[Any],
    data: Source,
    *,
    resamples: int,
    seed: int,
    show_progress: bool | None,
) -> ComparisonReport:
    target = first.labeller.target
    columns = _columns(target, second.labeller.target)
    first_NC, truth = first.stated(data, show_progress=show_progress)
    second_NC, _ = second.stated(data, show_progress=show_progress)
    options: Mapping[str, int] = {"resamples": resamples, "seed": seed}
    match target:
        case SingleLabel():
            return compare_classifications(truth, first_NC, second_NC[:, columns], **options)
        case MultiLabel():
            labels_NC = truth.astype(np.int64)
            return compare_labellings(labels_NC, first_NC, second_NC[:, columns], threshold=target.threshold, **options)
        case Regression():
            return compare_regressions(truth, first_NC[:, 0], second_NC[:, 0], **options)


def _columns(first: Target, second: Target) -> list[int]:
    """Where the first target's labels stand among those of the second.

    Raises:
        InvalidInput: They are of different kinds, or have different labels.
    """
    if first.kind != second.kind:
        raise InvalidInput(f"the models predict different things: {first.kind!r} and {second.kind!r} targets.")
    different = sorted(set(first.labels) ^ set(second.labels))
    if different:
        shown = ", ".join(map(repr, different[:5]))
        raise InvalidInput(f"the models were trained on different labels; only one of them knows {shown}.")
    return [second.labels.index(label) for label in first.labels]
