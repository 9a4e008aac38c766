"""Filters on rows as conditions of SQL, which pass the same rows as `bothways.retrieval.ranking.allowed_rows`."""

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from bothways.data.columns import plain_scalar
from bothways.retrieval.ranking import (
    Among,
    Between,
    Filter,
    check_filters,
    odd_number,
    without_numbers,
)

if TYPE_CHECKING:
    from psycopg import Cursor


class Condition(NamedTuple):
    """A condition on the rows of a table, and the parameters of its placeholders."""

    sql: str = "true"
    parameters: tuple[object, ...] = ()


def condition_of(cursor: "Cursor", table: str, filters: Sequence[Filter], names: Sequence[str]) -> Condition:
    """Return the condition that all filters set; ``table`` is quoted, and has the fields ``names``.

    Raises:
        InvalidInput: A filter is on a field that the table does not have, or on numbers of a field without them.
    """
    check_filters(filters, names)
    conditions = []
    for each in filters:
        match each:
            case Among():
                conditions.append(_among(each))
            case Between():
                _check_numbers(cursor, table, each.field)
                conditions.append(_between(each))
    if not conditions:
        return Condition()
    parameters = tuple(parameter for _, of_one in conditions for parameter in of_one)
    return Condition(" and ".join(sql for sql, _ in conditions), parameters)


def _among(filter_: Among) -> Condition:
    values = map(plain_scalar, filter_.values)
    stored = [json.dumps(each, ensure_ascii=False) for each in values if _is_storable(each)]
    return Condition("fields -> %s::text = any(%s::text[]::jsonb[])", (filter_.field, stored))


def _is_storable(value: object) -> bool:
    """Return False for values that no row has, and that jsonb cannot represent."""
    if isinstance(value, float):
        return math.isfinite(value)
    if not isinstance(value, str):
        return True
    return "\0" not in value and value.encode("utf-8", "replace").decode() == value


def _between(filter_: Between) -> Condition:
    number = "(numbers ->> %s::text)::numeric"
    sql, parameters = ["numbers ? %s::text"], [filter_.field]
    for sign, end in ((">=", filter_.low), ("<=", filter_.high)):
        if end is not None:
            sql.append(f"{number} {sign} %s::numeric")
            parameters += [filter_.field, str(end)]
    return Condition(" and ".join(sql), tuple(parameters))


def _check_numbers(cursor: "Cursor", table: str, name: str) -> None:
    """Raise InvalidInput if a field has no numbers but other values, or a value that may be meant as a number."""
    cursor.execute(f"select exists(select from {table} where numbers ? %s::text)", [name])
    if cursor.fetchone() == (False,):
        cursor.execute(
            f"select fields -> %s::text from {table} where fields -> %s::text <> 'null' order by number limit 1",
            [name, name],
        )
        if (other := cursor.fetchone()) is not None:
            raise without_numbers(name, other[0])
    cursor.execute(
        f"select odd ->> %s::text from {table} where odd is not null and odd ? %s::text order by number limit 1",
        [name, name],
    )
    if (odd := cursor.fetchone()) is not None:
        raise odd_number(name, odd[0])
