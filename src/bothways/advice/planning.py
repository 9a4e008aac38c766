"""Plans of pre-training runs: tokens, passes over the corpus, memory, hours and money, before a run starts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bothways.advice.accelerators import Devices
from bothways.advice.dry import count_flops
from bothways.advice.plan_memory import sequences_at_once, training_memory
from bothways.encoder.config import EncoderConfig
from bothways.errors import InvalidInput
from bothways.families.catalogue import count_parts
from bothways.pretraining.models import check_lengths, narrowed, published_settings
from bothways.pretraining.recipes import (
    RECIPES,
    DistilledMaskedLM,
    MaskedLanguageModelling,
    PermutationLanguageModelling,
    Phase,
    ReplacedTokenDetection,
    ScaledRecipe,
)

# Part of an accelerator's peak that training reaches where nobody states or measured it.
UTILISATION = 0.4
# Part of the memory that a plan fills.
_FILLED = 0.9


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates that the hours and the price of a plan rest on.

    Attributes:
        utilisation: Part of the devices' peak rate that is reached.
        tokens_per_second: Of one device, measured; replaces peak and utilisation.
        price_per_hour: Of one device, in whatever money.
    """

    utilisation: float = UTILISATION
    tokens_per_second: float | None = None
    price_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class PlannedPhase:
    """A phase on the devices.

    Attributes:
        phase: The phase.
        micro_batch: Sequences that one device takes at once: as many as pre-training does, or fewer where they do not
            fit; None where not even one fits, or no memory is known.
        accumulation: Micro-batches of a device in an update.
        memory: Bytes that one of them takes on a device, with weights, gradients and moments.
        seconds: Time of the phase.
    """

    phase: Phase
    micro_batch: int | None
    accumulation: int | None
    memory: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The needs of a run.

    Attributes:
        scaled: The recipe.
        devices: Where it runs.
        parameters: Of the encoder that is kept.
        trained: Of all that is trained: with a generator.
        flops_per_token: Of training, backward pass included.
        phases: On the devices.
        passes: Passes over the published corpus.
        ratios: Tokens read, as a multiple of those of other published recipes: as they are, and with all sequences
            counted as of 512 tokens.
        rates: What hours and price rest on.
        price: Of all devices for the time, if one device's is known.
    """

    scaled: ScaledRecipe
    devices: Devices
    parameters: int
    trained: int
    flops_per_token: float
    phases: tuple[PlannedPhase, ...]
    passes: float
    ratios: Mapping[str, tuple[float, float]]
    rates: Rates
    price: float | None

    @property
    def seconds(self) -> float:
        """Time of the whole."""
        return sum(each.seconds for each in self.phases)


def plan(
    scaled: ScaledRecipe,
    devices: Devices,
    rates: Rates,
    *,
    shard: bool = False,
    activation_checkpointing: bool = False,
) -> Plan:
    """Plan a run.

    Args:
        scaled: The recipe.
        devices: Where it runs.
        rates: What hours and price rest on.
        shard: Divide parameters, gradients and moments among the devices.
        activation_checkpointing: Compute layers again for the backward pass: less memory, and up to a third more
            operations.

    Raises:
        InvalidInput: A rate is not above 0, sequences are longer than the model reads, or the recipe's model is not in
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
    flops = {length: _flops_per_token(scaled, config, generator, length, repeats=repeats) for length in lengths}
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
        ratios=_ratios(scaled),
        rates=rates,
        price=None if rates.price_per_hour is None else hours * rates.price_per_hour,
    )


def _configs(scaled: ScaledRecipe) -> tuple[EncoderConfig, EncoderConfig | None]:
    """Return the encoder, and the generator of replaced token detection."""
    family, settings = published_settings(scaled)
    generator = None
    if isinstance(scaled.task, ReplacedTokenDetection):
        generator = family.config(narrowed(settings, scaled.recipe.keys, scaled.task.generator))
    return family.config(settings), generator


def _flops_per_token(
    scaled: ScaledRecipe, config: EncoderConfig, generator: EncoderConfig | None, length: int, *, repeats: bool
) -> float:
    """Return the operations of an update for each of its tokens, backward pass included."""

    def trained(encoder: EncoderConfig) -> float:
        """Forward and backward pass of an encoder; repeated are all layers but the last."""
        passes = 3 + repeats * (encoder.layers - 1) / encoder.layers
        return passes * count_flops(encoder, 1, length) / length

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
            teacher = count_flops(replace(config, layers=2 * config.layers), 1, length) / length
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
    size = min(own, sequences_at_once(scaled.task, phase.length, devices.each.kind))
    while True:
        needed = training_memory(
            scaled.task, models, (size, phase.length), devices.each.kind, shards, checkpointing=checkpointing
        )
        if needed <= _FILLED * devices.each.memory:
            return PlannedPhase(phase, size, -(-own // size), needed, seconds)
        if size == 1:
            return PlannedPhase(phase, None, None, needed, seconds)
        size = -(-size // 2)


def _ratios(scaled: ScaledRecipe) -> dict[str, tuple[float, float]]:
    own = scaled.course
    counted = sum(phase.sequences for phase in own.phases)
    return {
        name: (
            own.tokens / other.course.tokens,
            counted / sum(each.sequences for each in other.course.phases),
        )
        for name, other in RECIPES.items()
        if name != scaled.recipe.name or scaled.scale != "published"
    }
