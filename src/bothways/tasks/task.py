"""Opening and training, written once for every task.

A task is data plus a few functions: its declarations (`TaskSpec`) and what its scores mean. What a task has learnt is
an immutable value, `Fitted`; a fit replaces it in one assignment at its end, so a training that fails changes nothing,
and threads that predict meanwhile use the model as it was.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, Unpack, cast

from bothways.checkpoints.exported import is_exported
from bothways.checkpoints.hub import LocatedModel, locate
from bothways.choices import Merge
from bothways.data import Source, labelled_rows
from bothways.errors import InvalidInput, NotFitted
from bothways.lazy import require_torch
from bothways.progress import reporting
from bothways.storage import new_folder
from bothways.tasks.columns import ColumnNames, batch_of, column_names, input_of
from bothways.tasks.head import TrainingData
from bothways.tasks.learning import Preparation, run_training
from bothways.tasks.opened import Opened, open_located
from bothways.tasks.predictor import Fitted, Predictor
from bothways.tasks.reading import OpenOptions
from bothways.tasks.readme import write_readme
from bothways.tasks.spec import chosen
from bothways.text import Overflow, TextTokenizer
from bothways.threads import loading
from bothways.training.options import TrainingArguments, TrainingOptions
from bothways.training.record import TrainingRecord

if TYPE_CHECKING:
    from bothways.checkpoints import PretrainedEncoder
    from bothways.tasks.opening import OpenedModel

InputT = TypeVar("InputT")
PredictionT = TypeVar("PredictionT", covariant=True)

OPENING = tuple(OpenOptions.__annotations__)
TRAINING = tuple(TrainingArguments.__annotations__)


class LabelArguments(OpenOptions, total=False):
    """Options of `from_pretrained` of tasks that give labels; see `bothways.tasks.label_options.LabelOpening`."""

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


class Trained(Fitted, Protocol):
    """A trained model of one task: an immutable value that can be saved."""

    def write(self, folder: Path, task: str) -> None:
        """Write it into an existing folder."""


FittedT = TypeVar("FittedT", bound=Trained)


class Task(Predictor[InputT, PredictionT, FittedT], Generic[InputT, PredictionT, FittedT]):
    """A model of one task: how it is opened and trained, and the verbs of trained models.

    Attributes:
        spec: What the task declares.
    """

    def __init__(self, opened: Opened, fitted: FittedT | None = None) -> None:
        given: object = opened  # a name is what people try first
        if not isinstance(given, Opened):
            kind = type(self).__name__
            raise InvalidInput(
                f"expected an opened model, got {given!r}: {kind}.from_pretrained(...) opens a name or a folder."
            )
        # One attribute, so that a fit replaces encoder and trained value at once.
        self._state: tuple[Opened, FittedT | None] = (opened, fitted)

    @property
    def _fitted(self) -> FittedT | None:
        return self._state[1]

    @_fitted.setter
    def _fitted(self, fitted: FittedT | None) -> None:
        self._state = self._state[0], fitted

    @property
    def name(self) -> str:
        """The encoder's."""
        return self._state[0].name

    @property
    def model(self) -> PretrainedEncoder:
        """The encoder and its tokenizer.

        Raises:
            InvalidInput: It is an ONNX export, which has no weights.
        """
        return self._weights("use").model

    @property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer."""
        return self._state[0].tokenizer

    def _weights(self, verb: str) -> OpenedModel:
        """Return the opened model, where it has weights to train, explain or save."""
        return self._state[0].weights(verb)

    @property
    def max_length(self) -> int:
        """Maximum tokens per window."""
        return self._state[0].reading.max_length

    @property
    def on_overflow(self) -> Overflow:
        """The policy for texts that are too long."""
        return self._state[0].reading.on_overflow

    # --- what a task brings ---

    @classmethod
    def _opened(cls, located: LocatedModel, options: OpenOptions) -> Opened:
        """Open a model; how it reads texts is its own business, where the task does not say otherwise."""
        return open_located(located, cls.spec.name, options)

    @classmethod
    @abstractmethod
    def _open(cls, opened: Opened, options: Any) -> FittedT | None:  # noqa: ANN401 (the task's own)
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

    def _for_training(self, opened: OpenedModel, before: FittedT | None, *, resumed: bool) -> OpenedModel:
        """Return a copy of the encoder to train, and how the head above it is to read."""
        del before
        return opened.for_training(resumed=resumed)

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
        located = locate(
            name_or_path,
            revision=opening.get("revision"),
            download=opening.get("download", False),
            allow_pickle=opening.get("allow_pickle", False),
        )
        # An export computes nothing while it is opened, and torch need not be there.
        exported = is_exported(located.folder)
        if not exported:
            require_torch("opening a model with weights")
        with nullcontext() if exported else loading():
            opened: Any = cls._opened(located, opening)
            opened = replace(opened, reading=replace(opened.reading, cut=cls.spec.cut), options=wanted)
            return cls(opened, cls._open(opened, wanted))

    def fit(
        self,
        data: Source | Iterable[Any],
        labels: Iterable[object] | None = None,
        *,
        validation: Source | Iterable[Any] | tuple[Iterable[Any], Iterable[object]] | None = None,
        **options: Unpack[FitArguments],
    ) -> TrainingRecord:
        """Fine-tune, keep a good epoch, and learn from held-out rows how far to trust the answers.

        Kept is the latest epoch whose validation score is within a standard error of the best. A training that fails,
        or that Ctrl-C or SIGTERM ends before an epoch was finished, leaves the model as it was.

        Args:
            data: A file, rows (mappings, a DataFrame, a Dataset), or inputs with their ``labels``.
            labels: Labels of the inputs; None where ``data`` are rows.
            validation: Held-out data, in one of these forms; when left out, a tenth of the training data, drawn with
                ``seed``. Of few texts with one label each, above a sentence embedder, all are learnt from instead, and
                measured by cross-validation.
            options: Columns by their names (the task's ``spec.columns``), the task's own options (its
                ``spec.fit_options``), and the options of every training (`TrainingOptions`).

        Raises:
            InvalidInput: The data or an option is not usable; the message names the row.
            TypeError: An option is not known.
        """
        self._weights("train")
        columns, own, training = self.fit_options(options)
        rows = TrainingData(_rows(columns, data, labels), _validation_rows(columns, validation))
        opened, before = self._weights("train"), self._fitted
        trained = self._for_training(opened, before, resumed=training.resume)
        ready = self._prepare(trained, before, rows, columns, own, training)
        record = run_training(ready.objective, trained.model, training)
        if not record.finished_no_epoch:
            with reporting(training.show_progress):
                self._state = trained, ready.finish(record)
        return record

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the model in the ecosystem's layout, whole or not at all.

        Raises:
            NotFitted: The model was not trained for this.
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        self._weights("save")
        fitted = self.fitted
        with new_folder(folder, overwrite=overwrite) as new:
            fitted.write(new, self.spec.name)
            write_readme(new, type(self).__name__, {"": self.spec})

    def prepare(
        self, opened: OpenedModel, data: TrainingData, options: Mapping[str, Any], training: TrainingOptions
    ) -> Preparation[Any, FittedT]:
        """Read the data and lay out a training, by itself or with other tasks above one encoder.

        Args:
            opened: The encoder, which is trained in place.
            data: What to learn from.
            options: Columns by their names, and the task's own options.
            training: Options of the training.

        Raises:
            InvalidInput: The data or an option is not usable; the message names the row.
        """
        columns, own, _ = self.fit_options(options)
        return self._prepare(opened, self._fitted, data, columns, own, training)

    def fit_options(self, options: Mapping[str, Any]) -> tuple[Any, Any, TrainingOptions]:
        """Return the columns, the task's own options and those of the training that arguments of `fit` stand for.

        Raises:
            InvalidInput: A value is out of its range.
            TypeError: An option is not known.
        """
        call = f"{type(self).__name__}.fit()"
        columns, rest = self._columns_of(self._usual_columns(), options)
        training = {name: rest.pop(name) for name in TRAINING if name in rest}
        own: Any = chosen(self.spec.fit_options, rest, call, known=(*column_names(columns), *TRAINING))
        return columns, own, TrainingOptions(**training)

    def _usual_columns(self) -> Any:  # noqa: ANN401 (the task's own)
        """Columns of a fit that names none."""
        return self.spec.columns


def _rows(columns: ColumnNames, data: Any, labels: object) -> Any:  # noqa: ANN401 (sources of rows)
    """Return a source of rows; inputs with labels become rows."""
    if labels is None:
        return data
    rows = []
    for number, value in enumerate(batch_of(columns, data)[0]):
        input_of(columns, number, value)  # refuses what is no input before it becomes a row
        rows.append(value if isinstance(value, Mapping) else columns.labelled_row(value, None))
    return labelled_rows(rows, labels, label=columns.truth, many="inputs")


def _validation_rows(columns: ColumnNames, validation: Any) -> Any:  # noqa: ANN401 (as above)
    if isinstance(validation, tuple) and len(validation) == 2 and not isinstance(validation[0], Mapping | str):
        return _rows(columns, *validation)
    return validation
