"""Corrupted sequences: the tokens that a model reads, and those that it has to predict.

Shapes: n tokens of a sequence, M predicted ones, U words, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bothways.text import TextTokenizer


@dataclass(frozen=True, slots=True)
class MaskedTokens:
    """A sequence with some of its tokens hidden.

    Attributes:
        ids_n: The ids that the model reads.
        places_M: The chosen positions, ascending; at least one if there is an ordinary token.
        targets_M: The original ids at these positions.
        uniform_M: A random number in [0, 1) for each, to draw a generator's token.
        order_n: Position of each token in a factorisation order, see `bothways.encoder.query_stream.QueryStream`; None
            for masked language modelling.
    """

    ids_n: NDArray[np.int32]
    places_M: NDArray[np.int64]
    targets_M: NDArray[np.int32]
    uniform_M: NDArray[np.float32]
    order_n: NDArray[np.int64] | None = None


class Corruption(Protocol):
    """Chooses the tokens of a sequence that a model has to predict.

    A choice depends on the seed, the epoch and the sequence alone, not on the batch or on earlier draws, so a resumed
    run sees the choices of an uninterrupted one.

    Attributes:
        seed: Seed of all draws.
        identity: Settings that a resumed run must share.
    """

    @property
    def seed(self) -> int: ...  # noqa: D102 (above)

    @property
    def identity(self) -> Mapping[str, str | int | float | bool]: ...  # noqa: D102 (above)

    def training(self, ids_n: NDArray[np.int32], epoch: int, sequence: int) -> MaskedTokens:
        """Choose the targets of an epoch."""

    def validation(self, ids_n: NDArray[np.int32], sequence: int) -> MaskedTokens:
        """Choose the targets of a validation sequence, always the same."""


class Unmasked:
    """Unchanged sequences without targets (M = 0)."""

    seed = 0

    @property
    def identity(self) -> Mapping[str, str | int | float | bool]:
        """Settings that a resumed run must share."""
        return {"chosen tokens": 0.0}

    def training(self, ids_n: NDArray[np.int32], epoch: int, sequence: int) -> MaskedTokens:
        """Return the sequence unchanged."""
        del epoch
        return self.validation(ids_n, sequence)

    def validation(self, ids_n: NDArray[np.int32], sequence: int) -> MaskedTokens:
        """Return the sequence unchanged."""
        del sequence
        return MaskedTokens(ids_n, np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))


class PieceKinds:
    """The kinds of a tokenizer's ids: special tokens, pieces that begin a word, and pieces that continue one.

    Args:
        tokenizer: The tokenizer.

    Attributes:
        special_V: True for special tokens.
        ordinary: All other ids.
        continues_V: True for pieces that continue a word.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        known = tokenizer.vocabulary()
        self.special_V = np.zeros(1 + max(known), dtype=bool)
        self.special_V[sorted(tokenizer.special_ids)] = True
        self.ordinary = np.array(sorted(known.keys() - tokenizer.special_ids), dtype=np.int32)
        self.continues_V = np.zeros_like(self.special_V)
        self.continues_V[[number for number, piece in known.items() if tokenizer.word_marks.continues(piece)]] = True

    def ordinary_places(self, ids_n: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the positions of ordinary tokens in a sequence."""
        places: NDArray[np.int64] = np.flatnonzero(~self.special_V[ids_n])
        return places

    def words(self, ids_n: NDArray[np.int32], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the starts of words among the ordinary tokens, then the number of tokens (U + 1)."""
        begins = ~self.continues_V[ids_n[places]]
        # A piece after a special token always begins a word.
        begins[1:] |= np.diff(places) > 1
        begins[:1] = True
        return np.append(np.flatnonzero(begins), len(places))
