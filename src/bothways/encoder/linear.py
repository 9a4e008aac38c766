"""The linear map, on the faster of two matrix product libraries where there is nothing to differentiate.

On x86 CPUs torch multiplies float32 matrices with MKL. It also carries oneDNN, which does the same products at 108
instead of 99 GFLOP/s on one Zen 4 core. oneDNN keeps code for every number of rows that it has met, so a stream of
batches of all sizes would grow without end; it is therefore asked only for whole blocks of rows, and who wants its
speed brings a batch to whole blocks (`bothways.inference.batching`).

Shapes: T rows, I and O widths.
"""

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor, nn

# Rows of a block. A batch of up to 2,048 tokens has one of 32 sizes then.
ROW_BLOCK = 64


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


def linear(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """``x W^T + b`` (T, O)."""
    if ONEDNN_LINEAR and _serves(x_TI, weight_OI):
        y_TO: Tensor = torch.ops.mkldnn._linear_pointwise(x_TI, weight_OI, bias_O, "none", [], "")
        return y_TO
    return F.linear(x_TI, weight_OI, bias_O)


def _serves(x_TI: Tensor, weight_OI: Tensor) -> bool:
    """Whether oneDNN's product is the one to take: whole blocks of float32 rows on a CPU, and no gradients wanted."""
    return (
        not torch.is_grad_enabled()
        and x_TI.device.type == "cpu"
        and x_TI.dtype == weight_OI.dtype == torch.float32
        and x_TI.dim() == 2
        and x_TI.shape[0] > 0
        and x_TI.shape[0] % ROW_BLOCK == 0
        and not torch.is_autocast_enabled("cpu")
    )
