"""Several tasks above one encoder: sentiment and topic of a text, from one pass.

Shapes: N texts, W windows of one text, C outputs, K numbers of a head.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias, Unpack, overload

import numpy as np

from bothways.data import Row, Source, given_words, read_rows, text_at, value_at, words_at
from bothways.errors import InvalidInput, NotFitted
from bothways.tasks.columns import RawTextColumns, typed_texts
from bothways.tasks.fitting import FitOptions, fit_plan, undone_on_failure
from bothways.tasks.given import given_many
from bothways.tasks.labelling.classification import TextClassifier
from bothways.tasks.merging import Merge, check_merge
from bothways.tasks.opening import OpenedModel, OpenOptions, open_model
from bothways.tasks.predictions import texts_read
from bothways.tasks.sharing.data import TaggingData, TaskData
from bothways.tasks.sharing.files import check_names, read_parts, write_parts
from bothways.tasks.sharing.parts import ReadText, Task, part_of, prepared
from bothways.tasks.sharing.results import MultiPrediction, MultiReport
from bothways.tasks.sharing.sampling import Proportional, Sampling
from bothways.tasks.sharing.shared_objective import SharedHeads, SharedObjective
from bothways.tasks.stored import stored_choice
from bothways.tasks.tagging.reading import read_words, words_of
from bothways.tasks.tagging.tagger import TextTagger
from bothways.text import Words
from bothways.training.record import TrainingRecord

# A raw text; where some task tags words, also its words.
Given: TypeAlias = str | Sequence[str]


class MultiTask:
    """Fine-tunes one encoder with a head for each of several tasks, and asks all of them at once.

    Tasks label texts or tag words. Where one of them tags words, all of them read a text's words with single spaces
    between them, in training and in use, so that one pass serves all.

    >>> both = MultiTask.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> both.fit({"sentiment": TaskData("s.jsonl"), "topic": TaskData("t.jsonl")})  # doctest: +SKIP
    >>> both.predict("Lakers win in overtime")["topic"].label  # doctest: +SKIP
    'sports'

    Attributes:
        model: The encoder and its tokenizer.
        parts: The tasks by name, each a classifier or a tagger above the shared encoder.
        columns: Where the texts stand that are asked about. Tasks that learnt from different columns answer for
            whichever a row has; once this is set, all read what it says. Where a task tags words, and a row has words,
            all read these.
        card: What each task says of its making.
    """

    task: ClassVar[str] = "multitask"

    def __init__(self, opened: OpenedModel, merge: Merge = "weighted_mean") -> None:
        self._opened = opened
        self.model = opened.model
        self.merge: Merge = merge
        self.parts: dict[str, Task] = {}
        self.card: dict[str, Any] = {}
        self._texts: tuple[tuple[str, ...], ...] = (RawTextColumns().text,)

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
            InvalidInput: A setting is out of range.
            CorruptCheckpoint: A file is damaged.
        """
        opened = open_model(name_or_path, cls.task, **options)
        ours = opened.extras.get("task") == cls.task
        stored = stored_choice(opened.extras, "merge", check_merge) if ours else None
        chosen = check_merge(merge or stored or "weighted_mean")
        if chosen == "attention":
            raise InvalidInput("several tasks above one encoder merge windows by a fixed rule, not by attention.")
        made = cls(opened, chosen)
        if ours:
            made._hold(read_parts(opened, chosen))
        return made

    @property
    def columns(self) -> RawTextColumns:
        """Where the texts stand that are asked about; those of the first task where they learnt from different ones."""
        return RawTextColumns(self._texts[0])

    @columns.setter
    def columns(self, columns: RawTextColumns) -> None:
        self._texts = (columns.text,)

    def part(self, name: str) -> Any:  # noqa: ANN401 (a classifier or a tagger, as it was trained)
        """One of the tasks by itself, which can be asked, evaluated and saved like any classifier or tagger.

        Raises:
            NotFitted: Nothing was trained yet.
            InvalidInput: There is no such task.
        """
        if name not in self._trained():
            raise InvalidInput(f"this model has no task {name!r}; its tasks are {', '.join(self.parts)}.")
        return self.parts[name]

    def fit(
        self,
        tasks: Mapping[str, TaskData | TaggingData],
        *,
        sampling: Sampling = Proportional(),  # noqa: B008 (a value that does not change)
        **options: Unpack[FitOptions],
    ) -> TrainingRecord:
        """Fine-tune on all tasks, keep a good epoch, and calibrate each.

        Kept is the latest epoch whose mean of the tasks' scores is within a standard error of the best. A score is
        accuracy, F1 of labels or of spans, or for numbers the squared error as a share of the variance of those learnt
        from. A task that was there before under the same name and with the same labels goes on with its head.

        Args:
            tasks: What each task learns from, by its name.
            sampling: How the updates of an epoch are shared among the tasks; ``batch_size`` is that of each update.
            options: ``epochs``, ``learning_rate``, ``batch_size``, ``seed`` and more, see
                `bothways.tasks.fitting.FitPlan`.

        Raises:
            InvalidInput: The data or a setting is not usable; the message names task and row.
        """
        plan = fit_plan(self, options)
        check_names(tasks)
        tags = any(isinstance(data, TaggingData) for data in tasks.values())
        parts = {name: self._begun(name, data, tags=tags) for name, data in tasks.items()}
        with undone_on_failure(self, "parts", "_texts", "card") as attempt:
            ready = {name: prepared(name, part, tasks[name], plan) for name, part in parts.items()}
            self._hold(parts)
            objective = SharedObjective(
                SharedHeads(self.model.encoder, [part_of(part).head for part in parts.values()]),
                {name: each.objective for name, each in ready.items()},
                sampling,
                seed=plan.seed,
                units={name: each.unit for name, each in ready.items()},
            )
            record = attempt.train(plan, objective, self.model)
        if record.finished_no_epoch:
            return record
        for each in ready.values():
            each.finish(record)
        self._hold(parts)
        return record

    @overload  # a string is also a sequence of strings, which the first signature takes before the second
    def predict(self, texts: str, *, show_progress: bool | None = ...) -> MultiPrediction: ...  # type: ignore[overload-overlap]

    @overload
    def predict(self, texts: Sequence[Given], *, show_progress: bool | None = ...) -> list[MultiPrediction]: ...

    def predict(
        self, texts: str | Sequence[Given], *, show_progress: bool | None = None
    ) -> MultiPrediction | list[MultiPrediction]:
        """What all tasks say of texts, from one pass of the encoder; one prediction for a single string.

        Args:
            texts: One text or many; where a task tags words, each of many may also be a list of its words.
            show_progress: Force the progress bar on or off.

        Raises:
            NotFitted: Nothing was trained yet.
            InvalidInput: A text is empty or not a string.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        listed, alone = given_many(texts)
        answers = list(self.predict_stream(listed, total=len(listed), show_progress=show_progress))
        return answers[0] if alone else answers

    def predict_stream(
        self, texts: Iterable[Given], *, total: int | None = None, show_progress: bool | None = None
    ) -> Iterator[MultiPrediction]:
        """Predictions for an iterable of any length, in order and in flat memory."""
        given = (words_of(number, text) for number, text in enumerate(texts)) if self._words_column() else texts
        return self._predicted(given, total, show_progress)

    def predict_rows(self, rows: Iterable[Row], *, show_progress: bool | None = None) -> Iterator[MultiPrediction]:
        """What all tasks say of each row's text, in order and in flat memory; where a task tags words, of its words.

        Raises:
            NotFitted: Nothing was trained yet.
            InvalidInput: A row has no text, or several: one pass reads one.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        tokens = self._words_column()
        return self._predicted((self._text_of(row, tokens) for row in rows), None, show_progress)

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """A row for each text, as it would stand in a file."""
        return typed_texts(self.columns.text, texts)

    def evaluate(
        self,
        data: Source,
        *,
        resamples: int = 1000,
        seed: int = 0,
        show_progress: bool | None = None,
    ) -> MultiReport:
        """Metrics of all tasks on texts that have a label for each of them, in columns of their own.

        For data with the labels of one task ask that one: ``part(name).evaluate(data)``.

        Args:
            data: A file, or a list of mappings.
            resamples: Bootstrap resamples for the intervals.
            seed: Of the bootstrap.
            show_progress: Force the progress bar on or off.

        Raises:
            NotFitted: Nothing was trained yet.
            InvalidInput: Two tasks have their labels in the same column, a row has several texts, or the data are not
                usable.
        """
        parts = {name: part_of(task) for name, task in self._trained().items()}
        if not self.told_apart:
            columns = [name for part in parts.values() for name in part.truth_columns]
            raise InvalidInput(
                f"the labels of the tasks {', '.join(self.parts)} stand in the columns {', '.join(columns)}, and a row "
                f"has one label in a column. Say which task to evaluate: part(name), or on the command line --task "
                f"{next(iter(self.parts))}."
            )
        rows = list(read_rows(data))
        tokens = self._words_column()
        if tokens is not None:
            for row in rows:
                value_at(row, tokens)  # a text has words too, but no tags of them
        given = [self._text_of(row, tokens) for row in rows]
        texts = [each.text if isinstance(each, Words) else str(each) for each in given]
        answers = list(self._run(given, "evaluating", len(given), show_progress))
        reading = [next(iter(each.values())).reading for each in answers]
        reports = {
            name: part.report(rows, texts, [each[name] for each in answers], resamples=resamples, seed=seed)
            for name, part in parts.items()
        }
        read = texts_read(reading)
        return MultiReport(reports, read)

    @property
    def told_apart(self) -> bool:
        """Whether the tasks have columns of their own for what is right, so that rows can be right for all at once."""
        columns = [name for task in self._trained().values() for name in part_of(task).truth_columns]
        return len(set(columns)) == len(columns)

    def facts(self) -> dict[str, object]:
        """Labels and calibration of each task, as JSON values."""
        return {"tasks": [{"task": name, **part.facts()} for name, part in self._trained().items()]}

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the encoder and all heads into one folder, whole or not at all.

        The first head stands where the ecosystem looks for one; see `bothways.tasks.sharing.files`.

        Raises:
            NotFitted: Nothing was trained yet.
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        extras = {"task": self.task, **self._opened.stored_reading(), "merge": self.merge}
        write_parts(folder, self._opened, self._trained(), extras, overwrite=overwrite)

    def _predicted(
        self, given: Iterable[Any], total: int | None, show_progress: bool | None
    ) -> Iterator[MultiPrediction]:
        judges = {name: part_of(task).judge() for name, task in self._trained().items()}
        for answers in self._run(given, "predicting", total, show_progress, judging=True):
            yield MultiPrediction({name: judges[name](answer) for name, answer in answers.items()})

    def _run(
        self,
        given: Iterable[Any],
        description: str,
        total: int | None,
        show_progress: bool | None,
        *,
        judging: bool = False,
    ) -> Iterator[dict[str, ReadText]]:
        """What each task's head says of texts, or of their words; for judging, with what its detector reads."""
        parts = {name: part_of(task) for name, task in self._trained().items()}
        layers = [part.layers_read if judging else 0 for part in parts.values()]
        shared = SharedHeads(self.model.encoder, [part.head for part in parts.values()], layers).eval()
        ends = np.cumsum(shared.widths).tolist()
        columns = {name: slice(*each) for name, *each in zip(parts, [0, *ends[:-1]], ends, strict=True)}
        for text in self._read(shared, given, total=total, description=description, show_progress=show_progress):
            yield {name: text.of_head(columns[name]) for name in parts}

    def _read(
        self,
        shared: SharedHeads,
        given: Iterable[Any],
        *,
        total: int | None,
        description: str,
        show_progress: bool | None,
    ) -> Iterator[ReadText]:
        engine = self._opened.engine(shared)
        if not shared.per_token:
            for rows in engine.run(given, total=total, description=description, show_progress=show_progress):
                yield ReadText(tuple(rows.rows_WK[:, None]), rows.lengths, rows.dropped_tokens)
            return
        found = read_words(engine, given, total=total, description=description, show_progress=show_progress)
        for words, tokens, answer in found:
            lengths = tuple(map(len, answer.rows))
            yield ReadText(answer.rows, lengths, answer.dropped_tokens, (words, tokens))

    def _begun(self, name: str, data: TaskData | TaggingData, *, tags: bool) -> Task:
        """The task of that name, to go on with, or a new one; ``tags`` says whether some task tags words."""
        before = self.parts.get(name)
        if isinstance(data, TaggingData):
            tagger = TextTagger(self._opened)
            if isinstance(before, TextTagger):
                tagger.take_head(before.labeller.tag_set, before.labeller.module.head, {})
            return tagger
        task = TextClassifier(self._opened.as_words() if tags else self._opened, self.merge)
        if isinstance(before, TextClassifier):
            task.take_head(before.labeller.target, before.labeller.module.head, {}, self.model.folder)
        return task

    def _words_column(self) -> str | None:
        """Where the words stand that are tagged; None where no task tags words.

        Raises:
            InvalidInput: Two tasks tag words of different columns.
        """
        names = {task.columns.tokens for task in self._trained().values() if isinstance(task, TextTagger)}
        if len(names) > 1:
            raise InvalidInput(
                f"the tasks {', '.join(self.parts)} tag the words of several columns, {', '.join(sorted(names))}, and "
                "one pass reads one of them. Ask one task: part(name), or --task on the command line."
            )
        return next(iter(names), None)

    def _text_of(self, row: Row, tokens: str | None) -> str | Words:
        """The text of a row, or its words where they are tagged.

        Raises:
            InvalidInput: There is none, or it has several.
        """
        if tokens is not None and tokens in row.values:
            return words_at(row, tokens)
        there = [names for names in self._texts if _holds(row, names)]
        if len({text_at(row, names) for names in there}) > 1:
            found = " and ".join("+".join(names) for names in there)
            raise InvalidInput(
                f"{row.where} has several texts, in the columns {found}, and one pass reads one. Name the column that "
                "all tasks are to read, leave the others out, or ask one task: part(name), or --task on the command "
                "line."
            )
        names = there[0] if there else self._texts[0]
        return text_at(row, names) if tokens is None else given_words(row, tokens, names)

    def _hold(self, parts: dict[str, Task]) -> None:
        self.parts = parts
        # A tagger learns from words alone.
        texts = [part.columns.text for part in parts.values() if isinstance(part, TextClassifier)]
        self._texts = tuple(dict.fromkeys(texts)) or (next(iter(parts.values())).columns.text,)
        self.card = {name: part.card for name, part in parts.items()}

    def _trained(self) -> dict[str, Task]:
        if not self.parts:
            raise NotFitted(f"{self.model.name!r} has no trained tasks yet: call fit first.")
        return self.parts


def _holds(row: Row, names: Sequence[str]) -> bool:
    """Whether a row has these columns, and something in one of them: a table has all columns in every row."""
    return all(name in row.values for name in names) and any(row.values[name] not in (None, "") for name in names)
