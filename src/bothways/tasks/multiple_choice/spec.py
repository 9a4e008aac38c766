"""Declaration of multiple choice. Loads no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import MinLen

from bothways.choices import LabelRule, Shared, Unlabelled
from bothways.confidence.confidence import TemperatureOptions
from bothways.data import Row, text_at
from bothways.data.columns import list_at
from bothways.errors import InvalidInput, shown
from bothways.tasks.spec import Hub, LabelData, NonBlank, PredictOptions, TaskSpec, check_options


@dataclass(frozen=True, slots=True)
class ChoiceColumns:
    """Columns of a context, its choices and the right choice.

    Attributes:
        context: Column of the context.
        choices: Column with a list of choices, or several columns with one choice each.
        label: Column of the right choice: its index from 0, or its text.
    """

    context: str = "context"
    choices: tuple[str, ...] = ("choices",)
    label: str = "label"

    one: ClassVar[str] = "a tuple of a context and its choices"

    def read(self, row: Row) -> tuple[str, tuple[str, ...]]:
        """Return context and choices of a row."""
        context = text_at(row, self.context, "context")
        if len(self.choices) > 1:
            return context, tuple(text_at(row, column, "choices") for column in self.choices)
        return self._checked(
            context,
            list_at(row, self.choices[0], "Write the choices as a JSON list", "choices"),
            f"{row.where}: {self.choices[0]!r}",
        )

    def check(self, number: int, value: object) -> tuple[str, tuple[str, ...]]:
        """Validate a tuple or list of a context and its choices; return it as a tuple."""
        match value:
            case tuple((str(context), choices)) | list([str(context), choices]):
                return self._checked(context, choices, f"the choices of input {number + 1}")
            case _:
                raise InvalidInput(f"input {number + 1} must be {self.one}, got {type(value).__name__}: {shown(value)}")

    @staticmethod
    def _checked(context: str, choices: object, where: str) -> tuple[str, tuple[str, ...]]:
        match choices:
            case (list([_, _, *_]) | tuple([_, _, *_])) as listed if all(
                isinstance(each, str) and each.strip() for each in listed
            ):
                return context, tuple(listed)
            case _:
                raise InvalidInput(f"{where} must be a list of at least two non-empty texts, got {shown(choices)}.")

    def is_one(self, value: object) -> bool:
        """Return True for a single input: a tuple of a context and its choices."""
        match value:
            case tuple((_, str())):
                return False
            case tuple((_, _)):
                return True
            case _:
                return False

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """Return one row: the first text is the context, the others are its choices."""
        if len(texts) < 3:
            raise InvalidInput(f"expected a context and at least two choices, got {len(texts)} texts.")
        return [self.labelled_row((texts[0], tuple(texts[1:])), None)]

    @property
    def input_columns(self) -> tuple[str, ...]:
        """Columns of context and choices."""
        return self.context, *self.choices

    @property
    def truth(self) -> str:
        """Column of the right choice."""
        return self.label

    def labelled_row(self, value: tuple[str, Sequence[str]], label: object) -> dict[str, object]:
        """Return the row of a context, its choices and the right choice."""
        context, choices = value
        if len(self.choices) == 1:
            return {self.context: context, self.choices[0]: list(choices), self.label: label}
        return {self.context: context, **dict(zip(self.choices, choices, strict=True)), self.label: label}


@dataclass(frozen=True, slots=True)
class ChoiceInput:
    """A context and its choices.

    Attributes:
        context: The context.
        choices: Two or more texts to choose from.
    """

    context: NonBlank
    choices: Annotated[tuple[NonBlank, ...], MinLen(2)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceFitting(TemperatureOptions):
    """Options for fitting on contexts with choices.

    Attributes:
        label_is: What the labels are: the ``"index"`` of the right choice, from 0, or its ``"text"``. Default: what all
            labels of a file can be; the index if they can be both, as with choices that are numbers.
        unlabelled: What to do with rows that have no label (empty, null, ``-`` or -1): ``"error"`` refuses the data,
            ``"drop"`` leaves such rows out.
        shared: Validation rows that are training rows: ``"keep"`` them, with a note, or ``"drop"`` them.
    """

    label_is: LabelRule | None = None
    unlabelled: Unlabelled = "error"
    shared: Shared = "keep"

    @property
    def reading(self) -> "ChoiceData":
        """The options for reading labelled contexts."""
        return ChoiceData(label_is=self.label_is, unlabelled=self.unlabelled, shared=self.shared)

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceData(LabelData):
    """Options for reading labelled contexts.

    Attributes:
        label_is: What the labels are: the ``"index"`` of the right choice, from 0, or its ``"text"``. Default: what all
            labels of a file can be; as in training if they can be both, as with choices that are numbers.
    """

    label_is: LabelRule | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicePrediction(PredictOptions):
    """Options for predicting the choice that fits a context.

    Attributes:
        calibrated: True requires calibrated probabilities, False returns the head's uncalibrated ones. Default:
            calibrated if the model is.
    """

    calibrated: bool | None = None


MULTIPLE_CHOICE = TaskSpec(
    name="multiple_choice",
    home="bothways.tasks.multiple_choice.chooser:MultipleChoice",
    columns=ChoiceColumns(),
    input=ChoiceInput,
    prediction="bothways.tasks.multiple_choice.outputs:ChosenAnswer",
    summary="Choose which of several answers fits a context.",
    hub=Hub(
        "multiple-choice",
        '("She opened the fridge and", ["took out the milk.", "flew away."])',
        "AutoModelForMultipleChoice",
    ),
    example={"context": "She opened the fridge and", "choices": ["took out the milk.", "flew away."], "label": 0},
    fit_options=ChoiceFitting,
    data_options=ChoiceData,
    predict_options=ChoicePrediction,
    head="multiple_choice",
    outputs="bothways.tasks.multiple_choice.outputs:ChoiceOutputs",
    learner="bothways.tasks.multiple_choice.learner:ChoiceLearner",
    combiner="bothways.tasks.multiple_choice.combination:ChoiceCombiner",
    does="choose among answers",
    notes="""\
The label is the index of the right choice, from 0, or its text; all rows of
a file in one way, see --label-is. If each choice has a column of its own,
name the columns with --choices.""",
    held_out="about a tenth of the rows, drawn with the seed; rows with the same context stay together",
)
