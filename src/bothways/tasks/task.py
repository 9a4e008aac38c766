"""Opening, training and saving, shared by all tasks.

A task is data plus a few functions: its declarations (`TaskSpec`), the meaning of its scores (`Outputs`), and its
training. A fit works on a copy and replaces the model at its end, so a training that fails changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeAlias, Unpack, cast

from typing_extensions import TypeVar

from bothways import data as sources
from bothways.checkpoints.hub import LocatedModel, is_exported, locate
from bothways.choices import CalibrationChoice, ClassWeights, DetectorChoice, Merge, Pooling, Scheme, TargetKind
from bothways.errors import InvalidInput, NotFitted
from bothways.lazy import imported, require_torch
from bothways.progress import reporting
from bothways.storage import new_folder
from bothways.tasks.backend import Backend, OpenOptions, open_backend
from bothways.tasks.columns import AnyColumns, batch_of, column_names, input_of
from bothways.tasks.outputs import Fitted, FittedHead, outputs_type
from bothways.tasks.predict import Predictor
from bothways.tasks.spec import chosen
from bothways.text import TextTokenizer
from bothways.threads import loading

if TYPE_CHECKING:
    from bothways.checkpoints import PretrainedEncoder
    from bothways.data import Source
    from bothways.objectives.masking import Masking
    from bothways.tasks.splits import TrainingData
    from bothways.tasks.torch_backend import TorchBackend
    from bothways.training.objective import Objective
    from bothways.training.options import TrainingArguments, TrainingOptions
    from bothways.training.state import TrainingRecord

    class FitArguments(TrainingArguments, total=False):
        """Columns and options of `fit`, of all tasks; the spec of a task says which ones it has."""

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
        anchor: str
        positive: str
        negative: str | tuple[str, ...]
        columns: AnyColumns | None
        target: TargetKind | None
        class_weights: ClassWeights | None
        scheme: Scheme | None
        calibration: CalibrationChoice | None
        detector: DetectorChoice | None
        in_domain_share: float
        loss: Any  # of a room
        pairs_per_text: int
        masking: Masking | None


OPENING = tuple(OpenOptions.__annotations__)


class LabelArguments(OpenOptions, total=False):
    """Options of `from_pretrained` for tasks with labels; see `bothways.tasks.classification.spec`."""

    labels: Sequence[str] | None
    merge: Merge | None
    threshold: float | None


class OpenArguments(LabelArguments, total=False):
    """Options of `from_pretrained`, of all tasks; besides `OpenOptions`, the spec of a task says which ones it has."""

    target: TargetKind | None
    scheme: Scheme | None
    max_answer_tokens: int | None
    pooling: Pooling | None
    unit_length: bool | None
    dimensions: int | None


class TrainedModel(Fitted, Protocol):
    """A trained model of one task."""

    @property
    def backend(self) -> Backend:
        """The opened model."""

    def write(self, folder: Path) -> None:
        """Write the model in the ecosystem's layout into an existing folder.

        Raises:
            OSError: The disk is full, or the folder cannot be written to.
        """


FittedT = TypeVar("FittedT", bound=TrainedModel, default=FittedHead)
InputT = TypeVar("InputT")
PredictionT = TypeVar("PredictionT", covariant=True)
ResultT = TypeVar("ResultT", covariant=True)


class TaskTraining(Protocol[ResultT]):
    """A task ready for training, by itself or with others on one encoder."""

    @property
    def objective(self) -> Objective[Any]:
        """The model, its data and its loss, for the training loop."""

    @property
    def unit(self) -> float:
        """Divisor of the validation score that makes it comparable with those of other tasks."""

    def finish(self, record: TrainingRecord) -> ResultT:
        """Return the trained model after the training loop: calibrated, with its card."""


class Task(Predictor[InputT, PredictionT, FittedT], Generic[InputT, PredictionT, FittedT]):
    """A model of one task: opened, trained and saved, with the methods of trained models.

    Attributes:
        spec: The declarations of the task.
    """

    def __init__(self, backend: Backend, fitted: FittedT | None = None) -> None:
        given: object = backend  # a name is what people try first
        if not isinstance(given, Backend):
            kind = type(self).__name__
            raise InvalidInput(
                f"expected an opened model, got {given!r}: {kind}.from_pretrained(...) opens a name or a folder."
            )
        self._opened = backend
        self._fitted = fitted

    @property
    def backend(self) -> Backend:
        """The opened model with its tokenizer, text options and runner."""
        fitted = self._fitted
        return self._opened if fitted is None else fitted.backend

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.backend.name

    @property
    def model(self) -> PretrainedEncoder:
        """The encoder and its tokenizer.

        Raises:
            InvalidInput: It is an ONNX export, which has no weights.
        """
        return self.backend.weights("use").model

    @property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer."""
        return self.backend.tokenizer

    @classmethod
    def _backend(cls, located: LocatedModel, options: OpenOptions) -> Backend:
        return open_backend(located, cls.spec.name, options)

    def _training(
        self, backend: TorchBackend, data: TrainingData, columns: AnyColumns, own: object, training: TrainingOptions
    ) -> TaskTraining[FittedT]:
        """Read the data and lay out the training of ``backend``, a copy of this model's."""
        ready: TaskTraining[FittedT] = imported(self.spec.training)(
            self.spec, backend, self._fitted, data, columns, own, training
        )
        return ready

    def _not_fitted(self) -> NotFitted:
        head = outputs_type(self.spec).head_title if self.spec.outputs else "head"
        return self.backend.not_fitted(self.spec.name, head)

    # --- the verbs ---

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path, **options: Unpack[OpenArguments]) -> Self:
        """Open an encoder to fine-tune, or a trained model to use.

        Args:
            name_or_path: A folder or a name, see `bothways.load`.
            options: Options for finding the checkpoint, its device and its reading of texts (`OpenOptions`), and the
                task's own options (its ``spec.open_options``).

        Raises:
            InvalidInput: An option is out of its range, or the outputs of a trained head have no names.
            CorruptCheckpoint: A file is damaged. Also raises everything that `bothways.load` raises.
        """
        own = {name: value for name, value in options.items() if name not in OPENING}
        opening = cast("OpenOptions", {name: value for name, value in options.items() if name in OPENING})
        given: object = chosen(cls.spec.open_options, own, f"{cls.__name__}.from_pretrained()", known=OPENING)
        located = locate(
            name_or_path,
            revision=opening.get("revision"),
            download=opening.get("download", False),
            allow_pickle=opening.get("allow_pickle", False),
        )
        # An export computes nothing while it is opened, and torch need not be installed.
        exported = is_exported(located.folder)
        if not exported:
            require_torch("opening a model with weights")
        with nullcontext() if exported else loading():
            backend = cls._backend(located, opening)
            backend = replace(backend, reading=replace(backend.reading, cut=cls.spec.cut), options=given)
            fitted: FittedT | None = imported(cls.spec.fitted)(cls.spec, backend)
            return cls(backend, fitted)

    def fit(
        self,
        data: Source | Iterable[Any],
        labels: Iterable[object] | None = None,
        *,
        validation: Source | Iterable[Any] | tuple[Iterable[Any], Iterable[object]] | None = None,
        **options: Unpack[FitArguments],
    ) -> TrainingRecord:
        """Fine-tune, keep a good epoch, and fit the confidence of the answers on held-out rows.

        The latest epoch is kept whose validation score is within a standard error of the best. A training that fails,
        or that Ctrl-C or SIGTERM ends before its first epoch is complete, leaves the model unchanged.

        Args:
            data: A file, rows (mappings, a DataFrame, a Dataset), or inputs with their ``labels``.
            labels: Labels of the inputs; None if ``data`` are rows.
            validation: Held-out data, in one of these forms. Default: a tenth of the training data, drawn with
                ``seed``; with few single-label texts and a sentence embedder, none are held out, and
                cross-validation measures the model.
            options: Columns by their names (the task's ``spec.columns``), the task's own options (its
                ``spec.fit_options``), and the options of every training (`TrainingOptions`).

        Raises:
            InvalidInput: The data or an option is not usable; the message names the row.
            TypeError: An option is not known.
        """
        from bothways.tasks.splits import TrainingData
        from bothways.training.loop import run_training  # no prediction needs the loop

        backend = self.backend.weights("train")
        columns, own, training = self.fit_options(options)
        rows = TrainingData(_rows(columns, data, labels), _validation_rows(columns, validation))
        backend = backend.copy_for_training(resumed=training.resume)
        ready = self._training(backend, rows, columns, own, training)
        record = run_training(ready.objective, backend.model, training)
        if not record.finished_no_epoch:
            with reporting(training.show_progress):
                self._fitted = fitted = ready.finish(record)
            self._opened = fitted.backend  # the model before is let go of
        return record

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the model in the ecosystem's layout, whole or not at all.

        Raises:
            NotFitted: The model was not trained for this.
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        from bothways.tasks.readme import write_readme

        self.backend.weights("save")
        fitted = self.fitted
        with new_folder(folder, overwrite=overwrite) as new:
            fitted.write(new)
            write_readme(new, type(self).__name__, {"": self.spec})

    def fit_options(self, options: Mapping[str, Any]) -> tuple[Any, Any, TrainingOptions]:
        """Return the columns, the task's own options and those of the training among the arguments of `fit`."""
        call, given = f"{type(self).__name__}.fit()", dict(options)
        numbers = given.pop(self.spec.number_column, None) if self.spec.number_column else None
        if numbers is not None:
            if given.get("label") is not None or given.get("target") == "multi":
                raise InvalidInput(
                    f"{self.spec.number_column} predicts a number, so it cannot be combined with label or the target "
                    "'multi': drop one."
                )
            given |= {"label": numbers, "target": "regression"}
        from bothways.training.options import TrainingArguments, TrainingOptions

        columns, rest = self._columns_of(self.spec.columns, given)
        known = tuple(TrainingArguments.__annotations__)
        training = {name: rest.pop(name) for name in known if name in rest}
        own: Any = chosen(self.spec.fit_options, rest, call, known=(*column_names(columns), *known))
        return columns, own, TrainingOptions(**training)


HeadTask: TypeAlias = Task[Any, Any, FittedHead]
"""A task that a head above the encoder answers."""

AnyTask: TypeAlias = Task[Any, Any, Any]


def _rows(columns: AnyColumns, data: Any, labels: object) -> Any:  # noqa: ANN401 (sources of rows)
    """Return a source of rows, made from inputs and labels if necessary."""
    if labels is None:
        return data
    rows = []
    for number, value in enumerate(batch_of(columns, data)[0]):
        input_of(columns, number, value)  # what is no input is refused before it becomes a row
        rows.append(value if isinstance(value, Mapping) else columns.labelled_row(value, None))
    return sources.labelled_rows(rows, labels, label=columns.truth, many="inputs")


def _validation_rows(columns: AnyColumns, validation: Any) -> Any:  # noqa: ANN401 (as above)
    if isinstance(validation, tuple) and len(validation) == 2 and not isinstance(validation[0], Mapping | str):
        return _rows(columns, *validation)
    return validation
