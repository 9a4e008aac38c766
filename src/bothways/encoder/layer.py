"""One transformer layer: attention and feed-forward, each with a residual sum and a norm.

Beside the first layer of DeBERTa v2's large sizes stands a convolution.

Shapes: T packed tokens, H hidden, M selected rows, B sequences, P rows with a gap behind each sequence.
"""

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor, nn

from bothways.encoder.attention import SelfAttention
from bothways.encoder.axes import FirstLayerConvolution, PostNorm, PreNorm
from bothways.encoder.batch import Batch
from bothways.encoder.config import EncoderConfig
from bothways.encoder.dropout import Dropout
from bothways.encoder.feedforward import ACTIVATIONS, feed_forward
from bothways.encoder.rows import Rows, select
from bothways.encoder.run import Run


class PostNormLayer(nn.Module):
    """Attention, add and norm, feed-forward, add and norm."""

    def __init__(self, config: EncoderConfig, index: int) -> None:
        super().__init__()
        self.attention = SelfAttention(config, index)
        self.attention_norm = norm(config)
        self.feed_forward = feed_forward(config)
        self.feed_forward_norm = norm(config)
        self.dropout = Dropout(config.dropout.hidden)

    def forward(self, hidden_TH: Tensor, run: Run, rows: Rows) -> Tensor:
        """Map (T, H) to its selected rows."""
        # Behind the attention each row stands for itself, so unread ones are left out.
        return self._behind(select(hidden_TH, rows, run.batch), self.attention(hidden_TH, run, rows))

    def two_streams(self, hidden_TH: Tensor, queries_MH: Tensor, run: Run, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the selected rows of the content stream (T, H), and the query stream (M, H)."""
        attended_TH, answered_MH = self.attention.two_streams(hidden_TH, queries_MH, run, rows)
        read_TH = self._behind(select(hidden_TH, rows, run.batch), attended_TH)
        return read_TH, self._behind(queries_MH, answered_MH)

    def _behind(self, read_TH: Tensor, attended_TH: Tensor) -> Tensor:
        hidden_TH = self.attention_norm(_add_into(self.dropout(attended_TH), read_TH))
        output_TH: Tensor = self.feed_forward_norm(_add_into(self.dropout(self.feed_forward(hidden_TH)), hidden_TH))
        return output_TH


class PreNormLayer(nn.Module):
    """Norm, attention and add; norm, feed-forward and add. The embedding is normed, so the first norm is left out."""

    def __init__(self, config: EncoderConfig, index: int) -> None:
        super().__init__()
        self.attention_norm = norm(config) if index else nn.Identity()
        self.attention = SelfAttention(config, index)
        self.feed_forward_norm = norm(config)
        self.feed_forward = feed_forward(config)
        self.dropout = Dropout(config.dropout.hidden)

    def forward(self, hidden_TH: Tensor, run: Run, rows: Rows) -> Tensor:
        """Map (T, H) to its selected rows."""
        attended_TH = self.attention(self.attention_norm(hidden_TH), run, rows)
        return self._behind(select(hidden_TH, rows, run.batch), attended_TH)

    def two_streams(self, hidden_TH: Tensor, queries_MH: Tensor, run: Run, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the selected rows of the content stream (T, H), and the query stream (M, H)."""
        normed = self.attention_norm(hidden_TH), self.attention_norm(queries_MH)
        attended_TH, answered_MH = self.attention.two_streams(*normed, run, rows)
        read_TH = self._behind(select(hidden_TH, rows, run.batch), attended_TH)
        return read_TH, self._behind(queries_MH, answered_MH)

    def _behind(self, read_TH: Tensor, attended_TH: Tensor) -> Tensor:
        hidden_TH = _add_into(self.dropout(attended_TH), read_TH)
        return _add_into(self.dropout(self.feed_forward(self.feed_forward_norm(hidden_TH))), hidden_TH)


Layer = PostNormLayer | PreNormLayer


def layer(config: EncoderConfig, index: int) -> Layer:
    """Return layer number ``index``, counted from 0."""
    match config.norm:
        case PostNorm():
            return PostNormLayer(config, index)
        case PreNorm():
            return PreNormLayer(config, index)


class Norm(nn.LayerNorm):
    """`torch.nn.LayerNorm` without its checks of the arguments, which take as long as the norm of a short text."""

    def forward(self, hidden_TH: Tensor) -> Tensor:
        """Map (T, H) to (T, H)."""
        return torch.layer_norm(hidden_TH, self.normalized_shape, self.weight, self.bias, self.eps)


def norm(config: EncoderConfig) -> Norm:
    """Return a norm of hidden states as configured."""
    return Norm(config.hidden, eps=config.norm.eps, bias=config.norm.bias)


def _add_into(fresh_TH: Tensor, hidden_TH: Tensor) -> Tensor:
    """Add in place to the output of dropout or a linear map.

    Nobody else holds it, no gradient needs it.

    Under autocast the fresh one is in half precision and the sum must not be.
    """
    return fresh_TH.add_(hidden_TH) if fresh_TH.dtype == hidden_TH.dtype else fresh_TH + hidden_TH


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
