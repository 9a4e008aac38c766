"""The order of the items in each pass over a source: a keyed permutation that is computed position by position.

It is the swap-or-not shuffle (Hoang, Morris & Rogaway 2012, arXiv:1208.1176, figure 1). In each round an item has a
partner, the key minus its number modulo N, and the pair swaps or not by a bit that is a function of the pair alone.
That is a bijection of any N numbers without a table: a pass over a billion sequences takes no memory, and a run can go
on at any position.

Shapes: N items, M requested ones.
"""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray


class PassOrder:
    """A random order of N items in each pass.

    Args:
        items: N.
        seed: Orders each pass, together with its number.
    """

    name: ClassVar = "swap-or-not"

    def __init__(self, items: int, seed: int) -> None:
        self._items, self._seed = items, seed

    def of(self, epoch: int, begin: int, end: int) -> NDArray[np.int64]:
        """Return the items at the positions from ``begin`` to ``end`` of a pass (M), fewer at its end."""
        # NumPy guarantees the words of a seed sequence for all versions, but not those of its generators.
        words = np.random.SeedSequence([self._seed, epoch]).generate_state(2 * _ROUNDS, np.uint64)
        items_M = np.arange(begin, min(end, self._items))
        for key, salt in zip((words[:_ROUNDS] % np.uint64(self._items)).tolist(), words[_ROUNDS:], strict=True):
            partners_M = key - items_M
            partners_M += (partners_M < 0) * self._items
            bits_M = _top_bits(np.maximum(items_M, partners_M).astype(np.uint64) + salt)
            items_M = np.where(bits_M, partners_M, items_M)
        return items_M


def _top_bits(words_M: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Hash each word to a bit that depends on all of its bits (Steele et al. 2014, SplitMix64's finalizer)."""
    words_M = (words_M ^ (words_M >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words_M = (words_M ^ (words_M >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((words_M ^ (words_M >> np.uint64(31))) >> np.uint64(63), dtype=bool)


_ROUNDS = 48
"""After r rounds an item is at each position with probability 1 / N, to within 2 ** -r; a round takes 20 µs."""
