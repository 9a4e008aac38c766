"""Bidirectional multi-head self-attention (Vaswani et al. 2017, arXiv:1706.03762, section 3.2).

Every token attends to every token of its own sequence, before and behind it: no causal mask, and no padding to mask.

Shapes: T packed tokens, H hidden, N heads, D head width, n tokens of one sequence, M selected rows.
"""

import torch
from torch import Tensor, nn

from bothways.encoder.backends import REFERENCE, AttentionRequest, attend_once, choose
from bothways.encoder.config import EncoderConfig, FullAttention
from bothways.encoder.linear import Linear, linear
from bothways.encoder.rows import FirstTokens, Rows, select
from bothways.errors import UnsupportedConfig
from bothways.packing import Packed


class SelfAttention(nn.Module):
    """One fused projection to queries, keys and values, attention within each sequence, one projection back."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        if not isinstance(config.pattern, FullAttention):
            raise UnsupportedConfig(f"{type(config.pattern).__name__} is described but not built yet.")
        self.heads, self.head_width = config.heads, config.head_width
        self.dropout = config.dropout.attention
        self.qkv = Linear(config.hidden, 3 * config.hidden)
        self.output = Linear(config.hidden, config.hidden)

    def forward(self, hidden_TH: Tensor, bounds: Packed, backend: str | None, rows: Rows) -> Tensor:
        """Attend and project the rows that are read: (T, H), (B, H) or (M, H).

        First tokens alone take a way of their own, the same for every backend: one query a sequence leaves nothing to
        fuse. The named backend is held to serve the call all the same.

        Raises:
            UnsupportedAttention: The named backend cannot serve this call.
        """
        request = self._request(hidden_TH, weights=False)
        chosen = choose(request, backend)
        if isinstance(rows, FirstTokens):
            context_BND = self._of_first_tokens(hidden_TH, bounds, request.dropout)
            return self._out(context_BND.flatten(1))
        context_TND = chosen.attend(self._project(hidden_TH), bounds, request.dropout)
        return self._out(select(context_TND.flatten(1), rows, bounds))

    def forward_with_weights(
        self, hidden_TH: Tensor, bounds: Packed, backend: str | None
    ) -> tuple[Tensor, list[Tensor]]:
        """As `forward`, and for each sequence the attention weights (N, n, n) before dropout.

        Raises:
            UnsupportedAttention: The named backend is another than the reference, the only one that has them.
        """
        request = self._request(hidden_TH, weights=True)
        if backend is not None:
            choose(request, backend)
        context_TND, weights = REFERENCE.attend_with_weights(self._project(hidden_TH), bounds, request.dropout)
        return self._out(context_TND.flatten(1)), weights

    def _request(self, hidden_TH: Tensor, *, weights: bool) -> AttentionRequest:
        device = hidden_TH.device.type
        # Under autocast the projection changes the precision.
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_TH.dtype
        return AttentionRequest(device, dtype, self.head_width, self.dropout if self.training else 0.0, weights)

    def _project(self, hidden_TH: Tensor) -> Tensor:
        qkv_T3H: Tensor = self.qkv(hidden_TH)
        return qkv_T3H.view(-1, 3, self.heads, self.head_width)

    def _out(self, context_TH: Tensor) -> Tensor:
        output_TH: Tensor = self.output(context_TH)
        return output_TH

    def _of_first_tokens(self, hidden_TH: Tensor, bounds: Packed, dropout: float) -> Tensor:
        """Context (B, N, D) of the first tokens alone: one query a sequence, so there is nothing to fuse."""
        shape = (-1, self.heads, self.head_width)
        hidden = hidden_TH.shape[1]
        q_weight_HH, kv_weight_2HH = self.qkv.weight.split_with_sizes((hidden, 2 * hidden))
        q_bias_H, kv_bias_2H = self.qkv.bias.split_with_sizes((hidden, 2 * hidden))
        q_BND = linear(hidden_TH[bounds.first_tokens_B], q_weight_HH, q_bias_H).view(shape)
        k_TH, v_TH = linear(hidden_TH, kv_weight_2HH, kv_bias_2H).chunk(2, 1)
        return attend_once(q_BND, k_TH.view(shape), v_TH.view(shape), bounds, dropout)
