"""A classifier that also gives the hidden states that an out-of-domain detector reads.

Shapes: B windows of a batch, C outputs, L layers that the detector reads, H hidden.
"""

import torch
from torch import Tensor

from bothways.encoder import Encoder, ScoreHead
from bothways.encoder.heads import layer_rows, layer_states, read_rows
from bothways.packing import Packed
from bothways.tasks.objective import HeadModel


class FeatureModel(HeadModel):
    """Gives beside the scores the hidden states that the head reads.

    Args:
        encoder: The encoder.
        head: The head.
        layers: 1 for the last layer's states, or as many as the encoder has, for those of all of them.
    """

    def __init__(self, encoder: Encoder, head: ScoreHead, layers: int) -> None:
        super().__init__(encoder, head)
        self.layers = layers

    def forward(self, packed: Packed) -> Tensor:
        """Scores and features (B, C + L H), of the last layer first."""
        read = self.head.kind.read
        rows: tuple[Tensor, ...] = (read_rows(read, self.encoder, packed),) if self.layers == 1 else ()
        rows = rows or layer_rows(read, self.encoder, layer_states(self.encoder, packed), packed)
        return torch.cat([self.head(rows[0]), *(each[:, : self.encoder.config.hidden] for each in rows)], dim=1)
