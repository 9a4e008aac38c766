"""Bidirectional multi-head self-attention (Vaswani et al. 2017, arXiv:1706.03762, section 3.2).

Every token attends to every token of its own sequence, before and behind it: no causal mask, and no padding to mask.

Shapes: T packed tokens, H hidden, N heads, D head width, n tokens of one sequence, M selected rows.
"""

from torch import Tensor, nn

from bothways.encoder.backends import REFERENCE, AttentionRequest, choose
from bothways.encoder.config import EncoderConfig, FullAttention
from bothways.encoder.linear import Linear
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

    def forward(self, hidden_TH: Tensor, bounds: Packed, backend: str | None, rows_M: Tensor | None) -> Tensor:
        """Attend and project: (T, H), or (M, H) when only some rows are wanted.

        Raises:
            UnsupportedAttention: The named backend cannot serve this call.
        """
        qkv_T3ND = self._project(hidden_TH)
        request = self._request(qkv_T3ND, weights=False)
        context_TND = choose(request, backend).attend(qkv_T3ND, bounds, request.dropout)
        return self._merge(context_TND, rows_M)

    def forward_with_weights(
        self, hidden_TH: Tensor, bounds: Packed, backend: str | None, rows_M: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """As `forward`, and for each sequence the attention weights (N, n, n) before dropout.

        Raises:
            UnsupportedAttention: The named backend is another than the reference, the only one that has them.
        """
        qkv_T3ND = self._project(hidden_TH)
        request = self._request(qkv_T3ND, weights=True)
        if backend is not None:
            choose(request, backend)
        context_TND, weights = REFERENCE.attend_with_weights(qkv_T3ND, bounds, request.dropout)
        return self._merge(context_TND, rows_M), weights

    def _request(self, qkv_T3ND: Tensor, *, weights: bool) -> AttentionRequest:
        dropout = self.dropout if self.training else 0.0
        return AttentionRequest(qkv_T3ND.device.type, qkv_T3ND.dtype, self.head_width, dropout, weights)

    def _project(self, hidden_TH: Tensor) -> Tensor:
        qkv_T3H: Tensor = self.qkv(hidden_TH)
        return qkv_T3H.view(-1, 3, self.heads, self.head_width)

    def _merge(self, context_TND: Tensor, rows_M: Tensor | None) -> Tensor:
        context_TH = context_TND.flatten(1)
        output_TH: Tensor = self.output(context_TH if rows_M is None else context_TH[rows_M])
        return output_TH
