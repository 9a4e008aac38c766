"""Batches of tokens, either packed or with their padding kept, and the rows that the last layer computes.

Packed sequences lie end to end in one dimension; ``cu_seqlens`` has their starts. Padding exists only in the inputs of
`unpad`, the results of `to_padded`, and exported graphs, which are traced once and run on batches of all shapes.

Shapes: B sequences, S longest sequence, T packed tokens, or B S rows with padding; M selected rows.
"""

from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Self, TypeAlias, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.devices import on_device
from bothways.errors import InvalidInput

V = TypeVar("V")

Ids: TypeAlias = Sequence[int] | NDArray[np.integer]
"""Token ids or segment ids of one sequence."""


@dataclass(frozen=True, slots=True)
class TokenRows:
    """The rows of a batch, one for each token, with a cache of tensors derived from them.

    Attributes:
        ids_T: Token ids, int64.
        types_T: Segment ids (0 for the first text of a pair, 1 for the second), int64.
        positions_T: Position of each token in its own sequence, from 0, int64.
        cu_seqlens: Start of each sequence, then T: ``[0, n_0, n_0 + n_1, ...]``, int32, B + 1 long, on the device.
    """

    ids_T: Tensor
    types_T: Tensor
    positions_T: Tensor
    cu_seqlens: Tensor
    _known: dict[Hashable, object] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, work: Callable[..., V], *arguments: Hashable) -> V:
        """Return ``work(self, *arguments)``, computed on the first call only, so that all layers share the result."""
        key = work, *arguments
        if key not in self._known:
            # A result that is first computed in inference mode may be used again by a training step.
            with torch.inference_mode(mode=False) if torch.is_inference_mode_enabled() else nullcontext():
                self._known[key] = work(self, *arguments)
        return cast("V", self._known[key])


@dataclass(frozen=True, slots=True)
class Packed(TokenRows):
    """One batch of token sequences, laid end to end.

    `lengths` are on the host, so that nothing waits for the device; `max_length` is S.
    """

    lengths: tuple[int, ...]
    max_length: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_length", max(self.lengths, default=0))

    @property
    def count(self) -> int:
        """Number of sequences (B)."""
        return len(self.lengths)

    def hides(self, reach: int) -> bool:
        """Return True if local attention to ``reach`` tokens on either side may miss tokens of a sequence."""
        return reach < self.max_length - 1

    @property
    def lengths_B(self) -> Tensor:
        """Tokens of each sequence, int64, on the device."""
        return self.once(_lengths)

    @property
    def sequence_T(self) -> Tensor:
        """Index of each row's sequence, int64."""
        return self.once(_sequences)

    @property
    def real_BS(self) -> Tensor:
        """True for the tokens of the padded form, False for padding."""
        return self.once(_real)

    @property
    def first_tokens_B(self) -> Tensor:
        """Row of each sequence's first token, int64."""
        return self.cu_seqlens[:-1].long()

    @property
    def last_tokens_B(self) -> Tensor:
        """Row of each sequence's last token, int64."""
        return self.cu_seqlens[1:].long() - 1

    def padded(self, values_T: Tensor, fill: float = 0.0) -> Tensor:
        """Return rows of this batch (T, ...) as (B, S, ...) with ``fill`` in the padding."""
        shape = values_T.shape[1:]
        blank_R = values_T.new_full((self.count * self.max_length, *shape), fill)
        # This takes one operation on a GPU; `to_padded` takes one for each sequence.
        return blank_R.index_copy(0, self.once(_padded_index), values_T).view(self.count, self.max_length, *shape)

    def rows(self, values_BS: Tensor) -> Tensor:
        """Return padded values (B, S, ...) without padding, as rows (T, ...) of this batch."""
        return values_BS.flatten(0, 1).index_select(0, self.once(_padded_index))

    def blanked(self, values_T: Tensor) -> Tensor:
        """Return the rows unchanged, since a packed batch has no padding to set to zero."""
        return values_T

    def sums(self, values_TH: Tensor) -> Tensor:
        """Sum over the tokens of each sequence, (B, H), in float32 or a higher precision."""
        return sum_rows(values_TH, self.sequence_T, self.count)

    def to(self, device: torch.device | str) -> "Packed":
        """Return the same batch on another device."""
        return Packed(
            on_device(self.ids_T, device),
            on_device(self.types_T, device),
            on_device(self.positions_T, device),
            on_device(self.cu_seqlens, device),
            self.lengths,
        )


def pack(
    sequences: Sequence[Ids], types: Sequence[Ids] | None = None, device: torch.device | str | None = None
) -> Packed:
    """Lay token id lists end to end.

    >>> pack([[101, 7592, 102], [101, 102]]).cu_seqlens.tolist()
    [0, 3, 5]

    Segment ids are 0 by default; the default device is the CPU.
    """
    lengths = tuple(map(len, sequences))
    if not lengths or 0 in lengths:
        empty = lengths.index(0) if lengths else None
        found = "no sequence at all" if empty is None else f"sequence {empty} is empty"
        raise InvalidInput(f"pack expects sequences of at least one token each, but {found}.")
    if types is not None and tuple(map(len, types)) != lengths:
        raise InvalidInput("pack expects one segment id for each token, but the lengths of ids and types differ.")
    ids_T = _flat(sequences, sum(lengths))
    types_T = torch.zeros_like(ids_T) if types is None else _flat(types, sum(lengths))
    packed = Packed(ids_T, types_T, *_positions(lengths), lengths)
    return packed if device is None else packed.to(device)


def unpad(
    input_ids_BS: Tensor, attention_mask_BS: Tensor | None = None, token_type_ids_BS: Tensor | None = None
) -> Packed:
    """Drop the padding of a padded batch, on the left or on the right.

    The mask is 0 for padding; without a mask, no token is padding. Segment ids are 0 when left out.
    """
    if input_ids_BS.dim() != 2:
        raise InvalidInput(f"input_ids must have the shape (batch, sequence), but it is {tuple(input_ids_BS.shape)}.")
    mask_BS = torch.ones_like(input_ids_BS) if attention_mask_BS is None else attention_mask_BS
    types_BS = torch.zeros_like(input_ids_BS) if token_type_ids_BS is None else token_type_ids_BS
    for name, value in (("attention_mask", mask_BS), ("token_type_ids", types_BS)):
        if value.shape != input_ids_BS.shape:
            raise InvalidInput(
                f"{name} must have the shape of input_ids, {tuple(input_ids_BS.shape)}, but it is {tuple(value.shape)}."
            )
    real_BS = mask_BS != 0
    lengths = tuple(real_BS.sum(1).tolist())
    if 0 in lengths or not lengths:
        raise InvalidInput("each row of attention_mask must keep at least one token, but some row keeps none.")
    runs_B = (real_BS[:, 1:] & ~real_BS[:, :-1]).sum(1) + real_BS[:, 0]
    if bool((runs_B > 1).any()):
        raise InvalidInput("attention_mask must have the real tokens of a row side by side, but some row has a gap.")
    positions_T, starts = (each.to(input_ids_BS.device) for each in _positions(lengths))
    return Packed(input_ids_BS[real_BS].long(), types_BS[real_BS].long(), positions_T, starts, lengths)


def to_padded(values_T: Tensor, lengths: Sequence[int], fill: float = 0.0) -> Tensor:
    """Put packed rows (T, ...) of B sequences back into a tensor (B, S, ...), padded on the right with ``fill``."""
    rows = list(values_T.split_with_sizes(list(lengths)))
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=fill)


def sum_rows(values_TH: Tensor, index_T: Tensor, count: int) -> Tensor:
    """Return the sums (count, ...) of the rows with the same index, in the dtype of `summing_type`."""
    kind = summing_type(values_TH.dtype)
    empty_CH = values_TH.new_zeros((count, *values_TH.shape[1:]), dtype=kind)
    return empty_CH.index_add(0, index_T, values_TH.to(kind))


def take_rows(values_RH: Tensor, index_T: Tensor) -> Tensor:
    """Return the rows at an index (T, ...), which may repeat.

    Gradients are summed in the dtype of `summing_type` and in a fixed order. For ``values[index]`` on a CPU, the order
    depends on the timing of threads, so results vary from run to run.
    """
    return values_RH.to(summing_type(values_RH.dtype)).index_select(0, index_T).to(values_RH.dtype)


def summing_type(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for long sums: at least float32, since a sum of ones in bfloat16 stops at 256."""
    return torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else dtype


def _lengths(packed: Packed) -> Tensor:
    return packed.cu_seqlens.diff().long()


def _sequences(packed: Packed) -> Tensor:
    return torch.repeat_interleave(packed.cu_seqlens.diff().long(), output_size=packed.ids_T.shape[0])


def _real(packed: Packed) -> Tensor:
    return torch.arange(packed.max_length, device=packed.cu_seqlens.device) < packed.lengths_B[:, None]


def _padded_index(packed: Packed) -> Tensor:
    """Return the index (T) of each token among the B S rows of the padded batch."""
    return packed.sequence_T * packed.max_length + packed.positions_T


def _flat(rows: Sequence[Ids], total: int) -> Tensor:
    if isinstance(rows[0], np.ndarray):
        return torch.from_numpy(np.concatenate(rows).astype(np.int64))
    return torch.from_numpy(np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=total))


def _positions(lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the position of each token in its sequence, and ``cu_seqlens``."""
    cu_seqlens = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    starts_T = torch.repeat_interleave(cu_seqlens[:-1].long(), torch.tensor(lengths), output_size=sum(lengths))
    return torch.arange(len(starts_T)) - starts_T, cu_seqlens


@dataclass(frozen=True, slots=True)
class PaddedRows(TokenRows):
    """A batch whose padding is kept: row ``b S + s`` is position s of sequence b; `mask_BS` is False for padding.

    Lengths are unknown on the host, so that an exported graph is valid for all batches. Only the attention backend
    ``padded`` supports it.
    """

    mask_BS: Tensor

    @classmethod
    def of(cls, input_ids_BS: Tensor, attention_mask_BS: Tensor, token_type_ids_BS: Tensor | None = None) -> Self:
        """Flatten a padded batch into rows; segment ids are 0 when left out.

        Padding does not count for the positions, so it may be on the left or on the right.
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
        return self.mask_BS.shape[0]

    @property
    def max_length(self) -> int:
        """Length with padding, S."""
        return self.mask_BS.shape[1]

    def hides(self, reach: int) -> bool:
        """Return True: some tokens may be out of reach, as an exported graph is run on sequences of all lengths."""
        del reach
        return True

    @property
    def lengths_B(self) -> Tensor:
        return self.mask_BS.sum(1)

    @property
    def sequence_T(self) -> Tensor:
        return torch.arange(self.count, device=self.mask_BS.device)[:, None].expand(self.mask_BS.shape).flatten()

    @property
    def real_BS(self) -> Tensor:
        return self.mask_BS

    @property
    def first_tokens_B(self) -> Tensor:
        return self.cu_seqlens[:-1].long() + self.mask_BS.long().argmax(1)

    @property
    def last_tokens_B(self) -> Tensor:
        return self.cu_seqlens[1:].long() - 1 - self.mask_BS.flip(1).long().argmax(1)

    def padded(self, values_T: Tensor, fill: float = 0.0) -> Tensor:
        """Reshape rows (B S, ...) to (B, S, ...), and write ``fill`` to the padding."""
        values_BS = values_T.view(self.count, self.max_length, *values_T.shape[1:])
        mask_BS = self.mask_BS[(...,) + (None,) * (values_BS.dim() - 2)]
        return torch.where(mask_BS, values_BS, fill)

    def rows(self, values_BS: Tensor) -> Tensor:
        """Reshape (B, S, ...) to rows (B S, ...)."""
        # Copied to a fixed memory layout: an exported graph must not depend on the layout that one kernel chose.
        return values_BS.clone(memory_format=torch.contiguous_format).flatten(0, 1)

    def blanked(self, values_T: Tensor) -> Tensor:
        """Zero the rows of the padding."""
        return self.rows(self.padded(values_T))

    def sums(self, values_TH: Tensor) -> Tensor:
        return self.padded(values_TH).sum(1, dtype=summing_type(values_TH.dtype))


Batch = Packed | PaddedRows


# --- selections of rows: the last layer computes only these ---


@dataclass(frozen=True, slots=True)
class AllRows:
    """Every token, for example for mean pooling."""


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """The first token of each sequence, for classification: only this token has a query, while all tokens have keys."""


@dataclass(frozen=True, slots=True)
class LastTokens:
    """The last token of each sequence, XLNet's classification token."""


@dataclass(frozen=True, slots=True)
class SelectedRows:
    """Some rows of the packed batch, for masked language modelling."""

    rows_M: Tensor


@dataclass(frozen=True, slots=True)
class NoRows:
    """No token: the last layer computes only the query stream (XLNet, DeBERTa); without such a stream it is skipped."""


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
