"""The linear maps of an encoder, computed by the faster of two libraries, and weight formats for inference.

Both libraries agree with `torch.nn.functional.linear` within rounding. oneDNN compiles 0.7 MB of code for each number
of rows, so it gets whole blocks of rows. Inference packs its batches in whole blocks
(`bothways.inference.texts`); in other batches, the last rows are padded with zeros or multiplied by torch.

Inference mode uses a formatted copy of a parameter: in the format chosen for it (bfloat16 or int8), or else in
oneDNN's own layout if that is faster. The copy is dropped with its parameter, and ignored once the parameter changes.
Changes through ``.data`` or a numpy view go unnoticed, since torch does not count them.

Shapes: T rows, I and O widths; H hidden, N heads, D head width.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from weakref import ref

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.optim.optimizer import register_optimizer_step_post_hook

from bothways.encoder.config import AttentionBiases
from bothways.encoder.modules import FunctionContext
from bothways.products import (
    ROW_BLOCK,
    has_bfloat16_product,
    in_parts,
    matrix_product,
    onednn_product,
    packed,
    packed_block,
)

QUERY, KEY, VALUE = range(3)
_ON_VALUE: tuple[AttentionBiases, ...] = ("query and value, and output",)
_ON_QUERY: tuple[AttentionBiases, ...] = ("query only", *_ON_VALUE)


class Linear(nn.Linear):
    """A map ``x W^T + b`` like `torch.nn.Linear`, but with weights drawn by `bothways.encoder.encoder.initialize`."""

    def reset_parameters(self) -> None:
        pass

    def forward(self, x_TI: Tensor) -> Tensor:
        return linear(x_TI, self.weight, self.bias)


class QKV(nn.Module):
    """Queries, keys and values by one fused linear map: one weight (3 H, H), with biases for all, some or none.

    If only some of the three have biases, each bias is a parameter of its own.
    """

    def __init__(self, hidden: int, heads: int, biases: AttentionBiases) -> None:
        super().__init__()
        self.heads = heads
        self.weight = nn.Parameter(torch.empty(3 * hidden, hidden))
        self.bias = nn.Parameter(torch.zeros(3 * hidden)) if biases == "all" else None
        self.query_bias = nn.Parameter(torch.zeros(hidden)) if biases in _ON_QUERY else None
        self.value_bias = nn.Parameter(torch.zeros(hidden)) if biases in _ON_VALUE else None

    def forward(self, hidden_TH: Tensor) -> Tensor:
        """Map (T, H) to (T, 3, N, D)."""
        bias = self.bias if self.query_bias is None else self._joined_bias(self.query_bias)
        qkv_T3H = linear(hidden_TH, self.weight, bias)
        return qkv_T3H.view(hidden_TH.shape[0], 3, self.heads, -1)

    def parts(self, rows_TH: Tensor, first: int, count: int = 1) -> Tensor:
        """Map (T, H) to ``count`` of the three, starting with `QUERY`, `KEY` or `VALUE`: (T, count, N, D)."""
        hidden = self.weight.shape[1]
        # A split, not a slice: the backward pass of a slice would fill a gradient of the whole weight.
        sizes = [first * hidden, count * hidden, (3 - first - count) * hidden]
        bias = self.bias if self.query_bias is None else self._joined_bias(self.query_bias)
        part_bias = None if bias is None else bias.split_with_sizes(sizes)[1]
        found = linear(rows_TH, self.weight.split_with_sizes(sizes)[1], part_bias)
        return found.view(rows_TH.shape[0], count, self.heads, -1)

    def _joined_bias(self, query_bias: Tensor) -> Tensor:
        """Return the biases of queries, keys and values in one vector, with zeros for missing ones."""
        zeros = self.weight.new_zeros(self.weight.shape[1])
        return torch.cat([query_bias, zeros, zeros if self.value_bias is None else self.value_bias])


def linear(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """Return ``x W^T + b`` (T, O)."""
    # Tensor subclasses (fake tensors, tensors of a graph being exported) go to torch.
    if not (
        type(x_TI) is Tensor
        and x_TI.device.type == "cpu"
        and x_TI.dtype == weight_OI.dtype == torch.float32
        and x_TI.dim() == 2
        and x_TI.shape[0] > 0
        and not torch.is_autocast_enabled("cpu")
    ):
        return F.linear(x_TI, weight_OI, bias_O)
    if torch.is_inference_mode_enabled() and (form := form_of(weight_OI, x_TI.shape[0])) is not None:
        return form.product(x_TI, bias_O)
    if matrix_product().library != "onednn" or len(x_TI) + rows_to_fill(len(x_TI), packed=False) < ROW_BLOCK:
        return F.linear(x_TI, weight_OI, bias_O)
    if torch.is_grad_enabled():
        return _product(x_TI, weight_OI, bias_O)
    return _in_blocks(x_TI, weight_OI, bias_O)


def rows_to_fill(rows: int, *, packed: bool = True) -> int:
    """Return the number of rows to add to a batch to fill whole blocks; 0 if the added rows would cost time.

    ``packed`` is True in inference, where weights may be in oneDNN's packed layout.
    """
    product = matrix_product()
    if packed and rows <= product.packed_rows:
        return -rows % packed_block(rows)
    missing = -rows % ROW_BLOCK
    return missing if missing <= product.filling * rows else 0


class _Product(torch.autograd.Function):
    """The linear map, with the forward and both backward products by oneDNN."""

    @staticmethod
    def forward(ctx: FunctionContext, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_TI, weight_OI)
        return _in_blocks(x_TI, weight_OI, bias_O)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, gradient_TO: Tensor) -> tuple[Tensor | None, ...]:
        x_TI, weight_OI = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        gradient_TO = gradient_TO.contiguous()
        return (
            _in_blocks(gradient_TO, weight_OI.t()) if wants_x else None,
            _weight_gradient(gradient_TO, x_TI) if wants_weight else None,
            gradient_TO.sum(0) if wants_bias else None,
        )


_product: Callable[[Tensor, Tensor, Tensor | None], Tensor] = _Product.apply


def _in_blocks(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return ``x W^T + b`` (T, O), with whole blocks of rows for oneDNN.

    The remaining rows cost a copy: of the input, to pad it with zeros, or of the result, to join its two parts.
    """
    rows, (outputs, width) = len(x_TI), weight_OI.shape
    whole = rows // ROW_BLOCK * ROW_BLOCK
    if whole == rows:
        return onednn_product(x_TI, weight_OI, bias_O)
    missing = rows_to_fill(rows, packed=False)
    if missing and (width <= outputs or not whole):
        return _filled(x_TI, weight_OI, bias_O, missing)
    parts = onednn_product(x_TI[:whole], weight_OI, bias_O), F.linear(x_TI[whole:], weight_OI, bias_O)
    return torch.cat(parts)


def _weight_gradient(gradient_TO: Tensor, x_TI: Tensor) -> Tensor:
    """Return the gradient of the weight (O, I), a sum over rows."""
    whole = len(x_TI) // ROW_BLOCK * ROW_BLOCK
    if not whole:
        return gradient_TO.t() @ x_TI
    found_OI = onednn_product(gradient_TO[:whole].t(), x_TI[:whole].t())
    return found_OI if whole == len(x_TI) else found_OI.addmm_(gradient_TO[whole:].t(), x_TI[whole:])


# --- weight formats for inference ---


class WeightForm(Protocol):
    """A weight in one of the formats for inference."""

    def product(self, x_TI: Tensor, bias_O: Tensor | None) -> Tensor:
        """Return ``x W^T + b`` (T, O) of float32 rows, in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A weight in float32 in oneDNN's own layout, from `bothways.products.packed`."""

    packed_OI: Tensor

    def product(self, x_TI: Tensor, bias_O: Tensor | None) -> Tensor:
        return _filled_product(x_TI, self.packed_OI, bias_O)


@dataclass(frozen=True, slots=True, eq=False)
class BFloat16Weight:
    """A bfloat16 weight, multiplied by rows in bfloat16; sums are in float32, results are rounded once.

    It is stored in oneDNN's own layout. On a processor without bfloat16 products, the rounded values are stored and
    multiplied in float32: slower, with the same results up to the order of summation.
    """

    weight_OI: Tensor
    outputs: int

    @classmethod
    def of(cls, weight_OI: Tensor) -> "BFloat16Weight":
        """Round a weight to bfloat16."""
        rounded_OI = weight_OI.detach().bfloat16()
        return cls(packed(rounded_OI) if has_bfloat16_product() else rounded_OI.float(), len(weight_OI))

    def product(self, x_TI: Tensor, bias_O: Tensor | None) -> Tensor:
        return in_parts(lambda rows_TI: self._rounded(rows_TI.bfloat16(), bias_O), x_TI, self.outputs).float()

    def _rounded(self, x_TI: Tensor, bias_O: Tensor | None) -> Tensor:
        if self.weight_OI.dtype == torch.float32:
            return F.linear(x_TI.float(), self.weight_OI, bias_O).bfloat16()
        return _filled_product(x_TI, self.weight_OI, bias_O)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A formatted copy of a parameter, and the parameter's state when it was made; `chosen` if `hold` made it."""

    weight: "ref[Tensor]"
    state: tuple[int, int, torch.Size]
    form: WeightForm
    chosen: bool

    def is_of(self, weight_OI: Tensor) -> bool:
        return self.weight() is weight_OI and self.state == _state(weight_OI)


_kept: dict[int, _Kept] = {}
"""Formatted copies by the `id` of their parameter; a copy is dropped with its parameter."""


def hold(weight_OI: nn.Parameter, form: WeightForm) -> None:
    """Use ``form`` instead of the parameter in inference, until the parameter changes."""
    _keep(weight_OI, form, chosen=True)


def hold_bfloat16(weights: Iterable[nn.Parameter]) -> None:
    """Use bfloat16 copies of weights in inference, except for weights that already have a chosen format (int8)."""
    for weight_OI in weights:
        if held(weight_OI) is None:
            hold(weight_OI, BFloat16Weight.of(weight_OI))


def held(weight_OI: Tensor) -> WeightForm | None:
    """Return the copy of a parameter in its chosen format; None if there is none, or if the parameter has changed."""
    kept = _kept.get(id(weight_OI))
    return kept.form if kept is not None and kept.chosen and kept.is_of(weight_OI) else None


def release(weights: Iterable[nn.Parameter]) -> None:
    """Drop the formatted copies of parameters, so that inference uses the parameters themselves."""
    for weight_OI in weights:
        _kept.pop(id(weight_OI), None)


def form_of(weight_OI: Tensor, rows: int) -> WeightForm | None:
    """Return the formatted copy to use for ``rows`` rows in inference; None for the parameter itself."""
    kept = _kept.get(id(weight_OI))
    known = kept is not None and kept.is_of(weight_OI)
    may_pack = rows <= matrix_product().packed_rows
    if kept is not None and known and (kept.chosen or may_pack):
        return kept.form
    if not may_pack or type(weight_OI) is not nn.Parameter or weight_OI.is_inference():
        return None
    return _keep(weight_OI, PackedWeight(packed(weight_OI)), chosen=False)


def _keep(weight_OI: nn.Parameter, form: WeightForm, *, chosen: bool) -> WeightForm:
    key = id(weight_OI)
    _kept[key] = _Kept(ref(weight_OI, partial(_drop, _kept, key)), _state(weight_OI), form, chosen)
    return form


def _state(weight_OI: Tensor) -> tuple[int, int, torch.Size]:
    # torch keeps no version counter for tensors created in inference mode.
    return weight_OI.data_ptr(), 0 if weight_OI.is_inference() else weight_OI._version, weight_OI.shape


def _drop(kept: dict[int, _Kept], key: int, _: object) -> None:
    """Drop a copy; ``kept`` is an argument, since this module's globals may be deleted before the last parameter."""
    kept.pop(key, None)


def _forget(*_: object) -> None:
    """Drop packed copies after an optimizer step: torch does not count the writes of fused optimizers."""
    for key in [key for key, each in _kept.items() if not each.chosen]:
        del _kept[key]


register_optimizer_step_post_hook(_forget)


def _filled_product(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """Return ``x W^T + b`` (T, O), computed on rows that are padded with zeros to whole blocks."""
    rows = x_TI.shape[0]
    missing = -rows % packed_block(rows)
    if not missing:
        return onednn_product(x_TI, weight_OI, bias_O)
    return _filled(x_TI, weight_OI, bias_O, missing)


def _filled(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, missing: int) -> Tensor:
    """Return ``x W^T + b`` (T, O) by oneDNN, computed with ``missing`` rows of zeros appended."""
    filled_UO = onednn_product(F.pad(x_TI, (0, 0, 0, missing)), weight_OI, bias_O)
    return filled_UO.resize_(x_TI.shape[0], filled_UO.shape[1])  # not a view, since callers write into the result
