"""Where the parts of an example stand in labelled data, as a saved model remembers them.

Each task has a frozen dataclass of column names; ``bothways.json`` keeps it in the card, and what the model reads later
it reads from the same columns unless told otherwise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

from bothways.data import Inputs, Joined, Paired
from bothways.tasks.stored import damaged


@dataclass(frozen=True, slots=True)
class TextColumns:
    """A text and its label.

    Attributes:
        text: Columns of the text, joined by a space.
        label: Column of the label.
    """

    text: tuple[str, ...] = ("text",)
    label: str = "label"

    @property
    def inputs(self) -> Inputs:
        """What a row is read as."""
        return Joined(self.text)


@dataclass(frozen=True, slots=True)
class RawTextColumns:
    """A text without a label.

    Attributes:
        text: Columns of the text, joined by a space.
    """

    text: tuple[str, ...] = ("text",)

    @property
    def inputs(self) -> Joined:
        """What a row is read as."""
        return Joined(self.text)


@dataclass(frozen=True, slots=True)
class PairColumns:
    """Two texts and their label.

    Attributes:
        text_a: Column of the first text.
        text_b: Column of the second.
        label: Column of the label, or of the score.
    """

    text_a: str = "text_a"
    text_b: str = "text_b"
    label: str = "label"

    @property
    def inputs(self) -> Inputs:
        """What a row is read as."""
        return Paired(self.text_a, self.text_b)


@dataclass(frozen=True, slots=True)
class TagColumns:
    """Words and their tags.

    Attributes:
        tokens: Column of the words.
        tags: Column of their tags.
        text: Columns of a raw text, joined by a space, where a row to predict has no words.
    """

    tokens: str = "tokens"
    tags: str = "tags"
    text: tuple[str, ...] = ("text",)


@dataclass(frozen=True, slots=True)
class QuestionColumns:
    """A question, the context that it is asked of, and the answers there.

    Attributes:
        question: Column of the question.
        context: Column of the context.
        answers: Column of the answers, with their places in the context.
    """

    question: str = "question"
    context: str = "context"
    answers: str = "answers"

    @property
    def inputs(self) -> Paired:
        """What a row is read as."""
        return Paired(self.question, self.context)


C = TypeVar("C")


def with_names(columns: C, **given: object) -> C:
    """Columns with the names that were given, and those that are None as they are."""
    return replace(columns, **{name: value for name, value in given.items() if value is not None})  # type: ignore[type-var]


def typed_texts(columns: Sequence[str], texts: Sequence[str]) -> list[dict[str, object]]:
    """A row for each text that was typed in, as it would stand in a file whose text columns these are."""
    first, *others = columns
    return [{first: text, **dict.fromkeys(others, "")} for text in texts]


def column_settings(columns: Any) -> dict[str, object]:  # noqa: ANN401 (any dataclass of column names)
    """Column names as JSON values."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(columns).items()}


def stored_columns(card: Mapping[str, object], usual: C) -> C:
    """The columns that a card names, or else the usual ones.

    Raises:
        CorruptCheckpoint: They are not names.
    """
    stored = card.get("columns")
    if stored is None:
        return usual
    names = {each.name: getattr(usual, each.name) for each in fields(usual)}  # type: ignore[arg-type]
    known = stored if isinstance(stored, Mapping) and stored.keys() == names.keys() else {}
    if not known or not all(_is_like(known[name], value) for name, value in names.items()):
        raise damaged("the columns of its card", f"names for {', '.join(names)}", stored)
    return type(usual)(**{name: tuple(value) if isinstance(value, list) else value for name, value in known.items()})


def _is_like(value: object, usual: object) -> bool:
    """Whether a stored value is a name, or names where the usual one is a tuple of them."""
    if isinstance(usual, tuple):
        return isinstance(value, list) and bool(value) and all(isinstance(name, str) for name in value)
    return isinstance(value, str)
