"""Attention from layer to layer: how much of each input token a token of the last layer can have read, by the weights.

Shapes: L layers, N heads, S tokens.
"""

import numpy as np
import numpy.typing as npt

from bothways.explain.attention import TextAttention


def rollout(attention: TextAttention) -> npt.NDArray[np.float64]:
    """Return the attention rollout (S, S) of Abnar and Zuidema (2020, arXiv:2005.00928, section 3).

    The mean over the heads of each layer is averaged with the identity, which stands for the residual connection, and
    the layers are multiplied. Row s says how much each input token can have reached place s, and sums to 1. It reads
    weights alone: values, feed-forward layers and norms have no part in it.
    """
    size = len(attention.tokens)
    reached_SS = np.eye(size)
    for layer_NSS in attention.weights_LNSS.astype(np.float64):
        mixed_SS = (layer_NSS.mean(0) + np.eye(size)) / 2
        reached_SS = mixed_SS / mixed_SS.sum(1, keepdims=True) @ reached_SS
    return reached_SS
