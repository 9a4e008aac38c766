"""Rows of retrieval-augmented systems: a query, the passage that was retrieved, the answer, and human labels."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from bothways.errors import InvalidInput, UnreadColumn, shown
from bothways.judging.dimensions import Dimension

if TYPE_CHECKING:
    from bothways.data import Format, Row, Source

_LABELS = {"1": 1, "yes": 1, "true": 1, "1.0": 1, "0": 0, "no": 0, "false": 0, "0.0": 0}
_NO_LABEL = ("", "null", "none", "nan")


@dataclass(frozen=True, slots=True)
class TripleColumns:
    """Columns of the parts of a triple.

    Attributes:
        query: Column of the query.
        passage: Column of the passage that was retrieved for it.
        answer: Column of the answer that the system gave.
        context_relevance: Column of the label, 0 or 1: does the passage help to answer the query?
        answer_faithfulness: Column of the label, 0 or 1: does the passage support the answer?
        answer_relevance: Column of the label, 0 or 1: does the answer respond to the query?
        id: Column of what names a row, the same in data and labels; rows are matched by their texts where it is absent.
        system: Column of the name of the system that gave the answer; optional.
        document: Column of the document that the passage is of; optional.
    """

    query: str = "query"
    passage: str = "passage"
    answer: str = "answer"
    context_relevance: str = "context_relevance"
    answer_faithfulness: str = "answer_faithfulness"
    answer_relevance: str = "answer_relevance"
    id: str = "id"
    system: str = "system"
    document: str = "document"

    @classmethod
    def named(cls, names: Mapping[str, str]) -> "TripleColumns":
        """Return the usual columns with some renamed.

        Raises:
            UnreadColumn: There is no such part of a row.
        """
        known = [each.name for each in fields(cls)]
        for name in names:
            if name not in known:
                raise UnreadColumn(f"a judge reads no {name!r} of a row. It reads: {', '.join(known)}.")
        return cls(**names)

    def label(self, dimension: Dimension) -> str:
        """Return the column of the labels of a dimension."""
        return str(getattr(self, dimension.name))


@dataclass(frozen=True, slots=True)
class Triple:
    """A query, a passage, an answer, and what is known of them.

    Attributes:
        query: The question.
        passage: What was retrieved; empty where the row has none.
        answer: What the system answered; empty where the row has none.
        label: The human label, 0 or 1; None where there is none.
        id: The name of the row; None where it has none.
        system: The system that answered; None where the row does not say.
        document: The document of the passage; None where the row does not say.
        where: The row in words, for messages.
    """

    query: str
    passage: str = ""
    answer: str = ""
    label: int | None = None
    id: str | None = None
    system: str | None = None
    document: str | None = None
    where: str = "a row"

    @property
    def key(self) -> tuple[str, str, str]:
        """The three texts, which rows without an id are matched by."""
        return self.query, self.passage, self.answer


@dataclass(frozen=True, slots=True)
class ReadTriples:
    """The triples of a source.

    Attributes:
        triples: Rows with every text that the dimension reads.
        incomplete: Rows that were left out, since their answer or passage is empty.
    """

    triples: tuple[Triple, ...]
    incomplete: int = 0

    @property
    def labelled(self) -> tuple[Triple, ...]:
        """Those with a label."""
        return tuple(each for each in self.triples if each.label is not None)


def read_triples(
    source: "Source | Iterable[Mapping[str, object]]",
    dimension: Dimension,
    columns: TripleColumns | None = None,
    *,
    format: "Format | None" = None,  # noqa: A002 (the option's name)
) -> ReadTriples:
    """Read the triples of a source, with the labels of one dimension where there are any.

    Args:
        source: As for `bothways.data.read_rows`.
        dimension: Says which texts a row must have, and whose labels are read.
        columns: Where the parts of a row stand.
        format: As for `bothways.data.read_rows`.

    Raises:
        InvalidInput: A column is missing, a text is no string, a label is none of 0, 1, true, false, yes and no, or no
            row has all texts; the message names the row.
    """
    from bothways.data import read_rows

    named, triples, incomplete = columns or TripleColumns(), [], 0
    for row in read_rows(source, format=format):
        found = read_triple(row, dimension, named, needed=True)
        if all(getattr(found, part).strip() for part in dimension.parts):
            triples.append(found)
        else:
            incomplete += 1
    if not triples:
        raise InvalidInput(
            f"expected rows with {_listed(dimension.parts)} for {dimension.name}, but in all {incomplete:,} rows one "
            "of them is empty. Fill them in, or ask for another dimension."
        )
    return ReadTriples(tuple(triples), incomplete)


def label_of(value: object) -> int | None:
    """Return a human label as 0 or 1, or None where a row has none.

    Raises:
        InvalidInput: It is something else.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    spelled = str(value).strip().lower()
    if spelled in _NO_LABEL:
        return None
    if spelled not in _LABELS:
        raise InvalidInput(f"expected a label of 0 or 1 (or yes, no, true, false, null), got {shown(value)}.")
    return _LABELS[spelled]


def read_triple(row: "Row", dimension: Dimension, columns: TripleColumns, *, needed: bool = False) -> Triple:
    """Return the triple of a row; a text that is absent or null is empty.

    Args:
        row: The row.
        dimension: Whose label is read.
        columns: Where the parts of the row stand.
        needed: Whether the columns that the dimension reads must be there.

    Raises:
        InvalidInput: A text is no string, a label is none, or a column that is needed is missing.
    """
    texts = {part: _text(row, getattr(columns, part), needed=needed and part in dimension.parts) for part in _PARTS}
    column = columns.label(dimension)
    try:
        label = label_of(row.values.get(column))
    except InvalidInput as error:
        raise InvalidInput(f"{row.where}, column {column!r}: {error}") from error
    name, system, document = (_name(row, each) for each in (columns.id, columns.system, columns.document))
    return Triple(**texts, label=label, id=name, system=system, document=document, where=row.where)


_PARTS = ("query", "passage", "answer")


def _text(row: "Row", column: str, *, needed: bool) -> str:
    from bothways.data import value_at

    value = value_at(row, column) if needed else row.values.get(column)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidInput(f"{row.where}: expected a text in {column!r}, got {type(value).__name__}: {shown(value)}")
    return value


def _name(row: "Row", column: str) -> str | None:
    value = row.values.get(column)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    return str(value)


def _listed(parts: Iterable[str]) -> str:
    *others, last = dict.fromkeys(parts)
    return f"{', '.join(others)} and {last}" if others else last
