"""Attention calls, and the two backends that most models use: plain dot products over whole sequences.

A backend either supports a request, or returns the reason why it does not.

Shapes: B sequences, S longest of a batch or group, T packed tokens, N heads, D head width, W = 2 S - 1 distances
between tokens; P pairs of a sequence and a head, R = B S rows of a padded group.
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
from bothways.encoder.modules import FunctionContext, dropout, kept_scale, mark_dropped
from bothways.packing import Batch, Packed


@dataclass(frozen=True, slots=True)
class RelativeScores:
    """Attention score terms for the distance between query i and key j, and for their segments, before scaling.

    The sum is ``(q_i + shift) . keys[i - j + S - 1] + k_j . queries[i - j + S - 1]``; a table is None if a family lacks
    its term, and row 0 of a table is distance ``1 - S``. `gain_TN` is added to each query's scores for keys in another
    segment (Yang et al. 2019, arXiv:1906.08237). The published code adds one value for equal segments and
    another for different ones; only their difference affects the softmax.
    """

    keys_WND: Tensor | None
    queries_WND: Tensor | None
    shift_ND: Tensor | None = None
    gain_TN: Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """The arguments of one attention call.

    `qkv_T3ND` holds only keys and values if the queries are passed separately (`attend_once`). `reach` is the number of
    visible tokens on either side; None for no limit. `order_T` is the position of each token in a factorisation order
    of its sequence (see `QueryStream`): a token does not see the tokens after it in this order.
    `weights` receives each sequence's attention weights (N, n, n) from the reference backend.
    """

    qkv_T3ND: Tensor
    batch: Batch
    scale: float
    dropout: float = 0.0
    reach: int | None = None
    relative: RelativeScores | None = None
    order_T: Tensor | None = None
    weights: list[Tensor] | None = None

    @property
    def packed(self) -> Packed:
        """The batch, for a backend that does not support padding."""
        assert isinstance(self.batch, Packed)  # checked by `refusal`
        return self.batch


@dataclass(frozen=True, slots=True)
class AttentionRequest:
    """The properties of an attention call that decide which backends can serve it.

    `padding`: the batch keeps its padding. `local`: tokens see only a part of their sequence. `relative`: the scores
    have distance terms. `ordered`: tokens do not see later tokens of a factorisation order. `capability` is the major
    compute capability of a CUDA device.
    """

    device: str
    dtype: torch.dtype
    head_width: int
    dropout: float
    weights: bool
    padding: bool = False
    local: bool = False
    relative: bool = False
    ordered: bool = False
    capability: int = 0

    def unmet(
        self,
        *,
        weights: bool = False,
        padding: bool = False,
        local: bool = False,
        relative: bool = False,
        ordered: bool = False,
    ) -> str | None:
        """Return the reason why a backend with only these abilities cannot serve the request; None if it can."""
        if self.weights and not weights:
            return "it does not return attention weights"
        if self.padding and not padding:
            return "it needs a batch without padding"
        if self.relative and not relative:
            return "it supports no scores that depend on distances"
        if self.ordered and not ordered:
            return "it supports no factorisation orders"
        return "it supports no local windows" if self.local and not local else None


class AttentionBackend(Protocol):
    """Scaled dot-product attention within each sequence of a packed batch."""

    name: str

    def refusal(self, request: AttentionRequest) -> str | None:
        """Return the reason why this backend cannot serve the request; None if it can."""

    def attend(self, call: AttentionCall) -> Tensor:
        """Return the context of every token, (T, N, D)."""


class SDPA:
    """torch's fused attention, called once for each run of equally long sequences, without mask or padding."""

    name = "sdpa"

    def refusal(self, request: AttentionRequest) -> str | None:
        return request.unmet()

    def attend(self, call: AttentionCall) -> Tensor:
        heads, width = call.qkv_T3ND.shape[2:]
        runs = call.batch.once(runs_of_equal_length)
        contexts = []
        # One split, not a slice for each run: the backward pass of a slice fills a gradient of the whole batch.
        parts = call.qkv_T3ND.split_with_sizes([end - start for start, end, _ in runs])
        for part_T3ND, (start, end, length) in zip(parts, runs, strict=True):
            q_BNnD, k_BNnD, v_BNnD = part_T3ND.view(-1, length, 3, heads, width).permute(2, 0, 3, 1, 4)
            context_BNnD = F.scaled_dot_product_attention(
                q_BNnD, k_BNnD, v_BNnD, dropout_p=call.dropout, scale=call.scale
            )
            contexts.append(context_BNnD.transpose(1, 2).reshape(end - start, heads, width))
        return contexts[0] if len(contexts) == 1 else torch.cat(contexts)


def runs_of_equal_length(packed: Packed) -> list[tuple[int, int, int]]:
    """Return (first row, end row, sequence length) of each run of adjacent sequences of equal length.

    >>> from bothways.packing import pack
    >>> runs_of_equal_length(pack([[7, 7, 7], [8, 8, 8], [9, 9, 9, 9, 9]]))
    [(0, 6, 3), (6, 11, 5)]
    """
    runs: list[tuple[int, int, int]] = []
    row = 0
    for length in packed.lengths:
        joins = bool(runs) and runs[-1][2] == length
        start = runs.pop()[0] if joins else row
        row += length
        runs.append((start, row, length))
    return runs


class Grouped:
    """Matrix products and softmax over groups of adjacent sequences of similar length, padded to the longest.

    With dropout on a CPU, torch's fused attention falls back to unfused steps for each length; fewer, larger steps
    take two thirds of the time.
    """

    name = "grouped"

    def refusal(self, request: AttentionRequest) -> str | None:
        return request.unmet()

    def attend(self, call: AttentionCall) -> Tensor:
        groups = call.packed.once(_groups, call.qkv_T3ND.shape[2], call.qkv_T3ND.dtype)
        parts = call.qkv_T3ND.split_with_sizes([group.tokens for group in groups])
        return torch.cat([_attend_group(part, group, call) for part, group in zip(parts, groups, strict=True)])


@dataclass(frozen=True, slots=True)
class _Group:
    """Adjacent sequences of similar length, computed together.

    `rows_T` are their tokens' rows in the padded form (None without padding). `bias_P1S` is 0 at tokens and minus
    infinity at padding.
    """

    tokens: int
    longest: int
    rows_T: Tensor | None
    bias_P1S: Tensor


def groups_of_like_length(lengths: tuple[int, ...], waste: float = 0.2) -> list[tuple[int, ...]]:
    """Return the lengths of adjacent sequences in groups; a group's padding is at most ``waste`` times its tokens.

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
        # Computed on the host: on a GPU, a search for the tokens' rows would block until its result arrives.
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
    """Attention with dropout, from queries, keys and values to the context (P, S, D).

    One tensor of the size of the scores is kept for the backward pass; autograd would keep three. With long texts,
    these tensors take more memory than everything else in training.
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
    """Return the weights after dropout, given marked ones (see `mark_dropped`)."""
    return marked_PSS.clamp(min=0).mul_(kept_scale(marked_PSS, rate))


def _attend_group(qkv_T3ND: Tensor, group: _Group, call: AttentionCall) -> Tensor:
    """Return the context (T, N, D) of a group; sequences of different lengths are padded to the longest."""
    heads, width = qkv_T3ND.shape[2:]
    count = len(group.bias_P1S) // heads
    if group.rows_T is not None:
        spaced_R3ND = qkv_T3ND.new_zeros(count * group.longest, 3, heads, width)
        qkv_T3ND = spaced_R3ND.index_copy(0, group.rows_T, qkv_T3ND)
    # One copy for queries, keys and values: the products need the rows of each head to be contiguous.
    q_PSD, k_PSD, v_PSD = qkv_T3ND.view(count, group.longest, 3, heads, width).permute(2, 0, 3, 1, 4).flatten(1, 2)
    if call.dropout and q_PSD.dtype == torch.float32 and not torch.is_autocast_enabled(q_PSD.device.type):
        context_PSD = _dropped(q_PSD, k_PSD, v_PSD, group.bias_P1S, call.scale, call.dropout)
    else:
        scores_PSS = torch.baddbmm(group.bias_P1S, q_PSD, k_PSD.transpose(1, 2), alpha=call.scale)
        context_PSD = dropout(scores_PSS.softmax(-1), call.dropout) @ v_PSD
    context_TND = context_PSD.view(count, heads, group.longest, width).transpose(1, 2).reshape(-1, heads, width)
    return context_TND if group.rows_T is None else context_TND.index_select(0, group.rows_T)
