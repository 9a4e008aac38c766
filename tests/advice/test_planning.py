"""Plans of pre-training: arithmetic that can be followed by hand."""

import math
from dataclasses import replace

import pytest

from bothways.advice import Accelerator, Devices, Rates, cost, devices_of, find_config, plan
from bothways.advice.planning import training_memory
from bothways.errors import InvalidInput
from bothways.pretraining.recipes import RECIPES, scaled
from everyday import some_of

CPU = Devices(1, Accelerator("this machine (cpu)", 1e11, 64e9, measured=True, kind="cpu"))
PUBLISHED = {name: scaled(recipe, "published") for name, recipe in RECIPES.items()}
SCALED = [(name, scale) for scale in ("tiny", "published") for name in RECIPES]
# One for each task of pre-training.
EVERYDAY = [*((name, "tiny") for name in ("electra", "xlnet", "distilbert")), ("bert", "published")]


def without_memory(words):
    """Devices of unknown memory, for which none is counted."""
    found = devices_of(words)
    return replace(found, each=replace(found.each, memory=None))


@pytest.mark.parametrize(("name", "scale"), some_of(SCALED, *EVERYDAY))
def test_every_recipe_can_be_planned(name, scale):
    found = plan(scaled(RECIPES[name], scale), devices_of("8 x H100"), Rates())
    assert found.seconds > 0
    for each in found.phases:
        assert each.micro_batch * each.accumulation * 8 >= each.phase.batch
        assert 0 < each.memory < 80e9


def test_operations_follow_the_parameters():
    found = plan(PUBLISHED["roberta"], without_memory("H100"), Rates())
    layers = 12 * 12 * 768**2
    attention = 12 * 2 * 2 * 512 * 768
    head = 0.15 * 2 * 768 * 50265
    assert found.flops_per_token == pytest.approx(3 * (2 * layers + attention + head), rel=0.01)


def test_hours_follow_the_devices_and_their_rate():
    one, eight = (plan(PUBLISHED["bert"], without_memory(words), Rates()) for words in ("A100", "8 x A100"))
    assert one.seconds == pytest.approx(8 * eight.seconds)
    operations = one.flops_per_token * RECIPES["bert"].course.tokens
    assert one.seconds == pytest.approx(operations / (0.4 * 312e12))
    given = plan(PUBLISHED["bert"], without_memory("2 x A100"), Rates(tokens_per_second=1e5, price_per_hour=3.0))
    assert given.seconds == pytest.approx(RECIPES["bert"].course.tokens / 2e5)
    assert given.price == pytest.approx(given.seconds / 3600 * 2 * 3.0)


def test_a_generator_is_trained_but_not_kept():
    found = plan(PUBLISHED["electra"], without_memory("T4"), Rates())
    assert found.trained > found.parameters
    assert {each.memory for each in found.phases} == {each.micro_batch for each in found.phases} == {None}
    alone = plan(PUBLISHED["bert"], without_memory("T4"), Rates())
    assert alone.trained == alone.parameters


def test_a_micro_batch_fits_the_memory_and_what_does_not_fit_is_said():
    (first, _), (smaller, _), (neither, _) = (
        plan(PUBLISHED["bert"], Devices(1, Accelerator("a device", 1e14, memory)), Rates()).phases
        for memory in (16e9, 3e9, 1e9)
    )
    assert first.memory <= 0.9 * 16e9
    assert smaller.memory <= 0.9 * 3e9
    assert 1 <= smaller.micro_batch < first.micro_batch
    assert smaller.accumulation > first.accumulation
    assert neither.micro_batch is neither.accumulation is None
    assert neither.memory > 0.9 * 1e9


@pytest.mark.parametrize(
    ("words", "count", "name"), [("8 x H100", 8, "H100"), ("rtx-4090", 1, "RTX4090"), ("16*a100", 16, "A100")]
)
def test_hardware_is_read(words, count, name):
    found = devices_of(words)
    assert (found.count, found.each.name) == (count, name)
    assert str(found) == f"{count} x {name}"


def test_this_machine_is_measured(monkeypatch):
    monkeypatch.setattr("bothways.advice.hardware.PROBE_SECONDS", 0.01)
    found = without_memory("here")
    assert found.each.measured
    assert 1e9 < found.each.flops < 1e15
    tiny = plan(scaled(RECIPES["electra"], "tiny"), found, Rates())
    operations = tiny.flops_per_token * tiny.scaled.course.tokens
    assert tiny.seconds == pytest.approx(operations / found.each.flops)


@pytest.mark.parametrize("words", ["3 x Z80", "0 x H100", "", "x", "2 x here"])
def test_unknown_hardware_is_refused_with_what_is_known(words):
    with pytest.raises(InvalidInput, match="Devices: T4, V100"):
        devices_of(words)


@pytest.mark.parametrize("field", ["utilisation", "tokens_per_second", "price_per_hour"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_rate_out_of_range_is_refused(field, value):
    with pytest.raises(InvalidInput, match=field):
        plan(PUBLISHED["bert"], devices_of("H100"), Rates(**{field: value}))


def test_sharding_leaves_each_device_a_part():
    whole, sharded, alone = (
        plan(PUBLISHED["roberta"], devices_of(words), Rates(), shard=shard).phases[0]
        for words, shard in (("8 x T4", False), ("8 x T4", True), ("T4", True))
    )
    assert sharded.micro_batch == whole.micro_batch
    assert sharded.memory < whole.memory - 1e9
    assert alone.micro_batch == whole.micro_batch
    assert alone.memory == whole.memory


@pytest.mark.parametrize("name", some_of(RECIPES, "electra"))
def test_checkpointing_trades_memory_for_operations(name):
    usual, lean = (plan(PUBLISHED[name], devices_of("H100"), Rates(), activation_checkpointing=on) for on in (0, 1))
    assert 1.15 * usual.flops_per_token < lean.flops_per_token < 4 / 3 * usual.flops_per_token
    assert lean.seconds == pytest.approx(usual.seconds * lean.flops_per_token / usual.flops_per_token)
    for before, after in zip(usual.phases, lean.phases, strict=True):
        assert after.micro_batch >= before.micro_batch
        assert after.memory < 0.8 * before.memory


@pytest.mark.parametrize("name", some_of(RECIPES, "electra"))
def test_a_device_takes_as_many_tokens_at_once_as_pre_training_does(name):
    for each in plan(PUBLISHED[name].changed(batch=10_000), devices_of("B200"), Rates()).phases:
        remembered = 384 if name == "xlnet" else 0
        assert each.micro_batch == max(1, 8192 // (each.phase.length + remembered))
    (phase,) = plan(scaled(RECIPES[name], "tiny"), CPU, Rates()).phases
    assert phase.micro_batch == (4 if name == "xlnet" else 8)  # of 128 tokens and 96 remembered ones, at most 1,024
    assert phase.accumulation == 32 // phase.micro_batch


@pytest.mark.parametrize(("sequences", "rows"), [(2, 154), (64, 256)])
def test_memory_holds_one_chunk_of_logits_and_the_gradient_of_the_table(sequences, rows):
    _, config = find_config("sentence-transformers/all-MiniLM-L6-v2")
    found = training_memory(RECIPES["bert"].task, (config,), (sequences, 512), "cpu", 1)
    without = cost(config, batch=sequences, length=512).training.peak
    # 2**23 logits are 274 rows of 30,522, of which whole blocks of 64 are taken.
    assert found - without == 4 * 30_522 * (rows + 384)


def test_shared_embeddings_are_counted_once():
    apart, shared = (
        replace(tiny, task=replace(tiny.task, embeddings=embeddings))
        for tiny in [scaled(RECIPES["electra"], "tiny")]
        for embeddings in ("disentangled", "shared")
    )
    more, less = (plan(each, CPU, Rates()).phases[0].memory for each in (apart, shared))
    assert more - less == 5 * 4 * 128 * 30_522  # weights, kept ones, two moments, gradients


def test_a_length_beyond_the_positions_is_refused():
    with pytest.raises(InvalidInput, match="at most 512 tokens, the limit of the recipe's model, got 1,024"):
        plan(PUBLISHED["bert"].changed(length=1024), devices_of("H100"), Rates())
