"""Batches for an encoder, packed or with their padding kept, and selections of rows of the last layer.

A graph of the encoder is recorded once and run on batches of all shapes, so it keeps the padding.

Shapes: B sequences, S longest sequence, T packed tokens, or B S rows with padding, M selected rows.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from bothways.packing import Packed, TokenRows, summing_type


@dataclass(frozen=True, slots=True)
class PaddedRows(TokenRows):
    """A batch whose padding is kept: row ``b S + s`` is place s of sequence b; `mask_BS` is True for tokens.

    Lengths are unknown on the host, so that a graph can be recorded once for all batches. Only the attention backend
    ``padded`` supports it.
    """

    mask_BS: Tensor

    @classmethod
    def of(cls, input_ids_BS: Tensor, attention_mask_BS: Tensor, token_type_ids_BS: Tensor | None = None) -> Self:
        """Flatten a padded batch into rows; segment ids are 0 when left out.

        Positions count the real tokens, so padding may stand on the left or on the right.
        """
        count, longest = input_ids_BS.shape
        types_BS = torch.zeros_like(input_ids_BS) if token_type_ids_BS is None else token_type_ids_BS
        mask_BS = attention_mask_BS != 0
        positions_BS = (mask_BS.cumsum(1) - 1).clamp(min=0)
        starts = torch.arange(count + 1, device=input_ids_BS.device, dtype=torch.int32) * longest
        ids_T, types_T, positions_T = input_ids_BS.flatten(), types_BS.flatten(), positions_BS.flatten()
        return cls(ids_T, types_T, positions_T, starts, mask_BS)

    @property
    def count(self) -> int:
        """Number of sequences, B."""
        return self.mask_BS.shape[0]

    @property
    def max_length(self) -> int:
        """Length with padding, S."""
        return self.mask_BS.shape[1]

    def hides(self, reach: int) -> bool:
        """Return True, since a graph for all lengths cannot tell."""
        del reach
        return True

    @property
    def lengths_B(self) -> Tensor:
        """Number of tokens of each sequence without padding, int64."""
        return self.mask_BS.sum(1)

    @property
    def sequence_T(self) -> Tensor:
        """Number of each row's sequence, int64."""
        return torch.arange(self.count, device=self.mask_BS.device)[:, None].expand(self.mask_BS.shape).flatten()

    @property
    def real_BS(self) -> Tensor:
        """True for tokens, False for padding."""
        return self.mask_BS

    @property
    def first_tokens_B(self) -> Tensor:
        """Row of each sequence's first token, int64."""
        return self.cu_seqlens[:-1].long() + self.mask_BS.long().argmax(1)

    @property
    def last_tokens_B(self) -> Tensor:
        """Row of each sequence's last token, int64."""
        return self.cu_seqlens[1:].long() - 1 - self.mask_BS.flip(1).long().argmax(1)

    def padded(self, values_T: Tensor, fill: float = 0.0) -> Tensor:
        """Reshape rows (B S, ...) to (B, S, ...), with ``fill`` in the padding."""
        values_BS = values_T.view(self.count, self.max_length, *values_T.shape[1:])
        mask_BS = self.mask_BS[(...,) + (None,) * (values_BS.dim() - 2)]
        return torch.where(mask_BS, values_BS, fill)

    def rows(self, values_BS: Tensor) -> Tensor:
        """Reshape (B, S, ...) to rows (B S, ...)."""
        # A copy, which a graph drops: it must not rely on how the kernel that recorded it lays out its result.
        return values_BS.clone(memory_format=torch.contiguous_format).flatten(0, 1)

    def blanked(self, values_T: Tensor) -> Tensor:
        """Zero the rows of the padding."""
        return self.rows(self.padded(values_T))

    def sums(self, values_TH: Tensor) -> Tensor:
        """Sum the tokens of each sequence, (B, H), in float32 or finer."""
        return self.padded(values_TH).sum(1, dtype=summing_type(values_TH.dtype))

    def to(self, device: torch.device | str) -> "PaddedRows":
        """Move to a device."""
        return PaddedRows(
            self.ids_T.to(device),
            self.types_T.to(device),
            self.positions_T.to(device),
            self.cu_seqlens.to(device),
            self.mask_BS.to(device),
        )


Batch = Packed | PaddedRows


# --- rows of the last layer; the others are not computed to the end ---


@dataclass(frozen=True, slots=True)
class AllRows:
    """Every token, as pooling by the mean needs."""


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """The first token of each sequence, for classification; it alone has a query, while all tokens have keys."""


@dataclass(frozen=True, slots=True)
class LastTokens:
    """The last token of each sequence, XLNet's classification token."""


@dataclass(frozen=True, slots=True)
class SelectedRows:
    """Some rows of the packed batch, for masked language modelling."""

    rows_M: Tensor


@dataclass(frozen=True, slots=True)
class NoRows:
    """No token, for query streams or earlier states; the last layer is skipped."""


Rows = AllRows | FirstTokens | LastTokens | SelectedRows | NoRows

ALL_ROWS, FIRST_TOKENS, LAST_TOKENS, NO_ROWS = AllRows(), FirstTokens(), LastTokens(), NoRows()


def select(values_TH: Tensor, rows: Rows, batch: Batch) -> Tensor:
    """Return the selected rows of a packed tensor: (T, ...), (B, ...) or (M, ...)."""
    match rows:
        case AllRows():
            return values_TH
        case FirstTokens():
            return values_TH[batch.first_tokens_B]
        case LastTokens():
            return values_TH[batch.last_tokens_B]
        case SelectedRows(rows_M):
            return values_TH[rows_M]
        case NoRows():
            return values_TH[:0]
