"""Kinds of ids in a vocabulary: special tokens, pieces that begin a word, and pieces that continue one.

Shapes: n tokens of a sequence, U words, V vocabulary.
"""

import numpy as np
from numpy.typing import NDArray

from bothways.text import TextTokenizer


class PieceKinds:
    """The kinds of a tokenizer's ids.

    Args:
        tokenizer: The tokenizer.

    Attributes:
        special_V: Which ids are special tokens.
        ordinary: All other ids.
        continues_V: Which ids go on with a word.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        known = tokenizer.vocabulary()
        self.special_V = np.zeros(1 + max(known), dtype=bool)
        self.special_V[sorted(tokenizer.special_ids)] = True
        self.ordinary = np.array(sorted(known.keys() - tokenizer.special_ids), dtype=np.int32)
        self.continues_V = np.zeros_like(self.special_V)
        self.continues_V[[number for number, piece in known.items() if tokenizer.word_marks.continues(piece)]] = True

    def ordinary_places(self, ids_n: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return where ordinary tokens stand in a sequence."""
        places: NDArray[np.int64] = np.flatnonzero(~self.special_V[ids_n])
        return places

    def words(self, ids_n: NDArray[np.int32], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where words begin among the ordinary tokens, and at last how many tokens there are (U + 1)."""
        begins = ~self.continues_V[ids_n[places]]
        # What stands behind a special token begins a word, whatever it is.
        begins[1:] |= np.diff(places) > 1
        begins[:1] = True
        return np.append(np.flatnonzero(begins), len(places))
