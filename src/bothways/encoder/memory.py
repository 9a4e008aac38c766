"""Segment recurrence: known hidden states of the tokens before a sequence (Dai et al. 2019, arXiv:1901.02860, 3.2).

Every layer reads them as keys and values; nothing is computed for them and no gradient goes back to them.

Shapes: B sequences, T packed tokens, Z tokens before them, U = Z + T, H hidden.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bothways.devices import on_device
from bothways.encoder.batch import Batch
from bothways.encoder.query_stream import VISIBLE, Queries, Targets
from bothways.encoder.rows import NoRows, Rows, SelectedRows, select
from bothways.errors import InvalidInput
from bothways.packing import Packed, pack


@dataclass(frozen=True, slots=True)
class Memory:
    """Hidden states of the tokens just before or behind each sequence of a batch.

    Attributes:
        lengths: Number of these tokens for each of the B sequences, on the host; 0 where there are none.
        states: For each layer, what it read at these tokens, sequence after sequence (Z, H).
        behind: Whether the tokens stand just behind each sequence instead; empty where none does.
    """

    lengths: tuple[int, ...]
    states: tuple[Tensor, ...]
    behind: tuple[bool, ...] = ()

    def check(self, batch: Batch, layers: int) -> None:
        """Refuse a memory of another batch or encoder.

        Raises:
            InvalidInput: The numbers of sequences, layers or rows do not fit.
        """
        if len(self.lengths) != batch.count or len(self.states) != layers:
            raise InvalidInput(
                f"expected a memory of {batch.count} sequences and {layers} layers, got {len(self.lengths)} and "
                f"{len(self.states)}."
            )
        if any(len(state) != sum(self.lengths) for state in self.states):
            raise InvalidInput(
                f"expected {sum(self.lengths)} rows in each layer's memory, got {[len(each) for each in self.states]}."
            )


@dataclass(frozen=True, slots=True)
class NoMemory:
    """A batch without a memory.

    Attributes:
        own: The batch.
    """

    own: Batch

    @property
    def batch(self) -> Batch:
        """The batch."""
        return self.own

    def joined(self, hidden_TH: Tensor, layer: int) -> Tensor:
        """Return the rows that a layer reads."""
        del layer
        return hidden_TH

    def rows(self, rows: Rows) -> Rows:
        """Return the same rows."""
        return rows

    def targets(self, queries: Queries) -> Targets:
        """Return the tokens with queries of their own."""
        return Targets.of(queries.rows_M, queries.counts, queries.order_T, unpadded(self.own))


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A batch whose sequences stand beside their memories.

    Attributes:
        own: The batch.
        memory: The memories.
        batch: Memories and sequences together; the memories are of segment 0, as published.
        joined_U: Where each of its rows stands among the rows of all memories and then of all sequences.
        own_T: Where the rows of the sequences stand in it.
    """

    own: Packed
    memory: Memory
    batch: Packed
    joined_U: Tensor
    own_T: Tensor

    @classmethod
    def of(cls, memory: Memory, batch: Packed) -> "Recurrence":
        """Put memories before or behind the sequences of a batch."""
        before_B, lengths_B = np.array(memory.lengths), np.array(batch.lengths)
        behind_B = np.array(memory.behind or (False,) * batch.count)
        ends_B = np.cumsum(before_B + lengths_B)
        parts_B2 = np.stack([before_B, lengths_B], 1)
        parts_B2[behind_B] = parts_B2[behind_B, ::-1]
        is_own_U = np.repeat(np.stack([behind_B, ~behind_B], 1).ravel(), parts_B2.ravel())
        own_T = np.flatnonzero(is_own_U)
        joined_U = np.empty(ends_B[-1], dtype=np.int64)
        joined_U[~is_own_U] = np.arange(before_B.sum())
        joined_U[own_T] = before_B.sum() + np.arange(lengths_B.sum())
        device = batch.ids_T.device
        rows_U = on_device(joined_U, device)
        wide = pack([np.zeros(length, dtype=np.int64) for length in before_B + lengths_B], device=device)
        types_U = torch.cat([batch.types_T.new_zeros(int(before_B.sum())), batch.types_T])[rows_U]
        return cls(batch, memory, replace(wide, types_T=types_U), rows_U, on_device(own_T, device))

    def joined(self, hidden_TH: Tensor, layer: int) -> Tensor:
        """Return the rows that a layer reads, (U, H)."""
        before_ZH = self.memory.states[layer].detach().to(hidden_TH.dtype)
        return torch.cat([before_ZH, hidden_TH]).index_select(0, self.joined_U)

    def rows(self, rows: Rows) -> Rows:
        """Map rows of the sequences to rows of both together."""
        return rows if isinstance(rows, NoRows) else SelectedRows(select(self.own_T, rows, self.own))

    def targets(self, queries: Queries) -> Targets:
        """Return the tokens of the sequences with queries of their own; they see all of the memory."""
        order_U = None
        if queries.order_T is not None:
            before_Z = queries.order_T.new_full((sum(self.memory.lengths),), VISIBLE)
            order_U = torch.cat([before_Z, queries.order_T])[self.joined_U]
        return Targets.of(self.own_T[queries.rows_M], queries.counts, order_U, self.batch)


Segment = NoMemory | Recurrence


def segment_of(batch: Batch, memory: Memory | None, layers: int) -> Segment:
    """Return the input of an encoder's layers for a batch.

    Raises:
        InvalidInput: The memory is of another batch or encoder, or the batch has padding.
    """
    if memory is None:
        return NoMemory(batch)
    memory.check(batch, layers)
    return Recurrence.of(memory, unpadded(batch))


def unpadded(batch: Batch) -> Packed:
    """Check that the batch has no padding.

    Raises:
        InvalidInput: It has.
    """
    if not isinstance(batch, Packed):
        raise InvalidInput("query streams and memories need a batch without padding: pack the sequences.")
    return batch
