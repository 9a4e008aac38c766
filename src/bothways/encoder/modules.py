"""Small modules that all parts of an encoder use: activations, dropout, norm, tables of vectors.

Dropout (Srivastava et al. 2014, JMLR 15) must not slow down training on a CPU. torch draws one random float for each
element, which takes 9 ns on one core and is not spread over several. Sixteen random bits suffice, and one draw gives
four times as many: 2 ns in all.

Shapes: T rows, H hidden.
"""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor, nn

from bothways.encoder.config import Activation, EncoderConfig


def _gelu_tanh(values: Tensor) -> Tensor:
    return F.gelu(values, approximate="tanh")


def _gelu_tanh_in_place(values: Tensor) -> Tensor:
    overwritten: Tensor = torch.ops.aten.gelu_(values, approximate="tanh")
    return overwritten


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
    "tanh": Tensor.tanh,
}

IN_PLACE_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": torch.ops.aten.gelu_,
    "gelu_tanh": _gelu_tanh_in_place,
    "relu": torch.ops.aten.relu_,
    "silu": torch.ops.aten.silu_,
    "tanh": torch.ops.aten.tanh_,
}

_LEVELS = 1 << 16


def dropout(values: Tensor, rate: float) -> Tensor:
    """Zero elements with probability ``rate`` and scale the others up so that the expectation stays.

    On a CPU the rate is rounded to a multiple of 1 / 65,536, in zeroing and in scaling alike.
    """
    if values.device.type != "cpu":
        return F.dropout(values, rate)
    return values * _kept(values, rate).mul_(kept_scale(values, rate)) if round(rate * _LEVELS) else values


def mark_dropped(values: Tensor, rate: float) -> Tensor:
    """Negate dropped elements in place, for elements from 0 on; a zero becomes a negative zero.

    One tensor thus holds the values and which of them are kept, those above 0. They are not scaled, see `kept_scale`.
    """
    return torch.copysign(values, _kept(values, rate).sub_(0.5), out=values)


def kept_scale(values: Tensor, rate: float) -> float:
    """Return the factor of the kept elements; 0 if none is kept."""
    rate = round(rate * _LEVELS) / _LEVELS if values.device.type == "cpu" else rate
    return 1.0 / (1.0 - rate) if rate < 1.0 else 0.0


def _kept(values: Tensor, rate: float) -> Tensor:
    """Return 0 for dropped and 1 for kept elements."""
    if values.device.type != "cpu":
        return (torch.rand_like(values, dtype=torch.float32) >= rate).to(values.dtype)
    dropped, count = round(rate * _LEVELS), values.numel()
    draws = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(1 << 63), None)
    levels = draws.view(torch.int16)[:count].view(values.shape)
    # Compared straight into the type of the values: a boolean in between costs a third of the whole.
    kept = torch.empty(values.shape, dtype=values.dtype)
    if dropped == _LEVELS:
        return kept.zero_()
    return torch.ge(levels, dropped - _LEVELS // 2, out=kept)


class Dropout(nn.Module):
    """`dropout` while training, the identity otherwise."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, values: Tensor) -> Tensor:
        """Return values of the same shape."""
        return dropout(values, self.rate) if self.training and self.rate else values


class Norm(nn.LayerNorm):
    """`torch.nn.LayerNorm` without its checks of the arguments, which take as long as the norm of a short text."""

    def forward(self, hidden_TH: Tensor) -> Tensor:
        """Map (T, H) to (T, H)."""
        return torch.layer_norm(hidden_TH, self.normalized_shape, self.weight, self.bias, self.eps)


def norm(config: EncoderConfig) -> Norm:
    """Return a norm of hidden states as configured."""
    return Norm(config.hidden, eps=config.norm.eps, bias=config.norm.bias)


class EmbeddingTable(nn.Embedding):
    """A table of vectors drawn by `bothways.encoder.encoder.initialize` instead of its constructor."""

    def reset_parameters(self) -> None:
        pass


class FunctionContext(Protocol):
    """The context of a `torch.autograd.Function`, for which torch has no type.

    Attributes:
        saved_tensors: The tensors that were saved for the backward pass.
        needs_input_grad: Whether each input needs a gradient.
    """

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep tensors for the backward pass."""
