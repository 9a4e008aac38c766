"""The position-wise feed-forward network.

Shapes: T packed tokens, H hidden, F inner width.
"""

from collections.abc import Callable

import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor, nn

from bothways.encoder.config import Activation, DenseFeedForward, EncoderConfig
from bothways.errors import UnsupportedConfig


def _gelu_tanh(values: Tensor) -> Tensor:
    return F.gelu(values, approximate="tanh")


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
    "tanh": Tensor.tanh,
}


class FeedForward(nn.Module):
    """Linear, activation, linear."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        kind = config.feed_forward
        if not isinstance(kind, DenseFeedForward):
            raise UnsupportedConfig(f"{type(kind).__name__} is described but not built yet; only DenseFeedForward is.")
        self.inner = nn.Linear(config.hidden, kind.width)
        self.outer = nn.Linear(kind.width, config.hidden)
        self.activation = ACTIVATIONS[kind.activation]

    def forward(self, hidden_TH: Tensor) -> Tensor:
        """(T, H) to (T, H)."""
        output_TH: Tensor = self.outer(self.activation(self.inner(hidden_TH)))
        return output_TH
