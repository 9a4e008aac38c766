"""Lexical retrieval by BM25 over word stems. Needs the extra ``search`` (bm25s, PyStemmer).

The score is that of Robertson et al. 1995 (TREC-3) in Lucene's form, with Lucene's k1 = 1.2 and b = 0.75. A text is cut
into words (`bothways.retrieval.terms`), and each is stemmed by the Snowball algorithm of the index's language. No words
are left out: the inverse document frequency makes the frequent ones count for next to nothing.

Letters in names: N rows of the index, K rows asked for, L rows allowed.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bothways.errors import InvalidInput, MissingDependency
from bothways.retrieval.ranking import Ranking, Rows, Scores, best
from bothways.retrieval.terms import terms_of

DEFAULT_LANGUAGE = "english"


class LexicalIndex:
    """Which word stems are in which row, and how much each counts there."""

    def __init__(self, bm25: Any, language: str | None) -> None:  # noqa: ANN401 (bm25s has no types)
        self._bm25 = bm25
        self._terms_of = analyser(language)

    def __len__(self) -> int:
        return int(self._bm25.scores["num_docs"])

    @classmethod
    def build(cls, texts: Iterable[str], language: str | None) -> "LexicalIndex":
        """An index of texts.

        Args:
            texts: At least one.
            language: Of the stemmer; None for words as they are.

        Raises:
            InvalidInput: There is no stemmer for the language.
            MissingDependency: bm25s or PyStemmer is not installed.
        """
        terms_of = analyser(language)
        # Numbers in the order of first appearance, so that the same texts give the same files.
        vocabulary: dict[str, int] = {}
        ids = [[vocabulary.setdefault(term, len(vocabulary)) for term in terms_of(text)] for text in texts]
        bm25 = _bm25s().BM25(k1=1.2, b=0.75, method="lucene")
        with np.errstate(invalid="ignore"):  # texts without any words have a mean length of 0
            bm25.index((ids, vocabulary or {"": 0}), show_progress=False)
        return cls(bm25, language)

    @classmethod
    def load(cls, folder: Path, language: str | None) -> "LexicalIndex":
        """Read what ``save`` wrote; its arrays are memory-mapped.

        Raises:
            MissingDependency: bm25s or PyStemmer is not installed.
        """
        return cls(_bm25s().BM25.load(folder, mmap=True), language)

    def save(self, folder: Path) -> None:
        """Write the files of the index into a folder, which is made."""
        self._bm25.save(folder, show_progress=False)

    def scores(self, query: str) -> Scores:
        """The score of each row, ``(N,)``; 0 where a row has no word of the query."""
        ids = self._bm25.get_tokens_ids(self._terms_of(query))
        if not ids:
            return np.zeros(len(self))
        scores_N: Scores = self._bm25.get_scores_from_ids(ids).astype(np.float64)
        return scores_N


def matches(scores_N: Scores, k: int, allowed_L: Rows | None = None) -> Ranking:
    """The ``k`` best rows with a word of the query in them; only allowed rows, where those are given."""
    rows_F = np.flatnonzero(scores_N) if allowed_L is None else allowed_L[scores_N[allowed_L] > 0]
    return best(rows_F, scores_N[rows_F], k)


def analyser(language: str | None) -> Callable[[str], list[str]]:
    """The function from a text to its terms.

    Raises:
        InvalidInput: There is no stemmer for the language.
        MissingDependency: PyStemmer is not installed.
    """
    if language is None:
        return terms_of
    try:
        import Stemmer
    except ImportError as error:
        raise MissingDependency.of("PyStemmer", extra="search", purpose="lexical search") from error
    if language not in Stemmer.algorithms():
        raise InvalidInput(
            f"there is no stemmer for {language!r}. Expected one of {', '.join(Stemmer.algorithms())}, or none."
        )
    stemmer = Stemmer.Stemmer(language)
    return lambda text: stemmer.stemWords(terms_of(text))


def check_available(language: str | None) -> None:
    """Refuse now what would fail after hours of embedding.

    Raises:
        InvalidInput: There is no stemmer for the language.
        MissingDependency: bm25s or PyStemmer is not installed.
    """
    _bm25s()
    analyser(language)


def _bm25s() -> Any:  # noqa: ANN401 (bm25s has no types)
    try:
        import bm25s
    except ImportError as error:
        raise MissingDependency.of("bm25s", extra="search", purpose="lexical search") from error
    return bm25s
