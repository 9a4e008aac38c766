"""A trained multi-task model: the heads' scores from one pass of the encoder, predictions and reports."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways.choices import Merge, Shared
from bothways.compose.multitask.columns import SharedColumns, as_given
from bothways.compose.multitask.files import part_folder, write_parts
from bothways.compose.multitask.shared_objective import SharedHeads
from bothways.confidence.confidence import Confidence
from bothways.data import Example, Source, read_rows
from bothways.data.known_rows import SharedRows
from bothways.errors import InvalidInput
from bothways.evaluation.report import Report
from bothways.inference import Rows, TextRows, TextRunner, TokenOutputs
from bothways.tasks.backend import Backend, stored_reading
from bothways.tasks.opening import with_weights
from bothways.tasks.outputs import TrainedHead
from bothways.tasks.scores import BaselineScores, ScoredRows, Scores, TokensRead, texts_read
from bothways.tasks.spec import AlikeLabelData, options_of, reading_options
from bothways.tasks.torch_backend import TorchBackend
from bothways.text.windows import Text, TextsRead

TaskExample: TypeAlias = Example[dict[str, Example[object]]]
"""An input, with the labelled example of each task that has a label, by name."""


@dataclass(frozen=True, slots=True, eq=False)
class TaskTruth:
    """The encoded labels of one task, and the indices of the inputs that have one."""

    places_N: NDArray[np.int64]
    truth: object


@dataclass(frozen=True, slots=True, eq=False)
class TaskScores(Scores[None]):
    """The scores of each task for one input, from one pass of the encoder."""

    tasks: Mapping[str, Scores[object]] = field(default_factory=dict)

    @property
    def numbers(self) -> NDArray[np.float64]:
        """The logits of all tasks as one row."""
        return np.concatenate([each.numbers for each in self.tasks.values()])


@dataclass(frozen=True, slots=True)
class MultiPrediction:
    """The predictions of all tasks for one input.

    Attributes:
        predictions: The prediction of each task, by name.
    """

    predictions: Mapping[str, Any]

    def __getitem__(self, task: str) -> Any:  # noqa: ANN401 (a prediction of that task)
        return self.predictions[task]

    def to_dict(self) -> dict[str, object]:
        """Return JSON values: an object for each task."""
        return {name: each.to_dict() for name, each in self.predictions.items()}


@dataclass(frozen=True, slots=True)
class MultiReport:
    """The reports of all tasks on the same data.

    Attributes:
        reports: The report of each task, by name.
        tokens_read: Numbers of texts read in several windows, and of tokens not read.
    """

    reports: Mapping[str, Report]
    tokens_read: TextsRead

    def __getitem__(self, task: str) -> Report:
        return self.reports[task]

    def to_dict(self) -> dict[str, object]:
        """Return JSON values: an object for each task, and ``tokens_read``."""
        return {
            **{name: each.to_dict() for name, each in self.reports.items()},
            "tokens_read": self.tokens_read.to_dict(),
        }

    def summary(self) -> str:
        """Return a short table for each task, after warnings."""
        warnings = "\n".join(f"{name}: {line}" for name, each in self.reports.items() for line in each.warnings)
        tables = [f"{name}: {each.table()}" for name, each in self.reports.items()]
        return "\n\n".join(filter(None, [warnings, *tables, self.tokens_read.summary()]))


@dataclass(frozen=True, slots=True, eq=False)
class MultiOutputs:
    """The outputs of several tasks: predictions and reports."""

    parts: Mapping[str, TrainedHead]

    labels: ClassVar[tuple[str, ...]] = ()
    confidence: ClassVar[Confidence] = Confidence()

    def decide(self, scores: Sequence[TaskScores], options: object = None) -> list[MultiPrediction]:
        """Return the predictions of all tasks."""
        del options
        decided = [part.outputs.decide([each.tasks[name] for each in scores]) for name, part in self.parts.items()]
        return [MultiPrediction(dict(zip(self.parts, row, strict=True))) for row in zip(*decided, strict=True)]

    def read(self, data: Source, columns: SharedColumns, options: object = None) -> list[TaskExample]:
        """Return inputs with the labelled examples of all tasks; the tasks need different label columns.

        With ``unlabelled="drop"``, an input without a label of a task is left out of that task.
        """
        own_options = options_of(AlikeLabelData, options)
        reading = {"unlabelled": own_options.unlabelled, "normalise_labels": own_options.normalise_labels}
        if not columns.has_own_label_columns:
            truths = ", ".join(own.truth for own in columns.each.values())
            raise InvalidInput(
                f"the tasks {', '.join(self.parts)} read their labels from {truths}, but each task needs a label "
                "column of its own. Name the task to evaluate: part(name), or on the command line --task "
                f"{next(iter(self.parts))}."
            )
        rows = [replace(row, number=number) for number, row in enumerate(read_rows(data), start=1)]
        values = [columns.read(row) for row in rows]
        labels: list[dict[str, Example[object]]] = [{} for _ in rows]
        for name, part in self.parts.items():
            own, given = columns.own_rows(name, rows, values), reading_options(part.spec, **reading)
            for example in part.outputs.read(own, columns.each[name], given):
                labels[example.row - 1][name] = example
        examples = (
            Example(value, found, row.number, row.where) for row, value, found in zip(rows, values, labels, strict=True)
        )
        return [example for example in examples if example.label]

    def encode(self, examples: Sequence[TaskExample]) -> dict[str, TaskTruth]:
        """Return the encoded labels of each task."""
        found = {}
        for name, part in self.parts.items():
            places = [place for place, example in enumerate(examples) if name in example.label]
            truth: object = part.outputs.encode([examples[place].label[name] for place in places])
            found[name] = TaskTruth(np.array(places, np.int64), truth)
        return found

    @property
    def comparable(self) -> tuple[str, ...]:
        """Refuse: models of several tasks are compared task by task."""
        raise InvalidInput(f"models of several tasks are compared task by task: choose one of {', '.join(self.parts)}.")

    def report(self, rows: ScoredRows, calibrated: bool | None, resamples: int, seed: int) -> MultiReport:
        """Return the metrics of each task."""
        reports = {}
        for name, part in self.parts.items():
            own = rows_of_task(rows, name)
            outcomes = replace(part.outputs.outcomes(own.scores, own.truth, calibrated=calibrated), tokens_read=None)
            reports[name] = rows.report(outcomes, calibrated, resamples, seed, name)
        return MultiReport(reports, texts_read(each.read for each in rows.scores))


@dataclass(frozen=True, slots=True, eq=False)
class RowsOfTasks:
    """The training rows of each task; a shared row is left out of that task alone."""

    parts: Mapping[str, TrainedHead]

    def compared(self, rows: Sequence[TaskExample], shared: Shared) -> tuple[list[TaskExample], dict[str, SharedRows]]:
        """Compare the rows of each task with its training rows, see `bothways.data.known_rows.compared`."""
        labels: list[dict[str, Example[object]]] = [{} for _ in rows]
        found: dict[str, SharedRows] = {}
        for name, part in self.parts.items():
            own = [replace(row.label[name], row=place) for place, row in enumerate(rows) if name in row.label]
            kept, counts = part.known.compared(own, shared)
            if "" in counts:
                found[name] = counts[""]
            for example in kept:
                labels[example.row][name] = example
        examples = (replace(row, label=each) for row, each in zip(rows, labels, strict=True))
        return [example for example in examples if example.label], found

    def write(self, folder: Path) -> None:
        """Write the checksums of each task into the folder of its arrays."""
        for name, part in self.parts.items():
            part.known.write(part_folder(folder, name))


@dataclass(frozen=True, eq=False)
class TrainedTasks:
    """Several trained heads on one encoder: an immutable value."""

    backend: TorchBackend
    parts: Mapping[str, TrainedHead]
    columns: SharedColumns
    merge: Merge  # how the logits of a long text's windows are merged
    golden_inputs: tuple[object, ...] = ()  # held-out inputs for golden answers

    @property
    def outputs(self) -> MultiOutputs:
        """The outputs of the tasks."""
        return MultiOutputs(self.parts)

    @property
    def issues(self) -> tuple[object, ...]:
        """The confident mistakes of all tasks."""
        return tuple(each for part in self.parts.values() for each in part.issues)

    @property
    def card(self) -> dict[str, object]:
        """The card of each task."""
        return {name: dict(part.card) for name, part in self.parts.items()}

    @property
    def known(self) -> RowsOfTasks:
        """The training rows of each task."""
        return RowsOfTasks(self.parts)

    def facts(self) -> dict[str, object]:
        """Return labels and calibration of each task, as JSON values."""
        return {"tasks": [{"task": name, **part.facts()} for name, part in self.parts.items()]}

    @property
    def reader(self) -> TrainedHead:
        """The task that reads the inputs for all tasks: the first one that reads words, else the first task."""
        parts = list(self.parts.values())
        return next((part for part in parts if part.outputs.reads_words), parts[0])

    @cached_property
    def heads(self) -> SharedHeads:
        """The encoder and all heads as one module."""
        heads = [with_weights(part.backend, "use").head_model.head for part in self.parts.values()]
        layers = [part.outputs.layers for part in self.parts.values()]
        return SharedHeads(self.backend.model.encoder, heads, layers).eval()

    @cached_property
    def runner(self) -> TextRunner:
        """The runner that computes all heads in one pass of the encoder."""
        return with_weights(self.reader.backend, "use").text_runner(self.heads, per_token=self.heads.per_token)

    def read_texts(self, value: object) -> Iterable[tuple[Backend, Sequence[Text]]]:
        """Return the backend with the texts that it reads of an input."""
        return self.reader.read_texts(value)

    def score_blocks(self, inputs: Iterable[object], options: object = None) -> Iterator[list[TaskScores]]:
        """Yield the scores of all tasks in blocks, from one pass of the encoder."""
        del options
        for block in self.runner.blocks(inputs, self.reader.outputs.texts):
            yield [self._scores(value, rows) for value, rows in block]

    def score_baseline(self, rows: ScoredRows, show_progress: bool | None = None) -> dict[str, BaselineScores]:
        """Return the scores of the baseline of each task that has one."""
        found: dict[str, BaselineScores] = {}
        for name, part in self.parts.items():
            own = rows_of_task(rows, name)
            if not part.outputs.reads_words:
                own = replace(own, inputs=tuple(map(as_given, own.inputs)))
            found |= {f"{name}{key}": each for key, each in part.score_baseline(own, show_progress).items()}
        return found

    def _scores(self, value: object, rows: Sequence[Rows]) -> TaskScores:
        ends = np.cumsum(self.heads.widths).tolist()
        slices = [slice(*each) for each in zip([0, *ends[:-1]], ends, strict=True)]
        scores = {
            name: part.outputs.scores(
                value if part.outputs.reads_words else as_given(value),
                [_of_head(each, columns, per_token=part.outputs.per_token) for each in rows],
            )
            for (name, part), columns in zip(self.parts.items(), slices, strict=True)
        }
        windows = sum(len(each.rows if isinstance(each, TokenOutputs) else each.lengths) for each in rows)
        read = TokensRead(windows, sum(each.dropped_tokens for each in rows))
        return TaskScores(np.zeros((0, 0)), None, read, tasks=scores)

    def write(self, folder: Path) -> None:
        """Write the encoder and all heads into an existing folder."""
        extras = {"task": "multitask", **stored_reading(self.backend.reading), "merge": self.merge}
        write_parts(folder, self.backend, self.parts, extras)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "runner"}


def rows_of_task(rows: ScoredRows, task: str) -> ScoredRows:
    """Return the rows that have a label of a task."""
    known: TaskTruth = rows.truth[task]
    labelled = [rows.scores[place] for place in known.places_N]
    scores = tuple(each.tasks[task] for each in labelled if isinstance(each, TaskScores))
    inputs = tuple(rows.inputs[place] for place in known.places_N if rows.inputs)
    examples = tuple(rows.examples[place].label[task] for place in known.places_N if rows.examples)
    return ScoredRows(scores, known.truth, inputs, examples)


def _of_head(rows: Rows, columns: slice, *, per_token: bool) -> Rows:
    """Select the columns of one head from the outputs of all heads."""
    if isinstance(rows, TextRows):
        return replace(rows, rows_WK=rows.rows_WK[:, columns])
    if per_token:
        return replace(rows, rows=tuple(each[:, columns] for each in rows.rows))
    # A head that scores whole windows has its outputs at their first token.
    lengths = tuple(map(len, rows.rows))
    return TextRows(np.stack([each[0, columns] for each in rows.rows]), lengths, rows.dropped_tokens)
