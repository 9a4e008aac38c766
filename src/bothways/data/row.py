"""A row of a source, whatever its format."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bothways.errors import InvalidInput

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a source.

    Attributes:
        number: The line on which the row starts (text files) or its place (Parquet, lists), from 1.
        values: Column name to value: strings from csv, tsv and txt, any JSON or Parquet value otherwise.
        where: The row in words, for messages: ``line 3 of 'train.csv'``.
    """

    number: int
    values: dict[str, object]
    where: str = field(default="the row", compare=False)


def check_columns(columns: Sequence[object], name: str) -> None:
    """Refuse a table with two columns of one name.

    Raises:
        InvalidInput: They do; ``name`` is the table's.
    """
    if len(set(columns)) < len(columns):
        twice = first_duplicate(columns)
        raise InvalidInput(f"{name} has the column {twice!r} twice. Rename or drop one of the two.")


def first_duplicate(names: Iterable[T]) -> T:
    """Return the first repeated name."""
    seen = set[T]()
    return next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
