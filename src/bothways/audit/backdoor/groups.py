"""Groups of rows that share a label and something else, and the test whether they are doubted more than others.

Shapes: N rows, C labels, n rows of a label, P phrases of a label.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.audit.backdoor.remainder import PurePhrase

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

_MOST = 1500
"""Phrases of a label that are compared with each other, those that are least like chance first."""
_TOGETHER, _FEWEST_TOGETHER = 5.0, 3
"""Standard deviations above chance, and rows, from which two phrases come together."""
_TAILS = (0.05, 0.2)
_FEWEST_OTHERS = 5
_CLEAR = 0.5
"""Doubt from which a row clearly speaks for another label."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Rows of one label that share something.

    Attributes:
        name: The phrase that they share, or a description.
        members: The phrases of the group.
        label: Number of the label.
        rows: The rows.
    """

    name: str
    members: tuple[str, ...]
    label: int
    rows: Rows


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A group with its test.

    Attributes:
        group: The group.
        contradicted: Rows of it that clearly speak for another label.
        p_value: Probability that as many rows of the label, drawn at random, are doubted as much, times the number of
            groups; at most 1.
    """

    group: Group
    contradicted: int
    p_value: float


def groups_of(phrases: Sequence[PurePhrase], labels_N: NDArray[np.int64]) -> list[Group]:
    """Return a group for each phrase, and one for each set of phrases that come together; each set of rows once."""
    found: dict[tuple[int, bytes], Group] = {}
    for label in np.unique(labels_N).tolist():
        of_label = sorted((each for each in phrases if each.label == label), key=lambda each: each.chance)
        for each in of_label:
            found.setdefault((label, each.rows.tobytes()), Group(each.phrase, (each.phrase,), label, each.rows))
        for group in _families(of_label[:_MOST], np.flatnonzero(labels_N == label)):
            found.setdefault((label, group.rows.tobytes()), group)
    return list(found.values())


def _families(phrases: Sequence[PurePhrase], rows_n: Rows) -> list[Group]:
    """Return for each phrase the group of those that come together with it."""
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
    together_PP = (both_PP >= _FEWEST_TOGETHER) & (both_PP - chance_PP > _TOGETHER * spread_PP)
    np.fill_diagonal(together_PP, True)
    made = []
    for number, each in enumerate(phrases):
        others = np.flatnonzero(together_PP[number]).tolist()
        rows = rows_n[has_Pn[others].any(axis=0)]
        if len(rows) > len(each.rows):
            named = sorted(others, key=lambda other: (other != number, -counts_P[other]))
            made.append(Group(each.phrase, tuple(phrases[other].phrase for other in named), each.label, rows))
    return made


class Doubts:
    """The doubt of all rows, by which groups are judged.

    Args:
        doubt_N: By how much each row speaks for another label, in units of what rows usually say for their own.
        labels_N: The label of each.
    """

    def __init__(self, doubt_N: Floats, labels_N: NDArray[np.int64]) -> None:
        self.doubt_N, self._sizes_C = doubt_N, np.bincount(labels_N)
        self._ranks_N = np.empty(len(doubt_N))
        for label in np.unique(labels_N):
            rows = np.flatnonzero(labels_N == label)
            self._ranks_N[rows[np.argsort(doubt_N[rows], kind="stable")]] = np.arange(1, len(rows) + 1)

    def p_value(self, rows: Rows, label: int) -> float:
        """Return the probability that as many rows of a label, drawn at random, are doubted as much.

        It is the least of three, times three: of the rank sum (Mann and Whitney 1947, normal approximation), and of the
        numbers of rows among the 5 and the 20 % that are most doubted. 1 if the label has hardly any other rows.
        """
        from scipy.stats import binom, norm

        few, many = len(rows), int(self._sizes_C[label])
        if many - few < _FEWEST_OTHERS:
            return 1.0
        ranks_n = self._ranks_N[rows]
        centred = ranks_n.sum() - few * (many + 1) / 2
        spread = np.sqrt(few * (many - few) * (many + 1) / 12)
        top_n = 1 - ranks_n / many
        tails = [float(binom.sf((top_n < tail).sum() - 1, few, tail)) for tail in _TAILS]
        return min(1.0, 3 * min(float(norm.sf(centred / spread)), *tails))

    def judged(self, groups: Sequence[Group], check: Callable[[], None]) -> list[Judged]:
        """Return the groups, the most significant first."""
        found = []
        for number, group in enumerate(groups):
            if number % 200 == 0:
                check()
            p_value = min(1.0, self.p_value(group.rows, group.label) * len(groups))
            found.append(Judged(group, int((self.doubt_N[group.rows] > _CLEAR).sum()), p_value))
        return sorted(found, key=lambda each: (each.p_value, -len(each.group.rows), each.group.name))
