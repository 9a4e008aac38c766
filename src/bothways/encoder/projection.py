"""Queries, keys and values of the hidden states, by one fused linear map.

Shapes: T rows, H hidden, N heads, D head width.
"""

import torch
from torch import Tensor, nn

from bothways.encoder.axes import AttentionBiases
from bothways.encoder.linear import linear

_QUERY, _KEY, _VALUE = range(3)
_ON_VALUE: tuple[AttentionBiases, ...] = ("query and value, and output",)
_ON_QUERY: tuple[AttentionBiases, ...] = ("query only", *_ON_VALUE)


class QKV(nn.Module):
    """One weight (3 H, H); biases on all three, some or none.

    Biases on some of the three are parameters of their own, so that the others stay without.
    """

    def __init__(self, hidden: int, heads: int, biases: AttentionBiases) -> None:
        super().__init__()
        self.heads = heads
        self.weight = nn.Parameter(torch.empty(3 * hidden, hidden))
        self.bias = nn.Parameter(torch.zeros(3 * hidden)) if biases == "all" else None
        on_query, on_value = biases in _ON_QUERY, biases in _ON_VALUE
        self.query_bias = nn.Parameter(torch.zeros(hidden)) if on_query else None
        self.value_bias = nn.Parameter(torch.zeros(hidden)) if on_value else None

    def forward(self, hidden_TH: Tensor) -> Tensor:
        """Map (T, H) to (T, 3, N, D)."""
        qkv_T3H = linear(hidden_TH, self.weight, self._whole_bias())
        return qkv_T3H.view(hidden_TH.shape[0], 3, self.heads, -1)

    def queries(self, rows_TH: Tensor) -> Tensor:
        """Map (T, H) to queries (T, N, D)."""
        return self._parts(rows_TH, _QUERY, _QUERY).squeeze(1)

    def keys(self, rows_TH: Tensor) -> Tensor:
        """Map (T, H) to keys (T, N, D)."""
        return self._parts(rows_TH, _KEY, _KEY).squeeze(1)

    def keys_and_values(self, rows_TH: Tensor) -> Tensor:
        """Map (T, H) to keys and values (T, 2, N, D)."""
        return self._parts(rows_TH, _KEY, _VALUE)

    def _parts(self, rows_TH: Tensor, first: int, last: int) -> Tensor:
        hidden = self.weight.shape[1]
        # A split, not a slice: with gradients, the backward of a slice fills a gradient of the whole weight.
        sizes = [first * hidden, (last + 1 - first) * hidden, (2 - last) * hidden]
        bias = self._whole_bias()
        part_bias = None if bias is None else bias.split_with_sizes(sizes)[1]
        found = linear(rows_TH, self.weight.split_with_sizes(sizes)[1], part_bias)
        return found.view(rows_TH.shape[0], last + 1 - first, self.heads, -1)

    def _whole_bias(self) -> Tensor | None:
        if self.query_bias is None and self.value_bias is None:
            return self.bias
        zeros = self.weight.new_zeros(self.weight.shape[1])
        query, value = (zeros if part is None else part for part in (self.query_bias, self.value_bias))
        return torch.cat([query, zeros, value])
