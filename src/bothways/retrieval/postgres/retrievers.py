"""Dense and lexical retrieval by a PostgreSQL table, within one transaction.

pgvector proposes candidates, by its graph or by a scan of all rows, in float32; their scores are then computed in
float64 as for an index in files. PostgreSQL's text search finds the rows that have words of a query and ranks them.

Letters in names: D dimensions, K requested rows, F candidate rows, M rows with a word of the query.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bothways.choices import SimilarityName
from bothways.retrieval.dense import Vectors, lengths, products, relative_bound
from bothways.retrieval.postgres.filters import Condition
from bothways.retrieval.postgres.header import TableHeader
from bothways.retrieval.postgres.table import vectors_of
from bothways.retrieval.postgres.words import any_of, quoted_word, word_weights
from bothways.retrieval.ranking import Ranking, Retrieved, Rows, Scores, best
from bothways.tasks.embedding.representation import DenseVectors

if TYPE_CHECKING:
    from psycopg import Cursor

# A search of the graph keeps this many candidates, or so many times the requested rows, up to pgvector's limit.
# Among 17,992 news texts (all-MiniLM-L6-v2), it then finds 99.8 % of the nearest 10 and 99.6 % of the nearest 100.
_EF, _EF_FACTOR, _MOST_EF = 100, 2, 1000
# Number of candidates beyond K at first, and the factor by which the total grows where an exact search needs more.
_SPARE, _GROWTH = 16, 4

# Divides the rank by 1 + the logarithm of the text's length.
_NORMALISATION = 1


class DenseRows:
    """A retriever by the inner product of a query and the vectors of a table.

    Args:
        cursor: A cursor of the transaction.
        table: The quoted name of the table.
        condition: The condition that rows must meet.
        similarity: The similarity of the index; for the cosine, all vectors have unit length.
        exact: Compare with every row that meets the condition, instead of searching the graph.
    """

    def __init__(
        self, cursor: "Cursor", table: str, condition: Condition, similarity: SimilarityName, *, exact: bool
    ) -> None:
        self._cursor = cursor
        self._table = table
        self._condition = condition
        self._similarity = similarity
        self._exact = exact

    def retrieve(self, queries: DenseVectors, k: int, allowed_L: Rows | None = None) -> Iterator[Retrieved]:
        """Yield the ``k`` best rows of each query with their exact scores; the condition stands for ``allowed_L``."""
        assert allowed_L is None
        longest = self._longest() if self._exact else 0.0
        for query_D in queries.vectors_ND:
            ranking = None if self._exact else self._approximate(query_D, k)
            if ranking is None:
                ranking = self._nearest(query_D, k, longest)
            yield Retrieved(ranking, partial(self._scores, query_D))

    def _approximate(self, query_D: Vectors, k: int) -> Ranking | None:
        """Return the best rows that the graph proposes; None if it proposes fewer than ``k``."""
        rows_F, _, vectors_FD = self._proposed(query_D, k + _SPARE, exact=False)
        return best(rows_F, products(query_D, vectors_FD), k) if len(rows_F) >= k else None

    def _nearest(self, query_D: Vectors, k: int, longest: float) -> Ranking:
        """Return the best of all rows; see `bothways.retrieval.dense` for the bound on the error of proposals."""
        bound = relative_bound(len(query_D)) * float(lengths(query_D[None])[0]) * longest
        fetch = k + _SPARE
        while True:
            rows_F, near_F, vectors_FD = self._proposed(query_D, fetch, exact=True)
            if len(rows_F) < fetch or near_F[-1] < near_F[k - 1] - 2 * bound:
                return best(rows_F, products(query_D, vectors_FD), k)
            fetch *= _GROWTH

    def _proposed(self, query_D: Vectors, count: int, *, exact: bool) -> tuple[Rows, Scores, Vectors]:
        """Return rows with their float32 scores and their vectors, best first."""
        written = "[" + ",".join(map(repr, query_D.tolist())) + "]"
        distance = "vector <#> %s::vector"
        if exact:
            distance = f"({distance}) + 0"  # the graph does not have this order
        else:
            # The cost of a scan of all rows is estimated too low, since most of their vectors are stored apart.
            self._cursor.execute(f"set local enable_seqscan = {'off' if self._condition == Condition() else 'default'}")
            self._cursor.execute("set local hnsw.iterative_scan = strict_order")
            self._cursor.execute(f"set local hnsw.ef_search = {int(min(max(_EF, _EF_FACTOR * count), _MOST_EF))}")
        self._cursor.execute(
            f"select number, - (vector <#> %s::vector), vector from {self._table} where {self._condition.sql} "
            f"order by {distance} limit %s",
            [written, *self._condition.parameters, written, count],
            binary=True,
        )
        found = self._cursor.fetchall()
        self._cursor.execute("set local enable_seqscan = default")
        rows_F = np.array([row for row, _, _ in found], dtype=np.int64)
        near_F = np.array([score for _, score, _ in found], dtype=np.float64)
        return rows_F, near_F, vectors_of([vector for _, _, vector in found], len(query_D)).vectors_ND

    def _scores(self, query_D: Vectors, rows_F: Rows) -> Scores:
        self._cursor.execute(
            f"select number, vector from {self._table} where number = any(%s)", [rows_F.tolist()], binary=True
        )
        found: dict[int, bytes] = dict(self._cursor.fetchall())
        vectors = vectors_of([found[row] for row in rows_F.tolist()], len(query_D))
        return products(query_D, vectors.vectors_ND)

    def _longest(self) -> float:
        """Return the length of the longest row."""
        if self._similarity == "cosine":
            return 1.0
        self._cursor.execute(f"select max(vector_norm(vector)) from {self._table}")
        found = self._cursor.fetchone()
        return float(found[0]) if found and found[0] is not None else 0.0


class LexicalRows:
    """A retriever by the words of a query, any of which a row must have.

    The score is the sum of the words' ``ts_rank``, each times the word's inverse document frequency. Without it, one
    frequent word counts as much as a rare one; with it, rankings of Cranfield are as good as those of BM25.

    Args:
        cursor: A cursor of the transaction.
        table: The quoted name of the table.
        configuration: The configuration of the text search.
        condition: The condition that rows must meet.
    """

    def __init__(self, cursor: "Cursor", table: str, configuration: str, condition: Condition) -> None:
        self._cursor = cursor
        self._table = table
        self._configuration = configuration
        self._condition = condition

    def retrieve(self, queries: Sequence[str], k: int, allowed_L: Rows | None = None) -> Iterator[Retrieved]:
        """Yield the ``k`` best rows of each query; the condition stands for ``allowed_L``."""
        assert allowed_L is None
        for query in queries:
            weights = word_weights(self._cursor, self._table, self._configuration, query)
            rows_K, scores_K = self._scored(weights, self._condition, k)
            yield Retrieved(Ranking(rows_K, scores_K), partial(self._scores, weights))

    def _scores(self, weights: dict[str, float], rows_F: Rows) -> Scores:
        rows_M, scores_M = self._scored(weights, Condition("number = any(%s)", (rows_F.tolist(),)))
        found = dict(zip(rows_M.tolist(), scores_M.tolist(), strict=True))
        return np.array([found.get(row, 0.0) for row in rows_F.tolist()], dtype=np.float64)

    def _scored(self, weights: dict[str, float], condition: Condition, k: int | None = None) -> tuple[Rows, Scores]:
        """Return the rows that meet a condition and have a word, with their scores, the best first."""
        words = [quoted_word(word) for word in weights]
        self._cursor.execute(
            f"select number, {_SCORE} as score from {self._table} "
            f"where words @@ %s::tsquery and {condition.sql} order by score desc, number limit %s",
            [words, list(weights.values()), any_of(list(weights)), *condition.parameters, k],
        )
        found = self._cursor.fetchall()
        rows_M = np.array([row for row, _ in found], dtype=np.int64)
        return rows_M, np.array([score for _, score in found], dtype=np.float64)


class TableRetrievers(NamedTuple):
    """The retrievers of a table within one transaction."""

    cursor: "Cursor"
    table: str  # the quoted name
    condition: Condition
    header: TableHeader

    def dense(self, *, exact: bool) -> DenseRows:
        """Return the retriever by meaning."""
        return DenseRows(self.cursor, self.table, self.condition, self.header.encoder.similarity, exact=exact)

    @property
    def lexical(self) -> LexicalRows:
        """The retriever by words."""
        return LexicalRows(self.cursor, self.table, self.header.configuration, self.condition)


_SCORE = (
    f"(select sum(weight * ts_rank(words, word::tsquery, {_NORMALISATION})) "
    "from unnest(%s::text[], %s::float8[]) as weighed(word, weight) where words @@ word::tsquery)"
)
