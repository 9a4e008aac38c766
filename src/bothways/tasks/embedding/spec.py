"""The declaration of sentence embedders. Loads no torch.

Embedders train on rows of several kinds. Each kind is a frozen dataclass of column names. The columns named in a call
determine the kind (`kind_of`); if none are named, the columns of the first row do (`usual_kind`).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, TypeAlias, TypedDict

from bothways.choices import Pooling, Shared, Unlabelled
from bothways.data import Row, class_label, number, text_at
from bothways.errors import InvalidInput
from bothways.tasks.columns import PAIR, is_two_texts, renamed, stored_columns, two_texts, typed_texts
from bothways.tasks.spec import SENTENCE_TRANSFORMER, AlikeLabelData, Hub, PairInput, TaskSpec

if TYPE_CHECKING:
    from bothways.tasks.embedding.losses import EmbeddingLoss


@dataclass(frozen=True, slots=True)
class RowColumns:
    """Columns of a row of texts; `predict` compares the first two texts.

    Attributes:
        kind: The name of such rows in messages.
        part: The field with the column of the target, ``"score"`` or ``"label"``; empty if there is none.
    """

    kind: ClassVar[str]
    part: ClassVar[str] = ""
    one: ClassVar[str] = PAIR.form

    @property
    def texts(self) -> tuple[str | tuple[str, ...], ...]:
        """The column of each text in a row; for a tuple of columns, the text is their values joined by spaces."""
        values: list[str | tuple[str, ...]] = [
            getattr(self, each.name) for each in fields(self) if each.name != self.part
        ]
        return tuple(name for value in values for name in ([value] if isinstance(value, str) else value))

    @property
    def truth(self) -> str:
        """Column of the score or the label; empty for rows without one."""
        return str(getattr(self, self.part)) if self.part else ""

    @property
    def converter(self) -> Callable[[object], float | str]:
        """The converter of scores to numbers, or of labels to strings."""
        return number if self.part == "score" else class_label

    def convert(self, value: object) -> float | str | None:
        """Convert a score to a number, or a label to a string."""
        return self.converter(value) if self.part else None

    @property
    def input_columns(self) -> tuple[str, str]:
        """Columns of the two texts that are compared."""
        if len(self.texts) < 2:
            raise InvalidInput(
                f"expected rows of two texts to compare, but this embedder was trained on {self.kind}. To get vectors, "
                "use encode or bothways embed."
            )
        first, second = self.texts[:2]
        return str(first), str(second)

    def argument_of(self, column: str | tuple[str, ...]) -> str:
        """Return the name of the argument that names a column."""
        named = ((each.name, getattr(self, each.name)) for each in fields(self))
        return next(name for name, value in named if column == value or (type(value) is tuple and column in value))

    def read(self, row: Row) -> tuple[str, str]:
        """Return the two texts of a row that are compared."""
        first, second = self.input_columns
        return text_at(row, first, self.argument_of(first)), text_at(row, second, self.argument_of(second))

    def check(self, number: int, value: object) -> tuple[str, str]:
        """Validate a tuple or list of two texts; return it as a pair."""
        return two_texts(number, value, PAIR)

    def is_one(self, value: object) -> bool:
        """Return True for a single input: a tuple of two texts."""
        return is_two_texts(value)

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """Return one row of two texts."""
        first, second = self.input_columns
        if len(texts) != 2:
            raise InvalidInput(f"expected two texts to compare, got {len(texts)}.")
        return [{first: texts[0], second: texts[1]}]

    def labelled_row(self, value: object, label: object) -> dict[str, object]:
        """Return the row of two texts and their score."""
        if not self.truth:
            raise InvalidInput(f"{self.kind} have neither scores nor labels: leave out the labels.")
        first, second = self.check(0, value)
        return {**self.rows_of((first, second))[0], self.truth: label}


@dataclass(frozen=True, slots=True)
class ScoredPairs(RowColumns):
    """Two texts and a score of their similarity.

    Attributes:
        text_a: Column of the first text.
        text_b: Column of the second text.
        score: Column of the similarity of the two texts, on any scale: only the order of the scores matters.
    """

    text_a: str = "text_a"
    text_b: str = "text_b"
    score: str = "score"

    kind: ClassVar[str] = "scored pairs"
    part: ClassVar[str] = "score"


@dataclass(frozen=True, slots=True)
class Pairs(RowColumns):
    """Two texts that belong together: a question and its answer, a text and its paraphrase.

    Attributes:
        anchor: Column of the first text, such as a question.
        positive: Column of a text that matches the anchor, such as an answer.
    """

    anchor: str = "anchor"
    positive: str = "positive"

    kind: ClassVar[str] = "pairs"


@dataclass(frozen=True, slots=True)
class Triplets(RowColumns):
    """An anchor text, a text that matches it, and one or more texts that do not.

    Attributes:
        anchor: Column of the first text, such as a question.
        positive: Column of a text that matches the anchor, such as an answer.
        negative: Columns of texts that do not match the anchor.
    """

    anchor: str = "anchor"
    positive: str = "positive"
    negative: tuple[str, ...] = ("negative",)

    kind: ClassVar[str] = "triplets"


@dataclass(frozen=True, slots=True)
class LabelledTexts(RowColumns):
    """Texts with labels; texts with the same label match.

    Attributes:
        text: Columns of the text; several columns are joined by spaces.
        label: Column of the text's label.
    """

    text: tuple[str, ...] = ("text",)
    label: str = "label"

    kind: ClassVar[str] = "labelled texts"
    part: ClassVar[str] = "label"

    @property
    def texts(self) -> tuple[tuple[str, ...]]:
        """Columns of the single text of a row."""
        return (self.text,)

    def labelled_row(self, value: object, label: object) -> dict[str, object]:
        """Return the row of a text and its label."""
        return {**typed_texts(self.text, [str(value)])[0], self.label: label}


@dataclass(frozen=True, slots=True)
class PlainTexts(RowColumns):
    """Texts without labels, for distillation from a teacher.

    Attributes:
        text: Columns of the texts; each column holds a separate text.
    """

    text: tuple[str, ...] = ("text",)

    kind: ClassVar[str] = "texts"


EmbeddingColumns: TypeAlias = ScoredPairs | Pairs | Triplets | LabelledTexts | PlainTexts
KINDS: tuple[type[EmbeddingColumns], ...] = (ScoredPairs, Pairs, Triplets, LabelledTexts, PlainTexts)
# Columns that identify the kind of rows, the most specific first.
SIGNS = {"negative": Triplets, "anchor": Pairs, "positive": Pairs, "label": LabelledTexts, "text": LabelledTexts}


def names_of(kind: type[EmbeddingColumns]) -> tuple[str, ...]:
    """Return the names of the column arguments of a kind of rows, such as ``anchor``."""
    return tuple(each.name for each in fields(kind))


# Columns of negatives: ``negative``, or ``negative_1``, ``negative_2``, ...
_NEGATIVE = re.compile(r"negative(?:_(\d{1,9}))?", re.ASCII)

NAMES = tuple(dict.fromkeys(name for kind in KINDS for name in names_of(kind)))


# Columns beside ``anchor`` and ``positive`` that say whether the texts belong together at all.
_SCORES = frozenset(("label", "score", "similarity"))


def kind_of(*, teacher: bool = False, **names: object) -> EmbeddingColumns:
    """Return the kind of rows that has these columns; other columns keep their default names.

    >>> kind_of(score="likeness")
    ScoredPairs(text_a='text_a', text_b='text_b', score='likeness')
    >>> kind_of(positive="answer", anchor="question")
    Pairs(anchor='question', positive='answer')

    Args:
        teacher: True if the rows are plain texts for distillation from a teacher.
        names: The name of each column, by its field such as ``anchor``.
    """
    given = {name: value for name, value in names.items() if value}
    kind = PlainTexts if teacher else next((SIGNS[name] for name in SIGNS if name in given), ScoredPairs)
    if not given.keys() <= set(names_of(kind)):
        raise InvalidInput(
            "expected columns of one kind of rows: "
            + ", or ".join(f"{each.kind} ({', '.join(names_of(each))})" for each in KINDS)
            + f"; got {', '.join(given)}."
            + (" With a teacher, name only text." if teacher else "")
        )
    columns: EmbeddingColumns = renamed(kind(), given)
    return columns


def usual_kind(there: Iterable[str], otherwise: EmbeddingColumns | None = None) -> EmbeddingColumns:
    """Return the kind of rows whose default columns are among these names; if no kind fits, ``otherwise``.

    >>> usual_kind(["anchor", "positive", "negative_1", "negative_2"])
    Triplets(anchor='anchor', positive='positive', negative=('negative_1', 'negative_2'))
    """
    names = set(map(str, there))
    if {"text_a", "text_b"} <= names:
        return ScoredPairs()
    if {"anchor", "positive"} <= names:
        numbered = {name: int(found[1] or 0) for name in names if (found := _NEGATIVE.fullmatch(name))}
        negatives = tuple(sorted(numbered, key=lambda name: (numbered[name], name)))
        if not negatives and (scores := names & _SCORES):
            return ScoredPairs("anchor", "positive", max(scores))
        return Triplets(negative=negatives) if negatives else Pairs()
    return LabelledTexts() if {"text", "label"} <= names else otherwise or ScoredPairs()


def stored_kind(card: Mapping[str, object]) -> EmbeddingColumns:
    """Return the columns stored in a card; the default columns of scored pairs if it has none."""
    stored = card.get("columns")
    known = stored.keys() if isinstance(stored, dict) else set()
    return stored_columns(card, next((kind() for kind in KINDS if known == set(names_of(kind))), ScoredPairs()))


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOpening:
    """Options for computing vectors. Default: as in the checkpoint.

    Attributes:
        pooling: How token states are pooled into one vector. Default: as the checkpoint says, else the mean. ``"cls"``
            takes the state of the tokenizer's [CLS] token: the first token of a text, or the last (XLNet).
        unit_length: Scale vectors to length 1. Default: as the checkpoint's ``modules.json`` says, true without one.
        dimensions: Keep only this many leading dimensions of each vector, for models trained with Matryoshka.
    """

    pooling: Pooling | None = None
    unit_length: bool | None = None
    dimensions: int | None = None


class VectorArguments(TypedDict, total=False):
    """Options for computing vectors, as keyword arguments; see `EmbeddingOpening`."""

    pooling: Pooling | None
    unit_length: bool | None
    dimensions: int | None


class EncodingArguments(VectorArguments, total=False):
    """The options of `SentenceEmbedder.encode`."""

    prompt: str | None
    prompt_name: str | None
    max_tokens: int | None
    show_progress: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """Options for the text that is put before each text.

    Attributes:
        prompt: Text to put before each text, such as ``"query: "``; ``""`` for none. Default: that of the index, which
            refuses any other; without an index, the model's own, if its files name one.
        prompt_name: Name of one of the model's own prompts, instead of its text.
    """

    prompt: str | None = None
    prompt_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPromptOptions:
    """Options for the text that is put before each query of an index.

    Attributes:
        query_prompt: Text to put before each query of a later search. Default: the model's own for queries, if its
            files name one.
        query_prompt_name: Name of one of the model's own prompts, instead of its text.
    """

    query_prompt: str | None = None
    query_prompt_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingLearning:
    """Options of training an embedder.

    Attributes:
        loss: A loss from `bothways.tasks.embedding.losses`. Default: `CoSENT` for scored pairs, else
            `MultipleNegativesRanking`. Plain texts need a `Distillation` with a teacher.
        pairs_per_text: Number of pairs drawn for each labelled text per epoch.
        unlabelled: What to do with rows that have no label or score (empty, null, or a class ``-`` or ``-1`` that
            stands for no label): ``"error"`` refuses the data, ``"drop"`` leaves such rows out.
        normalise_labels: For labelled texts, take labels that look alike, such as ``sport``, ``SPORT`` and ``sport``
            with a space, as one label. Default: they are different labels, and a note names them.
        shared: Validation rows that are training rows: ``"keep"`` them, with a note, or ``"drop"`` them.
    """

    loss: "EmbeddingLoss | None" = None
    pairs_per_text: int = 1
    unlabelled: Unlabelled = "error"
    normalise_labels: bool | None = None
    shared: Shared = "keep"

    def __post_init__(self) -> None:
        _ = self.reading  # checks them

    @property
    def reading(self) -> AlikeLabelData:
        """The options for reading rows."""
        return AlikeLabelData(unlabelled=self.unlabelled, normalise_labels=self.normalise_labels, shared=self.shared)


EMBEDDING = TaskSpec(
    name="embedding",
    home="bothways.tasks.embedding.embedder:SentenceEmbedder",
    columns=ScoredPairs(),
    input=PairInput,
    prediction="bothways.tasks.embedding.outputs:Similarity",
    summary="Embed texts as vectors whose cosine measures similarity.",
    hub=Hub("sentence-similarity", '["A man sleeps.", "Someone is asleep."]', SENTENCE_TRANSFORMER),
    example={"text_a": "A man sleeps.", "text_b": "Someone is asleep.", "score": 4.6},
    open_options=EmbeddingOpening,
    fit_options=EmbeddingLearning,
    data_options=AlikeLabelData,
    opener="bothways.tasks.embedding.trained:open_embedder",
    training="bothways.tasks.embedding.training:train_embedder",
    does="compare vectors of texts",
    kinds=(Pairs(), Triplets(), LabelledTexts()),
    notes="""\
or pairs that belong together:
  {"anchor": "How do I pay?", "positive": "Cards are accepted."}
or triplets (for several negatives: negative_1, negative_2, ...):
  {"anchor": "How do I pay?", "positive": "By card.", "negative": "Pay rises."}
or labelled texts, where texts with the same label belong together:
  {"text": "Where is my card?", "label": "card_arrival"}
or, with --teacher, texts alone, for distillation from a larger embedder:
  {"text": "Where is my card?"}
The columns of the first row determine the kind. To read other columns, name
them: --anchor question --positive answer. For negatives: bothways search mine.""",
    held_out="about a tenth of the training rows (at most some 2,000), drawn with the seed; rows with the same first "
    "text stay together",
)
