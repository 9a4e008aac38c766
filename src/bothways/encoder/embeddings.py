"""Embeddings: token ids to the first hidden states.

Shapes: T packed tokens, H hidden, E embedding width.
"""

import torch
from torch import Tensor, nn

from bothways.encoder.axes import (
    AbsolutePositions,
    DisentangledPositions,
    Positions,
    ProjectedAfterNorm,
    ProjectedBeforeNorm,
)
from bothways.encoder.batch import Batch
from bothways.encoder.config import EncoderConfig
from bothways.encoder.dropout import Dropout
from bothways.encoder.linear import Linear
from bothways.errors import UnsupportedConfig


class EmbeddingTable(nn.Embedding):
    """A table of vectors that `bothways.encoder.encoder.initialize` draws, not its constructor."""

    def reset_parameters(self) -> None:
        pass


class Embedding(nn.Module):
    """Token, position and segment vectors, projection, norm and dropout, as configured."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, kind = config.embedding.width, config.embedding.projection
        self.tokens = EmbeddingTable(config.vocabulary, width)
        self.offset, rows = _position_rows(config.positions)
        self.positions = EmbeddingTable(rows, width) if rows else None
        self.types = EmbeddingTable(config.embedding.types, width) if config.embedding.types else None
        early, late = isinstance(kind, ProjectedBeforeNorm), isinstance(kind, ProjectedAfterNorm)
        self.early_projection = Linear(width, config.hidden, bias=False) if early else None
        normed = config.hidden if early else width
        self.norm = (
            nn.LayerNorm(normed, eps=config.norm.eps, bias=config.norm.bias) if config.embedding.normed else None
        )
        # Read by the query stream of permutation language modelling only.
        self.blank = nn.Parameter(torch.zeros(width)) if config.embedding.blank else None
        self.dropout = Dropout(config.dropout.embedding)
        self.projection = Linear(width, config.hidden) if late else None

    def blanks(self, count: int) -> Tensor:
        """Return the first vectors (M, H) of a query stream.

        Raises:
            UnsupportedConfig: The encoder has no vector for it.
        """
        if self.blank is None:
            raise UnsupportedConfig("this encoder has no vector that a query stream begins with; XLNet has one.")
        return self._finished(self.blank.expand(count, -1))

    def forward(self, batch: Batch) -> Tensor:
        """Return the first hidden states (T, H)."""
        embedded_TE = self.tokens(batch.ids_T)
        if self.positions is not None:
            embedded_TE = embedded_TE + self.positions(batch.positions_T + self.offset)
        if self.types is not None:
            embedded_TE = embedded_TE + self.types(batch.types_T)
        return self._finished(embedded_TE)

    def _finished(self, embedded_TE: Tensor) -> Tensor:
        for step in (self.early_projection, self.norm, self.dropout, self.projection):
            embedded_TE = embedded_TE if step is None else step(embedded_TE)
        hidden_TH: Tensor = embedded_TE
        return hidden_TH


def _position_rows(positions: Positions) -> tuple[int, int]:
    """Return the row of position 0 in the table of absolute positions, and the number of rows; 0 without a table."""
    match positions:
        case AbsolutePositions(count=count, offset=offset):
            return offset, count + offset
        case DisentangledPositions(count=count, absolute=True):
            return 0, count
        case _:
            return 0, 0
