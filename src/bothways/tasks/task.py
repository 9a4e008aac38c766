"""Opening, training and saving, written once for every task.

A task is data plus a few functions: its declarations (`TaskSpec`), the meaning of its scores (`Outputs`), and its
training. A fit works on a copy and replaces the model in one assignment at its end, so a training that fails changes
nothing, and threads that predict meanwhile use the model as it was.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, Unpack, cast

from bothways import data as sources
from bothways.checkpoints.exported import is_exported
from bothways.checkpoints.hub import LocatedModel, locate
from bothways.checkpoints.schema import Stored
from bothways.choices import Merge
from bothways.errors import InvalidInput, NotFitted
from bothways.lazy import require_torch
from bothways.progress import reporting
from bothways.storage import new_folder
from bothways.tasks.backend import Backend, OpenOptions, open_backend
from bothways.tasks.columns import ColumnNames, batch_of, column_names, input_of, stored_columns
from bothways.tasks.onnx_backend import OnnxBackend
from bothways.tasks.outputs import Fitted, FittedHead, outputs_type
from bothways.tasks.predict import Predictor
from bothways.tasks.spec import chosen
from bothways.tasks.splits import TrainingData
from bothways.text import TextTokenizer
from bothways.threads import loading

if TYPE_CHECKING:
    from bothways.checkpoints import PretrainedEncoder
    from bothways.data import Source
    from bothways.tasks.torch_backend import TorchBackend
    from bothways.training.objective import Objective
    from bothways.training.options import TrainingArguments, TrainingOptions
    from bothways.training.record import TrainingRecord

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
        anchor: str
        positive: str
        negative: str | tuple[str, ...]
        columns: Any
        target: Any
        class_weights: Any
        scheme: Any
        calibration: Any
        detector: Any
        in_domain_share: float
        loss: Any
        pairs_per_text: int
        masking: Any


InputT = TypeVar("InputT")
PredictionT = TypeVar("PredictionT", covariant=True)

OPENING = tuple(OpenOptions.__annotations__)


class LabelArguments(OpenOptions, total=False):
    """Options of `from_pretrained` of tasks with labels, see `bothways.tasks.classification.options`."""

    labels: Sequence[str] | None
    merge: Merge | None
    threshold: float | None


class OpenArguments(LabelArguments, total=False):
    """Options of `from_pretrained`, of all tasks; which ones a task has besides `OpenOptions`, its spec says."""

    target: Any
    scheme: Any
    max_answer_tokens: int | None
    pooling: Any
    unit_length: bool | None
    dimensions: int | None


class TrainedModel(Fitted, Protocol):
    """A trained model of one task."""

    @property
    def backend(self) -> Backend:
        """The opened model."""


FittedT = TypeVar("FittedT", bound=TrainedModel)
ResultT = TypeVar("ResultT", covariant=True)


class TaskTraining(Protocol[ResultT]):
    """A task that is ready to be trained, by itself or with others above one encoder."""

    @property
    def objective(self) -> Objective[Any]:
        """The model, its data and its loss, for the training loop."""

    @property
    def unit(self) -> float:
        """Divisor of the validation score that makes it comparable with those of other tasks."""

    def finish(self, record: TrainingRecord) -> ResultT:
        """Return the trained model when the loop has ended: calibrated, with its card."""


class Task(Predictor[InputT, PredictionT, FittedT], Generic[InputT, PredictionT, FittedT]):
    """A model of one task: opened, trained and saved, with the verbs of trained models.

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
        # One attribute, so that a fit replaces both at once.
        self._state: tuple[Backend, FittedT | None] = (backend, fitted)

    @property
    def _fitted(self) -> FittedT | None:
        return self._state[1]

    @_fitted.setter
    def _fitted(self, fitted: FittedT | None) -> None:
        self._state = self._state[0], fitted

    @property
    def backend(self) -> Backend:
        """The opened model: tokenizer, how texts are read, and what computes them."""
        return self._state[0]

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

    # --- what a task brings ---

    @classmethod
    def _backend(cls, located: LocatedModel, options: OpenOptions) -> Backend:
        return open_backend(located, cls.spec.name, options)

    @classmethod
    @abstractmethod
    def _open(cls, backend: Backend, options: Any) -> FittedT | None:  # noqa: ANN401 (the task's own)
        """Return the trained model in a checkpoint; None where it was not trained for this task."""

    @abstractmethod
    def _training(
        self,
        backend: TorchBackend,
        data: TrainingData,
        columns: Any,  # noqa: ANN401 (the task's own)
        options: Any,  # noqa: ANN401 (the task's own)
        training: TrainingOptions,
    ) -> TaskTraining[FittedT]:
        """Read the data and lay out the training of ``backend``, a copy of this model's."""

    def _not_fitted(self) -> NotFitted:
        return self.backend.not_fitted(self.spec.name, "head")

    @abstractmethod
    def _write(self, fitted: FittedT, folder: Path) -> None:
        """Write a trained model into an existing folder."""

    # --- the verbs ---

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path, **options: Unpack[OpenArguments]) -> Self:
        """Open an encoder to fine-tune, or a trained model to use.

        Args:
            name_or_path: A folder or a name, see `bothways.load`.
            options: How the checkpoint is found, where it runs and how texts are read (`OpenOptions`), and the task's
                own options (its ``spec.open_options``).

        Raises:
            InvalidInput: An option is out of its range, or the outputs of a trained head have no names.
            CorruptCheckpoint: A file is damaged. And everything that `bothways.load` raises.
        """
        own = {name: value for name, value in options.items() if name not in OPENING}
        opening = cast("OpenOptions", {name: value for name, value in options.items() if name in OPENING})
        given: Any = chosen(cls.spec.open_options, own, f"{cls.__name__}.from_pretrained()", known=OPENING)
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
            backend: Any = cls._backend(located, opening)
            backend = replace(backend, reading=replace(backend.reading, cut=cls.spec.cut), options=given)
            return cls(backend, cls._open(backend, given))

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
        or that Ctrl-C or SIGTERM ends before an epoch was finished, leaves the model as it was.

        Args:
            data: A file, rows (mappings, a DataFrame, a Dataset), or inputs with their ``labels``.
            labels: Labels of the inputs; None where ``data`` are rows.
            validation: Held-out data, in one of these forms. Default: a tenth of the training data, drawn with
                ``seed``; of few texts with one label each, above a sentence embedder, none are held out, and
                cross-validation measures the model.
            options: Columns by their names (the task's ``spec.columns``), the task's own options (its
                ``spec.fit_options``), and the options of every training (`TrainingOptions`).

        Raises:
            InvalidInput: The data or an option is not usable; the message names the row.
            TypeError: An option is not known.
        """
        from bothways.training.run import run_training  # no prediction needs the loop

        backend = self.backend.weights("train")
        columns, own, training = self.fit_options(options)
        rows = TrainingData(_rows(columns, data, labels), _validation_rows(columns, validation))
        backend = backend.copy_for_training(resumed=training.resume)
        ready = self._training(backend, rows, columns, own, training)
        record = run_training(ready.objective, backend.model, training)
        if not record.finished_no_epoch:
            with reporting(training.show_progress):
                fitted = ready.finish(record)
                self._state = fitted.backend, fitted
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
            self._write(fitted, new)
            write_readme(new, type(self).__name__, {"": self.spec})

    def fit_options(self, options: Mapping[str, Any]) -> tuple[Any, Any, TrainingOptions]:
        """Return the columns, the task's own options and those of the training among the arguments of `fit`."""
        call, given = f"{type(self).__name__}.fit()", dict(options)
        numbers = given.pop(self.spec.number_column, None) if self.spec.number_column else None
        if numbers is not None:
            if given.get("label") is not None or given.get("target") == "multi":
                raise InvalidInput(
                    f"{self.spec.number_column} predicts a number, so it goes neither with label nor with the target "
                    "'multi'."
                )
            given |= {"label": numbers, "target": "regression"}
        from bothways.training.options import TrainingArguments, TrainingOptions

        columns, rest = self._columns_of(self.spec.columns, given)
        known = tuple(TrainingArguments.__annotations__)
        training = {name: rest.pop(name) for name in known if name in rest}
        own: Any = chosen(self.spec.fit_options, rest, call, known=(*column_names(columns), *known))
        return columns, own, TrainingOptions(**training)


class HeadTask(Task[InputT, PredictionT, FittedHead]):
    """A task that a head above the encoder answers: a class is a name, a spec and a docstring."""

    @classmethod
    def _open(cls, backend: Backend, options: Any) -> FittedHead | None:  # noqa: ANN401 (the task's own)
        kind, ours = outputs_type(cls.spec), backend.trained_for == cls.spec.name
        # The head of another task may have the same shape and mean something else.
        size = backend.score_count(kind.head) if ours or backend.trained_for is None else None
        if size is None:
            if isinstance(backend, OnnxBackend):
                raise backend.not_fitted(cls.spec.name, kind.head_title)
            kind.check_untrained(backend, options)
            return None
        outputs = kind.open(backend, options, size, ours=ours)
        card = Stored.of(backend.extras).card if ours else {}
        columns = stored_columns(card, cls.spec.columns)
        if isinstance(backend, OnnxBackend):
            width = size + outputs.layers * backend.config.hidden
            backend.check_rows(cls.spec.name, width, per_token=outputs.per_token)
            return FittedHead(cls.spec, backend, outputs, columns, card)
        model = backend.weights("use")
        head = model.checkpoint.build_score_head(kind.head)
        return FittedHead(cls.spec, model.with_head(head, outputs.layers), outputs, columns, card)

    def _training(
        self,
        backend: TorchBackend,
        data: TrainingData,
        columns: Any,  # noqa: ANN401 (the task's own)
        options: Any,  # noqa: ANN401 (the task's own)
        training: TrainingOptions,
    ) -> TaskTraining[FittedHead]:
        from bothways.tasks.heads.training import HeadTraining

        before = self._fitted
        if before is None and outputs_type(self.spec).head == "sequence" and backend.embeds_mean and not backend.shared:
            # A classifier above a sentence embedder reads what that does.
            backend = backend.above_embedder(pairs=False)
        return HeadTraining.of(self.spec, backend, before, data, columns, options, training)

    def _not_fitted(self) -> NotFitted:
        return self.backend.not_fitted(self.spec.name, outputs_type(self.spec).head_title)

    def _write(self, fitted: FittedHead, folder: Path) -> None:
        from bothways.tasks.heads.saving import write_head

        write_head(fitted, folder)


def _rows(columns: ColumnNames, data: Any, labels: object) -> Any:  # noqa: ANN401 (sources of rows)
    """Return a source of rows; inputs with labels become rows."""
    if labels is None:
        return data
    rows = []
    for number, value in enumerate(batch_of(columns, data)[0]):
        input_of(columns, number, value)  # what is no input is refused before it becomes a row
        rows.append(value if isinstance(value, Mapping) else columns.labelled_row(value, None))
    return sources.labelled_rows(rows, labels, label=columns.truth, many="inputs")


def _validation_rows(columns: ColumnNames, validation: Any) -> Any:  # noqa: ANN401 (as above)
    if isinstance(validation, tuple) and len(validation) == 2 and not isinstance(validation[0], Mapping | str):
        return _rows(columns, *validation)
    return validation
