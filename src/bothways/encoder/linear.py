"""The linear map, on the faster of two matrix product libraries.

On x86 CPUs torch multiplies float32 matrices with MKL. It also carries oneDNN, which does the same products at 108
instead of 99 GFLOP/s on one Zen 4 core, forward and for the gradient of the input; for the gradient of the weights MKL
is the faster one. Elsewhere, and in other precisions, this is torch's own linear map.

Shapes: T rows, I and O widths.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable


def _has_onednn_linear() -> bool:
    """Whether this build has the operator that torch's own compiler uses; it is not there on every platform."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and hasattr(torch.ops.mkldnn, "_linear_pointwise")


ONEDNN_LINEAR = _has_onednn_linear()


class Linear(nn.Linear):
    """``x W^T + b``, as `torch.nn.Linear`, but drawn by `bothways.encoder.encoder.initialize` and not at once."""

    def reset_parameters(self) -> None:  # noqa: D102  (torch's contract)
        pass

    def forward(self, x_TI: Tensor) -> Tensor:  # noqa: D102  (torch's contract)
        return linear(x_TI, self.weight, self.bias)


def linear(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:
    """``x W^T + b`` (T, O)."""
    if not (ONEDNN_LINEAR and _serves(x_TI, weight_OI)):
        return F.linear(x_TI, weight_OI, bias_O)
    if torch.is_grad_enabled() and (x_TI.requires_grad or weight_OI.requires_grad):
        y_TO: Tensor = _OneDNNLinear.apply(x_TI, weight_OI, bias_O)  # type: ignore[no-untyped-call]
        return y_TO
    return _product(x_TI, weight_OI, bias_O)


class _OneDNNLinear(torch.autograd.Function):
    """The linear map with its gradients, each product on the library that does it faster."""

    @staticmethod
    def forward(ctx: FunctionCtx, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:
        ctx.save_for_backward(x_TI, weight_OI)
        return _product(x_TI, weight_OI, bias_O)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_TO: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # noqa: ANN401  (torch's context has no type for this)
        x_TI, weight_OI = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        gradient_TO = gradient_TO.contiguous()
        return (
            _product(gradient_TO, weight_OI.t(), None) if wants_x else None,
            gradient_TO.t() @ x_TI if wants_weight else None,
            gradient_TO.sum(0) if wants_bias else None,
        )


def _product(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    y_TO: Tensor = torch.ops.mkldnn._linear_pointwise(x_TI, weight_OI, bias_O, "none", [], "")
    return y_TO


def _serves(x_TI: Tensor, weight_OI: Tensor) -> bool:
    """Whether oneDNN's product is the one to take: two float32 matrices on a CPU, and no autocast to another type."""
    return (
        x_TI.device.type == "cpu"
        and x_TI.dtype == weight_OI.dtype == torch.float32
        and x_TI.dim() == 2
        and x_TI.numel() > 0
        and not torch.is_autocast_enabled("cpu")
    )
