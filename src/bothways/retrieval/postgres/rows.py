"""The rows of a table as hits, as batches for another index, and as passages of their texts."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from bothways.retrieval.contents import RowBatch
from bothways.retrieval.lexical import Passage, passage_of, runs_of
from bothways.retrieval.postgres.table import vectors_of
from bothways.retrieval.postgres.words import readable
from bothways.retrieval.ranking import Fields, Hit, Ranking

if TYPE_CHECKING:
    from psycopg import Cursor

_AT_ONCE = 2000


def hits_of(cursor: "Cursor", table: str, names: Sequence[str], rankings: Sequence[Ranking]) -> list[list[Hit]]:
    """Return the hits of each ranking with their texts and fields."""
    wanted = sorted({row for ranking in rankings for row in ranking.rows_K.tolist()})
    stored: dict[int, tuple[str, str, Fields]] = {}
    for start in range(0, len(wanted), _AT_ONCE):
        cursor.execute(
            f"select number, id, text, fields from {table} where number = any(%s)", [wanted[start : start + _AT_ONCE]]
        )
        for number, id_, text, fields in cursor:
            stored[number] = id_, text, {name: fields[name] for name in names}
    return [[_hit(*stored[row], score, rank) for rank, (row, score) in _ranked(ranking)] for ranking in rankings]


def batches_of(cursor: "Cursor", table: str, names: Sequence[str], dimensions: int) -> Iterator[RowBatch]:
    """Yield all rows of a table in their order."""
    last = -1
    while True:
        cursor.execute(
            f"select number, id, text, fields from {table} where number > %s order by number limit %s", [last, _AT_ONCE]
        )
        rows = cursor.fetchall()
        if not rows:
            return
        numbers, ids, texts, fields = zip(*rows, strict=True)
        cursor.execute(
            f"select vector from {table} where number = any(%s) order by number", [list(numbers)], binary=True
        )
        vectors = vectors_of([vector for (vector,) in cursor.fetchall()], dimensions)
        yield RowBatch(vectors, texts, ids, [{name: each[name] for name in names} for each in fields])
        last = numbers[-1]


def number_from(cursor: "Cursor", statement: str) -> int:
    """Return the whole number that a statement selects."""
    cursor.execute(statement)
    return sum(int(number) for (number,) in cursor)


def passage(cursor: "Cursor", configuration: str, weights: dict[str, float], text: str, width: int) -> Passage:
    """Return the passage of a text whose words have the highest total weight, as the text search splits it."""
    runs = sorted(runs_of(text))
    cursor.execute(
        "select run, tsvector_to_array(to_tsvector(%s::regconfig, run)) from unnest(%s::text[]) as run",
        [configuration, [readable(run) for run in runs]],
    )
    words = {run: lexemes for run, (_, lexemes) in zip(runs, cursor.fetchall(), strict=True)}
    return passage_of(text, weights, partial(_found, words), width=width)


def _found(words: dict[str, list[str]], run: str) -> list[str]:
    return words.get(run, [])


def _ranked(ranking: Ranking) -> Iterator[tuple[int, tuple[int, float]]]:
    return enumerate(zip(ranking.rows_K.tolist(), ranking.scores_K.tolist(), strict=True), start=1)


def _hit(id_: str, text: str, fields: Fields, score: float, rank: int) -> Hit:
    return Hit(id_, text, score, rank, fields)
