"""The base class of all tasks: open, train, predict, evaluate and save.

A task is data plus a few functions: its declarations (`TaskSpec`), the meaning of its scores (`Outputs`), and its
training. `Task.fit` trains a copy and replaces the model at the end, so a training that fails changes nothing.
Predictions are made by an immutable value (`TrainedModel`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, Unpack, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from bothways import checkpoints
from bothways.checkpoints.hub import LocatedModel
from bothways.choices import GoldenSource, LabelValue
from bothways.confidence.confidence import Confidence
from bothways.errors import InvalidInput
from bothways.lazy import imported
from bothways.progress import progress
from bothways.storage import MODEL, new_folder
from bothways.tasks.backend import Backend, OpenOptions, check_requested
from bothways.tasks.columns import column_names, inputs_of, parse, renamed
from bothways.tasks.opening import OpenArguments, located_model, open_backend, with_weights
from bothways.tasks.outputs import (
    AnsweringTask,
    TrainedHead,
    TrainedModel,
    outputs_type,
    score_blocks,
    score_rows,
)
from bothways.tasks.scores import ScoredRows, Shares, label_probabilities
from bothways.tasks.spec import DataArguments, MeasuredData, PredictArguments, PredictOptions, TaskSpec, chosen

if TYPE_CHECKING:
    from bothways.checkpoints import Answering, PretrainedEncoder
    from bothways.data import Source
    from bothways.evaluation.report import Report
    from bothways.tasks.heads.splits import TaskTraining
    from bothways.tasks.spec import FitArguments
    from bothways.training.state import TrainingRecord

TrainedT = TypeVar("TrainedT", bound=TrainedModel, default=TrainedHead)
InputT = TypeVar("InputT")
PredictionT = TypeVar("PredictionT", covariant=True)


class Task(Generic[InputT, PredictionT, TrainedT]):
    """A model, trained or not, with methods to open, fine-tune, predict, evaluate and save."""

    spec: TaskSpec

    def __init__(self, backend: Backend, fitted: TrainedT | None = None) -> None:
        given: object = backend  # users often pass the name of a model by mistake
        if not isinstance(given, Backend):
            way = f"{type(self).__name__}.from_pretrained(...) opens a name or a folder"
            raise InvalidInput(f"expected an opened model, got {given!r}: {way}.")
        self._opened = backend
        self._fitted = fitted

    @property
    def fitted(self) -> TrainedT:
        """The trained model, an immutable value.

        Raises:
            NotFitted: The model was not trained for this task.
        """
        if self._fitted is None:
            raise self._not_fitted()
        return self._fitted

    @property
    def backend(self) -> Backend:
        """The opened model with its tokenizer, text options and runner."""
        return self._opened if self._fitted is None else self._fitted.backend

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.backend.name

    @property
    def model(self) -> PretrainedEncoder:
        """The encoder and its tokenizer.

        Raises:
            InvalidInput: The model is an ONNX export, which has no weights.
        """
        return with_weights(self.backend, "use").model

    @classmethod
    def _backend(cls, located: LocatedModel, options: OpenOptions) -> Backend:
        return open_backend(located, cls.spec.name, options)

    def _not_fitted(self) -> Exception:
        head = outputs_type(self.spec).head_title if self.spec.outputs else "head"
        return self.backend.not_fitted(self.spec.name, head)

    def _columns_of(self, usual: Any, options: Mapping[str, object]) -> tuple[Any, dict[str, object]]:  # noqa: ANN401 (the task's own)
        """Return the default columns, updated with the columns that a call names, and the other options of the call."""
        names = column_names(usual)
        columns = renamed(usual, {name: value for name, value in options.items() if name in names})
        return columns, {name: value for name, value in options.items() if name not in names}

    def _with(self, fitted: TrainedT) -> Self:
        made = copy(self)
        made._fitted = fitted
        return made

    def _replaced(self, **changes: object) -> Self:
        return self._with(replace(self.fitted, **changes))  # type: ignore[type-var]

    # --- opening, fitting and saving ---

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path, **options: Unpack[OpenArguments]) -> Self:
        """Open an encoder to fine-tune, or a trained model to use.

        Args:
            name_or_path: A folder or a name, see `bothways.load`.
            options: Options for finding the checkpoint, for the device and for reading texts (`OpenOptions`), and the
                task's own options (its ``spec.open_options``).

        Raises:
            InvalidInput: An option is out of its range, or a trained head has no label names.
            AnswersChanged: With ``check=True``, the model differs from its golden answers.
            CorruptCheckpoint: A file is damaged. Also raises everything that `bothways.load` raises.
        """
        opening: OpenOptions = options
        check = check_requested(options)
        known = tuple(OpenOptions.__annotations__)
        own = {name: value for name, value in options.items() if name not in known}
        given: object = chosen(cls.spec.open_options, own, f"{cls.__name__}.from_pretrained()", known=known)
        with located_model(name_or_path, opening) as located:
            backend = cls._backend(located, opening)
            backend = replace(backend, reading=replace(backend.reading, cut=cls.spec.cut), options=given)
            model = cls(backend, imported(cls.spec.opener)(cls.spec, backend))
            if check:
                checkpoints.check_folder(located.folder, model.name, model._answering, model._answering_encoder)
            return model

    def fit(
        self,
        data: Source | Iterable[object],
        labels: Iterable[object] | None = None,
        *,
        validation: Source | Iterable[object] | tuple[Iterable[object], Iterable[object]] | None = None,
        **options: Unpack[FitArguments],
    ) -> TrainingRecord:
        """Fine-tune, choose the epoch to keep, and calibrate the predictions on held-out rows.

        The epoch kept is the latest one whose validation score is within a standard error of the best. A training that
        fails, or that Ctrl-C or SIGTERM ends before its first epoch is complete, leaves the model unchanged.

        Args:
            data: A file, rows (mappings, a DataFrame, a Dataset), or inputs with their ``labels``.
            labels: Labels of the inputs; None if ``data`` are rows.
            validation: Held-out data: a file, rows, or a tuple of inputs and their labels. Default: a tenth of the
                training data, drawn with ``seed``. For a sentence embedder and at most 100 single-label texts, no rows
                are held out, and the model is evaluated by cross-validation.
            options: Columns by their names (the task's ``spec.columns``), the task's own options (its
                ``spec.fit_options``), and the options of every training (`TrainingOptions`).

        Raises:
            InvalidInput: The data or an option is not usable; the message names the row.
            TypeError: An option is unknown.
        """
        from bothways.tasks.heads.splits import TrainingData, split_fit_options
        from bothways.training.stages import measured, stages_of, train  # only training needs the loop

        backend = with_weights(self.backend, "train")
        columns, own, training = split_fit_options(self, options)
        rows = TrainingData.of(columns, data, labels, validation)
        with stages_of(training) as times:
            backend = backend.copy_for_training(resumed=training.resume)
            lay_out = imported(self.spec.training)
            ready: TaskTraining[TrainedT] = lay_out(self.spec, backend, self._fitted, rows, columns, own, training)
            record = train(ready.objective, training, backend.model, reads=lambda: ready.reads)
            if not record.finished_no_epoch:
                self._fitted = fitted = ready.finish(record)
                self._opened = fitted.backend  # frees the memory of the previous model
        return measured(record, times, None if record.finished_no_epoch else self._fitted)

    def save(self, folder: str | Path, *, overwrite: bool = False, golden: GoldenSource | None = "validation") -> None:
        """Save the model in the layout of transformers and sentence-transformers; a failed save leaves no files.

        Args:
            folder: The folder.
            overwrite: Replace an existing folder.
            golden: Inputs of the golden answers: up to 16 held-out inputs, or neutral ones if there are none. With
                ``"neutral"``, no data are quoted; None saves none. Both save no checksums of the training rows.

        Raises:
            NotFitted: The model was not trained for this task.
            OutputExists: The folder exists and ``overwrite`` is false, or it is not a model.
            OutOfDisk: The disk is full.
        """
        from bothways.tasks.readme import write_readme

        with_weights(self.backend, "save")
        with new_folder(folder, overwrite=overwrite, kind=MODEL) as new:
            self.fitted.write(new)
            if golden == "validation":
                self.fitted.known.write(new)
            checkpoints.write_golden(new, self._answering(), golden)
            write_readme(new, type(self).__name__, self.spec)

    def _answering(self) -> AnsweringTask:
        """Return the model as its golden answers see it."""
        return AnsweringTask(self.spec.name, self.fitted)

    def _answering_encoder(self) -> Answering:
        return checkpoints.AnsweringEncoder(self.model)

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
        self, inputs: object, *, show_progress: bool | None = None, **options: Unpack[PredictArguments]
    ) -> PredictionT | list[PredictionT]:
        """Return a prediction for one input, or a list of them for many, in order.

        Args:
            inputs: One input of the task, or a batch: a list, a tuple, a generator, a NumPy array, a Series, or a
                DataFrame or Dataset with the columns that the model was trained on.
            show_progress: Force the progress bar on or off.
            options: Options of the prediction, see the task's ``spec.predict_options``.

        Raises:
            NotFitted: The model was not trained for this task.
            NotCalibrated: An option needs calibration or coverage, which were not fitted.
            InvalidInput: An input is empty or has the wrong type.
            TextTooLong: A text is too long, and ``on_overflow`` is ``"error"``.
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
        inputs: Iterable[object],
        *,
        total: int | None = None,
        show_progress: bool | None = None,
        **options: Unpack[PredictArguments],
    ) -> Iterator[PredictionT]:
        """Yield predictions for an iterable of any length, in order and in constant memory.

        Args:
            inputs: Inputs of the task, or rows of a file from `bothways.data.read_rows`.
            total: Number of inputs for the progress bar, if known.
            show_progress: Force the progress bar on or off.
            options: As for `predict`.
        """
        return self._predictions(inputs_of(self.fitted.columns, inputs), total, show_progress, options)

    def predict_proba(
        self, inputs: Iterable[object], *, show_progress: bool | None = None, **options: Unpack[PredictArguments]
    ) -> NDArray[np.float64]:
        """Return the label probabilities of many inputs (N, C); the columns are in the order of `labels`.

        Args:
            inputs: A list, a tuple, an array, a Series.
            show_progress: Force the progress bar on or off.
            options: As for `predict`.

        Raises:
            InvalidInput: The model does not give a probability for each label, or an input is not usable.
        """
        labels = self.labels
        if options.pop("top", None) is not None:
            raise InvalidInput("predict_proba gives the probabilities of all labels: leave top out, or use predict.")
        listed, _ = parse(self.fitted.columns, inputs)
        predictions = self._predictions(listed, len(listed), show_progress, options) if labels else [None]
        return label_probabilities(predictions, labels, type(self).__name__)

    def _predict_options(self, options: Mapping[str, object]) -> PredictOptions:
        """Return the options of a prediction as a value, after checking that the model supports them."""
        call = f"{type(self).__name__}.predict()"
        given = chosen(self.spec.predict_options, options, call, known=("show_progress",))
        if options.get("calibrated"):
            self.confidence.check_calibrated(self.name)
        return given

    def _predictions(
        self, inputs: Iterable[InputT], total: int | None, show_progress: bool | None, options: Mapping[str, object]
    ) -> Iterator[PredictionT]:
        """Return an iterator over predictions; the options are checked before the first prediction is computed."""
        fitted, given = self.fitted, self._predict_options(options)
        blocks = score_blocks(fitted, inputs, given, total=total, show_progress=show_progress)
        return (prediction for scores in blocks for prediction in fitted.outputs.decide(scores, given))

    # --- evaluate ---

    def score(
        self,
        data: Source | Iterable[object],
        *,
        baseline: bool = False,
        seed: int = 0,
        show_progress: bool | None = None,
        **options: Unpack[DataArguments],
    ) -> ScoredRows:
        """Run the model on labelled rows, and return its scores and the true labels, for `evaluate`.

        Args:
            data: A file, or rows.
            baseline: Also run the baseline of the model on the rows.
            seed: Seed of the masks in masked language modelling; other tasks ignore it.
            show_progress: Force the progress bar on or off.
            options: Columns by their names (default: those of the training), and the task's ``spec.data_options``.
        """
        kept, shared, given = self._compared(data, options)
        rows = replace(self._scored(kept, given, seed, show_progress), shared=shared)
        return replace(rows, baseline=self.fitted.score_baseline(rows, show_progress)) if baseline else rows

    def _compared(self, data: object, options: Mapping[str, object]) -> tuple[Sequence[Any], Shares, MeasuredData]:
        usual, call = self.fitted.columns, f"{type(self).__name__}.evaluate()"
        columns, own = self._columns_of(usual, options)
        given: MeasuredData = chosen(self.spec.data_options, own, call, known=column_names(usual))
        return *self.fitted.known.compared(self.fitted.outputs.read(data, columns, given), given.shared), given

    def _scored(self, rows: Sequence[Any], options: object, seed: int, show_progress: bool | None) -> ScoredRows:
        del options, seed
        return score_rows(self.fitted, rows, show_progress)

    def evaluate(
        self,
        data: Source | Iterable[object] | ScoredRows,
        *,
        calibrated: bool | None = None,
        baseline: bool = True,
        resamples: int = 1000,
        seed: int = 0,
        show_progress: bool | None = None,
        **options: Unpack[DataArguments],
    ) -> Report:
        """Return metrics on labelled rows, with 95 % bootstrap intervals, and those of the baseline on the same rows.

        The baseline is the model before the training, such as a linear model of frozen hidden states, whose base model
        is opened again. It is the best constant prediction if the base model is not on this machine, or if the model is
        its own baseline. The baseline of an ensemble is its best member. Some tasks, and models that were saved by
        earlier versions, have no baseline.

        Args:
            data: A file, rows, or the result of `score`.
            calibrated: False evaluates uncalibrated probabilities. Default: calibrated if the model is calibrated.
            baseline: False evaluates the model alone, which takes about half the time.
            resamples: Bootstrap resamples for the intervals.
            seed: Seed of the bootstrap, and of `score`.
            show_progress: Force the progress bar on or off.
            options: As for `score`.

        Raises:
            NotFitted: The model was not trained for this task.
            InvalidInput: The data are not usable, or contain a label that did not occur in training.
        """
        if not isinstance(data, ScoredRows):
            data = self.score(data, baseline=baseline, seed=seed, show_progress=show_progress, **options)
        return self._report(data, calibrated, resamples, seed)

    def _report(self, rows: ScoredRows, calibrated: bool | None, resamples: int, seed: int) -> Report:
        outcomes = self.fitted.outputs.outcomes(rows.scores, rows.truth, calibrated=calibrated)
        return rows.report(outcomes, calibrated, resamples, seed)

    @property
    def confidence(self) -> Confidence:
        """Calibration, coverage and out-of-domain detection; empty before a fit."""
        confidence: Confidence = Confidence() if self._fitted is None else self._fitted.outputs.confidence
        return confidence

    @property
    def labels(self) -> tuple[LabelValue, ...]:
        """The labels of the outputs, in the types of the training data; empty if the outputs have none."""
        outputs = self.fitted.outputs
        labels: tuple[LabelValue, ...] = outputs.labels and (outputs.row_target.values or outputs.labels)
        return labels

    @property
    def columns(self) -> Any:  # noqa: ANN401 (the task's own)
        """The names of the columns to read: those of the training, else the defaults."""
        return self.spec.columns if self._fitted is None else self._fitted.columns

    @property
    def card(self) -> dict[str, Any]:
        """The model card (data, training, metrics, limits) as JSON values; empty before a fit."""
        return {} if self._fitted is None else dict(self._fitted.card)

    def _with_card(self, **entries: object) -> Self:
        """Return a copy of the model with more entries in its card, as JSON values."""
        return self._replaced(card={**self.card, **entries})

    def facts(self) -> dict[str, object]:
        """Return labels, calibration and other settings of the trained model, as JSON values."""
        return self.fitted.facts()

    def with_columns(self, **names: object) -> Self:
        """Return a copy of the model that reads other columns.

        Raises:
            UnreadColumn: The model has no column argument of this name.
        """
        columns, unknown = self._columns_of(self.fitted.columns, names)
        return self._replaced(columns=renamed(columns, unknown))

    def __repr__(self) -> str:
        fitted = self._fitted
        name = f"{type(self).__name__}({self.name!r}"
        if fitted is None:
            return f"{name}, not fitted)"
        labels = self.labels
        shown = [f"labels={list(labels[:5])}{' ...' if len(labels) > 5 else ''}"] if labels else []
        calibrated = fitted.outputs.confidence.calibration is not None
        return ", ".join([name, *shown, f"calibrated={calibrated})"])


HeadTask: TypeAlias = Task[Any, Any, TrainedHead[Any]]
"""A model of a task with a head on top of the encoder."""

AnyTask: TypeAlias = Task[Any, Any, Any]
"""A model of any task, an ensemble, or a model of several tasks."""
