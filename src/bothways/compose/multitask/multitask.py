"""Several tasks above one encoder: sentiment and topic of a text, from one pass."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, Unpack

from bothways.checkpoints import PretrainedEncoder
from bothways.checkpoints.schema import StoredTasks
from bothways.choices import Merge
from bothways.compose.multitask.data import TaskData
from bothways.compose.multitask.files import check_names, read_parts, write_parts
from bothways.compose.multitask.sampling import Proportional, Sampling
from bothways.compose.multitask.shared_objective import SharedHeads, SharedObjective
from bothways.compose.multitask.trained import MultiPrediction, MultiReport, SharedColumns, TrainedTasks
from bothways.data import Source
from bothways.errors import InvalidInput, NotFitted, UnreadColumn
from bothways.tasks.columns import RawTextColumns
from bothways.tasks.head import TrainedHead, TrainingData
from bothways.tasks.head_task import HeadTask
from bothways.tasks.label_options import LabelOpening
from bothways.tasks.learning import Preparation, run_training
from bothways.tasks.merging import check_merge
from bothways.tasks.opening import OpenedModel, OpenOptions, open_model
from bothways.tasks.predictor import Predictor
from bothways.tasks.registry import task_class
from bothways.tasks.spec import TaskSpec
from bothways.tasks.task import TRAINING
from bothways.training.options import TrainingArguments, TrainingOptions
from bothways.training.record import TrainingRecord

MULTITASK = TaskSpec(
    name="multitask",
    home="bothways.compose.multitask.multitask:MultiTask",
    columns=SharedColumns(),  # type: ignore[arg-type]
    summary="Fine-tune one encoder with a head for each of several tasks.",
    example={"text": "Lakers win in overtime", "sentiment": "glad", "topic": "sports"},
)


class MultiTask(Predictor[str | tuple[str, str], MultiPrediction, TrainedTasks]):
    """Fine-tunes one encoder with a head for each of several tasks, and asks all of them at once.

    Tasks are any with a head above the encoder that read the same kind of input. Where one of them tags words, all of
    them read a text's words with single spaces between them, in training and in use, so that one pass serves all.

    >>> both = MultiTask.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> both.fit({"sentiment": TaskData("s.jsonl"), "topic": TaskData("t.jsonl")})  # doctest: +SKIP
    >>> both.predict("Lakers win in overtime")["topic"].label  # doctest: +SKIP
    'sports'
    """

    spec = MULTITASK

    def __init__(self, opened: OpenedModel, fitted: TrainedTasks | None = None) -> None:
        self._opened = opened
        self._fitted = fitted

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | Path, *, merge: Merge | None = None, **options: Unpack[OpenOptions]
    ) -> Self:
        """Open an encoder to fine-tune, or a trained model to use.

        Args:
            name_or_path: A folder or a name, see `bothways.load`.
            merge: How the logits of a long text's windows become one, see `TextClassifier.from_pretrained`; not by
                attention, which each task would have to learn for itself.
            options: How the checkpoint is found, where it runs, and how texts are read; see
                `bothways.tasks.opening.OpenOptions`.

        Raises:
            InvalidInput: An option is out of its range.
            CorruptCheckpoint: A file is damaged.
        """
        opened = open_model(name_or_path, MULTITASK.name, **options)
        ours = opened.trained_for == MULTITASK.name
        stored = StoredTasks.of(opened.extras) if ours else None
        chosen = check_merge(merge or (stored and stored.merge) or "weighted_mean")
        if chosen == "attention":
            raise InvalidInput("several tasks above one encoder merge windows by a fixed rule, not by attention.")
        opened = replace(opened, options=LabelOpening(merge=chosen))
        return cls(opened, TrainedTasks.of(opened, read_parts(opened, stored)) if stored else None)

    @property
    def model(self) -> PretrainedEncoder:
        """The encoder and its tokenizer."""
        return self._opened.model

    @property
    def name(self) -> str:
        """The encoder's."""
        return self.model.name

    @property
    def merge(self) -> Merge:
        """How the logits of a long text's windows become one."""
        merge: Merge = self._opened.options.merge
        return merge

    @property
    def parts(self) -> dict[str, HeadTask[Any, Any]]:
        """The tasks by name, each a model of its own above the shared encoder; empty before a fit."""
        fitted = self._fitted
        return {} if fitted is None else {name: _part(each) for name, each in fitted.parts.items()}

    @property
    def columns(self) -> Any:  # noqa: ANN401 (of texts, or what the tasks read)
        """Where inputs stand; of texts, those of the first task where they learnt from different ones."""
        columns = self._columns()
        return RawTextColumns(columns.text[0]) if columns.own is None else columns.own

    @property
    def told_apart(self) -> bool:
        """Whether the tasks have columns of their own for what is right, so that rows can be right for all at once."""
        return self.fitted.outputs.told_apart

    def part(self, name: str) -> Any:  # noqa: ANN401 (a model of its task)
        """One of the tasks by itself, which can be asked, evaluated and saved like any model of its task.

        Raises:
            NotFitted: Nothing was trained yet.
            InvalidInput: There is no such task.
        """
        parts = self.fitted.parts
        if name not in parts:
            raise InvalidInput(f"this model has no task {name!r}; its tasks are {', '.join(parts)}.")
        return _part(parts[name])

    def with_columns(self, **names: Any) -> Self:  # noqa: ANN401 (names of columns)
        """Return the same model, all tasks of which read the text from this column, or these.

        Raises:
            UnreadColumn: They read no such part of a row.
        """
        fitted = self.fitted
        if fitted.columns.own is None and names.keys() - {"text"}:
            raise UnreadColumn(f"this model reads no {next(iter(names.keys() - {'text'}))!r} of a row. It reads: text.")
        if fitted.columns.own is not None:
            return self._with(
                replace(fitted, columns=replace(fitted.columns, own=replace(fitted.columns.own, **names)))
            )
        text = names.get("text")
        texts = fitted.columns.text if text is None else ((text,) if isinstance(text, str) else tuple(text),)
        return self._with(replace(fitted, columns=replace(fitted.columns, text=texts)))

    def fit(
        self,
        tasks: Mapping[str, TaskData],
        *,
        sampling: Sampling = Proportional(),  # noqa: B008 (a value that does not change)
        **options: Unpack[TrainingArguments],
    ) -> TrainingRecord:
        """Fine-tune on all tasks, keep a good epoch, and calibrate each.

        Kept is the latest epoch whose mean of the tasks' scores is within a standard error of the best. A score is
        accuracy, F1 of labels or of spans, or for numbers the squared error as a share of the variance of those learnt
        from. A task that was there before under the same name and with the same labels goes on with its head.

        Args:
            tasks: What each task learns from, by its name.
            sampling: How the updates of an epoch are shared among the tasks; ``batch_size`` is that of each update.
            options: Of the training, see `bothways.training.options.TrainingOptions`.

        Raises:
            InvalidInput: The data or an option is not usable; the message names task and row.
        """
        for name in options:
            if name not in TRAINING:
                raise TypeError(
                    f"MultiTask.fit() got an unexpected keyword argument {name!r}. Known are: sampling, "
                    f"{', '.join(TRAINING)}."
                )
        training = TrainingOptions(**options)
        check_names(tasks)
        opened = self._opened.for_training(resumed=training.resume)
        ready = {name: self._prepared(name, data, opened, tasks, training) for name, data in tasks.items()}
        objective = SharedObjective(
            SharedHeads(opened.model.encoder, [each.objective.model.head for each in ready.values()]),
            {name: each.objective for name, each in ready.items()},
            sampling,
            seed=training.seed,
            units={name: each.unit for name, each in ready.items()},
        )
        record = run_training(objective, opened.model, training)
        if not record.finished_no_epoch:
            fitted = TrainedTasks.of(opened, {name: each.finish(record) for name, each in ready.items()})
            self._opened, self._fitted = opened, fitted
        return record

    def evaluate(  # type: ignore[override]
        self, data: Source, *, resamples: int = 1000, seed: int = 0, show_progress: bool | None = None
    ) -> MultiReport:
        """Return metrics of all tasks on inputs that have a label for each of them, in columns of their own.

        For data with the labels of one task ask that one: ``part(name).evaluate(data)``.

        Args:
            data: A file, or rows.
            resamples: Bootstrap resamples for the intervals.
            seed: Of the bootstrap.
            show_progress: Force the progress bar on or off.

        Raises:
            NotFitted: Nothing was trained yet.
            InvalidInput: Two tasks have their labels in the same column, a row has several texts, or the data are not
                usable.
        """
        rows = self.score(data, show_progress=show_progress)
        return self.fitted.outputs.report(rows.scores, rows.truth, resamples=resamples, seed=seed)  # type: ignore[arg-type]

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the encoder and all heads into one folder, whole or not at all.

        The first head stands where the ecosystem looks for one; see `bothways.compose.multitask.files`.

        Raises:
            NotFitted: Nothing was trained yet.
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        extras = {"task": MULTITASK.name, **self._opened.stored_reading(), "merge": self.merge}
        write_parts(folder, self._opened, self.fitted.parts, extras, overwrite=overwrite)

    def _columns(self) -> SharedColumns:
        return SharedColumns() if self._fitted is None else self._fitted.columns

    def _not_fitted(self) -> NotFitted:
        return NotFitted(f"{self.model.name!r} has no trained tasks yet: call fit first.")

    def _prepared(
        self,
        name: str,
        data: object,
        opened: OpenedModel,
        tasks: Mapping[str, TaskData],
        training: TrainingOptions,
    ) -> Preparation[Any, TrainedHead]:
        """A task that is ready to be trained.

        Raises:
            InvalidInput: The data or an option is not usable; the message names the task and the row.
        """
        try:
            if not isinstance(data, TaskData):
                raise InvalidInput(
                    f"its data must be a TaskData or a TaggingData, but they are of type {type(data).__name__}: a file "
                    "is given as TaskData(file)."
                )
            kind = task_class(data.spec)
            if not issubclass(kind, HeadTask):
                raise InvalidInput(f"its task must be one with a head above the encoder, but it is {data.spec.name}.")
            before = None if self._fitted is None else self._fitted.parts.get(name)
            if before is not None and type(before.outputs) is not kind.outputs_type:
                before = None
            own = _reading(opened, kind.outputs_type, tasks)
            task: HeadTask[Any, Any] = kind(own, before)
            return task.prepare(own, TrainingData(data.train, data.validation), data.options, training)
        except InvalidInput as error:
            raise type(error)(f"task {name!r}: {error}") from error


def _reading(opened: OpenedModel, outputs: Any, tasks: Mapping[str, TaskData]) -> OpenedModel:  # noqa: ANN401 (a type)
    """How a task reads texts: as words where some task tags them."""
    kinds = [task_class(data.spec) for data in tasks.values() if isinstance(data, TaskData)]
    tags = any(issubclass(kind, HeadTask) and kind.outputs_type.reads_words for kind in kinds)
    return opened.as_words() if tags and not outputs.reads_words else opened


def _part(part: TrainedHead) -> HeadTask[Any, Any]:
    """A task as a model of its own."""
    kind: type[HeadTask[Any, Any]] = task_class(part.spec)
    return kind(part.opened, part)
