"""Two trained models on the same labelled data."""

from typing import Protocol, runtime_checkable

from bothways.data import Source
from bothways.errors import InvalidInput
from bothways.evaluation import ComparisonReport, Outcomes, check_labels, compare
from bothways.evaluation.tag_schemes import parted
from bothways.tasks.sharing.multitask import MultiTask
from bothways.tasks.task import Task


@runtime_checkable
class Comparable(Protocol):
    """A task that can be set beside another model of it."""

    def outcomes(self, data: Source, *, show_progress: bool | None = None) -> Outcomes:
        """Return the model's results on labelled rows.

        Raises:
            InvalidInput: The data are not usable.
        """


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

    Each model reads the columns that it was trained on and states its own calibrated probabilities. Taggers of
    different schemes are compared by their spans alone: the accuracy of their words, which is of other tags, is left
    out.

    Args:
        first: One model.
        second: Another that says the same sort of thing, with the same labels in whatever order: an ensemble beside a
            member, a classifier from a few examples beside a fine-tuned one. Differences are second minus first.
        data: A file, or a list of mappings.
        resamples: Bootstrap resamples for the intervals.
        seed: Of resamples and permutations.
        show_progress: Force the progress bar on or off.

    Raises:
        InvalidInput: The models say different things or have different labels, or the data are not usable.
    """
    one, other = _comparable(first), _comparable(second)
    # Now, and not after minutes of predicting, nor as an error in the data.
    check_labels(_labels(first), _labels(second))
    outcomes = [task.outcomes(data, show_progress=show_progress) for task in (one, other)]
    return compare(*outcomes, resamples=resamples, seed=seed)


def _comparable(task: Task) -> Comparable:
    if isinstance(task, MultiTask):
        raise InvalidInput(f"a model of several tasks is compared in one of them: choose {', '.join(task.parts)}.")
    if not isinstance(task, Comparable):
        raise InvalidInput(f"expected models whose answers can be right or wrong, got a {type(task).__name__}.")
    return task


def _labels(task: Task) -> set[str]:
    """What a model's answers can be called; of spans without the prefixes, for schemes may differ."""
    facts = task.facts()
    labels = facts.get("labels", ())
    found = {str(label) for label in labels} if isinstance(labels, list | tuple) else set()
    return found if facts.get("scheme", "plain") == "plain" else {parted(label)[1] for label in found}
