"""Several heads above one encoder: what they read, their scores from one pass, and what these mean.

Shapes: K numbers that all heads give for a window, or for each of its tokens.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from bothways.compose.multitask.shared_objective import SharedHeads
from bothways.confidence.confidence import Confidence
from bothways.data import Example, Row, Source, given_words, read_rows, text_at, value_at, words_at
from bothways.errors import InvalidInput
from bothways.evaluation import TextsRead
from bothways.inference import TextRows, TokenRows
from bothways.tasks.columns import typed_texts
from bothways.tasks.head import TrainedHead
from bothways.tasks.opening import OpenedModel
from bothways.tasks.outputs import Rows
from bothways.tasks.scores import Scores, TokensRead, texts_read
from bothways.tasks.tagging.spec import TagColumns
from bothways.text import Words
from bothways.text.texts import Text


@dataclass(frozen=True, slots=True, eq=False)
class TaskScores(Scores[None]):
    """The scores of each task for one input, from one pass of the encoder."""

    tasks: Mapping[str, Scores[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MultiPrediction:
    """A prediction of each task, by name.

    Attributes:
        predictions: By task; each says how much of the text was read.
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
        reading: How much of the texts was read.
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
class SharedColumns:
    """Where the inputs of tasks stand that are asked at once.

    Tasks that read whole texts and learnt from different columns answer for whichever a row has; where a task tags
    words and a row has words, all read these.

    Attributes:
        text: Columns of the text, joined by a space, for each task that learnt from others.
        tokens: Columns of the words of each task that tags other ones; none where no task tags words.
        own: Columns of the tasks, where they read something else than texts.
    """

    text: tuple[tuple[str, ...], ...] = (("text",),)
    tokens: tuple[str, ...] = ()
    own: Any = None

    @classmethod
    def of(cls, parts: Mapping[str, TrainedHead]) -> "SharedColumns":
        """Return the columns of tasks that can be asked at once.

        Raises:
            InvalidInput: They read different kinds of input.
        """
        first = next(iter(parts.values()))
        if any(part.columns.one != first.columns.one for part in parts.values()):
            kinds = ", ".join(f"{name} {part.columns.one}" for name, part in parts.items())
            raise InvalidInput(f"tasks above one encoder read the same kind of input, but these read: {kinds}.")
        if not hasattr(first.columns, "text"):
            return cls(own=first.columns)
        # A tagger learns from words alone.
        texts = [part.columns.text for part in parts.values() if not part.outputs.reads_words]
        tokens = [part.columns.tokens for part in parts.values() if part.outputs.reads_words]
        return cls(tuple(dict.fromkeys(texts)) or (first.columns.text,), tuple(dict.fromkeys(tokens)))

    @property
    def one(self) -> str:
        """What a single input is called."""
        return "a text" if self.own is None else str(self.own.one)

    @property
    def words(self) -> str | None:
        """Where the words stand that are tagged; None where no task tags words.

        Raises:
            InvalidInput: Two tasks tag words of different columns.
        """
        if len(self.tokens) > 1:
            raise InvalidInput(
                f"the tasks tag the words of several columns, {', '.join(sorted(self.tokens))}, and "
                "one pass reads one of them. Ask one task: part(name), or --task on the command line."
            )
        return self.tokens[0] if self.tokens else None

    def read(self, row: Row) -> Any:  # noqa: ANN401 (a text, its words, or what the tasks read)
        """Return the text of a row, or its words where they are tagged.

        Raises:
            InvalidInput: There is none, or it has several.
        """
        if self.own is not None:
            return self.own.read(row)
        tokens = self.words
        if tokens is not None and tokens in row.values:
            return words_at(row, tokens)
        there = [names for names in self.text if _holds(row, names)]
        if len({text_at(row, names) for names in there}) > 1:
            found = " and ".join("+".join(names) for names in there)
            raise InvalidInput(
                f"{row.where} has several texts, in the columns {found}, and one pass reads one. Name the column that "
                "all tasks are to read, leave the others out, or ask one task: part(name), or --task on the command "
                "line."
            )
        names = there[0] if there else self.text[0]
        return text_at(row, names) if tokens is None else given_words(row, tokens, names)

    def check(self, number: int, value: object) -> Any:  # noqa: ANN401 (as above)
        """Return an input of the caller's; a text as its words where they are tagged."""
        if self.own is not None:
            return self.own.check(number, value)
        return value if self.words is None else TagColumns().check(number, value)

    def is_one(self, value: object) -> bool:
        """Whether it is a single input."""
        return isinstance(value, str) if self.own is None else bool(self.own.is_one(value))

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """Return a row for each text."""
        return typed_texts(self.text[0], texts) if self.own is None else list(self.own.rows_of(texts))


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

    def read(self, data: Source, columns: SharedColumns, options: object = None) -> list[Example[Row]]:
        """Return inputs, with their rows in the place of a label: each task has its own column.

        Raises:
            InvalidInput: Two tasks have their labels in the same column, or a row has several texts.
        """
        del options
        if not self.told_apart:
            raise InvalidInput(
                f"the labels of the tasks {', '.join(self.parts)} stand in the columns {', '.join(self._truth)}, and a "
                f"row has one label in a column. Say which task to evaluate: part(name), or on the command line --task "
                f"{next(iter(self.parts))}."
            )
        rows = list(read_rows(data))
        tokens = columns.words
        if tokens is not None:
            for row in rows:
                value_at(row, tokens)  # a text has words too, but no tags of them
        return [Example(columns.read(row), row, row.number, row.where) for row in rows]

    def encode(self, examples: Sequence[Example[Row]]) -> dict[str, Any]:
        """Return the truth of each task."""
        return {name: _truth_of(part, examples) for name, part in self.parts.items()}

    @property
    def comparable(self) -> tuple[str, ...]:
        """Nothing: a model of several tasks is compared in one of them."""
        raise InvalidInput(f"a model of several tasks is compared in one of them: choose {', '.join(self.parts)}.")

    def report(
        self,
        scores: Sequence[TaskScores],
        truth: Mapping[str, Any],
        *,
        calibrated: bool | None = None,
        resamples: int = 1000,
        seed: int = 0,
    ) -> MultiReport:
        """Return the metrics of each task."""
        reports = {}
        for name, part in self.parts.items():
            own = [each.tasks[name] for each in scores]
            outcomes = replace(part.outputs.outcomes(own, truth[name], calibrated=calibrated), tokens_read=None)
            reports[name] = outcomes.report(resamples=resamples, seed=seed)
        return MultiReport(reports, texts_read(each.read for each in scores))

    @property
    def told_apart(self) -> bool:
        """Whether the tasks have columns of their own for what is right, so that rows can be right for all at once."""
        return len(set(self._truth)) == len(self._truth)

    @property
    def _truth(self) -> list[str]:
        return [part.columns.truth for part in self.parts.values()]


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

    @classmethod
    def of(cls, opened: OpenedModel, parts: Mapping[str, TrainedHead]) -> "TrainedTasks":
        """Gather tasks above one encoder.

        Raises:
            InvalidInput: They read different kinds of input.
        """
        return cls(opened, parts, SharedColumns.of(parts))

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
        # The tasks of a model read the same; where one tags words, all read these.
        reader = next((part.outputs for part in parts if part.outputs.reads_words), parts[0].outputs)
        layers = [part.outputs.layers for part in parts]
        shared = SharedHeads(self.opened.model.encoder, [part.model.head for part in parts], layers).eval()
        ends = np.cumsum(shared.widths).tolist()
        slices = [slice(*each) for each in zip([0, *ends[:-1]], ends, strict=True)]
        waiting: deque[Any] = deque()

        def texts() -> Iterator[Text]:
            for value in inputs:
                waiting.append(value)
                yield from reader.texts(value)

        engine = self.opened.engine(shared)
        run = engine.run_tokens if shared.per_token else engine.run
        for rows in run(texts(), total=total, description=description, show_progress=show_progress):
            value = waiting.popleft()
            scores = {
                name: part.outputs.scores(value, [_of_head(rows, columns, per_token=part.outputs.per_token)])
                for (name, part), columns in zip(self.parts.items(), slices, strict=True)
            }
            windows = len(rows.rows if isinstance(rows, TokenRows) else rows.lengths)
            read = TokensRead(windows, rows.dropped_tokens)
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


def _truth_of(part: TrainedHead, examples: Sequence[Example[Row]]) -> Any:  # noqa: ANN401 (the task's own)
    """What is right for one task; the text that was read stands in its columns, which may be another task's."""
    rows = [example.label for example in examples]
    if not part.outputs.reads_words and hasattr(part.columns, "text"):
        texts = [each.text.text if isinstance(each.text, Words) else each.text for each in examples]
        own = part.columns.rows_of(texts)
        rows = [replace(row, values={**row.values, **text}) for row, text in zip(rows, own, strict=True)]
    return part.outputs.encode(part.outputs.read(rows, part.columns))


def _holds(row: Row, names: Sequence[str]) -> bool:
    """Whether a row has these columns, and something in one of them: a table has all columns in every row."""
    return all(name in row.values for name in names) and any(row.values[name] not in (None, "") for name in names)
