"""Attention over packed tokens: the one place that looks at sequence bounds.

A backend answers whether it can serve a request, and why not; `choose` picks the first that can, or holds the caller to
the one that was named.

Shapes: B sequences, T packed tokens, N heads, D head width, n tokens of one sequence.
"""

from collections.abc import Callable, Iterator
from functools import cache
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
        """Return why this backend cannot serve the request; None if it can."""

    def attend(self, call: AttentionCall) -> Tensor:
        """Return the context of every token, (T, N, D)."""


class SDPA:
    """torch's fused attention, over runs of sequences of equal length so that nothing is masked or padded."""

    name = "sdpa"

    def refusal(self, request: AttentionRequest) -> str | None:
        """Refuse anything but plain products over whole sequences."""
        return request.unmet()

    def attend(self, call: AttentionCall) -> Tensor:
        """Return the context of every token, (T, N, D)."""
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
    """Variable-length flash attention on a GPU, by torch or the ``flash_attn`` package."""

    name = "varlen"

    def refusal(self, request: AttentionRequest) -> str | None:
        """Refuse all but half precision on a GPU with flash attention, with a head width that the kernels support."""
        unmet = request.unmet(local=True)
        if unmet is not None:
            return unmet
        if request.device != "cuda":
            return f"it needs a CUDA device, not {request.device!r}"
        if request.capability < 8:
            return f"it needs a GPU of compute capability 8.0 or newer, and this one has {request.capability}.x"
        if request.dtype not in (torch.float16, torch.bfloat16):
            return f"it needs float16 or bfloat16, not {request.dtype}"
        if request.head_width % 8 or request.head_width > 256:
            return f"it needs a head width that is a multiple of 8 up to 256, not {request.head_width}"
        if not (flash_attn_kernel() or torch.backends.cuda.is_flash_attention_available()):
            return "this torch was built without flash attention, and there is no flash_attn package that it can use"
        return None

    def attend(self, call: AttentionCall) -> Tensor:
        """Return the context of every token, (T, N, D)."""
        q_TND, k_TND, v_TND = call.qkv_T3ND.unbind(1)
        starts, longest = call.batch.cu_seqlens, call.batch.max_length
        seen = (-1, -1) if call.binding_reach is None else (call.binding_reach, call.binding_reach)
        if kernel := flash_attn_kernel():
            options = {"dropout_p": call.dropout, "softmax_scale": call.scale, "window_size": seen}
            return kernel(q_TND, k_TND, v_TND, starts, starts, longest, longest, **options)
        # What torch.nn.attention.varlen calls; that takes a second to import, and leaves out the dropout of the kernel.
        context_TND: Tensor
        context_TND, *_ = torch.ops.aten._flash_attention_forward(
            *(q_TND, k_TND, v_TND, starts, starts, longest, longest, call.dropout),
            is_causal=False,
            return_debug_mask=False,
            scale=call.scale,
            window_size_left=seen[0],
            window_size_right=seen[1],
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
    """Return the named backend for a request, or the fastest that can serve it on its device.

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
    """Yield first row, row after the last, and length of each run of neighbouring sequences of equal length.

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
def flash_attn_kernel() -> Callable[..., Tensor] | None:
    """Return the kernel of the flash_attn package; None if it is missing or was built for another torch."""
    try:
        from flash_attn import flash_attn_varlen_func
    except (ImportError, OSError):
        return None
    kernel: Callable[..., Tensor] = flash_attn_varlen_func
    return kernel
