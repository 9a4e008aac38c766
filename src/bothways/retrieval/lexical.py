"""Lexical retrieval by BM25 over word stems. Needs the extra ``search`` (bm25s, PyStemmer).

The score is that of Robertson et al. 1995 (TREC-3) in Lucene's form, with Lucene's k1 = 1.2 and b = 0.75. A text is cut
into words (`bothways.retrieval.terms`), and each is stemmed by the Snowball algorithm of the index's language. No word
is left out: the inverse document frequency makes frequent words count for next to nothing.

Letters in names: N rows of the index, K rows asked for, L rows allowed.
"""

import copy
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bothways.errors import InvalidInput, MissingDependency
from bothways.progress import progress
from bothways.reading import parse_json, read_bytes
from bothways.retrieval.passages import Passage, passage_of
from bothways.retrieval.ranking import Retrieved, Rows, Scores, best
from bothways.retrieval.terms import terms_of

DEFAULT_LANGUAGE = "english"

# The files that bm25s reads.
FILES = ("params.index.json", "vocab.index.json", *(f"{each}.csc.index.npy" for each in ("data", "indices", "indptr")))

# The settings that `LexicalIndex.build` makes bm25s write; bm25s trusts what it reads.
_WRITTEN = {"method": "lucene", "backend": "numpy", "dtype": "float32", "int_dtype": "int32"}


class LexicalIndex:
    """Word stems of each row and their BM25 weights; a retriever for the texts of queries."""

    def __init__(self, bm25: Any, language: str | None) -> None:  # noqa: ANN401 (bm25s has no types)
        self._bm25 = bm25
        self._terms_of = analyser(language)

    def __len__(self) -> int:
        return int(self._bm25.scores["num_docs"])

    @classmethod
    def build(cls, texts: Sequence[str], language: str | None) -> "LexicalIndex":
        """Index texts.

        Args:
            texts: The texts, at least one.
            language: The language of the stemmer; None indexes words as they are.

        Raises:
            InvalidInput: There is no stemmer for the language.
            MissingDependency: bm25s or PyStemmer is not installed.
        """
        terms_of = analyser(language)
        # Terms are numbered by first appearance, so that the same texts give the same files.
        vocabulary: dict[str, int] = {}
        ids = []
        with progress("indexing words", len(texts)) as bar:
            for text in texts:
                ids.append([vocabulary.setdefault(term, len(vocabulary)) for term in terms_of(text)])
                bar.advance()
        bm25 = _bm25s().BM25(k1=1.2, b=0.75, method="lucene")
        with np.errstate(invalid="ignore"):  # texts without any words have a mean length of 0
            bm25.index((ids, vocabulary or {"": 0}), show_progress=False)
        return cls(bm25, language)

    @classmethod
    def load(cls, folder: Path, language: str | None) -> "LexicalIndex":
        """Read a saved index; its arrays are memory-mapped.

        Raises:
            ValueError: The files are not those that ``save`` writes.
            MissingDependency: bm25s or PyStemmer is not installed.
        """
        settings = parse_json(read_bytes(folder / "params.index.json"))
        if {name: settings.get(name) for name in _WRITTEN} != _WRITTEN:
            raise ValueError("other settings than an index is built with")
        bm25 = _bm25s().BM25.load(folder, mmap=True)
        _check_stored(bm25)
        return cls(bm25, language)

    def save(self, folder: Path) -> None:
        """Write the files of the index into a new folder."""
        written = copy.copy(self._bm25)
        written.scores = {
            name: written_whole(value) if isinstance(value, np.ndarray) else value
            for name, value in self._bm25.scores.items()
        }
        written.save(folder, show_progress=False)

    def retrieve(self, queries: Sequence[str], k: int, allowed_L: Rows | None = None) -> Iterator[Retrieved]:
        """Yield the ``k`` best rows of each query; rows without a word of the query are left out."""
        for query in queries:
            scores_N = self.scores(query)
            rows_F = np.flatnonzero(scores_N) if allowed_L is None else allowed_L[scores_N[allowed_L] > 0]
            yield Retrieved(best(rows_F, scores_N[rows_F], k), scores_N.__getitem__)

    def scores(self, query: str) -> Scores:
        """Return the score of each row (N); 0 where a row has no word of the query."""
        ids = self._bm25.get_tokens_ids(self._terms_of(query))
        if not ids:
            return np.zeros(len(self))
        scores_N: Scores = self._bm25.get_scores_from_ids(ids).astype(np.float64)
        return scores_N

    def weights(self, query: str) -> dict[str, float]:
        """Return the inverse document frequency of the query's terms that occur in the index."""
        vocabulary, ends = self._bm25.vocab_dict, self._bm25.scores["indptr"]
        rows = {
            term: int(ends[vocabulary[term] + 1] - ends[vocabulary[term]])
            for term in self._terms_of(query)
            if term in vocabulary and vocabulary[term] + 1 < len(ends)
        }
        return {term: math.log1p((len(self) - count + 0.5) / (count + 0.5)) for term, count in rows.items()}

    def passage(self, query: str, text: str, *, width: int = 200) -> Passage:
        """Return the passage of a text that has most of a query's words."""
        return passage_of(text, self.weights(query), self._terms_of, width=width)


class _WrittenWhole(np.ndarray[Any, np.dtype[Any]]):
    def tofile(self, fid: Any, sep: str = "", format: str = "%s") -> None:  # noqa: A002, ANN401, ARG002 (NumPy's)
        fid.write(np.ascontiguousarray(self).data)


def written_whole(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the array in a form that ``np.save`` writes completely, or raises the system's error.

    On a full disk ``ndarray.tofile`` raises an error without a number, and none at all if only the last 4 KB of a file
    do not fit.
    """
    return array.view(_WrittenWhole)


def analyser(language: str | None) -> Callable[[str], list[str]]:
    """Return the function from a text to its terms.

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
    """Raise now what lexical indexing would raise after hours of embedding.

    Raises:
        InvalidInput: There is no stemmer for the language.
        MissingDependency: bm25s or PyStemmer is not installed.
    """
    _bm25s()
    analyser(language)


def _check_stored(bm25: Any) -> None:  # noqa: ANN401 (bm25s has no types)
    """Refuse arrays that would be read beyond their ends, or that would give scores that are not finite.

    Raises:
        ValueError: The arrays are inconsistent.
    """
    scores, terms = bm25.scores, bm25.vocab_dict
    data, rows, starts, count = (scores[name] for name in ("data", "indices", "indptr", "num_docs"))
    if any(each.ndim != 1 for each in (data, rows, starts)) or type(count) is not int or not isinstance(terms, dict):
        raise ValueError("expected three vectors, a number of rows and a table of terms")
    if data.dtype != np.float32 or rows.dtype.kind not in "iu" or starts.dtype.kind not in "iu" or len(starts) < 2:
        raise ValueError("vectors of other types")
    if starts[0] or starts[-1] != len(data) or len(rows) != len(data) or (np.diff(starts.astype(np.int64)) < 0).any():
        raise ValueError("terms that begin beyond the vectors")
    if len(rows) and not (rows.min() >= 0 and rows.max() < count and np.isfinite(data).all()):
        raise ValueError("rows beyond the texts, or scores that are not finite")
    # bm25s adds an empty term, which no query has, after the last one.
    if not all(type(number) is int and 0 <= number < len(starts) - (term != "") for term, number in terms.items()):
        raise ValueError("terms beyond the vectors")


def _bm25s() -> Any:  # noqa: ANN401 (bm25s has no types)
    try:
        import bm25s
    except ImportError as error:
        raise MissingDependency.of("bm25s", extra="search", purpose="lexical search") from error
    _give_tqdm_own_lock()
    return bm25s


def _give_tqdm_own_lock() -> None:
    """Give tqdm, through which bm25s counts words, a lock that belongs to this process.

    Its default lock is shared with all forked processes: one that is killed while it holds the lock blocks the others.
    """
    from tqdm.std import TqdmDefaultWriteLock, tqdm

    if isinstance(tqdm.get_lock(), TqdmDefaultWriteLock):
        tqdm.set_lock(threading.RLock())
