"""Several tasks above one encoder: sentiment and topic of a text, from one pass.

Shapes: N texts, W windows of one text, C outputs, K numbers of a head.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack, overload

import numpy as np

from bothways.data import Row, Source, read_rows
from bothways.errors import InvalidInput, NotFitted
from bothways.evaluation import TextsRead
from bothways.inference import TextRows
from bothways.tasks.columns import ReadColumns, TextColumns
from bothways.tasks.fitting import FitOptions, FitPlan, Preparation, undone_on_failure
from bothways.tasks.labelling.classification import TextClassifier
from bothways.tasks.labelling.judging import reads_features
from bothways.tasks.merging import Merge, check_merge
from bothways.tasks.objective import WindowObjective
from bothways.tasks.opening import OpenedModel, OpenOptions, open_model
from bothways.tasks.sharing.files import check_names, read_parts, write_parts
from bothways.tasks.sharing.results import MultiPrediction, MultiReport
from bothways.tasks.sharing.sampling import Proportional, Sampling
from bothways.tasks.sharing.shared_objective import SharedHeads, SharedObjective
from bothways.tasks.stored import stored_choice
from bothways.tasks.targets import TargetKind
from bothways.training.record import TrainingRecord


@dataclass(frozen=True, slots=True)
class TaskData:
    """What one of several tasks learns from.

    Attributes:
        train: A file, or a list of mappings.
        validation: Held-out data; a tenth of the training data, drawn with the seed, when None.
        text: Columns of the texts, joined by a space.
        label: Column of the labels.
        target: One label, several, or a number.
    """

    train: Source
    validation: Source | None = None
    text: str | tuple[str, ...] = "text"
    label: str = "label"
    target: TargetKind = "single"

    @property
    def columns(self) -> TextColumns:
        """The columns' names."""
        return TextColumns((self.text,) if isinstance(self.text, str) else self.text, self.label)


class MultiTask:
    """Fine-tunes one encoder with a head for each of several tasks, and asks all of them at once.

    >>> both = MultiTask.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> both.fit({"sentiment": TaskData("s.jsonl"), "topic": TaskData("t.jsonl")})  # doctest: +SKIP
    >>> both.predict("Lakers win in overtime")["topic"].label  # doctest: +SKIP
    'sports'

    Attributes:
        model: The encoder and its tokenizer.
        parts: The tasks by name, each a classifier above the shared encoder.
        columns: Where the texts stand that are asked about.
        card: What each task says of its making.
    """

    task: ClassVar[str] = "multitask"

    def __init__(self, opened: OpenedModel, merge: Merge = "weighted_mean") -> None:
        self._opened = opened
        self.model = opened.model
        self.merge: Merge = merge
        self.parts: dict[str, TextClassifier] = {}
        self.columns = ReadColumns()
        self.card: dict[str, Any] = {}

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
        opened = open_model(name_or_path, **options)
        ours = opened.extras.get("task") == cls.task
        stored = stored_choice(opened.extras, "merge", check_merge) if ours else None
        chosen = check_merge(merge or stored or "weighted_mean")
        if chosen == "attention":
            raise InvalidInput("several tasks above one encoder merge windows by a fixed rule, not by attention.")
        made = cls(opened, chosen)
        if ours:
            made._hold(read_parts(opened, chosen))
        return made

    def part(self, name: str) -> TextClassifier:
        """One of the tasks by itself, which can be asked, evaluated and saved like any classifier.

        Raises:
            NotFitted: Nothing was trained yet.
            InvalidInput: There is no such task.
        """
        if name not in self._trained():
            raise InvalidInput(f"this model has no task {name!r}; its tasks are {', '.join(self.parts)}.")
        return self.parts[name]

    def fit(
        self,
        tasks: Mapping[str, TaskData],
        *,
        sampling: Sampling = Proportional(),  # noqa: B008 (a value that does not change)
        **options: Unpack[FitOptions],
    ) -> TrainingRecord:
        """Fine-tune on all tasks, keep the epoch of the best mean of their scores, and calibrate each.

        A score is accuracy, micro-F1, or for numbers the squared error as a share of their variance. A task that was
        there before under the same name and with the same labels goes on with its head.

        Args:
            tasks: What each task learns from, by its name.
            sampling: How the updates of an epoch are shared among the tasks; ``batch_size`` is that of each update.
            options: ``epochs``, ``learning_rate``, ``batch_size``, ``seed`` and more, see
                `bothways.tasks.fitting.FitPlan`.

        Raises:
            InvalidInput: The data or a setting is not usable; the message names task and row.
        """
        plan = FitPlan(**options)
        check_names(tasks)
        parts = {name: self.parts.get(name) or TextClassifier(self._opened, self.merge) for name in tasks}
        with ExitStack() as stack:
            for part in parts.values():
                stack.enter_context(undone_on_failure(part, "_labeller"))
            ready = {name: _prepared(name, part, tasks[name], plan) for name, part in parts.items()}
            objective = SharedObjective(
                SharedHeads(self.model.encoder, [part.labeller.module.head for part in parts.values()]),
                {name: each.objective for name, each in ready.items()},
                sampling,
                seed=plan.seed,
                units={name: each.unit for name, each in ready.items()},
            )
            record = plan.train(objective, self.model)
        for each in ready.values():
            each.finish(record)
        self._hold(parts)
        return record

    @overload  # a string is also a sequence of strings, which the first signature takes before the second
    def predict(self, texts: str, *, show_progress: bool | None = ...) -> MultiPrediction: ...  # type: ignore[overload-overlap]

    @overload
    def predict(self, texts: Sequence[str], *, show_progress: bool | None = ...) -> list[MultiPrediction]: ...

    def predict(
        self, texts: str | Sequence[str], *, show_progress: bool | None = None
    ) -> MultiPrediction | list[MultiPrediction]:
        """What all tasks say of texts, from one pass of the encoder; one prediction for a single string.

        Raises:
            NotFitted: Nothing was trained yet.
            InvalidInput: A text is empty or not a string.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        listed = [texts] if isinstance(texts, str) else list(texts)
        answers = list(self.predict_stream(listed, total=len(listed), show_progress=show_progress))
        return answers[0] if isinstance(texts, str) else answers

    def predict_stream(
        self, texts: Iterable[str], *, total: int | None = None, show_progress: bool | None = None
    ) -> Iterator[MultiPrediction]:
        """Predictions for an iterable of any length, in order and in flat memory."""
        judges = {name: part.labeller.judge() for name, part in self._trained().items()}
        for answers in self._run(texts, "predicting", total, show_progress, judging=True):
            yield MultiPrediction({name: judges[name](answer) for name, answer in answers.items()})

    def predict_rows(self, rows: Iterable[Row], *, show_progress: bool | None = None) -> Iterator[MultiPrediction]:
        """What all tasks say of each row's text, in order and in flat memory."""
        return self.predict_stream(map(self.columns.inputs.read, rows), show_progress=show_progress)  # type: ignore[arg-type]

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """A row for each text, as it would stand in a file."""
        first, *others = self.columns.text
        return [{first: text, **dict.fromkeys(others, "")} for text in texts]

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
            InvalidInput: Two tasks have their labels in the same column, or the data are not usable.
        """
        columns = [part.columns.label for part in self._trained().values()]
        if len(set(columns)) < len(columns):
            raise InvalidInput(
                f"the labels of the tasks {', '.join(self.parts)} stand in the columns {', '.join(columns)}, and a row "
                "has one label in a column. Say which task to evaluate: part(name), or --task on the command line."
            )
        rows = list(read_rows(data))
        truth = {
            name: part.labeller.labelled(rows, TextColumns(self.columns.text, part.columns.label))
            for name, part in self.parts.items()
        }
        texts = [str(text) for text in next(iter(truth.values()))[0]]
        answers = list(self._run(texts, "evaluating", len(texts), show_progress))
        first = [next(iter(each.values())) for each in answers]
        read = TextsRead.of([len(each.lengths) for each in first], [each.dropped_tokens for each in first])
        reports = {}
        for name, part in self.parts.items():
            logits_NC = np.stack([part.labeller.merged(each[name]) for each in answers])
            reports[name] = part.report(logits_NC, truth[name][1], resamples=resamples, seed=seed)
        return MultiReport(reports, read)

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

    def _run(
        self,
        texts: Iterable[str],
        description: str,
        total: int | None,
        show_progress: bool | None,
        *,
        judging: bool = False,
    ) -> Iterator[dict[str, TextRows]]:
        """What each task's head says of texts; for judging, with the features that its detector reads."""
        parts = self._trained().values()
        features = [judging and reads_features(part.trust) for part in parts]
        shared = SharedHeads(self.model.encoder, [part.labeller.module.head for part in parts], features).eval()
        ends = np.cumsum(shared.widths)[:-1]
        for answer in self._opened.engine(shared).run(
            texts, total=total, description=description, show_progress=show_progress
        ):
            rows = np.split(answer.rows_WK, ends, axis=1)
            yield {
                name: TextRows(rows_WK, answer.lengths, answer.dropped_tokens)
                for name, rows_WK in zip(self.parts, rows, strict=True)
            }

    def _hold(self, parts: dict[str, TextClassifier]) -> None:
        self.parts = parts
        self.columns = ReadColumns(next(iter(parts.values())).columns.text)
        self.card = {name: part.card for name, part in parts.items()}

    def _trained(self) -> dict[str, TextClassifier]:
        if not self.parts:
            raise NotFitted(f"{self.model.name!r} has no trained tasks yet: call fit first.")
        return self.parts


def _prepared(name: str, part: TextClassifier, data: TaskData, plan: FitPlan) -> Preparation[WindowObjective]:
    try:
        return part.prepare(data.train, data.validation, data.columns, data.target, plan)
    except InvalidInput as error:
        raise type(error)(f"task {name!r}: {error}") from error
