"""The torch module of an embedder: an encoder and the pooling of its token states into vectors.

Shapes: B sequences, T packed tokens, H hidden, W windows, P texts.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.checkpoints import PretrainedEncoder
from bothways.choices import Pooling
from bothways.devices import on_device
from bothways.encoder import Encoder
from bothways.encoder.backends.basic import runs_of_equal_length
from bothways.packing import ALL_ROWS, FIRST_TOKENS, LAST_TOKENS, Batch, PaddedRows, Rows, sum_rows, summing_type


class VectorModel(nn.Module):
    """An encoder with pooling: one vector for each window, not yet truncated or scaled."""

    def __init__(self, encoder: Encoder, pooling: Pooling, cls_rows: Rows = FIRST_TOKENS) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.cls_rows = cls_rows

    @classmethod
    def of(cls, model: PretrainedEncoder, pooling: Pooling) -> "VectorModel":
        """Combine an opened encoder with a pooling."""
        return cls(model.encoder, pooling, LAST_TOKENS if model.tokenizer.cls_is_last else FIRST_TOKENS)

    def forward(self, packed: Batch) -> Tensor:
        """Return the vectors of the windows (B, H); the last layer computes only the tokens that pooling needs."""
        if self.pooling == "cls":
            hidden_BH: Tensor = self.encoder(packed, rows=self.cls_rows)
            return hidden_BH
        return pool(self.encoder(packed, rows=ALL_ROWS), packed, self.pooling)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.encoder.embedding.tokens.weight.device


def pool(hidden_TH: Tensor, packed: Batch, pooling: Pooling) -> Tensor:
    """Pool the states of all tokens, including special tokens, into one vector for each sequence (B, H).

    - ``mean``: the average of the states;
    - ``cls``: the first state (`VectorModel` takes the last state if the tokenizer puts [CLS] there);
    - ``max``: the largest value in each dimension;
    - ``weighted_mean``: an average with weights 1, 2, 3, ... (Muennighoff 2022, arXiv:2202.08904);
    - ``mean_sqrt_length``: the sum of the states divided by the square root of their number.
    """
    if pooling == "cls":
        return hidden_TH[packed.first_tokens_B]
    if isinstance(packed, PaddedRows):
        return _pool_padded(hidden_TH, packed, pooling)
    reduce = _REDUCTIONS[pooling]
    hidden_TH = hidden_TH.to(summing_type(hidden_TH.dtype))
    width = hidden_TH.shape[-1]
    runs = packed.once(runs_of_equal_length)
    return torch.cat([reduce(hidden_TH[start:end].view(-1, length, width)) for start, end, length in runs])


def merge_windows(
    vectors_WH: Tensor, text_W: NDArray[np.int64], lengths_W: NDArray[np.int64], pooling: Pooling
) -> Tensor:
    """Merge the windows' vectors into one vector per text (P, H): a mean weighted by length, or the maximum.

    ``text_W`` is the text index of each window: 0 to P - 1, ascending, each at least once.
    """
    texts = int(text_W[-1]) + 1
    if len(text_W) == texts:
        return vectors_WH
    index_W = on_device(text_W, vectors_WH.device)
    if pooling == "max":
        empty_PH = vectors_WH.new_zeros((texts, vectors_WH.shape[1]))
        return empty_PH.scatter_reduce(
            0, index_W[:, None].expand_as(vectors_WH), vectors_WH, "amax", include_self=False
        )
    shares_W = lengths_W / np.bincount(text_W, weights=lengths_W)[text_W]
    weighted_WH = vectors_WH * torch.from_numpy(shares_W).to(vectors_WH)[:, None]
    return sum_rows(weighted_WH, index_W, texts)


def _pool_padded(hidden_TH: Tensor, batch: PaddedRows, pooling: Pooling) -> Tensor:
    """Pool a padded batch whose lengths are known only on the device, as in exported graphs."""
    lengths_B1 = batch.lengths_B[:, None]
    match pooling:
        case "max":
            return batch.padded(hidden_TH, fill=-math.inf).amax(1)
        case "weighted_mean":
            weights_T1 = (batch.positions_T + 1).to(hidden_TH.dtype)[:, None]
            return batch.sums(hidden_TH * weights_T1) / (lengths_B1 * (lengths_B1 + 1) / 2)
        case "mean_sqrt_length":
            return batch.sums(hidden_TH) / lengths_B1.to(hidden_TH.dtype).sqrt()
        case _:
            return batch.sums(hidden_TH) / lengths_B1


def _weighted_mean(hidden_BnH: Tensor) -> Tensor:
    length = hidden_BnH.shape[1]
    weights_n = torch.arange(1, length + 1, device=hidden_BnH.device, dtype=hidden_BnH.dtype)
    shares_n1 = (weights_n / weights_n.sum()).unsqueeze(1)
    weighted_BnH: Tensor = hidden_BnH * shares_n1
    return weighted_BnH.sum(1)


def _mean_sqrt_length(hidden_BnH: Tensor) -> Tensor:
    scaled_BH: Tensor = hidden_BnH.sum(1) / math.sqrt(hidden_BnH.shape[1])
    return scaled_BH


_REDUCTIONS: dict[Pooling, Callable[[Tensor], Tensor]] = {
    "mean": lambda hidden_BnH: hidden_BnH.mean(1),
    "max": lambda hidden_BnH: hidden_BnH.amax(1),
    "weighted_mean": _weighted_mean,
    "mean_sqrt_length": _mean_sqrt_length,
}
