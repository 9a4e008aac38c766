"""Which rows may be found: by the fields that were kept with the texts.

Letters in names: N rows of the index, L rows allowed.
"""

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bothways.errors import InvalidInput
from bothways.retrieval.ranking import Rows

Scalar = str | int | float | bool | None
Fields = Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class Among:
    """Rows whose field has one of the values; one value makes it an equality.

    Numbers equal numbers of the same value (1 and 1.0) and nothing else: not ``True``, not ``"1"``.
    """

    field: str
    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Between:
    """Rows whose field is a number from ``low`` to ``high``, both included; None leaves an end open."""

    field: str
    low: float | None = None
    high: float | None = None


Filter = Among | Between


def allowed_rows(filters: Sequence[Filter], columns: Mapping[str, Sequence[Scalar]]) -> Rows | None:
    """The rows that pass all filters, ``(L,)`` in their order; None where there are no filters.

    Raises:
        InvalidInput: A filter names a field that the index does not have.
    """
    if not filters:
        return None
    passed = [np.fromiter(_passes(each, _column(each.field, columns)), dtype=bool) for each in filters]
    return np.flatnonzero(np.logical_and.reduce(passed))


def _passes(filter_: Filter, column: Sequence[Scalar]) -> Iterator[bool]:
    match filter_:
        case Among(values=values):
            wanted = {_comparable(value) for value in values}
            return (_comparable(value) in wanted for value in column)
        case Between(low=low, high=high):
            lowest, highest = -math.inf if low is None else low, math.inf if high is None else high
            return (_is_between(value, lowest, highest) for value in column)


def _is_between(value: Scalar, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _comparable(value: Scalar) -> tuple[bool, Scalar]:
    """Python's ``True`` equals 1; a field's does not."""
    return isinstance(value, bool), value


def _column(name: str, columns: Mapping[str, Sequence[Scalar]]) -> Sequence[Scalar]:
    if name in columns:
        return columns[name]
    if not columns:
        raise InvalidInput(
            f"there is no field {name!r}: the index was built without fields. Build it with "
            f"fields that each text keeps (on the command line: bothways search build --field {name})."
        )
    nearest = difflib.get_close_matches(name, columns, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    raise InvalidInput(f"the index has no field {name!r}. It has: {', '.join(map(repr, columns))}.{hint}")
