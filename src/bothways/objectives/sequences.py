"""Sequences of tokens that an encoder is pre-trained on, and the batches that they become.

Shapes: n tokens of a sequence, B sequences of a batch, T packed tokens, M chosen places, W windows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.data.windows import WindowStore
from bothways.devices import on_device
from bothways.errors import InvalidInput
from bothways.objectives.masking import MaskedTokens, Masker
from bothways.packing import Packed, pack


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One sequence, special tokens included.

    Attributes:
        ids: Token ids (n).
        types: Segment ids (n).
        number: Its place in the source; what is drawn for it depends on that.
        relation: What stands between its two segments, for a head that tells; -1 where there is one segment.
    """

    ids: NDArray[np.int32]
    types: NDArray[np.uint8]
    number: int
    relation: int = -1


class SequenceSource(Protocol):
    """Where sequences come from.

    Attributes:
        digest: A checksum of what they are made of.
    """

    @property
    def digest(self) -> str: ...  # noqa: D102 (above)

    def __len__(self) -> int:
        """Return how many sequences an epoch has."""

    def read(self, places: Sequence[int] | NDArray[np.int64], epoch: int) -> list[TrainingSequence]:
        """Return the sequences at some places, from 0; what is drawn for them depends on the epoch."""


class TextWindows:
    """The windows of raw texts that have a token to mask.

    Args:
        store: The windows.
        masker: Knows which tokens are special.
        what: The texts, for messages.

    Raises:
        InvalidInput: None has one.
    """

    def __init__(self, store: WindowStore, masker: Masker, what: str) -> None:
        self.store = store
        self.windows_W: NDArray[np.int64] = np.flatnonzero(masker.ordinary_tokens(store))
        if not len(self.windows_W):
            raise InvalidInput(
                f"there is nothing to mask in the {what} texts: all of their tokens are special ones, such as the one "
                "for unknown words. Check that the model's tokenizer is for this language."
            )

    @property
    def digest(self) -> str:
        """A checksum of the tokens and of where windows start."""
        return self.store.digest

    def __len__(self) -> int:
        """Return how many windows there are."""
        return len(self.windows_W)

    def read(self, places: Sequence[int] | NDArray[np.int64], epoch: int) -> list[TrainingSequence]:
        """Return some windows, which are the same in each epoch."""
        del epoch
        stored = self.store.windows(self.windows_W[places].tolist())
        return [TrainingSequence(each.ids, each.types, each.number) for each in stored]


@dataclass(frozen=True, slots=True)
class MaskedBatch:
    """Sequences with masks, what stood there, and what stands between the segments of each.

    Attributes:
        packed: What the model reads.
        rows_M: Rows of the chosen places.
        targets_M: What stood there.
        relations_B: 0 or 1 for each sequence; -1 where it has one segment.
    """

    packed: Packed
    rows_M: Tensor
    targets_M: Tensor
    relations_B: Tensor

    @classmethod
    def of(cls, sequences: Sequence[TrainingSequence], masked: Sequence[MaskedTokens]) -> "MaskedBatch":
        """Pack sequences with their masks, on the CPU."""
        packed = pack([each.ids_n for each in masked], [each.types for each in sequences])
        relations_B = torch.tensor([each.relation for each in sequences])
        return cls(packed, *chosen_places(packed, masked), relations_B)

    def to(self, device: torch.device | str) -> "MaskedBatch":
        """Return the same batch on another device."""
        moved = (on_device(each, device) for each in (self.rows_M, self.targets_M, self.relations_B))
        return MaskedBatch(self.packed.to(device), *moved)


def masked_pack(packed: Packed, masked: Sequence[MaskedTokens]) -> tuple[Packed, Tensor, Tensor]:
    """Return a packed batch with the masks of its first sequences, and `chosen_places`, all on its device."""
    device = packed.ids_T.device
    read_T = on_device(np.concatenate([one.ids_n for one in masked]).astype(np.int64), device)
    ids_T = torch.cat([read_T, packed.ids_T[len(read_T) :]])
    rows_M, targets_M = chosen_places(packed, masked)
    return replace(packed, ids_T=ids_T), on_device(rows_M, device), on_device(targets_M, device)


def chosen_places(packed: Packed, masked: Sequence[MaskedTokens]) -> tuple[Tensor, Tensor]:
    """Return the rows of the chosen places (M), and what stood there (M), on the CPU."""
    starts = np.cumsum([0, *packed.lengths[:-1]])[: len(masked)]
    rows_M = np.concatenate([start + one.places_M for start, one in zip(starts, masked, strict=True)])
    targets_M = np.concatenate([one.targets_M for one in masked]).astype(np.int64)
    return torch.from_numpy(rows_M), torch.from_numpy(targets_M)
