"""Windows, and batches of them by token budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InvalidInput

if TYPE_CHECKING:
    import torch

# On a CPU a batch should stay near the caches; a GPU wants to be filled.
CPU_TOKENS = 2048
GPU_TOKENS = 32768


Row: TypeAlias = NDArray[np.float32]
"""The numbers that a model gives for one window: (K), or (n, K) with a row for each of its tokens."""


class TokenIds(Protocol):
    """The token ids and segment ids of one window: lists of int, or arrays."""

    @property
    def ids(self) -> Sequence[int] | NDArray[np.integer]:
        """Token ids (n)."""

    @property
    def types(self) -> Sequence[int] | NDArray[np.integer]:
        """Segment ids (n)."""


class TokenBudget:
    """The maximum tokens of a batch, lowered for good when memory runs out.

    Several runners and threads may share one, and it can be pickled.

    Args:
        tokens: The initial budget.

    Attributes:
        tokens: The present budget.

    Raises:
        InvalidInput: It is below 1.
    """

    def __init__(self, tokens: int) -> None:
        if tokens < 1:
            raise InvalidInput(f"tokens must be at least 1, but it is {tokens}.")
        self.tokens = tokens
        self._lock = Lock()

    @classmethod
    def of(cls, tokens: int | TokenBudget | None, device: torch.device) -> TokenBudget:
        """Return the given budget, or a new one of this many tokens or of the device's default."""
        if isinstance(tokens, TokenBudget):
            return tokens
        return cls((CPU_TOKENS if device.type == "cpu" else GPU_TOKENS) if tokens is None else tokens)

    def lower(self, tokens: int) -> None:
        """Lower the budget to this many tokens from now on; a lower one stays."""
        with self._lock:
            self.tokens = min(self.tokens, tokens)

    def __reduce__(self) -> tuple[type[TokenBudget], tuple[int]]:
        return TokenBudget, (self.tokens,)


def by_token_budget(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yield indices of sequences, batch by batch: the longest first, neighbours of similar length, within the budget.

    A sequence that is longer than the budget forms a batch of its own.

    >>> list(by_token_budget([3, 9, 4, 2], budget=10))
    [[1], [2, 0, 3]]
    """
    batch: list[int] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if batch and tokens + lengths[index] > budget:
            yield batch
            batch, tokens = [], 0
        batch.append(index)
        tokens += lengths[index]
    if batch:
        yield batch


def by_padded_budget(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yield indices of sequences, batch by batch: the longest first, each within the budget when it is padded.

    A sequence that is longer than the budget forms a batch of its own.

    >>> list(by_padded_budget([3, 9, 4, 2], budget=10))
    [[1], [2, 0], [3]]
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if batch and (len(batch) + 1) * lengths[batch[0]] > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
