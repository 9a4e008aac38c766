"""The linear map and its gradients, by the faster of two libraries.

Both give the numbers of `torch.nn.functional.linear` within rounding. oneDNN compiles code for each number of rows that
it meets, 0.7 MB each, so it gets whole blocks of rows. Inference packs its batches in whole blocks
(`bothways.inference.batching`); other batches are filled up with zeros here.

Shapes: T rows, U rows in whole blocks, I and O widths.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bothways.products import matrix_product, onednn_product

# Rows of a block. A batch of up to 2,048 tokens has one of 32 sizes then.
ROW_BLOCK = 64


class Linear(nn.Linear):
    """``x W^T + b``, as `torch.nn.Linear`, but drawn by `bothways.encoder.encoder.initialize` and not at once."""

    def reset_parameters(self) -> None:  # noqa: D102  (torch's contract)
        pass

    def forward(self, x_TI: Tensor) -> Tensor:  # noqa: D102  (torch's contract)
        return linear(x_TI, self.weight, self.bias)


def linear(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """``x W^T + b`` (T, O)."""
    if not _onednn_serves(x_TI, weight_OI):
        return F.linear(x_TI, weight_OI, bias_O)
    if torch.is_grad_enabled():
        y_TO: Tensor = _Product.apply(x_TI, weight_OI, bias_O)  # type: ignore[no-untyped-call]
        return y_TO
    return _first_rows(onednn_product(_whole_blocks(x_TI), weight_OI, bias_O), len(x_TI))


def missing_rows(rows: int) -> int | None:
    """Return the rows that whole blocks have more; None where filling them would cost more than it gains."""
    missing = -rows % ROW_BLOCK
    return missing if missing <= matrix_product().filling * rows else None


class _Product(torch.autograd.Function):
    """The linear map with its three products by oneDNN."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  (torch's context has no type for this)
        x_TI: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
    ) -> Tensor:
        x_UI = _whole_blocks(x_TI)
        ctx.save_for_backward(x_UI, weight_OI)
        return _first_rows(onednn_product(x_UI, weight_OI, bias_O), len(x_TI))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_TO: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401  (see above)
        x_UI, weight_OI = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        gradient_UO = _whole_blocks(gradient_TO.contiguous())
        return (
            _first_rows(onednn_product(gradient_UO, weight_OI.t()), len(gradient_TO)) if wants_x else None,
            onednn_product(gradient_UO.t(), x_UI.t()) if wants_weight else None,
            gradient_TO.sum(0) if wants_bias else None,
        )


def _whole_blocks(x_TI: Tensor) -> Tensor:
    """Return the rows, and zeros behind them up to whole blocks."""
    missing = -len(x_TI) % ROW_BLOCK
    return F.pad(x_TI, (0, 0, 0, missing)) if missing else x_TI


def _first_rows(fresh_UO: Tensor, rows: int) -> Tensor:
    """Return the first rows of a tensor that nobody else holds; no view, for others write into the result."""
    return fresh_UO.resize_(rows, fresh_UO.shape[1])


def _onednn_serves(x_TI: Tensor, weight_OI: Tensor) -> bool:
    """Return whether to multiply by oneDNN: float32 rows on a CPU that are or nearly are whole blocks.

    Subclasses of tensors (without content, of a graph being recorded) go to torch.
    """
    return (
        type(x_TI) is Tensor
        and x_TI.device.type == "cpu"
        and x_TI.dtype == weight_OI.dtype == torch.float32
        and x_TI.dim() == 2
        and x_TI.shape[0] > 0
        and not torch.is_autocast_enabled("cpu")
        and matrix_product().library == "onednn"
        and missing_rows(x_TI.shape[0]) is not None
    )
