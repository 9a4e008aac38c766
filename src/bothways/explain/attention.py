"""The attention weights of one text, with and without a causal mask.

A weight shows how much a head attends to a token. It is not a reason for a prediction: other weights can give the same
prediction (Jain and Wallace 2019, arXiv:1902.10186).

Shapes: L layers, N heads, S tokens of the text.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from bothways.checkpoints import PretrainedEncoder
from bothways.errors import InvalidInput
from bothways.text.windows import Text

Weights = npt.NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Head:
    """One attention head; layers and heads count from 0."""

    layer: int
    head: int


@dataclass(frozen=True, slots=True, eq=False)
class TextAttention:
    """The attention weights of every head between the tokens of one text."""

    tokens: tuple[str, ...]  # the S tokens as spelt in the vocabulary, special tokens included
    # True for each token of a word or number; False for special tokens and punctuation.
    words: tuple[bool, ...]
    weights_LNSS: Weights  # attention of each token (row) to each token (column); every row sums to 1

    def head(self, head: Head) -> Weights:
        """Return the weights (S, S) of one head.

        Raises:
            InvalidInput: The model has no such head.
        """
        layers, heads = self.weights_LNSS.shape[:2]
        if not (0 <= head.layer < layers and 0 <= head.head < heads):
            raise InvalidInput(f"expected a layer from 0 to {layers - 1} and a head from 0 to {heads - 1}, got {head}.")
        weights_SS: Weights = self.weights_LNSS[head.layer, head.head]
        return weights_SS

    def mean(self, layer: int | None = None) -> Weights:
        """Return the mean weights (S, S) over the heads of one layer, or of all layers; each row sums to 1.

        Raises:
            InvalidInput: The model has no such layer.
        """
        if layer is None:
            mean_SS: Weights = self.weights_LNSS.mean((0, 1))
            return mean_SS
        if not 0 <= layer < len(self.weights_LNSS):
            raise InvalidInput(f"expected a layer from 0 to {len(self.weights_LNSS) - 1}, got {layer}.")
        layer_SS: Weights = self.weights_LNSS[layer].mean(0)
        return layer_SS


def attention_of(model: PretrainedEncoder, text: Text) -> TextAttention:
    """Return the attention weights of all layers and heads for one text, or for a pair of texts.

    The attention backend ``reference`` computes them, since fused backends do not return weights.

    Raises:
        InvalidInput: ``text`` is neither a string nor a pair of strings.
        TextTooLong: The text does not fit into one window; tokens of different windows do not attend to each other.
    """
    limit = model.config.max_length or 10**9
    (encoded,) = model.tokenizer.encode([text], max_length=limit, on_overflow="error", offsets=True)
    (window,) = encoded.windows
    with torch.inference_mode():
        layers = model([text], output_attentions=True, on_overflow="error").attentions
    parts = (text,) if isinstance(text, str) else text
    spans = zip(window.offsets or (), window.sequences or (), strict=True)
    words = tuple(
        sequence is not None and any(character.isalnum() for character in parts[sequence][begin:end])
        for (begin, end), sequence in spans
    )
    weights_LNSS = torch.stack([layer_1NSS[0] for layer_1NSS in layers]).float().cpu().numpy()
    return TextAttention(tuple(model.tokenizer.tokens(window.ids)), words, weights_LNSS)


def causal(weights_SS: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Convert a head's weights to those of a causal mask: tokens attend to themselves and to tokens on their left.

    Weights to the right are set to zero, and each row is divided by its remaining sum. This equals a causal mask on the
    same scores: with ``a[i, j] = exp(s[i, j]) / sum_k exp(s[i, k])``, the softmax over
    ``j <= i`` alone is ``exp(s[i, j]) / sum_{k <= i} exp(s[i, k]) = a[i, j] / sum_{k <= i} a[i, k]``, since the full
    sum cancels.

    It holds for a single head with given scores. In a causal model, the parameters and, from the second layer on,
    the scores would differ too. A mean over heads is not a softmax: mask each head, then take the mean.

    Args:
        weights_SS: (S, S), each row summing to 1.

    Returns:
        (S, S) in float64: lower triangular, each row summing to 1.

    Raises:
        InvalidInput: The weights are not a square matrix of finite values of at least 0, or all weights that the mask
            keeps in some row were rounded to zero, so their proportions are unknown.
    """
    given_SS = np.asarray(weights_SS, dtype=np.float64)
    if given_SS.ndim != 2 or given_SS.shape[0] != given_SS.shape[1] or not len(given_SS):
        raise InvalidInput(f"attention weights: expected a shape of (S, S), got {given_SS.shape}. Choose one head.")
    if not (np.isfinite(given_SS).all() and (given_SS >= 0).all()):
        raise InvalidInput("attention weights: expected finite numbers >= 0. Pass the weights after the softmax.")
    left_SS = np.tril(given_SS)
    left_SS[0, 0] = 1.0  # the first token can attend only to itself, however small its weight
    totals_S1 = left_SS.sum(1, keepdims=True)
    if not totals_S1.all():
        raise InvalidInput(
            f"expected a weight above 0 from each token to itself or to its left, but those of token "
            f"{int(np.argmin(totals_S1))} (counted from 0) were all rounded to zero. Choose another head."
        )
    masked_SS: npt.NDArray[np.float64] = left_SS / totals_S1
    return masked_SS


def illustrative_head(attention: TextAttention) -> Head:
    """Return the head of the last layer that attends most to distant words of the text; it is a good first example.

    The score of a head is the total weight from a token of a word to other tokens of words, except for its two
    neighbours, as a mean over the tokens of words. The first head with the highest score is returned. Tokens that many
    heads prefer do not count: the token itself, its neighbours, special tokens and punctuation (Clark et al. 2019,
    arXiv:1906.04341, section 3). The last layer is used because its states depend on the context.

    Raises:
        InvalidInput: The text has no two words with a token between them.
    """
    words_S = np.asarray(attention.words, dtype=bool)
    places_S = np.arange(len(words_S))
    distant_SS = np.abs(np.subtract.outer(places_S, places_S)) > 1
    counted_SS = np.outer(words_S, words_S) & distant_SS
    if not counted_SS.any():
        raise InvalidInput(
            f"expected a text with two words that are not neighbours, got the tokens {list(attention.tokens)}."
        )
    layer = len(attention.weights_LNSS) - 1
    shares_N = (attention.weights_LNSS[layer] * counted_SS).sum((1, 2)) / words_S.sum()
    return Head(layer, int(shares_N.argmax()))


def rollout(attention: TextAttention) -> npt.NDArray[np.float64]:
    """Return the attention rollout (S, S) of Abnar and Zuidema (2020, arXiv:2005.00928, section 3).

    The mean weights of each layer's heads are averaged with the identity, for the residual connection, and the layers
    are multiplied. Row s has the share of each input token in the state at position s, and sums to 1. Only attention
    weights are used, not values, feed-forward layers or norms.
    """
    size = len(attention.tokens)
    reached_SS = np.eye(size)
    for layer_NSS in attention.weights_LNSS.astype(np.float64):
        mixed_SS = (layer_NSS.mean(0) + np.eye(size)) / 2
        reached_SS = mixed_SS / mixed_SS.sum(1, keepdims=True) @ reached_SS
    return reached_SS
