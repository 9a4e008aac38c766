"""Attention over packed tokens: the one place that looks at sequence bounds.

A backend answers whether it can serve a request, and why not; `choose` picks the first that can, or holds the caller to
the one that was named.

Shapes: B sequences, S longest sequence, T packed tokens, N heads, D head width, P pairs of a sequence and a head.
"""

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor

from bothways.encoder.attention_call import AttentionCall, AttentionRequest, RelativeScores
from bothways.encoder.dropout import dropout as drop
from bothways.encoder.flex import Flex
from bothways.encoder.local import Local
from bothways.encoder.relative import Skewed
from bothways.errors import UnsupportedAttention


class AttentionBackend(Protocol):
    """Scaled dot-product attention within each sequence of a packed batch."""

    name: str

    def refusal(self, request: AttentionRequest) -> str | None:
        """Why this backend cannot serve the request; None when it can."""

    def attend(self, call: AttentionCall) -> Tensor:
        """Context of every token, (T, N, D)."""


class Reference:
    """Plain matrix product and softmax, one sequence at a time: any device, any dtype. The oracle of the others."""

    name = "reference"

    def refusal(self, request: AttentionRequest) -> str | None:
        """It serves everything."""
        del request
        return None

    def attend(self, call: AttentionCall) -> Tensor:
        """Context of every token, (T, N, D)."""
        contexts, start = [], 0
        for sequence_n3ND in call.qkv_T3ND.split_with_sizes(list(call.bounds.lengths)):
            q_NnD, k_NnD, v_NnD = sequence_n3ND.permute(1, 2, 0, 3)
            scores_Nnn = q_NnD @ k_NnD.transpose(1, 2)
            if call.relative is not None:
                scores_Nnn = scores_Nnn + relative_scores(q_NnD, k_NnD, call.relative, start)
            scores_Nnn = scores_Nnn * call.scale
            if call.binding_reach is not None:
                scores_Nnn = scores_Nnn.masked_fill(~_near(len(sequence_n3ND), call.binding_reach, q_NnD), -torch.inf)
            weights_Nnn = scores_Nnn.softmax(-1)
            if call.weights is not None:
                call.weights.append(weights_Nnn)
            dropped_Nnn = drop(weights_Nnn, call.dropout) if call.dropout else weights_Nnn
            contexts.append((dropped_Nnn @ v_NnD).transpose(0, 1))
            start += len(sequence_n3ND)
        return torch.cat(contexts)


class SDPA:
    """torch's fused attention, over runs of sequences of equal length so that nothing is masked or padded."""

    name = "sdpa"

    def refusal(self, request: AttentionRequest) -> str | None:
        """Every token sees its whole sequence, and scores are plain products."""
        return _plain_only(request)

    def attend(self, call: AttentionCall) -> Tensor:
        """Context of every token, (T, N, D)."""
        heads, width = call.qkv_T3ND.shape[2:]
        runs = list(runs_of_equal_length(call.bounds.lengths))
        contexts = []
        # One split, not a slice for each run: the backward of a slice fills a gradient of the whole batch.
        parts = call.qkv_T3ND.split_with_sizes([end - start for start, end, _ in runs])
        for part_T3ND, (start, end, length) in zip(parts, runs, strict=True):
            q_BNnD, k_BNnD, v_BNnD = part_T3ND.view(-1, length, 3, heads, width).permute(2, 0, 3, 1, 4)
            context_BNnD = F.scaled_dot_product_attention(
                q_BNnD, k_BNnD, v_BNnD, dropout_p=call.dropout, scale=call.scale
            )
            contexts.append(context_BNnD.transpose(1, 2).reshape(end - start, heads, width))
        return contexts[0] if len(contexts) == 1 else torch.cat(contexts)


class Grouped:
    """Matrix product and softmax over groups of neighbours of like length, padded within the group.

    torch's fused attention has no dropout on a CPU and falls back to single steps, for each length anew; a few larger
    steps take two thirds of the time.
    """

    name = "grouped"

    def refusal(self, request: AttentionRequest) -> str | None:
        """Every token sees its whole sequence, and scores are plain products."""
        return _plain_only(request)

    def attend(self, call: AttentionCall) -> Tensor:
        """Context of every token, (T, N, D)."""
        groups = groups_of_like_length(call.bounds.lengths)
        parts = call.qkv_T3ND.split_with_sizes([sum(lengths) for lengths in groups])
        return torch.cat([_attend_group(part, lengths, call) for part, lengths in zip(parts, groups, strict=True)])


class Padded:
    """torch's fused attention over a padded batch with a mask, for devices where many small calls cost more."""

    name = "padded"

    def refusal(self, request: AttentionRequest) -> str | None:
        """It cannot hand out attention weights."""
        return "it does not return attention weights" if request.weights else None

    def attend(self, call: AttentionCall) -> Tensor:
        """Context of every token, (T, N, D)."""
        real_BS = call.bounds.real_BS
        q_BNSD, k_BNSD, v_BNSD = call.bounds.padded(call.qkv_T3ND).permute(2, 0, 3, 1, 4)
        mask = real_BS[:, None, None, :]
        if call.binding_reach is not None:
            # Padding sees itself, so that its softmax is defined.
            mask = (mask | ~real_BS[:, None, :, None]) & _near(call.bounds.max_length, call.binding_reach, q_BNSD)
        if call.relative is not None:
            mask = self._biases(q_BNSD, k_BNSD, call).masked_fill(~mask, -torch.inf)
        context_BNSD = F.scaled_dot_product_attention(
            q_BNSD, k_BNSD, v_BNSD, attn_mask=mask, dropout_p=call.dropout, scale=call.scale
        )
        return call.bounds.rows(context_BNSD.transpose(1, 2))

    @staticmethod
    def _biases(q_BNSD: Tensor, k_BNSD: Tensor, call: AttentionCall) -> Tensor:
        """What distances and segments add to scaled scores: (B, N, S, S)."""
        assert call.relative is not None  # the caller looked
        relative, bounds = call.relative, call.bounds
        gain_TN = None if relative.segments is None else relative.segments.gain_TN
        bias = distance_scores(q_BNSD, k_BNSD, relative)
        if relative.segments is not None and gain_TN is not None:
            types_BS = bounds.padded(relative.segments.types_T)
            gain_BNS1 = bounds.padded(gain_TN).transpose(1, 2)[..., None]
            bias = bias + gain_BNS1 * (types_BS[:, None, :, None] != types_BS[:, None, None, :])
        return bias * call.scale


class VarLen:
    """Variable-length flash attention on a GPU: torch's own, or the ``flash_attn`` package where that is installed."""

    name = "varlen"

    def refusal(self, request: AttentionRequest) -> str | None:
        """It needs a GPU, half precision, a head width that the kernels know, and flash_attn where there is dropout."""
        if request.weights or request.relative or request.local:
            return _plain_only(request)
        if request.device != "cuda":
            return f"it needs a CUDA device, not {request.device!r}"
        if request.dtype not in (torch.float16, torch.bfloat16):
            return f"it needs float16 or bfloat16, not {request.dtype}"
        if request.head_width % 8 or request.head_width > 256:
            return f"it needs a head width that is a multiple of 8 up to 256, not {request.head_width}"
        if request.dropout and not _has_flash_attn():
            return "torch's variable-length kernel has no attention dropout; install flash_attn or set dropout to 0"
        if not (_has_flash_attn() or _has_torch_varlen()):
            return "neither torch.nn.attention.varlen nor the flash_attn package is there"
        return None

    def attend(self, call: AttentionCall) -> Tensor:
        """Context of every token, (T, N, D)."""
        q_TND, k_TND, v_TND = call.qkv_T3ND.unbind(1)
        starts, longest, scale = call.bounds.cu_seqlens, call.bounds.max_length, call.scale
        context_TND: Tensor
        if _has_flash_attn():
            from flash_attn import flash_attn_varlen_func

            context_TND = flash_attn_varlen_func(
                q_TND, k_TND, v_TND, starts, starts, longest, longest, dropout_p=call.dropout, softmax_scale=scale
            )
        else:
            from torch.nn.attention.varlen import varlen_attn

            context_TND = varlen_attn(  # type: ignore[assignment]
                q_TND, k_TND, v_TND, starts, starts, longest, longest, scale=scale
            )
        return context_TND


REFERENCE = Reference()
_VARLEN, _SDPA, _GROUPED, _PADDED, _SKEWED, _LOCAL = VarLen(), SDPA(), Grouped(), Padded(), Skewed(), Local()
# By name alone, until it has been measured.
_FLEX = Flex()
BACKENDS: dict[str, AttentionBackend] = {
    backend.name: backend for backend in (_VARLEN, _SDPA, _GROUPED, _PADDED, _SKEWED, _LOCAL, _FLEX, REFERENCE)
}

# What to try, in this order: a GPU would rather compute some padding than be called for each length.
_ON_CPU: tuple[AttentionBackend, ...] = (_SDPA, _SKEWED, _LOCAL, REFERENCE)
_ON_CPU_WITH_DROPOUT: tuple[AttentionBackend, ...] = (_GROUPED, _SKEWED, _LOCAL, REFERENCE)
_ELSEWHERE: tuple[AttentionBackend, ...] = (_VARLEN, _LOCAL, _PADDED, REFERENCE)


def choose(request: AttentionRequest, name: str | None = None) -> AttentionBackend:
    """The backend for a request: the named one, or the fastest that can serve it on its device.

    Raises:
        UnsupportedAttention: The named backend does not exist or cannot serve the request.
    """
    if name is None:
        on_cpu = _ON_CPU_WITH_DROPOUT if request.dropout else _ON_CPU
        candidates = on_cpu if request.device == "cpu" else _ELSEWHERE
        return next(backend for backend in candidates if backend.refusal(request) is None)
    if name not in BACKENDS:
        raise UnsupportedAttention(f"there is no attention backend {name!r}. Choose one of {', '.join(BACKENDS)}.")
    refusal = BACKENDS[name].refusal(request)
    if refusal is not None:
        raise UnsupportedAttention(
            f"the attention backend {name!r} cannot serve this call: {refusal}. Try 'reference'."
        )
    return BACKENDS[name]


def runs_of_equal_length(lengths: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """First row, row after the last, and length, for each run of neighbouring sequences of one length.

    >>> list(runs_of_equal_length((3, 3, 5)))
    [(0, 6, 3), (6, 11, 5)]
    """
    row = start = 0
    for index, length in enumerate(lengths):
        row += length
        if index + 1 == len(lengths) or lengths[index + 1] != length:
            yield start, row, length
            start = row


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


def _attend_group(qkv_T3ND: Tensor, lengths: tuple[int, ...], call: AttentionCall) -> Tensor:
    """Context (T, N, D) of a group of sequences, padded to the longest of them where they differ."""
    count, longest = len(lengths), max(lengths)
    heads, width = qkv_T3ND.shape[2:]
    lengths_B = torch.tensor(lengths, device=qkv_T3ND.device)
    real_BS = torch.arange(longest, device=qkv_T3ND.device) < lengths_B[:, None]
    rows_T = real_BS.flatten().nonzero()[:, 0] if min(lengths) != longest else None
    if rows_T is not None:
        qkv_T3ND = qkv_T3ND.new_zeros(count * longest, 3, heads, width).index_copy(0, rows_T, qkv_T3ND)
    # One copy for queries, keys and values: the products want every head's rows side by side.
    q_PSD, k_PSD, v_PSD = qkv_T3ND.view(count, longest, 3, heads, width).permute(2, 0, 3, 1, 4).flatten(1, 2)
    bias_BS = torch.zeros(count, longest, dtype=q_PSD.dtype, device=q_PSD.device).masked_fill_(~real_BS, -torch.inf)
    bias_P1S = bias_BS.repeat_interleave(heads, 0)[:, None]
    scores_PSS = torch.baddbmm(bias_P1S, q_PSD, k_PSD.transpose(1, 2), alpha=call.scale)
    context_PSD: Tensor = drop(scores_PSS.softmax(-1), call.dropout) @ v_PSD
    context_TND = context_PSD.view(count, heads, longest, width).transpose(1, 2).reshape(-1, heads, width)
    return context_TND if rows_T is None else context_TND.index_select(0, rows_T)


def relative_scores(q_NnD: Tensor, k_NnD: Tensor, relative: RelativeScores, start: int) -> Tensor:
    """What distances and segments add to one sequence's unscaled scores, (N, n, n); it begins at row ``start``."""
    scores_Nnn = distance_scores(q_NnD, k_NnD, relative)
    if relative.segments is not None:
        rows = slice(start, start + q_NnD.shape[1])
        gain_Nn, types_n = relative.segments.gain_TN[rows].t(), relative.segments.types_T[rows]
        scores_Nnn = scores_Nnn + gain_Nn[..., None] * (types_n[:, None] != types_n)
    return scores_Nnn


def distance_scores(q_NnD: Tensor, k_NnD: Tensor, relative: RelativeScores) -> Tensor:
    """What distances add to unscaled scores, (..., N, n, n), gathered with an index of n x n."""
    length = q_NnD.shape[-2]
    place_n = torch.arange(length, device=q_NnD.device)
    scores_Nnn = q_NnD.new_zeros(*q_NnD.shape[:-1], length)
    # By i - j: the table's middle row is distance 0.
    distance_nn = (place_n[:, None] - place_n).expand(scores_Nnn.shape)
    if relative.keys_WND is not None:
        asking_NnD = q_NnD if relative.shift_ND is None else q_NnD + relative.shift_ND[:, None]
        met_NnW = asking_NnD @ relative.keys_WND.permute(1, 2, 0)
        scores_Nnn = scores_Nnn + met_NnW.gather(-1, distance_nn + relative.keys_WND.shape[0] // 2)
    if relative.queries_WND is not None:
        met_NnW = k_NnD @ relative.queries_WND.permute(1, 2, 0)
        # Rows are keys here, so the distance is j - i by row and column.
        found_Nnn = met_NnW.gather(-1, relative.queries_WND.shape[0] // 2 - distance_nn)
        scores_Nnn = scores_Nnn + found_Nnn.transpose(-1, -2)
    return scores_Nnn


def _plain_only(request: AttentionRequest) -> str | None:
    """Why a backend cannot serve that has no weights to show, no local windows and no scores of distances."""
    if request.weights:
        return "it does not return attention weights"
    if request.relative:
        return "it has no scores that depend on distances"
    return "it has no local windows" if request.local else None


def _near(length: int, reach: int, like: Tensor) -> Tensor:
    """Whether two tokens are within reach of each other, (n, n)."""
    place_n = torch.arange(length, device=like.device)
    return (place_n[:, None] - place_n).abs() <= reach


@cache
def _has_flash_attn() -> bool:
    return find_spec("flash_attn") is not None


@cache
def _has_torch_varlen() -> bool:
    return find_spec("torch.nn.attention.varlen") is not None
