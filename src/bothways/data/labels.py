"""Meanings of a label column: a class, a set of labels, a number, or no label at all."""

import itertools
import json
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Protocol, TypeVar

from bothways.choices import LabelValue, Unlabelled
from bothways.data.columns import Row, check_encodable, first_duplicate, plain_scalar, value_at, written_list
from bothways.errors import InvalidInput, LabelsAmbiguous, RowsLeftOut, shown

# Python does not convert integers of more than 4,300 digits to text.
_MAX_CLASS_NUMBER = 10**100
_SEPARATOR = "|"
_MARKS = ("-", "-1")
# float() alone would also take "1_000", "nan", "infinity" and digits of other scripts.
DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DIGITS = re.compile("[01]", re.ASCII)
_MULTI_HOT = re.compile(r"\s*[\[(]?\s*[01]\.?([\s,;|]+[01]\.?)+\s*[\])]?\s*")


def class_label(value: object) -> str:
    """Convert a value to a class name: whole numbers and booleans become strings, and ``2.0`` becomes ``"2"``.

    Raises:
        InvalidInput: The value is null, blank, a fraction, not finite, a list or an object, or holds half of a
            surrogate pair.
    """
    value = plain_scalar(value)
    if isinstance(value, str) and value.strip():
        check_encodable(value, "the class name")
        return value
    if isinstance(value, bool | int) and abs(value) < _MAX_CLASS_NUMBER:
        return str(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    raise InvalidInput(f"expected a class name (a string or a whole number), got {_described(value)}.")


def in_order(names: Collection[str]) -> tuple[str, ...]:
    """Return class names in the order of their numbers if all are numbers, as in scikit-learn, else in that of text.

    >>> in_order({"10", "9", "-1"}), in_order({"10", "9", "b"})
    (('-1', '9', '10'), ('10', '9', 'b'))
    """
    if all(map(DECIMAL.fullmatch, names)):
        return tuple(sorted(names, key=lambda name: (Decimal(name), name)))
    return tuple(sorted(names))


def kind_of_label(value: object) -> type:
    """Return the kind of a label: ``str``, ``bool``, or ``float`` for any number."""
    value = plain_scalar(value)
    return type(value) if isinstance(value, str | bool) else float


def given_labels(value: object) -> Sequence[object]:
    """Return the labels in the value of a label column that are not strings, or in a list of labels.

    >>> given_labels(3), given_labels([1, "a"]), given_labels("a|b")
    ((3,), (1, 'a'), ())
    """
    if isinstance(value, list | tuple):
        return tuple(map(plain_scalar, value))
    return () if isinstance(value, str) else (plain_scalar(value),)


def values_of(names: Sequence[str], given: Iterable[object]) -> tuple[LabelValue, ...]:
    """Return the labels with these names in the types in which they were ``given`` first; empty if all are strings.

    >>> values_of(["1", "2", "a"], [2, "1", [1, "a"]])
    (1, 2, 'a')
    """
    found: dict[str, LabelValue] = {}
    for label in itertools.chain.from_iterable(map(given_labels, given)):
        if isinstance(label, int | float):
            found.setdefault(class_label(label), label)
    return tuple(found.get(name, name) for name in names) if found else ()


def label_set(value: object) -> tuple[str, ...]:
    """Convert a value to the distinct labels of a text, in order of appearance; there may be none.

    The value is a list, or a string as in a csv file: labels separated by ``|``, or a list in JSON or Python notation.

    >>> label_set("sports| world")
    ('sports', 'world')

    Raises:
        InvalidInput: The value is null or of another type, or a string with commas or semicolons but no ``|``; a list
            cannot be parsed; `class_label` refuses a label; or the value is a multi-hot vector.

    Warns:
        LabelsAmbiguous: A label is repeated; it counts once.
    """
    if isinstance(value, str):
        _check_repeats(_DIGITS.findall(value) if _MULTI_HOT.fullmatch(value) else ())
        parts: Iterable[object] | None = written_list(value, f"Put {_SEPARATOR!r} between the labels")
        if parts is None:
            _check_separator(value)
            parts = [part.strip() for part in value.split(_SEPARATOR)] if value.strip() else []
    elif isinstance(value, list | tuple):
        parts = value
        _check_one_kind(value)
    else:
        raise InvalidInput(
            f"expected a list of labels, or a string of labels separated by {_SEPARATOR!r}, got {_described(value)}."
        )
    names = tuple(class_label(part) for part in parts)
    _check_repeats(names)
    return tuple(dict.fromkeys(names))


def _check_repeats(names: Sequence[str]) -> None:
    """Refuse a multi-hot vector, which repeats only 0 and 1, or False and True; warn of other labels that repeat."""
    if len(set(names)) == len(names):
        return
    if set(names) <= {"0", "1"} or set(names) <= {"False", "True"}:
        raise InvalidInput(
            f"expected the names of labels, got a multi-hot vector ([{', '.join(names):.40}]). Write the names of the "
            "labels that a row has, in Python [name for name, has in zip(names, vector) if has]."
        )
    listed = ", ".join(map(repr, names))
    warnings.warn(
        f"the labels [{listed:.80}] repeat {first_duplicate(names)!r}, which counts once.",
        LabelsAmbiguous,
        stacklevel=3,
    )


def _check_separator(value: str) -> None:
    """Refuse ``x,y``: it may be one label or two."""
    if _SEPARATOR not in value and (found := next((mark for mark in ",;" if mark in value), None)):
        parts = [part.strip() for part in value.split(found)]
        raise InvalidInput(
            f"{shown(value)} has {found!r} but no {_SEPARATOR!r}, so it may be one label or several: write "
            f"{shown(_SEPARATOR.join(parts))} or the list {json.dumps(parts, ensure_ascii=False)[:80]} for several, "
            f"{json.dumps([value], ensure_ascii=False)[:80]} for one."
        )


def _check_one_kind(labels: Sequence[object]) -> None:
    """Refuse labels that are equal as text but differ in kind, such as 1 and "1"."""
    kinds = {(class_label(each), kind_of_label(each)) for each in labels}
    names = [name for name, _ in kinds]
    if len(set(names)) < len(names):
        twice = first_duplicate(names)
        raise InvalidInput(f"the label {twice!r} occurs as a string and as a number: write it in one way.")


# Squares of larger numbers, and so squared errors, overflow in float32.
LARGEST_NUMBER = 1e18


def number(value: object) -> float:
    """Convert a number, or a decimal string as in a csv file, to a finite float.

    Raises:
        InvalidInput: The value is not a number, is a boolean, NaN or infinite, or is too large to train on.
    """
    value = plain_scalar(value)
    is_decimal = not isinstance(value, bool | str) or bool(isinstance(value, str) and DECIMAL.fullmatch(value.strip()))
    if isinstance(value, int | float | Decimal | str) and is_decimal:
        try:
            result = float(value)
        except OverflowError:
            result = math.inf
        if abs(result) <= LARGEST_NUMBER:
            return result
        if math.isfinite(result):
            raise InvalidInput(
                f"expected a number from {-LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}, got {_described(value)}: scale the "
                "numbers, ideally to a few units around 0."
            )
    raise InvalidInput(f"expected a finite number, got {_described(value)}.")


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


def _described(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, str) and not value.strip():
        return "an empty string" if not value else "only white space"
    if isinstance(value, str | bool | int | float):
        text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a very long integer"
        return f"{text if len(text) <= 60 else text[:57] + '...'} of type {type(value).__name__}"
    return f"a value of type {type(value).__name__}"


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


ExampleT = TypeVar("ExampleT", bound=LabelledRow)


@dataclass(slots=True)
class RowsWithoutLabel:
    """The rows of a source that have no label, which are refused or dropped.

    Attributes:
        column: The column of the labels.
        unlabelled: ``"error"`` to refuse a source with such rows, ``"drop"`` to leave them out.
        known: The classes of the model that reads the source; empty for data to train on.
        found: Such rows, with the value of their column.
        without_column: The first row that lacks the column.
    """

    column: str
    unlabelled: Unlabelled = "error"
    known: Collection[str] = ()
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
        if not self.known and {"-1", "0", "1"} == names.keys():
            warnings.warn(
                f"the labels in {self.column!r} are -1, 0 and 1, which are taken as three classes. If -1 marks rows "
                "without a label, write an empty label instead.",
                LabelsAmbiguous,
                stacklevel=3,
            )
        return kept

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


def check_spelling(examples: Iterable[LabelledRow], column: str) -> None:
    """Refuse a label that is a string in one row and a number or a boolean in another."""
    spelled: dict[str, tuple[object, str]] = {}
    for each in examples:
        if isinstance(each.label, str | tuple):
            names = _names_in(each.label)
            for value in given_labels(each.given) or names:
                name = class_label(value)
                first, where = spelled.setdefault(name, (value, each.where))
                if kind_of_label(first) != kind_of_label(value):
                    raise InvalidInput(
                        f"{each.where}: the label in {column!r} is {shown(value)}, of type {type(value).__name__}, but "
                        f"in {where} it is {shown(first)}, of type {type(first).__name__}: both would be the class "
                        f"{name!r}. Write the labels in one way, all as strings or all as numbers."
                    )


def converted(row: Row, column: str, convert: Callable[[object], object]) -> object:
    """Return the converted value of a label column; an InvalidInput then begins with the row and the column."""
    value = value_at(row, column)
    try:
        return convert(value)
    except InvalidInput as error:
        raise InvalidInput(f"{row.where}: the label in {column!r}: {error}") from error
