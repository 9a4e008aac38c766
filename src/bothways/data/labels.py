"""Sets of labels, multi-hot vectors, and numbers, in the values of a label column."""

import json
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache, partial

from bothways.choices import LabelValue
from bothways.data.columns import first_duplicate, plain_scalar, unwrapped, written_list
from bothways.data.label_rows import DECIMAL, NAME_THE_LABELS, class_label, described, kind_of_label
from bothways.errors import InvalidInput, LabelsAmbiguous, shown

_SEPARATOR = "|"
_BITS = {"0", "1", "False", "True"}
_NUMBER = r"(?:[+-]?(?:0|[1-9]\d*)(?:\.0*)?|True|False)"
_BETWEEN = r"(?:\s*[,;|]\s*|\s+)"
_NUMBERS = re.compile(rf"[\[(]\s*{_NUMBER}(?:{_BETWEEN}{_NUMBER})*(?:\s*,)?\s*[\])]", re.ASCII)
_PLACE = re.compile(r"(\d+)(?:\.0*)?", re.ASCII)
_LONGEST_PLACE = 10  # digits
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


def reading_numbers(
    convert: Callable[[object], object], names: Sequence[str], values: Iterable[object] = ()
) -> Callable[[object], object]:
    """Return the converter of a label column that also reads numbers, which stand for labels by ``names``.

    All ``values`` of a column of sets decide together if its numbers are vectors or places.
    """
    if convert is not label_set:
        return partial(one_hot, names=names, convert=convert)
    return partial(_placed_set if _are_places(values, names) else label_set, names=names)


def placed(name: str, names: Sequence[str]) -> str:
    """Return the label at a place, from 0, for a number if none of the names is a number; any other name as it is.

    >>> placed("2", ["arts", "sports", "world"]), placed("2", ["1", "2", "3"]), placed("2", [])
    ('world', '2', '2')
    """
    if name in names or not (place := _PLACE.fullmatch(name)) or not _are_words(tuple(names)):
        return name
    if len(place[1]) < _LONGEST_PLACE and int(place[1]) < len(names):
        return names[int(place[1])]
    raise InvalidInput(
        f"expected a label or its place, from 0 to {len(names) - 1}, among {_listed(names)}, got {name:.40}."
    )


def naming_of_numbers(name: str, known: Sequence[str]) -> str:
    """Return advice for the end of a message about an unknown label that is a number, if the known ones are words."""
    if not (_PLACE.fullmatch(name) and _are_words(tuple(known))):
        return ""
    return (
        " If numbers are places among the labels, from 0, name these in their order: labels=[...] of evaluate, or when "
        "the model is opened (--labels a,b,c)."
    )


@lru_cache(maxsize=16)
def _are_words(names: tuple[str, ...]) -> bool:
    """Return True if there are names, and none of them is a number."""
    return bool(names) and not any(map(DECIMAL.fullmatch, names))


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names):.80}"


def _are_places(values: Iterable[object], names: Sequence[str]) -> bool:
    """Return True if the numbers in a column of sets are places of labels, not multi-hot vectors.

    They are if a row cannot be a vector, since it has more or fewer numbers than names or one above 1, and no row has a
    number twice, as all vectors of three and more labels do.
    """
    rows = []
    for value in values if _are_words(tuple(names)) else ():
        try:
            row = _labels_in(value)
        except InvalidInput:  # raised again where the row is converted
            continue
        if row and all(map(_PLACE.fullmatch, row)):
            rows.append(row)
    no_vector = any(len(row) != len(names) or not set(row) <= _BITS for row in rows)
    return no_vector and all(len(set(row)) == len(row) for row in rows)


def _placed_set(value: object, names: Sequence[str]) -> tuple[str, ...]:
    """Convert a value to labels, of which some may be given by their places."""
    return tuple(dict.fromkeys(placed(name, names) for name in label_set(value)))


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
    found = _labels_in(value)
    if names and found and set(found) <= _BITS and not set(names) <= _BITS:
        if len(found) == len(names):
            return tuple(name for name, bit in zip(names, found, strict=True) if bit in ("1", "True"))
        if not set(found) <= set(names):
            raise InvalidInput(
                f"expected a multi-hot vector of {len(names)} numbers, for {_listed(names)}, got {len(found)}."
            )
    _check_repeats(found)
    return tuple(dict.fromkeys(found))


def one_hot(value: object, names: Sequence[str], convert: Callable[[object], object]) -> object:
    """Return the label that a one-hot vector of these labels, or a number, marks; convert another value.

    >>> one_hot("[0 1 0]", ["arts", "sports", "world"], class_label), one_hot(1, ["arts", "sports"], class_label)
    ('sports', 'sports')
    """
    if not isinstance(value, list | tuple) and not (isinstance(value, str) and _NUMBERS.fullmatch(unwrapped(value))):
        return placed(str(convert(value)), names)
    found = label_set(value, names)
    if len(found) != 1:
        raise InvalidInput(f"expected one label, got {len(found)} in {shown(value)}; the target 'multi' takes several.")
    return found[0]


def _labels_in(value: object) -> tuple[str, ...]:
    """Return the names of all labels in a value, repeated ones too."""
    if isinstance(value, str):
        parts = _written_labels(value)
    elif isinstance(value, list | tuple):
        parts = value
        _check_one_kind(value)
    else:
        raise InvalidInput(
            f"expected a list of labels, or a string of labels separated by {_SEPARATOR!r}, got {described(value)}."
        )
    return tuple(class_label(part) for part in parts)


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
