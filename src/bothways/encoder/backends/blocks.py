"""Attention in blocks: over groups of sequences of similar length, and over the keys around a block of queries.

Shapes: T packed tokens, N heads, D head width; B sequences of a group, S the longest of them, P pairs of a sequence and
a head, R = B S rows of the padded group; n tokens of one sequence, b blocks of r queries, c = r + 2 reach keys that a
block can see.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor
from torch.autograd.function import once_differentiable

from bothways.devices import on_device
from bothways.encoder.backends.basic import AttentionCall, AttentionRequest
from bothways.encoder.modules import FunctionContext, dropout, kept_scale, mark_dropped
from bothways.packing import Packed


class Grouped:
    """Matrix product and softmax over groups of neighbours of similar length, padded within the group.

    torch's fused attention has no dropout on a CPU and falls back to single steps for each length; a few larger
    steps take two thirds of the time.
    """

    name = "grouped"

    def refusal(self, request: AttentionRequest) -> str | None:
        """Refuse anything but plain products over whole sequences."""
        return request.unmet()

    def attend(self, call: AttentionCall) -> Tensor:
        """Return the context of every token, (T, N, D)."""
        groups = call.packed.once(_groups, call.qkv_T3ND.shape[2], call.qkv_T3ND.dtype)
        parts = call.qkv_T3ND.split_with_sizes([group.tokens for group in groups])
        return torch.cat([_attend_group(part, group, call) for part, group in zip(parts, groups, strict=True)])


@dataclass(frozen=True, slots=True)
class _Group:
    """Neighbours of similar length, computed at once.

    Attributes:
        tokens: Number of their tokens in all.
        longest: Length of the longest of them, S.
        rows_T: Rows of their tokens in the padded form; None without padding.
        bias_P1S: 0 for keys that are tokens, minus infinity for padding.
    """

    tokens: int
    longest: int
    rows_T: Tensor | None
    bias_P1S: Tensor


def groups_of_like_length(lengths: tuple[int, ...], waste: float = 0.2) -> list[tuple[int, ...]]:
    """Group neighbouring sequences; a group holds at most ``waste`` times its tokens in padding.

    >>> groups_of_like_length((10, 9, 8, 3, 3))
    [(10, 9, 8), (3, 3)]
    """
    groups: list[tuple[int, ...]] = []
    start = longest = total = 0
    for index, length in enumerate(lengths):
        longest, total = max(longest, length), total + length
        if (index + 1 - start) * longest > (1 + waste) * total:
            groups.append(lengths[start:index])
            start, longest, total = index, length, length
    return [*groups, lengths[start:]]


def _groups(packed: Packed, heads: int, dtype: torch.dtype) -> list[_Group]:
    groups, device = [], packed.cu_seqlens.device
    for lengths in groups_of_like_length(packed.lengths):
        longest = max(lengths)
        # On the host: which rows are real is a question that a GPU would have to be waited for.
        real_BS = np.arange(longest) < np.array(lengths)[:, None]
        rows_T = None if real_BS.all() else on_device(np.flatnonzero(real_BS), device)
        bias_BS = on_device(torch.from_numpy(np.where(real_BS, 0.0, -np.inf)).to(dtype), device)
        bias_P1S = bias_BS.repeat_interleave(heads, 0)[:, None]
        groups.append(_Group(sum(lengths), longest, rows_T, bias_P1S))
    return groups


class _DroppedContext(FunctionContext, Protocol):
    scale: float
    rate: float


class _Dropped(torch.autograd.Function):
    """Context (P, S, D) of queries, keys and values, with dropout.

    The backward pass keeps one tensor of the size of the scores, where autograd keeps three. These tensors are the
    largest of a training: with long texts, larger than everything else together.
    """

    @staticmethod
    def forward(
        ctx: _DroppedContext,
        q_PSD: Tensor,
        k_PSD: Tensor,
        v_PSD: Tensor,
        bias_P1S: Tensor,
        scale: float,
        rate: float,
    ) -> Tensor:
        weights_PSS = torch.baddbmm(bias_P1S, q_PSD, k_PSD.transpose(1, 2), alpha=scale)
        torch.softmax(weights_PSS, -1, out=weights_PSS)
        mark_dropped(weights_PSS, rate)
        ctx.save_for_backward(q_PSD, k_PSD, v_PSD, weights_PSS)
        ctx.scale, ctx.rate = scale, rate
        return _kept(weights_PSS, rate) @ v_PSD

    @staticmethod
    @once_differentiable
    def backward(ctx: _DroppedContext, gradient_PSD: Tensor) -> tuple[Tensor | None, ...]:
        q_PSD, k_PSD, v_PSD, weights_PSS = ctx.saved_tensors
        gradient_v_PSD = _kept(weights_PSS, ctx.rate).transpose(1, 2) @ gradient_PSD
        gradient_PSS = gradient_PSD @ v_PSD.transpose(1, 2)
        gradient_PSS *= (weights_PSS > 0).to(gradient_PSS.dtype).mul_(kept_scale(weights_PSS, ctx.rate))
        weights_PSS = weights_PSS.abs()
        gradient_PSS = torch._softmax_backward_data(gradient_PSS, weights_PSS, -1, weights_PSS.dtype)
        return (
            (gradient_PSS @ k_PSD).mul_(ctx.scale),
            (gradient_PSS.transpose(1, 2) @ q_PSD).mul_(ctx.scale),
            gradient_v_PSD,
            *(None, None, None),
        )


_dropped: Callable[[Tensor, Tensor, Tensor, Tensor, float, float], Tensor] = _Dropped.apply


def _kept(marked_PSS: Tensor, rate: float) -> Tensor:
    """Return weights after dropout from marked ones (see `mark_dropped`)."""
    return marked_PSS.clamp(min=0).mul_(kept_scale(marked_PSS, rate))


def _attend_group(qkv_T3ND: Tensor, group: _Group, call: AttentionCall) -> Tensor:
    """Return the context (T, N, D) of a group of sequences, padded to the longest if they differ."""
    heads, width = qkv_T3ND.shape[2:]
    count = len(group.bias_P1S) // heads
    if group.rows_T is not None:
        spaced_R3ND = qkv_T3ND.new_zeros(count * group.longest, 3, heads, width)
        qkv_T3ND = spaced_R3ND.index_copy(0, group.rows_T, qkv_T3ND)
    # One copy for queries, keys and values: the products want every head's rows side by side.
    q_PSD, k_PSD, v_PSD = qkv_T3ND.view(count, group.longest, 3, heads, width).permute(2, 0, 3, 1, 4).flatten(1, 2)
    if call.dropout and q_PSD.dtype == torch.float32 and not torch.is_autocast_enabled(q_PSD.device.type):
        context_PSD = _dropped(q_PSD, k_PSD, v_PSD, group.bias_P1S, call.scale, call.dropout)
    else:
        scores_PSS = torch.baddbmm(group.bias_P1S, q_PSD, k_PSD.transpose(1, 2), alpha=call.scale)
        context_PSD = dropout(scores_PSS.softmax(-1), call.dropout) @ v_PSD
    context_TND = context_PSD.view(count, heads, group.longest, width).transpose(1, 2).reshape(-1, heads, width)
    return context_TND if group.rows_T is None else context_TND.index_select(0, group.rows_T)


class Local:
    """torch's fused attention over blocks of queries and the keys around them."""

    name = "local"

    def refusal(self, request: AttentionRequest) -> str | None:
        """Refuse all but local windows."""
        return request.unmet(local=True) or (None if request.local else "it is for local windows")

    def attend(self, call: AttentionCall) -> Tensor:
        """Return the context of every token, (T, N, D)."""
        assert call.reach is not None  # the request said so
        parts = call.qkv_T3ND.split_with_sizes(list(call.packed.lengths))
        return torch.cat([_sequence(part, call, call.reach) for part in parts])


def _sequence(qkv_n3ND: Tensor, call: AttentionCall, reach: int) -> Tensor:
    """Return the context (n, N, D) of one sequence."""
    length, rate, scale = len(qkv_n3ND), call.dropout, call.scale
    q_NnD, k_NnD, v_NnD = qkv_n3ND.permute(1, 2, 0, 3)
    if length <= reach + 1:
        whole_NnD = F.scaled_dot_product_attention(q_NnD[None], k_NnD[None], v_NnD[None], dropout_p=rate, scale=scale)[
            0
        ]
        return whole_NnD.transpose(0, 1)
    # Fewer queries in a block would look at the same keys too often, more at too many.
    rows = max(1, reach)
    blocks = -(-length // rows)
    q_bNrD = F.pad(q_NnD, (0, 0, 0, blocks * rows - length)).view(len(q_NnD), blocks, rows, -1).transpose(0, 1)
    width = rows + 2 * reach
    around = (0, 0, reach, blocks * rows - length + reach)
    k_bNcD, v_bNcD = (F.pad(part, around).unfold(1, width, rows).permute(1, 0, 3, 2) for part in (k_NnD, v_NnD))
    mask_b1rc = call.packed.once(_mask, length, rows, reach)
    context_bNrD = F.scaled_dot_product_attention(
        q_bNrD, k_bNcD, v_bNcD, attn_mask=mask_b1rc, dropout_p=rate, scale=scale
    )
    context_nND: Tensor = context_bNrD.transpose(1, 2).flatten(0, 1)[:length]
    return context_nND


def _mask(packed: Packed, length: int, rows: int, reach: int) -> Tensor:
    """Return the mask in which query ``block * rows + r`` sees key ``block * rows + c - reach``: (b, 1, r, c)."""
    blocks, device = -(-length // rows), packed.cu_seqlens.device
    query_r, key_c = torch.arange(rows, device=device), torch.arange(rows + 2 * reach, device=device) - reach
    near_rc = (query_r[:, None] - key_c).abs() <= reach
    place_bc = torch.arange(blocks, device=device)[:, None] * rows + key_c
    real_bc = (place_bc >= 0) & (place_bc < length)
    seen_brc = near_rc & real_bc[:, None]
    # Rows behind the end see something, so that their softmax is defined; they are cut off.
    seen_brc |= torch.arange(blocks, device=device)[:, None, None] * rows + query_r[:, None] >= length
    return seen_brc[:, None]
