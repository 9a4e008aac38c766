"""The labels of rows: names of classes, rows without a label, and labels that look alike."""

import itertools
import math
import re
import unicodedata
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Protocol, TypeVar

from bothways.choices import LabelValue, Unlabelled
from bothways.data.columns import Row, check_encodable, plain_scalar, value_at
from bothways.errors import InvalidInput, LabelsAmbiguous, RowsLeftOut, did_you_mean, shown

# Python does not convert integers of more than 4,300 digits to text.
_MAX_CLASS_NUMBER = 10**100
# float() alone would also take "1_000", "nan", "infinity" and digits of other scripts.
DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_MARKS = ("-", "-1")
BLANK = ("",)
"""Strings that stand for no class, without white space and in lower case."""
_INVISIBLE = re.compile("[\u00ad\u200b\u2060\ufeff]")  # soft hyphen, zero-width space, word joiner, byte order mark
_MOST_SHOWN = 5

OPTION = "normalise_labels=True (--normalise-labels)"
NAME_THE_LABELS = (
    "Name the labels in their order: labels=[...] when the model is opened or evaluated, or --labels a,b,c; or write "
    "the names of the labels that a row has, in Python [name for name, has in zip(names, vector) if has]."
)


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
    raise InvalidInput(f"expected a class name (a string or a whole number), got {described(value)}.")


def in_order(names: Collection[str], categories: Sequence[str] = ()) -> tuple[str, ...]:
    """Return class names in the order of their numbers if all are numbers, as in scikit-learn, else in that of text.

    Names of ``categories`` keep the order of these; categories that are not among the names are left out.

    >>> in_order({"10", "9", "-1"}), in_order({"10", "9", "b"})
    (('-1', '9', '10'), ('10', '9', 'b'))
    """
    if categories and set(names) <= set(categories):
        return tuple(name for name in categories if name in names)
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
    values = tuple(found.get(name, name) for name in names)
    # 1 and True are equal: labels of both kinds keep their names.
    return () if values == tuple(names) or len(set(values)) < len(values) else values


def described(value: object) -> str:
    """Return a value with its type, for error messages."""
    if value is None:
        return "null"
    if isinstance(value, str) and not value.strip():
        return "an empty string" if not value else "only white space"
    if isinstance(value, str | bool | int | float):
        text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a very long integer"
        return f"{text if len(text) <= 60 else text[:57] + '...'} of type {type(value).__name__}"
    return f"a value of type {type(value).__name__}"


def lacks_label(value: object, blank: Collection[str] = BLANK) -> bool:
    """Return True for the value of a row without a label: null, NaN or one of the strings ``blank``."""
    value = plain_scalar(value)
    if isinstance(value, str):
        return value.strip().lower() in blank
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


ExampleT = TypeVar("ExampleT", bound=LabelledRow)


@dataclass(slots=True)
class RowsWithoutLabel:
    """The rows of a source that have no label, which are refused or dropped.

    Attributes:
        column: The column of the labels.
        unlabelled: ``"error"`` to refuse a source with such rows, ``"drop"`` to leave them out.
        known: The classes of the model that reads the source; empty for data to train on.
        normalise: True to accept labels that look alike; else a note names them. None if callers have no such option.
        found: Such rows, with the value of their column.
        without_column: The first row that lacks the column.
    """

    column: str
    unlabelled: Unlabelled = "error"
    known: Collection[str] = ()
    normalise: bool | None = None
    found: list[tuple[str, object]] = field(default_factory=list)
    without_column: Row | None = None

    def holds(self, row: Row, blank: Collection[str] = BLANK) -> bool:
        """Return True if the row has no label, as its value is null or one of the strings ``blank``; note such a row.

        A missing column is an error of its own, unless rows without a label are to be dropped.
        """
        if self.column not in row.values:
            if self.unlabelled == "error":
                return False
            self.without_column = self.without_column or row
        value = row.values.get(self.column)
        lacking = lacks_label(value, blank)
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
            names |= dict.fromkeys(names_in(each.label))
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
            if not self.normalise:
                option = "" if self.normalise is None else OPTION
                check_looks((names_in(each.label) for each in kept), self.column, option)
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
            value_at(self.without_column, self.column, "label")  # raises
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


def names_in(label: object) -> tuple[str, ...]:
    """Return the names in a label or a set of labels; none for a number."""
    if isinstance(label, str):
        return (label,)
    return tuple(map(str, label)) if isinstance(label, tuple) else ()


def check_vectors(examples: Sequence[LabelledRow], column: str) -> None:
    """Refuse rows that all have the labels 0 and 1, or False and True: multi-hot vectors of two labels."""
    found = {frozenset(names_in(each.label)) for each in examples if isinstance(each.label, tuple)}
    if found in ({frozenset(("0", "1"))}, {frozenset(("False", "True"))}):
        raise InvalidInput(
            f"the labels in {column!r} are a zero and a one in every row: expected the names of labels, got multi-hot "
            f"vectors of two labels. {NAME_THE_LABELS}"
        )


def check_spelling(examples: Iterable[LabelledRow], column: str) -> None:
    """Refuse a label that is a string in one row and a number or a boolean in another."""
    spellings, seen = dict[str, tuple[object, str]](), set[tuple[type, object]]()
    for each in examples:
        if not isinstance(each.label, str | tuple):
            continue
        for value in given_labels(each.given) or names_in(each.label):
            if (type(value), value) in seen or (name := class_label(value)) not in names_in(each.label):
                continue  # the latter are the numbers of a multi-hot vector
            seen.add((type(value), value))
            first, where = spellings.setdefault(name, (value, each.where))
            if kind_of_label(first) != kind_of_label(value):
                raise InvalidInput(
                    f"{each.where}: the label in {column!r} is {shown(value)}, of type {type(value).__name__}, but in "
                    f"{where} it is {shown(first)}, of type {type(first).__name__}: both would be the class {name!r}. "
                    "Write the labels in one way, all as strings or all as numbers."
                )


def converted(row: Row, column: str, convert: Callable[[object], object]) -> object:
    """Return the converted value of a label column; an InvalidInput then begins with the row and the column."""
    value = value_at(row, column, "label")
    try:
        return convert(value)
    except InvalidInput as error:
        raise InvalidInput(f"{row.where}: the label in {column!r}: {error}") from error


# --- labels that look alike ---


def normalised(name: str) -> str:
    """Return a label in NFC, without invisible characters and outer spaces, and with single spaces."""
    if name.isascii():
        return " ".join(name.split()) or name
    return " ".join(_INVISIBLE.sub("", unicodedata.normalize("NFC", name)).split()) or name


def look(name: str) -> str:
    r"""Return a key that is equal for labels that look alike.

    >>> look("SPORT ") == look("sport") == look("\uff33port"), look("cafe\u0301") == look("caf\u00e9")
    (True, True)
    """
    if name.isascii():
        return normalised(name).casefold()
    visible = "".join(each for each in name if unicodedata.category(each) != "Cf" and each not in "\ufe0e\ufe0f")
    return normalised(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", visible).casefold()))


def spelled(name: str, beside: Iterable[str] = ()) -> str:
    r"""Return a label in quotes, with its Unicode form if that is not NFC or tells it from another one.

    >>> spelled("sport\u00a0"), spelled("cafe\u0301"), spelled("caf\u00e9", ["cafe\u0301"])
    ("'sport\\xa0'", "'café' (NFD)", "'café' (NFC)")
    """
    if name.isascii():
        return repr(name)
    composed = unicodedata.normalize("NFC", name)
    if composed != name:
        return f"{composed!r} ({'NFD' if unicodedata.is_normalized('NFD', name) else 'not NFC'})"
    alike = any(each != name and unicodedata.normalize("NFC", each) == name for each in beside)
    wide = any(
        unicodedata.east_asian_width(each) == "F" and unicodedata.normalize("NFKC", each) != each for each in name
    )
    return f"{name!r}{' (NFC)' if alike else ' (full-width)' if wide else ''}"


def near_label(name: str, known: Sequence[str]) -> str:
    """Return a hint for the end of a message about an unknown label; empty if none of the known ones is like it."""
    alike = next((each for each in known if look(each) == look(name)), None)
    if alike is None:
        return did_you_mean(name, known)
    return f" It looks like {spelled(alike, [name])}: {OPTION} reads it as this label."


def check_looks(rows: Iterable[Iterable[str]], column: str, option: str = OPTION) -> None:
    """Warn of labels that look alike.

    Warns:
        LabelsAmbiguous: The labels of the rows look alike; the message counts them.
    """
    counts = Counter(name for names in rows for name in names)
    alike = [group for group in _alike(counts).values() if len(group) > 1]
    if not alike:
        return
    shown = "; ".join(
        ", ".join(
            f"{spelled(name, group)} ({counts[name]:,})" for name in sorted(group, key=lambda each: -counts[each])
        )
        for group in alike[:_MOST_SHOWN]
    )
    more = f"; and {len(alike) - _MOST_SHOWN:,} more groups" if len(alike) > _MOST_SHOWN else ""
    warnings.warn(
        f"labels in {column!r} look alike and are taken as different: {shown}{more}. Write each in one way"
        f"{f', or take them as one: {option}' if option else ''}.",
        LabelsAmbiguous,
        stacklevel=4,
    )


def one_spelling(rows: Iterable[Iterable[str]], known: Collection[str] = ()) -> Mapping[str, str]:
    """Return one name for all labels that look alike: the ``known`` one, else the most frequent one, `normalised`."""
    counts = Counter(name for names in rows for name in names)
    of_known, found = _alike(known), dict[str, str]()
    for key, group in _alike(counts).items():
        names = of_known.get(key) or [normalised(max(group, key=lambda each: counts[each]))]
        # Known labels that look alike stay apart: a label that is none of them is unknown.
        found |= {name: name if name in names or len(names) > 1 else names[0] for name in group}
    return found


def respelled(labels: Sequence[object], known: Collection[str] = ()) -> list[object]:
    """Return labels and sets of labels with the names of `one_spelling`; numbers as they are."""
    names, found = one_spelling(map(names_in, labels), known), list[object]()
    for label in labels:
        match label:
            case str():
                found.append(names[label])
            case tuple():
                found.append(tuple(dict.fromkeys(names[name] for name in label)))
            case _:
                found.append(label)
    return found


def _alike(names: Iterable[str]) -> Mapping[str, list[str]]:
    groups = defaultdict[str, list[str]](list)
    for name in names:
        groups[look(name)].append(name)
    return groups
