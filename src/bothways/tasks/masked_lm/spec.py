"""Declaration of masked language modelling. Loads no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge, MinLen

from bothways.choices import Shared
from bothways.errors import InvalidInput
from bothways.tasks.columns import RawTextColumns
from bothways.tasks.spec import Hub, PredictOptions, TaskSpec, TextInput, check_options

if TYPE_CHECKING:
    from bothways.objectives.masking import Masking


@dataclass(frozen=True, slots=True)
class MaskedTextColumns(RawTextColumns):
    """Columns of a text with masks to fill, or of a raw text to train on."""

    one: ClassVar[str] = "a text with masks"

    @property
    def truth(self) -> str:
        """Refuse: raw texts have no label column."""
        raise InvalidInput("masked language modelling trains on texts alone: leave out the labels.")

    def labelled_row(self, value: str, label: object) -> dict[str, object]:
        """Return the row of a text; the label is ignored."""
        del label
        return self.rows_of([value])[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskingOptions:
    """Options for masking raw texts in training and evaluation.

    Attributes:
        masking: The rule for choosing and masking tokens. Default: mask 15 % of the tokens.
        shared: Texts to measure the model on that are training texts: ``"keep"`` them, with a note, or ``"drop"`` them.
    """

    masking: "Masking | None" = None
    shared: Shared = "keep"

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FillOptions(PredictOptions):
    """Options for filling masks: the allowed words, and the search.

    Attributes:
        top: Maximum number of words per mask, and of fillings per text.
        words: The only words that may fill a mask; a word may have several pieces.
        max_pieces: Maximum pieces of a word if ``words`` is not given. With 1, any token may fill a mask. With more,
            further pieces must continue the first, without punctuation or white space, and the first piece after white
            space must begin a word.
        beam: Number of partial fillings that the search keeps.

    Raises:
        InvalidInput: A number is below 1, or ``words`` is empty.
    """

    top: Annotated[int, Ge(1)] = 5
    words: Annotated[Sequence[str] | None, MinLen(1)] = None
    max_pieces: Annotated[int, Ge(1)] = 1
    beam: Annotated[int, Ge(1)] = 16

    def __post_init__(self) -> None:
        check_options(self)
        if self.words is None:
            return
        if not isinstance(self.words, Sequence) or isinstance(self.words, str) or not self.words:
            raise InvalidInput(f"expected words as a list of at least one string, got {self.words!r}.")
        if self.max_pieces != 1:
            raise InvalidInput("words may have any number of pieces, so max_pieces has no use: leave out max_pieces.")

    @property
    def nested(self) -> tuple[str, ...]:
        """Description of the lists of words, which do not fit into table cells."""
        return ("several words for a mask",)


MASKED_LM = TaskSpec(
    name="masked_lm",
    home="bothways.tasks.masked_lm.fill_mask:FillMask",
    columns=MaskedTextColumns(),
    input=TextInput,
    prediction="bothways.tasks.masked_lm.outputs:FilledText",
    summary="Fill masks with words, score texts, and continue pre-training on raw texts.",
    hub=Hub(
        "fill-mask", '"Paris is the [MASK] of France."', "AutoModelForMaskedLM", '"Paris is the [MASK] of France."'
    ),
    example={"text": "Paris is the capital of France."},
    fit_options=MaskingOptions,
    data_options=MaskingOptions,
    predict_options=FillOptions,
    opener="bothways.tasks.masked_lm.fill_mask:open_masked_lm",
    training="bothways.tasks.masked_lm.trained:train_masked_lm",
    comparable=False,
    head="masked_lm",
    does="fill masks",
)
