"""Corrupted sequences: the tokens that a model reads, and those that it has to predict.

Shapes: n tokens of a sequence, M predicted ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class MaskedTokens:
    """A sequence with some of its tokens hidden.

    Attributes:
        ids_n: The ids that the model reads.
        places_M: The chosen places, ascending; at least one where there is an ordinary token.
        targets_M: The ids that stood there.
        uniform_M: A random number in [0, 1) for each, from which a generator's token may be drawn.
        order_n: Place of each token in a factorisation order, see `bothways.encoder.query_stream.QueryStream`; None
            where chosen tokens are hidden by what stands in their place.
    """

    ids_n: NDArray[np.int32]
    places_M: NDArray[np.int64]
    targets_M: NDArray[np.int32]
    uniform_M: NDArray[np.float32]
    order_n: NDArray[np.int64] | None = None


class Corruption(Protocol):
    """Chooses the tokens of a sequence that a model has to predict.

    A choice depends on the seed, the epoch and the sequence alone: not on the batch, nor on what was drawn before, so
    that a resumed run sees the choices of an uninterrupted one.

    Attributes:
        seed: Seed of all draws.
        identity: Settings that a resumed run must share.
    """

    @property
    def seed(self) -> int: ...  # noqa: D102 (above)

    @property
    def identity(self) -> Mapping[str, str | int | float | bool]: ...  # noqa: D102 (above)

    def training(self, ids_n: NDArray[np.int32], epoch: int, sequence: int) -> MaskedTokens:
        """Choose for an epoch."""

    def validation(self, ids_n: NDArray[np.int32], sequence: int) -> MaskedTokens:
        """Choose for a validation sequence: always the same."""


class Unmasked:
    """Sequences as they are, with no chosen place (M = 0)."""

    seed = 0

    @property
    def identity(self) -> Mapping[str, str | int | float | bool]:
        """No chosen tokens."""
        return {"chosen tokens": 0.0}

    def training(self, ids_n: NDArray[np.int32], epoch: int, sequence: int) -> MaskedTokens:
        """Return a sequence as it is."""
        del epoch
        return self.validation(ids_n, sequence)

    def validation(self, ids_n: NDArray[np.int32], sequence: int) -> MaskedTokens:
        """Return a sequence as it is."""
        del sequence
        return MaskedTokens(ids_n, np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
