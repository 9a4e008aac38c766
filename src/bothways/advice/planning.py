"""Plans of pre-training runs: tokens, epochs, memory, hours and price, computed before a run starts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from bothways.advice.costs import FLOAT32, TRAINING_COPIES, TrainingMemory, cost, flops_per_token
from bothways.advice.hardware import Devices
from bothways.encoder.config import EncoderConfig
from bothways.errors import InvalidInput
from bothways.families.catalogue import count_parts
from bothways.objectives.masked_lm import rows_of_chunk
from bothways.pretraining.courses import Phase
from bothways.pretraining.models import check_lengths, narrowed, published_settings
from bothways.pretraining.recipes import (
    DistilledMaskedLM,
    MaskedLanguageModelling,
    PermutationLanguageModelling,
    PretrainingTask,
    ReplacedTokenDetection,
    ScaledRecipe,
)
from bothways.training.objective import micro_batch_tokens
from bothways.training.options import TrainingOptions

# Default share of an accelerator's peak operations per second that training reaches.
UTILISATION = 0.4
# Maximum share of a device's memory that a plan uses.
_FILLED = 0.9


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates from which a plan's hours and price are computed.

    Attributes:
        utilisation: Share of the devices' peak operations per second that training reaches.
        tokens_per_second: Measured speed of one device; replaces the estimate from peak rate and utilisation.
        price_per_hour: Price of one device, in any currency.
    """

    utilisation: float = UTILISATION
    tokens_per_second: float | None = None
    price_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class PlannedPhase:
    """The memory and time of a training phase.

    Attributes:
        phase: The phase.
        micro_batch: Sequences that one device processes at once: the default of pre-training, or fewer if that does not
            fit; None if not even one fits, or the device's memory is unknown.
        accumulation: Micro-batches per device and update.
        memory: Bytes per device for a micro-batch, including weights, gradients and optimizer moments.
        seconds: Duration of the phase.
    """

    phase: Phase
    micro_batch: int | None
    accumulation: int | None
    memory: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The planned time, memory and price of a pre-training run.

    Attributes:
        scaled: The recipe.
        devices: The devices.
        parameters: Parameters of the resulting encoder.
        trained: Parameters that are trained, including a generator's.
        flops_per_token: Training operations per token, including the backward pass.
        phases: The phases on the devices.
        passes: Passes over the published corpus.
        rates: The rates from which hours and price are computed.
        price: Price of the run on all devices; None if the price per hour is unknown.
    """

    scaled: ScaledRecipe
    devices: Devices
    parameters: int
    trained: int
    flops_per_token: float
    phases: tuple[PlannedPhase, ...]
    passes: float
    rates: Rates
    price: float | None

    @property
    def seconds(self) -> float:
        """Duration of all phases."""
        return sum(each.seconds for each in self.phases)


def plan(
    scaled: ScaledRecipe,
    devices: Devices,
    rates: Rates,
    *,
    shard: bool = False,
    activation_checkpointing: bool = False,
) -> Plan:
    """Plan a pre-training run.

    Args:
        scaled: The recipe.
        devices: The devices.
        rates: The rates from which hours and price are computed.
        shard: Shard parameters, gradients and optimizer moments across the devices.
        activation_checkpointing: Recompute layers in the backward pass: less memory, but up to a third more operations.

    Raises:
        InvalidInput: A rate is not above 0, sequences exceed the model's limit, or the recipe's model is not in
            the catalogue.
    """
    for name in ("utilisation", "tokens_per_second", "price_per_hour"):
        value = getattr(rates, name)
        if value is not None and not 0 < value < math.inf:
            raise InvalidInput(f"{name} must be above 0 and finite, got {value}.")
    check_lengths(scaled)
    config, generator = _configs(scaled)
    lengths = {phase.length for phase in scaled.course.phases}
    repeats = activation_checkpointing
    flops = {length: _training_flops(scaled, config, generator, length, repeats=repeats) for length in lengths}
    models = (config,) if generator is None else (config, generator)
    shards = devices.count if shard else 1
    phases = tuple(
        _planned(phase, flops[phase.length], scaled, models, devices, rates, shards, checkpointing=repeats)
        for phase in scaled.course.phases
    )
    hours = sum(each.seconds for each in phases) / 3600 * devices.count
    tokens = scaled.course.tokens
    return Plan(
        scaled=scaled,
        devices=devices,
        parameters=sum(count_parts(config)),
        trained=sum(count_parts(config)) + (0 if generator is None else count_parts(generator)[1]),
        flops_per_token=sum(flops[phase.length] * phase.tokens for phase in scaled.course.phases) / tokens,
        phases=phases,
        passes=tokens / scaled.recipe.corpus.tokens,
        rates=rates,
        price=None if rates.price_per_hour is None else hours * rates.price_per_hour,
    )


def _configs(scaled: ScaledRecipe) -> tuple[EncoderConfig, EncoderConfig | None]:
    family, settings = published_settings(scaled)
    generator = None
    if isinstance(scaled.task, ReplacedTokenDetection):
        generator = family.config(narrowed(settings, scaled.recipe.keys, scaled.task.generator))
    return family.config(settings), generator


def _training_flops(
    scaled: ScaledRecipe, config: EncoderConfig, generator: EncoderConfig | None, length: int, *, repeats: bool
) -> float:
    """Return the operations per token of an update, backward pass included."""

    def trained(encoder: EncoderConfig) -> float:
        passes = 3 + repeats * (encoder.layers - 1) / encoder.layers
        return passes * flops_per_token(encoder, length)

    logits = 2.0 * config.vocabulary * config.embedding.width
    match scaled.task:
        case MaskedLanguageModelling(masking=masking):
            return trained(config) + 3 * masking.fraction * logits
        case ReplacedTokenDetection(masking=masking):
            narrow = 0.0 if generator is None else trained(generator)
            return trained(config) + narrow + 3 * masking.fraction * logits
        case PermutationLanguageModelling(partial=partial):
            return trained(config) * (1 + 1 / partial) + 3 * logits / partial
        case DistilledMaskedLM(masking=masking):
            teacher = flops_per_token(replace(config, layers=2 * config.layers), length)
            return trained(config) + teacher + 4 * masking.fraction * logits


def _planned(
    phase: Phase,
    flops: float,
    scaled: ScaledRecipe,
    models: tuple[EncoderConfig, ...],
    devices: Devices,
    rates: Rates,
    shards: int,
    *,
    checkpointing: bool,
) -> PlannedPhase:
    share = 1.0 if devices.each.measured else rates.utilisation
    per_device = rates.tokens_per_second or devices.each.flops * share / flops
    seconds = phase.tokens / (per_device * devices.count)
    own = -(-phase.batch // devices.count)
    if devices.each.memory is None:
        return PlannedPhase(phase, None, None, None, seconds)
    size = min(own, _sequences_at_once(scaled.task, phase.length, devices.each.kind))
    while True:
        needed = training_memory(
            scaled.task, models, (size, phase.length), devices.each.kind, shards, checkpointing=checkpointing
        )
        if needed <= _FILLED * devices.each.memory:
            return PlannedPhase(phase, size, -(-own // size), needed, seconds)
        if size == 1:
            return PlannedPhase(phase, None, None, needed, seconds)
        size = -(-size // 2)


def _sequences_at_once(task: PretrainingTask, length: int, device: str) -> int:
    """Return the number of full sequences in a micro-batch of `Pretrainer`, at least one."""
    tokens = micro_batch_tokens(TrainingOptions().max_tokens, torch.device(device))
    return max(1, tokens // (length + _remembered(task)))


def training_memory(
    task: PretrainingTask,
    models: Sequence[EncoderConfig],
    size: tuple[int, int],
    device: str,
    shards: int,
    *,
    checkpointing: bool = False,
) -> float:
    """Return the bytes of a training step in float32 on each device.

    ``models`` holds the encoder and, if there is one, the generator; the last model predicts tokens. ``size`` is the
    number of sequences in a micro-batch and the tokens of each. Weights, gradients and moments are sharded across
    ``shards`` devices.
    """
    batch, length = size
    total = 0.0
    for config in models:
        # Remembered tokens (keys and values) and targets (second stream) take about as much memory as ordinary tokens.
        read = length + _remembered(task)
        training = cost(config, batch=batch, length=read, activation_checkpointing=checkpointing).training
        total += training.peak if shards == 1 else _sharded(training, config, shards)
    if isinstance(task, ReplacedTokenDetection) and task.embeddings == "shared":
        total -= TRAINING_COPIES * FLOAT32 * models[-1].vocabulary * models[-1].embedding.width / shards
    return total + _predictions(task, models[-1], batch * length, torch.device(device))


def _remembered(task: PretrainingTask) -> int:
    return task.memory if isinstance(task, PermutationLanguageModelling) else 0


def _predictions(task: PretrainingTask, config: EncoderConfig, tokens: int, device: torch.device) -> float:
    """Return the bytes of a chunk of logits and of the gradient of the output embeddings."""
    share = 1 / task.partial if isinstance(task, PermutationLanguageModelling) else task.masking.fraction
    rows = min(math.ceil(share * tokens), rows_of_chunk(device, config.vocabulary))
    return FLOAT32 * config.vocabulary * (rows + config.embedding.width)


def _sharded(training: TrainingMemory, config: EncoderConfig, shards: int) -> float:
    """Return the peak bytes of a device in sharded training: in an update, or in validation with unsharded weights."""
    held = (training.weights + training.kept_weights + training.optimizer) / shards
    embedding, others = (FLOAT32 * count for count in count_parts(config))
    # Unsharded at the same time: the embedding and its gradient, the current layer, and the layer being fetched.
    gathered = 2 * embedding + 2 * others / config.layers
    return held + max(training.gradients / shards + gathered + training.activations, training.weights)
