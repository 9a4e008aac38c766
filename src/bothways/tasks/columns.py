"""Column names of inputs and labels in rows of data, and checks of inputs that are Python values.

Each task has a frozen dataclass of column names. A saved model stores its column names in its card, and reads these
columns by default.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from typing import Any, ClassVar, Protocol, Self, TypeAlias, TypeVar

from bothways.data import Row, as_batch, text_at
from bothways.errors import InvalidInput, UnreadColumn, shown
from bothways.text.characters import VISIBLE

InputT = TypeVar("InputT")

Card: TypeAlias = Mapping[str, Any]
"""A model's record of its training, as JSON values."""


class ColumnNames(Protocol[InputT]):
    """A frozen dataclass of column names, which reads inputs from rows and from Python values.

    ``one`` is the noun phrase for a single input in messages, such as ``"a text"``. Methods raise `InvalidInput` for
    values that are not inputs; the message names the row or the position of the value.
    """

    one: ClassVar[str]

    def read(self, row: Row) -> InputT:
        """Return the input of a row."""

    def check(self, number: int, value: object) -> InputT:
        """Return a caller's value as a checked input; ``number`` is its position, from 0."""

    def is_one(self, value: object) -> bool:
        """Return True for a single input, False for a batch."""

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """Return texts from a command line as rows of a file; raise `InvalidInput` for too few or too many texts."""

    @property
    def input_columns(self) -> tuple[str, ...]:
        """Columns that hold an input."""

    @property
    def truth(self) -> str:
        """Column of the ground truth: the label, the tags or the answers."""

    def labelled_row(self, value: InputT, label: object) -> dict[str, object]:
        """Return the row of an input and its label."""


AnyColumns: TypeAlias = ColumnNames[Any]
"""Columns of any task."""


@dataclass(frozen=True, slots=True)
class RawTextColumns:
    """A text without a label: the contents of one or several columns, joined by spaces."""

    text: tuple[str, ...] = ("text",)

    one: ClassVar[str] = "a text"

    @property
    def input_columns(self) -> tuple[str, ...]:
        """Columns of the text."""
        return self.text

    def read(self, row: Row) -> str:
        """Return the text of a row."""
        return text_at(row, self.text)

    def check(self, number: int, value: object) -> Any:  # noqa: ANN401 (texts are checked where they are tokenised)
        """Return the text unchanged."""
        del number
        return value

    def is_one(self, value: object) -> bool:
        """Return True for a string."""
        return isinstance(value, str)

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """Return a row for each text."""
        return typed_texts(self.text, texts)


@dataclass(frozen=True, slots=True)
class TextColumns(RawTextColumns):
    """A text and its label.

    Attributes:
        text: Columns whose contents, joined by spaces, are the text.
        label: Column of the label.
    """

    label: str = "label"

    @property
    def truth(self) -> str:
        """Column of the label."""
        return self.label

    def labelled_row(self, value: str, label: object) -> dict[str, object]:
        """Return the row of a text and its label."""
        return {**typed_texts(self.text, [value])[0], self.label: label}


# --- inputs of two texts ---


@dataclass(frozen=True, slots=True)
class TwoTexts:
    """Nouns for messages: an input of two texts (``whole``), its Python value (``form``), each text (``parts``)."""

    whole: str
    form: str
    parts: tuple[str, str]


PAIR = TwoTexts("pair", "a tuple of two texts", ("first text", "second text"))
QUESTION = TwoTexts("question", "a tuple of a question and its context", ("question", "context"))


def is_two_texts(value: object) -> bool:
    """Return True for a tuple of two texts; a list is a batch of inputs."""
    match value:
        case tuple((tuple() | list(), _) | (_, tuple() | list())):
            return False
        case tuple((_, _)):
            return True
        case _:
            return False


def two_texts(number: int, value: object, kind: TwoTexts) -> tuple[str, str]:
    """Return a tuple or list of two texts as a tuple; raise `InvalidInput` for other values and for blank texts.

    ``number`` is the position of the value, from 0; messages count from 1.
    """
    name = f"{kind.whole} {number + 1}"
    match value:
        case tuple((str(first), str(second))) | list([str(first), str(second)]):
            pass
        case _:
            raise InvalidInput(f"{name} must be {kind.form}, got {_shown(value)}.")
    for part, text in zip(kind.parts, (first, second), strict=True):
        if not VISIBLE.search(text):
            whose = name if part == kind.whole else f"the {part} of {name}"
            raise InvalidInput(
                f"{whose} is empty or only white space and invisible characters: drop the {kind.whole} or fill it in."
            )
    return first, second


@dataclass(frozen=True, slots=True)
class TwoTextColumns:
    """Columns of two texts and of their label: subclasses are dataclasses with these three fields, in this order."""

    names: ClassVar[TwoTexts]

    @property
    def input_columns(self) -> tuple[str, str]:
        """Columns of both texts."""
        first, second, _ = astuple(self)
        return first, second

    @property
    def truth(self) -> str:
        """Column of the label."""
        return str(astuple(self)[2])

    def read(self, row: Row) -> tuple[str, str]:
        """Return both texts of a row."""
        first, second = self.input_columns
        names = (each.name for each in fields(self))
        return text_at(row, first, next(names)), text_at(row, second, next(names))

    def check(self, number: int, value: object) -> tuple[str, str]:
        """Return a tuple or list of two texts as a tuple."""
        return two_texts(number, value, self.names)

    def is_one(self, value: object) -> bool:
        """Return True for a tuple of two texts."""
        return is_two_texts(value)

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """Return one row of two texts."""
        if len(texts) != 2:
            first, second = self.names.parts
            raise InvalidInput(f"expected two texts, the {first} and the {second}, got {len(texts)}.")
        return [dict(zip(self.input_columns, texts, strict=True))]

    def labelled_row(self, value: tuple[str, str], label: object) -> dict[str, object]:
        """Return the row of two texts and their label."""
        return {**self.rows_of(value)[0], self.truth: label}


@dataclass(frozen=True, slots=True)
class PairColumns(TwoTextColumns):
    """Two texts and their label.

    Attributes:
        text_a: Column of the first text.
        text_b: Column of the second text.
        label: Column of the label, or of the score.
    """

    text_a: str = "text_a"
    text_b: str = "text_b"
    label: str = "label"

    names: ClassVar[TwoTexts] = PAIR
    one: ClassVar[str] = PAIR.form


def batch_of(columns: AnyColumns, value: object) -> tuple[list[Any], bool]:
    """Return the argument of `predict` as a list, and True if it was a single input.

    A batch is a list, a tuple, a generator, a NumPy array, a Series or another column, or a table of rows.
    """
    if columns.is_one(value):
        return [value], True
    many = "such tuples" if columns.one.startswith("a tuple") else "them"
    listed, alone = as_batch(value, columns.one, many)
    if alone:
        raise InvalidInput(f"expected {columns.one}, or a list of {many}, got {type(value).__name__}: {shown(value)}")
    return listed, False


def parse(columns: ColumnNames[InputT], value: object) -> tuple[list[InputT], bool]:
    """Return the checked inputs of a call as a list, and True if the call had a single input."""
    if columns.is_one(value):
        return [columns.check(0, value)], True
    return list(inputs_of(columns, batch_of(columns, value)[0])), False


def inputs_of(columns: ColumnNames[InputT], values: Iterable[object]) -> Iterator[InputT]:
    """Yield the caller's values as checked inputs; see `input_of`."""
    return (input_of(columns, number, value) for number, value in enumerate(values))


def input_of(columns: ColumnNames[InputT], number: int, value: object) -> InputT:
    """Return an item of a batch as a checked input; mappings are read as rows. ``number`` counts from 0."""
    match value:
        case Row():
            return columns.read(value)
        case Mapping():
            return columns.read(Row(number + 1, dict(value), f"row {number + 1} of the inputs"))
        case _:
            return columns.check(number, value)


def typed_texts(columns: Sequence[str], texts: Sequence[str]) -> list[dict[str, object]]:
    """Return one row per text, with the text in the first column and the other columns empty."""
    first, *others = columns
    return [{first: text, **dict.fromkeys(others, "")} for text in texts]


# --- names ---


class JointColumns(ABC):
    """Columns of an ensemble or a multi-task model; each member reads its own ``input_columns``."""

    input_columns: ClassVar[None] = None

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of the column arguments, such as ``text`` and ``label``."""

    @abstractmethod
    def renamed(self, names: Mapping[str, object]) -> Self:
        """Return the columns with new values of some column arguments, in all models that have these arguments.

        Raises `UnreadColumn` for an argument that no model has.
        """


def column_names(columns: object) -> tuple[str, ...]:
    """Return the names of the column arguments, such as ``text`` and ``label``."""
    match columns:
        case JointColumns(names=names):
            return names
    return tuple(each.name for each in fields(columns))  # type: ignore[arg-type]


def renamed(columns: InputT, names: Mapping[str, object]) -> InputT:
    """Return columns with some names changed; None keeps a name. Raise `UnreadColumn` for an unknown argument."""
    if isinstance(columns, JointColumns):
        return columns.renamed(names)
    usual = {each.name: getattr(columns, each.name) for each in fields(columns)}  # type: ignore[arg-type]
    given: dict[str, Any] = {}
    for name, value in names.items():
        if name not in usual:
            raise UnreadColumn(f"this model has no column argument {name!r}. It has: {', '.join(usual)}.")
        if value is not None:
            given[name] = _like(usual[name], value)
    return replace(columns, **given)  # type: ignore[type-var]


def column_settings(columns: Any) -> dict[str, object]:  # noqa: ANN401 (any dataclass of column names)
    """Return column names as JSON values."""
    return {name: list(value) if type(value) is tuple else value for name, value in asdict(columns).items()}


def stored_columns(card: Mapping[str, object], usual: InputT) -> InputT:
    """Return the columns stored in a card, else ``usual``; raise `CorruptCheckpoint` for invalid entries."""
    from bothways.checkpoints.schema import damaged

    stored = card.get("columns")
    if stored is None:
        return usual
    names = {each.name: getattr(usual, each.name) for each in fields(usual)}  # type: ignore[arg-type]
    known = stored if isinstance(stored, Mapping) and stored.keys() == names.keys() else {}
    if not known or not all(_is_like(known[name], value) for name, value in names.items()):
        raise damaged("the columns of its card", f"names for {', '.join(names)}", stored)
    return type(usual)(**{name: tuple(value) if isinstance(value, list) else value for name, value in known.items()})


def _like(usual: object, value: Any) -> object:  # noqa: ANN401 (a name, or names)
    """Return a name, or a tuple of names if the default is a tuple."""
    match usual, value:
        case tuple(), str():
            return (value,)
        case tuple(), _:
            return tuple(value)
        case _:
            return value


def _is_like(value: object, usual: object) -> bool:
    """Return True if a stored value is a name, or names if the default is a tuple of names."""
    match usual, value:
        case tuple(), list([_, *_] as names):
            return all(isinstance(name, str) for name in names)
        case str(), str():
            return True
        case _:
            return False


def _shown(value: object) -> str:
    what = type(value).__name__
    match value:
        case tuple() | list():
            parts = [type(part).__name__ for part in value[:3]] + ["..."] * (len(value) > 3)
            what = f"{what}[{', '.join(parts)}]"
    return f"{what}: {shown(value)}"
