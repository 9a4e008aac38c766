"""One transformer layer: attention and feed-forward, each with a residual sum and a norm.

The first layer of DeBERTa v2's large sizes also has a convolution.

Shapes: T packed tokens, H hidden, F inner width, M selected rows or queries, B sequences, P rows with a gap behind each
sequence.
"""

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor, nn

from bothways.encoder.attention import Run, SelfAttention
from bothways.encoder.batch import Batch, Rows, select
from bothways.encoder.config import (
    EncoderConfig,
    FirstLayerConvolution,
    GatedFeedForward,
    PostNorm,
    PreNorm,
)
from bothways.encoder.linear import Linear
from bothways.encoder.modules import ACTIVATIONS, IN_PLACE_ACTIVATIONS, Dropout, norm
from bothways.encoder.recomputation import computed_again
from bothways.products import ROWS_AT_ONCE, in_parts


class FeedForward(nn.Module):
    """Linear, activation, linear.

    With a gate, the first map has twice the width; one half of it, activated, is multiplied by the other (Shazeer 2020,
    arXiv:2002.05202).
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        kind = config.feed_forward
        self.gated = isinstance(kind, GatedFeedForward)
        self.inner = Linear(config.hidden, (1 + self.gated) * kind.width, bias=kind.bias)
        self.outer = Linear(kind.width, config.hidden, bias=kind.bias)
        self.activation = kind.activation
        self.dropout = Dropout(config.dropout.inner)

    def forward(self, hidden_TH: Tensor) -> Tensor:
        """Map (T, H) to (T, H)."""
        many = torch.is_inference_mode_enabled() and hidden_TH.shape[0] > ROWS_AT_ONCE
        if many and hidden_TH.device.type == "cpu":
            # In parts, so that the inner states stay in the cache.
            return in_parts(self.forward, hidden_TH, hidden_TH.shape[1])
        inner_TF = self.inner(hidden_TH)
        value_TF, gate_TF = inner_TF.chunk(2, 1) if self.gated else (inner_TF, None)
        # The inner states are the widest tensor: a second one costs page faults and a trip out of the cache.
        activation = (ACTIVATIONS if torch.is_grad_enabled() else IN_PLACE_ACTIVATIONS)[self.activation]
        # After dropout, the inner states cannot be computed again from those before.
        if not torch.is_grad_enabled() or (self.dropout.training and self.dropout.rate):
            activated_TF = activation(value_TF)
            output_TH: Tensor = self.outer(self.dropout(activated_TF if gate_TF is None else activated_TF * gate_TF))
            return output_TH
        # Kept, they would be a quarter of all that a layer keeps; an activation takes a hundredth of a layer's time.
        kept_TF = value_TF.detach()
        again = partial(activation, kept_TF)
        if gate_TF is None:
            return computed_again(activation(value_TF), again, self.outer)
        kept_gate_TF = gate_TF.detach()
        inner_TF = computed_again(activation(value_TF), again, lambda activated_TF: activated_TF * gate_TF)
        return computed_again(inner_TF, lambda: activation(kept_TF) * kept_gate_TF, self.outer)


class PostNormLayer(nn.Module):
    """Attention, add and norm, feed-forward, add and norm."""

    def __init__(self, config: EncoderConfig, index: int) -> None:
        super().__init__()
        self.attention = SelfAttention(config, index)
        self.attention_norm = norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = norm(config)
        self.dropout = Dropout(config.dropout.hidden)

    def forward(
        self, hidden_TH: Tensor, queries_MH: Tensor | None, run: Run, rows: Rows
    ) -> tuple[Tensor, Tensor | None]:
        """Map (T, H) to its selected rows, and the query stream (M, H), if any, to the next one."""
        attended_TH, answered_MH = self.attention(hidden_TH, queries_MH, run, rows)
        # Behind the attention each row stands for itself, so unread ones are left out.
        read_TH = self._behind(select(hidden_TH, rows, run.batch), attended_TH)
        return read_TH, None if queries_MH is None else self._behind(queries_MH, answered_MH)

    def _behind(self, read_TH: Tensor, attended_TH: Tensor) -> Tensor:
        hidden_TH = self.attention_norm(_add_into(self.dropout(attended_TH), read_TH))
        output_TH: Tensor = self.feed_forward_norm(_add_into(self.dropout(self.feed_forward(hidden_TH)), hidden_TH))
        return output_TH


class PreNormLayer(nn.Module):
    """Norm, attention and add; norm, feed-forward and add. The embedding has a norm, so the first one is left out."""

    def __init__(self, config: EncoderConfig, index: int) -> None:
        super().__init__()
        self.attention_norm = norm(config) if index else nn.Identity()
        self.attention = SelfAttention(config, index)
        self.feed_forward_norm = norm(config)
        self.feed_forward = FeedForward(config)
        self.dropout = Dropout(config.dropout.hidden)

    def forward(
        self, hidden_TH: Tensor, queries_MH: Tensor | None, run: Run, rows: Rows
    ) -> tuple[Tensor, Tensor | None]:
        """Map (T, H) to its selected rows, and the query stream (M, H), if any, to the next one."""
        normed_MH = None if queries_MH is None else self.attention_norm(queries_MH)
        attended_TH, answered_MH = self.attention(self.attention_norm(hidden_TH), normed_MH, run, rows)
        read_TH = self._behind(select(hidden_TH, rows, run.batch), attended_TH)
        return read_TH, None if queries_MH is None else self._behind(queries_MH, answered_MH)

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


def _add_into(fresh_TH: Tensor, hidden_TH: Tensor) -> Tensor:
    """Add in place to the output of dropout or a linear map.

    No other code holds it, and no gradient needs it.

    Under autocast the fresh one is in half precision, and the sum must not be.
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
