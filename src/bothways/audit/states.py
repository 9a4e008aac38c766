"""Hidden states of texts by layer and token, the tokens that two texts share, and vectors of whole texts.

Shapes: n tokens of a text, L layers and the embedding before them, N texts, H hidden, E embedding width.
"""

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.checkpoints import PretrainedEncoder
from bothways.encoder import Recorder
from bothways.encoder.heads import means
from bothways.inference import TextOptions, TextRows, text_runner
from bothways.packing import Packed, pack

Numbers = NDArray[np.float64]
Vectors = Callable[[Sequence[str]], Numbers]
"""A function that takes texts and returns unit vectors (N, H)."""

# Longer texts are cut.
MAX_TOKENS = 256
_CHUNK = 32
# Window of models without a limit of their own.
_DEFAULT_LENGTH = 512


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """The hidden states of one text."""

    ids: tuple[int, ...]
    begins_n: NDArray[np.int32]  # first character of each token; 0 for special tokens
    ends_n: NDArray[np.int32]  # the character behind its last; 0 for special tokens
    hidden_LnH: NDArray[np.float32]  # unit vectors of the embedding's output and that of each layer
    sentence_LH: Numbers  # unit vectors of their means over the tokens


def states_of(
    encoder: PretrainedEncoder, texts: Sequence[str], check_time: Callable[[], None] = lambda: None
) -> Iterator[States]:
    """Yield the states of texts, in order; long texts are truncated."""
    limit = min(MAX_TOKENS, encoder.config.max_length or MAX_TOKENS)
    for start in range(0, len(texts), _CHUNK):
        check_time()
        some = list(texts[start : start + _CHUNK])
        encoded = encoder.tokenizer.encode(some, max_length=limit, on_overflow="truncate", offsets=True)
        windows = [each.windows[0] for each in encoded]
        packed = pack([each.ids for each in windows], [each.types for each in windows], encoder.device)
        record = Recorder()
        with torch.inference_mode():
            encoder.encoder(packed, record=record)
        hidden_LTH = np.stack([each.float().cpu().numpy() for each in record.hidden_states])
        end = 0
        for window in windows:
            begin, end = end, end + len(window.ids)
            offsets = np.array(window.offsets, dtype=np.int32).reshape(len(window.ids), 2)
            hidden_LnH = hidden_LTH[:, begin:end]
            sentence_LH = unit_vectors(hidden_LnH.mean(axis=1, dtype=np.float64))
            tokens_LnH = unit_vectors(hidden_LnH).astype(np.float32)
            yield States(tuple(window.ids), offsets[:, 0], offsets[:, 1], tokens_LnH, sentence_LH)


def unit_vectors(values: NDArray[np.floating]) -> Numbers:
    """Scale vectors to unit length along the last axis."""
    unit: Numbers = values / np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), 1e-12)
    return unit


def shared_tokens(before: States, after: States) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of the tokens that two texts share, in the first and in the second text."""
    blocks = difflib.SequenceMatcher(None, before.ids, after.ids, autojunk=False).get_matching_blocks()
    first = [block.a + step for block in blocks for step in range(block.size)]
    second = [block.b + step for block in blocks for step in range(block.size)]
    return np.array(first, dtype=np.int64), np.array(second, dtype=np.int64)


def token_shifts(before: States, after: States, first: NDArray[np.int64], second: NDArray[np.int64]) -> Numbers:
    """Return ``1 - cosine`` between tokens of two texts, given their positions, in each layer (L, n)."""
    cosines_Ln = np.einsum("lnh,lnh->ln", before.hidden_LnH[:, first], after.hidden_LnH[:, second], dtype=np.float64)
    shifts_Ln: Numbers = np.maximum(0.0, 1.0 - cosines_Ln)
    return shifts_Ln


def sentence_shifts(before: States, after: States) -> Numbers:
    """Return ``1 - cosine`` between the mean states of two texts in each layer (L,)."""
    shifts_L: Numbers = np.maximum(0.0, 1.0 - (before.sentence_LH * after.sentence_LH).sum(axis=1))
    return shifts_L


def sentence_vectors(encoder: PretrainedEncoder) -> Vectors:
    """Return a function from texts to the mean of their last hidden states, as unit vectors (N, H)."""
    return _mean_vectors(encoder, encoder.encoder)


def table_vectors(encoder: PretrainedEncoder) -> Vectors:
    """Return a function from texts to the mean of their tokens' rows in the embedding table, as unit vectors (N, E)."""
    return _mean_vectors(encoder, lambda packed: encoder.encoder.embedding.tokens(packed.ids_T))


def _mean_vectors(encoder: PretrainedEncoder, states: Callable[[Packed], Tensor]) -> Vectors:
    def forward(packed: Packed) -> Tensor:
        averages_BH: Tensor = means(states(packed), packed)
        return averages_BH

    options = TextOptions(encoder.config.max_length or _DEFAULT_LENGTH, on_overflow="truncate")
    runner = text_runner(encoder.tokenizer, forward, encoder.device, options)

    def vectors(texts: Sequence[str]) -> Numbers:
        read = runner.run(texts, show_progress=False)
        rows = [each.rows_WK[0] for each in read if isinstance(each, TextRows)]
        return unit_vectors(np.stack(rows).astype(np.float64))

    return vectors
