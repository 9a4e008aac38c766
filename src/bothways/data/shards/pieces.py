"""Pieces of the documents of a corpus, in groups, and the part of them that is held out.

Shapes: P pieces, G groups of pieces, D documents.
"""

import hashlib
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Pieces:
    """Runs of tokens of one document each, in the order of the corpus.

    Attributes:
        shard_P: Number of the shard of each.
        begin_P: Begin of each in its shard.
        length_P: Tokens of each.
        document_P: Number of the document of each, ascending.
        groups: Begin of each group of pieces among them, and at last P (G + 1).
        longest: Maximum tokens of a piece, and of a group.
    """

    shard_P: NDArray[np.int32]
    begin_P: NDArray[np.int64]
    length_P: NDArray[np.int32]
    document_P: NDArray[np.int64]
    groups: NDArray[np.int64]
    longest: int

    @property
    def count(self) -> int:
        return len(self.length_P)

    @property
    def group_count(self) -> int:
        """Number of groups."""
        return len(self.groups) - 1

    def digest(self) -> str:
        sums = hashlib.sha256()
        for array in (self.shard_P, self.begin_P, self.length_P, self.document_P, self.groups):
            sums.update(array.data)
        return sums.hexdigest()

    def of_groups(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of the pieces of some groups, group by group."""
        return runs(self.groups[places], self.groups[places + 1] - self.groups[places])

    def continued(self) -> NDArray[np.bool_]:
        """Return True for each group (G) that begins with the document at the end of the group before it."""
        first_G = self.groups[:-1]
        found_G: NDArray[np.bool_] = (self.document_P[first_G] == self.document_P[first_G - 1]) & (first_G > 0)
        return found_G

    def hold_out(self, fraction: float, seed: int) -> tuple["Pieces", "Pieces"]:
        """Split the documents at random into a training and a validation part, and group the pieces of each anew.

        Held out are as many documents as fit into the ``fraction`` of the tokens, at least two if there are four or
        more, which pairs of segments are drawn from, else one.

        Raises:
            InvalidInput: The fraction is out of range, or there is only one document.
        """
        if not 0 < fraction < 1:
            raise InvalidInput(f"expected a share to hold out above 0 and below 1, got {fraction}.")
        _, document_P = np.unique(self.document_P, return_inverse=True)
        tokens_D = np.bincount(document_P, weights=self.length_P)
        if len(tokens_D) < 2:
            raise InvalidInput("expected at least 2 documents to hold some out, got 1: train without validation.")
        order_D = np.random.default_rng([seed, len(tokens_D)]).permutation(len(tokens_D))
        taken = np.searchsorted(np.cumsum(tokens_D[order_D]), fraction * tokens_D.sum(), side="right")
        is_held_D = np.zeros(len(tokens_D), dtype=bool)
        is_held_D[order_D[: max(2 if len(tokens_D) > 3 else 1, taken)]] = True
        is_held_P = is_held_D[document_P]
        return self._select(~is_held_P), self._select(is_held_P)

    def _select(self, kept_P: NDArray[np.bool_]) -> "Pieces":
        length_P, groups = self.length_P[kept_P], group(self.length_P[kept_P], self.longest)
        document_P = self.document_P[kept_P]
        return Pieces(self.shard_P[kept_P], self.begin_P[kept_P], length_P, document_P, groups, self.longest)


def runs(begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Concatenate runs of numbers that count up.

    >>> runs(np.array([7, 2]), np.array([2, 3])).tolist()
    [7, 8, 2, 3, 4]
    """
    return np.repeat(begins - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())


def group(length_P: NDArray[np.int32], longest: int) -> NDArray[np.int64]:
    """Return the starts of runs of neighbours with at most ``longest`` tokens, and at last P (G + 1)."""
    starts, totals = [0], np.cumsum(length_P, dtype=np.int64).tolist()
    while starts[-1] < len(totals):
        before = totals[starts[-1] - 1] if starts[-1] else 0
        starts.append(max(starts[-1] + 1, bisect_right(totals, before + longest, starts[-1])))
    return np.array(starts, dtype=np.int64)
