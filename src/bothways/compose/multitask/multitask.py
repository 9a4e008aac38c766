"""Multi-task models: several tasks on one encoder, such as the sentiment and topic of a text, in one pass."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice, zip_longest
from operator import add
from typing import Unpack

from bothways.checkpoints.golden import MOST_INPUTS
from bothways.checkpoints.schema import StoredTasks
from bothways.choices import Merge
from bothways.compose.multitask.columns import SharedColumns, as_given
from bothways.compose.multitask.data import Proportional, Sampling, TaskData
from bothways.compose.multitask.files import check_names, opened_beside, opened_for_parts, read_parts
from bothways.compose.multitask.shared_objective import SharedHeads, SharedObjective
from bothways.compose.multitask.trained import MultiPrediction, MultiReport, TrainedTasks
from bothways.errors import InvalidInput, NotFitted, did_you_mean
from bothways.tasks.backend import Backend
from bothways.tasks.columns import AnyColumns, TextColumns, column_names
from bothways.tasks.heads.splits import TrainingData, split_fit_options
from bothways.tasks.heads.training import HeadTraining, train_head
from bothways.tasks.opening import with_weights
from bothways.tasks.outputs import TrainedHead
from bothways.tasks.registry import task_class
from bothways.tasks.scores import ScoredRows
from bothways.tasks.spec import AlikeLabelData, TaskSpec, TextInput, check_options, options_of
from bothways.tasks.task import HeadTask, Task
from bothways.tasks.torch_backend import TorchBackend
from bothways.training.loop import train
from bothways.training.options import TrainingArguments, TrainingOptions
from bothways.training.stages import measured, stages_of
from bothways.training.state import TrainingRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiTaskOpening:
    """Options of `MultiTask.from_pretrained`.

    Attributes:
        merge: How to merge the logits of a long text's windows. Default: as trained, else ``"weighted_mean"``.
    """

    merge: Merge | None = None

    def __post_init__(self) -> None:
        check_options(self)


MULTITASK = TaskSpec(
    name="multitask",
    home="bothways.compose.multitask.multitask:MultiTask",
    columns=TextColumns(),
    input=TextInput,
    prediction="bothways.compose.multitask.trained:MultiPrediction",
    summary="Fine-tune one encoder with a head for each of several tasks.",
    example={"text": "Lakers win in overtime", "sentiment": "glad", "topic": "sports"},
    does="answer for several tasks at once",
    open_options=MultiTaskOpening,
    data_options=AlikeLabelData,
    opener="bothways.compose.multitask.multitask:open_tasks",
)


class MultiTask(Task[str | tuple[str, str], MultiPrediction, TrainedTasks]):
    """One encoder with a head for each of several tasks; all tasks predict in one pass.

    All tasks must have a head above the encoder and read the same kind of input. If one task reads words, all tasks
    read texts as words joined by single spaces, in training and prediction, so that they can share the pass.

    >>> both = MultiTask.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> both.fit({"sentiment": TaskData("s.jsonl"), "topic": TaskData("t.jsonl")})  # doctest: +SKIP
    >>> both.predict("Lakers win in overtime")["topic"].label  # doctest: +SKIP
    'sports'
    """

    spec = MULTITASK

    @property
    def merge(self) -> Merge:
        """The rule that merges the logits of a long text's windows."""
        return _merge(self.backend) if self._fitted is None else self._fitted.merge

    @property
    def parts(self) -> dict[str, HeadTask]:
        """The tasks by name, each as a separate model on the shared encoder; empty before `fit`."""
        fitted = self._fitted
        return {} if fitted is None else {name: _part(each) for name, each in fitted.parts.items()}

    @property
    def columns(self) -> AnyColumns:
        """Columns of the first task that does not read words; the default columns before `fit`."""
        return self.spec.columns if self._fitted is None else self._fitted.columns.first

    def part(self, name: str) -> HeadTask:
        """Return one of the tasks as a separate model on the shared encoder.

        Raises:
            NotFitted: No task was trained yet.
            InvalidInput: There is no such task.
        """
        parts = self.fitted.parts
        if name not in parts:
            raise InvalidInput(
                f"this model has no task {name!r}; its tasks are {', '.join(parts)}.{did_you_mean(name, parts)}"
            )
        return _part(parts[name])

    def fit(  # type: ignore[override]  # the data of several tasks, by name
        self,
        tasks: Mapping[str, TaskData],
        *,
        sampling: Sampling = Proportional(),  # noqa: B008 (a value that does not change)
        **options: Unpack[TrainingArguments],
    ) -> TrainingRecord:
        """Fine-tune on all tasks, select an epoch, and calibrate each task.

        The last epoch whose mean score over the tasks is within one standard error of the best is kept. The score of a
        task is accuracy, F1 of labels or spans, or for regression the squared error divided by the variance of the
        training labels. A task trained before under the same name and with the same labels continues with its head.

        Args:
            tasks: The training data of each task, by its name.
            sampling: How the updates of an epoch are shared among the tasks; ``batch_size`` applies to each update.
            options: Training options, see `bothways.training.options.TrainingOptions`.

        Raises:
            InvalidInput: The data or an option is not usable; the message names the task and the row.
        """
        known = TrainingArguments.__annotations__
        for name in options:
            if name not in known:
                raise TypeError(
                    f"MultiTask.fit() got an unexpected keyword argument {name!r}. Known: sampling, {', '.join(known)}."
                )
        training = TrainingOptions(**options)
        kinds = _kinds(tasks)
        with stages_of(training) as times:
            record = self._trained(tasks, kinds, sampling, training)
        return measured(record, times, None if record.finished_no_epoch else self._fitted)

    def _trained(
        self,
        tasks: Mapping[str, TaskData],
        kinds: Mapping[str, type[HeadTask]],
        sampling: Sampling,
        training: TrainingOptions,
    ) -> TrainingRecord:
        opened = with_weights(self.backend, "train").copy_for_training(resumed=training.resume)
        ready = {name: self._prepared(name, tasks[name], opened, kinds, training) for name in tasks}
        objectives = {name: each.objective for name, each in ready.items()}
        objective = SharedObjective(
            SharedHeads(opened.model.encoder, [each.model.head for each in objectives.values()]),
            objectives,
            sampling,
            seed=training.seed,
            units={name: each.unit for name, each in ready.items()},
        )
        record = train(
            objective, training, opened.model, reads=lambda: reduce(add, (each.reads for each in ready.values()))
        )
        if not record.finished_no_epoch:
            parts = {name: each.finish(record) for name, each in ready.items()}
            # A text that one task held out may be a training row of another.
            learnt = {as_given(row.text) for each in ready.values() for row in each.data.examples}
            parts = {name: replace(part, golden_inputs=unlearnt(part, learnt)) for name, part in parts.items()}
            golden = tuple(islice(in_turn([part.golden_inputs for part in parts.values()]), MOST_INPUTS))
            self._fitted = TrainedTasks(opened, parts, SharedColumns.of(parts), self.merge, golden)
            self._opened = opened
        return record

    def _with_card(self, **entries: object) -> "MultiTask":
        """Return a copy of the model with more entries in the card of each task, as JSON values."""
        parts = {name: replace(each, card={**each.card, **entries}) for name, each in self.fitted.parts.items()}
        return self._with(replace(self.fitted, parts=parts))

    def _report(  # type: ignore[override]
        self, rows: ScoredRows, calibrated: bool | None, resamples: int, seed: int
    ) -> MultiReport:
        """Return the metrics of all tasks."""
        return self.fitted.outputs.report(rows, calibrated, resamples, seed)

    def __repr__(self) -> str:
        if self._fitted is None:
            return super().__repr__()
        parts = ", ".join(f"{name}={part.spec.name}" for name, part in self._fitted.parts.items())
        return f"MultiTask({self.name!r}, {parts})"

    def _not_fitted(self) -> NotFitted:
        return NotFitted(f"{self.name!r} has no trained tasks yet: call fit first.")

    def _prepared(
        self,
        name: str,
        data: TaskData,
        backend: TorchBackend,
        kinds: Mapping[str, type[HeadTask]],
        training: TrainingOptions,
    ) -> HeadTraining:
        before = None if self._fitted is None else self._fitted.parts.get(name)
        if before is not None and before.spec != data.spec:
            before = None
        kind = kinds[name]
        given = dict(data.options)
        labels = given.pop("labels", None) if "labels" in column_names(kind.spec.open_options) else None
        own = opened_beside(backend, kind, kinds.values(), self.merge, labels)
        try:
            columns, options, _ = split_fit_options(kind(own, before), given)
            source = TrainingData(data.train, data.validation)
            return train_head(kind.spec, own, before, source, columns, options, training)
        except InvalidInput as error:
            raise type(error)(f"task {name!r}: {error}") from error


def open_tasks(spec: TaskSpec, backend: Backend) -> TrainedTasks | None:
    """Return the trained tasks of a checkpoint; None if it is a plain encoder or a model of one task."""
    opened = with_weights(backend, "open as a model of several tasks")
    if opened.trained_for != spec.name:
        return None
    stored = StoredTasks.of(opened.files.extras)
    opened, merge = opened_for_parts(opened, stored), _merge(backend, stored.merge)
    parts = read_parts(opened, stored, merge)
    return TrainedTasks(opened, parts, SharedColumns.of(parts), merge)


def unlearnt(part: TrainedHead, learnt: Collection[object]) -> tuple[object, ...]:
    """Return the held-out inputs of a task that are training rows of no task."""
    return tuple(value for value in part.golden_inputs if as_given(value) not in learnt)


def in_turn(groups: Iterable[Sequence[object]]) -> Iterator[object]:
    """Yield the first item of each group, then the second ones, and so on, without repeats."""
    seen = set[object]()
    for row in zip_longest(*groups):
        for value in row:
            if value is not None and as_given(value) not in seen:
                seen.add(as_given(value))
                yield value


def _merge(backend: Backend, stored: Merge | None = None) -> Merge:
    return options_of(MultiTaskOpening, backend.options).merge or stored or "weighted_mean"


def _kinds(tasks: Mapping[str, TaskData]) -> dict[str, type[HeadTask]]:
    """Check the names of the tasks, their data and their kinds of input; return the class of each task."""
    check_names(tasks)
    kinds: dict[str, type[HeadTask]] = {}
    for name, data in tasks.items():
        if not isinstance(data, TaskData):
            raise InvalidInput(
                f"task {name!r}: expected its data as TaskData or TaggingData, got {type(data).__name__}. Write "
                "TaskData(file)."
            )
        kinds[name] = task_class(data.spec)
        if not data.spec.outputs:
            raise InvalidInput(
                f"task {name!r}: expected a task with a head above the encoder, got {data.spec.name}, which has none."
            )
    read = {(kind.spec.columns.one, kind.spec.cut) for kind in kinds.values()}
    if len(read) > 1:
        each = ", ".join(f"{kind.spec.columns.one} for {name}" for name, kind in kinds.items())
        raise InvalidInput(f"tasks above one encoder must read the same kind of input, got {each}.")
    return kinds


def _part(part: TrainedHead) -> HeadTask:
    kind: type[HeadTask] = task_class(part.spec)
    return kind(part.backend, part)
