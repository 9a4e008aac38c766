"""The one encoder that every family is a configuration of.

Shapes: B sequences, T packed tokens, H hidden, L layers, M selected rows.
"""

import torch
from torch import Tensor, nn

from bothways.encoder.axes import PreNorm, SharedGroups
from bothways.encoder.batch import Batch
from bothways.encoder.config import EncoderConfig
from bothways.encoder.convolution import Convolution, convolution
from bothways.encoder.dropout import Dropout
from bothways.encoder.embeddings import Embedding
from bothways.encoder.layer import layer, norm
from bothways.encoder.positions import SharedPositions, TransformerXL, shared_positions
from bothways.encoder.projection import QKV
from bothways.encoder.rows import ALL_ROWS, Rows, select
from bothways.encoder.run import Recorder, Run


class Layers(nn.ModuleList):
    """The layers of an encoder, from the embedding to the last hidden states.

    Args:
        config: The encoder.
        positions: What all layers share of the positions.
        convolution: Beside the first layer, if there is one.
        final_norm: Behind the last layer.
        dropout: Behind the final norm.
    """

    def __init__(
        self,
        config: EncoderConfig,
        positions: SharedPositions,
        convolution: Convolution | None,
        final_norm: nn.Module,
        dropout: nn.Module,
    ) -> None:
        order = layer_order(config)
        super().__init__(layer(config, index) for index in range(1 + max(index for step in order for index in step)))
        self.steps, self.inner = tuple(index for step in order for index in step), len(order[0])
        # In tuples, so that their weights keep the names that they have as parts of the encoder.
        self._around = positions, convolution
        self._finish = final_norm, dropout

    def forward(
        self,
        hidden_TH: Tensor,
        batch: Batch,
        *,
        rows: Rows = ALL_ROWS,
        backend: str | None = None,
        record: Recorder | None = None,
    ) -> Tensor:
        """Last hidden states.

        Args:
            hidden_TH: First hidden states, as `Encoder.embed` gives them or altered.
            batch: The batch that they are of.
            rows: See `Encoder.forward`.
            backend: See `Encoder.forward`.
            record: See `Encoder.forward`.

        Returns:
            (T, H), or (B, H) or (M, H) for first or last tokens or selected rows.

        Raises:
            UnsupportedAttention: The named backend cannot serve this call.
        """
        positions, convolution = self._around
        run = Run(batch, positions(batch, hidden_TH.dtype), backend, record)
        for place, index in enumerate(self.steps):
            if record is not None and place % self.inner == 0:
                record.hidden_states.append(hidden_TH)
            beside = convolution if place == 0 else None
            last = place == len(self.steps) - 1
            # What convolves the first layer's output reads all of its rows.
            output_TH = self[index](hidden_TH, run, rows if last and beside is None else ALL_ROWS)
            if beside is not None:
                output_TH = beside(hidden_TH, output_TH, batch)
                output_TH = select(output_TH, rows, batch) if last else output_TH
            hidden_TH = output_TH
        for step in self._finish:
            hidden_TH = step(hidden_TH)
        if record is not None:
            record.hidden_states.append(hidden_TH)
        return hidden_TH


class Encoder(nn.Module):
    """Embedding and L layers over packed tokens.

    Weights start as in BERT: normal with the configured spread for matrices, zero biases, identity norms.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.positions = shared_positions(config)
        beside, dropout = convolution(config), Dropout(config.dropout.output)
        final_norm = norm(config) if isinstance(config.norm, PreNorm) else nn.Identity()
        self.layers = Layers(config, self.positions, beside, final_norm, dropout)
        self.convolution, self.final_norm, self.dropout = beside, final_norm, dropout
        initialize(self, config.initializer_range)

    def embed(self, batch: Batch) -> Tensor:
        """First hidden states (T, H), which `layers` takes."""
        hidden_TH: Tensor = self.embedding(batch)
        return hidden_TH

    def forward(
        self,
        batch: Batch,
        *,
        rows: Rows = ALL_ROWS,
        backend: str | None = None,
        record: Recorder | None = None,
    ) -> Tensor:
        """Last hidden states: ``encoder.layers(encoder.embed(batch), batch, ...)``.

        Args:
            batch: The batch.
            rows: Rows of the packed batch that are read afterwards; the last layer computes only those to the end.
            backend: Name of the attention backend to hold to; the best that serves the call when left out.
            record: Keeps the hidden states of all layers and, where it wants them, the attention weights.

        Returns:
            (T, H), or (B, H) or (M, H) for first or last tokens or selected rows.

        Raises:
            UnsupportedAttention: The named backend cannot serve this call, or has no attention weights to record.
        """
        output: Tensor = self.layers(self.embed(batch), batch, rows=rows, backend=backend, record=record)
        return output


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
