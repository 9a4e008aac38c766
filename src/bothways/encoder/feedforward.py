"""The position-wise feed-forward network.

Shapes: T packed tokens, H hidden, F inner width.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor, nn

from bothways.encoder.axes import Activation, DenseFeedForward, GatedFeedForward
from bothways.encoder.config import EncoderConfig
from bothways.encoder.dropout import Dropout
from bothways.encoder.linear import Linear
from bothways.encoder.recomputation import computed_again
from bothways.products import in_parts


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

    def __init__(self, config: EncoderConfig, kind: DenseFeedForward) -> None:
        super().__init__()
        self.inner = Linear(config.hidden, kind.width, bias=kind.bias)
        self.outer = Linear(kind.width, config.hidden, bias=kind.bias)
        self.activation = kind.activation
        self.dropout = Dropout(config.dropout.inner)

    def forward(self, hidden_TH: Tensor) -> Tensor:
        """Map (T, H) to (T, H)."""
        return _some_rows_at_a_time(self._of, hidden_TH)

    def _of(self, hidden_TH: Tensor) -> Tensor:
        inner_TF = self.inner(hidden_TH)
        if not _may_compute_again(self.dropout):
            output_TH: Tensor = self.outer(self.dropout(_activated(inner_TF, self.activation)))
            return output_TH
        again = partial(ACTIVATIONS[self.activation], inner_TF.detach())
        return computed_again(ACTIVATIONS[self.activation](inner_TF), again, self.outer)


class GatedForward(nn.Module):
    """Linear to twice the width; one half, activated, times the other; linear (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, config: EncoderConfig, kind: GatedFeedForward) -> None:
        super().__init__()
        self.inner = Linear(config.hidden, 2 * kind.width, bias=kind.bias)
        self.outer = Linear(kind.width, config.hidden, bias=kind.bias)
        self.activation = kind.activation
        self.dropout = Dropout(config.dropout.inner)

    def forward(self, hidden_TH: Tensor) -> Tensor:
        """Map (T, H) to (T, H)."""
        return _some_rows_at_a_time(self._of, hidden_TH)

    def _of(self, hidden_TH: Tensor) -> Tensor:
        value_TF, gate_TF = self.inner(hidden_TH).chunk(2, 1)
        if not _may_compute_again(self.dropout):
            output_TH: Tensor = self.outer(self.dropout(_activated(value_TF, self.activation) * gate_TF))
            return output_TH
        activation, kept_TF, kept_gate_TF = ACTIVATIONS[self.activation], value_TF.detach(), gate_TF.detach()
        inner_TF = computed_again(
            activation(value_TF), lambda: activation(kept_TF), lambda activated_TF: activated_TF * gate_TF
        )
        return computed_again(inner_TF, lambda: activation(kept_TF) * kept_gate_TF, self.outer)


def feed_forward(config: EncoderConfig) -> FeedForward | GatedForward:
    """Return the feed-forward network of a layer."""
    match config.feed_forward:
        case DenseFeedForward() as kind:
            return FeedForward(config, kind)
        case GatedFeedForward() as kind:
            return GatedForward(config, kind)


def _some_rows_at_a_time(network: Callable[[Tensor], Tensor], hidden_TH: Tensor) -> Tensor:
    """Apply the network to all rows; in inference on a CPU in parts whose inner states stay in the cache."""
    if not torch.is_inference_mode_enabled() or hidden_TH.device.type != "cpu":
        return network(hidden_TH)
    return in_parts(network, hidden_TH, hidden_TH.shape[1])


def _activated(inner_TF: Tensor, activation: Activation) -> Tensor:
    return (ACTIVATIONS if torch.is_grad_enabled() else _IN_PLACE)[activation](inner_TF)


def _may_compute_again(dropout: Dropout) -> bool:
    """Test whether the backward pass may recompute the inner states.

    Kept, they would be a quarter of all that a layer keeps; an activation takes a hundredth of a layer's time. After
    dropout they cannot be told from the states before.
    """
    return torch.is_grad_enabled() and not (dropout.training and dropout.rate)
