"""``bothways cost``, ``compare-models`` and ``plan``: the cost of models and of pre-training runs."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from bothways import advice, pretraining
from bothways.choices import RecipeName, RecipeScale
from bothways.cli import options as opt
from bothways.cli.printing import print_json, print_table
from bothways.cli.training.run import FULL_BATCH, BatchOptions
from bothways.progress import duration
from bothways.threads import choose_threads
from bothways.training.options import Lamb

if TYPE_CHECKING:
    from bothways.advice import Cost, ModelComparison, Plan, PlannedPhase
    from bothways.pretraining import ScaledRecipe

_COST_EXAMPLE = """\
Example:
  bothways cost roberta-base --batch 32 --length 256
  bothways cost roberta-base --batch 32 --activation-checkpointing"""


@opt.command(_COST_EXAMPLE)
def cost(
    model: str,
    *,
    batch: opt.PositiveInt = 8,
    length: opt.PositiveInt = 128,
    activation_checkpointing: opt.Flag = False,
    json: opt.Json = False,
) -> None:
    """Count a model's operations and memory without building it.

    Prints operations per token, and memory for inference and training.

    Args:
        model: Name of a model of the catalogue (see 'bothways models'), or a folder with a config.json.
        batch: Number of texts per batch.
        length: Tokens per text.
        activation_checkpointing: Count the memory of training with activation checkpointing.
    """
    name, config = advice.find_config(model)
    with opt.as_usage_error():
        result = advice.cost(config, batch=batch, length=length, activation_checkpointing=activation_checkpointing)
    if json:
        print_json({"name": name, **asdict(result)})
    else:
        _print_cost(name, result)


def _print_cost(name: str, cost: "Cost") -> None:
    share = f"{100 * cost.attention_share:.0f} % is attention and grows with the length; training takes 3 times as many"
    batch = cost.flops_per_token * cost.batch * cost.length
    inference, training = cost.inference, cost.training
    memory = (
        ("inference", inference.peak, ""),
        ("  weights", inference.weights, ""),
        ("  activations", inference.activations, "at their peak"),
        ("training", training.peak, "at its peak, less than the sum of the parts below"),
        ("  weights", training.weights, ""),
        ("  kept weights", training.kept_weights, "a copy of the kept epoch's weights"),
        ("  optimizer", training.optimizer, "AdamW's two moments"),
        ("  gradients", training.gradients, ""),
        ("  activations", training.activations, "kept for the backward pass"),
    )
    rows = [
        ("parameters", f"{cost.parameters:,}", ""),
        ("FLOPs a token", f"{cost.flops_per_token / 1e6:,.1f} M", share),
        ("FLOPs a batch", f"{batch / 1e9:,.1f} G", "forward pass"),
        *((label, f"{count / 1e6:,.0f} MB", remark) for label, count, remark in memory),
    ]
    texts = "1 text" if cost.batch == 1 else f"{cost.batch} texts"
    print(f"{name}: {texts} of {cost.length} tokens, float32 on a CPU\n")
    print_table(("", ">", "~"), rows, header=False)
    print(
        f"\nPython and torch take about {advice.RUNTIME_BYTES / 1e6:.0f} MB more, in training "
        f"{advice.TRAINING_RUNTIME_BYTES / 1e6:.0f} MB. MB are millions of bytes."
    )


_COMPARE_EXAMPLE = """\
Example:
  bothways compare-models
  bothways compare-models bert-base-uncased distilbert-base-uncased \\
    --lengths 64 --lengths 256"""


@opt.command(_COMPARE_EXAMPLE)
def compare_models(
    names: opt.Models = (),
    *,
    lengths: tuple[opt.PositiveInt, ...] = (32, 128, 512),
    batch: opt.PositiveInt = 8,
    seconds: opt.PositiveFloat = 0.5,
    json: opt.Json = False,
    threads: opt.Threads = None,
) -> None:
    """Measure speed and memory of models side by side.

    Each model is built with random weights, in a process of its own, and measured at each length. Nothing is
    downloaded: speed and memory do not depend on the weights.

    Args:
        names: Names of catalogue models. Default: BERT, DistilBERT, ALBERT, RoBERTa and ModernBERT of base size, and
            the small ELECTRA and DeBERTa-v3.
        lengths: Tokens per text; repeat the option for several lengths.
        batch: Number of texts per batch.
        seconds: Duration of each measurement, in seconds.
    """
    choose_threads(threads)
    with opt.as_usage_error():
        comparison = advice.compare_models(names, lengths=lengths, batch=batch, seconds=seconds)
    if json:
        print_json(_comparison_as_json(comparison))
    else:
        _print_measured(comparison)


def _comparison_as_json(comparison: "ModelComparison") -> dict[str, object]:
    return {
        "lengths": comparison.lengths,
        "batch": comparison.batch,
        "yardstick": comparison.yardstick,
        "threads": comparison.models[0].measured.threads,
        "models": [
            {
                "name": model.card.name,
                "parameters": model.card.counted.parameters,
                "flops_per_token": model.flops_per_token,
                "speeds": [asdict(speed) for speed in model.measured.speeds],
                "runtime_bytes": model.measured.runtime_bytes,
                "peak_bytes": model.measured.peak_bytes,
                "accuracy": model.accuracy,
            }
            for model in comparison.models
        ],
    }


def _print_measured(comparison: "ModelComparison") -> None:
    lengths = (f">at {length}" for length in comparison.lengths)
    rows = (
        (
            model.card.name,
            f"{model.card.counted.parameters / 1e6:.1f} M",
            *(f"{speed.tokens_per_second:,.0f}" for speed in model.measured.speeds),
            "?" if model.measured.peak_bytes is None else f"{model.measured.peak_bytes / 1e6:,.0f}",
            "?" if model.accuracy is None else f"{model.accuracy:.1f}",
        )
        for model in comparison.models
    )
    print_table(("~tokens a second", ">params", *lengths, ">MB", ">MNLI"), rows)
    threads = comparison.models[0].measured.threads
    print(
        f"\nBatches of {comparison.batch} texts, float32, threads: {threads}. MB: peak memory of the process. "
        f"MNLI: {comparison.yardstick}, as published."
    )


_PLAN_EXAMPLE = """\
Examples:
  bothways plan roberta --hardware "8 x H100"
  bothways plan electra --scale tiny --hardware here
  bothways plan bert --hardware "4 x A100" --batch-size 1024 --price 2.5"""


@opt.command(_PLAN_EXAMPLE)
def plan(
    recipe: RecipeName,
    /,
    *,
    hardware: str = "here",
    scale: RecipeScale = "published",
    updates: opt.PositiveInt | None = None,
    tokens: opt.TokenCount | None = None,
    batch_size: opt.PositiveInt | None = None,
    length: opt.PositiveInt | None = None,
    batch: BatchOptions = FULL_BATCH,
    tokens_per_second: opt.PositiveFloat | None = None,
    utilisation: opt.PositiveFloat = 0.4,
    price: opt.PositiveFloat | None = None,
    activation_checkpointing: opt.Flag = False,
    shard: opt.Flag = False,
    json: opt.Json = False,
    threads: opt.Threads = None,
) -> None:
    """Plan a pre-training run: tokens, memory, hours and price.

    Args:
        recipe: Name of the pre-training recipe.
        hardware: Devices such as "8 x H100", or "here" for this machine, whose speed is measured in a second.
        scale: Size of the recipe: as published, or reduced for one machine.
        updates: Number of optimizer steps. Default: the recipe's.
        tokens: Number of tokens to train on, such as 50M (k, M, G, T), instead of --updates.
        batch_size: Sequences per update. Default: the recipe's; the advised learning rate scales with it.
        length: Tokens per sequence. Default: the recipe's.
        tokens_per_second: Measured training speed of one device.
        utilisation: Assumed share of the devices' peak speed, if --tokens-per-second is not given.
        price: Price of one device per hour, in any currency.
        activation_checkpointing: Recompute layers in the backward pass, as pretrain --activation-checkpointing does:
            less memory, more operations.
        shard: Shard weights, gradients and moments over the devices, as pretrain --shard does.
    """
    choose_threads(threads)
    if updates is not None and tokens is not None:
        raise opt.usage_error("expected --updates or --tokens, got both.")
    given = pretraining.scaled(pretraining.find_recipe(recipe), scale)
    with opt.as_usage_error():
        changed = given.changed(updates=updates, tokens=tokens, batch=batch_size, length=length, warmup=batch.warmup())
        result = advice.plan(
            changed,
            advice.devices_of(hardware),
            advice.Rates(utilisation, tokens_per_second, price),
            shard=shard,
            activation_checkpointing=activation_checkpointing,
        )
    if json:
        print_json(_plan_as_json(result))
    else:
        _print_plan(result)


def _plan_as_json(plan: "Plan") -> dict[str, object]:
    recipe, course = plan.scaled.recipe, plan.scaled.course
    return {
        "recipe": recipe.name,
        "title": recipe.title,
        "source": recipe.source,
        "scale": plan.scaled.scale,
        "hardware": str(plan.devices),
        "parameters": plan.parameters,
        "trained_parameters": plan.trained,
        "flops_per_token": plan.flops_per_token,
        "updates": course.updates,
        "tokens": course.tokens,
        "corpus": asdict(recipe.corpus),
        "passes": plan.passes,
        "learning_rate": course.learning_rate,
        "optimizer": course.optimizer.name,
        "phases": [asdict(each) for each in plan.phases],
        "hours": plan.seconds / 3600,
        "device_hours": plan.seconds / 3600 * plan.devices.count,
        "price": plan.price,
        "rates": asdict(plan.rates),
        "remarks": list(recipe.remarks),
    }


def _print_plan(plan: "Plan") -> None:
    recipe = plan.scaled.recipe
    size = "as published" if plan.scaled.scale == "published" else f"scale {plan.scaled.scale}"
    print(f"{recipe.title}, {size}, on {plan.devices} ({recipe.source})\n")
    print_table(("<", "~"), (*_sizes(plan), *_efforts(plan)), header=False)
    for remark in recipe.remarks:
        print(f"\n{remark}")
    print("\nMemory is for float32 weights, moments and activations; bfloat16 takes less.")


def _sizes(plan: "Plan") -> Iterator[tuple[str, str]]:
    """Yield the sizes of model and data."""
    more = "" if plan.trained == plan.parameters else f", {plan.trained / 1e6:,.1f} M with the generator"
    yield "parameters", f"{plan.parameters / 1e6:,.1f} M{more}"
    for each in plan.phases:
        phase, growth = each.phase, each.phase.growth
        sequences = f"{phase.batch:,} sequences of {phase.length:,} tokens"
        if growth is not None:
            sequences += f" (the first {growth.updates:,} grow from {growth.first:,})"
        yield "updates", f"{phase.updates:,} of {sequences}: {_token_count(phase.tokens)}"
        yield "  memory", _memory(each, plan.devices.each.name)
        yield "  time", duration(each.seconds)
    corpus = plan.scaled.recipe.corpus.name
    yield "tokens", f"{_token_count(plan.scaled.course.tokens)}: {plan.passes:,.3g} x {corpus}"


def _efforts(plan: "Plan") -> Iterator[tuple[str, str]]:
    """Yield the learning rate, and the cost of the run."""
    course, hours = plan.scaled.course, plan.seconds / 3600
    yield "rate", f"{course.learning_rate:.3g} at the peak, by {course.optimizer.name}; {_rate_advice(plan.scaled)}"
    total = plan.flops_per_token * course.tokens
    yield "operations", f"{plan.flops_per_token / 1e6:,.0f} M per token, {total:.2g} in total"
    yield "hours", f"{hours:,.3g}, or {hours * plan.devices.count:,.3g} device hours; {_basis(plan)}"
    if plan.price is not None:
        yield "price", f"{plan.price:,.0f}"


def _memory(each: "PlannedPhase", name: str) -> str:
    if each.memory is None:
        return f"the memory of {name} is not known"
    used = f"{each.memory / 1e9:,.1f} GB"
    if each.micro_batch is None:
        return f"a single sequence needs {used}, more than {name} has"
    accumulated = "no accumulation" if each.accumulation == 1 else f"{each.accumulation:,} accumulated in an update"
    return f"{used} for {each.micro_batch:,} sequences at once on a device, {accumulated}"


def _rate_advice(given: "ScaledRecipe") -> str:
    if isinstance(given.course.optimizer, Lamb) or given.course.phases[0].batch < 4096:
        return "for k times the batch, sqrt(k) times the rate"
    return "for k times the batch, sqrt(k) times the rate; LAMB allows higher rates"


def _basis(plan: "Plan") -> str:
    if plan.rates.tokens_per_second is not None:
        return f"at {plan.rates.tokens_per_second:,.0f} tokens per second on each device, as given"
    if plan.devices.each.measured:
        return f"{plan.devices.each.flops / 1e9:,.0f} GFLOP/s, measured here on an encoder"
    peak = plan.devices.each.flops / 1e12
    return f"assumes {plan.rates.utilisation:.0%} of {peak:,.0f} TFLOP/s (--utilisation, or --tokens-per-second)"


def _token_count(tokens: float) -> str:
    for unit, size in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if tokens >= size:
            return f"{tokens / size:,.3g} {unit} tokens"
    return f"{tokens:,.0f} tokens"
