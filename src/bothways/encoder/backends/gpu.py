"""Attention on a GPU: variable-length flash attention, torch's FlexAttention, and the rotation of queries and keys.

torch compiles the kernel of FlexAttention from two small functions: one selects the visible pairs, the other changes
a score. The products of queries and keys with the distance vectors, (N, T, W), are computed beforehand, so the kernel
needs no index or bias of n x n. Without a GPU, for tests, the same functions run slowly and without gradients.

The rotation is a kernel that reads and writes each number once. In plain torch (`bothways.encoder.positions.Rotary`) it
takes eight passes over queries and keys, most of them in float32: half of the time of a ModernBERT on an H200. It is
compiled by Triton, which comes with torch on Linux, once for each dtype and shape of the heads.

Shapes: T packed tokens, N heads, D head width, W = 2 S - 1 distances, Q blocks of rows; P parts of all heads and U
columns of half a head, filled up to powers of two.
"""

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bothways.encoder.backends.basic import AttentionCall, AttentionRequest, RelativeScores
from bothways.encoder.modules import FunctionContext
from bothways.packing import Packed

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

_BLOCK = 128
# Minimum head width that the kernel supports.
_NARROWEST = 16

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class VarLen:
    """Variable-length flash attention on a GPU, by torch or the ``flash_attn`` package."""

    name = "varlen"

    def refusal(self, request: AttentionRequest) -> str | None:
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
        q_TND, k_TND, v_TND = call.qkv_T3ND.unbind(1)
        starts, longest = call.batch.cu_seqlens, call.batch.max_length
        seen = (-1, -1) if call.reach is None else (call.reach, call.reach)
        if kernel := flash_attn_kernel():
            options = {"dropout_p": call.dropout, "softmax_scale": call.scale, "window_size": seen}
            return kernel(q_TND, k_TND, v_TND, starts, starts, longest, longest, **options)
        # The operator behind torch.nn.attention.varlen. That module takes a second to import and has no dropout.
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


@cache
def flash_attn_kernel() -> Callable[..., Tensor] | None:
    """Return the kernel of the flash_attn package; None if it is missing or was built for another torch."""
    try:
        from flash_attn import flash_attn_varlen_func
    except (ImportError, OSError):
        return None
    kernel: Callable[..., Tensor] = flash_attn_varlen_func
    return kernel


class Flex:
    """Attention with relative scores, local windows or both, without padding, by torch's FlexAttention."""

    name = "flex"

    def refusal(self, request: AttentionRequest) -> str | None:
        if request.device != "cuda":
            return f"it needs a CUDA device, not {request.device!r}"
        unmet = request.unmet(local=True, relative=True)
        if unmet is not None:
            return unmet
        if request.dropout:
            return "it supports no attention dropout"
        if request.head_width < _NARROWEST:
            return f"it needs a head width of at least {_NARROWEST}, not {request.head_width}"
        return None

    def attend(self, call: AttentionCall) -> Tensor:
        q_NTD, k_NTD, v_NTD = (part.transpose(0, 1) for part in call.qkv_T3ND.unbind(1))
        context_1NTD = _kernel(q_NTD.device.type)(
            q_NTD[None],
            k_NTD[None],
            v_NTD[None],
            score_mod=None if call.relative is None else _score_mod(q_NTD, k_NTD, call.relative, call),
            block_mask=call.packed.once(_block_mask, call.reach),
            scale=call.scale,
        )
        context_TND: Tensor = context_1NTD[0].transpose(0, 1)
        return context_TND


@cache
def _kernel(device: str) -> Callable[..., Tensor]:
    """Return FlexAttention, compiled on a GPU; new sequence lengths do not recompile it."""
    # Imported late, since it imports torch's compiler.
    from torch.nn.attention.flex_attention import flex_attention

    kernel: Callable[..., Tensor] = flex_attention
    return torch.compile(kernel, dynamic=True) if device == "cuda" else kernel


def _block_mask(packed: Packed, reach: int | None) -> "BlockMask":
    """Return the mask of the blocks with tokens of a common sequence, and of the visible pairs in these blocks."""
    from torch.nn.attention.flex_attention import BlockMask

    sequence_T = packed.sequence_T

    def seen(_: Tensor, __: Tensor, row: Tensor, column: Tensor) -> Tensor:
        together = sequence_T[row] == sequence_T[column]
        return together if reach is None else together & ((row - column).abs() <= reach)

    rows = len(sequence_T)
    starts_Q = torch.arange(0, rows, _BLOCK, device=sequence_T.device)
    first_Q, last_Q = sequence_T[starts_Q], sequence_T[(starts_Q + _BLOCK - 1).clamp(max=rows - 1)]
    share_QQ = (first_Q[:, None] <= last_Q) & (last_Q[:, None] >= first_Q)
    if reach is not None:
        share_QQ &= (starts_Q[:, None] - starts_Q).abs() < reach + _BLOCK
    count_Q = share_QQ.sum(-1, dtype=torch.int32)
    # The visible blocks first, in their order; later entries are not read.
    order_QQ = share_QQ.to(torch.int32).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return BlockMask.from_kv_blocks(
        count_Q[None, None], order_QQ[None, None], BLOCK_SIZE=_BLOCK, mask_mod=seen, seq_lengths=(rows, rows)
    )


def _score_mod(q_NTD: Tensor, k_NTD: Tensor, relative: RelativeScores, call: AttentionCall) -> ScoreMod:
    """Return the function that adds the relative terms to a scaled score."""
    types_T, scale = call.batch.types_T, call.scale
    asking_NTD = q_NTD if relative.shift_ND is None else q_NTD + relative.shift_ND[:, None].to(q_NTD.dtype)
    by_query_NTW = _table_products(asking_NTD, relative.keys_WND, scale)
    by_key_NTW = _table_products(k_NTD, relative.queries_WND, scale)
    tables = [table for table in (relative.keys_WND, relative.queries_WND) if table is not None]
    furthest = len(tables[0]) // 2 if tables else 0
    gain_TN = None if relative.gain_TN is None else relative.gain_TN * scale

    def changed(score: Tensor, _: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        # Pairs from different sequences are masked, so it does not matter which distance is read for them.
        distance = (row - column + furthest).clamp(0, 2 * furthest)
        if by_query_NTW is not None:
            score = score + by_query_NTW[head, row, distance]
        if by_key_NTW is not None:
            score = score + by_key_NTW[head, column, distance]
        if gain_TN is not None:
            differ = types_T[row] != types_T[column]
            score = score + torch.where(differ, gain_TN[row, head], torch.zeros_like(gain_TN[row, head]))
        return score

    return changed


def _table_products(rows_NTD: Tensor, table_WND: Tensor | None, scale: float) -> Tensor | None:
    """Return the scaled products of queries or keys with all distance vectors, (N, T, W)."""
    return None if table_WND is None else (rows_NTD * scale) @ table_WND.to(rows_NTD.dtype).permute(1, 2, 0)


# --- rotation ---

tl: ModuleType
"""``triton.language``, from the first use of `_rotation` on: a kernel reads it from its module."""


class _Rotation(torch.autograd.Function):
    """Rotate the queries and keys of (T, 3, N, D) by angles (T, D); the backward pass rotates the other way round."""

    @staticmethod
    def forward(ctx: FunctionContext, qkv_T3ND: Tensor, cosines_TD: Tensor, sines_TD: Tensor) -> Tensor:
        ctx.save_for_backward(cosines_TD, sines_TD)
        return _rotated(qkv_T3ND, cosines_TD, sines_TD, 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, gradient_T3ND: Tensor) -> tuple[Tensor | None, ...]:
        cosines_TD, sines_TD = ctx.saved_tensors
        return _rotated(gradient_T3ND, cosines_TD, sines_TD, -1.0), None, None


rotate: Callable[[Tensor, Tensor, Tensor], Tensor] = _Rotation.apply


@cache
def can_rotate() -> bool:
    """Return True if `rotate` can be compiled: False without Triton, or without the C compiler that Triton needs."""
    try:
        rotate(*(torch.zeros(1, *shape, device="cuda") for shape in ((3, 1, 2), (2,), (2,))))
    except Exception:  # of many types, since Triton starts other programs
        return False
    return True


def _rotated(qkv_T3ND: Tensor, cosines_TD: Tensor, sines_TD: Tensor, direction: float) -> Tensor:
    qkv_T3ND = qkv_T3ND.contiguous()
    tokens, _, heads, width = qkv_T3ND.shape
    turned_T3ND = torch.empty_like(qkv_T3ND)
    if tokens:
        filled = (1 << (count - 1).bit_length() for count in (3 * heads, width // 2))
        with torch.cuda.device(qkv_T3ND.device):
            _rotation()[(tokens,)](turned_T3ND, qkv_T3ND, cosines_TD, sines_TD, direction, heads, width, *filled)
    return turned_T3ND


@cache
def _rotation() -> dict[tuple[int, ...], Callable[..., object]]:
    """Return the kernel, by the number of its programs."""
    global tl
    from triton import jit, language

    tl = language
    _turn.__annotations__.update(dict.fromkeys(("heads", "width", "P", "U"), language.constexpr))
    kernel: dict[tuple[int, ...], Callable[..., object]] = jit(_turn)
    return kernel


def _turn(
    turned_T3ND: "Tensor",
    qkv_T3ND: "Tensor",
    cosines_TD: "Tensor",
    sines_TD: "Tensor",
    direction: float,
    heads: int,
    width: int,
    P: int,
    U: int,
) -> None:
    """Rotate the queries and keys of one token, and copy its values; computed in float32."""
    half = width // 2
    token = tl.program_id(0).to(tl.int64)
    head_P1, column_1U = tl.arange(0, P)[:, None], tl.arange(0, U)[None, :]
    exists_PU = (head_P1 < 3 * heads) & (column_1U < half)
    place_PU = token * (3 * heads * width) + head_P1 * width + column_1U
    angle_1U = token * width + column_1U
    cosine_1U = tl.load(cosines_TD + angle_1U, mask=column_1U < half, other=0.0)
    sine_1U = tl.load(sines_TD + angle_1U, mask=column_1U < half, other=0.0) * direction
    turns_P1 = head_P1 < 2 * heads
    cosine_PU, sine_PU = tl.where(turns_P1, cosine_1U, 1.0), tl.where(turns_P1, sine_1U, 0.0)
    first_PU = tl.load(qkv_T3ND + place_PU, mask=exists_PU, other=0.0).to(tl.float32)
    second_PU = tl.load(qkv_T3ND + place_PU + half, mask=exists_PU, other=0.0).to(tl.float32)
    tl.store(turned_T3ND + place_PU, first_PU * cosine_PU - second_PU * sine_PU, mask=exists_PU)
    tl.store(turned_T3ND + place_PU + half, second_PU * cosine_PU + first_PU * sine_PU, mask=exists_PU)
