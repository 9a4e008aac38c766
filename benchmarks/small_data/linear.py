"""Linear models on TF-IDF and on frozen embeddings, each with what cross-validation chooses.

Logistic regression for labels, ridge regression for numbers. The strength of the penalty is chosen together with what
else there is to choose: n-grams of words or of characters, or how many tokens the embedder reads.

Shapes: N rows, D features.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, KFold, ShuffleSplit, StratifiedKFold, StratifiedShuffleSplit

from benchmarks.tasks import SCORED, TEXT_COLUMNS, Kind, Row, TaskData
from benchmarks.texts import MAX_TOKENS
from benchmarks.workers import set_torch_threads

# The first of equally good ones is kept: so few rows as 8 a class often leave it open.
PENALTIES: dict[str, list[float]] = {"C": [10, 1, 100, 0.1, 1_000]}
ALPHAS: dict[str, list[float]] = {"alpha": [1, 0.1, 10, 0.01, 100]}
FOLDS, MANY_ROWS = 5, 2_000


class Ngrams:
    """TF-IDF of words and pairs of words, or of 2 to 5 characters; for pairs also their difference and product."""

    def __init__(self, kind: Kind, analyzer: str, *, cosine: bool = False) -> None:
        self.kind, self.name = kind, f"{analyzer}, cosine alone" if cosine else analyzer
        self._cosine = cosine
        how = {"words": ("word", (1, 2)), "characters": ("char_wb", (2, 5))}[analyzer]
        self._vectorizer = TfidfVectorizer(sublinear_tf=True, analyzer=how[0], ngram_range=how[1])

    def learn(self, rows: Sequence[Row]) -> Any:  # noqa: ANN401
        self._vectorizer.fit([row[column] for column in TEXT_COLUMNS[self.kind] for row in rows])
        return self.read(rows)

    def read(self, rows: Sequence[Row]) -> Any:  # noqa: ANN401
        sides = [self._vectorizer.transform([row[column] for row in rows]) for column in TEXT_COLUMNS[self.kind]]
        return _joined([sparse.csr_array(side) for side in sides], cosine=self._cosine)


class Vectors:
    """Unit vectors of sentence-transformers; for pairs also difference and product, or the cosine alone."""

    def __init__(self, kind: Kind, embedder: Any, tokens: int, *, cosine: bool = False) -> None:  # noqa: ANN401
        self.kind, self.name = kind, f"{tokens} tokens, cosine alone" if cosine else f"{tokens} tokens"
        self._embedder, self._tokens, self._cosine = embedder, tokens, cosine

    def read(self, rows: Sequence[Row]) -> np.ndarray:
        self._embedder.max_seq_length = self._tokens
        sides = [
            self._embedder.encode([row[column] for row in rows], normalize_embeddings=True, show_progress_bar=False)
            for column in TEXT_COLUMNS[self.kind]
        ]
        return np.asarray(_joined(sides, cosine=self._cosine))

    learn = read


Features = Ngrams | Vectors


def _joined(sides: list[Any], *, cosine: bool) -> Any:  # noqa: ANN401
    """Return one side as it is, and of two both, their difference, product and cosine, or the cosine alone."""
    if len(sides) == 1:
        return sides[0]
    products = sides[0] * sides[1]
    cosines = products.sum(1)[:, None]
    if cosine:
        return cosines
    parts = [*sides, abs(sides[0] - sides[1]), products, cosines]
    if sparse.issparse(products):
        return sparse.hstack(parts, format="csr")
    parts[3] = products * np.sqrt(products.shape[1])  # smaller than the coordinates of unit vectors by so much
    return np.hstack(parts)


class Linear:
    """A linear model; of the features that a set offers some are chosen together with the penalty."""

    def __init__(self, features: Callable[[TaskData], Iterator[Features]]) -> None:
        self._candidates = features
        self.notes: dict[str, Any] = {}

    def fit(self, data: TaskData, seed: int) -> None:
        """Choose by cross-validation, then fit on all of the training rows."""
        self.scored = data.kind == SCORED
        truth = np.array([row["score" if self.scored else "label"] for row in data.train])
        # A ranking is read from the probabilities.
        scoring = "neg_mean_squared_error" if self.scored else "accuracy"
        scoring = "neg_log_loss" if data.kind == "ranking" else scoring
        best: Any = None
        for features in self._candidates(data):
            model = Ridge() if self.scored else LogisticRegression(max_iter=1_000)
            grid = ALPHAS if self.scored else PENALTIES
            search = GridSearchCV(model, grid, scoring=scoring, cv=_folds(truth, seed, scored=self.scored))
            read = features.learn(data.train)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # of a weak penalty
                search.fit(read, truth)
            if best is None or search.best_score_ > best.best_score_:
                best, self.features = search, features
        self.model = best.best_estimator_
        self.notes = {"features": self.features.name, **best.best_params_}

    def answers(self, rows: Sequence[Row]) -> list[Any]:
        read = self.features.read(rows)
        if self.scored:
            return [float(each) for each in self.model.predict(read)]
        labels = [str(label) for label in self.model.classes_]
        return [dict(zip(labels, row, strict=True)) for row in self.model.predict_proba(read).tolist()]


def tfidf(data: TaskData) -> Iterator[Features]:
    """Yield TF-IDF features to choose from."""
    for analyzer in ("words", "characters"):
        for cosine in _cosine_too(data.kind):
            yield Ngrams(data.kind, analyzer, cosine=cosine)


def embeddings(threads: int, device: str, checkpoint: Path, data: TaskData) -> Iterator[Features]:
    """Yield an embedder's features: cut at its own number of tokens, or at as many as the others read."""
    from sentence_transformers import SentenceTransformer

    set_torch_threads(threads)
    embedder = SentenceTransformer(str(checkpoint), device=device)
    own = int(embedder.max_seq_length or MAX_TOKENS)
    embedder.max_seq_length = MAX_TOKENS
    texts = [row[column] for row in data.train for column in TEXT_COLUMNS[data.kind]]
    longest = max(len(ids) for ids in embedder.tokenizer(texts, truncation=True, max_length=own + 1)["input_ids"])
    for tokens in (own, MAX_TOKENS) if longest > own else (own,):
        for cosine in _cosine_too(data.kind):
            yield Vectors(data.kind, embedder, tokens, cosine=cosine)


def _cosine_too(kind: Kind) -> tuple[bool, ...]:
    """Return the choices of reading the cosine alone: with few pairs it is often the best."""
    return (False, True) if len(TEXT_COLUMNS[kind]) == 2 else (False,)


def _folds(truth: np.ndarray, seed: int, *, scored: bool) -> Any:  # noqa: ANN401
    """Return five folds, or as many as the rarest label has rows; of many rows a fifth is held out once."""
    if len(truth) > MANY_ROWS:
        return (ShuffleSplit if scored else StratifiedShuffleSplit)(1, test_size=0.2, random_state=seed)
    if scored:
        return KFold(FOLDS, shuffle=True, random_state=seed)
    rarest = int(np.unique(truth, return_counts=True)[1].min())
    return StratifiedKFold(min(FOLDS, rarest), shuffle=True, random_state=seed)
