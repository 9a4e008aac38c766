"""The methods of a trained model, shared by all tasks: predict, score, evaluate, compare.

They use nothing but a `Fitted` value, so models of one task and ensembles have the same methods.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    Self,
    TypeAlias,
    TypeVar,
    Unpack,
    overload,
)

import numpy as np
from numpy.typing import NDArray

from bothways import data
from bothways.choices import OnEmpty
from bothways.confidence.confidence import Confidence
from bothways.errors import InvalidInput
from bothways.progress import progress
from bothways.tasks.columns import column_names, inputs_of, parse, renamed
from bothways.tasks.outputs import Fitted, score_blocks, score_inputs, scores_of_others
from bothways.tasks.scores import Classified, ScoredRows, texts_read, warn_of_cut
from bothways.tasks.spec import EvaluateArguments, PredictArguments, PredictOptions, TaskSpec, chosen

if TYPE_CHECKING:
    from bothways.data import Row, Source
    from bothways.evaluation.comparison import ComparisonReport
    from bothways.evaluation.report import Report

InputT = TypeVar("InputT")
PredictionT = TypeVar("PredictionT", covariant=True)
FittedT = TypeVar("FittedT", bound=Fitted)


class Predictor(ABC, Generic[InputT, PredictionT, FittedT]):
    """A model, trained or not, with the methods of trained models.

    Attributes:
        spec: The declarations of the task.
    """

    spec: ClassVar[TaskSpec]
    _fitted: FittedT | None

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the model in messages."""

    @abstractmethod
    def _not_fitted(self) -> Exception:
        """Return the error for using a model that was not trained for this task."""

    @property
    def fitted(self) -> FittedT:
        """The trained model as a value.

        Raises:
            NotFitted: The model was not trained for this task.
        """
        if self._fitted is None:
            raise self._not_fitted()
        return self._fitted

    def _with(self, fitted: FittedT) -> Self:
        made = copy(self)
        made._fitted = fitted
        return made

    # --- predict ---

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
            inputs: One input of the task, or many: a list, a tuple, a generator, a NumPy array, a Series; a DataFrame
                or a Dataset is read by the columns of the training.
            show_progress: Force the progress bar on or off.
            options: Options of the prediction, see the task's ``spec.predict_options``.

        Raises:
            NotFitted: The model was not trained for this.
            NotCalibrated: An option needs a confidence fitted on held-out rows, and there were none.
            InvalidInput: An input is empty or not what the task reads.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        fitted, given = self.fitted, self._predict_options(options)
        listed, single = parse(fitted.columns, inputs)
        predictions: list[PredictionT] = []
        with progress("predicting", len(listed), show=show_progress) as bar:
            for scores in fitted.score_blocks(listed, given):
                predictions += fitted.outputs.decide(scores, given)
                bar.advance(len(scores))
        return predictions[0] if single else predictions

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
        return self._predictions(inputs_of(self.fitted.columns, inputs), total, show_progress, options)

    def predict_proba(
        self, inputs: Iterable[Any], *, show_progress: bool | None = None, **options: Unpack[PredictArguments]
    ) -> NDArray[np.float64]:
        """Return the probabilities of labels (N, C) for many inputs; columns are in the order of `labels`.

        Args:
            inputs: A list, a tuple, an array, a Series.
            show_progress: Force the progress bar on or off.
            options: As for `predict`.

        Raises:
            InvalidInput: The model does not give a probability for each label, or an input is not usable.
        """
        labels = self.labels
        no_labels = f"a {type(self).__name__} has no probability for each label of an input: use predict."
        if not labels:
            raise InvalidInput(no_labels)
        if options.pop("top", None) is not None:
            raise InvalidInput("predict_proba gives the probabilities of all labels: leave top out, or use predict.")
        listed, _ = parse(self.fitted.columns, inputs)
        rows: list[list[float]] = []
        for each in self._predictions(listed, len(listed), show_progress, options):
            match each:
                case Classified(probabilities={**found}):
                    rows.append([found[label] for label in labels])
                case _:
                    raise InvalidInput(no_labels)
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
        """Yield a prediction for each row, in order and in flat memory; the columns are `columns`.

        Args:
            rows: The rows.
            on_empty: Treatment of a row without a text: an error, no prediction (``"skip"``), or None in its place
                (``"null"``).
            show_progress: Force the progress bar on or off.
            options: As for `predict`.

        Raises:
            EmptyInput: A row has no text, and ``on_empty`` is ``"error"``.
            InvalidInput: A row is not usable.
        """
        read = self.fitted.columns.read
        if on_empty == "error":
            return self._predictions(map(read, rows), None, show_progress, options)
        if on_empty not in ("skip", "null"):
            raise InvalidInput(f"on_empty must be 'error', 'skip' or 'null', got {on_empty!r}.")
        has_text: deque[bool] = deque()  # of each row that was read and not answered yet
        predictions = self._predictions(data.with_text(read, rows, has_text), None, show_progress, options)
        filled = data.with_gaps(predictions, has_text)
        return filled if on_empty == "null" else (each for each in filled if each is not None)

    def _predict_options(self, options: Mapping[str, Any]) -> PredictOptions:
        """Return the options of a prediction as a value, after checking that the model supports them."""
        call = f"{type(self).__name__}.predict()"
        given = chosen(self.spec.predict_options, options, call, known=("show_progress",))
        if options.get("calibrated"):
            self.confidence.chosen_calibration(True, self.name)
        return given

    def _predictions(
        self, inputs: Iterable[InputT], total: int | None, show_progress: bool | None, options: Mapping[str, Any]
    ) -> Iterator[PredictionT]:
        """Return predictions as a stream; options are checked before the first one is computed."""
        fitted, given = self.fitted, self._predict_options(options)
        blocks = score_blocks(fitted, inputs, given, total=total, show_progress=show_progress)
        return (prediction for scores in blocks for prediction in fitted.outputs.decide(scores, given))

    # --- evaluate ---

    def score(
        self,
        data: Source | Iterable[Any],
        *,
        seed: int = 0,
        show_progress: bool | None = None,
        **options: Unpack[EvaluateArguments],
    ) -> ScoredRows:
        """Return the scores and the truth of labelled rows, before any decision.

        Args:
            data: A file, or rows.
            seed: Seed for the words that masked language modelling hides; other tasks draw nothing.
            show_progress: Force the progress bar on or off.
            options: Columns by their names (default: those of the training), and the task's ``spec.data_options``.

        Raises:
            NotFitted: The model was not trained for this.
            InvalidInput: The data are not usable, or contain a label that did not occur in training.
        """
        fitted = self.fitted
        columns, own = self._columns_of(fitted.columns, options)
        call, known = f"{type(self).__name__}.evaluate()", column_names(fitted.columns)
        return self._scored(data, columns, chosen(self.spec.data_options, own, call, known=known), seed, show_progress)

    def _scored(
        self,
        data: Any,  # noqa: ANN401 (sources of rows)
        columns: Any,  # noqa: ANN401 (the task's own)
        options: Any,  # noqa: ANN401 (the task's own)
        seed: int,
        show_progress: bool | None,
    ) -> ScoredRows:
        del seed
        fitted = self.fitted
        examples = fitted.outputs.read(data, columns, options)
        truth, inputs = fitted.outputs.encode(examples), [each.text for each in examples]
        scores = score_inputs(fitted, inputs, description="evaluating", show_progress=show_progress)
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
        """Return metrics on labelled rows, with 95 % bootstrap intervals; calibrated if the model is.

        Args:
            data: A file, or rows.
            resamples: Bootstrap resamples for the intervals.
            seed: Seed of the bootstrap, and of `score`.
            show_progress: Force the progress bar on or off.
            options: As for `score`.

        Raises:
            NotFitted: The model was not trained for this.
            InvalidInput: The data are not usable, or contain a label that did not occur in training.
        """
        rows = self.score(data, seed=seed, show_progress=show_progress, **options)
        return self.report(rows, resamples=resamples, seed=seed)

    def report(
        self, rows: ScoredRows, *, calibrated: bool | None = None, resamples: int = 1000, seed: int = 0
    ) -> Report:
        """Return the metrics of scored rows; see `evaluate`."""
        from bothways.tasks.card import training_baseline

        outcomes = self.fitted.outputs.outcomes(rows.scores, rows.truth, calibrated=calibrated)
        report: Report = outcomes.report(resamples=resamples, seed=seed)
        return replace(report, baseline=training_baseline(self.card))

    def compare(
        self,
        other: AnyPredictor,
        data: Source,
        *,
        resamples: int = 1000,
        seed: int = 0,
        show_progress: bool | None = None,
    ) -> ComparisonReport:
        """Return metrics of this model and another, their differences with paired intervals, and significance tests.

        Each model reads the columns that it was trained on, and uses its own calibrated probabilities. Taggers with
        different schemes are compared by their spans alone, without the accuracy of words.

        Args:
            other: A model with the same labels in any order, such as an ensemble or another training run.
                Differences are ``other`` minus this one.
            data: A file, or rows.
            resamples: Bootstrap resamples for the intervals.
            seed: Seed of resamples and permutations.
            show_progress: Force the progress bar on or off.

        Raises:
            InvalidInput: The models have different tasks or labels, or the data are not usable.
        """
        from bothways.evaluation.comparison import check_labels, compare

        for model in (self, other):
            if not isinstance(model, Predictor) or not model.spec.comparable:
                kind = type(model).__name__
                raise InvalidInput(f"expected models whose answers can be right or wrong, got a {kind}.")
        # Before minutes of predicting, and not as an error in the data.
        check_labels(self.fitted.outputs.comparable, other.fitted.outputs.comparable)
        scored = [(each.fitted.outputs, each.score(data, show_progress=show_progress)) for each in (self, other)]
        ours, theirs = (outputs.outcomes(rows.scores, rows.truth) for outputs, rows in scored)
        return compare(ours, theirs, resamples=resamples, seed=seed)

    def fit_threshold(self, others: Source, *, show_progress: bool | None = None) -> None:
        """Move the out-of-domain threshold to the point that best separates held-out rows from out-of-domain rows.

        Args:
            others: Out-of-domain rows, in the columns of the training; their labels are not read.
            show_progress: Force the progress bar on or off.

        Raises:
            NotCalibrated: The model has no detector.
            InvalidInput: The data are not usable.

        Warns:
            TextsTruncated: Texts were cut (only with ``on_overflow="truncate"``).
        """
        from bothways.confidence.fitting import separating
        from bothways.tasks.card import card_with_threshold

        fitted, scores = self.fitted, scores_of_others(self.fitted, self.name, others, show_progress)
        warn_of_cut(texts_read(each.read for each in scores))
        outputs = fitted.outputs
        detector = separating(outputs.confidence.detector(self.name), outputs.evidence(scores))
        outputs = replace(outputs, confidence=replace(outputs.confidence, out_of_domain=detector))
        card = card_with_threshold(fitted.card, outputs.confidence, len(scores))
        self._fitted = replace(fitted, outputs=outputs, card=card)  # type: ignore[type-var]

    # --- facts about the model ---

    @property
    def outputs(self) -> Any:  # noqa: ANN401 (the task's own)
        """The meaning of the model's scores, with the confidence fitted on held-out rows."""
        return self.fitted.outputs

    @property
    def parts(self) -> Mapping[str, Any]:
        """The model of each task, for a model of several tasks; empty for others."""
        return {}

    def facts(self) -> dict[str, object]:
        """Return labels, calibration and thresholds, as JSON values."""
        return self.fitted.facts()

    @property
    def confidence(self) -> Confidence:
        """Calibration, coverage and out-of-domain detection; empty before a fit."""
        fitted = self._fitted
        found: Confidence = Confidence() if fitted is None else fitted.outputs.confidence
        return found

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the outputs; empty without names."""
        found: tuple[str, ...] = self.fitted.outputs.labels
        return found

    @property
    def columns(self) -> Any:  # noqa: ANN401 (the task's own)
        """The columns of a row's parts: as in training, or the usual ones."""
        return self.spec.columns if self._fitted is None else self._fitted.columns

    @property
    def card(self) -> dict[str, Any]:
        """The card of the model; empty before a fit."""
        return {} if self._fitted is None else dict(self._fitted.card)

    def with_columns(self, **names: object) -> Self:
        """Return the same model with other columns.

        Raises:
            UnreadColumn: The model reads no such part of a row.
        """
        fitted = self.fitted
        columns, unknown = self._columns_of(fitted.columns, names)
        return self._with(replace(fitted, columns=renamed(columns, unknown)))  # type: ignore[type-var]

    @abstractmethod
    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the model, whole or not at all.

        Raises:
            NotFitted: The model was not trained for this.
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """

    def __repr__(self) -> str:
        fitted = self._fitted
        name = f"{type(self).__name__}({self.name!r}"
        if fitted is None:
            return f"{name}, not fitted)"
        labels = fitted.outputs.labels
        shown = [f"labels={list(labels[:5])}{' ...' if len(labels) > 5 else ''}"] if labels else []
        calibrated = fitted.outputs.confidence.calibration is not None
        return ", ".join([name, *shown, f"calibrated={calibrated})"])

    # --- helpers ---

    def _columns_of(self, usual: Any, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401 (the task's own)
        """Return the default columns with those named in a call, and the rest of its options."""
        names = column_names(usual)
        columns = renamed(usual, {name: value for name, value in options.items() if name in names})
        return columns, {name: value for name, value in options.items() if name not in names}


AnyPredictor: TypeAlias = Predictor[Any, Any, Any]
"""A model of some task, an ensemble, or a model of several tasks."""
