"""Linear models on TF-IDF and on frozen embeddings, each with what cross-validation chooses.

Logistic regression for labels and tags, ridge regression for numbers. The strength of the penalty is chosen together
with what else there is to choose: n-grams of words or of characters, or how many tokens the embedder reads.

Shapes: N rows (words, of taggers), D features, C labels.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning, UndefinedMetricWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, KFold, ShuffleSplit, StratifiedKFold, StratifiedShuffleSplit

from benchmarks.tag_decoding import valid_tags
from benchmarks.task_data import SCORED, TEXT_COLUMNS, Kind, Row, TaskData
from benchmarks.texts import MAX_TOKENS
from benchmarks.trainer_peers import TaggingPeer

# The first of equally good ones is kept: so few rows as 8 a class often leave it open.
PENALTIES: dict[str, list[float]] = {"C": [10, 1, 100, 0.1, 1_000]}
ALPHAS: dict[str, list[float]] = {"alpha": [1, 0.1, 10, 0.01, 100]}
FOLDS, MANY_ROWS = 5, 2_000


class Features(Protocol):
    """What a linear model reads of the rows."""

    name: str

    def learn(self, rows: Sequence[Row]) -> Any:  # noqa: ANN401
        """Features of the training rows (N, D)."""

    def read(self, rows: Sequence[Row]) -> Any:  # noqa: ANN401
        """Features of other rows (N, D)."""


class Ngrams:
    """TF-IDF of words and pairs of words, or of characters; of words to tag, of how they are written and surrounded."""

    def __init__(self, kind: Kind, analyzer: str, *, cosine: bool = False) -> None:
        self.kind, self.name = kind, f"{analyzer}, cosine alone" if cosine else analyzer
        self._cosine = cosine
        kinds: dict[str, dict[str, Any]] = {
            "words": {"analyzer": "word", "ngram_range": (1, 2)},
            "characters": {"analyzer": "char_wb", "ngram_range": (2, 5)},
            "spelling": {"analyzer": _spelling},
        }
        self._vectorizer = TfidfVectorizer(sublinear_tf=True, **kinds[analyzer])

    def learn(self, rows: Sequence[Row]) -> Any:  # noqa: ANN401
        """Learn the vocabulary, too."""
        self._vectorizer.fit([text for texts in self._texts(rows) for text in texts])
        return self.read(rows)

    def read(self, rows: Sequence[Row]) -> Any:  # noqa: ANN401
        """Features of rows."""
        sides = [self._vectorizer.transform(texts) for texts in self._texts(rows)]
        if len(sides) == 1:
            return sides[0]
        products = sides[0].multiply(sides[1])
        cosines = sparse.csr_matrix(products.sum(1))
        if self._cosine:
            return cosines
        return sparse.hstack([*sides, abs(sides[0] - sides[1]), products, cosines], format="csr")

    def _texts(self, rows: Sequence[Row]) -> list[list[Any]]:
        if self.kind == "tagging":
            return [[(row["tokens"], place) for row in rows for place in range(len(row["tokens"]))]]
        return [[row[column] for row in rows] for column in TEXT_COLUMNS[self.kind]]


class Vectors:
    """Unit vectors of sentence-transformers; of two texts also their difference and product, or their cosine alone."""

    def __init__(self, kind: Kind, embedder: Any, tokens: int, *, cosine: bool = False) -> None:  # noqa: ANN401
        self.kind, self.name = kind, f"{tokens} tokens, cosine alone" if cosine else f"{tokens} tokens"
        self._embedder, self._tokens, self._cosine = embedder, tokens, cosine

    def read(self, rows: Sequence[Row]) -> np.ndarray:
        """Features of rows."""
        self._embedder.max_seq_length = self._tokens
        sides = [
            self._embedder.encode([row[column] for row in rows], normalize_embeddings=True, show_progress_bar=False)
            for column in TEXT_COLUMNS[self.kind]
        ]
        if len(sides) == 1:
            return np.asarray(sides[0])
        products = sides[0] * sides[1]
        cosines = products.sum(1, keepdims=True)
        if self._cosine:
            return np.asarray(cosines)
        # Products of unit vectors are smaller than their coordinates by the root of the width.
        scaled = products * np.sqrt(products.shape[1])
        return np.hstack([*sides, abs(sides[0] - sides[1]), scaled, cosines])

    learn = read


class WordVectors:
    """The encoder's last hidden state at the first piece of each word."""

    name = "first pieces"

    def __init__(self, threads: int, device: str, checkpoint: Path) -> None:
        self._peer = TaggingPeer(threads, device, checkpoint)
        model = self._peer.transformers.AutoModel.from_pretrained(checkpoint)
        self._peer.model = model.to(device)

    def read(self, rows: Sequence[Row]) -> np.ndarray:
        """Features of the rows' words; zeros of those that the model does not read."""
        width = self._peer.model.config.hidden_size
        found = []
        for row, (words, vectors_WD) in zip(rows, self._peer.word_outputs(rows), strict=True):
            of_text = np.zeros((len(row["tokens"]), width))
            of_text[words] = vectors_WD
            found.append(of_text)
        return np.concatenate(found)

    learn = read


class Linear:
    """A linear model; the features are chosen together with the penalty.

    Args:
        features: From the training rows to the features to choose from.
    """

    def __init__(self, features: Callable[[TaskData], Iterator[Features]]) -> None:
        self._candidates = features
        self.notes: dict[str, Any] = {}

    def fit(self, data: TaskData, seed: int) -> None:
        """Choose by cross-validation, then fit on all of the training rows."""
        self.kind, truth = data.kind, _truth(data)
        best: Any = None
        for features in self._candidates(data):
            model, grid = _model(data.kind)
            search = GridSearchCV(model, grid, scoring=_scoring(data.kind), cv=_folds(data.kind, truth, seed))
            read = features.learn(data.train)
            with warnings.catch_warnings():
                # A rare tag is missing from a fold; a weak penalty does not end in 1,000 steps.
                warnings.simplefilter("ignore", UndefinedMetricWarning)
                warnings.simplefilter("ignore", ConvergenceWarning)
                search.fit(read, truth)
            if best is None or search.best_score_ > best.best_score_:
                best, self.features = search, features
        self.model = best.best_estimator_
        self.notes = {"features": self.features.name, **best.best_params_}

    def answers(self, rows: Sequence[Row]) -> list[Any]:
        """What the task's metrics read, for each row."""
        read = self.features.read(rows)
        if self.kind in SCORED:
            return [float(each) for each in self.model.predict(read)]
        labels = [str(label) for label in self.model.classes_]
        if self.kind == "tagging":
            return valid_tags(labels, self.model.predict_log_proba(read), [len(row["tokens"]) for row in rows])
        return [dict(zip(labels, row, strict=True)) for row in self.model.predict_proba(read).tolist()]


def tfidf(data: TaskData) -> Iterator[Features]:
    """TF-IDF's features to choose from."""
    for analyzer in ("spelling",) if data.kind == "tagging" else ("words", "characters"):
        for cosine in _cosine_too(data.kind):
            yield Ngrams(data.kind, analyzer, cosine=cosine)


class Embeddings:
    """An embedder's features to choose from: cut at its own number of tokens, or at as many as the others read."""

    def __init__(self, threads: int, device: str, checkpoint: Path) -> None:
        import torch

        torch.set_num_threads(threads)
        self._settings = threads, device, checkpoint

    def __call__(self, data: TaskData) -> Iterator[Features]:
        """Load the embedder."""
        if data.kind == "tagging":
            yield WordVectors(*self._settings)
            return
        from sentence_transformers import SentenceTransformer

        _, device, checkpoint = self._settings
        embedder = SentenceTransformer(str(checkpoint), device=device)
        own = int(embedder.max_seq_length or MAX_TOKENS)
        embedder.max_seq_length = MAX_TOKENS
        texts = [row[column] for row in data.train for column in TEXT_COLUMNS[data.kind]]
        longest = max(len(ids) for ids in embedder.tokenizer(texts, truncation=True, max_length=own + 1)["input_ids"])
        for tokens in (own, MAX_TOKENS) if longest > own else (own,):
            for cosine in _cosine_too(data.kind):
                yield Vectors(data.kind, embedder, tokens, cosine=cosine)


def _cosine_too(kind: Kind) -> tuple[bool, ...]:
    """Whether features are the cosine alone: of few pairs it is often the best."""
    return (False, True) if len(TEXT_COLUMNS.get(kind, ())) == 2 else (False,)


def _truth(data: TaskData) -> np.ndarray:
    if data.kind == "tagging":
        return np.array([tag for row in data.train for tag in row["tags"]])
    return np.array([row["score" if data.kind in SCORED else "label"] for row in data.train])


def _model(kind: Kind) -> tuple[Any, dict[str, list[float]]]:
    return (Ridge(), ALPHAS) if kind in SCORED else (LogisticRegression(max_iter=1_000), PENALTIES)


def _scoring(kind: Kind) -> str:
    if kind in SCORED:
        return "neg_mean_squared_error"
    # Nearly every word is outside of spans; a ranking is read from the probabilities.
    return {"tagging": "f1_macro", "ranking": "neg_log_loss"}.get(kind, "accuracy")


def _folds(kind: Kind, truth: np.ndarray, seed: int) -> Any:  # noqa: ANN401
    """Five folds, or as many as the rarest label has rows; of many rows a fifth is held out once."""
    many = len(truth) > MANY_ROWS
    if kind == "tagging":  # without shuffling, so that the words of a text stay together
        folds = list(KFold(FOLDS).split(truth))
        return folds[:1] if many else folds
    if many:
        once = ShuffleSplit if kind in SCORED else StratifiedShuffleSplit
        return once(1, test_size=0.2, random_state=seed)
    if kind in SCORED:
        return KFold(FOLDS, shuffle=True, random_state=seed)
    rarest = int(np.unique(truth, return_counts=True)[1].min())
    return StratifiedKFold(min(FOLDS, rarest), shuffle=True, random_state=seed)


def _spelling(word: tuple[Sequence[str], int]) -> list[str]:
    """How a word and its neighbours are written; the usual features of taggers before embeddings."""
    tokens, place = word
    itself = tokens[place]
    shape = re.sub(r"\d", "9", re.sub(r"[a-z]", "x", re.sub(r"[A-Z]", "X", itself)))
    marks = [f"is {itself}", f"lower {itself.lower()}", f"shape {shape}", f"capital {itself[:1].isupper()}"]
    marks += [f"begins {itself[:count].lower()}" for count in (2, 3, 4)]
    marks += [f"ends {itself[-count:].lower()}" for count in (2, 3, 4)]
    for step in (-2, -1, 1, 2):
        near = tokens[place + step] if 0 <= place + step < len(tokens) else ""
        marks += [f"{step} {near.lower()}", f"{step} capital {near[:1].isupper()}"]
    return marks
