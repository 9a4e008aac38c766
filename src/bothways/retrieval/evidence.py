"""Evidence that an index has an answer to a query: shared words, and a comparison with meaningless queries.

The most similar text of an index has some similarity to any query. Queries of random letters show how much: their best
similarities are those of queries without an answer, in this index, under these filters. `MOST_ALIKE` says how often
that is right.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bothways.retrieval.ranking import Filter

if TYPE_CHECKING:
    from bothways.retrieval.search import SemanticSearch

_QUERIES = 19
# A query has no answer if more meaningless queries than this come as close to a text. With all-MiniLM-L6-v2 and 468
# news texts, they did so for 11 to 12 of 15 queries about other things, and for 0 to 2 of 30 with an answer.
MOST_ALIKE = 1
_CONSONANTS = (*"bcdfghjklmnprstvwxz", "bl", "br", "kr", "st", "zz", "qu")


@dataclass(frozen=True, slots=True)
class QueryEvidence:
    """Evidence that a query has an answer in an index.

    Attributes:
        similarity: The similarity of the query to the text that is closest to it; None if no text passes the filters.
        meaningless: The same for each of 19 queries of random letters, in ascending order.
        shares_words: True if a text has a word of the query.
    """

    similarity: float | None
    meaningless: tuple[float, ...]
    shares_words: bool

    @property
    def alike(self) -> int:
        """Number of meaningless queries that come at least as close to a text."""
        return 0 if self.similarity is None else sum(each >= self.similarity for each in self.meaningless)

    @property
    def p_value(self) -> float:
        """Probability that a meaningless query comes as close to a text as this one."""
        return (1 + self.alike) / (1 + len(self.meaningless))

    @property
    def nothing_fits(self) -> bool:
        """True if no text shares a word with the query, or is closer to it than to meaningless queries."""
        return not self.shares_words and self.alike > MOST_ALIKE

    def summary(self) -> str:
        """Return a sentence for people if the evidence speaks against an answer, else an empty string."""
        if self.similarity is None or self.alike <= MOST_ALIKE:
            return ""
        close = (
            f"{self.alike} of {len(self.meaningless)} queries of random letters come as close to a text (the closest "
            f"has the similarity {self.similarity:.2f}, with random letters up to {self.meaningless[-1]:.2f})"
        )
        if self.shares_words:
            return f"perhaps only words fit, not the meaning: {close}."
        return f"probably nothing fits: no text has a word of the query, and {close}."


def evidence_of(
    search: "SemanticSearch", query: str, filters: Sequence[Filter] = (), exact: bool = False
) -> QueryEvidence:
    """Return the evidence that a query has an answer in an index, which embeds the query and 19 short texts.

    ``exact`` is that of `Dense`.

    Raises:
        InvalidInput: As for `SemanticSearch.search`.
    """
    vectors = search.represent([query, *_meaningless()], role="query", show_progress=False)
    best = [hits[0].score for hits in search.index.search(vectors, 1, filters=filters, exact=exact) if hits]
    (matching,) = search.index.search_lexical([query], 1, filters=filters)
    return QueryEvidence(best[0] if best else None, tuple(sorted(best[1:])), bool(matching))


def _meaningless() -> list[str]:
    draw = random.Random(0)

    def syllables(count: int) -> str:
        return "".join(draw.choice(_CONSONANTS) + draw.choice("aeiou") for _ in range(count))

    return [
        " ".join(syllables(2) + draw.choice(_CONSONANTS) for _ in range(draw.randint(2, 4))) for _ in range(_QUERIES)
    ]
