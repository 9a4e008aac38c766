"""Runs of an encoder that compute nothing: what they would cost in operations and in memory.

Tensors have shapes and no content, so a large model is judged in a second on any machine, and by the code that would
really run: a family that is added needs no formula of its own here.

Shapes: B sequences, n tokens of each, T = B x n packed tokens.
"""

import math
import weakref
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from bothways.encoder import Encoder
from bothways.encoder.axes import FullAttention, SharedGroups
from bothways.encoder.config import EncoderConfig
from bothways.encoder.encoder import activation_checkpointing
from bothways.packing import Packed
from bothways.products import ROWS_AT_ONCE

Kwargs: TypeAlias = Mapping[str, object] | None

_STEADY, _STEADY_TOKENS = 32, 1024
"""Texts, and tokens in them, from which on each further text takes the same memory; whichever is fewer texts.

With fewer tokens than a third of the hidden size, a layer's gradients are larger than what it keeps, and the peak is at
another moment.
"""


@dataclass(frozen=True, slots=True)
class TrainingBytes:
    """Memory of a training pass beyond the weights.

    Attributes:
        activations: What it has kept when it turns back.
        most: The most at any moment, gradients of all but the tables included.
    """

    activations: int
    most: int


@cache
def count_flops(config: EncoderConfig, batch: int, length: int) -> int:
    """Floating-point operations of the matrix products of one forward pass, two for each multiply-add.

    Counted on plain attention; what is not a matrix product (norms, activations, softmax) is left out, as is usual.
    Where all layers are alike, two and three of them are counted and the others follow.
    """
    if not _layers_alike(config) or config.layers <= 3:
        return _flops(config, batch, length)
    two, three = (_flops(replace(config, layers=layers), batch, length) for layers in (2, 3))
    return _deeper(config, two, three)


def _flops(config: EncoderConfig, batch: int, length: int) -> int:
    counter = FlopCounterMode(display=False)
    # With gradients on: without, linear maps may go to an operator of oneDNN that the counter does not know.
    with FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad():
        encoder, packed = _without_content(config).eval(), _packed(batch, length)
        with counter:
            encoder(packed, backend="reference")
    return int(counter.get_total_flops())


@cache
def inference_bytes(config: EncoderConfig, batch: int, length: int) -> int:
    """Return the most memory that a forward pass needs beyond the weights, on a CPU in float32, with all tokens.

    One layer's states go before the next one's come, so where all layers are alike two of them tell. Two batches of
    some size tell of larger ones.
    """
    # From more rows on than a feed-forward network takes at once, its inner states grow no more.
    steady = max(_steady(config, length), math.ceil((ROWS_AT_ONCE + 1) / length))
    if batch > 2 * steady:
        few, more = (inference_bytes(config, texts, length) for texts in (steady, 2 * steady))
        return _continued(batch, steady, few, more)
    shown = replace(config, layers=2) if _layers_alike(config) and config.layers > 2 else config
    with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
        encoder, packed = _without_content(shown).eval(), _packed(batch, length)
        with _LiveBytes(encoder) as live:
            encoder(packed)
    most: int = live.most
    return most


def _groups(config: EncoderConfig) -> int:
    """Return how many sets of shared weights its layers take by turns; 1 also where each layer has its own."""
    return config.sharing.groups if isinstance(config.sharing, SharedGroups) else 1


def _layers_alike(config: EncoderConfig) -> bool:
    return isinstance(config.pattern, FullAttention) and _groups(config) <= 2


@cache
def training_bytes(config: EncoderConfig, batch: int, length: int, *, checkpointing: bool = False) -> TrainingBytes:
    """Return what a forward and backward pass needs beyond the weights, on a CPU in float32.

    Two batches of some size tell of larger ones; the peak up to 5 % too low, where theirs is at another moment, and
    with texts of fewer than 8 tokens up to 15 %. Where all layers are alike, two and three of them tell of all.

    Args:
        config: The encoder.
        batch: Sequences.
        length: Tokens of each.
        checkpointing: With `bothways.encoder.encoder.activation_checkpointing`.
    """
    steady = _steady(config, length)
    if batch > 2 * steady:
        few, more = (
            training_bytes(config, texts, length, checkpointing=checkpointing) for texts in (steady, 2 * steady)
        )
        activations = _continued(batch, steady, few.activations, more.activations)
        # With short texts, the peak of the two may be at a moment whose memory grows less or not at all.
        return TrainingBytes(activations, max(activations, _continued(batch, steady, few.most, more.most)))
    # With two groups of weights the third layer is the first to add to gradients that are there.
    if _layers_alike(config) and _groups(config) == 1 and config.layers > 3:
        shallow = (replace(config, layers=layers) for layers in (2, 3))
        two, three = (training_bytes(each, batch, length, checkpointing=checkpointing) for each in shallow)
        return TrainingBytes(_deeper(config, two.activations, three.activations), _deeper(config, two.most, three.most))
    with FakeTensorMode(allow_non_fake_inputs=True):
        encoder, packed = _without_content(config).train(), _packed(batch, length)
        for part in encoder.modules():
            if isinstance(part, nn.Embedding):  # their gradients are a few rows at this moment
                part.weight.requires_grad_(False)
        saving = activation_checkpointing(encoder) if checkpointing else nullcontext()
        with saving, _LiveBytes(encoder) as live:
            loss = encoder(packed).sum()
            activations = live.now
            loss.backward()
    return TrainingBytes(activations, live.most)


def _deeper(config: EncoderConfig, two: int, three: int) -> int:
    """Return what all layers take if two of them take ``two`` and three ``three``."""
    return two + (config.layers - 2) * (three - two)


def _steady(config: EncoderConfig, length: int) -> int:
    """Return the number of texts from which on each further one takes the same memory: at least 2."""
    return min(_STEADY, max(2, math.ceil(max(_STEADY_TOKENS, config.hidden // 2) / length)))


def _continued(batch: int, steady: int, few: int, more: int) -> int:
    """Return what a batch takes if ``steady`` texts take ``few`` and twice as many ``more``."""
    return more + (batch - 2 * steady) * (more - few) // steady


def _without_content(config: EncoderConfig) -> Encoder:
    """Return an encoder whose weights have shapes alone; to be made under a `FakeTensorMode`.

    It is put together outside the mode, where constants of its positions are real numbers.
    """
    with unset_fake_temporarily(), torch.device("meta"):
        encoder = Encoder(config)
    # Weights without memory become those of a CPU here, still without memory.
    return encoder.to_empty(device="cpu")


def _packed(batch: int, length: int) -> Packed:
    ids_T = torch.zeros(batch * length, dtype=torch.int64)
    starts = torch.zeros(batch + 1, dtype=torch.int32)
    return Packed(ids_T, ids_T, ids_T, starts, (length,) * batch)


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all storages made while it is on: those alive now, and the most at any moment.

    A view of a weight comes out of an operator too; the weights of ``encoder`` are not counted.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now: int = 0
        self.most: int = 0
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        # Held, so that each is the same object for as long as it is looked for.
        self._weights = [each.untyped_storage() for each in (*encoder.parameters(), *encoder.buffers())]
        self._seen.update(self._weights)

    def __torch_dispatch__(
        self, func: Callable[..., object], types: object, args: tuple[object, ...] = (), kwargs: Kwargs = None
    ) -> object:
        """Do what was asked, and note the storages that come out."""
        results = func(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, Tensor):
                self._add(result.untyped_storage())
        return results

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage in self._seen:
            return
        self._seen.add(storage)
        size = storage.nbytes()
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._remove, size)

    def _remove(self, size: int) -> None:
        self.now -= size
