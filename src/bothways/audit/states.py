"""Hidden states of texts by layer and token, and which tokens of two texts belong together.

Shapes: n tokens of a text, L layers and the embedding before them, H hidden.
"""

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.encoder import Recorder
from bothways.packing import pack

if TYPE_CHECKING:
    from bothways.checkpoints import PretrainedEncoder

Numbers = NDArray[np.float64]

# Tokens of a text that are looked at; what lies behind is cut.
MOST_TOKENS = 256
_CHUNK = 32


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """The hidden states of one text.

    Attributes:
        ids: Its tokens, special ones included.
        begins_n: Where each token begins in the text; 0 for special tokens.
        ends_n: Where it ends; 0 for special tokens.
        hidden_LnH: The embedding's output and that of each layer, at unit length.
        sentence_LH: Their means over the tokens, at unit length.
    """

    ids: tuple[int, ...]
    begins_n: NDArray[np.int32]
    ends_n: NDArray[np.int32]
    hidden_LnH: NDArray[np.float32]
    sentence_LH: Numbers


def states_of(
    encoder: "PretrainedEncoder", texts: Sequence[str], check_time: Callable[[], None] = lambda: None
) -> Iterator[States]:
    """Yield the states of texts, in order; those of long texts are of their first tokens."""
    limit = min(MOST_TOKENS, encoder.config.max_length or MOST_TOKENS)
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
            sentence_LH = _unit(hidden_LnH.mean(axis=1, dtype=np.float64))
            tokens_LnH = _unit(hidden_LnH).astype(np.float32)
            yield States(tuple(window.ids), offsets[:, 0], offsets[:, 1], tokens_LnH, sentence_LH)


def _unit(values: NDArray[Any]) -> Numbers:
    lengths = np.linalg.norm(values, axis=-1, keepdims=True)
    unit: Numbers = values / np.maximum(lengths, 1e-12)
    return unit


def pairs_of(before: States, after: States) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places of tokens that both texts have, in the first and in the second text."""
    blocks = difflib.SequenceMatcher(None, before.ids, after.ids, autojunk=False).get_matching_blocks()
    first = [block.a + step for block in blocks for step in range(block.size)]
    second = [block.b + step for block in blocks for step in range(block.size)]
    return np.array(first, dtype=np.int64), np.array(second, dtype=np.int64)


def token_shifts(before: States, after: States) -> tuple[NDArray[np.int64], NDArray[np.int64], Numbers]:
    """Return the tokens that both texts have, see `pairs_of`, and ``1 - cosine`` of each in each layer (L, n)."""
    first, second = pairs_of(before, after)
    cosines_Ln = np.einsum("lnh,lnh->ln", before.hidden_LnH[:, first], after.hidden_LnH[:, second], dtype=np.float64)
    return first, second, np.maximum(0.0, 1.0 - cosines_Ln)


def sentence_shifts(before: States, after: States) -> Numbers:
    """Return ``1 - cosine`` of the mean states in each layer (L,)."""
    shifts_L: Numbers = np.maximum(0.0, 1.0 - (before.sentence_LH * after.sentence_LH).sum(axis=1))
    return shifts_L
