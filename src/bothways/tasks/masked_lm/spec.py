"""Declaration of masked language modelling. Loads no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge, MinLen

from bothways.errors import InvalidInput
from bothways.tasks.columns import RawTextColumns
from bothways.tasks.spec import Hub, PredictOptions, TaskSpec, TextInput, check_options

if TYPE_CHECKING:
    from bothways.objectives.masking import Masking


@dataclass(frozen=True, slots=True)
class MaskedTextColumns(RawTextColumns):
    """A text: with masks to fill, or raw to learn from."""

    one: ClassVar[str] = "a text with masks"

    @property
    def truth(self) -> str:
        """Column of the truth; always refused, since raw texts have no label column."""
        raise InvalidInput("masked language modelling learns from texts alone: leave the labels out.")

    def labelled_row(self, value: str, label: object) -> dict[str, object]:
        """Return the row of a text, which has no label."""
        del label
        return self.rows_of([value])[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskingOptions:
    """Options of masking raw texts for training and evaluation.

    Attributes:
        masking: The tokens to mask; 15 % of them when None.
    """

    masking: "Masking | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FillOptions(PredictOptions):
    """Options of filling masks: words that are allowed, and the search.

    Attributes:
        top: Maximum number of words and fillings.
        words: The only words that may fill a mask; they may have several pieces.
        max_pieces: Without ``words``, maximum pieces of a word. With 1 any token may fill a mask. With more, the first
            piece must begin a word and the others continue it, without punctuation or white space.
        beam: Partial fillings that the search keeps.

    Raises:
        InvalidInput: A number is below 1, or there are no words in ``words``.
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
            raise InvalidInput("words fix the number of pieces, so leave max_pieces out.")

    @property
    def nested(self) -> tuple[str, ...]:
        """A description of the words for each mask."""
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
