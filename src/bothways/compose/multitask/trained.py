"""Several heads above one encoder: what they read, their scores from one pass, and what these mean.

Shapes: K numbers that all heads give for a window, or for each of its tokens.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from bothways.compose.multitask.shared_objective import SharedHeads
from bothways.confidence.confidence import Confidence
from bothways.data import Example, Row, Source, read_rows
from bothways.errors import InvalidInput, UnreadColumn
from bothways.evaluation import TextsRead
from bothways.inference import TextRows, TokenRows
from bothways.tasks.columns import JointColumns, column_names, renamed
from bothways.tasks.head import TrainedHead, rows_of_inputs
from bothways.tasks.opening import OpenedModel
from bothways.tasks.outputs import Rows
from bothways.tasks.scores import Scores, TokensRead, texts_read
from bothways.text import Words


@dataclass(frozen=True, slots=True, eq=False)
class TaskScores(Scores[None]):
    """The scores of each task for one input, from one pass of the encoder."""

    tasks: Mapping[str, Scores[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MultiPrediction:
    """A prediction of each task, by name.

    Attributes:
        predictions: By task; each says how much of the input was read.
    """

    predictions: Mapping[str, Any]

    def __getitem__(self, task: str) -> Any:  # noqa: ANN401 (which of them it is, the task says)
        """That of one task."""
        return self.predictions[task]

    def to_dict(self) -> dict[str, object]:
        """As JSON values: an object for each task."""
        return {name: each.to_dict() for name, each in self.predictions.items()}


@dataclass(frozen=True, slots=True)
class MultiReport:
    """A report of each task, by name.

    Attributes:
        reports: By task.
        reading: How much of the inputs was read.
    """

    reports: Mapping[str, Any]
    reading: TextsRead

    def __getitem__(self, task: str) -> Any:  # noqa: ANN401 (which of them it is, the task says)
        """That of one task."""
        return self.reports[task]

    def to_dict(self) -> dict[str, object]:
        """As JSON values: an object for each task, and how texts were read."""
        return {**{name: each.to_dict() for name, each in self.reports.items()}, "reading": self.reading.to_dict()}

    def summary(self) -> str:
        """A short table for each task."""
        tables = [f"{name}: {each.summary()}" for name, each in self.reports.items()]
        return "\n\n".join([*tables, *([self.reading.summary()] if self.reading.summary() else [])])


@dataclass(frozen=True, slots=True)
class SharedColumns(JointColumns):
    """Where the inputs of tasks stand that are asked at once.

    Tasks that learnt from different columns answer for whichever a row has; where a task reads words and a row has
    words, all read these.

    Attributes:
        each: Columns of each task by its name.
        of_words: Names of the tasks that read the words of a text.
    """

    each: Mapping[str, Any]
    of_words: frozenset[str]

    @classmethod
    def of(cls, parts: Mapping[str, TrainedHead]) -> "SharedColumns":
        """Return the columns that tasks learnt from."""
        of_words = frozenset(name for name, part in parts.items() if part.outputs.reads_words)
        return cls({name: part.columns for name, part in parts.items()}, of_words)

    @property
    def plain(self) -> list[Any]:
        """Columns of the tasks that read inputs as they are."""
        return [own for name, own in self.each.items() if name not in self.of_words]

    @property
    def words(self) -> list[Any]:
        """Columns of the tasks that read words."""
        return [own for name, own in self.each.items() if name in self.of_words]

    @property
    def first(self) -> Any:  # noqa: ANN401 (the task's own)
        """Columns of the first task that reads inputs as they are, or else of the first."""
        return (self.plain or self.words)[0]

    @property
    def reader(self) -> Any:  # noqa: ANN401 (the task's own)
        """Columns of a task whose inputs all of them can read.

        Raises:
            InvalidInput: Two tasks read words of different columns.
        """
        found = {own.input_columns for own in self.words}
        if len(found) > 1:
            raise InvalidInput(
                f"the tasks read words of several columns, {', '.join(sorted(map('+'.join, found)))}, and one pass "
                "reads one of them. Ask one task: part(name), or --task on the command line."
            )
        return (self.words or self.plain)[0]

    @property
    def one(self) -> str:
        """What a single input is called."""
        return str(self.first.one)

    @property
    def names(self) -> tuple[str, ...]:
        """Parts of a row that a task reads."""
        return tuple(dict.fromkeys(name for own in self.each.values() for name in column_names(own)))

    @property
    def told_apart(self) -> bool:
        """Whether the tasks have columns of their own for what is right, so that rows can be right for all at once."""
        return len({own.truth for own in self.each.values()}) == len(self.each)

    def renamed(self, names: Mapping[str, object]) -> "SharedColumns":
        """Return the same, with these columns for all tasks that read such a part of a row.

        Raises:
            UnreadColumn: None reads such a part.
        """
        for name in names:
            if name not in self.names:
                raise UnreadColumn(f"this model reads no {name!r} of a row. It reads: {', '.join(self.names)}.")
        each = {
            task: renamed(own, {name: value for name, value in names.items() if name in column_names(own)})
            for task, own in self.each.items()
        }
        return replace(self, each=each)

    def read(self, row: Row) -> Any:  # noqa: ANN401 (what the tasks read)
        """Return the input of a row.

        Raises:
            InvalidInput: There is none, or there are several.
        """
        reader = self.reader
        if self.words and (not self.plain or _holds(row, reader)):
            return reader.read(row)
        there = [own for own in self.plain if _holds(row, own)] or self.plain[:1]
        value, *others = (own.read(row) for own in there)
        if any(other != value for other in others):
            found = " and ".join(dict.fromkeys("+".join(own.input_columns) for own in there))
            raise InvalidInput(
                f"{row.where} has several texts, in the columns {found}, and one pass reads one. Name the column that "
                "all tasks are to read, leave the others out, or ask one task: part(name), or --task on the command "
                "line."
            )
        return reader.check(row.number - 1, value)

    def check(self, number: int, value: object) -> Any:  # noqa: ANN401 (as above)
        """Return a value of the caller's as an input."""
        return self.reader.check(number, value)

    def is_one(self, value: object) -> bool:
        """Whether it is a single input."""
        return bool(self.first.is_one(value))

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """Return rows for texts typed on a command line."""
        return list(self.first.rows_of(texts))

    def own_rows(self, name: str, rows: Sequence[Row], values: Sequence[Any]) -> Sequence[Row]:
        """Return rows in which one of the tasks finds the inputs that all of them read."""
        if name in self.of_words:
            return rows
        own, found = self.each[name], []
        for row, value in zip(rows, values, strict=True):
            made = own.labelled_row(_as_given(value), None)
            found.append(replace(row, values={**row.values, **{part: made[part] for part in own.input_columns}}))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class MultiOutputs:
    """What the scores of several tasks mean.

    Attributes:
        parts: The tasks by name.
    """

    parts: Mapping[str, TrainedHead]

    labels: ClassVar[tuple[str, ...]] = ()
    confidence: ClassVar[Confidence] = Confidence()

    def decide(self, scores: Iterable[TaskScores], options: object = None) -> Iterator[MultiPrediction]:
        """Yield the predictions of all tasks."""
        del options
        for each in scores:
            decided = {name: next(part.outputs.decide([each.tasks[name]])) for name, part in self.parts.items()}
            yield MultiPrediction(decided)

    def read(self, data: Source, columns: SharedColumns, options: object = None) -> list[Example[Any]]:
        """Return inputs, each with the labelled example that it is to every task.

        Raises:
            InvalidInput: Two tasks have their labels in the same column, or a row has several texts.
        """
        del options
        if not columns.told_apart:
            truths = ", ".join(own.truth for own in columns.each.values())
            raise InvalidInput(
                f"the labels of the tasks {', '.join(self.parts)} stand in the columns {truths}, and a row has one "
                "label in a column. Say which task to evaluate: part(name), or on the command line --task "
                f"{next(iter(self.parts))}."
            )
        rows = list(read_rows(data))
        values = [columns.read(row) for row in rows]
        own = {
            name: part.outputs.read(columns.own_rows(name, rows, values), columns.each[name])
            for name, part in self.parts.items()
        }
        return [
            Example(value, {name: listed[place] for name, listed in own.items()}, row.number, row.where)
            for place, (row, value) in enumerate(zip(rows, values, strict=True))
        ]

    def encode(self, examples: Sequence[Example[Any]]) -> dict[str, Any]:
        """Return the truth of each task."""
        return {
            name: part.outputs.encode([example.label[name] for example in examples])
            for name, part in self.parts.items()
        }

    @property
    def comparable(self) -> tuple[str, ...]:
        """Nothing: a model of several tasks is compared in one of them."""
        raise InvalidInput(f"a model of several tasks is compared in one of them: choose {', '.join(self.parts)}.")

    def report(
        self,
        scores: Sequence[Scores[Any]],
        truth: Mapping[str, Any],
        calibrated: bool | None,
        resamples: int,
        seed: int,
    ) -> MultiReport:
        """Return the metrics of each task."""
        reports = {}
        for name, part in self.parts.items():
            own = [each.tasks[name] for each in scores if isinstance(each, TaskScores)]
            outcomes = replace(part.outputs.outcomes(own, truth[name], calibrated=calibrated), tokens_read=None)
            reports[name] = outcomes.report(resamples=resamples, seed=seed)
        return MultiReport(reports, texts_read(each.read for each in scores))


@dataclass(frozen=True, slots=True, eq=False)
class TrainedTasks:
    """Several heads above one encoder: an immutable value.

    Attributes:
        opened: The encoder.
        parts: The tasks by name.
        columns: Where their inputs stand.
    """

    opened: OpenedModel
    parts: Mapping[str, TrainedHead]
    columns: SharedColumns

    @property
    def outputs(self) -> MultiOutputs:
        """What their scores mean."""
        return MultiOutputs(self.parts)

    @property
    def card(self) -> dict[str, Any]:
        """The card of each task."""
        return {name: dict(part.card) for name, part in self.parts.items()}

    def facts(self) -> dict[str, object]:
        """Return labels and calibration of each task, as JSON values."""
        return {"tasks": [{"task": name, **part.facts()} for name, part in self.parts.items()]}

    def scores(
        self,
        inputs: Iterable[Any],
        options: object = None,
        *,
        description: str = "predicting",
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[TaskScores]:
        """Yield the scores of all tasks, from one pass of the encoder."""
        del options
        parts = list(self.parts.values())
        reader = next((part for part in parts if part.outputs.reads_words), parts[0])
        layers = [part.outputs.layers for part in parts]
        shared = SharedHeads(self.opened.model.encoder, [part.model.head for part in parts], layers).eval()
        ends = np.cumsum(shared.widths).tolist()
        slices = [slice(*each) for each in zip([0, *ends[:-1]], ends, strict=True)]
        engine = reader.opened.engine(shared)
        run = partial(engine.run_tokens if shared.per_token else engine.run, total=total, description=description)
        for value, rows in rows_of_inputs(reader.outputs, inputs, partial(run, show_progress=show_progress)):
            scores = {
                name: part.outputs.scores(
                    value if part.outputs.reads_words else _as_given(value),
                    [_of_head(each, columns, per_token=part.outputs.per_token) for each in rows],
                )
                for (name, part), columns in zip(self.parts.items(), slices, strict=True)
            }
            windows = sum(len(each.rows if isinstance(each, TokenRows) else each.lengths) for each in rows)
            read = TokensRead(windows, sum(each.dropped_tokens for each in rows))
            yield TaskScores(np.zeros((0, 0)), None, read, tasks=scores)


def _of_head(rows: Rows, columns: slice, *, per_token: bool) -> Rows:
    """The rows of one head, which has these columns of those of all heads."""
    if isinstance(rows, TextRows):
        return replace(rows, rows_WK=rows.rows_WK[:, columns])
    if per_token:
        return replace(rows, rows=tuple(each[:, columns] for each in rows.rows))
    # A head that reads whole windows has its numbers at their first token.
    lengths = tuple(map(len, rows.rows))
    return TextRows(np.stack([each[0, columns] for each in rows.rows]), lengths, rows.dropped_tokens)


def _as_given(value: Any) -> Any:  # noqa: ANN401 (what a task reads)
    """An input as tasks know it that do not read words."""
    return value.text if isinstance(value, Words) else value


def _holds(row: Row, columns: Any) -> bool:  # noqa: ANN401 (the task's own)
    """Whether a row has an input in these columns: a table has all columns in every row, and some are empty."""
    names = columns.input_columns
    return all(name in row.values for name in names) and any(row.values[name] not in (None, "") for name in names)
