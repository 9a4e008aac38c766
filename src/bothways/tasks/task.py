"""The verbs of every task, written once: open, fit, predict, evaluate, compare, save.

A task is data plus a few functions: its declarations (`TaskSpec`) and what its scores mean. What a task has learnt is
an immutable value, `Fitted`; a fit replaces it in one assignment at its end, so a training that fails changes nothing,
and threads that predict meanwhile use the model as it was.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypedDict, TypeVar, Unpack, cast, overload

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints import PretrainedEncoder
from bothways.confidence.confidence import Confidence
from bothways.data import Row, Source, read_rows
from bothways.errors import InvalidInput, NotFitted
from bothways.evaluation import Judgement, OutOfDomainReport, out_of_domain_report
from bothways.storage import new_folder
from bothways.tasks.card import OUT_OF_DOMAIN_LIMIT
from bothways.tasks.columns import ColumnNames, batch_of, renamed
from bothways.tasks.head import TrainingData
from bothways.tasks.learning import Preparation, run_training
from bothways.tasks.opening import OpenedModel, OpenOptions, open_model
from bothways.tasks.predictions import warn_of_cut
from bothways.tasks.scores import Scores, texts_read
from bothways.tasks.spec import PredictArguments, TaskSpec, chosen
from bothways.text import Overflow
from bothways.training.options import TrainingArguments, TrainingOptions
from bothways.training.record import TrainingRecord

InputT = TypeVar("InputT")
PredictionT = TypeVar("PredictionT", covariant=True)

OPENING = tuple(OpenOptions.__annotations__)
TRAINING = tuple(TrainingArguments.__annotations__)


class OpenArguments(OpenOptions, total=False):
    """Options of `from_pretrained`, of all tasks; which ones a task has besides `OpenOptions`, its spec says."""

    labels: Sequence[str] | None
    merge: Any
    target: Any
    scheme: Any
    max_answer_tokens: int | None
    threshold: float | None


class FitArguments(TrainingArguments, total=False):
    """Columns and options of `fit`, of all tasks; which ones a task has, its spec says."""

    text: str | tuple[str, ...]
    text_a: str
    text_b: str
    label: str | None
    score: str | None
    tokens: str
    tags: str
    question: str
    context: str
    answers: str
    choices: str | tuple[str, ...]
    target: Any
    scheme: Any
    calibration: Any
    detector: Any
    kept: float


class EvaluateArguments(TypedDict, total=False):
    """Columns and options of `evaluate` and `score`, of all tasks; which ones a task has, its spec says."""

    text: str | tuple[str, ...] | None
    text_a: str | None
    text_b: str | None
    label: str | None
    tokens: str | None
    tags: str | None
    question: str | None
    context: str | None
    answers: str | None
    choices: str | tuple[str, ...] | None
    scheme: Any


class Fitted(Protocol):
    """A trained model of a task: an immutable value."""

    @property
    def outputs(self) -> Any:  # noqa: ANN401 (the task's own, see `bothways.tasks.outputs`)
        """What its scores mean, and what held-out rows taught."""

    @property
    def columns(self) -> Any:  # noqa: ANN401 (the task's own)
        """Where the parts of a row stand."""

    @property
    def card(self) -> Mapping[str, Any]:
        """What it says of its making."""

    def scores(
        self,
        inputs: Iterable[Any],
        options: Any = None,  # noqa: ANN401 (the task's own)
        *,
        description: str = ...,
        total: int | None = ...,
        show_progress: bool | None = ...,
    ) -> Iterator[Scores[Any]]:
        """Yield the scores of inputs, in order and in flat memory."""

    def facts(self) -> dict[str, object]:
        """Return what a user wants to know of it, as JSON values."""

    def write(self, folder: Path, task: str) -> None:
        """Write it into an existing folder."""


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRows:
    """The scores of labelled rows, and what is right.

    Attributes:
        scores: One for each row.
        truth: What is right, as the task's outputs encode it.
    """

    scores: tuple[Scores[Any], ...]
    truth: Any

    @property
    def logits(self) -> NDArray[np.float64]:
        """Uncalibrated logits of all rows, end to end."""
        return np.concatenate([each.logits_RC for each in self.scores])


FittedT = TypeVar("FittedT", bound=Fitted)


class Task(ABC, Generic[InputT, PredictionT, FittedT]):
    """A model of one task: what it has learnt, and the verbs.

    Attributes:
        spec: What the task declares.
    """

    spec: ClassVar[TaskSpec]

    def __init__(self, opened: OpenedModel, fitted: FittedT | None = None) -> None:
        # One attribute, so that a fit replaces encoder and head at once.
        self._state: tuple[OpenedModel, FittedT | None] = (opened, fitted)

    # --- what a task brings ---

    @classmethod
    @abstractmethod
    def _open(cls, opened: OpenedModel, options: Any) -> FittedT | None:  # noqa: ANN401 (the task's own)
        """Return what a checkpoint has learnt of this task; None where it has not."""

    @abstractmethod
    def _prepare(
        self,
        opened: OpenedModel,
        before: FittedT | None,
        data: TrainingData,
        columns: Any,  # noqa: ANN401 (the task's own)
        options: Any,  # noqa: ANN401 (the task's own)
        training: TrainingOptions,
    ) -> Preparation[Any, FittedT]:
        """Read the data and lay out the training of ``opened``."""

    def _not_fitted(self) -> NotFitted:
        return self._state[0].not_fitted(self.spec.name, "head")

    # --- the verbs ---

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path, **options: Unpack[OpenArguments]) -> Self:
        """Open an encoder to fine-tune, or a trained model to use.

        Args:
            name_or_path: A folder or a name, see `bothways.load`.
            options: How the checkpoint is found, where it runs and how texts are read (`OpenOptions`), and the task's
                own options (its ``spec.open_options``).

        Raises:
            InvalidInput: An option is out of its range, or names of a trained head's outputs are not known.
            CorruptCheckpoint: A file is damaged. And everything that `bothways.load` raises.
        """
        own = {name: value for name, value in options.items() if name not in OPENING}
        opening = cast("OpenOptions", {name: value for name, value in options.items() if name in OPENING})
        wanted: Any = chosen(cls.spec.open_options, own, f"{cls.__name__}.from_pretrained()", known=OPENING)
        opened = open_model(name_or_path, cls.spec.name, **opening)
        opened = replace(opened, reading=replace(opened.reading, cut=cls.spec.cut), options=wanted)
        return cls(opened, cls._open(opened, wanted))

    def fit(
        self,
        data: Source,
        labels: Sequence[object] | None = None,
        *,
        validation: Source | tuple[Sequence[Any], Sequence[object]] | None = None,
        **options: Unpack[FitArguments],
    ) -> TrainingRecord:
        """Fine-tune, keep a good epoch, and learn from held-out rows how far to trust the answers.

        Kept is the latest epoch whose validation score is within a standard error of the best. A training that fails,
        or that Ctrl-C ends before an epoch was finished, leaves the model as it was.

        Args:
            data: A file, rows (mappings, a DataFrame, a Dataset), or inputs with their ``labels``.
            labels: Labels of the inputs; None where ``data`` are rows.
            validation: Held-out data, in one of these forms; a tenth of the training data, drawn with ``seed``, when
                left out.
            options: Columns by their names (the task's ``spec.columns``), the task's own options (its
                ``spec.fit_options``), and the options of every training (`TrainingOptions`).

        Raises:
            InvalidInput: The data or an option is not usable; the message names the row.
            TypeError: An option is not known.
        """
        columns, own, training = self._fit_options(options)
        rows = TrainingData(_rows(columns, data, labels), _validation_rows(columns, validation))
        opened, before = self._state
        trained = opened.for_training(resumed=training.resume)
        ready = self._prepare(trained, before, rows, columns, own, training)
        record = run_training(ready.objective, trained.model, training)
        if not record.finished_no_epoch:
            self._state = trained, ready.finish(record)
        return record

    @overload
    def predict(
        self, inputs: InputT, *, show_progress: bool | None = ..., **options: Unpack[PredictArguments]
    ) -> PredictionT: ...

    @overload
    def predict(
        self, inputs: Iterable[Any], *, show_progress: bool | None = ..., **options: Unpack[PredictArguments]
    ) -> list[PredictionT]: ...

    def predict(
        self, inputs: Any, *, show_progress: bool | None = None, **options: Unpack[PredictArguments]
    ) -> PredictionT | list[PredictionT]:
        """Return a prediction for one input, or a list of them for many, in order.

        Args:
            inputs: What the task reads, or many: a list, a tuple, an array, a Series.
            show_progress: Force the progress bar on or off.
            options: Of the predictions, see the task's ``spec.predict_options``.

        Raises:
            NotFitted: The model was not trained for this.
            NotCalibrated: Something was asked for that takes held-out rows to learn.
            InvalidInput: An input is empty or not what the task reads.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        listed, alone = batch_of(self.columns, inputs)
        found = list(self.predict_stream(listed, total=len(listed), show_progress=show_progress, **options))
        return found[0] if alone else found

    __call__ = predict

    def predict_stream(
        self,
        inputs: Iterable[Any],
        *,
        total: int | None = None,
        show_progress: bool | None = None,
        **options: Unpack[PredictArguments],
    ) -> Iterator[PredictionT]:
        """Yield predictions for an iterable of any length, in order and in flat memory."""
        columns = self.columns
        checked = (columns.check(number, value) for number, value in enumerate(inputs))
        return self._predicted(checked, total, show_progress, options)

    def predict_rows(
        self,
        rows: Iterable[Row],
        *,
        show_progress: bool | None = None,
        **options: Unpack[PredictArguments],
    ) -> Iterator[PredictionT]:
        """Yield a prediction for each row, in order and in flat memory; columns as in `columns`."""
        return self._predicted(map(self.columns.read, rows), None, show_progress, options)

    def score(
        self, data: Source, *, show_progress: bool | None = None, **options: Unpack[EvaluateArguments]
    ) -> ScoredRows:
        """Return the scores of labelled rows, before any decision, and what is right.

        Args:
            data: A file, or rows.
            show_progress: Force the progress bar on or off.
            options: Columns by their names; those of the training when left out. And the task's ``spec.data_options``.

        Raises:
            NotFitted: The model was not trained for this.
            InvalidInput: The data are not usable, or hold a label that was not there in training.
        """
        fitted = self.fitted
        known = column_names(fitted.columns)
        columns = renamed(fitted.columns, {name: value for name, value in options.items() if name in known})
        own = {name: value for name, value in options.items() if name not in known}
        reading: Any = chosen(self.spec.data_options, own, f"{type(self).__name__}.evaluate()", known=known)
        examples = fitted.outputs.read(data, columns, reading)
        truth = fitted.outputs.encode(examples)
        scores = fitted.scores(
            (example.text for example in examples),
            description="evaluating",
            total=len(examples),
            show_progress=show_progress,
        )
        return ScoredRows(tuple(scores), truth)

    def evaluate(
        self,
        data: Source,
        *,
        resamples: int = 1000,
        seed: int = 0,
        show_progress: bool | None = None,
        **options: Unpack[EvaluateArguments],
    ) -> Any:  # noqa: ANN401 (a report)
        """Return metrics on labelled rows, with 95 % bootstrap intervals; calibrated where the model is.

        Args:
            data: A file, or rows.
            resamples: Bootstrap resamples for the intervals.
            seed: Of the bootstrap.
            show_progress: Force the progress bar on or off.
            options: As for `score`.

        Raises:
            NotFitted: The model was not trained for this.
            InvalidInput: The data are not usable, or hold a label that was not there in training.
        """
        return self.report(self.score(data, show_progress=show_progress, **options), resamples=resamples, seed=seed)

    def report(
        self, rows: ScoredRows, *, calibrated: bool | None = None, resamples: int = 1000, seed: int = 0
    ) -> Any:  # noqa: ANN401 (a report)
        """Return the metrics of rows that were scored; see `evaluate`."""
        outputs = self.outputs
        return outputs.report(rows.scores, rows.truth, calibrated=calibrated, resamples=resamples, seed=seed)

    def outcomes(self, data: Source, *, show_progress: bool | None = None) -> Judgement:
        """Return the outcomes of labelled rows that two models are compared by."""
        rows = self.score(data, show_progress=show_progress)
        found: Judgement = self.outputs.outcomes(rows.scores, rows.truth)
        return found

    judgement = outcomes

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the model in the ecosystem's layout, whole or not at all.

        Raises:
            NotFitted: The model was not trained for this.
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        fitted = self.fitted
        with new_folder(folder, overwrite=overwrite) as new:
            fitted.write(new, self.spec.name)

    # --- out-of-domain detection, where the outputs have learnt it ---

    def fit_threshold(self, others: Source, *, show_progress: bool | None = None) -> None:
        """Move the out-of-domain threshold to where it tells held-out rows best from these others.

        Args:
            others: Rows from elsewhere, in the columns of the training; their labels are not read.
            show_progress: Force the progress bar on or off.

        Raises:
            NotCalibrated: The model has no detector.
            InvalidInput: The data are not usable.

        Warns:
            TextsTruncated: Texts were cut (only with ``on_overflow="truncate"``).
        """
        opened, fitted = self._state[0], self.fitted
        scores = self._elsewhere(others, show_progress)
        warn_of_cut(texts_read(each.read for each in scores))
        outputs = fitted.outputs
        detector = outputs.confidence.detector(opened.model.name).separating(outputs.evidence(scores))
        learnt = replace(outputs, confidence=replace(outputs.confidence, out_of_domain=detector))
        card = card_with_threshold(fitted.card, learnt.confidence, len(scores))
        self._state = opened, replace(fitted, outputs=learnt, card=card)  # type: ignore[type-var]

    def out_of_domain(
        self,
        inside: ScoredRows,
        others: Source,
        *,
        resamples: int = 1000,
        seed: int = 0,
        show_progress: bool | None = None,
    ) -> OutOfDomainReport:
        """Return how well the model tells rows of its domain from others.

        Args:
            inside: What `score` gave for rows of the domain.
            others: Rows from elsewhere; their labels are not read.
            resamples: Bootstrap resamples for the intervals.
            seed: Of the bootstrap.
            show_progress: Force the progress bar on or off.

        Raises:
            NotCalibrated: The model has no detector.
            InvalidInput: The data are not usable.
        """
        outputs, scores = self.outputs, self._elsewhere(others, show_progress)
        found = outputs.confidence.detector(self.model.name)
        pairs = (found.detector.score(outputs.evidence(each)) for each in (inside.scores, scores))
        report = out_of_domain_report(*pairs, threshold=found.threshold, resamples=resamples, seed=seed)
        return replace(report, reading=texts_read(each.read for each in scores))

    def _elsewhere(self, others: Source, show_progress: bool | None) -> list[Scores[Any]]:
        self.confidence.detector(self.model.name)  # before the texts are read, and not after
        inputs = self.inputs(others)
        return list(
            self.fitted.scores(
                inputs, description="reading others", total=len(inputs), show_progress=show_progress
            )
        )

    # --- what is known of the model ---

    @property
    def fitted(self) -> FittedT:
        """What the model has learnt.

        Raises:
            NotFitted: It was not trained for this.
        """
        fitted = self._state[1]
        if fitted is None:
            raise self._not_fitted()
        return fitted

    @property
    def model(self) -> PretrainedEncoder:
        """The encoder and its tokenizer."""
        return self._state[0].model

    @property
    def outputs(self) -> Any:  # noqa: ANN401 (the task's own)
        """What the model's scores mean, and what held-out rows taught."""
        return self.fitted.outputs

    @property
    def confidence(self) -> Confidence:
        """Calibration, coverage and out-of-domain detection; empty before a fit."""
        fitted = self._state[1]
        found: Confidence = Confidence() if fitted is None else fitted.outputs.confidence
        return found

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the outputs; none where they have no names."""
        found: tuple[str, ...] = self.outputs.labels
        return found

    @property
    def columns(self) -> Any:  # noqa: ANN401 (the task's own)
        """Where the parts of a row stand: as in training, or as usual."""
        fitted = self._state[1]
        return self.spec.columns if fitted is None else fitted.columns

    @property
    def card(self) -> dict[str, Any]:
        """What the model says of its making; empty before a fit."""
        fitted = self._state[1]
        return {} if fitted is None else dict(fitted.card)

    @property
    def max_length(self) -> int:
        """Maximum tokens per window."""
        return self._state[0].reading.max_length

    @property
    def on_overflow(self) -> Overflow:
        """What becomes of longer texts."""
        return self._state[0].reading.on_overflow

    def with_columns(self, **names: object) -> Self:
        """Return the same model, reading other columns.

        Raises:
            UnreadColumn: It reads no such part of a row.
        """
        fitted = self.fitted
        made = copy(self)
        made._state = self._state[0], replace(fitted, columns=renamed(fitted.columns, names))  # type: ignore[type-var]
        return made

    def facts(self) -> dict[str, object]:
        """Return what a user wants to know of the model, as JSON values: labels, calibration, thresholds."""
        return self.fitted.facts()

    def inputs(self, rows: Source) -> list[Any]:
        """Return the inputs of rows.

        Raises:
            InvalidInput: One is missing or empty; the message names the row.
        """
        return [self.columns.read(row) for row in read_rows(rows)]

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """Return rows, as a file would have them, for texts typed on a command line.

        Raises:
            InvalidInput: There are too few texts or too many.
        """
        rows: list[dict[str, object]] = self.columns.rows_of(texts)
        return rows

    def __repr__(self) -> str:
        fitted = self._state[1]
        name = f"{type(self).__name__}({self.model.name!r}"
        if fitted is None:
            return f"{name}, not fitted)"
        known = fitted.outputs.labels
        shown = [f"labels={list(known[:5])}{' ...' if len(known) > 5 else ''}"] if known else []
        calibrated = fitted.outputs.confidence.calibration is not None
        return ", ".join([name, *shown, f"calibrated={calibrated})"])

    # --- helpers ---

    def _predicted(
        self, inputs: Iterable[Any], total: int | None, show_progress: bool | None, options: Mapping[str, Any]
    ) -> Iterator[PredictionT]:
        fitted = self.fitted
        wanted: Any = chosen(self.spec.predict_options, options, f"{type(self).__name__}.predict()", known=("show_progress",))
        # What the model cannot do is said before it reads anything.
        fitted.outputs.confidence.chosen_calibration(getattr(wanted, "calibrated", None), self.model.name)
        predictions = fitted.outputs.decide(
            fitted.scores(inputs, wanted, total=total, show_progress=show_progress), wanted
        )
        return cast("Iterator[PredictionT]", predictions)

    def _fit_options(self, options: Mapping[str, Any]) -> tuple[Any, Any, TrainingOptions]:
        call = f"{type(self).__name__}.fit()"
        usual = self._usual_columns()
        names = column_names(usual)
        columns = renamed(usual, {name: value for name, value in options.items() if name in names})
        training = {name: value for name, value in options.items() if name in TRAINING and name not in names}
        rest = {name: value for name, value in options.items() if name not in {*names, *training}}
        own: Any = chosen(self.spec.fit_options, rest, call, known=(*names, *TRAINING))
        return columns, own, TrainingOptions(**training)

    def _usual_columns(self) -> Any:  # noqa: ANN401 (the task's own)
        """Columns of a fit that names none."""
        return self.spec.columns


def card_with_threshold(card: Mapping[str, Any], confidence: Confidence, rows: int) -> dict[str, Any]:
    """Return a card after the out-of-domain threshold was fitted to so many rows from elsewhere."""
    if "trust" not in card:
        return dict(card)
    fitted = {name: confidence.to_card()[name] for name in ("out_of_domain", "out_of_domain_threshold")}
    limits = [limit for limit in card.get("limits", ()) if not limit.startswith(OUT_OF_DOMAIN_LIMIT)]
    limit = f"{OUT_OF_DOMAIN_LIMIT} {rows:,} rows from elsewhere: how well it tells these from others flatters it."
    trust = {**card["trust"], **fitted, "out_of_domain_rows": rows}
    return {**card, "trust": trust, "limits": [*limits, limit]}


def column_names(columns: Any) -> tuple[str, ...]:  # noqa: ANN401 (any dataclass of column names)
    """Return the parts of a row that have columns."""
    return tuple(each.name for each in fields(columns))


def _rows(columns: ColumnNames, data: Any, labels: Sequence[object] | None) -> Any:  # noqa: ANN401 (sources of rows)
    """Return a source of rows; inputs with labels become rows."""
    if labels is None:
        return data
    inputs, _ = batch_of(columns, data)
    if len(inputs) != len(labels):
        raise InvalidInput(f"expected as many labels as inputs, got {len(labels)} and {len(inputs)}.")
    return [columns.labelled_row(value, label) for value, label in zip(inputs, labels, strict=True)]


def _validation_rows(columns: ColumnNames, validation: Any) -> Any:  # noqa: ANN401 (as above)
    if isinstance(validation, tuple) and len(validation) == 2 and not isinstance(validation[0], Mapping):
        return _rows(columns, *validation)
    return validation
