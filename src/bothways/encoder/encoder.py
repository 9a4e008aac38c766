"""The one encoder that every family is a configuration of.

Shapes: B sequences, T packed tokens, H hidden, N heads, L layers, M selected rows, n tokens of one sequence.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from bothways.encoder.axes import PreNorm, SharedGroups
from bothways.encoder.batch import Batch
from bothways.encoder.config import EncoderConfig
from bothways.encoder.convolution import convolution
from bothways.encoder.dropout import Dropout
from bothways.encoder.embeddings import Embedding
from bothways.encoder.layer import Layer, layer, norm
from bothways.encoder.positions import TransformerXL, shared_positions
from bothways.encoder.projection import QKV
from bothways.encoder.rows import ALL_ROWS, Rows, select
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
        self.positions = shared_positions(config)
        self.order = layer_order(config)
        distinct = 1 + max(index for step in self.order for index in step)
        self.layers = nn.ModuleList(layer(config, index) for index in range(distinct))
        self.convolution = convolution(config)
        self.final_norm = norm(config) if isinstance(config.norm, PreNorm) else nn.Identity()
        self.dropout = Dropout(config.dropout.output)
        initialize(self, config.initializer_range)

    def forward(self, packed: Packed, *, rows: Rows = ALL_ROWS, backend: str | None = None) -> Tensor:
        """Last hidden states.

        Args:
            packed: The batch.
            rows: Rows of the packed batch that are read afterwards; the last layer computes only those to the end.
            backend: Name of the attention backend to hold to; the best that serves the call when left out.

        Returns:
            (T, H), or (B, H) or (M, H) for first or last tokens or selected rows.

        Raises:
            UnsupportedAttention: The named backend cannot serve this call.
        """
        hidden_TH, batch = self._begin(packed, backend)
        steps = [index for step in self.order for index in step]
        for place, index in enumerate(steps):
            last = place == len(steps) - 1
            # What convolves the first layer's output reads all of its rows.
            whole = not last or (place == 0 and self.convolution is not None)
            output_TH = self.layers[index](hidden_TH, batch, ALL_ROWS if whole else rows)
            if place == 0 and self.convolution is not None:
                output_TH = self.convolution(hidden_TH, output_TH, packed)
                output_TH = select(output_TH, rows, packed) if last else output_TH
            hidden_TH = output_TH
        output: Tensor = self.dropout(self.final_norm(hidden_TH))
        return output

    def trace(self, packed: Packed, *, attentions: bool = True, backend: str | None = None) -> Trace:
        """All hidden states and, if wanted, all attention weights (those come from the reference backend).

        Raises:
            UnsupportedAttention: The named backend cannot serve this call.
        """
        hidden_TH, batch = self._begin(packed, backend)
        states = [hidden_TH]
        all_weights: list[list[Tensor]] = []
        for number, step in enumerate(self.order):
            for index in step:
                one = cast("Layer", self.layers[index])
                if attentions:
                    hidden_TH, weights = one.forward_with_weights(hidden_TH, batch)
                    all_weights.append(weights)
                else:
                    hidden_TH = one(hidden_TH, batch)
            if number == 0 and self.convolution is not None:
                hidden_TH = self.convolution(states[0], hidden_TH, packed)
            states.append(hidden_TH)
        states[-1] = self.dropout(self.final_norm(states[-1]))
        return Trace(tuple(states), tuple(all_weights))

    def _begin(self, packed: Packed, backend: str | None) -> tuple[Tensor, Batch]:
        hidden_TH: Tensor = self.embedding(packed)
        return hidden_TH, Batch(packed, self.positions(packed, hidden_TH.dtype), backend)


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
        if isinstance(part, nn.Linear | nn.Embedding | nn.Conv1d | QKV):
            nn.init.normal_(part.weight, std=spread)
        if isinstance(part, TransformerXL):
            nn.init.normal_(part.segments, std=spread)
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
        for name, parameter in part.named_parameters(recurse=False):
            if name.endswith("bias"):
                nn.init.zeros_(parameter)


def count_parameters(config: EncoderConfig) -> int:
    """Parameters of the encoder without its pooler, counted on a model that takes no memory."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Encoder(config).parameters())
