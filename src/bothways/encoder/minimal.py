"""The whole forward pass of a BERT-style encoder in NumPy, in double precision, for readers.

It does not use torch: it takes a checkpoint's arrays under this package's names, and tests compare the real encoder
with it. It reads one text at a time, so there is nothing to mask.

Shapes: n tokens, H hidden, E embedding width, N heads, D head width, F inner width.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bothways.encoder.config import AbsolutePositions, DenseFeedForward, EncoderConfig, ProjectedAfterNorm, SharedGroups
from bothways.errors import UnsupportedConfig

Array = NDArray[np.float64]
_erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(x: Array) -> Array:
    """Return ``x * Phi(x)``, Phi being the standard normal CDF (Hendrycks & Gimpel, arXiv:1606.08415)."""
    result: Array = x * 0.5 * (1.0 + _erf(x / math.sqrt(2.0)))
    return result


def gelu_tanh(x: Array) -> Array:
    """Return the tanh approximation of `gelu`, equation 2 of the same paper."""
    result: Array = 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return result


def relu(x: Array) -> Array:
    """Return ``max(x, 0)``."""
    return np.maximum(x, 0.0)


def silu(x: Array) -> Array:
    """Return ``x / (1 + exp(-x))``."""
    result: Array = x / (1.0 + np.exp(-x))
    return result


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
    "silu": silu,
    "tanh": np.tanh,
}


def softmax(scores: Array) -> Array:
    """Return the softmax over the last dimension."""
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    result: Array = exponentials / exponentials.sum(-1, keepdims=True)
    return result


class MinimalEncoder:
    """A BERT-style encoder over a mapping of arrays, named as in ``Encoder.state_dict()``."""

    def __init__(self, config: EncoderConfig, weights: Mapping[str, NDArray[np.floating]]) -> None:
        if not isinstance(config.positions, AbsolutePositions) or not isinstance(config.feed_forward, DenseFeedForward):
            raise UnsupportedConfig("the NumPy encoder supports only absolute positions and dense feed-forward layers.")
        self.config = config
        self.offset = config.positions.offset
        self.activation = ACTIVATIONS[config.feed_forward.activation]
        self.weights = {name: np.asarray(value, dtype=np.float64) for name, value in weights.items()}

    def __call__(self, ids: Sequence[int], types: Sequence[int] | None = None) -> Array:
        """Return the last hidden states (n, H) of one text."""
        hidden_nH = self.embed(ids, types)
        for step in range(self.config.layers):
            for name in self._layers_of(step):
                hidden_nH = self.layer(name, hidden_nH)
        return hidden_nH

    def embed(self, ids: Sequence[int], types: Sequence[int] | None = None) -> Array:
        """Add token, position and segment vectors; norm and project them."""
        w = self.weights
        embedded_nE = w["embedding.tokens.weight"][list(ids)]
        embedded_nE = embedded_nE + w["embedding.positions.weight"][self.offset : self.offset + len(ids)]
        if self.config.embedding.types:
            embedded_nE = embedded_nE + w["embedding.types.weight"][list(types or [0] * len(ids))]
        embedded_nE = self.norm("embedding.norm", embedded_nE)
        projected = isinstance(self.config.embedding.projection, ProjectedAfterNorm)
        return self.linear("embedding.projection", embedded_nE) if projected else embedded_nE

    def layer(self, name: str, hidden_nH: Array) -> Array:
        """Apply attention, add and norm, feed-forward, add and norm."""
        attended_nH = self.attention(f"{name}.attention", hidden_nH)
        hidden_nH = self.norm(f"{name}.attention_norm", hidden_nH + attended_nH)
        inner_nF = self.activation(self.linear(f"{name}.feed_forward.inner", hidden_nH))
        outer_nH = self.linear(f"{name}.feed_forward.outer", inner_nF)
        return self.norm(f"{name}.feed_forward_norm", hidden_nH + outer_nH)

    def attention(self, name: str, hidden_nH: Array) -> Array:
        """Return softmax(q k^T / sqrt(D)) v for each head, with every token attending to every token."""
        n, heads, width = len(hidden_nH), self.config.heads, self.config.head_width
        q_NnD, k_NnD, v_NnD = self.linear(f"{name}.qkv", hidden_nH).reshape(n, 3, heads, width).transpose(1, 2, 0, 3)
        weights_Nnn = softmax(q_NnD @ k_NnD.transpose(0, 2, 1) / math.sqrt(width))
        context_nH = (weights_Nnn @ v_NnD).transpose(1, 0, 2).reshape(n, heads * width)
        return self.linear(f"{name}.output", context_nH)

    def linear(self, name: str, x: Array) -> Array:
        """Return ``x W^T + b``."""
        result: Array = x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]
        return result

    def norm(self, name: str, x: Array) -> Array:
        """Apply layer norm with the biased variance (Ba et al. 2016, arXiv:1607.06450)."""
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.config.norm.eps)
        result: Array = scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return result

    def _layers_of(self, step: int) -> list[str]:
        sharing = self.config.sharing
        if not isinstance(sharing, SharedGroups):
            return [f"layers.{step}"]
        group = step * sharing.groups // self.config.layers
        return [f"layers.{group * sharing.inner + index}" for index in range(sharing.inner)]
