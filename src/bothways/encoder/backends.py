"""Attention over packed tokens: the one place that looks at sequence bounds.

A backend answers whether it can serve a request, and why not; `choose` picks the first that can, or holds the caller to
the one that was named.

Shapes: B sequences, T packed tokens, N heads, D head width, n tokens of one sequence.
"""

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor

from bothways.encoder.attention_call import AttentionCall, AttentionRequest
from bothways.encoder.dense import Padded, Reference
from bothways.encoder.flex import Flex
from bothways.encoder.grouped import Grouped
from bothways.encoder.local import Local
from bothways.encoder.relative import Skewed
from bothways.errors import UnsupportedAttention
from bothways.packing import Packed


class AttentionBackend(Protocol):
    """Scaled dot-product attention within each sequence of a packed batch."""

    name: str

    def refusal(self, request: AttentionRequest) -> str | None:
        """Why this backend cannot serve the request; None when it can."""

    def attend(self, call: AttentionCall) -> Tensor:
        """Context of every token, (T, N, D)."""


class SDPA:
    """torch's fused attention, over runs of sequences of equal length so that nothing is masked or padded."""

    name = "sdpa"

    def refusal(self, request: AttentionRequest) -> str | None:
        """Every token sees its whole sequence, and scores are plain products."""
        return request.unmet()

    def attend(self, call: AttentionCall) -> Tensor:
        """Context of every token, (T, N, D)."""
        heads, width = call.qkv_T3ND.shape[2:]
        runs = call.packed.once(_runs)
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


class VarLen:
    """Variable-length flash attention on a GPU: torch's own, or the ``flash_attn`` package where that is installed."""

    name = "varlen"

    def refusal(self, request: AttentionRequest) -> str | None:
        """It needs a GPU, half precision, a head width that the kernels know, and flash_attn where there is dropout."""
        unmet = request.unmet()
        if unmet is not None:
            return unmet
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
        starts, longest, scale = call.batch.cu_seqlens, call.batch.max_length, call.scale
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
_ON_CPU: tuple[AttentionBackend, ...] = (_SDPA, _SKEWED, _LOCAL, REFERENCE, _PADDED)
_ON_CPU_WITH_DROPOUT: tuple[AttentionBackend, ...] = (_GROUPED, _SKEWED, _LOCAL, REFERENCE, _PADDED)
_ELSEWHERE: tuple[AttentionBackend, ...] = (_VARLEN, _LOCAL, _PADDED, REFERENCE)


def choose(request: AttentionRequest, name: str | None = None) -> AttentionBackend:
    """Return the backend for a request: the named one, or the fastest that can serve it on its device.

    Raises:
        UnsupportedAttention: The named backend does not exist or cannot serve the request, or none can.
    """
    if name is None:
        on_cpu = _ON_CPU_WITH_DROPOUT if request.dropout else _ON_CPU
        for backend in on_cpu if request.device == "cpu" else _ELSEWHERE:
            if backend.refusal(request) is None:
                return backend
        reasons = "; ".join(f"{name!r}: {backend.refusal(request)}" for name, backend in BACKENDS.items())
        raise UnsupportedAttention(f"no attention backend can serve this call. {reasons}.")
    if name not in BACKENDS:
        raise UnsupportedAttention(f"there is no attention backend {name!r}. Choose one of {', '.join(BACKENDS)}.")
    refusal = BACKENDS[name].refusal(request)
    if refusal is not None:
        able = ", ".join(repr(name) for name, backend in BACKENDS.items() if backend.refusal(request) is None)
        raise UnsupportedAttention(
            f"the attention backend {name!r} cannot serve this call: {refusal}. Backends that can: {able or 'none'}."
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


def _runs(packed: Packed) -> list[tuple[int, int, int]]:
    return list(runs_of_equal_length(packed.lengths))


@cache
def _has_flash_attn() -> bool:
    return find_spec("flash_attn") is not None


@cache
def _has_torch_varlen() -> bool:
    return find_spec("torch.nn.attention.varlen") is not None
