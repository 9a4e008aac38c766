"""Attention over packed tokens: the one place that looks at sequence bounds.

A backend answers whether it can serve a request, and why not; `choose` picks the first that can, or holds the caller to
the one that was named.

Shapes: B sequences, S longest sequence, T packed tokens, N heads, D head width, P pairs of a sequence and a head.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor

from bothways.encoder.dropout import dropout as drop
from bothways.errors import UnsupportedAttention
from bothways.packing import Packed, to_padded


@dataclass(frozen=True, slots=True)
class AttentionRequest:
    """What an attention call needs of its backend.

    Attributes:
        device: Type of the device: ``"cpu"``, ``"cuda"``, ...
        dtype: Of queries, keys and values.
        head_width: D.
        dropout: Rate applied to the attention weights; 0 outside training.
        weights: Whether the attention weights themselves are wanted.
    """

    device: str
    dtype: torch.dtype
    head_width: int
    dropout: float
    weights: bool


class AttentionBackend(Protocol):
    """Scaled dot-product attention within each sequence of a packed batch."""

    name: str

    def refusal(self, request: AttentionRequest) -> str | None:
        """Why this backend cannot serve the request; None when it can."""

    def attend(self, qkv_T3ND: Tensor, bounds: Packed, dropout: float) -> Tensor:
        """Context of every token, (T, N, D)."""


class Reference:
    """Plain matrix product and softmax, one sequence at a time: any device, any dtype. The oracle of the others."""

    name = "reference"

    def refusal(self, request: AttentionRequest) -> str | None:
        """It serves everything."""
        del request
        return None

    def attend(self, qkv_T3ND: Tensor, bounds: Packed, dropout: float) -> Tensor:
        """Context of every token, (T, N, D)."""
        return self.attend_with_weights(qkv_T3ND, bounds, dropout)[0]

    def attend_with_weights(self, qkv_T3ND: Tensor, bounds: Packed, dropout: float) -> tuple[Tensor, list[Tensor]]:
        """Context of every token (T, N, D), and for each sequence of n tokens its weights (N, n, n)."""
        contexts, weights = [], []
        for sequence_n3ND in qkv_T3ND.split_with_sizes(list(bounds.lengths)):
            q_NnD, k_NnD, v_NnD = sequence_n3ND.permute(1, 2, 0, 3)
            scores_Nnn = q_NnD @ k_NnD.transpose(1, 2) * q_NnD.shape[-1] ** -0.5
            weights_Nnn = scores_Nnn.softmax(-1)
            weights.append(weights_Nnn)
            dropped_Nnn = drop(weights_Nnn, dropout) if dropout else weights_Nnn
            contexts.append((dropped_Nnn @ v_NnD).transpose(0, 1))
        return torch.cat(contexts), weights


class SDPA:
    """torch's fused attention, over runs of sequences of equal length so that nothing is masked or padded."""

    name = "sdpa"

    def refusal(self, request: AttentionRequest) -> str | None:
        """It cannot hand out attention weights."""
        return "it does not return attention weights" if request.weights else None

    def attend(self, qkv_T3ND: Tensor, bounds: Packed, dropout: float) -> Tensor:
        """Context of every token, (T, N, D)."""
        heads, width = qkv_T3ND.shape[2:]
        runs = list(runs_of_equal_length(bounds.lengths))
        contexts = []
        # One split, not a slice for each run: the backward of a slice fills a gradient of the whole batch.
        parts = qkv_T3ND.split_with_sizes([end - start for start, end, _ in runs])
        for part_T3ND, (start, end, length) in zip(parts, runs, strict=True):
            q_BNnD, k_BNnD, v_BNnD = part_T3ND.view(-1, length, 3, heads, width).permute(2, 0, 3, 1, 4)
            context_BNnD = F.scaled_dot_product_attention(q_BNnD, k_BNnD, v_BNnD, dropout_p=dropout)
            contexts.append(context_BNnD.transpose(1, 2).reshape(end - start, heads, width))
        return contexts[0] if len(contexts) == 1 else torch.cat(contexts)


class Grouped:
    """Matrix product and softmax over groups of neighbours of like length, padded within the group.

    torch's fused attention has no dropout on a CPU and falls back to single steps, for each length anew; a few larger
    steps take two thirds of the time.
    """

    name = "grouped"

    def refusal(self, request: AttentionRequest) -> str | None:
        """It cannot hand out attention weights."""
        return "it does not return attention weights" if request.weights else None

    def attend(self, qkv_T3ND: Tensor, bounds: Packed, dropout: float) -> Tensor:
        """Context of every token, (T, N, D)."""
        groups = groups_of_like_length(bounds.lengths)
        parts = qkv_T3ND.split_with_sizes([sum(lengths) for lengths in groups])
        return torch.cat([_attend_group(part, lengths, dropout) for part, lengths in zip(parts, groups, strict=True)])


class Padded:
    """torch's fused attention over a padded batch with a mask, for devices where many small calls cost more."""

    name = "padded"

    def refusal(self, request: AttentionRequest) -> str | None:
        """It cannot hand out attention weights."""
        return "it does not return attention weights" if request.weights else None

    def attend(self, qkv_T3ND: Tensor, bounds: Packed, dropout: float) -> Tensor:
        """Context of every token, (T, N, D)."""
        lengths_B = bounds.cu_seqlens.diff()
        real_BS = torch.arange(bounds.max_length, device=lengths_B.device) < lengths_B[:, None]
        q_BNSD, k_BNSD, v_BNSD = to_padded(qkv_T3ND, bounds.lengths).permute(2, 0, 3, 1, 4)
        context_BNSD = F.scaled_dot_product_attention(
            q_BNSD, k_BNSD, v_BNSD, attn_mask=real_BS[:, None, None, :], dropout_p=dropout
        )
        return context_BNSD.transpose(1, 2)[real_BS]


class VarLen:
    """Variable-length flash attention on a GPU: torch's own, or the ``flash_attn`` package where that is installed."""

    name = "varlen"

    def refusal(self, request: AttentionRequest) -> str | None:
        """It needs a GPU, half precision, a head width that the kernels know, and flash_attn where there is dropout."""
        if request.weights:
            return "it does not return attention weights"
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

    def attend(self, qkv_T3ND: Tensor, bounds: Packed, dropout: float) -> Tensor:
        """Context of every token, (T, N, D)."""
        q_TND, k_TND, v_TND = qkv_T3ND.unbind(1)
        starts, longest = bounds.cu_seqlens, bounds.max_length
        context_TND: Tensor
        if _has_flash_attn():
            from flash_attn import flash_attn_varlen_func

            context_TND = flash_attn_varlen_func(
                q_TND, k_TND, v_TND, starts, starts, longest, longest, dropout_p=dropout
            )
        else:
            from torch.nn.attention.varlen import varlen_attn

            context_TND = varlen_attn(q_TND, k_TND, v_TND, starts, starts, longest, longest)  # type: ignore[assignment]
        return context_TND


REFERENCE = Reference()
_VARLEN, _SDPA, _GROUPED, _PADDED = VarLen(), SDPA(), Grouped(), Padded()
BACKENDS: dict[str, AttentionBackend] = {
    backend.name: backend for backend in (_VARLEN, _SDPA, _GROUPED, _PADDED, REFERENCE)
}

# What to try, in this order: a GPU would rather compute some padding than be called for each length.
_ON_CPU: tuple[AttentionBackend, ...] = (_SDPA, REFERENCE)
_ON_CPU_WITH_DROPOUT: tuple[AttentionBackend, ...] = (_GROUPED, REFERENCE)
_ELSEWHERE: tuple[AttentionBackend, ...] = (_VARLEN, _PADDED, REFERENCE)


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


def _attend_group(qkv_T3ND: Tensor, lengths: tuple[int, ...], dropout: float) -> Tensor:
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
    scores_PSS = torch.baddbmm(bias_P1S, q_PSD, k_PSD.transpose(1, 2), alpha=width**-0.5)
    context_PSD: Tensor = drop(scores_PSS.softmax(-1), dropout) @ v_PSD
    context_TND = context_PSD.view(count, heads, longest, width).transpose(1, 2).reshape(-1, heads, width)
    return context_TND if rows_T is None else context_TND.index_select(0, rows_T)


def attend_once(q_BND: Tensor, k_TND: Tensor, v_TND: Tensor, bounds: Packed, dropout: float) -> Tensor:
    """Context (B, N, D) of one query for each sequence, over all of the sequence's keys and values."""
    places = torch.repeat_interleave(bounds.cu_seqlens.diff()), bounds.positions_T
    scores_TN = (q_BND[places[0]] * k_TND).sum(-1) * q_BND.shape[-1] ** -0.5
    scores_BSN = scores_TN.new_full((len(q_BND), bounds.max_length, q_BND.shape[1]), -torch.inf)
    weights_BSN = scores_BSN.index_put(places, scores_TN).softmax(1)
    weights_TN = (drop(weights_BSN, dropout) if dropout else weights_BSN)[places]
    context_BND: Tensor = torch.zeros_like(q_BND).index_add(0, places[0], weights_TN[..., None] * v_TND)
    return context_BND


@cache
def _has_flash_attn() -> bool:
    return find_spec("flash_attn") is not None


@cache
def _has_torch_varlen() -> bool:
    return find_spec("torch.nn.attention.varlen") is not None
