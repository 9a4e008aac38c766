"""The labels of the rows of a source: rows without a label, and labels that cannot be what they seem."""

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar

from bothways.choices import Unlabelled
from bothways.data.columns import Row, plain_scalar, value_at
from bothways.data.labels import (
    DECIMAL,
    NAME_THE_LABELS,
    class_label,
    given_labels,
    kind_of_label,
    label_set,
    number,
)
from bothways.data.spelling import OPTION, check_looks, one_spelling
from bothways.errors import InvalidInput, LabelsAmbiguous, RowsLeftOut, shown

_MARKS = ("-", "-1")


def lacks_label(value: object, convert: Callable[[object], object] = class_label) -> bool:
    """Return True for the value of a row without a label: null, NaN or blank.

    With the converter `number`, also for ``-`` and ``nan``; with `label_set`, not for a blank, which is an empty set.
    """
    value = plain_scalar(value)
    if isinstance(value, str):
        word = value.strip().lower()
        return word in ("", "-", "nan") if convert is number else not word and convert is not label_set
    return value is None or (isinstance(value, float) and math.isnan(value))


def unlabelled_marks(names: Collection[str], known: Collection[str] = ()) -> tuple[str, ...]:
    """Return those of the class names ``-`` and ``-1`` that mark rows without a label.

    In data for a model with ``known`` classes, they do unless the model has such a class. In other data, ``-`` does
    unless there is a class ``+``; ``-1`` does beside names that are words, or whole numbers from 0 to at least 2, as
    classes are numbered. Neither does with only one other class.

    >>> unlabelled_marks(["-1", "0", "1", "2"]), unlabelled_marks(["-1", "0", "1"]), unlabelled_marks(["-", "+", "="])
    (('-1',), (), ())
    """
    if not any(mark in names for mark in _MARKS):
        return ()
    if known:
        return tuple(mark for mark in _MARKS if mark in names and mark not in known)
    others = [name for name in names if name not in _MARKS]
    if len(others) == 1:
        return ()
    numbers = [float(name) for name in others if DECIMAL.fullmatch(name)]
    counted = all(each.is_integer() and each >= 0 for each in numbers) and max(numbers, default=2.0) >= 2
    marks = {"-": "+" not in others, "-1": len(numbers) < len(others) or counted}
    return tuple(mark for mark in _MARKS if mark in names and marks[mark])


class LabelledRow(Protocol):
    """An input with its converted label."""

    @property
    def label(self) -> object:
        """The label, such as a class name or a tuple of them."""

    @property
    def where(self) -> str:
        """The row in words, for messages."""

    @property
    def given(self) -> object:
        """The label before the conversion."""

    def relabelled(self, label: Any) -> Self:  # noqa: ANN401 (of the kind of its own label)
        """Return the row with another label."""


ExampleT = TypeVar("ExampleT", bound=LabelledRow)


@dataclass(slots=True)
class RowsWithoutLabel:
    """The rows of a source that have no label, which are refused or dropped.

    Attributes:
        column: The column of the labels.
        unlabelled: ``"error"`` to refuse a source with such rows, ``"drop"`` to leave them out.
        known: The classes of the model that reads the source; empty for data to train on.
        normalise: True to give labels that look alike one name; None if the caller has no such option.
        found: Such rows, with the value of their column.
        without_column: The first row that lacks the column.
    """

    column: str
    unlabelled: Unlabelled = "error"
    known: Collection[str] = ()
    normalise: bool | None = None
    found: list[tuple[str, object]] = field(default_factory=list)
    without_column: Row | None = None

    def holds(self, row: Row, convert: Callable[[object], object] = class_label) -> bool:
        """Return True if the row has no label, and note the row.

        A missing column is an error of its own, unless rows without a label are to be dropped.
        """
        if self.column not in row.values:
            if self.unlabelled == "error":
                return False
            self.without_column = self.without_column or row
        value = row.values.get(self.column)
        lacking = lacks_label(value, convert)
        if lacking:
            self.add(row.where, value)
        return lacking

    def add(self, where: str, value: object) -> None:
        """Note a row without a label."""
        self.found.append((where, value))

    def settle(self, examples: list[ExampleT]) -> list[ExampleT]:
        """Return the examples that have a label.

        Rows of a class that marks rows without a label have none, see `unlabelled_marks`.

        Raises:
            InvalidInput: There are rows without a label, and they are not to be dropped, or no others.
        """
        names: dict[str, None] = {}
        for each in examples:
            names |= dict.fromkeys(_names_in(each.label))
        marks = unlabelled_marks(names, self.known)
        kept = []
        for each in examples:
            mark = next((mark for mark in marks if each.label in (mark, (mark,))), None)
            if mark is None:
                kept.append(each)
            else:
                self.add(each.where, mark)
        self.check(len(kept))
        check_spelling(kept, self.column)
        if not self.known:
            check_vectors(kept, self.column)
        kept = self._one_spelling(kept)
        if not self.known and {"-1", "0", "1"} == names.keys():
            warnings.warn(
                f"the labels in {self.column!r} are -1, 0 and 1, which are taken as three classes. If -1 marks rows "
                "without a label, write an empty label instead.",
                LabelsAmbiguous,
                stacklevel=3,
            )
        return kept

    def _one_spelling(self, examples: list[ExampleT]) -> list[ExampleT]:
        """Return the examples with one name for labels that look alike, if that is wanted; else warn of such labels."""
        rows = [_names_in(each.label) for each in examples]
        if not self.normalise:
            if not self.known:
                check_looks(rows, self.column, "" if self.normalise is None else OPTION)
            return examples
        names = one_spelling(rows, self.known)
        return [
            each.relabelled(
                names[each.label] if isinstance(each.label, str) else tuple(dict.fromkeys(map(names.get, row)))
            )
            if row
            else each
            for each, row in zip(examples, rows, strict=True)
        ]

    def check(self, others: int) -> None:
        """Refuse the rows without a label, unless they are to be dropped and there are ``others``.

        Warns:
            RowsLeftOut: Rows without a label were dropped.
        """
        if self.without_column is not None and not others:
            value_at(self.without_column, self.column)  # raises
        if self.found and (self.unlabelled == "error" or not others):
            raise self._refusal(others)
        if self.found:
            count = len(self.found)
            warnings.warn(
                f"left out {count:,} of {count + others:,} rows for lack of a label in {self.column!r}; the first is "
                f"{self.found[0][0]}.",
                RowsLeftOut,
                stacklevel=3,
            )

    def _refusal(self, others: int) -> InvalidInput:
        where, value = self.found[0]
        count = len(self.found)
        many = f", as in {count:,} of {count + others:,} rows" if count > 1 else ""
        got = "null" if value is None else shown(value)
        begin = f"{where}: the label in {self.column!r} is missing{many}, got {got}."
        if not others:
            return InvalidInput(f"{begin} No row has a label: expected some.")
        renamed = f" If {value!r} is a class, give it another name." if isinstance(value, str) and value.strip() else ""
        return InvalidInput(
            f"{begin} Fill it in, or drop the rows without a label: unlabelled='drop' (--unlabelled drop).{renamed}"
        )


def _names_in(label: object) -> tuple[str, ...]:
    """Return the names in a label or a set of labels; none for a number."""
    if isinstance(label, str):
        return (label,)
    return tuple(map(str, label)) if isinstance(label, tuple) else ()


def check_vectors(examples: Sequence[LabelledRow], column: str) -> None:
    """Refuse rows that all have the labels 0 and 1, or False and True: multi-hot vectors of two labels."""
    found = {frozenset(_names_in(each.label)) for each in examples if isinstance(each.label, tuple)}
    if found in ({frozenset(("0", "1"))}, {frozenset(("False", "True"))}):
        raise InvalidInput(
            f"the labels in {column!r} are a zero and a one in every row: expected the names of labels, got multi-hot "
            f"vectors of two labels. {NAME_THE_LABELS}"
        )


def check_spelling(examples: Iterable[LabelledRow], column: str) -> None:
    """Refuse a label that is a string in one row and a number or a boolean in another."""
    spelled: dict[str, tuple[object, str]] = {}
    for each in examples:
        if isinstance(each.label, str | tuple):
            names = _names_in(each.label)
            for value in given_labels(each.given) or names:
                name = class_label(value)
                if name not in names:  # a number of a multi-hot vector
                    continue
                first, where = spelled.setdefault(name, (value, each.where))
                if kind_of_label(first) != kind_of_label(value):
                    raise InvalidInput(
                        f"{each.where}: the label in {column!r} is {shown(value)}, of type {type(value).__name__}, but "
                        f"in {where} it is {shown(first)}, of type {type(first).__name__}: both would be the class "
                        f"{name!r}. Write the labels in one way, all as strings or all as numbers."
                    )


def converted(row: Row, column: str, convert: Callable[[object], object], names: Sequence[str] = ()) -> object:
    """Return the converted value of a label column; an InvalidInput then begins with the row and the column.

    ``names`` are the labels of multi-hot vectors.
    """
    value = value_at(row, column)
    try:
        return label_set(value, names) if convert is label_set else convert(value)
    except InvalidInput as error:
        raise InvalidInput(f"{row.where}: the label in {column!r}: {error}") from error
