"""Texts without labels, out of a file, a list of texts or a list of mappings."""

from collections.abc import Sequence
from typing import cast

from bothways.data import Example, Joined, Source, read_rows
from bothways.errors import InvalidInput
from bothways.tasks.columns import typed_texts

Texts = Source | Sequence[str]


def raw_examples(source: Texts, inputs: Joined) -> list[Example[None]]:
    """The texts of a source; rows without text, such as the empty lines of a text file, are passed over.

    Args:
        source: A file, texts, or a list of mappings.
        inputs: Where a text stands in a row.

    Raises:
        InvalidInput: The source cannot be read, a row holds no string, or there is no text at all.
    """
    rows = read_rows(_as_rows(source, inputs))
    filled = (row for row in rows if not all(_is_blank(row.values.get(name)) for name in inputs.columns))
    examples: list[Example[None]] = [Example(inputs.read(row), None, row.number, row.where) for row in filled]
    if not examples:
        raise InvalidInput("there is no text in the given data: every row is empty.")
    return examples


def _is_blank(value: object) -> bool:
    return isinstance(value, str) and not value.strip()


def _as_rows(source: Texts, inputs: Joined) -> Source:
    if isinstance(source, Sequence) and not isinstance(source, str) and all(isinstance(one, str) for one in source):
        return typed_texts(inputs.columns, cast("Sequence[str]", source))
    return cast("Source", source)
