"""The torch module of an embedder: an encoder, the pooling of its token states, and layers on the pooled vectors.

Shapes: B sequences, T packed tokens, n tokens of a sequence, H hidden, W windows, P texts, I and O input and output
dimensions of a layer.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.checkpoints import PretrainedEncoder
from bothways.checkpoints.files import read_tensors
from bothways.checkpoints.vector_layers import DenseLayer, DropoutLayer, LayerNormLayer, NormalizeLayer, VectorLayer
from bothways.choices import Pooling
from bothways.devices import on_device
from bothways.encoder import Encoder
from bothways.encoder.backends.basic import runs_of_equal_length
from bothways.errors import IncompatibleWeights
from bothways.families.layout import check_numbers
from bothways.packing import (
    ALL_ROWS,
    FIRST_TOKENS,
    LAST_TOKENS,
    Batch,
    Packed,
    PaddedRows,
    Rows,
    sum_rows,
    summing_type,
)

_ONE_TOKEN: dict[Pooling, Rows] = {"cls": FIRST_TOKENS, "first": FIRST_TOKENS, "last": LAST_TOKENS}


class VectorModel(nn.Module):
    """An encoder with pooling and layers: one vector for each window, not yet truncated or scaled at the end.

    ``unpooled`` are the token ids of prompts whose tokens are not pooled, special tokens in front included, with an
    empty one for texts without a prompt. With a single prompt, this many tokens of every window are left out; with
    several, those of the windows that begin with one. A later window of a long text loses them too: with the usual
    overlap, they were pooled with the window before.
    """

    def __init__(
        self,
        encoder: Encoder,
        poolings: Sequence[Pooling],
        layers: nn.Module | None = None,
        unpooled: Sequence[Sequence[int]] = (),
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.poolings = tuple(poolings)
        self.layers = layers
        self.unpooled = tuple(map(tuple, unpooled)) if any(unpooled) else ()

    @classmethod
    def of(
        cls,
        model: PretrainedEncoder,
        poolings: Sequence[Pooling],
        layers: nn.Module | None = None,
        unpooled: Sequence[Sequence[int]] = (),
    ) -> "VectorModel":
        """Combine an opened encoder with its poolings and layers."""
        return cls(model.encoder, placed_poolings(model, poolings), layers, unpooled)

    def forward(self, packed: Batch) -> Tensor:
        """Return the vectors of the windows (B, O); the last layer computes only the tokens that pooling needs."""
        rows = _ONE_TOKEN.get(self.poolings[0]) if len(self.poolings) == 1 and not self.unpooled else None
        if rows is not None:
            vectors_BO: Tensor = self.encoder(packed, rows=rows)
        else:
            hidden_TH = self.encoder(packed, rows=ALL_ROWS)
            pooled = [self._pooled(hidden_TH, packed, pooling) for pooling in self.poolings]
            vectors_BO = pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=1)
        if self.layers is None:
            return vectors_BO
        weight = next(self.layers.parameters(), vectors_BO)
        projected_BO: Tensor = self.layers(vectors_BO.to(weight.dtype))
        return projected_BO

    def _pooled(self, hidden_TH: Tensor, packed: Batch, pooling: Pooling) -> Tensor:
        match packed:
            case Packed(lengths=lengths) if self.unpooled:
                return pool_behind(hidden_TH, lengths, self._unpooled_of(packed.ids_T, lengths), pooling)
        return pool(hidden_TH, packed, pooling)

    def _unpooled_of(self, ids_T: Tensor, lengths: Sequence[int]) -> list[int]:
        """Return the number of tokens that are not pooled, for each sequence."""
        if len(self.unpooled) == 1:
            return [min(len(self.unpooled[0]), length - 1) for length in lengths]
        found, start, ids = [], 0, ids_T.tolist()
        for length in lengths:
            own = tuple(ids[start : start + length])
            # The last token of a prompt may be joined with the first of the text.
            given = filter(None, self.unpooled)
            matching = (len(each) for each in given if own[: len(each) - 1] == each[:-1] and len(each) < length)
            found.append(max(matching, default=0))
            start += length
        return found

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.encoder.embedding.tokens.weight.device


def placed_poolings(model: PretrainedEncoder, poolings: Sequence[Pooling]) -> tuple[Pooling, ...]:
    """Return the poolings with ``cls`` replaced by the place of the tokenizer's [CLS] token: ``first`` or ``last``."""
    cls: Pooling = "last" if model.tokenizer.cls_is_last else "first"
    return tuple(cls if each == "cls" else each for each in poolings)


# --- layers on pooled vectors ---


class DenseModule(nn.Module):
    """A linear layer with an activation, f(W x + b), and with ``residual`` x + f(W x + b)."""

    def __init__(self, layer: DenseLayer) -> None:
        super().__init__()
        self.linear = nn.Linear(layer.inputs, layer.outputs, bias=layer.bias)
        activation: nn.Module = getattr(nn, layer.activation)()
        self.activation = activation
        self.adds_input = layer.residual
        self.residual = None
        if layer.residual and layer.inputs != layer.outputs:
            self.residual = nn.Linear(layer.inputs, layer.outputs, bias=False)

    def forward(self, vectors_BI: Tensor) -> Tensor:
        """Return the layer's outputs (B, O)."""
        outputs_BO: Tensor = self.activation(self.linear(vectors_BI))
        if not self.adds_input:
            return outputs_BO
        return outputs_BO + (vectors_BI if self.residual is None else self.residual(vectors_BI))


class NormModule(nn.Module):
    """Layer normalisation of vectors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, vectors_BI: Tensor) -> Tensor:
        """Return the normalised vectors (B, I)."""
        normed_BI: Tensor = self.norm(vectors_BI)
        return normed_BI


class UnitLength(nn.Module):
    """Scales vectors to length 1."""

    def forward(self, vectors_BI: Tensor) -> Tensor:
        """Return the scaled vectors (B, I)."""
        return nn.functional.normalize(vectors_BI, dim=-1)


def open_layers(folder: Path, layers: Sequence[VectorLayer], *, allow_pickle: bool = False) -> nn.Sequential | None:
    """Return the layers of an embedder with their weights in float32, on the CPU; None if it has none.

    Raises:
        IncompatibleWeights: Tensors are missing, left over, or of other shapes than the settings say.
        CorruptCheckpoint: A weight is infinite or NaN.
        UnsafeCheckpoint: The weights are pickled, and ``allow_pickle`` is false.
    """
    modules = [_opened(folder, each, allow_pickle) for each in layers]
    return nn.Sequential(*modules).eval() if modules else None


def _opened(folder: Path, layer: VectorLayer, allow_pickle: bool) -> nn.Module:
    match layer:
        case NormalizeLayer():
            return UnitLength()
        case DropoutLayer(rate=rate):
            return nn.Dropout(rate)
        case LayerNormLayer(width=width):
            return _filled(NormModule(width), folder, layer, allow_pickle)
        case DenseLayer():
            return _filled(DenseModule(layer), folder, layer, allow_pickle)


def _filled(module: nn.Module, folder: Path, layer: VectorLayer, allow_pickle: bool) -> nn.Module:
    tensors = read_tensors(folder / layer.folder, allow_pickle=allow_pickle)
    expected = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    if expected != found:
        raise IncompatibleWeights(
            f"expected the tensors {_shapes(expected)} in the module {str(folder / layer.folder)!r}, by its "
            f"settings, got {_shapes(found)}. Get the model again from where it came."
        )
    for name, value in tensors.items():
        check_numbers(f"{layer.folder}/{name}", value)
    module.load_state_dict(tensors)
    return module


def _shapes(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in sorted(shapes.items())) or "none"


# --- pooling ---


def pool(hidden_TH: Tensor, packed: Batch, pooling: Pooling) -> Tensor:
    """Pool the states of all tokens, including special tokens, into one vector for each sequence (B, H).

    - ``mean``: the average of the states;
    - ``first`` and ``last``: the state of this token; ``cls`` is the first (but see `placed_poolings`);
    - ``max``: the largest value in each dimension;
    - ``weighted_mean``: an average with weights 1, 2, 3, ... (Muennighoff 2022, arXiv:2202.08904);
    - ``mean_sqrt_length``: the sum of the states divided by the square root of their number.
    """
    if pooling in ("cls", "first"):
        return hidden_TH[packed.first_tokens_B]
    if pooling == "last":
        return hidden_TH[packed.last_tokens_B]
    if isinstance(packed, PaddedRows):
        return _pool_padded(hidden_TH, packed, pooling)
    reduce = _REDUCTIONS[pooling]
    hidden_TH = hidden_TH.to(summing_type(hidden_TH.dtype))
    width = hidden_TH.shape[-1]
    runs = packed.once(runs_of_equal_length)
    return torch.cat([reduce(hidden_TH[start:end].view(-1, length, width)) for start, end, length in runs])


def pool_behind(hidden_TH: Tensor, lengths: Sequence[int], skipped: Sequence[int], pooling: Pooling) -> Tensor:
    """Pool the states of each sequence without its first ``skipped`` tokens (B, H); see `pool`.

    The weights of ``weighted_mean`` are those that the tokens have in the whole sequence.
    """
    vectors = []
    for states_nH, before in zip(
        hidden_TH.to(summing_type(hidden_TH.dtype)).split_with_sizes(list(lengths)), skipped, strict=True
    ):
        rest_1nH = states_nH[None, before:]
        if pooling == "weighted_mean":
            vectors.append(_weighted_mean(rest_1nH, before))
        else:
            vectors.append(_REDUCTIONS[pooling](rest_1nH))
    return torch.cat(vectors)


def merge_windows(
    vectors_WH: Tensor, text_W: NDArray[np.int64], lengths_W: NDArray[np.int64], *, by_maximum: bool
) -> Tensor:
    """Merge the windows' vectors into one vector per text (P, H): a mean weighted by length, or the maximum.

    ``text_W`` is the text index of each window: 0 to P - 1, ascending, each at least once.
    """
    texts = int(text_W[-1]) + 1
    if len(text_W) == texts:
        return vectors_WH
    index_W = on_device(text_W, vectors_WH.device)
    if by_maximum:
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


def _weighted_mean(hidden_BnH: Tensor, before: int = 0) -> Tensor:
    length = hidden_BnH.shape[1]
    weights_n = torch.arange(before + 1, before + length + 1, device=hidden_BnH.device, dtype=hidden_BnH.dtype)
    shares_n1 = (weights_n / weights_n.sum()).unsqueeze(1)
    weighted_BnH: Tensor = hidden_BnH * shares_n1
    return weighted_BnH.sum(1)


def _mean_sqrt_length(hidden_BnH: Tensor) -> Tensor:
    scaled_BH: Tensor = hidden_BnH.sum(1) / math.sqrt(hidden_BnH.shape[1])
    return scaled_BH


_REDUCTIONS: dict[Pooling, Callable[[Tensor], Tensor]] = {
    "mean": lambda hidden_BnH: hidden_BnH.mean(1),
    "cls": lambda hidden_BnH: hidden_BnH[:, 0],
    "first": lambda hidden_BnH: hidden_BnH[:, 0],
    "last": lambda hidden_BnH: hidden_BnH[:, -1],
    "max": lambda hidden_BnH: hidden_BnH.amax(1),
    "weighted_mean": _weighted_mean,
    "mean_sqrt_length": _mean_sqrt_length,
}
