"""DeBERTa's enhanced mask decoder (He et al. 2020, arXiv:2006.03654, section 3.2).

Absolute positions are added just below the softmax: the encoder's last layer is applied twice with the same weights
to the states below it, and its queries begin at these states plus vectors of the positions, as in the published code
(microsoft/DeBERTa, apps/models/masked_language_model.py). When the encoder is used, its last layer runs once, as every
other, and the vectors of the positions are not needed.

Shapes: M chosen places, H hidden.
"""

from torch import Tensor, nn

from bothways.encoder import Encoder, EncoderConfig
from bothways.encoder.axes import DisentangledPositions
from bothways.encoder.embeddings import EmbeddingTable
from bothways.encoder.query_stream import MaskDecoding
from bothways.errors import UnsupportedConfig
from bothways.packing import Packed


class MaskDecoder(nn.Module):
    """Vectors of absolute positions, for an encoder that has none in its embedding.

    Args:
        config: The encoder's.

    Raises:
        UnsupportedConfig: Its embedding has absolute positions, or its attention has no distances of DeBERTa.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        positions = config.positions
        if not isinstance(positions, DisentangledPositions) or positions.absolute:
            raise UnsupportedConfig(
                "a mask decoder adds absolute positions to an encoder of relative ones alone, which DeBERTa and "
                "DeBERTa v2 and v3 models have without position_biased_input: use one of these."
            )
        self.positions = EmbeddingTable(positions.count, config.hidden)
        nn.init.normal_(self.positions.weight, std=config.initializer_range)

    def forward(self, encoder: Encoder, packed: Packed, rows_M: Tensor, counts: tuple[int, ...]) -> Tensor:
        """States (M, H) of chosen rows, of which each sequence has ``counts``."""
        added_MH = self.positions(packed.positions_T[rows_M])
        states_MH: Tensor = encoder.layers(
            encoder.embed(packed), packed, queries=MaskDecoding(added_MH, rows_M, counts)
        )
        return states_MH
