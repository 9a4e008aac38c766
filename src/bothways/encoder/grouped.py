"""Attention over groups of sequences of like length.

Shapes: B sequences of a group, S the longest of them, T packed tokens, N heads, D head width, P pairs of a sequence and
a head, R = B S rows of the padded group.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bothways.encoder.attention_call import AttentionCall, AttentionRequest
from bothways.encoder.dropout import dropout as drop
from bothways.packing import Packed


class Grouped:
    """Matrix product and softmax over groups of neighbours of like length, padded within the group.

    torch's fused attention has no dropout on a CPU and falls back to single steps, for each length anew; a few larger
    steps take two thirds of the time.
    """

    name = "grouped"

    def refusal(self, request: AttentionRequest) -> str | None:
        """Every token sees its whole sequence, and scores are plain products."""
        return request.unmet()

    def attend(self, call: AttentionCall) -> Tensor:
        """Context of every token, (T, N, D)."""
        groups = call.packed.once(_groups, call.qkv_T3ND.shape[2], call.qkv_T3ND.dtype)
        parts = call.qkv_T3ND.split_with_sizes([group.tokens for group in groups])
        return torch.cat([_attend_group(part, group, call) for part, group in zip(parts, groups, strict=True)])


@dataclass(frozen=True, slots=True)
class _Group:
    """Neighbours of like length, which are computed at once.

    Attributes:
        tokens: Their tokens together.
        longest: S, of the longest of them.
        rows_T: Where their tokens stand in the padded form; None where nothing is padded.
        bias_P1S: 0 for keys that are tokens, minus infinity for padding.
    """

    tokens: int
    longest: int
    rows_T: Tensor | None
    bias_P1S: Tensor


def groups_of_like_length(lengths: tuple[int, ...], waste: float = 0.2) -> list[tuple[int, ...]]:
    """Lengths of neighbouring sequences, in groups that hold at most ``waste`` times their tokens in padding.

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
        rows_T = None if real_BS.all() else torch.from_numpy(np.flatnonzero(real_BS)).to(device, non_blocking=True)
        bias_BS = torch.from_numpy(np.where(real_BS, 0.0, -np.inf)).to(device, dtype, non_blocking=True)
        bias_P1S = bias_BS.repeat_interleave(heads, 0)[:, None]
        groups.append(_Group(sum(lengths), longest, rows_T, bias_P1S))
    return groups


def _attend_group(qkv_T3ND: Tensor, group: _Group, call: AttentionCall) -> Tensor:
    """Context (T, N, D) of a group of sequences, padded to the longest of them where they differ."""
    heads, width = qkv_T3ND.shape[2:]
    count = len(group.bias_P1S) // heads
    if group.rows_T is not None:
        spaced_R3ND = qkv_T3ND.new_zeros(count * group.longest, 3, heads, width)
        qkv_T3ND = spaced_R3ND.index_copy(0, group.rows_T, qkv_T3ND)
    # One copy for queries, keys and values: the products want every head's rows side by side.
    q_PSD, k_PSD, v_PSD = qkv_T3ND.view(count, group.longest, 3, heads, width).permute(2, 0, 3, 1, 4).flatten(1, 2)
    scores_PSS = torch.baddbmm(group.bias_P1S, q_PSD, k_PSD.transpose(1, 2), alpha=call.scale)
    context_PSD: Tensor = drop(scores_PSS.softmax(-1), call.dropout) @ v_PSD
    context_TND = context_PSD.view(count, heads, group.longest, width).transpose(1, 2).reshape(-1, heads, width)
    return context_TND if group.rows_T is None else context_TND.index_select(0, group.rows_T)
