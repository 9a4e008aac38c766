"""One transformer layer: attention and feed-forward, each with a residual sum and a norm.

Shapes: T packed tokens, H hidden, M selected rows, n tokens of one sequence, N heads.
"""

from torch import Tensor, nn

from bothways.encoder.attention import SelfAttention
from bothways.encoder.config import EncoderConfig, PostNorm
from bothways.encoder.dropout import Dropout
from bothways.encoder.feedforward import FeedForward
from bothways.encoder.rows import ALL_ROWS, Rows, select
from bothways.errors import UnsupportedConfig
from bothways.packing import Packed


class Layer(nn.Module):
    """Attention, add and norm, feed-forward, add and norm."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        if not isinstance(config.norm, PostNorm):
            raise UnsupportedConfig(f"{type(config.norm).__name__} is described but not built yet; only PostNorm is.")
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden, eps=config.norm.eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden, eps=config.norm.eps)
        self.dropout = Dropout(config.dropout.hidden)

    def forward(self, hidden_TH: Tensor, bounds: Packed, backend: str | None = None, rows: Rows = ALL_ROWS) -> Tensor:
        """(T, H) to those rows of (T, H) that are read."""
        return self._finish(select(hidden_TH, rows, bounds), self.attention(hidden_TH, bounds, backend, rows))

    def forward_with_weights(
        self, hidden_TH: Tensor, bounds: Packed, backend: str | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """As `forward`, and for each sequence its attention weights (N, n, n)."""
        attended_TH, weights = self.attention.forward_with_weights(hidden_TH, bounds, backend)
        return self._finish(hidden_TH, attended_TH), weights

    def _finish(self, hidden_TH: Tensor, attended_TH: Tensor) -> Tensor:
        """Everything behind the attention; each row stands for itself, so unread ones are left out from here on."""
        hidden_TH = self.attention_norm(_add_into(self.dropout(attended_TH), hidden_TH))
        output_TH: Tensor = self.feed_forward_norm(_add_into(self.dropout(self.feed_forward(hidden_TH)), hidden_TH))
        return output_TH


def _add_into(fresh_TH: Tensor, hidden_TH: Tensor) -> Tensor:
    """The sum, in the place of what dropout or a linear map has just made: nobody else holds it, no gradient needs it.

    Under autocast the fresh one is in half precision and the sum must not be.
    """
    return fresh_TH.add_(hidden_TH) if fresh_TH.dtype == hidden_TH.dtype else fresh_TH + hidden_TH
