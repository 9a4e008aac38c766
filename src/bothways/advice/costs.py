"""Costs of a model: operations and memory of an encoder, traced on fake tensors, which have shapes but no data.

Tracing runs the code of the model, so a new family needs no formula. A large model takes about a second on any machine.

Shapes: B sequences, n tokens of each, T = B x n packed tokens.
"""

import math
import weakref
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from bothways.encoder import Encoder
from bothways.encoder.config import EncoderConfig, FullAttention, SharedGroups
from bothways.encoder.encoder import activation_checkpointing
from bothways.errors import InvalidInput
from bothways.families.catalogue import count_parts
from bothways.packing import Packed
from bothways.products import ROWS_AT_ONCE
from bothways.tasks.heads.objective import MIN_TOKENS, MIN_UPDATES
from bothways.training.options import EPOCHS, SMALL_BATCH

Kwargs: TypeAlias = Mapping[str, object] | None

_STEADY, _STEADY_TOKENS = 32, 1024
"""Batch size, in texts or tokens (whichever gives fewer texts), from which memory grows linearly with the texts.

With fewer tokens than a third of the hidden size, a layer's gradients are larger than its activations, and the peak
occurs at another point of the pass.
"""


@dataclass(frozen=True, slots=True)
class TrainingBytes:
    """Memory of a training pass beyond the weights."""

    activations: int  # bytes that the forward pass keeps for the backward pass
    peak: int  # maximum during both passes, including all gradients except those of the embedding tables


@cache
def count_flops(config: EncoderConfig, batch: int, length: int) -> int:
    """Count the floating-point operations of a forward pass, two per multiply-add.

    Attention uses the reference backend. As usual, only matrix products count (no norms, activations or softmax). If
    all layers are alike, the count is extrapolated from two and three layers.
    """
    if not _layers_alike(config) or config.layers <= 3:
        return _flops(config, batch, length)
    two, three = (_flops(replace(config, layers=layers), batch, length) for layers in (2, 3))
    return _deeper(config, two, three)


def _flops(config: EncoderConfig, batch: int, length: int) -> int:
    counter = FlopCounterMode(display=False)
    # Gradients are on: without them, linear layers may use a oneDNN operator that the counter does not know.
    with FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad():
        encoder, packed = _without_content(config).eval(), _packed(batch, length)
        with counter:
            encoder(packed, backend="reference")
    return int(counter.get_total_flops())


@cache
def inference_bytes(config: EncoderConfig, batch: int, length: int) -> int:
    """Return the peak memory of a forward pass beyond the weights, on a CPU in float32.

    A layer's states are freed before the next layer allocates its own, so the peak of two equal layers is that of the
    whole encoder. Large batches are extrapolated from two smaller ones.
    """
    # Beyond the rows that a feed-forward network processes at once, its inner states need no more memory.
    steady = max(_steady(config, length), math.ceil((ROWS_AT_ONCE + 1) / length))
    if batch > 2 * steady:
        few, more = (inference_bytes(config, texts, length) for texts in (steady, 2 * steady))
        return _continued(batch, steady, few, more)
    shown = replace(config, layers=2) if _layers_alike(config) and config.layers > 2 else config
    with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
        encoder, packed = _without_content(shown).eval(), _packed(batch, length)
        with _LiveBytes(encoder) as live:
            encoder(packed)
    peak: int = live.peak
    return peak


def _groups(config: EncoderConfig) -> int:
    return config.sharing.groups if isinstance(config.sharing, SharedGroups) else 1


def _layers_alike(config: EncoderConfig) -> bool:
    return isinstance(config.pattern, FullAttention) and _groups(config) <= 2


@cache
def training_bytes(config: EncoderConfig, batch: int, length: int, *, checkpointing: bool = False) -> TrainingBytes:
    """Return the memory of a forward and backward pass beyond the weights, on a CPU in float32.

    Large batches are extrapolated from two smaller ones, and equal layers from two and three of them. The peak is then
    up to 5 % too low, or 15 % with texts of fewer than 8 tokens, because it may occur at another point of the pass.
    """
    steady = _steady(config, length)
    if batch > 2 * steady:
        few, more = (
            training_bytes(config, texts, length, checkpointing=checkpointing) for texts in (steady, 2 * steady)
        )
        activations = _continued(batch, steady, few.activations, more.activations)
        # With short texts, the two smaller batches may peak at a moment whose memory hardly grows with the batch.
        return TrainingBytes(activations, max(activations, _continued(batch, steady, few.peak, more.peak)))
    # With two groups of weights the third layer is the first to add to existing gradients.
    if _layers_alike(config) and _groups(config) == 1 and config.layers > 3:
        shallow = (replace(config, layers=layers) for layers in (2, 3))
        two, three = (training_bytes(each, batch, length, checkpointing=checkpointing) for each in shallow)
        return TrainingBytes(_deeper(config, two.activations, three.activations), _deeper(config, two.peak, three.peak))
    with FakeTensorMode(allow_non_fake_inputs=True):
        encoder, packed = _without_content(config).train(), _packed(batch, length)
        for part in encoder.modules():
            if isinstance(part, nn.Embedding):  # at this moment their gradients are sparse and small
                part.weight.requires_grad_(False)
        saving = activation_checkpointing(encoder) if checkpointing else nullcontext()
        with saving, _LiveBytes(encoder) as live:
            loss = encoder(packed).sum()
            activations = live.now
            loss.backward()
    return TrainingBytes(activations, live.peak)


def _deeper(config: EncoderConfig, two: int, three: int) -> int:
    """Extrapolate from two and three layers to all layers."""
    return two + (config.layers - 2) * (three - two)


def _steady(config: EncoderConfig, length: int) -> int:
    return min(_STEADY, max(2, math.ceil(max(_STEADY_TOKENS, config.hidden // 2) / length)))


def _continued(batch: int, steady: int, few: int, more: int) -> int:
    """Extrapolate from batches of ``steady`` and ``2 * steady`` texts to one of ``batch`` texts."""
    return more + (batch - 2 * steady) * (more - few) // steady


def _without_content(config: EncoderConfig) -> Encoder:
    """Build an encoder of fake tensors; must be called under a `FakeTensorMode`."""
    # Leave the mode for the construction: inside it, constants for positions would have no values.
    with unset_fake_temporarily(), torch.device("meta"):
        encoder = Encoder(config)
    return encoder.to_empty(device="cpu")


def _packed(batch: int, length: int) -> Packed:
    ids_T = torch.zeros(batch * length, dtype=torch.int64)
    starts = torch.zeros(batch + 1, dtype=torch.int32)
    return Packed(ids_T, ids_T, ids_T, starts, (length,) * batch)


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of live tensor storages, and their peak, while it is active; weights are not counted."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now: int = 0
        self.peak: int = 0
        self._seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        # Operators also return views of weights. These references keep each storage the same object.
        self._weights = [each.untyped_storage() for each in (*encoder.parameters(), *encoder.buffers())]
        self._seen.update(self._weights)

    def __torch_dispatch__(
        self, func: Callable[..., object], types: object, args: tuple[object, ...] = (), kwargs: Kwargs = None
    ) -> object:
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
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._remove, size)

    def _remove(self, size: int) -> None:
        self.now -= size


FLOAT32 = 4  # bytes

# Memory of Python with torch, this package and their lazy imports; measured on Linux with CPU-only torch.
RUNTIME_BYTES = 280_000_000
# The same for training: creating the first torch optimizer imports torch's compiler (67 MiB).
TRAINING_RUNTIME_BYTES = RUNTIME_BYTES + 70_000_000

# Training holds at least the weights, a copy of the best weights, AdamW's two moments and the gradients.
TRAINING_COPIES = 5

# Positions in a batch are int32.
MAX_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class InferenceMemory:
    """Bytes of a forward pass in float32: the weights, and the peak of everything else."""

    weights: int
    activations: int

    @property
    def peak(self) -> int:
        """Peak memory in bytes."""
        return self.weights + self.activations


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """Bytes for training with AdamW in float32 on a CPU."""

    weights: int
    kept_weights: int  # a copy of the best weights so far
    optimizer: int  # AdamW's two moments
    gradients: int
    activations: int  # tensors that the forward pass keeps for the backward pass
    peak: int  # the maximum at any moment; less than the sum, since gradients appear as activations are freed


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs of one model at one batch size and length.

    Attributes:
        batch: Texts in a batch.
        length: Tokens of each text.
        parameters: Parameters of the encoder.
        flops_per_token: Floating-point operations per token in a forward pass; a training step takes three times as
            many.
        attention_share: Share of the operations spent on attention between tokens; it grows with the length.
        inference: Memory of a forward pass.
        training: Memory of a training step.
    """

    batch: int
    length: int
    parameters: int
    flops_per_token: float
    attention_share: float
    inference: InferenceMemory
    training: TrainingMemory


def cost(config: EncoderConfig, *, batch: int = 1, length: int = 128, activation_checkpointing: bool = False) -> Cost:
    """Return the cost of an encoder, traced without computing anything.

    Args:
        config: The encoder.
        batch: Texts in a batch.
        length: Text length in tokens.
        activation_checkpointing: Assume training with this option of `bothways.TrainingOptions`.

    Raises:
        InvalidInput: A number is below 1, the length exceeds the model's limit, or a batch has too many tokens.
    """
    if batch < 1 or length < 1:
        raise InvalidInput(f"batch and length must be at least 1, got {batch} and {length}.")
    if config.max_length is not None and length > config.max_length:
        raise InvalidInput(
            f"expected a length of at most {config.max_length} tokens, the model's limit, got {length}. Longer texts "
            f"are split into windows: give a length of {config.max_length} and a larger batch."
        )
    if batch * length > MAX_TOKENS:
        raise InvalidInput(
            f"expected a batch of at most {MAX_TOKENS:,} tokens, got {batch:,} texts of {length:,}. Give fewer texts."
        )
    per_token, alone = flops_per_token(config, length), count_flops(config, 1, 1)
    embedding, backbone = count_parts(config)
    tables, others = embedding * FLOAT32, backbone * FLOAT32
    weights = tables + others
    working = training_bytes(config, batch, length, checkpointing=activation_checkpointing)
    return Cost(
        batch=batch,
        length=length,
        parameters=embedding + backbone,
        flops_per_token=per_token,
        attention_share=max(0.0, 1 - alone / per_token),
        inference=InferenceMemory(weights, inference_bytes(config, batch, length)),
        training=TrainingMemory(
            weights=weights,
            kept_weights=weights,
            optimizer=2 * weights,
            gradients=weights,
            activations=working.activations,
            peak=4 * weights + tables + max(working.peak, others),
        ),
    )


def fine_tuning_flops(config: EncoderConfig, rows: int, length: int) -> float:
    """Return the floating-point operations of fine-tuning on texts with the default number of epochs.

    Counts forward and backward passes, the pass of the frozen encoder that the baseline learns from, and a tenth of the
    texts held out and scored after each epoch.
    """
    trained = max(EPOCHS * rows * length, min(MIN_UPDATES * SMALL_BATCH * length, MIN_TOKENS))
    read = rows * length * (1 + EPOCHS / 10)
    return (3 * trained + read) * flops_per_token(config, length)


def flops_per_token(config: EncoderConfig, length: int) -> float:
    """Return the floating-point operations per token of a forward pass over one text."""
    return count_flops(config, 1, length) / length
