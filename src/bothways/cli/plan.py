"""``bothways plan``: what a pre-training run takes, before it starts."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from bothways.choices import RecipeName, RecipeScale
from bothways.cli.options import Flag, PositiveFloat, PositiveInt, TokenCount, bad_usage, usage_error
from bothways.cli.terminal import plain_table, print_json, print_table
from bothways.cli.training import FULL, BatchOptions
from bothways.progress import duration
from bothways.threads import choose_threads

if TYPE_CHECKING:
    from bothways.advice import Plan, PlannedPhase
    from bothways.pretraining.recipes import ScaledRecipe

EXAMPLE = """\
Examples:
  bothways plan roberta --hardware "8 x H100"
  bothways plan electra --scale tiny --hardware here
  bothways plan bert --hardware "4 x A100" --batch-size 1024 --price 2.5"""

# Published recipes that a plan is compared with.
_COMPARED = ("bert", "roberta")


def plan(
    recipe: RecipeName,
    /,
    *,
    hardware: str = "here",
    scale: RecipeScale = "published",
    updates: PositiveInt | None = None,
    tokens: TokenCount | None = None,
    batch_size: PositiveInt | None = None,
    length: PositiveInt | None = None,
    batch: BatchOptions = FULL,
    tokens_per_second: PositiveFloat | None = None,
    utilisation: PositiveFloat = 0.4,
    price: PositiveFloat | None = None,
    activation_checkpointing: Flag = False,
    shard: Flag = False,
    json: Flag = False,
    threads: PositiveInt | None = None,
) -> None:
    """Plan a pre-training run: tokens, memory, hours and price.

    Args:
        recipe: Which recipe.
        hardware: Devices such as "8 x H100", or "here": this machine, whose rate is measured in a second.
        scale: Size of the recipe: as published, or cut for one machine.
        updates: Optimizer steps, in place of the recipe's.
        tokens: Tokens to read, such as 50M (k, M, G, T), in place of updates.
        batch_size: Sequences in an update, in place of the recipe's; the advised rate follows it.
        length: Tokens of a sequence, in place of the recipe's.
        batch: How the batch grows at the beginning.
        tokens_per_second: Rate of one device, where you have measured it.
        utilisation: Otherwise, part of the devices' peak rate that is assumed to be reached.
        price: Price of one device for an hour, in whatever money.
        activation_checkpointing: Compute layers again for the backward pass, as pretrain --activation-checkpointing
            does: less memory, more operations.
        shard: Divide weights, gradients and moments among the devices, as pretrain --shard does.
        json: Print one JSON object.
        threads: CPU threads of the measurement. Default: as OMP_NUM_THREADS says, else one for each core that the
            process is granted.
    """
    from bothways.advice import Rates, devices_of
    from bothways.advice import plan as planned
    from bothways.pretraining.recipes import find_recipe, scaled

    choose_threads(threads)
    if updates is not None and tokens is not None:
        raise usage_error("--updates and --tokens are both the length: give one of them.")
    given = scaled(find_recipe(recipe), scale)
    with bad_usage():
        changed = given.changed(updates=updates, tokens=tokens, batch=batch_size, length=length, warmup=batch.warmup())
        found = planned(
            changed,
            devices_of(hardware),
            Rates(utilisation, tokens_per_second, price),
            shard=shard,
            activation_checkpointing=activation_checkpointing,
        )
    if json:
        print_json(_values(found))
    else:
        _show(found)


def _values(found: "Plan") -> dict[str, object]:
    recipe, course = found.scaled.recipe, found.scaled.course
    ratios = {name: {"tokens": read, "of_512": counted} for name, (read, counted) in found.ratios.items()}
    return {
        "recipe": recipe.name,
        "title": recipe.title,
        "source": recipe.source,
        "scale": found.scaled.scale,
        "hardware": str(found.devices),
        "parameters": found.parameters,
        "trained_parameters": found.trained,
        "flops_per_token": found.flops_per_token,
        "updates": course.updates,
        "tokens": course.tokens,
        "corpus": asdict(recipe.corpus),
        "passes": found.passes,
        "times_tokens_of": ratios,
        "learning_rate": course.learning_rate,
        "optimizer": course.optimizer,
        "phases": [asdict(each) for each in found.phases],
        "hours": found.seconds / 3600,
        "device_hours": found.seconds / 3600 * found.devices.count,
        "price": found.price,
        "rates": asdict(found.rates),
        "remarks": list(recipe.remarks),
    }


def _show(found: "Plan") -> None:
    recipe = found.scaled.recipe
    size = "as published" if found.scaled.scale == "published" else f"scale {found.scaled.scale}"
    print(f"{recipe.title}, {size}, on {found.devices} ({recipe.source})\n")
    table = plain_table()
    table.show_header = False
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in (*_sizes(found), *_efforts(found)):
        table.add_row(label, value)
    print_table(table)
    for remark in recipe.remarks:
        print(f"\n{remark}")
    print("\nMemory is that of float32 weights, moments and activations; bfloat16 takes less.")


def _sizes(found: "Plan") -> Iterator[tuple[str, str]]:
    """Yield what is trained, and on how much."""
    more = "" if found.trained == found.parameters else f", {found.trained / 1e6:,.1f} M with the generator"
    yield "parameters", f"{found.parameters / 1e6:,.1f} M{more}"
    for each in found.phases:
        phase = each.phase
        sequences = f"{phase.batch:,} sequences of {phase.length:,} tokens"
        growth = phase.growth
        if growth is not None:
            sequences += f" (the first {growth.updates:,} grow from {growth.first:,})"
        yield "updates", f"{phase.updates:,} of {sequences}: {_count(phase.tokens)}"
        yield "  memory", _memory(each, found.devices.each.name)
        yield "  time", duration(each.seconds)
    yield "tokens", f"{_count(found.scaled.course.tokens)}: {found.passes:,.3g} x {found.scaled.recipe.corpus.name}"
    for name in _COMPARED if found.scaled.scale == "published" else ():
        if name in found.ratios:
            read, counted = found.ratios[name]
            yield "", f"{read:,.3g} x those of {name}, or {counted:,.3g} x with all sequences counted as of 512 tokens"


def _efforts(found: "Plan") -> Iterator[tuple[str, str]]:
    """Yield how it is trained, and what that takes."""
    course, hours = found.scaled.course, found.seconds / 3600
    yield "rate", f"{course.learning_rate:.3g} at the peak, by {course.optimizer}; {_advice(found.scaled)}"
    total = found.flops_per_token * course.tokens
    yield "operations", f"{found.flops_per_token / 1e6:,.0f} M for each token, {total:.2g} in all"
    yield "hours", f"{hours:,.3g}, {hours * found.devices.count:,.3g} of one device; {_rests_on(found)}"
    if found.price is not None:
        yield "price", f"{found.price:,.0f}"


def _memory(each: "PlannedPhase", name: str) -> str:
    if each.memory is None:
        return f"the memory of {name} is not known"
    used = f"{each.memory / 1e9:,.1f} GB"
    if each.micro_batch is None:
        return f"a single sequence needs {used}, more than {name} has"
    accumulated = "no accumulation" if each.accumulation == 1 else f"{each.accumulation:,} accumulated in an update"
    return f"{used} for {each.micro_batch:,} sequences at once on a device, {accumulated}"


def _advice(given: "ScaledRecipe") -> str:
    if given.course.optimizer == "lamb" or given.course.phases[0].batch < 4096:
        return "for k times the batch, sqrt(k) times the rate"
    return "for k times the batch, sqrt(k) times the rate; LAMB holds rates that are larger"


def _rests_on(found: "Plan") -> str:
    if found.rates.tokens_per_second is not None:
        return f"{found.rates.tokens_per_second:,.0f} tokens a second on each, as given"
    if found.devices.each.measured:
        return f"{found.devices.each.flops / 1e9:,.0f} GFLOP/s, measured here on an encoder"
    peak = found.devices.each.flops / 1e12
    return f"assumes {found.rates.utilisation:.0%} of {peak:,.0f} TFLOP/s (--utilisation, or --tokens-per-second)"


def _count(tokens: float) -> str:
    for unit, size in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if tokens >= size:
            return f"{tokens / size:,.3g} {unit} tokens"
    return f"{tokens:,.0f} tokens"
