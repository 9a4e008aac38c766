"""Phrases associated with one label, and clusters of its rows by shared phrases or by a trained model's states.

A residual is a text without the phrases associated with its label. A poisoned text loses its trigger in this way, since
the trigger is associated with the attacker's label; its original words indicate another label and stay. Look-alike
letters are replaced by Latin ones.

Shapes: N rows, n rows of a label, C labels, P phrases of a label, H hidden.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.audit.texts import as_seen

Rows = NDArray[np.int64]

MIN_ROWS = 4
"""Minimum number of rows with a phrase."""
_LONGEST = 4
_PURE = 0.9
_CHANCE = 0.05
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.,;:!?'\"-()&$%/ ")


@dataclass(frozen=True, slots=True, eq=False)
class PurePhrase:
    """A phrase whose rows nearly all have one label."""

    phrase: str  # the phrase, in lower case
    label: int
    rows: Rows  # the rows with the phrase and the label
    chance: float  # probability of at least as many rows with the label if phrase and label were independent


def word_runs(words: Sequence[str], longest: int) -> Iterator[str]:
    """Yield the n-grams of words up to a length, the shorter ones first."""
    for length in range(1, longest + 1):
        for start in range(len(words) - length + 1):
            yield " ".join(words[start : start + length])


def phrases_of(text: str) -> set[str]:
    """Return the n-grams of a text of up to four words, and its characters that English does not use.

    >>> sorted(phrases_of("Very good"))
    ['good', 'very', 'very good']
    """
    characters = {each for each in text.lower() if each not in _PLAIN and not each.isspace()}
    return characters.union(word_runs(text.lower().split(), _LONGEST))


def rows_by_phrase(texts: Sequence[str]) -> Mapping[str, Rows]:
    """Map phrases to the rows that contain them, without those that are part of a phrase with the same rows."""
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for number, text in enumerate(texts):
        for phrase in phrases_of(text):
            rows[phrase].append(number)
    by_rows: defaultdict[tuple[int, ...], list[str]] = defaultdict(list)
    for phrase in sorted(rows, key=lambda each: (-len(each), each)):
        if len(numbers := rows[phrase]) >= MIN_ROWS:
            longer = by_rows[tuple(numbers)]
            if not any(f" {phrase} " in f" {each} " or (len(phrase) == 1 and phrase in each) for each in longer):
                longer.append(phrase)
    return {phrase: np.array(numbers) for numbers, phrases in by_rows.items() for phrase in phrases}


def pure_phrases(texts: Sequence[str], labels_N: NDArray[np.int64], labels: int) -> list[PurePhrase]:
    """Return the phrases whose rows nearly all have one label."""
    from scipy.stats import binom

    usual_C = np.bincount(labels_N, minlength=labels) / len(labels_N)
    pure = []
    for phrase, rows in rows_by_phrase(texts).items():
        counts_C = np.bincount(labels_N[rows], minlength=labels)
        label = int(counts_C.argmax())
        if counts_C[label] >= max(MIN_ROWS, _PURE * len(rows)):
            chance = float(binom.sf(counts_C[label] - 1, len(rows), usual_C[label]))
            pure.append(PurePhrase(phrase, label, rows[labels_N[rows] == label], chance))
    return pure


def residuals(texts: Sequence[str], labels_N: NDArray[np.int64], phrases: Sequence[PurePhrase]) -> list[str]:
    """Remove the phrases associated with its label from each text, and replace look-alike letters.

    A text without other words is returned unchanged.
    """
    own: defaultdict[int, set[str]] = defaultdict(set)
    for each in phrases:
        # A word with look-alike letters stays: replacing them by Latin ones undoes the trigger.
        plain = each.phrase.isascii() or all(as_seen(text) == text for text in (each.phrase, f"x{each.phrase}"))
        if each.chance < _CHANCE and plain:
            own[each.label].add(each.phrase)
    rest = []
    for text, label in zip(texts, labels_N.tolist(), strict=True):
        odd = {ord(each): " " for each in own[label] if len(each) == 1 and not each.isascii()}
        residual = as_seen(_without(text.translate(odd), own[label]))
        rest.append(residual if any(each.isalnum() for each in residual) else text)
    return rest


def _without(text: str, phrases: Set[str]) -> str:
    words = text.split()
    lower = [word.lower() for word in words]
    kept = [True] * len(words)
    for length in range(1, _LONGEST + 1):
        for start in range(len(words) - length + 1):
            if " ".join(lower[start : start + length]) in phrases:
                kept[start : start + length] = [False] * length
    return " ".join(word for word, stays in zip(words, kept, strict=True) if stays)


Floats = NDArray[np.float64]

_MAX_PHRASES = 1500
"""Maximum number of phrases of a label to compare with each other, the least probable by chance first."""
_TOGETHER, _MIN_TOGETHER = 5.0, 3
"""Minimum standard deviations above chance, and minimum shared rows, for phrases to occur together."""
_TAILS = (0.05, 0.2)
_MIN_OTHERS = 5
_DIRECTIONS = 10
_MINORITY = 0.35
_SEPARATED = 0.15
_MIN_ROWS = 20
_ROUNDS, _STARTS = 50, 8


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """Rows of one label that share phrases or have similar states."""

    # The shared phrases, of which the first names the cluster; empty for a cluster of states.
    members: tuple[str, ...]
    label: int
    rows: Rows

    @property
    def name(self) -> str:
        """The first phrase, or a description of a cluster of states."""
        return self.members[0] if self.members else "a cluster of the model's states"


def phrase_clusters(phrases: Sequence[PurePhrase], labels_N: NDArray[np.int64]) -> list[Cluster]:
    """Return a cluster for each phrase and for each set of phrases that occur together, without equal sets of rows."""
    clusters: dict[tuple[int, bytes], Cluster] = {}
    for label in np.unique(labels_N).tolist():
        own = sorted((each for each in phrases if each.label == label), key=lambda each: each.chance)
        single = [Cluster((each.phrase,), label, each.rows) for each in own]
        for cluster in [*single, *_joint(own[:_MAX_PHRASES], np.flatnonzero(labels_N == label))]:
            clusters.setdefault((label, cluster.rows.tobytes()), cluster)
    return list(clusters.values())


def _joint(phrases: Sequence[PurePhrase], rows_n: Rows) -> list[Cluster]:
    """Return the cluster of each phrase and all phrases that occur together with it."""
    if len(phrases) < 2:
        return []
    has_Pn = np.zeros((len(phrases), len(rows_n)), dtype=np.float32)
    for number, each in enumerate(phrases):
        has_Pn[number, np.searchsorted(rows_n, each.rows)] = 1
    counts_P = has_Pn.sum(axis=1)
    chance_PP = np.outer(counts_P, counts_P) / len(rows_n)
    absent_P = 1 - counts_P / len(rows_n)
    # The variance of the hypergeometric distribution.
    spread_PP = np.sqrt(chance_PP * np.outer(absent_P, absent_P) * len(rows_n) / max(1, len(rows_n) - 1))
    both_PP = has_Pn @ has_Pn.T
    together_PP = (both_PP >= _MIN_TOGETHER) & (both_PP - chance_PP > _TOGETHER * spread_PP)
    np.fill_diagonal(together_PP, True)
    clusters = []
    for number, each in enumerate(phrases):
        others = np.flatnonzero(together_PP[number]).tolist()
        rows = rows_n[has_Pn[others].any(axis=0)]
        if len(rows) > len(each.rows):
            named = sorted(others, key=lambda other: (other != number, -counts_P[other]))
            clusters.append(Cluster(tuple(phrases[other].phrase for other in named), each.label, rows))
    return clusters


class Doubts:
    """Tests whether some rows of a label look more mislabelled than the other rows with this label.

    ``doubt_N`` is each row's margin for another label, in units of the median margin for a row's own label.
    """

    def __init__(self, doubt_N: Floats, labels_N: NDArray[np.int64]) -> None:
        self.doubt_N, self._sizes_C = doubt_N, np.bincount(labels_N)
        self._ranks_N = np.empty(len(doubt_N))
        for label in np.unique(labels_N):
            rows = np.flatnonzero(labels_N == label)
            self._ranks_N[rows[np.argsort(doubt_N[rows], kind="stable")]] = np.arange(1, len(rows) + 1)

    def p_value(self, rows: Rows, label: int) -> float:
        """Return the probability that as many random rows of a label have as much doubt.

        The smallest p-value of three tests, times three: the rank sum (Mann and Whitney 1947, normal approximation),
        and the numbers of rows among the 5 and the 20 % with the most doubt. 1 if the label has hardly any other rows.
        """
        from scipy.stats import binom, norm

        few, many = len(rows), int(self._sizes_C[label])
        if many - few < _MIN_OTHERS:
            return 1.0
        ranks_n = self._ranks_N[rows]
        centred = ranks_n.sum() - few * (many + 1) / 2
        spread = np.sqrt(few * (many - few) * (many + 1) / 12)
        top_n = 1 - ranks_n / many
        tails = [float(binom.sf((top_n < tail).sum() - 1, few, tail)) for tail in _TAILS]
        return min(1.0, 3 * min(float(norm.sf(centred / spread)), *tails))


def spectral_scores(states_NH: NDArray[np.floating], labels_N: NDArray[np.int64]) -> Floats:
    """Return each row's squared projection on the first principal direction of its label, in units of their median.

    Source: Tran, Li and Madry 2018, arXiv:1811.00636, algorithm 1.
    """
    scores_N = np.zeros(len(labels_N))
    for label in np.unique(labels_N):
        rows = np.flatnonzero(labels_N == label)
        _, _, directions = np.linalg.svd(centred := _centred(states_NH[rows]), full_matrices=False)
        size_n = (centred @ directions[0]) ** 2
        scores_N[rows] = size_n / max(float(np.median(size_n)), 1e-12)
    return scores_N


def state_clusters(states_NH: NDArray[np.floating], labels_N: NDArray[np.int64]) -> list[Cluster]:
    """Return the smaller of two clusters of each label's states, if it is small and well separated.

    The rows of a label are split by k-means on their ten first principal components. The smaller part is a cluster if
    it has at most 35 % of the rows and a mean silhouette of at least .15.

    Source: Chen et al. 2018, arXiv:1811.03728, with principal instead of independent components.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_samples

    clusters = []
    for label in np.unique(labels_N).tolist():
        rows = np.flatnonzero(labels_N == label)
        if len(rows) < _MIN_ROWS:
            continue
        left, sizes, _ = np.linalg.svd(_centred(states_NH[rows]), full_matrices=False)
        points = left[:, :_DIRECTIONS] * sizes[:_DIRECTIONS]
        if np.ptp(points, axis=0).max() == 0:
            continue
        means = KMeans(2, init="random", n_init=_STARTS, max_iter=_ROUNDS, random_state=0)
        smaller = means.fit_predict(points).astype(bool)
        if smaller.sum() > len(rows) / 2:
            smaller = ~smaller
        is_small = 0 < smaller.sum() <= _MINORITY * len(rows)
        if is_small and silhouette_samples(points, smaller)[smaller].mean() >= _SEPARATED:
            clusters.append(Cluster((), label, rows[smaller]))
    return clusters


def _centred(states: NDArray[np.floating]) -> Floats:
    centred: Floats = states.astype(np.float64) - states.mean(axis=0)
    return centred
