"""Rows of retrieval-augmented systems (query, passage, answer, human labels), and the dimensions of their quality.

The dimensions are those of ARES (Saad-Falcon et al. 2023, arXiv:2311.09476). Loads no torch.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from bothways import data
from bothways.choices import JudgeDimension
from bothways.data.label_rows import look
from bothways.errors import InvalidInput, UnreadColumn, one_of, shown

if TYPE_CHECKING:
    from bothways.data import Row, Source

    Rows: TypeAlias = Source | Iterable[Mapping[str, object]]
    """A file, or rows; see `bothways.data.read_rows`."""

Part: TypeAlias = Literal["query", "passage", "answer"]
PARTS: tuple[Part, ...] = get_args(Part)

_LABELS = {"1": 1, "yes": 1, "true": 1, "1.0": 1, "0": 0, "no": 0, "false": 0, "0.0": 0}
_NO_LABEL = ("", "null", "none", "nan", "-", "-1", "-1.0")


@dataclass(frozen=True, slots=True)
class Triple:
    """A query, a passage and an answer, with an optional human label and origin."""

    query: str
    passage: str = ""  # the retrieved passage; may be empty
    answer: str = ""  # the system's answer; may be empty
    label: int | None = None  # the human label, 0 or 1; None without one
    id: str | None = None  # the id of the row; None without one
    system: str | None = None  # the system that answered; None if the row does not name it
    document: str | None = None  # the document of the passage; None if the row does not name it
    where: str = "a row"  # name of the row in messages

    def text(self, part: Part) -> str:
        """Return one of the three texts."""
        return {"query": self.query, "passage": self.passage, "answer": self.answer}[part]


@dataclass(frozen=True, slots=True)
class Dimension:
    """A yes-or-no question about a triple, answered by a judge."""

    name: JudgeDimension  # the name in files and on the command line
    question: str  # the question to which label 1 means yes
    first: tuple[Part, ...]  # parts of the first text that the judge reads, joined by a space
    second: Part  # part of the second text, which is split into windows if it is long

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts that the judge reads."""
        return (*self.first, self.second)

    def pair(self, triple: Triple) -> tuple[str, str]:
        """Return the two texts that the judge reads."""
        return " ".join(triple.text(part) for part in self.first), triple.text(self.second)


DIMENSIONS: Mapping[JudgeDimension, Dimension] = {
    each.name: each
    for each in (
        Dimension("context_relevance", "Does the passage help to answer the query?", ("query",), "passage"),
        Dimension("answer_faithfulness", "Does the passage support the answer?", ("query", "answer"), "passage"),
        Dimension("answer_relevance", "Does the answer respond to the query?", ("query",), "answer"),
    )
}


def find_dimension(name: str) -> Dimension:
    """Return a dimension by its name."""
    return DIMENSIONS[one_of("dimension", name, DIMENSIONS)]


@dataclass(frozen=True, slots=True)
class TripleColumns:
    """Names of the columns of triples.

    Attributes:
        query: Column of the query.
        passage: Column of the retrieved passage.
        answer: Column of the system's answer.
        context_relevance: Column of the label, 0 or 1: does the passage help to answer the query?
        answer_faithfulness: Column of the label, 0 or 1: does the passage support the answer?
        answer_relevance: Column of the label, 0 or 1: does the answer respond to the query?
        id: Column of the row's id, the same in data and labels; rows without ids are matched by their texts.
        system: Column of the name of the system that answered; optional.
        document: Column of the passage's document; optional.
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
    def named(cls, names: Mapping[str, str], usual: "TripleColumns | None" = None) -> "TripleColumns":
        """Return the columns ``usual`` (default: the default columns) with other names for some of them.

        Raises:
            UnreadColumn: A name is not an attribute of this class.
        """
        known = [each.name for each in fields(cls)]
        for name in names:
            if name not in known:
                raise UnreadColumn(f"a judge has no column argument {name!r}. It has: {', '.join(known)}.")
        return replace(usual or cls(), **names)

    def label(self, dimension: Dimension) -> str:
        """Return the column of a dimension's labels."""
        return str(getattr(self, dimension.name))

    def text(self, part: Part) -> str:
        """Return the column of a text."""
        return {"query": self.query, "passage": self.passage, "answer": self.answer}[part]


@dataclass(frozen=True, slots=True)
class ReadTriples:
    """The triples read from a source."""

    triples: tuple[Triple, ...]  # rows with every text that the dimension reads
    incomplete: int = 0  # number of rows left out because one of these texts is empty

    @property
    def labelled(self) -> tuple[Triple, ...]:
        """The triples with a label."""
        return tuple(each for each in self.triples if each.label is not None)


def read_triples(
    source: "Rows",
    dimension: Dimension,
    columns: TripleColumns | None = None,
) -> ReadTriples:
    """Read the triples of a source, with the labels of one dimension if there are any.

    Args:
        source: A file, or rows.
        dimension: The dimension, which sets the texts that a row must have and the label column to read.
        columns: Names of the columns.

    Raises:
        InvalidInput: A column is missing, a text is not a string, a label is not 0, 1, true, false, yes or no, or no
            row has all texts; the message names the row.
    """
    named, triples, incomplete = columns or TripleColumns(), [], 0
    for row in data.read_rows(source):
        triple = read_triple(row, dimension, named, needed=True)
        if all(triple.text(part).strip() for part in dimension.parts):
            triples.append(triple)
        else:
            incomplete += 1
    if not triples:
        *others, last = dimension.parts
        raise InvalidInput(
            f"expected rows with {', '.join(others)} and {last} for {dimension.name}, but in all {incomplete:,} rows "
            "one of them is empty. Fill them in, or choose another dimension."
        )
    return ReadTriples(tuple(triples), incomplete)


def label_of(value: object) -> int | None:
    """Return a human label as 0 or 1, or None for a missing one.

    Raises:
        InvalidInput: The value is not a label.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    spelled = look(str(value)).strip()  # in any case and Unicode form
    if spelled in _NO_LABEL:
        return None
    if spelled not in _LABELS:
        raise InvalidInput(f"expected a label of 0 or 1 (or yes, no, true, false, null), got {shown(value)}.")
    return _LABELS[spelled]


def read_triple(row: "Row", dimension: Dimension, columns: TripleColumns, *, needed: bool = False) -> Triple:
    """Return the triple of a row. With ``needed``, the columns that the dimension reads must exist."""
    texts = [_text(row, columns.text(part), part, needed=needed and part in dimension.parts) for part in PARTS]
    column = columns.label(dimension)
    try:
        label = label_of(row.values.get(column))
    except InvalidInput as error:
        raise InvalidInput(f"{row.where}, column {column!r}: {error}") from error
    name, system, document = (_name(row, each) for each in (columns.id, columns.system, columns.document))
    return Triple(texts[0], texts[1], texts[2], label, name, system, document, row.where)


def _name(row: "Row", column: str) -> str | None:
    value = row.values.get(column)
    return None if value is None or not str(value).strip() else str(value)


def _text(row: "Row", column: str, parameter: str, *, needed: bool) -> str:
    value = data.value_at(row, column, parameter) if needed else row.values.get(column)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidInput(f"{row.where}: expected a text in {column!r}, got {type(value).__name__}: {shown(value)}")
    return value
