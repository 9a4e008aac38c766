"""What sentence embedders learn from: pairs, triplets, scored pairs, labelled texts, or texts alone.

Each kind is a frozen dataclass that says in which columns its parts stand. The columns that are asked for tell which
kind it is (`kind_of`).

Shapes: R rows, K texts of a row, N texts (R times K).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from bothways.data import Inputs, Joined, Row, Source, class_label, number, read_rows, text_at, value_at
from bothways.data.windows import WindowStore, digest_of
from bothways.errors import InvalidInput
from bothways.inference import TextOptions
from bothways.tasks.card import data_part
from bothways.tasks.columns import stored_columns
from bothways.tasks.opening import stored_texts
from bothways.text import TextTokenizer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ScoredPairs:
    """Two texts and a number that says how alike they are; only the order of the numbers counts.

    Attributes:
        text_a: Column of the first text.
        text_b: Column of the second.
        score: Column of the number.
    """

    text_a: str = "text_a"
    text_b: str = "text_b"
    score: str = "score"

    kind: ClassVar[str] = "scored pairs"

    @property
    def texts(self) -> tuple[str, ...]:
        """Columns of the texts."""
        return self.text_a, self.text_b

    def truth(self, row: Row) -> float:
        """The number."""
        return _converted(row, self.score, number)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Two texts that belong together: a question and its answer, a text and its paraphrase.

    Attributes:
        anchor: Column of the first text, the one that looks for the other.
        positive: Column of the second.
    """

    anchor: str = "anchor"
    positive: str = "positive"

    kind: ClassVar[str] = "pairs"

    @property
    def texts(self) -> tuple[str, ...]:
        """Columns of the texts."""
        return self.anchor, self.positive

    def truth(self, row: Row) -> None:
        """Nothing."""
        del row


@dataclass(frozen=True, slots=True)
class Triplets:
    """A text, one that belongs to it, and one or more that look so and do not.

    Attributes:
        anchor: Column of the first text.
        positive: Column of the one that belongs to it.
        negative: Columns of those that do not.
    """

    anchor: str = "anchor"
    positive: str = "positive"
    negative: tuple[str, ...] = ("negative",)

    kind: ClassVar[str] = "triplets"

    @property
    def texts(self) -> tuple[str, ...]:
        """Columns of the texts."""
        return self.anchor, self.positive, *self.negative

    def truth(self, row: Row) -> None:
        """Nothing."""
        del row


@dataclass(frozen=True, slots=True)
class LabelledTexts:
    """Texts with labels; those of one label belong together.

    Attributes:
        text: Columns of the text, joined by a space.
        label: Column of its label.
    """

    text: tuple[str, ...] = ("text",)
    label: str = "label"

    kind: ClassVar[str] = "labelled texts"

    @property
    def inputs(self) -> Inputs:
        """What a row is read as."""
        return Joined(self.text)

    @property
    def texts(self) -> tuple[tuple[str, ...]]:
        """Columns of the only text."""
        return (self.text,)

    def truth(self, row: Row) -> str:
        """The label."""
        return _converted(row, self.label, class_label)


@dataclass(frozen=True, slots=True)
class PlainTexts:
    """Texts alone, for a teacher to say how alike they are.

    Attributes:
        text: Columns of the texts, each of them a text of its own.
    """

    text: tuple[str, ...] = ("text",)

    kind: ClassVar[str] = "texts"

    @property
    def texts(self) -> tuple[str, ...]:
        """Columns of the texts."""
        return self.text

    def truth(self, row: Row) -> None:
        """Nothing."""
        del row


EmbeddingColumns = ScoredPairs | Pairs | Triplets | LabelledTexts | PlainTexts
KINDS: tuple[type[EmbeddingColumns], ...] = (ScoredPairs, Pairs, Triplets, LabelledTexts, PlainTexts)


def kind_of(
    *,
    text_a: str | None = None,
    text_b: str | None = None,
    score: str | None = None,
    anchor: str | None = None,
    positive: str | None = None,
    negative: tuple[str, ...] | None = None,
    text: tuple[str, ...] | None = None,
    label: str | None = None,
    teacher: bool = False,
) -> EmbeddingColumns:
    """The kind of data that these columns make; a column of it that is not named has its usual name.

    >>> kind_of(score="likeness")
    ScoredPairs(text_a='text_a', text_b='text_b', score='likeness')
    >>> kind_of(positive="answer", anchor="question")
    Pairs(anchor='question', positive='answer')

    Raises:
        InvalidInput: They are columns of several kinds.
    """
    given = {
        name: value
        for name, value in {
            "text_a": text_a,
            "text_b": text_b,
            "score": score,
            "anchor": anchor,
            "positive": positive,
            "negative": negative,
            "text": text,
            "label": label,
        }.items()
        if value
    }
    chosen = ("text", PlainTexts()) if teacher else _first_fit(given)
    usual = chosen[1]
    known = {each.name for each in fields(usual)}
    if not given.keys() <= known:
        raise InvalidInput(
            "columns of one kind of data are wanted: "
            + ", or ".join(f"{kind.kind} ({', '.join(each.name for each in fields(kind))})" for kind in KINDS)
            + f". Got {', '.join(given)}"
            + (" with a teacher, which wants texts." if teacher else ".")
        )
    named: dict[str, Any] = given
    return type(usual)(**named)


def _first_fit(given: dict[str, Any]) -> tuple[str, EmbeddingColumns]:
    """The kind that the most telling of the given columns belongs to."""
    signs: tuple[tuple[str, EmbeddingColumns], ...] = (
        ("negative", Triplets()),
        ("anchor", Pairs()),
        ("positive", Pairs()),
        ("label", LabelledTexts()),
        ("text", LabelledTexts()),
    )
    return next((each for each in signs if each[0] in given), ("text_a", ScoredPairs()))


def stored_kind(card: dict[str, Any]) -> EmbeddingColumns:
    """The columns that a card names; the usual ones of scored pairs where it names none.

    Raises:
        CorruptCheckpoint: They are not names of any kind.
    """
    stored = card.get("columns")
    usual = next(
        (kind() for kind in KINDS if isinstance(stored, dict) and stored.keys() == {e.name for e in fields(kind)}),
        ScoredPairs(),
    )
    return stored_columns(card, usual)


@dataclass(frozen=True, slots=True)
class EmbeddingRow:
    """One row.

    Attributes:
        texts: Its K texts, in the order of the columns.
        label: Its score or label; None where the kind has neither.
        where: Where it stands, for messages.
    """

    texts: tuple[str, ...]
    label: Any
    where: str


def read_embedding_rows(source: Source, columns: EmbeddingColumns) -> list[EmbeddingRow]:
    """All rows of a source.

    Raises:
        InvalidInput: A text is missing or empty, or a score or label is unusable; the message says where.
    """
    if len(set(columns.texts)) < len(columns.texts):
        raise InvalidInput(f"the texts of a row must stand in different columns, but got {columns.texts}.")
    return [
        EmbeddingRow(tuple(text_at(row, column) for column in columns.texts), columns.truth(row), row.where)
        for row in read_rows(source)
    ]


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows, tokenised.

    Attributes:
        store: The texts, those of a row one after the other.
        texts_RK: Their numbers in it.
        identity_N: For each text, a number that equal texts share.
        truth_R: Scores, or numbers of the labels; None where the kind has neither.
    """

    store: WindowStore
    texts_RK: NDArray[np.int64]
    identity_N: NDArray[np.int64]
    truth_R: NDArray[Any] | None

    @classmethod
    def of(
        cls, rows: Sequence[EmbeddingRow], columns: EmbeddingColumns, tokenizer: TextTokenizer, reading: TextOptions
    ) -> "StoredRows":
        """Tokenise rows.

        Raises:
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        texts = [text for row in rows for text in row.texts]
        store = stored_texts(tokenizer, texts, reading)
        texts_RK = np.arange(len(texts)).reshape(len(rows), len(columns.texts))
        return cls(store, texts_RK, identities(texts), truth_of(rows, columns))

    @property
    def part(self) -> dict[str, object]:
        """What a card says of the data: how many rows, and SHA-256 of their tokens and of what they are learnt by."""
        truth = {} if self.truth_R is None else {"labels_sha256": digest_of(self.truth_R)}
        return {**data_part(len(self.texts_RK), self.store), **truth}

    @property
    def digest(self) -> str:
        """A checksum of tokens and truth."""
        parts = (self.texts_RK,) if self.truth_R is None else (self.texts_RK, self.truth_R)
        return f"{self.store.digest} {digest_of(*parts)}"


def identities(texts: Sequence[str]) -> NDArray[np.int64]:
    """A number for each text that equal texts share (N)."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)


def truth_of(rows: Sequence[EmbeddingRow], columns: EmbeddingColumns) -> NDArray[Any] | None:
    """Scores, or numbers of the labels (R); None of a kind that has neither."""
    match columns:
        case ScoredPairs():
            return np.array([row.label for row in rows], dtype=np.float64)
        case LabelledTexts():
            names = {name: index for index, name in enumerate(sorted({row.label for row in rows}))}
            return np.array([names[row.label] for row in rows], dtype=np.int64)
        case Pairs() | Triplets() | PlainTexts():
            return None


def _converted(row: Row, column: str, convert: Callable[[object], T]) -> T:
    value = value_at(row, column)
    try:
        return convert(value)
    except InvalidInput as error:
        raise InvalidInput(f"{row.where}: {column!r}: {error}") from error
