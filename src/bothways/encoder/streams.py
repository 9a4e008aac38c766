"""Two-stream attention and segment recurrence, which XLNet and similar models add to an encoder.

Query stream (Yang et al. 2019, arXiv:1906.08237, section 2.3): the content stream is that of every encoder, but
a token sees only itself and the tokens that do not come after it in a factorisation order. The query stream has a
vector for each target: it starts from one learned vector, the same for all targets, and attends to the content states,
one layer below, of the tokens strictly before the target. So this stream knows a target's position, not its token. Both
streams share weights. DeBERTa's mask decoder (He et al. 2020, arXiv:2006.03654, section 3.2) is the same attention in
the last layer alone, with all tokens visible.

Segment recurrence (Dai et al. 2019, arXiv:1901.02860, section 3.2): every layer also reads cached hidden states of the
tokens before a sequence, as keys and values; they are not computed again and get no gradient.

Shapes: B sequences, S longest sequence, T packed tokens, M targets, P maximum targets of a sequence, H hidden, N heads,
D head width, W = 2 S - 1 distances; Z tokens of memories, U = Z + T.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bothways.devices import on_device
from bothways.encoder.backends.basic import AttentionCall
from bothways.encoder.backends.masked import distance_scores
from bothways.encoder.modules import dropout
from bothways.errors import InvalidInput
from bothways.packing import Batch, NoRows, Packed, Rows, SelectedRows, pack, select

VISIBLE = -1
"""Position in a factorisation order for tokens that every token sees and that see only each other."""


@dataclass(frozen=True, slots=True)
class QueryStream:
    """Target tokens that a second stream predicts, and a factorisation order of all tokens.

    `hidden_MH` are the initial states of the stream, `rows_M` the targets' rows in the packed batch, ascending, and
    `counts` the numbers of targets in each sequence (B, on the host).
    `order_T` is each token's position in the order of its sequence, from 0, or `VISIBLE`.
    """

    hidden_MH: Tensor
    rows_M: Tensor
    counts: tuple[int, ...]
    order_T: Tensor


@dataclass(frozen=True, slots=True)
class MaskDecoding:
    """Tokens to decode by applying the last layer several times, with the same weights, keys and values.

    The first queries are the last layer's inputs plus absolute position vectors, ``added_MH``; each application reads
    the result of the previous one. `rows_M` are ascending rows of the packed batch, `counts` their number in each
    sequence (B).
    """

    added_MH: Tensor
    rows_M: Tensor
    counts: tuple[int, ...]
    times: int = 2

    @property
    def order_T(self) -> None:
        """None, since every token sees its whole sequence."""
        return None


Queries = QueryStream | MaskDecoding


@dataclass(frozen=True, slots=True)
class Targets:
    """Tensors for the targets of a batch, shared by all layers.

    `order_T` is that of the `QueryStream` (None if every token sees all). `spaced_M` is each target's row in the padded
    form, which has the `shape` (B, P). `seen_BPS` marks the tokens that a target sees, `distance_BPS` is the index into
    the distance tables, `differ_BPS` marks tokens of another segment.
    """

    order_T: Tensor | None
    spaced_M: Tensor
    shape: tuple[int, int]
    seen_BPS: Tensor
    distance_BPS: Tensor
    differ_BPS: Tensor

    @classmethod
    def of(cls, rows_M: Tensor, counts: tuple[int, ...], order_T: Tensor | None, batch: Packed) -> "Targets":
        """Compute the tensors for a batch; see `QueryStream` for the arguments."""
        most, longest = max(counts, default=0), batch.max_length
        spaced_M = on_device(np.flatnonzero(np.arange(most) < np.array(counts)[:, None]), rows_M.device)
        shape = len(counts), most

        def of_targets(values_T: Tensor) -> Tensor:
            return _spaced(values_T[rows_M], spaced_M, shape)[..., None]

        def of_keys(values_T: Tensor, fill: int) -> Tensor:
            return batch.padded(values_T, fill)[:, None]

        if order_T is None:
            seen_BPS = batch.real_BS[:, None].expand(*shape, longest)
        else:
            seen_BPS = of_keys(order_T, torch.iinfo(order_T.dtype).max) < of_targets(order_T)
        place_S = torch.arange(longest, device=rows_M.device)
        return cls(
            order_T,
            spaced_M,
            shape,
            seen_BPS,
            of_targets(batch.positions_T) - place_S + (longest - 1),
            of_keys(batch.types_T, 0) != of_targets(batch.types_T),
        )

    def spaced(self, values: Tensor) -> Tensor:
        """Pad rows of the targets (M, ...) with zeros to (B, P, ...)."""
        return _spaced(values, self.spaced_M, self.shape)

    def rows(self, values: Tensor) -> Tensor:
        """Drop the padding that `spaced` adds."""
        return values.flatten(0, 1).index_select(0, self.spaced_M)


def attend_before(q_MND: Tensor, targets: Targets, call: AttentionCall) -> Tensor:
    """Compute attention from targets to the tokens that they see, for every backend; return contexts (M, N, D).

    A target that sees no token gets zeros. ``call`` holds the content stream, whose queries are ignored; its
    ``relative`` holds the segment gains of the targets.
    """
    *_, k_TND, v_TND = call.qkv_T3ND.unbind(1)
    k_BNSD, v_BNSD = (call.batch.padded(each).transpose(1, 2) for each in (k_TND, v_TND))
    q_BNPD = targets.spaced(q_MND).transpose(1, 2)
    scores_BNPS = q_BNPD @ k_BNSD.transpose(2, 3)
    if call.relative is not None:
        scores_BNPS = scores_BNPS + distance_scores(q_BNPD, k_BNSD, call.relative, targets.distance_BPS[:, None])
        if call.relative.gain_TN is not None:
            gain_BNP1 = targets.spaced(call.relative.gain_TN).transpose(1, 2)[..., None]
            scores_BNPS = scores_BNPS + gain_BNP1 * targets.differ_BPS[:, None]
    hidden_B1PS = ~targets.seen_BPS[:, None]
    if call.reach is not None:
        distance_B1PS = targets.distance_BPS[:, None] - (call.batch.max_length - 1)
        hidden_B1PS = hidden_B1PS | (distance_B1PS.abs() > call.reach)
    # The minimum of the dtype, not minus infinity: a softmax over minus infinity alone has no gradient.
    least = torch.finfo(scores_BNPS.dtype).min
    weights_BNPS = (scores_BNPS * call.scale).masked_fill(hidden_B1PS, least).softmax(-1).masked_fill(hidden_B1PS, 0.0)
    weights_BNPS = dropout(weights_BNPS, call.dropout) if call.dropout else weights_BNPS
    context_BPND = (weights_BNPS.to(v_BNSD.dtype) @ v_BNSD).transpose(1, 2)
    return targets.rows(context_BPND)


def _spaced(values: Tensor, spaced_M: Tensor, shape: tuple[int, int]) -> Tensor:
    blank = values.new_zeros((shape[0] * shape[1], *values.shape[1:]))
    return blank.index_copy(0, spaced_M, values).view(*shape, *values.shape[1:])


# --- segment recurrence ---


@dataclass(frozen=True, slots=True)
class Memory:
    """Cached hidden states of the tokens just before each sequence of a batch, or just after it where `behind` is True.

    `lengths` are the numbers of these tokens (B, on the host). `states` holds each layer's inputs at these tokens,
    concatenated over the sequences (Z, H).
    """

    lengths: tuple[int, ...]
    states: tuple[Tensor, ...]
    behind: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A batch whose sequences are joined with their memories.

    In `batch`, memory tokens have segment 0, as in the published code. `joined_U` gives, for each row of `batch`, its
    index in the concatenation of all memories and then all sequences. `own_T` are the sequences' rows in `batch`.
    """

    own: Packed
    memory: Memory
    batch: Packed
    joined_U: Tensor
    own_T: Tensor

    @classmethod
    def of(cls, memory: Memory, given: Batch, layers: int) -> "Recurrence":
        """Join each sequence of a batch with its memory, before or after it."""
        batch = unpadded(given)
        if len(memory.lengths) != batch.count or len(memory.states) != layers:
            raise InvalidInput(
                f"expected a memory of {batch.count} sequences and {layers} layers, got {len(memory.lengths)} and "
                f"{len(memory.states)}."
            )
        if any(len(state) != sum(memory.lengths) for state in memory.states):
            raise InvalidInput(
                f"expected {sum(memory.lengths)} rows in each layer's memory, "
                f"got {[len(each) for each in memory.states]}."
            )
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
        """Return a layer's input for the tokens of memories and sequences, (U, H)."""
        before_ZH = self.memory.states[layer].detach().to(hidden_TH.dtype)
        return torch.cat([before_ZH, hidden_TH]).index_select(0, self.joined_U)

    def rows(self, rows: Rows) -> Rows:
        """Map a selection of rows of the sequences to the same rows of the joined batch."""
        return rows if isinstance(rows, NoRows) else SelectedRows(select(self.own_T, rows, self.own))

    def targets(self, queries: Queries) -> Targets:
        """Return the tensors for the targets in the joined batch, where targets see the whole memory."""
        order_U = None
        if queries.order_T is not None:
            before_Z = queries.order_T.new_full((sum(self.memory.lengths),), VISIBLE)
            order_U = torch.cat([before_Z, queries.order_T])[self.joined_U]
        return Targets.of(self.own_T[queries.rows_M], queries.counts, order_U, self.batch)


def unpadded(batch: Batch) -> Packed:
    """Return the batch if it is packed; raise `InvalidInput` if it has padding."""
    if not isinstance(batch, Packed):
        raise InvalidInput("query streams and memories need a batch without padding: pack the sequences.")
    return batch


def targets_of(queries: Queries, batch: Batch, recurrence: Recurrence | None) -> Targets:
    """Return the tensors for the targets of a batch, or of the batch joined with its memories, if any."""
    if recurrence is not None:
        return recurrence.targets(queries)
    return Targets.of(queries.rows_M, queries.counts, queries.order_T, unpadded(batch))
