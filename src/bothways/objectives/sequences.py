"""Sequences of tokens that an encoder is pre-trained on, and the batches that they become.

Shapes: n tokens of a sequence, B sequences of a batch, P of them with two segments, T packed tokens, M chosen places,
W windows.
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
from bothways.packing import Packed


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One sequence, special tokens included.

    Attributes:
        ids: Token ids (n).
        types: Segment ids (n).
        number: Its place in the source, part of the seed of its masks.
        relation: Class of the relation between its two segments; -1 with one segment.
    """

    ids: NDArray[np.int32]
    types: NDArray[np.uint8]
    number: int
    relation: int = -1


class SequenceSource(Protocol):
    """A source of training sequences.

    Attributes:
        digest: A checksum of its contents.
    """

    @property
    def digest(self) -> str: ...  # noqa: D102 (above)

    def __len__(self) -> int:
        """Return the number of sequences in an epoch."""

    def read(self, places: Sequence[int] | NDArray[np.int64], epoch: int) -> list[TrainingSequence]:
        """Return the sequences at some places, from 0; random ones depend on the epoch."""


class TextWindows:
    """Windows of raw texts that have a token to mask.

    Args:
        store: The windows.
        masker: Knows the special tokens.
        what: Name of the texts for messages.

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
        """Return the number of windows."""
        return len(self.windows_W)

    def read(self, places: Sequence[int] | NDArray[np.int64], epoch: int) -> list[TrainingSequence]:
        """Return some windows, which are the same in each epoch."""
        del epoch
        stored = self.store.windows(self.windows_W[places].tolist())
        return [TrainingSequence(each.ids, each.types, each.number) for each in stored]


@dataclass(frozen=True, slots=True)
class MaskedBatch:
    """Masked sequences and the targets of the heads that read them.

    Attributes:
        packed: The model's input.
        rows_M: Rows of the chosen places.
        targets_M: The ids that stood there.
        pairs_P: Numbers of the sequences that have two segments.
        relations_P: Classes of the relations between these, 0 or 1.
    """

    packed: Packed
    rows_M: Tensor
    targets_M: Tensor
    pairs_P: Tensor
    relations_P: Tensor

    @classmethod
    def of(cls, packed: Packed, sequences: Sequence[TrainingSequence], masked: Sequence[MaskedTokens]) -> "MaskedBatch":
        """Mask a packed batch; everything lies on its device.

        Args:
            packed: The sequences as they are; some of one token may follow them.
            sequences: The same, before they were packed.
            masked: Their masks.
        """
        starts = np.cumsum([0, *packed.lengths[:-1]])[: len(masked)]
        rows_M = np.concatenate([start + one.places_M for start, one in zip(starts, masked, strict=True)])
        targets_M = np.concatenate([one.targets_M for one in masked])
        read_T = np.concatenate([one.ids_n for one in masked])
        relations_B = np.array([each.relation for each in sequences], dtype=np.int64)
        pairs_P = np.flatnonzero(relations_B >= 0)
        moved = (
            on_device(each.astype(np.int64), packed.ids_T.device)
            for each in (rows_M, targets_M, pairs_P, relations_B[pairs_P], read_T)
        )
        *places, ids_T = moved
        return cls(replace(packed, ids_T=torch.cat([ids_T, packed.ids_T[len(ids_T) :]])), *places)

    def to(self, device: torch.device | str) -> "MaskedBatch":
        """Return the same batch on another device."""
        moved = (on_device(each, device) for each in (self.rows_M, self.targets_M, self.pairs_P, self.relations_P))
        return MaskedBatch(self.packed.to(device), *moved)
