"""The convolution beside the first layer of DeBERTa v2's large sizes.

Shapes: B sequences, T packed tokens, H hidden, P rows with a gap behind each sequence.
"""

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor, nn

from bothways.encoder.axes import FirstLayerConvolution
from bothways.encoder.batch import Batch
from bothways.encoder.config import EncoderConfig
from bothways.encoder.dropout import Dropout
from bothways.encoder.feedforward import ACTIVATIONS


class Convolution(nn.Module):
    """Convolution of the first layer's input within each sequence, activation, added to its output, norm."""

    def __init__(self, config: EncoderConfig, kind: FirstLayerConvolution) -> None:
        super().__init__()
        self.kernel = nn.Conv1d(config.hidden, config.hidden, kind.kernel, groups=kind.groups)
        self.reach = (kind.kernel - 1) // 2
        self.activation = ACTIVATIONS[kind.activation]
        self.norm = nn.LayerNorm(config.hidden, eps=config.norm.eps)
        self.dropout = Dropout(config.dropout.hidden)

    def forward(self, input_TH: Tensor, output_TH: Tensor, batch: Batch) -> Tensor:
        """Map (T, H) of the first layer's input and output to (T, H)."""
        rows, width = input_TH.shape
        # Zeros between the sequences, as there are at the ends of a text alone.
        places_T = torch.arange(rows, device=input_TH.device) + batch.sequence_T * self.reach
        spaced_PH = input_TH.new_zeros(rows + (batch.count - 1) * self.reach, width)
        spaced_HP = spaced_PH.index_copy(0, places_T, batch.blanked(input_TH)).t()
        convolved_HP = self.kernel(F.pad(spaced_HP, (self.reach, self.reach))[None])[0]
        convolved_TH = self.activation(self.dropout(convolved_HP.t().index_select(0, places_T)))
        normed_TH: Tensor = self.norm(output_TH + convolved_TH)
        return normed_TH


def convolution(config: EncoderConfig) -> Convolution | None:
    """Return the encoder's convolution, if it has one."""
    return Convolution(config, config.convolution) if isinstance(config.convolution, FirstLayerConvolution) else None
