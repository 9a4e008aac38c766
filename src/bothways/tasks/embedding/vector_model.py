"""The model behind an embedder: an encoder and its pooling.

Shapes: T tokens of a batch, B windows of a batch, H hidden.
"""

import torch
from torch import Tensor, nn

from bothways.checkpoints import PretrainedEncoder
from bothways.choices import Pooling
from bothways.encoder import Encoder
from bothways.encoder.batch import Batch
from bothways.encoder.rows import ALL_ROWS, FIRST_TOKENS, LAST_TOKENS, Rows
from bothways.tasks.embedding.pooling import pool


class VectorModel(nn.Module):
    """An encoder and its pooling: one vector for each window, not yet cut or scaled.

    Args:
        encoder: The encoder.
        pooling: From token states to a vector.
        cls_rows: Where ``cls`` pooling finds its token.
    """

    def __init__(self, encoder: Encoder, pooling: Pooling, cls_rows: Rows = FIRST_TOKENS) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.cls_rows = cls_rows

    @classmethod
    def of(cls, model: PretrainedEncoder, pooling: Pooling) -> "VectorModel":
        """Put a pooling above an opened encoder."""
        return cls(model.encoder, pooling, LAST_TOKENS if model.tokenizer.cls_is_last else FIRST_TOKENS)

    def forward(self, packed: Batch) -> Tensor:
        """Return vectors of the windows (B, H); of the last layer no more is computed than is read."""
        one_only = self.pooling == "cls"
        hidden_TH: Tensor = self.encoder(packed, rows=self.cls_rows if one_only else ALL_ROWS)
        return hidden_TH if one_only else pool(hidden_TH, packed, self.pooling)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.encoder.embedding.tokens.weight.device
