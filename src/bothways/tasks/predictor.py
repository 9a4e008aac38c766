"""The verbs of a trained model, written once: predict, score, evaluate, compare, save.

They read nothing but a `Fitted` value, so a model of one task and an ensemble have them alike.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypedDict, TypeVar, Unpack, cast, overload

import numpy as np
from numpy.typing import NDArray

from bothways.choices import OnEmpty
from bothways.confidence.confidence import Confidence
from bothways.data import Row, Source, read_rows
from bothways.errors import EmptyInput, InvalidInput, did_you_mean
from bothways.evaluation import (
    ComparisonReport,
    OperatingPoint,
    Outcomes,
    Report,
    check_labels,
    compare,
    operating_point,
    out_of_domain_report,
)
from bothways.tasks.card import card_with_threshold, training_baseline
from bothways.tasks.columns import batch_of, column_names, input_of, renamed
from bothways.tasks.predictions import warn_of_cut
from bothways.tasks.scores import Scores, texts_read
from bothways.tasks.spec import PredictArguments, TaskSpec, chosen

InputT = TypeVar("InputT")
PredictionT = TypeVar("PredictionT", covariant=True)


class EvaluateArguments(TypedDict, total=False):
    """Columns and options of `evaluate` and `score`, of all tasks; which ones a task has, its spec says."""

    text: str | tuple[str, ...] | None
    text_a: str | None
    text_b: str | None
    label: str | None
    score: str | None
    anchor: str | None
    positive: str | None
    negative: str | tuple[str, ...] | None
    columns: Any
    tokens: str | None
    tags: str | None
    question: str | None
    context: str | None
    answers: str | None
    choices: str | tuple[str, ...] | None
    scheme: Any
    masking: Any


class Fitted(Protocol):
    """A trained model of a task: an immutable value."""

    @property
    def outputs(self) -> Any:  # noqa: ANN401 (the task's own, see `bothways.tasks.outputs`)
        """The outputs of the model, with the confidence fitted on held-out rows."""

    @property
    def columns(self) -> Any:  # noqa: ANN401 (the task's own)
        """The columns of a row's parts."""

    @property
    def card(self) -> Mapping[str, Any]:
        """The card of the model."""

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


class Predictor(ABC, Generic[InputT, PredictionT, FittedT]):
    """A trained model, or one to be trained, and the verbs of trained ones.

    Attributes:
        spec: What the task declares.
    """

    spec: ClassVar[TaskSpec]
    _fitted: FittedT | None

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the model in messages."""

    @abstractmethod
    def _not_fitted(self) -> Exception:
        """Return the error of asking a model that was not trained for this."""

    @property
    def fitted(self) -> FittedT:
        """The fitted state of the model.

        Raises:
            NotFitted: It was not trained for this.
        """
        if self._fitted is None:
            raise self._not_fitted()
        return self._fitted

    def _with(self, fitted: FittedT) -> Self:
        """Return the same model with another trained value."""
        made = copy(self)
        made._fitted = fitted
        return made

    @property
    def parts(self) -> Mapping[str, Any]:
        """The model of each task, for a model of several tasks; empty for others."""
        return {}

    # --- the verbs ---

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
            inputs: What the task reads, or many: a list, a tuple, a generator, a NumPy array, a Series; a DataFrame or
                a Dataset is read by the columns of the training.
            show_progress: Force the progress bar on or off.
            options: Of the predictions, see the task's ``spec.predict_options``.

        Raises:
            NotFitted: The model was not trained for this.
            NotCalibrated: Something was asked for that takes held-out rows to learn.
            InvalidInput: An input is empty or not what the task reads.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        listed, alone = batch_of(self._columns(), inputs)
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
        columns = self._columns()
        checked = (input_of(columns, number, value) for number, value in enumerate(inputs))
        return self._predicted(checked, total, show_progress, options)

    def predict_proba(
        self, inputs: Iterable[Any], *, show_progress: bool | None = None, **options: Unpack[PredictArguments]
    ) -> NDArray[np.float64]:
        """Return the probabilities of labels (N, C) for many inputs; columns are in the order of `labels`.

        Args:
            inputs: A list, a tuple, an array, a Series.
            show_progress: Force the progress bar on or off.
            options: As for `predict`.

        Raises:
            InvalidInput: The model gives no probability of each label, or an input is not usable.
        """
        labels = self.labels
        if options.pop("top", None) is not None:
            raise InvalidInput("predict_proba gives the probabilities of all labels: leave top out, or use predict.")
        listed, _ = batch_of(self._columns(), inputs)
        stream = self.predict_stream(listed, total=len(listed), show_progress=show_progress, **options)
        found = [getattr(each, "probabilities", None) for each in stream]
        if not labels or not all(isinstance(each, Mapping) for each in found):
            raise InvalidInput(f"a {type(self).__name__} has no probability for each label of an input: use predict.")
        rows = [[each[label] for label in labels] for each in found if isinstance(each, Mapping)]
        return np.array(rows).reshape(-1, len(labels))

    @overload
    def predict_rows(
        self,
        rows: Iterable[Row],
        *,
        on_empty: Literal["error", "skip"] = ...,
        show_progress: bool | None = ...,
        **options: Unpack[PredictArguments],
    ) -> Iterator[PredictionT]: ...

    @overload
    def predict_rows(
        self,
        rows: Iterable[Row],
        *,
        on_empty: OnEmpty,
        show_progress: bool | None = ...,
        **options: Unpack[PredictArguments],
    ) -> Iterator[PredictionT | None]: ...

    def predict_rows(
        self,
        rows: Iterable[Row],
        *,
        on_empty: OnEmpty = "error",
        show_progress: bool | None = None,
        **options: Unpack[PredictArguments],
    ) -> Iterator[PredictionT | None]:
        """Yield a prediction for each row, in order and in flat memory; columns as in `columns`.

        Args:
            rows: The rows.
            on_empty: What becomes of a row without a text: an error, no prediction (``"skip"``), or None in its place
                (``"null"``).
            show_progress: Force the progress bar on or off.
            options: As for `predict`.

        Raises:
            EmptyInput: A row has no text, and ``on_empty`` is ``"error"``.
            InvalidInput: A row is not usable.
        """
        if on_empty == "error":
            return self._predicted(map(self._columns().read, rows), None, show_progress, options)
        if on_empty not in ("skip", "null"):
            raise InvalidInput(f"on_empty must be 'error', 'skip' or 'null', but it is {on_empty!r}.")
        waiting: deque[bool] = deque()  # whether each row that was read has a text
        predicted = self._predicted(with_text(self._columns().read, rows, waiting), None, show_progress, options)
        filled = with_gaps(predicted, waiting)
        return filled if on_empty == "null" else (each for each in filled if each is not None)

    def score(
        self,
        data: Source | Iterable[Any],
        *,
        seed: int = 0,
        show_progress: bool | None = None,
        **options: Unpack[EvaluateArguments],
    ) -> ScoredRows:
        """Return the scores of labelled rows, before any decision, and what is right.

        Args:
            data: A file, or rows.
            seed: Draws the words that masked language modelling hides; other tasks draw nothing.
            show_progress: Force the progress bar on or off.
            options: Columns by their names; those of the training when left out. And the task's ``spec.data_options``.

        Raises:
            NotFitted: The model was not trained for this.
            InvalidInput: The data are not usable, or hold a label that was not there in training.
        """
        fitted = self.fitted
        columns, own = self._columns_of(fitted.columns, options)
        call, known = f"{type(self).__name__}.evaluate()", column_names(fitted.columns)
        reading: Any = chosen(self.spec.data_options, own, call, known=known)
        return self._scored(data, columns, reading, seed, show_progress)

    def _scored(
        self,
        data: Any,  # noqa: ANN401 (sources of rows)
        columns: Any,  # noqa: ANN401 (the task's own)
        reading: Any,  # noqa: ANN401 (the task's own)
        seed: int,
        show_progress: bool | None,
    ) -> ScoredRows:
        del seed
        fitted = self.fitted
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
        data: Source | Iterable[Any],
        *,
        resamples: int = 1000,
        seed: int = 0,
        show_progress: bool | None = None,
        **options: Unpack[EvaluateArguments],
    ) -> Report:
        """Return metrics on labelled rows, with 95 % bootstrap intervals; calibrated where the model is.

        Args:
            data: A file, or rows.
            resamples: Bootstrap resamples for the intervals.
            seed: Of the bootstrap, and as for `score`.
            show_progress: Force the progress bar on or off.
            options: As for `score`.

        Raises:
            NotFitted: The model was not trained for this.
            InvalidInput: The data are not usable, or hold a label that was not there in training.
        """
        rows = self.score(data, seed=seed, show_progress=show_progress, **options)
        return self.report(rows, resamples=resamples, seed=seed)

    def report(
        self, rows: ScoredRows, *, calibrated: bool | None = None, resamples: int = 1000, seed: int = 0
    ) -> Report:
        """Return the metrics of rows that were scored; see `evaluate`."""
        outcomes: Outcomes = self.outputs.outcomes(rows.scores, rows.truth, calibrated=calibrated)
        return replace(outcomes.report(resamples=resamples, seed=seed), baseline=training_baseline(self.card))

    def operating_points(
        self,
        rows: ScoredRows,
        *,
        at_precision: float | None = None,
        at_recall: float | None = None,
        label: str | None = None,
        resamples: int = 1000,
        seed: int = 0,
    ) -> tuple[OperatingPoint, ...]:
        """Return the highest recall at a wanted precision, and the highest precision at a wanted recall.

        Args:
            rows: What `score` gave for labelled rows.
            at_precision: At least this precision.
            at_recall: At least this recall.
            label: The class that they are of; the one with fewer rows when left out.
            resamples: Bootstrap resamples for the intervals.
            seed: Of the bootstrap.

        Raises:
            InvalidInput: The model does not tell two classes apart, has no such class, or there are no rows of one.
        """
        names = self.check_class(label)
        outputs, rows_C = self.outputs, np.bincount(rows.truth, minlength=2)
        number = int(rows_C[1] <= rows_C[0]) if label is None else names.index(label)
        probability_N = outputs.class_probabilities(rows.scores)[:, number]
        wanted = [{"precision": at_precision}] * (at_precision is not None)
        wanted += [{"recall": at_recall}] * (at_recall is not None)
        return tuple(
            operating_point(names[number], rows.truth == number, probability_N, **each, resamples=resamples, seed=seed)
            for each in wanted
        )

    def check_class(self, label: str | None = None) -> tuple[str, ...]:
        """Return the names of the two classes that the model tells apart.

        Raises:
            InvalidInput: It tells others apart, or has none of this name.
        """
        names: tuple[str, ...] = getattr(self.outputs, "two_classes", ())
        if not names:
            raise InvalidInput(
                f"precision and recall at a threshold take a model of two classes, and {self.name!r} is none."
            )
        if label is not None and label not in names:
            raise InvalidInput(
                f"expected a class of {names[0]!r} and {names[1]!r}, got {label!r}.{did_you_mean(label, names)}"
            )
        return names

    def compare(
        self,
        other: "Predictor[Any, Any, Any]",
        data: Source,
        *,
        resamples: int = 1000,
        seed: int = 0,
        show_progress: bool | None = None,
    ) -> ComparisonReport:
        """Return metrics of this model and another, their difference with paired intervals, and tests of it.

        Each model reads the columns that it was trained on and states its own calibrated probabilities. Taggers of
        different schemes are compared by their spans alone: the accuracy of their words, which is of other tags, is
        left out.

        Args:
            other: A model that answers alike, with the same labels in whatever order: an ensemble beside a member, a
                classifier from a few examples beside a fine-tuned one. Differences are ``other`` minus this one.
            data: A file, or rows.
            resamples: Bootstrap resamples for the intervals.
            seed: Of resamples and permutations.
            show_progress: Force the progress bar on or off.

        Raises:
            InvalidInput: The models answer differently or have different labels, or the data are not usable.
        """
        if not isinstance(other, Predictor):
            raise InvalidInput(f"expected models whose answers can be right or wrong, got a {type(other).__name__}.")
        # Now, and not after minutes of predicting, nor as an error in the data.
        check_labels(self.comparable, other.comparable)
        outcomes = []
        for model in (self, other):
            rows = model.score(data, show_progress=show_progress)
            outcomes.append(model.outputs.outcomes(rows.scores, rows.truth))
        return compare(*outcomes, resamples=resamples, seed=seed)

    @property
    def comparable(self) -> tuple[str, ...]:
        """The names that the model's predictions can have; models to compare with have the same.

        Raises:
            InvalidInput: Its answers cannot be right or wrong.
        """
        found: tuple[str, ...] = self.outputs.comparable
        return found

    @abstractmethod
    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the model, whole or not at all.

        Raises:
            NotFitted: The model was not trained for this.
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """

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
        fitted = self.fitted
        scores = self._elsewhere(others, show_progress)
        warn_of_cut(texts_read(each.read for each in scores))
        outputs = fitted.outputs
        detector = outputs.confidence.detector(self.name).separating(outputs.evidence(scores))
        learnt = replace(outputs, confidence=replace(outputs.confidence, out_of_domain=detector))
        card = card_with_threshold(fitted.card, learnt.confidence, len(scores))
        self._fitted = replace(fitted, outputs=learnt, card=card)  # type: ignore[type-var]

    def out_of_domain(
        self,
        inside: ScoredRows,
        others: Source,
        *,
        resamples: int = 1000,
        seed: int = 0,
        show_progress: bool | None = None,
    ) -> Report:
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
        found = outputs.confidence.detector(self.name)
        pairs = (found.detector.score(outputs.evidence(each)) for each in (inside.scores, scores))
        report = out_of_domain_report(*pairs, threshold=found.threshold, resamples=resamples, seed=seed)
        return replace(report, tokens_read=texts_read(each.read for each in scores))

    def _elsewhere(self, others: Source, show_progress: bool | None) -> list[Scores[Any]]:
        self.confidence.detector(self.name)  # before the texts are read, and not after
        inputs = self.inputs(others)
        return list(
            self.fitted.scores(inputs, description="reading others", total=len(inputs), show_progress=show_progress)
        )

    # --- what is known of the model ---

    @property
    def outputs(self) -> Any:  # noqa: ANN401 (the task's own)
        """The outputs of the model, with the confidence fitted on held-out rows."""
        return self.fitted.outputs

    @property
    def confidence(self) -> Confidence:
        """Calibration, coverage and out-of-domain detection; empty before a fit."""
        fitted = self._fitted
        found: Confidence = Confidence() if fitted is None else fitted.outputs.confidence
        return found

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the outputs; none where they have no names."""
        found: tuple[str, ...] = self.outputs.labels
        return found

    @property
    def columns(self) -> Any:  # noqa: ANN401 (the task's own)
        """The columns of a row's parts: as in training, or the usual ones."""
        fitted = self._fitted
        return self.spec.columns if fitted is None else fitted.columns

    @property
    def column_names(self) -> tuple[str, ...]:
        """Parts of a row that have columns, by the names that `with_columns` and `evaluate` take."""
        return column_names(self._columns())

    @property
    def input_columns(self) -> tuple[str, ...] | None:
        """Columns that hold the inputs; None where several models or tasks read some each."""
        found: tuple[str, ...] | None = getattr(self._columns(), "input_columns", None)
        return found

    @property
    def card(self) -> dict[str, Any]:
        """The card of the model; empty before a fit."""
        fitted = self._fitted
        return {} if fitted is None else dict(fitted.card)

    def with_columns(self, **names: object) -> Self:
        """Return the same model, reading other columns.

        Raises:
            UnreadColumn: It reads no such part of a row.
        """
        fitted = self.fitted
        columns, unknown = self._columns_of(fitted.columns, names)
        return self._with(replace(fitted, columns=renamed(columns, unknown)))  # type: ignore[type-var]

    def facts(self) -> dict[str, object]:
        """Return what a user wants to know of the model, as JSON values: labels, calibration, thresholds."""
        return self.fitted.facts()

    def inputs(self, rows: Source) -> list[Any]:
        """Return the inputs of rows.

        Raises:
            InvalidInput: One is missing or empty; the message names the row.
        """
        return [self._columns().read(row) for row in read_rows(rows)]

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """Return rows, as a file would have them, for texts typed on a command line.

        Raises:
            InvalidInput: There are too few texts or too many.
        """
        rows: list[dict[str, object]] = self._columns().rows_of(texts)
        return rows

    def __repr__(self) -> str:
        fitted = self._fitted
        name = f"{type(self).__name__}({self.name!r}"
        if fitted is None:
            return f"{name}, not fitted)"
        known = fitted.outputs.labels
        shown = [f"labels={list(known[:5])}{' ...' if len(known) > 5 else ''}"] if known else []
        calibrated = fitted.outputs.confidence.calibration is not None
        return ", ".join([name, *shown, f"calibrated={calibrated})"])

    # --- helpers ---

    def _columns(self) -> Any:  # noqa: ANN401 (the task's own)
        """Return what reads inputs: the columns, or those of all members of an ensemble."""
        return self.columns

    def _options(self, options: Mapping[str, Any]) -> Any:  # noqa: ANN401 (the task's own)
        """Return the options of a prediction as a value."""
        return chosen(self.spec.predict_options, options, f"{type(self).__name__}.predict()", known=("show_progress",))

    def _columns_of(self, usual: Any, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401 (the task's own)
        """Return the columns that a call names, the others as usual, and the rest of its options."""
        names = column_names(usual)
        columns = renamed(usual, {name: value for name, value in options.items() if name in names})
        return columns, {name: value for name, value in options.items() if name not in names}

    def _predicted(
        self, inputs: Iterable[Any], total: int | None, show_progress: bool | None, options: Mapping[str, Any]
    ) -> Iterator[PredictionT]:
        fitted, wanted = self.fitted, self._options(options)
        # What the model cannot do is said before it reads anything.
        fitted.outputs.confidence.chosen_calibration(getattr(wanted, "calibrated", None), self.name)
        scores = fitted.scores(inputs, wanted, total=total, show_progress=show_progress)
        return cast("Iterator[PredictionT]", fitted.outputs.decide(scores, wanted))


def with_text(read: Callable[[Row], InputT], rows: Iterable[Row], waiting: deque[bool]) -> Iterator[InputT]:
    """Yield the inputs of rows that have a text; ``waiting`` notes which ones do."""
    for row in rows:
        try:
            value = read(row)
        except EmptyInput:
            waiting.append(False)
            continue
        waiting.append(True)
        yield value


def with_gaps(predicted: Iterable[PredictionT], waiting: deque[bool]) -> Iterator[PredictionT | None]:
    """Yield predictions, and None for each row that had no text, in the order of the rows."""
    for each in predicted:
        while not waiting.popleft():
            yield None
        yield each
    yield from (None for _ in waiting)
