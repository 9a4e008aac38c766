"""Rows for an index, gathered from batches and checked.

Letters in names: N rows, D dimensions.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from bothways.errors import InvalidInput
from bothways.retrieval.dense import Vectors, checked_array, unit_rows
from bothways.retrieval.filters import Fields, Scalar

IterableT = TypeVar("IterableT", bound=Iterable[str])


class Batch(NamedTuple):
    """Some rows.

    Attributes:
        vectors_ND: One for each text.
        texts: What a hit shows.
        ids: A name for each text, each different; None numbers them on from the rows before.
        fields: Values to keep with each text, under the same names for all; None for no fields.
    """

    vectors_ND: Vectors
    texts: Sequence[str]
    ids: Sequence[str] | None = None
    fields: Sequence[Fields] | None = None


class Gathered(NamedTuple):
    """Checked rows: vectors of unit length, and what belongs to each."""

    vectors_ND: npt.NDArray[np.float32]
    ids: tuple[str, ...]
    texts: tuple[str, ...]
    columns: Mapping[str, tuple[Scalar, ...]]


def gather(batches: Iterable[Batch], dimensions: int, *, first_number: int = 0) -> Gathered:
    """All rows of the batches, which are copied; a corpus is not held twice.

    Args:
        batches: The rows.
        dimensions: The width of the vectors.
        first_number: Of a row without an id.

    Raises:
        InvalidInput: No texts, counts or widths that differ, an id twice, a vector that is zero or not finite, or
            fields that differ in their names or hold something else than a string, a number, a boolean or None; or a
            string alone in the place of several texts or ids.
    """
    blocks: deque[npt.NDArray[np.float32]] = deque()
    ids: list[str] = []
    texts: list[str] = []
    columns: dict[str, list[Scalar]] | None = None
    for vectors, batch_texts, batch_ids, batch_fields in batches:
        start = len(texts)
        numbers = range(first_number + start, first_number + start + len(batch_texts))
        given = [str(number) for number in numbers] if batch_ids is None else several(batch_ids, "ids")
        fields = [{} for _ in batch_texts] if batch_fields is None else batch_fields
        array = checked_array(vectors, dimensions, "vectors")
        if not len(array) == len(batch_texts) == len(given) == len(fields):
            raise InvalidInput(
                f"expected as many vectors as texts, ids and fields, got {len(array)} vectors, {len(batch_texts)} "
                f"texts, {len(given)} ids and {len(fields)} fields."
            )
        blocks.append(unit_rows(array, "vector", start))
        texts.extend(_checked_strings(several(batch_texts, "texts"), "text", start))
        ids.extend(_checked_strings(given, "id", start))
        columns = {name: [] for each in fields[:1] for name in each} if columns is None else columns
        _extend(columns, fields, start)
    if not texts:
        raise InvalidInput("an index needs at least one text, got none.")
    _refuse_duplicates(ids)
    kept = {name: tuple(column) for name, column in (columns or {}).items()}
    return Gathered(_joined(blocks, len(texts), dimensions), tuple(ids), tuple(texts), kept)


def several(strings: IterableT, what: str) -> IterableT:
    """The strings, as they are; their ``what`` is for the message.

    Raises:
        InvalidInput: They are one string, whose characters nobody means.
    """
    if isinstance(strings, str):
        raise InvalidInput(f"expected several {what}, got one string: write [{strings!r:.60}].")
    return strings


def _extend(columns: dict[str, list[Scalar]], fields: Sequence[Fields], start: int) -> None:
    for place, each in enumerate(fields, start=start):
        if each.keys() != columns.keys():
            raise InvalidInput(
                f"row {place} (counted from 0) has the fields {sorted(map(str, each))}; expected those of the rows "
                f"before, {sorted(columns)}. Give None where a value is missing."
            )
        for name, column in columns.items():
            column.append(_checked_value(each[name], name, place))


def _checked_value(value: object, name: str, place: int) -> Scalar:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput(f"the field {name!r} of row {place} (counted from 0) is {value!r}. Give None instead.")
    if value is None or isinstance(value, str | bool | int | float):
        return _checked_string(value, f"the field {name!r} of row", place) if isinstance(value, str) else value
    raise InvalidInput(
        f"the field {name!r} of row {place} (counted from 0) must be a string, a number, a boolean or None, got "
        f"{type(value).__name__}."
    )


def _checked_strings(values: Sequence[str], what: str, start: int) -> list[str]:
    return [_checked_string(value, what, place) for place, value in enumerate(values, start=start)]


def _checked_string(value: object, what: str, place: int) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{what} {place} (counted from 0) must be a string, got {type(value).__name__}.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidInput(
            f"{what} {place} (counted from 0) holds half of a surrogate pair, which UTF-8 cannot represent. "
            "Repair or drop it."
        ) from None
    return value


def _joined(blocks: deque[npt.NDArray[np.float32]], rows: int, dimensions: int) -> npt.NDArray[np.float32]:
    if len(blocks) == 1:
        return blocks.popleft()
    joined_ND = np.empty((rows, dimensions), dtype=np.float32)
    filled = 0
    while blocks:  # each block is let go as soon as it is copied
        block = blocks.popleft()
        joined_ND[filled : filled + len(block)] = block
        filled += len(block)
    return joined_ND


def _refuse_duplicates(ids: list[str]) -> None:
    if len(set(ids)) < len(ids):
        first_row: dict[str, int] = {}
        for row, id_ in enumerate(ids):
            if id_ in first_row:
                raise InvalidInput(
                    f"the id {id_!r} is that of rows {first_row[id_]} and {row} (counted from 0): ids must differ."
                )
            first_row[id_] = row
