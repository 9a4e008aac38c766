"""An encoder and a head as one module.

Shapes: B sequences of a batch, T tokens of a batch, C outputs, L layers, H hidden.
"""

import torch
from torch import Tensor, nn

from bothways.encoder import Encoder, ScoreHead
from bothways.encoder.heads import layer_rows, layer_states, read_rows
from bothways.packing import Packed


class HeadModel(nn.Module):
    """An encoder and a head; of the last layer, only the rows that the head reads are computed to the end.

    Args:
        encoder: The encoder.
        head: The head.
        layers: Number of layers, the last first, whose hidden states stand behind the scores, for an out-of-domain
            detector: 0 for none, 1, or all.
    """

    def __init__(self, encoder: Encoder, head: ScoreHead, layers: int = 0) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.layers = layers

    def forward(self, packed: Packed) -> Tensor:
        """Return scores (B, C), or (T, C) of a head that reads each token; with layers (B, C + L H)."""
        read = self.head.kind.read
        if self.layers > 1:
            rows = layer_rows(read, self.encoder, layer_states(self.encoder, packed), packed)
        else:
            rows = (read_rows(read, self.encoder, packed),)
        scores: Tensor = self.head(rows[0])
        if not self.layers:
            return scores
        return torch.cat([scores, *(each[:, : self.encoder.config.hidden] for each in rows)], dim=1)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.head.output.weight.device
