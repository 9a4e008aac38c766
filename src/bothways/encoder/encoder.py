"""The one encoder that every family is a configuration of.

Shapes: B sequences, T packed tokens, H hidden, N heads, L layers, M selected rows, n tokens of one sequence.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from bothways.encoder.config import EncoderConfig, SharedGroups
from bothways.encoder.embeddings import Embedding
from bothways.encoder.layer import Layer
from bothways.encoder.rows import ALL_ROWS, Rows
from bothways.packing import Packed


@dataclass(frozen=True, slots=True)
class Trace:
    """Everything that happened inside, for inspection.

    Attributes:
        hidden_states: The embedding and then each layer's output: L + 1 tensors (T, H).
        attentions: For each layer, for each sequence of n tokens, its attention weights (N, n, n).
    """

    hidden_states: tuple[Tensor, ...]
    attentions: tuple[list[Tensor], ...]


class Encoder(nn.Module):
    """Embedding and L layers over packed tokens.

    Weights start as in BERT: normal with the configured spread for matrices, zero biases, identity norms.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.order = layer_order(config)
        distinct = 1 + max(index for step in self.order for index in step)
        self.layers = nn.ModuleList(Layer(config) for _ in range(distinct))
        initialize(self, config.initializer_range)

    def forward(self, packed: Packed, *, rows: Rows = ALL_ROWS, backend: str | None = None) -> Tensor:
        """Last hidden states.

        Args:
            packed: The batch.
            rows: Rows of the packed batch that are read afterwards; the last layer computes only those to the end.
            backend: Name of the attention backend to hold to; the best that serves the call when left out.

        Returns:
            (T, H), or (B, H) or (M, H) for first tokens or selected rows.

        Raises:
            UnsupportedAttention: The named backend cannot serve this call.
        """
        hidden_TH: Tensor = self.embedding(packed)
        *steps, last = (index for step in self.order for index in step)
        for index in steps:
            hidden_TH = self.layers[index](hidden_TH, packed, backend)
        hidden_TH = self.layers[last](hidden_TH, packed, backend, rows)
        return hidden_TH

    def trace(self, packed: Packed, *, attentions: bool = True, backend: str | None = None) -> Trace:
        """All hidden states and, if wanted, all attention weights (those come from the reference backend).

        Raises:
            UnsupportedAttention: The named backend cannot serve this call.
        """
        states = [self.embedding(packed)]
        all_weights: list[list[Tensor]] = []
        for step in self.order:
            hidden_TH = states[-1]
            for index in step:
                layer = cast("Layer", self.layers[index])
                if attentions:
                    hidden_TH, weights = layer.forward_with_weights(hidden_TH, packed, backend)
                    all_weights.append(weights)
                else:
                    hidden_TH = layer(hidden_TH, packed, backend)
            states.append(hidden_TH)
        return Trace(tuple(states), tuple(all_weights))


def layer_order(config: EncoderConfig) -> tuple[tuple[int, ...], ...]:
    """Which of the layers' weights run at each of the L steps.

    >>> # 4 layers in 2 shared groups: layer_order(config) == ((0,), (0,), (1,), (1,))
    """
    if isinstance(config.sharing, SharedGroups):
        groups, inner = config.sharing.groups, config.sharing.inner
        return tuple(
            tuple(group * inner + index for index in range(inner))
            for group in (step * groups // config.layers for step in range(config.layers))
        )
    return tuple((index,) for index in range(config.layers))


def initialize(module: nn.Module, spread: float) -> None:
    """Draw matrices from a normal distribution with standard deviation ``spread``; zero biases, identity norms.

    Weights on the meta device have no values, and drawing them all the same would import a symbolic algebra system.
    """
    if any(parameter.is_meta for parameter in module.parameters()):
        return
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=spread)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)


def count_parameters(config: EncoderConfig) -> int:
    """Parameters of the encoder without its pooler, counted on a model that takes no memory."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Encoder(config).parameters())
