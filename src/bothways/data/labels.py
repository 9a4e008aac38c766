"""Values of a label column and what they mean: a class, a set of labels, or a number."""

import itertools
import json
import math
import re
import warnings
from collections.abc import Collection, Iterable, Sequence
from decimal import Decimal

from bothways.choices import LabelValue
from bothways.data.columns import (
    check_encodable,
    first_duplicate,
    plain_scalar,
    unwrapped,
    written_list,
)
from bothways.errors import InvalidInput, LabelsAmbiguous, shown

# Python does not convert integers of more than 4,300 digits to text.
_MAX_CLASS_NUMBER = 10**100
_SEPARATOR = "|"
# float() alone would also take "1_000", "nan", "infinity" and digits of other scripts.
DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_BITS = {"0", "1", "False", "True"}
_NUMBER = r"(?:[+-]?\d+(?:\.0*)?|True|False)"
_NUMBERS = re.compile(rf"[\[(]\s*{_NUMBER}(?:\s*[\s,;|]\s*{_NUMBER})*\s*,?\s*[\])]", re.ASCII)
_ZEROS_AND_ONES = re.compile(r"[01](?:\.0*)?(?:\s*[\s,;|]\s*[01](?:\.0*)?)+", re.ASCII)


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
    return () if values == tuple(names) else values


def declared(labels: Sequence[LabelValue]) -> tuple[LabelValue, ...]:
    """Return the labels that a user declares as a list, or as a string with commas.

    >>> declared(["a,b"]), declared("a, b"), declared(["a", "b, c"])
    (('a', 'b'), ('a', 'b'), ('a', 'b, c'))

    Raises:
        InvalidInput: `class_label` refuses a label, or a label is repeated.
    """
    listed = (labels,) if isinstance(labels, str) else tuple(labels)
    match listed:
        case (str() as joined,) if "," in joined:
            listed = tuple(part.strip() for part in joined.split(","))
    names = [class_label(each) for each in listed]
    if len(set(names)) < len(names):
        raise InvalidInput(f"labels: expected different names, got {first_duplicate(names)!r} twice.")
    return listed


def names_of(labels: Sequence[LabelValue] | None) -> tuple[str, ...]:
    """Return the names of declared labels; none for None."""
    return () if labels is None else tuple(map(class_label, declared(labels)))


def label_set(value: object, names: Sequence[str] = ()) -> tuple[str, ...]:
    """Convert a value to the distinct labels of a text, in order of appearance; there may be none.

    The value is a list, or a string as in a csv file: labels separated by ``|``, or a list as JSON, Python or NumPy
    prints it. With the ``names`` of all labels, it may also be a multi-hot vector: a zero or a one for each name.

    >>> label_set("sports| world"), label_set("[1 0 1]", ["arts", "sports", "world"])
    (('sports', 'world'), ('arts', 'world'))

    Raises:
        InvalidInput: The value is null or of another type, or a string with commas or semicolons but no ``|``; a list
            cannot be parsed; `class_label` refuses a label; or the value is a multi-hot vector of other labels.

    Warns:
        LabelsAmbiguous: A label is repeated; it counts once.
    """
    if isinstance(value, str):
        parts = _written_labels(value)
    elif isinstance(value, list | tuple):
        parts = value
        _check_one_kind(value)
    else:
        raise InvalidInput(
            f"expected a list of labels, or a string of labels separated by {_SEPARATOR!r}, got {_described(value)}."
        )
    found = tuple(class_label(part) for part in parts)
    if names and found and set(found) <= _BITS and not set(names) <= _BITS:
        if len(found) == len(names):
            return tuple(name for name, bit in zip(names, found, strict=True) if bit in ("1", "True"))
        if not set(found) <= set(names):
            raise InvalidInput(
                f"expected a multi-hot vector of {len(names)} numbers, for {', '.join(names):.80}, got {len(found)}."
            )
    _check_repeats(found)
    return tuple(dict.fromkeys(found))


def _written_labels(value: str) -> Sequence[object]:
    """Return the labels in a string."""
    spelled = unwrapped(value)
    if _NUMBERS.fullmatch(spelled) or (_ZEROS_AND_ONES.fullmatch(spelled) and _SEPARATOR not in spelled):
        found = re.findall(_NUMBER, spelled, re.ASCII)
        return [each == "True" if each in ("True", "False") else int(float(each)) for each in found]
    parts = written_list(value, f"Put {_SEPARATOR!r} between the labels")
    if parts is None:
        _check_separator(value)
        parts = [part.strip() for part in value.split(_SEPARATOR)] if value.strip() else []
    return parts


NAME_THE_LABELS = (
    "Name the labels in the order of the numbers: labels=[...] when the model is opened, or --labels a,b,c; or write "
    "the names of the labels that a row has, in Python [name for name, has in zip(names, vector) if has]."
)


def _check_repeats(names: Sequence[str]) -> None:
    """Refuse a multi-hot vector, which repeats only 0 and 1, or False and True; warn of other labels that repeat."""
    if len(set(names)) == len(names):
        return
    if set(names) <= {"0", "1"} or set(names) <= {"False", "True"}:
        raise InvalidInput(
            f"expected the names of labels, got a multi-hot vector ([{', '.join(names):.40}]). {NAME_THE_LABELS}"
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


def _described(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, str) and not value.strip():
        return "an empty string" if not value else "only white space"
    if isinstance(value, str | bool | int | float):
        text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a very long integer"
        return f"{text if len(text) <= 60 else text[:57] + '...'} of type {type(value).__name__}"
    return f"a value of type {type(value).__name__}"
