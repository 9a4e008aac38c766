"""Declarations of tasks: name, columns, options and an example. Loads no torch.

The verbs (`bothways.tasks.task.Task`) and the command line are made from these declarations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict, TypeVar

from bothways.choices import Cut, SpanScheme
from bothways.errors import InvalidInput
from bothways.tasks.columns import ColumnNames

OptionsT = TypeVar("OptionsT")

SENTENCE_TRANSFORMER = "SentenceTransformer"
"""The class of sentence-transformers that opens embedders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOptions:
    """A verb without options of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictOptions:
    """Options of a prediction."""

    @property
    def nested(self) -> tuple[str, ...]:
        """Names of the lists in predictions, which do not fit into the cells of a table."""
        return ()

    @property
    def listed(self) -> str | None:
        """The part of a prediction whose items are the rows of a table, such as spans; None where predictions are."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedOptions(PredictOptions):
    """Options of a prediction with probabilities.

    Attributes:
        calibrated: True requires calibrated probabilities, False gives those of the head. Default: calibrated where
            the model is.
    """

    calibrated: bool | None = None


@dataclass(frozen=True, slots=True)
class Hub:
    """Facts by which the hub and other libraries know the models of a task.

    Attributes:
        pipeline: The hub's name of the task.
        asked: An input as it stands in Python.
        opens_as: The class of transformers, or of sentence-transformers, that opens it; empty where none does.
        call: What that library's tokenizer is given; empty where that takes more than a line.
        gives_logits: Whether it is a classifier that is stored as an encoder and a linear map.
    """

    pipeline: str
    asked: str
    opens_as: str = ""
    call: str = ""
    gives_logits: bool = False

    @property
    def library(self) -> str:
        """The library that opens it."""
        return {"": "bothways", SENTENCE_TRANSFORMER: "sentence-transformers"}.get(self.opens_as, "transformers")

    @property
    def names_labels(self) -> bool:
        """True if ``config.json`` names the labels, as it does for the classifiers of transformers."""
        return self.gives_logits or self.opens_as.endswith("Classification")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """The declarations of a task.

    Attributes:
        name: In ``bothways.json``, on the command line and in messages.
        home: The class that does it, as ``"module:Class"``; imported when it is first used.
        columns: The usual column names.
        summary: What it does, in one line for help.
        does: What its models do, in a message after "models that".
        example: A row of labelled data.
        open_options: Dataclass of what `from_pretrained` takes besides how a checkpoint is found and read.
        fit_options: Dataclass of what `fit` takes besides columns and the options of every training.
        data_options: Dataclass of what `evaluate` and `score` take besides columns.
        predict_options: Dataclass of the options of a prediction.
        outputs: Its head as ``"module:Class"``, see `bothways.tasks.outputs.Outputs`; empty for
            a task of another kind.
        learner: Its training as ``"module:Class"``, see `bothways.tasks.heads.learner.Learner`; empty for a task of
            another kind.
        combiner: Its combination in ensembles as ``"module:Class"``, see `bothways.tasks.combination.Combiner`; empty
            where models of the task cannot be combined.
        cut: Which text of a pair is cut into windows where both are too long.
        head: Name of the pretrained head that makes a checkpoint from elsewhere a model for this task.
        kinds: Columns of other kinds of rows that it learns from.
        notes: Lines for help on what its data look like, below the example.
        comparable: Whether predictions are right or wrong, so that two models can be compared.
        number_column: Argument of `fit` that names the label column of a regression; None where the task has none.
        hub: What a model card says of it for the hub; None where the hub knows no such task.
        held_out: The training rows that are held out where no validation data are given.
    """

    name: str
    home: str
    columns: ColumnNames
    summary: str
    does: str
    example: Mapping[str, object]
    open_options: type = NoOptions
    fit_options: type = NoOptions
    data_options: type = NoOptions
    predict_options: type[PredictOptions] = PredictOptions
    head: str | None = None
    outputs: str = ""
    learner: str = ""
    combiner: str = ""
    cut: Cut = "longer"
    kinds: tuple[ColumnNames, ...] = ()
    notes: str = ""
    comparable: bool = True
    number_column: str | None = None
    hub: Hub | None = None
    held_out: str = "a tenth of the rows to learn from, drawn with the seed"


class PredictArguments(TypedDict, total=False):
    """Options of a prediction, of all tasks; which ones a task has, its spec says."""

    calibrated: bool | None
    coverage: float | None
    top: int
    max_answer_tokens: int | None
    threshold: float | None
    scheme: SpanScheme | None
    words: Sequence[str] | None
    max_pieces: int
    beam: int


def chosen(kind: type[OptionsT], given: Mapping[str, Any], call: str, *, known: tuple[str, ...] = ()) -> OptionsT:
    """Return the options of a call as a value.

    Args:
        kind: Dataclass of the options.
        given: Keyword arguments of the call.
        call: For messages, such as ``"TextClassifier.predict()"``.
        known: Other arguments of the call, for messages.

    Raises:
        TypeError: One of them is not known; the message lists those that are.
        InvalidInput: A value is out of its range.
    """
    names = tuple(each.name for each in fields(kind))  # type: ignore[arg-type]
    for name in given:
        if name not in names:
            raise TypeError(
                f"{call} got an unexpected keyword argument {name!r}. Known are: {', '.join((*names, *known))}."
            )
    return kind(**given)


def options_of(kind: type[OptionsT], options: object) -> OptionsT:
    """Return options, or columns, as the dataclass of a task; the defaults for None.

    Raises:
        TypeError: They are those of another task.
    """
    given = kind() if options is None else options
    if not isinstance(given, kind):
        raise TypeError(f"expected {kind.__name__}, got {type(given).__name__}")
    return given


def check_positive(name: str, value: int) -> None:
    """Raise InvalidInput unless ``value`` is a whole number, at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(f"{name} must be at least 1, but it is {value!r}.")
