"""Rankings of an index's rows, filters on the rows, and the interface of the retrievers that rank them.

A search is a pipeline of three stages. One or two retrievers rank the rows of an index (`Retriever`), fusion makes one
ranking of two (`bothways.retrieval.fusion`), and a reranker may reorder the first hits
(`bothways.retrieval.reranking`).

Letters in names: N rows of the index, K requested rows, F candidate rows, L rows that pass the filters.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from bothways.data.columns import DECIMAL
from bothways.errors import InvalidInput, did_you_mean

Rows = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]

Scalar = str | int | float | bool | None
Fields = Mapping[str, Scalar]

QueriesT = TypeVar("QueriesT", contravariant=True)


@dataclass(frozen=True, slots=True)
class Hit:
    """A text that a search found.

    Attributes:
        id: Its name in the index.
        text: The text.
        score: Higher is better: the cosine similarity in dense search, BM25's sum in lexical search, otherwise the
            score of the fusion or the reranker.
        rank: Its place among the hits, from 1.
        fields: The values stored with it.
    """

    id: str
    text: str
    score: float
    rank: int
    fields: Fields = field(default_factory=dict, hash=False)


class Ranking(NamedTuple):
    """Rows and their scores, best first; equal scores in the order of the rows."""

    rows_K: Rows
    scores_K: Scores


class Retrieved(NamedTuple):
    """The result of a retriever for one query."""

    ranking: Ranking  # the best rows
    score: Callable[[Rows], Scores]  # scores any rows for the same query, as fusion needs it


class Retriever(Protocol[QueriesT]):
    """Ranks the rows of an index for queries of one kind: texts, or their representations."""

    def retrieve(self, queries: QueriesT, k: int, allowed_L: Rows | None) -> Iterator[Retrieved]:
        """Yield the ``k`` best rows of each query in order; only allowed rows, unless all are."""


def best(rows_F: Rows, scores_F: Scores, k: int) -> Ranking:
    """Return the ``k`` rows with the highest scores."""
    order = np.lexsort((rows_F, -scores_F))[:k]
    return Ranking(rows_F[order], scores_F[order])


# --- filters ---


@dataclass(frozen=True, slots=True)
class Among:
    """Rows whose field has one of the values.

    Numbers equal numbers of the same value (1 and 1.0) and nothing else: not ``True``, not ``"1"``.
    """

    field: str
    values: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        given: object = self.values
        if isinstance(given, str) or not isinstance(given, Collection):
            raise InvalidInput(
                f"the filter on {self.field!r} expects a tuple of values, got {given!r:.60}: write "
                f"Among({self.field!r}, ({given!r:.60},))."
            )


@dataclass(frozen=True, slots=True)
class Between:
    """Rows whose field is a number from ``low`` to ``high``, both included; None leaves an end open.

    A string that spells a number counts as that number: all values of a csv file are strings.
    """

    field: str
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        for end in (self.low, self.high):
            if end is not None and (isinstance(end, bool) or not isinstance(end, int | float) or math.isnan(end)):
                raise InvalidInput(f"the filter on {self.field!r} expects numbers as its ends, got {end!r:.60}.")


Filter = Among | Between

_EXPRESSION = re.compile(r"(.+?)(>=|<=|=(?!=))(.*)", re.DOTALL)


def parse_filters(expressions: Sequence[str]) -> list[Filter]:
    """Return the filters of ``field=value`` (several of one field are alternatives), ``field>=1`` and ``field<=2``.

    A value matches as text, and as the number, boolean or null that it spells.

    Raises:
        InvalidInput: An expression has another form.
    """
    values: dict[str, tuple[Scalar, ...]] = {}
    ranges: list[Filter] = []
    for expression in expressions:
        parts = _EXPRESSION.fullmatch(expression)
        if parts is None:
            raise InvalidInput(f"the filter {expression!r} must be field=value, field>=number or field<=number.")
        name, sign, text = parts.groups()
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        if sign == "=":
            spelled = (value,) if value is None or isinstance(value, bool | int | float) else ()
            values[name] = (*values.get(name, ()), text, *spelled)
            continue
        number = _number(text)
        if number is None or not math.isfinite(number):
            raise InvalidInput(f"the filter {expression!r} must have a number behind its sign.")
        ranges.append(Between(name, low=number) if sign == ">=" else Between(name, high=number))
    return [*(Among(name, accepted) for name, accepted in values.items()), *ranges]


def allowed_rows(filters: Sequence[Filter], columns: Mapping[str, Sequence[Scalar]]) -> Rows | None:
    """Return the rows that pass all filters, in their order (L); None without filters.

    Raises:
        InvalidInput: A filter names a field that the index does not have, or compares a field without numbers; or a
            value is no filter.
    """
    if isinstance(filters, Filter) or not all(isinstance(each, Filter) for each in filters):
        raise InvalidInput(f"expected a list of filters, each Among or Between, got {filters!r:.80}.")
    if not filters:
        return None
    passed = [np.fromiter(_passes(each, _column(each.field, columns)), dtype=bool) for each in filters]
    return np.flatnonzero(np.logical_and.reduce(passed))


def _passes(filter_: Filter, column: Sequence[Scalar]) -> Iterator[bool]:
    match filter_:
        case Among(values=values):
            # Python's ``True`` equals 1; a field's does not.
            accepted = {(isinstance(value, bool), value) for value in values}
            return ((isinstance(value, bool), value) in accepted for value in column)
        case Between(low=low, high=high):
            numbers = [_number(value) for value in column]
            other = next((value for value in column if value is not None), None)
            if other is not None and all(number is None for number in numbers):
                raise InvalidInput(
                    f"the filter on {filter_.field!r} asks for numbers, but that field holds none: a value is "
                    f"{other!r:.60}."
                )
            lowest, highest = -math.inf if low is None else low, math.inf if high is None else high
            return (number is not None and lowest <= number <= highest for number in numbers)


def _number(value: Scalar) -> float | None:
    if isinstance(value, str):
        return float(value) if DECIMAL.fullmatch(value.strip()) else None
    return None if value is None or isinstance(value, bool) else value


def _column(name: str, columns: Mapping[str, Sequence[Scalar]]) -> Sequence[Scalar]:
    if name in columns:
        return columns[name]
    if not columns:
        raise InvalidInput(
            f"there is no field {name!r}: the index was built without fields. Build it with "
            f"fields that each text keeps (on the command line: bothways search build --field {name})."
        )
    there = ", ".join(map(repr, columns))
    raise InvalidInput(f"the index has no field {name!r}. It has: {there}.{did_you_mean(name, columns)}")
