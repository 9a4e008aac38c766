"""The position-wise feed-forward network.

Shapes: T packed tokens, H hidden, F inner width.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor, nn

from bothways.encoder.config import Activation, DenseFeedForward, EncoderConfig
from bothways.encoder.linear import Linear
from bothways.errors import UnsupportedConfig


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

# The inner states are the widest tensor of all: a second one costs page faults and a trip out of the cache.
_IN_PLACE: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": torch.ops.aten.gelu_,
    "gelu_tanh": _gelu_tanh_in_place,
    "relu": torch.ops.aten.relu_,
    "silu": torch.ops.aten.silu_,
    "tanh": torch.ops.aten.tanh_,
}


class FeedForward(nn.Module):
    """Linear, activation, linear."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        kind = config.feed_forward
        if not isinstance(kind, DenseFeedForward):
            raise UnsupportedConfig(f"{type(kind).__name__} is described but not built yet; only DenseFeedForward is.")
        self.inner = Linear(config.hidden, kind.width)
        self.outer = Linear(kind.width, config.hidden)
        self.activation = kind.activation

    def forward(self, hidden_TH: Tensor) -> Tensor:
        """(T, H) to (T, H)."""
        activate = (ACTIVATIONS if torch.is_grad_enabled() else _IN_PLACE)[self.activation]
        output_TH: Tensor = self.outer(activate(self.inner(hidden_TH)))
        return output_TH
