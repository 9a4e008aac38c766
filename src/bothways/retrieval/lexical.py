"""Lexical retrieval by BM25 over word stems. Needs the extra ``search`` (bm25s, PyStemmer).

The score is that of Robertson et al. 1995 (TREC-3) in Lucene's form, with Lucene's k1 = 1.2 and b = 0.75. A text is
split into terms (`terms_of`), and each is stemmed by the Snowball algorithm for the index's language. There are no stop
words: the inverse document frequency gives frequent words almost no weight.

A term is a run of letters and digits with their marks: accents, vowel signs of Hindi, Arabic and Hebrew. NFKC and case
folding unify spellings of the same meaning: composed and decomposed letters, full and half width, ligatures, the
positional letters of Arabic, CO₂ and CO2. They are applied to the runs, not to the whole text, because NFKC turns
signs beside words, such as ™, into letters.

In scripts without spaces between words, each character and each pair of neighbours is a term, as in Lucene's
``CJKBigramFilter`` with ``outputUnigrams``. Kwok 1999 (JASIS 50:8) found that pairs alone work well for Chinese,
and better together with single characters; without these, a word of one character would not be found in longer runs.

Letters in names: N rows of the index, K requested rows, L allowed rows.
"""

import copy
import itertools
import math
import re
import threading
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from io import BufferedIOBase
from pathlib import Path
from types import ModuleType
from typing import Protocol, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from bothways.errors import InvalidInput, MissingDependency
from bothways.progress import progress
from bothways.reading import parse_json, read_bytes
from bothways.retrieval.ranking import Retrieved, Rows, Scores, best
from bothways.text.characters import UNSEEN, letter_run, marks

NumberT = TypeVar("NumberT", bound=np.generic)

DEFAULT_LANGUAGE = "english"

# The files that bm25s reads.
FILES = ("params.index.json", "vocab.index.json", *(f"{each}.csc.index.npy" for each in ("data", "indices", "indptr")))

# The settings that bm25s writes for `LexicalIndex.build`; bm25s does not check them when it loads an index.
_WRITTEN = {"method": "lucene", "backend": "numpy", "dtype": "float32", "int_dtype": "int32"}


class LexicalIndex:
    """A BM25 index of the word stems of each row, and a retriever whose queries are texts."""

    def __init__(self, bm25: "_BM25", language: str | None) -> None:
        self._bm25 = bm25
        self._terms_of = analyser(language)

    def __len__(self) -> int:
        return int(self._bm25.scores["num_docs"])

    @classmethod
    def build(cls, texts: Sequence[str], language: str | None) -> "LexicalIndex":
        """Index at least one text; a ``language`` of None indexes words as they are."""
        analyse = analyser(language)
        # Terms are numbered by first appearance, so that the same texts give the same files.
        vocabulary: dict[str, int] = {}
        ids = []
        with progress("indexing words", len(texts)) as bar:
            for text in texts:
                ids.append([vocabulary.setdefault(term, len(vocabulary)) for term in analyse(text)])
                bar.advance()
        bm25: _BM25 = _bm25s().BM25(k1=1.2, b=0.75, method="lucene")
        with np.errstate(invalid="ignore"):  # texts without any words have a mean length of 0
            bm25.index((ids, vocabulary or {"": 0}), show_progress=False)
        return cls(bm25, language)

    @classmethod
    def load(cls, folder: Path, language: str | None) -> "LexicalIndex":
        """Read a saved index; its arrays are memory-mapped."""
        settings = parse_json(read_bytes(folder / "params.index.json"))
        if {name: settings.get(name) for name in _WRITTEN} != _WRITTEN:
            raise ValueError("the settings of BM25 differ from those of this version")
        bm25: _BM25 = _bm25s().BM25.load(folder, mmap=True)
        _check_stored(bm25)
        return cls(bm25, language)

    def save(self, folder: Path) -> None:
        """Write the files of the index into a new folder."""
        written, scores = copy.copy(self._bm25), self._bm25.scores
        written.scores = {
            **scores,
            "data": written_whole(scores["data"]),
            "indices": written_whole(scores["indices"]),
            "indptr": written_whole(scores["indptr"]),
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
        return self._bm25.get_scores_from_ids(ids).astype(np.float64)

    def weights(self, query: str) -> dict[str, float]:
        """Return the inverse document frequency of the query's terms that occur in the index."""
        vocabulary, ends = self._bm25.vocab_dict, self._bm25.scores["indptr"]
        rows = {
            term: int(ends[vocabulary[term] + 1] - ends[vocabulary[term]])
            for term in self._terms_of(query)
            if term in vocabulary and vocabulary[term] + 1 < len(ends)
        }
        return {term: math.log1p((len(self) - count + 0.5) / (count + 0.5)) for term, count in rows.items()}

    def passage(self, query: str, text: str, *, width: int = 200) -> "Passage":
        """Return the passage of a text whose words of the query have the highest total weight, see `passage_of`."""
        return passage_of(text, self.weights(query), self._terms_of, width=width)


class _Scores(TypedDict):
    """The BM25 scores as a sparse matrix of rows and terms, in CSC format."""

    data: npt.NDArray[np.floating]
    indices: npt.NDArray[np.integer]
    indptr: npt.NDArray[np.integer]
    num_docs: int


class _BM25(Protocol):
    """The part of ``bm25s.BM25`` that is used; the package has no types."""

    scores: _Scores
    vocab_dict: dict[str, int]

    def index(self, corpus: tuple[list[list[int]], dict[str, int]], *, show_progress: bool) -> None: ...

    def get_tokens_ids(self, query_tokens: list[str]) -> list[int]: ...

    def get_scores_from_ids(self, query_tokens_ids: list[int]) -> npt.NDArray[np.floating]: ...

    def save(self, save_dir: Path, *, show_progress: bool) -> None: ...


class _WrittenWhole(np.ndarray[tuple[int, ...], np.dtype[NumberT]]):
    def tofile(self, fid: object, sep: str = "", format: str = "%s") -> None:  # noqa: A002, ARG002 (NumPy's)
        assert isinstance(fid, BufferedIOBase)  # np.save opens it
        fid.write(np.ascontiguousarray(self).data)


def written_whole(array: npt.NDArray[NumberT]) -> npt.NDArray[NumberT]:
    """Return a view of the array for which ``np.save`` either writes everything or raises the system's error.

    On a full disk ``ndarray.tofile`` raises an error without an ``errno``, or none at all if only the last 4 KB of a
    file do not fit.
    """
    return array.view(_WrittenWhole)


def analyser(language: str | None) -> Callable[[str], list[str]]:
    """Return the function that splits a text into its terms, stemmed unless ``language`` is None."""
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
    """Check that the stemmer and the packages are available, before hours of embedding.

    Raises:
        InvalidInput: There is no stemmer for the language.
        MissingDependency: bm25s or PyStemmer is not installed.
    """
    _bm25s()
    analyser(language)


def _check_stored(bm25: _BM25) -> None:
    """Raise ValueError if indices point outside the arrays, or if scores are not finite."""
    scores, terms = bm25.scores, bm25.vocab_dict
    data, rows, starts, count = scores["data"], scores["indices"], scores["indptr"], scores["num_docs"]
    if any(each.ndim != 1 for each in (data, rows, starts)) or type(count) is not int or not isinstance(terms, dict):
        raise ValueError("expected three vectors, a number of rows and a table of terms")
    if data.dtype != np.float32 or rows.dtype.kind not in "iu" or starts.dtype.kind not in "iu" or len(starts) < 2:
        raise ValueError("expected float32 scores and whole numbers")
    if starts[0] or starts[-1] != len(data) or len(rows) != len(data) or (np.diff(starts.astype(np.int64)) < 0).any():
        raise ValueError("the positions of terms lie outside the arrays")
    if len(rows) and not (rows.min() >= 0 and rows.max() < count and np.isfinite(data).all()):
        raise ValueError("rows lie outside the texts, or scores are not finite")
    # bm25s adds an empty term, which no query has, after the last one.
    if not all(type(number) is int and 0 <= number < len(starts) - (term != "") for term, number in terms.items()):
        raise ValueError("terms lie outside the arrays")


def _bm25s() -> ModuleType:
    try:
        import bm25s
    except ImportError as error:
        raise MissingDependency.of("bm25s", extra="search", purpose="lexical search") from error
    _give_tqdm_own_lock()
    package: ModuleType = bm25s
    return package


def _give_tqdm_own_lock() -> None:
    """Give tqdm, which bm25s uses while it counts words, a lock of this process alone.

    Its default lock is shared with forked processes: if one is killed while it holds the lock, the others are blocked.
    """
    from tqdm.std import TqdmDefaultWriteLock, tqdm

    if isinstance(tqdm.get_lock(), TqdmDefaultWriteLock):
        tqdm.set_lock(threading.RLock())


# --- terms ---

_ASCII_RUN = re.compile(r"\w+", re.ASCII)

# In Persian, a zero-width non-joiner stands before word endings, where some authors write a space.
_BEFORE_ENDING = re.compile("(?<=[\u0600-\u06ff])\u200c")

# Characters that do not distinguish words: format characters, joiners, and variation selectors.
_WITHOUT_MEANING = re.compile(rf"{UNSEEN.pattern}|[\u034f\u180b-\u180f\u200c\u200d\ufe00-\ufe0f\U000e0020-\U000e01ef]")

# Thai and Lao, Burmese, Khmer, kana, Chinese characters.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff"
_UNSPACED += "\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")
_PART = re.compile(rf"([{_UNSPACED}]+)|[^\s{_UNSPACED}]+")


def terms_of(text: str) -> list[str]:
    """Return the terms of a text, with repetitions.

    >>> terms_of("Ange\N{SOFT HYPHEN}la's CAFE\N{COMBINING ACUTE ACCENT}")
    ['angela', 's', 'café']
    >>> terms_of("हिन्दी 東京")
    ['हिन्दी', '東', '京', '東京']
    """
    if text.isascii():
        return _ASCII_RUN.findall(text.lower())
    runs = _run().findall(_BEFORE_ENDING.sub(" ", unicodedata.normalize("NFC", text)))
    return [term for part in _PART.finditer(_folded(" ".join(runs))) for term in _terms(part)]


def _folded(text: str) -> str:
    folded = unicodedata.normalize("NFKC", _WITHOUT_MEANING.sub("", text)).casefold()
    # Case folding turns the dotted capital I of Turkish into an i with another dot.
    return unicodedata.normalize("NFKC", folded.replace("i\u0307", "i"))


def _terms(part: re.Match[str]) -> Iterator[str]:
    if part[1] is None:
        yield part[0]
        return
    characters = _character().findall(part[1])
    yield from characters
    yield from map("".join, itertools.pairwise(characters))


@cache
def _run() -> re.Pattern[str]:
    return re.compile(letter_run())


@cache
def _character() -> re.Pattern[str]:
    return re.compile(f".[{marks()}]*")


# --- passages ---

MIN_SHARE = 0.2
"""Query words whose weight is below this share of the highest one, such as "the", are not marked."""

_TO_A_SPACE = 20  # characters that a passage may lose at each end, to begin and end at word boundaries


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a text, with an ellipsis at each end where text was left out."""

    text: str
    marked: tuple[tuple[int, int], ...] = ()  # starts and ends of the query's words in it, in order and without overlap

    def parts(self) -> Iterator[tuple[str, bool]]:
        """Yield the pieces of the passage, each with True for a word of the query."""
        place = 0
        for start, end in self.marked:
            yield self.text[place:start], False
            yield self.text[start:end], True
            place = end
        yield self.text[place:], False


@dataclass(frozen=True, slots=True)
class _Match:
    start: int
    end: int
    terms: frozenset[str]


def passage_of(
    text: str, weights: Mapping[str, float], terms_of: Callable[[str], Sequence[str]], *, width: int = 200
) -> Passage:
    """Return the passage whose distinct query terms have the highest total weight; without any, the text's beginning.

    ``weights`` is the inverse document frequency of each query term. Ellipses do not count towards ``width``.
    """
    text = _plain(text)
    threshold = MIN_SHARE * max(weights.values(), default=0.0)
    rare = {term: weight for term, weight in weights.items() if weight >= threshold}
    matches = list(_matches(text, rare, cache(lambda run: frozenset(terms_of(run)))))
    begin, end = _window(text, matches, rare, width)
    before, after = "…" if begin else "", "…" if end < len(text) else ""
    shift = len(before) - begin
    marked = tuple(
        (each.start + shift, each.end + shift) for each in matches if begin <= each.start and each.end <= end
    )
    return Passage(f"{before}{text[begin:end]}{after}", marked)


def runs_of(text: str) -> set[str]:
    """Return the runs of letters and digits whose terms `passage_of` asks for."""
    return set(re.findall(letter_run(), _plain(text)))


def _plain(text: str) -> str:
    return unicodedata.normalize("NFC", " ".join(text.split()))


def _matches(text: str, weights: Mapping[str, float], terms_of: Callable[[str], frozenset[str]]) -> Iterator[_Match]:
    if not weights:
        return
    for run in re.finditer(letter_run(), text):
        terms = terms_of(run[0]) & weights.keys()
        if terms and _UNSPACED_CHARACTER.search(run[0]):
            yield from _within(run[0], run.start(), terms)
        elif terms:
            yield _Match(run.start(), run.end(), terms)


def _within(run: str, start: int, terms: frozenset[str]) -> Iterator[_Match]:
    """Yield matches of the longest terms in a run of a script without spaces between words."""
    at = 0
    while at < len(run):
        length = next((each for each in (2, 1) if run[at : at + each] in terms and at + each <= len(run)), 0)
        if length:
            yield _Match(start + at, start + at + length, frozenset({run[at : at + length]}))
        at += length or 1


def _window(text: str, matches: Sequence[_Match], weights: Mapping[str, float], width: int) -> tuple[int, int]:
    """Return the start and the end of the passage."""
    if len(text) <= width:
        return 0, len(text)
    best, first, last = 0.0, 0, 0
    for number, match in enumerate(matches):
        within: set[str] = set()
        for each in matches[number:]:
            if each.end - match.start > width - 2 * _TO_A_SPACE:
                break
            within |= each.terms
            weight = sum(weights[term] for term in within)
            if weight > best:
                best, first, last = weight, match.start, each.end
    begin = min(max(0, (first + last - width) // 2), len(text) - width)
    end = begin + width
    if begin and text[begin - 1] != " ":
        space = text.find(" ", begin, min(begin + _TO_A_SPACE, first))
        begin = space + 1 if space >= 0 else begin
    if end < len(text) and text[end] != " ":
        space = text.rfind(" ", max(end - _TO_A_SPACE, last), end)
        end = space if space >= 0 else end
    return begin, end
