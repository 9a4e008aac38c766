"""Declarations of tasks: name, columns, options and an example. Does not import torch.

The methods (`bothways.tasks.task.Task`) and the command line are made from these declarations.
"""

import inspect
import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from annotated_types import Ge, Gt, Le, Lt

from bothways.choices import (
    CalibrationChoice,
    ClassWeights,
    Cut,
    DetectorChoice,
    LabelRule,
    LabelValue,
    Scheme,
    Shared,
    SpanScheme,
    TargetKind,
    Unlabelled,
)
from bothways.errors import InvalidInput, not_one_of
from bothways.tasks.columns import AnyColumns

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from bothways.objectives.masking import Masking
    from bothways.training.options import TrainingArguments

OptionsT = TypeVar("OptionsT")

SENTENCE_TRANSFORMER = "SentenceTransformer"
"""The class of sentence-transformers that opens embedders."""


# --- inputs ---


@dataclass(frozen=True, slots=True)
class Pattern:
    """Annotation of a type (see `annotated_types`) with a regular expression that must match somewhere in the text."""

    regex: str


NonBlank: TypeAlias = Annotated[str, Pattern(r"\S")]


@dataclass(frozen=True, slots=True)
class TextInput:
    """A text.

    Attributes:
        text: The text.
    """

    text: NonBlank


@dataclass(frozen=True, slots=True)
class PairInput:
    """Two texts.

    Attributes:
        text_a: The first text.
        text_b: The second text.
    """

    text_a: NonBlank
    text_b: NonBlank


# --- options ---


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOptions:
    """The empty options of a method that takes none."""


class MeasuredData(Protocol):
    """Options for reading rows to measure a model on, such as `LabelData`."""

    @property
    def shared(self) -> Shared:
        """The treatment of rows that the model was trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelData:
    """Options for reading labelled rows.

    Attributes:
        unlabelled: What to do with rows that have no label (empty, null, or a class ``-`` or ``-1`` that stands for no
            label): ``"error"`` refuses the data, ``"drop"`` leaves such rows out.
        shared: Rows that the model was trained on: ``"keep"`` them, with a note, or ``"drop"`` them.
    """

    unlabelled: Unlabelled = "error"
    shared: Shared = "keep"

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlikeLabelData(LabelData):
    """Options for reading rows whose labels may look alike.

    Attributes:
        normalise_labels: Take labels that look alike, such as ``sport``, ``SPORT`` and ``sport`` with a space, as one
            label: that of the model, else the most frequent one. Default: as in training; in training, they are
            different labels, and a note names them.
    """

    normalise_labels: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedLabelData(LabelData):
    """Options for reading rows whose labels are names known to a model.

    Attributes:
        normalise_labels: Take labels that look alike, such as ``sport``, ``SPORT`` and ``sport`` with a space, as one
            label: that of the model, else the most frequent one. Default: as in training; in training, they are
            different labels, and a note names them.
        labels: The labels that numbers in the data stand for, as ``["a", "b"]`` or ``"a,b"``: those of one-hot and
            multi-hot vectors, and of places, from 0. Default: as declared for the training.
    """

    normalise_labels: bool | None = None
    labels: Sequence[LabelValue] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictOptions:
    """Options of a prediction."""

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def nested(self) -> tuple[str, ...]:
        """Descriptions of the lists in predictions that do not fit into table cells."""
        return ()

    @property
    def listed(self) -> str | None:
        """The list in a prediction whose items become table rows, such as spans; None if each prediction is a row."""
        return None


@dataclass(frozen=True, slots=True)
class Hub:
    """Facts about the models of a task for the hub and for other libraries.

    Attributes:
        pipeline: The hub's name for the task.
        asked: An example input in Python.
        opens_as: The class of transformers, or of sentence-transformers, that opens the model; empty if none does.
        call: Arguments for that library's tokenizer; empty if the call takes more than one line.
        gives_logits: True if the model is a classifier stored as an encoder and a linear map.
    """

    pipeline: str
    asked: str
    opens_as: str = ""
    call: str = ""
    gives_logits: bool = False

    @property
    def library(self) -> str:
        """The library that opens the model."""
        return {"": "bothways", SENTENCE_TRANSFORMER: "sentence-transformers"}.get(self.opens_as, "transformers")

    @property
    def names_labels(self) -> bool:
        """True if ``config.json`` names the labels, as it does for the classifiers of transformers."""
        return self.gives_logits or self.opens_as.endswith("Classification")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """The declarations of a task.

    Attributes:
        name: Name of the task in ``bothways.json``, on the command line and in messages.
        home: The task's class as ``"module:Class"``; imported on first use.
        columns: The default column names.
        input: Dataclass of the parts of an input, with their column names as fields; a union if there are alternatives.
        prediction: The task's prediction as ``"module:Class"``, a `bothways.tasks.scores.TaskPrediction`, or a union of
            them.
        summary: One line for help.
        does: A verb phrase for messages, after "models that".
        example: A row of labelled data.
        open_options: Dataclass of the task's own options of `from_pretrained`.
        fit_options: Dataclass of the task's own options of `fit`, besides columns.
        data_options: Dataclass of the task's own options of `evaluate` and `score`, besides columns.
        predict_options: Dataclass of the options of a prediction.
        opener: The function that opens the task's trained models, as ``"module:function"``, see
            `bothways.tasks.outputs.open_head`.
        training: The function that prepares the task's training, as ``"module:function"``, see
            `bothways.tasks.heads.training.train_head`.
        outputs: The outputs of its head as ``"module:Class"``, see `bothways.tasks.outputs.Outputs`; empty for a task
            without a head.
        learner: The learner as ``"module:Class"``, see `bothways.tasks.heads.learner.Learner`; empty for a task without
            a head.
        combiner: The combiner for ensembles as ``"module:Class"``, see `bothways.tasks.heads.combination.Combiner`;
            empty if models of the task cannot be combined.
        cut: The text of a pair that is split into windows if the pair is too long.
        head: Name of the pretrained head with which checkpoints of other libraries can be used for this task.
        kinds: Columns of other data formats that the task can be trained on.
        notes: Lines of help on the format of the data, below the example.
        comparable: True if predictions are right or wrong, so that two models can be compared.
        number_column: Argument of `fit` that names the label column of a regression; None if there is none.
        hub: Facts for model cards on the hub; None if the hub has no such task.
        held_out: Noun phrase for the rows that are held out of the training data if there are no validation data.
    """

    name: str
    home: str
    columns: AnyColumns
    input: type | UnionType
    prediction: str
    summary: str
    does: str
    example: Mapping[str, object]
    open_options: type = NoOptions
    fit_options: type = NoOptions
    data_options: type = LabelData
    predict_options: type[PredictOptions] = PredictOptions
    head: str | None = None
    opener: str = "bothways.tasks.outputs:open_head"
    training: str = "bothways.tasks.heads.training:train_head"
    outputs: str = ""
    learner: str = ""
    combiner: str = ""
    cut: Cut = "longer"
    kinds: tuple[AnyColumns, ...] = ()
    notes: str = ""
    comparable: bool = True
    number_column: str | None = None
    hub: Hub | None = None
    held_out: str = "a tenth of the training rows, drawn with the seed"


class PredictArguments(TypedDict, total=False):
    """Options of `predict` for all tasks; the spec of a task declares which ones it has."""

    calibrated: bool | None
    coverage: float | None
    top: int
    max_answer_tokens: int | None
    threshold: float | None
    scheme: SpanScheme | None
    words: Sequence[str] | None
    max_pieces: int
    beam: int


class RowArguments(TypedDict, total=False):
    """Columns, and options for reading rows, for all tasks; the spec of a task declares which ones it has."""

    text: str | tuple[str, ...] | None
    text_a: str | None
    text_b: str | None
    label: str | None
    score: str | None
    anchor: str | None
    positive: str | None
    negative: str | tuple[str, ...] | None
    columns: AnyColumns | None
    tokens: str | None
    tags: str | None
    question: str | None
    context: str | None
    answers: str | None
    choices: str | tuple[str, ...] | None
    scheme: Scheme | None
    label_is: LabelRule | None
    unlabelled: Unlabelled
    normalise_labels: bool | None
    shared: Shared
    masking: "Masking | None"


class DataArguments(RowArguments, total=False):
    """Columns, and options of `evaluate` and `score`, for all tasks; the spec of a task declares which ones it has."""

    labels: Sequence[LabelValue] | None


if TYPE_CHECKING:

    class FitArguments(TrainingArguments, RowArguments, total=False):
        """Columns and options of `fit` for all tasks; the spec of a task declares which ones it has."""

        target: TargetKind | None
        class_weights: ClassWeights | None
        calibration: CalibrationChoice | None
        detector: DetectorChoice | None
        in_domain_share: float
        loss: Any  # one of the task's own
        pairs_per_text: int


def chosen(kind: type[OptionsT], given: Mapping[str, Any], call: str, *, known: tuple[str, ...] = ()) -> OptionsT:
    """Return the options of a call as an instance of the dataclass ``kind``.

    Messages name the ``call``, such as ``"TextClassifier.predict()"``, and its other ``known`` arguments. Raises
    TypeError for an unknown argument, and `InvalidInput` for a value out of range.
    """
    names = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in names:
            raise TypeError(
                f"{call} got an unexpected keyword argument {name!r}. Known: {', '.join((*names, *known))}."
            )
    return kind(**given)


def options_of(kind: type[OptionsT], options: object) -> OptionsT:
    """Check that options or columns are a ``kind``, and return them; for None, return the defaults of ``kind``."""
    given = kind() if options is None else options
    if not isinstance(given, kind):
        raise TypeError(f"expected {kind.__name__}, got {type(given).__name__}")
    return given


def reading_options(spec: TaskSpec, **given: object) -> object:
    """Return a task's options for reading labelled rows, with the ``given`` ones that it declares."""
    names = {each.name for each in fields(spec.data_options)}
    options: object = spec.data_options(**{name: value for name, value in given.items() if name in names})
    return options


@cache
def attribute_docs(kind: type) -> Mapping[str, str]:
    """Return the description of each attribute, on one line, from the docstrings of a dataclass and its bases."""
    from docstring_parser import google

    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        for entry in google.parse(inspect.cleandoc(base.__dict__.get("__doc__") or "")).params:
            texts[entry.arg_name] = " ".join((entry.description or "").split())
    return texts


def check_options(options: "DataclassInstance") -> None:
    """Check numbers, flags and choices against their annotations, such as ``Annotated[int | None, Ge(1)]``."""
    for each in fields(options):
        annotation, *bounds = get_args(each.type) if get_origin(each.type) is Annotated else (each.type,)
        kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
        value, kind = getattr(options, each.name), kinds[0]
        if value is None and NoneType in kinds:
            continue
        if get_origin(kind) is Literal and value not in get_args(kind):
            raise not_one_of(each.name, value, get_args(kind))
        number, words = _NUMBERS.get(kind, (object, ""))
        fits = isinstance(value, number) and (not words or (type(value) is bool) == (kind is bool))
        if not fits:
            raise InvalidInput(f"{each.name} must be {words}, got {value!r}.")
        limits = [(*_BOUNDS[type(bound)], next(iter(asdict(bound).values()))) for bound in bounds if words]
        if not all(holds(value, limit) for _, holds, limit in limits):
            expected = " and ".join(f"{phrase} {limit:,}" for phrase, _, limit in limits)
            raise InvalidInput(f"{each.name} must be {expected}, got {value:,}.")


_NUMBERS: Mapping[object, tuple[type, str]]
_NUMBERS = {bool: (bool, "True or False"), int: (Integral, "a whole number"), float: (Real, "a number")}
_BOUNDS = {
    Ge: ("at least", operator.ge),
    Gt: ("above", operator.gt),
    Le: ("at most", operator.le),
    Lt: ("below", operator.lt),
}
