"""Vectors of sentences, for detectors that compare texts.

Shapes: N texts, H hidden.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bothways.encoder.pairs import means
from bothways.inference import TextOptions, TextRows, text_runner

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from bothways.checkpoints import PretrainedEncoder
    from bothways.packing import Packed

    Vectors = Callable[[Sequence[str]], NDArray[np.float64]]

# Windows of models that know no limit of their own.
_USUAL_LENGTH = 512


def sentence_vectors(encoder: "PretrainedEncoder") -> "Vectors":
    """Return a function from texts to the mean of their last hidden states, as unit vectors (N, H)."""
    return _mean_vectors(encoder, encoder.encoder)


def table_vectors(encoder: "PretrainedEncoder") -> "Vectors":
    """Return a function from texts to the mean of their tokens' rows of the embedding table, as unit vectors (N, E)."""
    return _mean_vectors(encoder, lambda packed: encoder.encoder.embedding.tokens(packed.ids_T))


def _mean_vectors(encoder: "PretrainedEncoder", states: "Callable[[Packed], Tensor]") -> "Vectors":
    def forward(packed: "Packed") -> "Tensor":
        averages_BH: Tensor = means(states(packed), packed)
        return averages_BH

    options = TextOptions(encoder.config.max_length or _USUAL_LENGTH, on_overflow="truncate")
    runner = text_runner(encoder.tokenizer, forward, encoder.device, options)

    def vectors(texts: Sequence[str]) -> "NDArray[np.float64]":
        read = runner.run(texts, show_progress=False)
        rows = [each.rows_WK[0] for each in read if isinstance(each, TextRows)]
        vectors_NH = np.stack(rows).astype(np.float64)
        vectors_NH /= np.maximum(np.linalg.norm(vectors_NH, axis=1, keepdims=True), 1e-12)
        return vectors_NH

    return vectors
