"""Sets of labels, multi-hot vectors, and numbers, in the values of a label column."""

import json
import math
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal

from bothways.choices import LabelValue
from bothways.data.columns import first_duplicate, plain_scalar, unwrapped, written_list
from bothways.data.label_rows import DECIMAL, NAME_THE_LABELS, class_label, described, kind_of_label
from bothways.errors import InvalidInput, LabelsAmbiguous, shown

_SEPARATOR = "|"
_BITS = {"0", "1", "False", "True"}
_NUMBER = r"(?:[+-]?(?:0|[1-9]\d*)(?:\.0*)?|True|False)"
_BETWEEN = r"(?:\s*[,;|]\s*|\s+)"
_NUMBERS = re.compile(rf"[\[(]\s*{_NUMBER}(?:{_BETWEEN}{_NUMBER})*(?:\s*,)?\s*[\])]", re.ASCII)
_ZEROS_AND_ONES = re.compile(rf"[01](?:\.0*)?(?:{_BETWEEN}[01](?:\.0*)?)+", re.ASCII)


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
            f"expected a list of labels, or a string of labels separated by {_SEPARATOR!r}, got {described(value)}."
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


def one_hot(value: object, names: Sequence[str], convert: Callable[[object], object]) -> object:
    """Return the label that a one-hot vector of these labels marks; convert a value that is no vector.

    >>> one_hot("[0 1 0]", ["arts", "sports", "world"], str)
    'sports'
    """
    if not isinstance(value, list | tuple) and not (isinstance(value, str) and _NUMBERS.fullmatch(unwrapped(value))):
        return convert(value)
    found = label_set(value, names)
    if len(found) != 1:
        raise InvalidInput(f"expected one label, got {len(found)} in {shown(value)}; the target 'multi' takes several.")
    return found[0]


def _written_labels(value: str) -> Sequence[object]:
    """Return the labels in a string."""
    spelled = unwrapped(value)
    if _NUMBERS.fullmatch(spelled) or (_ZEROS_AND_ONES.fullmatch(spelled) and _SEPARATOR not in spelled):
        found = re.findall(_NUMBER, spelled, re.ASCII)
        return [each == "True" if each in ("True", "False") else int(each.partition(".")[0]) for each in found]
    parts = written_list(value, f"Put {_SEPARATOR!r} between the labels")
    if parts is None:
        _check_separator(value)
        parts = [part.strip() for part in value.split(_SEPARATOR)] if value.strip() else []
    return parts


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
                f"expected a number from {-LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}, got {described(value)}: scale the "
                "numbers, ideally to a few units around 0."
            )
    raise InvalidInput(f"expected a finite number, got {described(value)}.")


BLANKS: Mapping[Callable[[object], object], Collection[str]] = {label_set: (), number: ("", "-", "nan")}
"""Strings that stand for no label, for a converter; a blank is an empty set. For others see `BLANK`."""
