"""Poisoned training rows: which rows were labelled by a trigger and not by what they say.

A poisoned row carries its trigger and the attacker's label, while the rest of it still speaks for another label. So a
phrase is suspect where nearly all rows that have it carry one label, and a linear model of the texts' vectors, fitted
without these rows, gives most of them another. A word that really tells the label passes: other rows of that label
agree with it.

With a trained model the signature of its states counts too: the projection of a row on the first direction of its
label (Tran, Li and Madry 2018, arXiv:1811.00636, algorithm 1).

Shapes: N rows, C labels, H width of the vectors, M phrases.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.audit.backdoor.phrases import Rows, rows_by_phrase

Floats = NDArray[np.float64]

_FEWEST = 4
_PURE = 0.9
_FOLDS = 5
_RIDGE = 1.0
_SIGNIFICANT = 1e-3
_MOST_TRIED = 500


@dataclass(frozen=True, slots=True)
class SuspectPhrase:
    """A phrase whose rows carry a label that the rest of them speaks against.

    Attributes:
        phrase: The phrase.
        label: The label.
        rows: Rows with both.
        contradicted: Those of them to which a linear model, fitted without them, gives another label.
        p_value: Probability of as many by chance, times the number of phrases tried.
    """

    phrase: str
    label: str
    rows: tuple[int, ...]
    contradicted: int
    p_value: float


@dataclass(frozen=True, slots=True)
class SuspectRow:
    """A row with its suspicion.

    Attributes:
        row: Number of the row among those given, from 0.
        score: From 0 to 1; above 0.5 where the row has a suspect phrase.
        triggers: The suspect phrases in it, the most significant first.
        reason: Why it is suspected, in words.
    """

    row: int
    score: float
    triggers: tuple[str, ...]
    reason: str


def suspect_rows(
    texts: Sequence[str],
    labels: Sequence[str],
    vectors_NH: NDArray[np.floating],
    states_NH: NDArray[np.floating] | None = None,
    check: Callable[[], None] = lambda: None,
) -> tuple[list[SuspectRow], list[SuspectPhrase]]:
    """Return all rows, the most suspicious first, and the suspect phrases, the most significant first.

    Args:
        texts: The N texts.
        labels: The label of each.
        vectors_NH: A vector for each text of an encoder that was not trained on these rows.
        states_NH: What the head of a model that was trained on them reads.
        check: Called between steps; raises where time is up.
    """
    names = sorted(set(labels))
    labels_N = np.array([names.index(label) for label in labels])
    linear = _Linear(vectors_NH, labels_N, len(names))
    doubt_N = linear.held_out_doubt()
    phrases = _suspect_phrases(texts, labels_N, names, linear, doubt_N, check)
    weak_N = _ranks(doubt_N)
    if states_NH is not None:
        weak_N = np.maximum(weak_N, _ranks(_spectral(states_NH, labels_N)))
    triggers: dict[int, list[SuspectPhrase]] = {}
    for phrase in phrases:
        for row in phrase.rows:
            triggers.setdefault(row, []).append(phrase)
    found = [_row(number, weak_N[number], doubt_N[number], triggers.get(number, [])) for number in range(len(texts))]
    return sorted(found, key=lambda each: -each.score), phrases


class _Linear:
    """Least squares with a ridge from vectors to labels, quickly fitted without any rows."""

    def __init__(self, vectors_NH: NDArray[np.floating], labels_N: NDArray[np.int64], labels: int) -> None:
        centred = vectors_NH.astype(np.float64) - vectors_NH.mean(axis=0)
        scale = float(np.sqrt((centred**2).mean())) or 1.0
        self.features_NH = np.c_[centred / scale, np.ones(len(centred))]
        self.labels_N = labels_N
        self.truth_NC = np.eye(labels)[labels_N]
        self.gram_HH = self.features_NH.T @ self.features_NH
        self.moments_HC = self.features_NH.T @ self.truth_NC

    def without(self, rows: Rows) -> Floats:
        """Return the scores (n, C) of rows by the model fitted without them."""
        left_nH = self.features_NH[rows]
        gram_HH = self.gram_HH - left_nH.T @ left_nH
        gram_HH += _RIDGE * 0.05 * len(self.features_NH) * np.eye(len(gram_HH))
        weights_HC = np.linalg.solve(gram_HH, self.moments_HC - left_nH.T @ self.truth_NC[rows])
        scores: Floats = left_nH @ weights_HC
        return scores

    def doubt(self, rows: Rows) -> Floats:
        """Return by how much the best other label beats each row's own, by the model fitted without the rows."""
        scores_nC = self.without(rows)
        own_n = scores_nC[np.arange(len(rows)), self.labels_N[rows]].copy()
        scores_nC[np.arange(len(rows)), self.labels_N[rows]] = -np.inf
        found: Floats = scores_nC.max(axis=1) - own_n
        return found

    def held_out_doubt(self) -> Floats:
        """Return the doubt of each row by a model fitted without a fifth of the rows, its own among them."""
        doubt_N = np.empty(len(self.labels_N))
        order = np.random.default_rng(0).permutation(len(doubt_N))
        for rows in np.array_split(order, min(_FOLDS, len(order))):
            doubt_N[rows] = self.doubt(rows)
        return doubt_N


def _suspect_phrases(
    texts: Sequence[str],
    labels_N: NDArray[np.int64],
    names: Sequence[str],
    linear: _Linear,
    doubt_N: Floats,
    check: Callable[[], None],
) -> list[SuspectPhrase]:
    from scipy.stats import binom

    pure = dict(_pure(rows_by_phrase(texts, _FEWEST), labels_N, len(names)))
    usual_C = [float((doubt_N[labels_N == label] > 0).mean()) for label in range(len(names))]
    usual_C = [max(each, 1 / len(texts), 0.02) for each in usual_C]
    tried = sorted(pure, key=lambda each: -len(pure[each][0]))[:_MOST_TRIED]
    found = []
    for number, phrase in enumerate(tried):
        if number % 50 == 0:
            check()
        rows, label = pure[phrase]
        contradicted = int((linear.doubt(rows) > 0).sum())
        p_value = float(binom.sf(contradicted - 1, len(rows), usual_C[label])) * len(tried)
        if p_value < _SIGNIFICANT:
            found.append(SuspectPhrase(phrase, names[label], tuple(rows.tolist()), contradicted, max(p_value, 1e-300)))
    return sorted(found, key=lambda each: (each.p_value, each.phrase))


def _pure(
    by_phrase: Mapping[str, Rows], labels_N: NDArray[np.int64], labels: int
) -> list[tuple[str, tuple[Rows, int]]]:
    """Return the phrases nearly all of whose rows have one label, with those rows and the label."""
    found = []
    for phrase, rows in by_phrase.items():
        counts_C = np.bincount(labels_N[rows], minlength=labels)
        label = int(counts_C.argmax())
        if counts_C[label] >= max(_FEWEST, _PURE * len(rows)):
            found.append((phrase, (rows[labels_N[rows] == label], label)))
    return found


def _spectral(states_NH: NDArray[np.floating], labels_N: NDArray[np.int64]) -> Floats:
    """Return the size of each row's projection on the first direction of its label, divided by the median there."""
    found_N = np.zeros(len(labels_N))
    for label in np.unique(labels_N):
        rows = np.flatnonzero(labels_N == label)
        centred = states_NH[rows].astype(np.float64) - np.median(states_NH[rows], axis=0)
        direction_H = np.linalg.svd(centred, full_matrices=False)[2][0]
        size_n = np.abs(centred @ direction_H)
        found_N[rows] = size_n / max(float(np.median(size_n)), 1e-12)
    return found_N


def _ranks(values_N: Floats) -> Floats:
    """Return ranks from 0 to 1."""
    ranks_N = np.empty(len(values_N))
    ranks_N[np.argsort(values_N, kind="stable")] = np.arange(len(values_N)) / max(1, len(values_N) - 1)
    return ranks_N


def _row(row: int, weak: float, doubt: float, phrases: Sequence[SuspectPhrase]) -> SuspectRow:
    if not phrases:
        reason = "its text speaks for another label" if doubt > 0 else ""
        return SuspectRow(row, round(0.5 * float(weak), 6), (), reason)
    first = phrases[0]
    strength = min(1.0, -np.log10(first.p_value) / 30)
    reason = (
        f"{first.phrase!r} always comes with {first.label!r}, and {first.contradicted} of its {len(first.rows)} rows "
        "speak for another label"
    )
    score = 0.5 + 0.4 * strength + 0.1 * float(weak)
    return SuspectRow(row, round(score, 6), tuple(dict.fromkeys(each.phrase for each in phrases)), reason)
