"""The linear map and its gradients, by the faster of two libraries.

Both give the numbers of `torch.nn.functional.linear` within rounding. oneDNN compiles code for each number of rows that
it meets, 0.7 MB each, so it gets whole blocks of rows. Inference packs its batches in whole blocks
(`bothways.inference.batching`); of other batches, the last rows are filled up with zeros or multiplied by torch.
In inference mode weights are read in the forms of `bothways.encoder.packed_weights`.

Shapes: T rows, I and O widths.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bothways.encoder.packed_weights import filled, form_of
from bothways.products import ROW_BLOCK, matrix_product, onednn_product, packed_block


class Linear(nn.Linear):
    """A map ``x W^T + b``, as `torch.nn.Linear`, but drawn by `bothways.encoder.encoder.initialize`."""

    def reset_parameters(self) -> None:
        pass

    def forward(self, x_TI: Tensor) -> Tensor:
        return linear(x_TI, self.weight, self.bias)


def linear(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """Return ``x W^T + b`` (T, O)."""
    if not _float32_rows(x_TI, weight_OI):
        return F.linear(x_TI, weight_OI, bias_O)
    if torch.is_inference_mode_enabled() and (form := form_of(weight_OI, x_TI.shape[0])) is not None:
        return form.product(x_TI, bias_O)
    if matrix_product().library != "onednn" or len(x_TI) + _unpacked_rows_to_fill(len(x_TI)) < ROW_BLOCK:
        return F.linear(x_TI, weight_OI, bias_O)
    if torch.is_grad_enabled():
        y_TO: Tensor = _Product.apply(x_TI, weight_OI, bias_O)  # type: ignore[no-untyped-call]
        return y_TO
    return _in_blocks(x_TI, weight_OI, bias_O)


def rows_to_fill(rows: int) -> int:
    """Return the number of rows that fill a batch of inference up to whole blocks; 0 if filling does not pay."""
    if rows <= matrix_product().packed_rows:
        return -rows % packed_block(rows)
    return _unpacked_rows_to_fill(rows)


def _unpacked_rows_to_fill(rows: int) -> int:
    """Return the same for weights that are not packed."""
    missing = -rows % ROW_BLOCK
    return missing if missing <= matrix_product().filling * rows else 0


class _Product(torch.autograd.Function):
    """The linear map with its three products by oneDNN."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  (torch's context has no type for this)
        x_TI: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(x_TI, weight_OI)
        return _in_blocks(x_TI, weight_OI, bias_O)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_TO: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401  (see above)
        x_TI, weight_OI = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        gradient_TO = gradient_TO.contiguous()
        return (
            _in_blocks(gradient_TO, weight_OI.t()) if wants_x else None,
            _weight_gradient(gradient_TO, x_TI) if wants_weight else None,
            gradient_TO.sum(0) if wants_bias else None,
        )


def _in_blocks(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return ``x W^T + b`` (T, O), with whole blocks of rows for oneDNN.

    The rest costs a copy either way: of the input, filled up with zeros, or of the result, put together from two parts.
    """
    rows, (outputs, width) = len(x_TI), weight_OI.shape
    whole = rows // ROW_BLOCK * ROW_BLOCK
    if whole == rows:
        return onednn_product(x_TI, weight_OI, bias_O)
    missing = _unpacked_rows_to_fill(rows)
    if missing and (width <= outputs or not whole):
        return filled(x_TI, weight_OI, bias_O, missing)
    parts = onednn_product(x_TI[:whole], weight_OI, bias_O), F.linear(x_TI[whole:], weight_OI, bias_O)
    return torch.cat(parts)


def _weight_gradient(gradient_TO: Tensor, x_TI: Tensor) -> Tensor:
    """Return the gradient of the weight (O, I), a sum over rows."""
    whole = len(x_TI) // ROW_BLOCK * ROW_BLOCK
    if not whole:
        return gradient_TO.t() @ x_TI
    found_OI = onednn_product(gradient_TO[:whole].t(), x_TI[:whole].t())
    return found_OI if whole == len(x_TI) else found_OI.addmm_(gradient_TO[whole:].t(), x_TI[whole:])


def _float32_rows(x_TI: Tensor, weight_OI: Tensor) -> bool:
    """Test whether these are float32 rows on a CPU, which oneDNN may multiply.

    Subclasses of tensors (without content, of a graph being recorded) go to torch.
    """
    return (
        type(x_TI) is Tensor
        and x_TI.device.type == "cpu"
        and x_TI.dtype == weight_OI.dtype == torch.float32
        and x_TI.dim() == 2
        and x_TI.shape[0] > 0
        and not torch.is_autocast_enabled("cpu")
    )
