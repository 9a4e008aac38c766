"""The words of a query as PostgreSQL's text search stores them, and how rare they are in a table."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psycopg import Cursor


def word_weights(cursor: "Cursor", table: str, configuration: str, query: str) -> dict[str, float]:
    """Return the inverse document frequency of the query's words that occur in the table, without stop words.

    It is Lucene's, as in `bothways.retrieval.lexical`. ``table`` is a quoted name.
    """
    cursor.execute("select tsvector_to_array(to_tsvector(%s::regconfig, %s))", [configuration, readable(query)])
    words = [word for (found,) in cursor for word in found]
    cursor.execute(
        f"select (select count(*) from {table} where words @@ word::tsquery), (select count(*) from {table}) "
        "from unnest(%s::text[]) with ordinality as listed(word, number) order by number",
        [[quoted_word(word) for word in words]],
    )
    counts = zip(words, cursor.fetchall(), strict=True)
    return {word: math.log1p((total - count + 0.5) / (count + 0.5)) for word, (count, total) in counts if count}


def any_of(words: Sequence[str]) -> str:
    """Return the query of the text search that any of the words meets; empty if there are none.

    >>> any_of(["cat", "o'clock"])
    "'cat' | 'o''clock'"
    """
    return " | ".join(map(quoted_word, words))


def quoted_word(word: str) -> str:
    """Return the query of the text search that one word meets."""
    return "'" + word.replace("\\", "\\\\").replace("'", "''") + "'"


def storable(ids: Iterable[object]) -> list[str]:
    """Return the ids that a table can have: strings without characters that PostgreSQL cannot read."""
    return [id_ for id_ in ids if isinstance(id_, str) and readable(id_) == id_]


def readable(text: str) -> str:
    """Return a text without the characters that PostgreSQL cannot read."""
    return text.replace("\0", " ").encode("utf-8", "replace").decode()
