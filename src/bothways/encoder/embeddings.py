"""From token ids to the first hidden states.

Shapes: T packed tokens, H hidden, E embedding width.
"""

from torch import Tensor, nn

from bothways.encoder.config import AbsolutePositions, EncoderConfig
from bothways.encoder.dropout import Dropout
from bothways.encoder.linear import Linear
from bothways.errors import UnsupportedConfig
from bothways.packing import Packed


class Table(nn.Embedding):
    """A table of vectors, drawn by `bothways.encoder.encoder.initialize` and not at once."""

    def reset_parameters(self) -> None:  # noqa: D102  (torch's contract)
        pass


class Embedding(nn.Module):
    """Token + position + segment vectors, norm, dropout, and a projection where the family has one."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        if not isinstance(config.positions, AbsolutePositions):
            raise UnsupportedConfig(
                f"{type(config.positions).__name__} are described but not built yet; only AbsolutePositions are."
            )
        width, positions = config.embedding.width, config.positions
        self.offset = positions.offset
        self.tokens = Table(config.vocabulary, width)
        self.positions = Table(positions.count + positions.offset, width)
        self.types = Table(config.embedding.types, width) if config.embedding.types else None
        self.norm = nn.LayerNorm(width, eps=config.norm.eps)
        self.dropout = Dropout(config.dropout.hidden)
        self.projection = Linear(width, config.hidden) if config.embedding.projected else None

    def forward(self, packed: Packed) -> Tensor:
        """First hidden states (T, H)."""
        embedded_TE = self.tokens(packed.ids_T) + self.positions(packed.positions_T + self.offset)
        if self.types is not None:
            embedded_TE += self.types(packed.types_T)
        embedded_TE = self.dropout(self.norm(embedded_TE))
        hidden_TH: Tensor = embedded_TE if self.projection is None else self.projection(embedded_TE)
        return hidden_TH
