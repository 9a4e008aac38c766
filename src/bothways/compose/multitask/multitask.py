"""Several tasks on one encoder: sentiment and topic of a text, from one pass."""

from collections.abc import Mapping
from pathlib import Path
from typing import Self, Unpack

from bothways.checkpoints import PretrainedEncoder
from bothways.checkpoints.schema import StoredTasks
from bothways.choices import Merge
from bothways.compose.multitask.columns import SharedColumns
from bothways.compose.multitask.data import Proportional, Sampling, TaskData
from bothways.compose.multitask.files import check_names, opened_beside, opened_for_parts, read_parts, write_parts
from bothways.compose.multitask.shared_objective import SharedHeads, SharedObjective
from bothways.compose.multitask.trained import MultiPrediction, MultiReport, TrainedTasks
from bothways.errors import InvalidInput, NotFitted, did_you_mean
from bothways.progress import reporting
from bothways.tasks.backend import OpenOptions
from bothways.tasks.columns import AnyColumns, TextColumns
from bothways.tasks.heads.training import HeadTraining, train_head
from bothways.tasks.outputs import FittedHead, check_merge
from bothways.tasks.predict import Predictor
from bothways.tasks.registry import task_class
from bothways.tasks.scores import ScoredRows
from bothways.tasks.spec import TaskSpec, TextInput
from bothways.tasks.splits import TrainingData
from bothways.tasks.task import HeadTask
from bothways.tasks.torch_backend import TorchBackend
from bothways.threads import loading
from bothways.training.loop import run_training
from bothways.training.options import TrainingArguments, TrainingOptions
from bothways.training.state import TrainingRecord

MULTITASK = TaskSpec(
    name="multitask",
    home="bothways.compose.multitask.multitask:MultiTask",
    columns=TextColumns(),
    input=TextInput,
    prediction="bothways.compose.multitask.trained:MultiPrediction",
    summary="Fine-tune one encoder with a head for each of several tasks.",
    example={"text": "Lakers win in overtime", "sentiment": "glad", "topic": "sports"},
    does="answer for several tasks at once",
)


class MultiTask(Predictor[str | tuple[str, str], MultiPrediction, TrainedTasks]):
    """Fine-tunes one encoder with a head for each of several tasks, which predict in one pass.

    Tasks are any with a head above the encoder that read the same kind of input. If one of them reads words, all of
    them read a text's words with single spaces between them, in training and in use, so that one pass serves all.

    >>> both = MultiTask.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> both.fit({"sentiment": TaskData("s.jsonl"), "topic": TaskData("t.jsonl")})  # doctest: +SKIP
    >>> both.predict("Lakers win in overtime")["topic"].label  # doctest: +SKIP
    'sports'
    """

    spec = MULTITASK

    def __init__(self, backend: TorchBackend, merge: Merge, fitted: TrainedTasks | None = None) -> None:
        self._untrained = backend
        self.merge: Merge = merge
        """The rule that merges the logits of a long text's windows."""
        self._fitted = fitted

    @classmethod
    @loading()
    def from_pretrained(
        cls, name_or_path: str | Path, *, merge: Merge | None = None, **options: Unpack[OpenOptions]
    ) -> Self:
        """Open an encoder to fine-tune, or a trained model to use.

        Args:
            name_or_path: A folder or a name, see `bothways.load`.
            merge: The rule that merges windows of long texts, see `bothways.tasks.classification.outputs`.
            options: Options for finding the checkpoint, its device and reading texts; see
                `bothways.tasks.backend.OpenOptions`.

        Raises:
            InvalidInput: An option is out of its range.
            CorruptCheckpoint: A file is damaged.
        """
        opened = TorchBackend.open(name_or_path, MULTITASK.name, **options)
        stored = StoredTasks.of(opened.extras) if opened.trained_for == MULTITASK.name else None
        chosen = check_merge(merge or (stored and stored.merge) or "weighted_mean")
        if stored is None:
            return cls(opened, chosen)
        opened = opened_for_parts(opened, stored)
        parts = read_parts(opened, stored, chosen)
        return cls(opened, chosen, TrainedTasks(opened, parts, SharedColumns.of(parts)))

    @property
    def backend(self) -> TorchBackend:
        """The opened encoder."""
        return self._untrained if self._fitted is None else self._fitted.backend

    @property
    def model(self) -> PretrainedEncoder:
        """The encoder and its tokenizer."""
        return self.backend.model

    @property
    def name(self) -> str:
        """The name of the encoder."""
        return self.model.name

    @property
    def parts(self) -> dict[str, HeadTask]:
        """The tasks by name, each a model of its own on the shared encoder; empty before a fit."""
        fitted = self._fitted
        return {} if fitted is None else {name: _part(each) for name, each in fitted.parts.items()}

    @property
    def columns(self) -> AnyColumns:
        """Columns of the first task that reads plain inputs; the default ones before a fit."""
        return self.spec.columns if self._fitted is None else self._fitted.columns.first

    @property
    def has_own_label_columns(self) -> bool:
        """True if each task has a label column of its own, so that a row can have the labels of all tasks."""
        return self.fitted.columns.has_own_label_columns

    def part(self, name: str) -> HeadTask:
        """Return one of the tasks as a model of its own.

        Raises:
            NotFitted: Nothing was trained yet.
            InvalidInput: There is no such task.
        """
        parts = self.fitted.parts
        if name not in parts:
            raise InvalidInput(
                f"this model has no task {name!r}; its tasks are {', '.join(parts)}.{did_you_mean(name, parts)}"
            )
        return _part(parts[name])

    def fit(
        self,
        tasks: Mapping[str, TaskData],
        *,
        sampling: Sampling = Proportional(),  # noqa: B008 (a value that does not change)
        **options: Unpack[TrainingArguments],
    ) -> TrainingRecord:
        """Fine-tune on all tasks, keep a good epoch, and calibrate each.

        The latest epoch is kept whose mean of the tasks' scores is within a standard error of the best. A score is
        accuracy, F1 of labels or of spans, or for numbers the squared error as a share of the variance of the training
        labels. A task that was trained before under the same name and with the same labels continues with its head.

        Args:
            tasks: The training data of each task, by its name.
            sampling: The share of each task in the updates of an epoch; ``batch_size`` is that of each update.
            options: Training options, see `bothways.training.options.TrainingOptions`.

        Raises:
            InvalidInput: The data or an option is not usable; the message names task and row.
        """
        known = TrainingArguments.__annotations__
        for name in options:
            if name not in known:
                raise TypeError(
                    f"MultiTask.fit() got an unexpected keyword argument {name!r}. Known are: sampling, "
                    f"{', '.join(known)}."
                )
        training = TrainingOptions(**options)
        kinds = _kinds(tasks)
        opened = self.backend.copy_for_training(resumed=training.resume)
        ready = {name: self._prepared(name, tasks[name], opened, kinds, training) for name in tasks}
        objectives = {name: each.objective for name, each in ready.items()}
        objective = SharedObjective(
            SharedHeads(opened.model.encoder, [each.model.head for each in objectives.values()]),
            objectives,
            sampling,
            seed=training.seed,
            units={name: each.unit for name, each in ready.items()},
        )
        record = run_training(objective, opened.model, training)
        if not record.finished_no_epoch:
            with reporting(training.show_progress):
                parts = {name: each.finish(record) for name, each in ready.items()}
            self._fitted = TrainedTasks(opened, parts, SharedColumns.of(parts))
        return record

    def report(  # type: ignore[override]
        self, rows: ScoredRows, *, calibrated: bool | None = None, resamples: int = 1000, seed: int = 0
    ) -> MultiReport:
        """Return the metrics of all tasks on scored rows, which have a label for each task.

        For data with the labels of one task use ``part(name).evaluate(data)``.
        """
        return self.fitted.outputs.report(rows.scores, rows.truth, calibrated, resamples, seed)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the encoder and all heads into one folder, whole or not at all.

        The first head is stored where other libraries look for one; see `bothways.compose.multitask.files`.

        Raises:
            NotFitted: Nothing was trained yet.
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        extras = {"task": MULTITASK.name, **self.backend.stored_reading(), "merge": self.merge}
        write_parts(folder, self.backend, self.fitted.parts, extras, overwrite=overwrite)

    def __repr__(self) -> str:
        if self._fitted is None:
            return super().__repr__()
        parts = ", ".join(f"{name}={part.spec.name}" for name, part in self._fitted.parts.items())
        return f"MultiTask({self.name!r}, {parts})"

    def _not_fitted(self) -> NotFitted:
        return NotFitted(f"{self.model.name!r} has no trained tasks yet: call fit first.")

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
        own = opened_beside(backend, kind, kinds.values(), self.merge)
        try:
            columns, options, _ = kind(own, before).fit_options(data.options)
            source = TrainingData(data.train, data.validation)
            return train_head(kind.spec, own, before, source, columns, options, training)
        except InvalidInput as error:
            raise type(error)(f"task {name!r}: {error}") from error


def _kinds(tasks: Mapping[str, TaskData]) -> dict[str, type[HeadTask]]:
    """Return the class of each task, after checking names, data and kinds of input."""
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
        each = ", ".join(f"{name} {kind.spec.columns.one}" for name, kind in kinds.items())
        raise InvalidInput(f"tasks above one encoder must read the same kind of input, got {each}.")
    return kinds


def _part(part: FittedHead) -> HeadTask:
    """Return a task as a model of its own."""
    kind: type[HeadTask] = task_class(part.spec)
    return kind(part.backend, part)
