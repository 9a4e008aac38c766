"""A row of a source, whatever its format."""

from dataclasses import dataclass, field


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
