"""Rankings of an index's rows: the interface of retrievers, fusion, and filters on the rows.

A search is a pipeline of three stages. One or two retrievers rank the rows of an index (`Retriever`), fusion makes one
ranking of two (`HybridRetriever`), and a reranker may reorder the first hits (`bothways.retrieval.reranking`).

Letters in names: N rows of the index, K requested rows, F candidate rows, L rows that pass the filters.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from bothways.data.label_rows import DECIMAL
from bothways.errors import InvalidInput, did_you_mean
from bothways.tasks.embedding.representation import DenseVectors

Rows = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]

Scalar = str | int | float | bool | None
Fields = Mapping[str, Scalar]

QueriesT = TypeVar("QueriesT", contravariant=True)


@dataclass(frozen=True, slots=True)
class Hit:
    """A text that a search found.

    Attributes:
        id: The id of the text in the index.
        text: The text.
        score: Higher is better: the similarity (cosine or dot product) in dense search, the BM25 score in lexical
            search (in a database IDF times ``ts_rank``), otherwise the score of the fusion or the reranker.
        rank: Rank of the hit, from 1.
        fields: The values stored with the text.
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
    score: Callable[[Rows], Scores]  # computes scores of any rows for the same query; fusion needs it


class Retriever(Protocol[QueriesT]):
    """Ranks the rows of an index for queries of one kind: texts, or their representations."""

    def retrieve(self, queries: QueriesT, k: int, allowed_L: Rows | None) -> Iterator[Retrieved]:
        """Yield the ``k`` best rows of each query, best first; only rows in ``allowed_L``, if it is not None."""


class Retrievers(Protocol):
    """The retrievers of an index's rows at one moment."""

    def dense(self, *, exact: bool) -> Retriever[DenseVectors]:
        """Return the retriever by meaning, which may leave rows out unless it is ``exact``."""

    @property
    def lexical(self) -> Retriever[Sequence[str]]:
        """The retriever by words."""


# Chooses the retriever of a search, once there are those of the rows at one moment.
Choice: TypeAlias = Callable[[Retrievers], Retriever[QueriesT]]


def checked_k(k: object) -> int:
    """Return the number of requested hits, or raise InvalidInput unless it is a whole number of at least 1."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InvalidInput(f"k must be a whole number of at least 1, got {k!r}.")
    return int(k)


def best(rows_F: Rows, scores_F: Scores, k: int) -> Ranking:
    """Return the ``k`` rows with the highest scores."""
    order = np.lexsort((rows_F, -scores_F))[:k]
    return Ranking(rows_F[order], scores_F[order])


# --- modes, and the fusion of a dense and a lexical ranking ---


@dataclass(frozen=True, slots=True)
class Dense:
    """Search by the similarity of sentence embeddings, the cosine or the dot product; every row has one.

    Attributes:
        exact: Compare with all rows of a table. Default: follow its graph (HNSW), which may miss some of the nearest.
            An index in files always compares with all rows.
    """

    exact: bool = False


@dataclass(frozen=True, slots=True)
class Lexical:
    """Search by BM25; rows without a word of the query are not found."""


@dataclass(frozen=True, slots=True)
class ReciprocalRank:
    """Fusion by the sum of 1 / (constant + rank) over both rankings (Cormack et al. 2009, SIGIR, who use 60).

    Attributes:
        constant: A larger constant gives the first ranks less weight, compared with later ranks.
    """

    constant: int = 60

    def __post_init__(self) -> None:
        if not 0 <= self.constant < math.inf:
            raise InvalidInput(f"constant must be at least 0, got {self.constant!r}.")


@dataclass(frozen=True, slots=True)
class Weighted:
    """Fusion by a weighted mean of both scores, each scaled to the range 0 to 1 over the candidates of the query.

    Bruch et al. 2023 (ACM TOIS 42:1, arXiv:2210.11934) compare such sums with reciprocal ranks and find them better.

    Attributes:
        dense: The weight of the similarity, between 0 and 1; BM25 has the weight 1 - ``dense``.
    """

    dense: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.dense <= 1:
            raise InvalidInput(f"the weight of the dense score must be between 0 and 1, got {self.dense!r}.")


Fusion = ReciprocalRank | Weighted


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Search by similarity and BM25: the candidates are the best of each ranking; ``fusion`` combines their two scores.

    Attributes:
        fusion: The rule that combines the scores.
        depth: Number of candidates from each ranking, or the number of requested hits if that is higher.
        exact: As for `Dense`.
    """

    fusion: Fusion = field(default_factory=Weighted)
    depth: int = 100
    exact: bool = False

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise InvalidInput(f"depth must be at least 1, got {self.depth!r}.")


Mode = Dense | Lexical | Hybrid


class HybridRetriever:
    """Ranks the union of a dense and a lexical ranking by the fusion of both scores."""

    def __init__(self, dense: Retriever[DenseVectors], lexical: Retriever[Sequence[str]], mode: Hybrid) -> None:
        self._dense = dense
        self._lexical = lexical
        self._mode = mode

    def retrieve(
        self, queries: tuple[DenseVectors, Sequence[str]], k: int, allowed_L: Rows | None = None
    ) -> Iterator[Retrieved]:
        """Yield the ``k`` best rows of each query; ``queries`` has their vectors and their texts."""
        depth = max(self._mode.depth, k)
        dense = self._dense.retrieve(queries[0], depth, allowed_L)
        lexical = self._lexical.retrieve(queries[1], depth, allowed_L)
        for near, matching in zip(dense, lexical, strict=True):

            def score(rows_F: Rows, near: Retrieved = near, matching: Retrieved = matching) -> Scores:
                return fused(self._mode.fusion, near.score(rows_F), matching.score(rows_F), depth)

            rows_F = np.union1d(near.ranking.rows_K, matching.ranking.rows_K)
            yield Retrieved(best(rows_F, score(rows_F), k), score)


def fused(fusion: Fusion, dense_F: Scores, lexical_F: Scores, depth: int) -> Scores:
    """Return the combined score of each candidate, in the order of the rows.

    A BM25 score of 0 means that no word matches. Only the first ``depth`` ranks of each ranking are known; later ranks
    add nothing.
    """
    match fusion:
        case ReciprocalRank(constant):
            dense_rank_F = _reciprocal_ranks(dense_F, constant, depth)
            lexical_rank_F = np.where(lexical_F > 0, _reciprocal_ranks(lexical_F, constant, depth), 0.0)
            return dense_rank_F + lexical_rank_F
        case Weighted(weight):
            matched = float(lexical_F.max(initial=0.0) > 0)
            return weight * _zero_to_one(dense_F, 1.0) + (1 - weight) * _zero_to_one(lexical_F, matched)


def _reciprocal_ranks(scores_F: Scores, constant: int, depth: int) -> Scores:
    ranks_F = np.empty(len(scores_F))
    ranks_F[np.argsort(-scores_F, kind="stable")] = np.arange(1, len(scores_F) + 1)
    return np.where(ranks_F <= depth, 1 / (constant + ranks_F), 0.0)


def _zero_to_one(scores_F: Scores, equal: float) -> Scores:
    """Scale scores to a minimum of 0 and a maximum of 1; if there is but one, or all are the same, return ``equal``."""
    low, high = scores_F.min(initial=np.inf), scores_F.max(initial=-np.inf)
    return (scores_F - low) / (high - low) if high > low else np.full(len(scores_F), equal)


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
    """Rows whose field is a number from ``low`` to ``high``, both included; None stands for no limit.

    A string that spells a number counts as that number, since all values of a csv file are strings; also with marks
    between thousands, such as ``1,234``. Words such as ``n/a`` are no numbers and do not pass. Other strings with
    digits are refused when the filter is used.
    """

    field: str
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        for end in (self.low, self.high):
            if end is not None and (isinstance(end, bool) or not isinstance(end, int | float) or math.isnan(end)):
                raise InvalidInput(f"the filter on {self.field!r} expects numbers as low and high, got {end!r:.60}.")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise InvalidInput(
                f"the filter on {self.field!r} expects a low end that is not above the high end, got {self.low:g} and "
                f"{self.high:g}, which no value passes. Swap the two."
            )


Filter = Among | Between

# A number with the same mark between all thousands: a comma, an apostrophe or a space.
_GROUPED = re.compile(
    r"[+-]?[0-9]{1,3}(?:(?P<mark>[,'\u2019 \u00a0\u202f])[0-9]{3})(?:(?P=mark)[0-9]{3})*(?:\.[0-9]*)?"
)
_DIGIT = re.compile("[0-9]")
_EXPRESSION = re.compile(r"(.+?)(>=|<=|=(?!=))(.*)", re.DOTALL)


def parse_filters(expressions: Sequence[str]) -> list[Filter]:
    """Parse filters: ``field=value`` (several for one field are alternatives), ``field>=1`` and ``field<=2``.

    A value matches a field with this text, or with the number, boolean or null that the text spells.

    Raises:
        InvalidInput: An expression has none of these forms, or no number can meet all conditions on a field.
    """
    values: dict[str, tuple[Scalar, ...]] = {}
    ends: dict[str, tuple[float | None, float | None]] = {}
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
        number = number_of(text)
        if number is None or not math.isfinite(number):
            raise InvalidInput(f"the filter {expression!r} must have a number after {sign}.")
        low, high = ends.get(name, (None, None))
        if sign == ">=":
            low = number if low is None else max(low, number)
        else:
            high = number if high is None else min(high, number)
        ends[name] = low, high
    ranges = (Between(name, low, high) for name, (low, high) in ends.items())
    return [*(Among(name, accepted) for name, accepted in values.items()), *ranges]


def check_filters(filters: Sequence[Filter], names: Collection[str]) -> None:
    """Raise InvalidInput unless all are filters on fields with these names."""
    if isinstance(filters, Filter) or not all(isinstance(each, Filter) for each in filters):
        raise InvalidInput(f"expected a list of filters, each Among or Between, got {filters!r:.80}.")
    for each in filters:
        _check_field(each.field, names)


def allowed_rows(filters: Sequence[Filter], columns: Mapping[str, Sequence[Scalar]]) -> Rows | None:
    """Return the rows that pass all filters (L), in ascending order; None without filters."""
    check_filters(filters, columns)
    if not filters:
        return None
    passed = [np.fromiter(_passes(each, columns[each.field]), dtype=bool) for each in filters]
    return np.flatnonzero(np.logical_and.reduce(passed))


def _passes(filter_: Filter, column: Sequence[Scalar]) -> Iterator[bool]:
    match filter_:
        case Among(values=values):
            # In Python ``True == 1``, but in fields they are different values.
            accepted = {(isinstance(value, bool), value) for value in values}
            return ((isinstance(value, bool), value) in accepted for value in column)
        case Between(low=low, high=high):
            numbers = [number_of(value) for value in column]
            other = next((value for value in column if value is not None), None)
            if other is not None and all(number is None for number in numbers):
                raise without_numbers(filter_.field, other)
            odd = next((value for value in column if is_odd(value)), None)
            if odd is not None:
                raise odd_number(filter_.field, odd)
            lowest, highest = -math.inf if low is None else low, math.inf if high is None else high
            return (number is not None and lowest <= number <= highest for number in numbers)


def number_of(value: Scalar) -> float | None:
    """Return the number that a value is or spells; None for other values."""
    if isinstance(value, str):
        spelled = value.strip()
        if grouped := _GROUPED.fullmatch(spelled):
            spelled = spelled.replace(grouped["mark"], "")
        return float(spelled) if DECIMAL.fullmatch(spelled) else None
    return None if value is None or isinstance(value, bool) else value


def is_odd(value: Scalar) -> bool:
    """Return True for a string with digits that spells no number, which filters on numbers refuse."""
    return isinstance(value, str) and number_of(value) is None and bool(_DIGIT.search(value))


def without_numbers(name: str, other: Scalar) -> InvalidInput:
    """Return the error for a filter on the numbers of a field that has none but, for example, ``other``."""
    return InvalidInput(
        f"the filter on {name!r} needs numbers, but that field has none: one of its values is {other!r:.60}."
    )


def odd_number(name: str, odd: Scalar) -> InvalidInput:
    """Return the error for a filter on the numbers of a field with an odd value, see `is_odd`."""
    return InvalidInput(
        f"the filter on {name!r} needs numbers, but one of its values is {odd!r:.60}: write it as 1234.5 or 1,234.5 "
        "and build the index again."
    )


def _check_field(name: str, names: Collection[str]) -> None:
    if name in names:
        return
    if not names:
        raise InvalidInput(
            f"there is no field {name!r}: the index was built without fields. Build it with "
            f"fields=... (on the command line: bothways search build --field {name})."
        )
    there = ", ".join(map(repr, names))
    raise InvalidInput(f"the index has no field {name!r}. It has: {there}.{did_you_mean(name, names)}")
