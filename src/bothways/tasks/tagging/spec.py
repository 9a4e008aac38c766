"""Declaration of tagging. Does not import torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import MinLen

from bothways.choices import LabelValue, Scheme, Shared, SpanScheme, Unlabelled
from bothways.confidence.confidence import TemperatureOptions
from bothways.data import Row
from bothways.data.columns import given_words
from bothways.errors import InvalidInput, shown
from bothways.tasks.columns import typed_texts
from bothways.tasks.spec import Hub, LabelData, NonBlank, PredictOptions, TaskSpec, TextInput, check_options

if TYPE_CHECKING:
    from bothways.text import Words


@dataclass(frozen=True, slots=True)
class TagColumns:
    """Words and their tags.

    Attributes:
        tokens: Column of the words: a list, or a string with white space between the words.
        tags: Column of the tags, one per word, in the same form.
        text: Columns of raw text, joined by spaces; read in prediction if a row has no column of words.
    """

    tokens: str = "tokens"
    tags: str = "tags"
    text: tuple[str, ...] = ("text",)

    one: ClassVar[str] = "a text"

    def read(self, row: Row) -> "Words":
        """Return the words of a row, or of its raw text."""
        return given_words(row, self.tokens, self.text)

    def check(self, number: int, value: object) -> "Words":
        """Return the words of a raw text (see `bothways.text.words.word_spans`) or of a list."""
        from bothways.text import Words

        match value:
            case Words():
                return value
            case str():
                words = Words.of_text(value)
            case Sequence() if all(isinstance(word, str) for word in value):
                try:
                    words = Words.of_list(value)
                except InvalidInput as error:
                    raise InvalidInput(f"text {number + 1}: {error}") from error
            case _:
                kind = type(value).__name__
                raise InvalidInput(
                    f"expected text {number + 1} to be a str or a list of str, got {kind}: {shown(value)}"
                )
        if not words.spans:
            raise InvalidInput(
                f"text {number + 1} is empty or only white space and invisible characters: drop it or fill it in."
            )
        return words

    def is_one(self, value: object) -> bool:
        """Return True for a raw text; a list is a batch of texts."""
        return isinstance(value, str)

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """Return a row for each raw text."""
        return typed_texts(self.text, texts)

    @property
    def input_columns(self) -> tuple[str, ...]:
        """Column of the words."""
        return (self.tokens,)

    @property
    def truth(self) -> str:
        """Column of the tags."""
        return self.tags

    def labelled_row(self, value: object, label: object) -> dict[str, object]:
        """Return the row of words and their tags."""
        return {self.tokens: value, self.tags: label}


@dataclass(frozen=True, slots=True)
class WordsInput:
    """The words of a text.

    Attributes:
        tokens: A list of words, or a text with white space between them.
    """

    tokens: Annotated[tuple[Annotated[str, MinLen(1)], ...], MinLen(1)] | NonBlank


@dataclass(frozen=True, slots=True, kw_only=True)
class TagOpening:
    """Options for opening a trained head.

    Attributes:
        labels: The tags, as ``["O", "B-PER"]`` or ``"O,B-PER"``, in the order of the outputs and of numbers in data.
            They name the outputs of a trained head without names; for `fit` they are the only tags, except that a
            scheme of spans adds its other tags of the same spans.
        scheme: Scheme in which the labels encode spans, if it cannot be recognised from them, such as ``"IOB1"``.
    """

    labels: Sequence[LabelValue] | None = None
    scheme: Scheme | None = None

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TagFitting(TemperatureOptions):
    """Options for fitting on tagged words.

    Attributes:
        scheme: Scheme in which the tags encode spans: ``"BIO"``, ``"IOB1"`` (converted to BIO), ``"BIOES"``,
            ``"BILOU"``, or ``"plain"`` for tags that encode no spans. Default: recognised from the tags.
        unlabelled: What to do with rows without tags (empty, null or an empty list): ``"error"`` refuses the data,
            ``"drop"`` leaves such rows out.
        normalise_labels: Take tags that look alike, such as ``B-PER`` and ``B-Per``, as one tag, named as most words
            name it; the model then reads all tags so. Default: they are different tags, and a note names them.
        shared: Validation rows that are training rows: ``"keep"`` them, with a note, or ``"drop"`` them.
    """

    scheme: Scheme | None = None
    unlabelled: Unlabelled = "error"
    normalise_labels: bool | None = None
    shared: Shared = "keep"

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TagData(LabelData):
    """Options for reading tagged data.

    Attributes:
        labels: The tags that numbers in the data stand for, from 0, as ``["O", "B-PER"]`` or ``"O,B-PER"``. Default: as
            declared for the training.
        scheme: Scheme of the tags in the data; may differ from the model's. Default: recognised from the tags.
        normalise_labels: Take tags that look alike, such as ``B-PER`` and ``B-Per``, as one tag. Default: as trained.
    """

    scheme: Scheme | None = None
    normalise_labels: bool | None = None
    labels: Sequence[LabelValue] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TagPrediction(PredictOptions):
    """Options of a prediction.

    Attributes:
        calibrated: True requires calibrated probabilities; False returns uncalibrated ones. Default: calibrated if the
            model is calibrated.
        scheme: Scheme of the predicted tags. Default: the model's.
    """

    calibrated: bool | None = None
    scheme: SpanScheme | None = None

    @property
    def nested(self) -> tuple[str, ...]:
        """The names of the lists of words and of spans."""
        return "words", "spans"

    @property
    def listed(self) -> str:
        """The list of spans, whose items become table rows."""
        return "spans"


TAGGING = TaskSpec(
    name="tagging",
    home="bothways.tasks.tagging.tagger:TextTagger",
    columns=TagColumns(),
    input=WordsInput | TextInput,
    prediction="bothways.tasks.tagging.outputs:Tagging",
    summary="Tag words: names, parts of speech and the like.",
    hub=Hub(
        "token-classification",
        '"Ada Lovelace lived in London."',
        "AutoModelForTokenClassification",
        '"Ada Lovelace lived in London."',
    ),
    example={"tokens": ["Li", "Na", "left"], "tags": ["B-PER", "I-PER", "O"]},
    open_options=TagOpening,
    fit_options=TagFitting,
    data_options=TagData,
    predict_options=TagPrediction,
    head="token",
    outputs="bothways.tasks.tagging.outputs:TagOutputs",
    learner="bothways.tasks.tagging.learner:TagLearner",
    combiner="bothways.tasks.tagging.combination:TagCombiner",
    does="tag words",
    notes="""\
or, in a .conll file, a word and its tag on each line and an empty line
between texts.""",
)
