"""Options, schedules, optimizer and random generators by themselves."""

import json
import math
import random
import subprocess
import sys
from dataclasses import replace
from typing import get_type_hints

import numpy as np
import pytest
import torch
from torch import nn
from training_toys import mlp, settings

from bothways import TextClassifier
from bothways.errors import InvalidInput
from bothways.training.optimizers import NamedOptimizer, clip_gradients, parameter_groups
from bothways.training.options import (
    AdamW,
    ConstantRate,
    CosineDecay,
    Lamb,
    LinearDecay,
    StableDecay,
    TrainingArguments,
    TrainingOptions,
    rate_fraction,
    recorded_options,
    resolved,
    rows_in_update,
    warmup_updates,
)
from bothways.training.state import EpochValidation, RandomState, TrainingRecord, seeded
from contract_cases import rows
from tiny_models import write_checkpoint


def oracle_rates(make, warmup, total):
    """The rates of a transformers scheduler with a peak of 1."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = make(optimizer, warmup, total)
    rates = []
    for _ in range(total):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize(("warmup", "total"), [(0, 10), (3, 10), (10, 100), (1, 1), (5, 5)])
def test_schedules_equal_those_of_transformers(warmup, total):
    from transformers import optimization as oracle

    pairs = [
        (LinearDecay(), oracle.get_linear_schedule_with_warmup),
        (CosineDecay(), oracle.get_cosine_schedule_with_warmup),
        (ConstantRate(), lambda *arguments: oracle.get_constant_schedule_with_warmup(*arguments[:2])),
        (
            CosineDecay(floor=0.1),
            lambda *arguments: oracle.get_cosine_with_min_lr_schedule_with_warmup(*arguments, min_lr_rate=0.1),
        ),
    ]
    for schedule, make in pairs:
        rates = [rate_fraction(schedule, update, warmup=warmup, total=total) for update in range(total)]
        assert rates == pytest.approx(oracle_rates(make, warmup, total), abs=1e-12)


@pytest.mark.parametrize(("warmup", "total", "falling"), [(0, 10, 4), (3, 10, 7), (10, 100, 30)])
def test_a_trapezoid_equals_that_of_transformers(warmup, total, falling):
    from transformers import get_wsd_schedule

    def make(optimizer, warmup, total):
        return get_wsd_schedule(optimizer, warmup, falling, num_training_steps=total, decay_type="1-sqrt")

    schedule = StableDecay(falling / (total - warmup))
    rates = [rate_fraction(schedule, update, warmup=warmup, total=total) for update in range(total)]
    assert rates == pytest.approx(oracle_rates(make, warmup, total))


@pytest.mark.parametrize("schedule", [LinearDecay(floor=0.2), CosineDecay(floor=0.2)])
def test_a_schedule_falls_from_the_peak_to_its_floor_and_stays(schedule):
    rates = [rate_fraction(schedule, update, warmup=2, total=12) for update in range(2, 20)]
    assert rates[0] == 1.0
    assert rates == sorted(rates, reverse=True)
    assert rates[10:] == pytest.approx([0.2] * 8)


def test_warmup_is_rounded_up_as_transformers_does():
    from transformers import TrainingArguments

    for total in (2, 9, 101):
        asked = TrainingArguments(output_dir="unused", warmup_steps=0.07, use_cpu=True)
        assert warmup_updates(total, 0.07) == asked.get_warmup_steps(total)
    assert warmup_updates(1, 0.1) == 0  # transformers would spend the only update at the rate 0


@pytest.mark.parametrize(
    ("make", "name", "values"),
    [
        (StableDecay, "decay", [0.0, -0.1, 1.1, math.nan]),
        (LinearDecay, "floor", [-0.1, 1.0, math.nan]),
        (CosineDecay, "floor", [-0.1, 1.0, math.nan]),
        *((make, "weight_decay", [-0.1, math.nan, math.inf, None]) for make in (AdamW, Lamb)),
        *((make, "betas", [(0.9,), (0.9, 1.0), (-0.1, 0.9), (math.nan, 0.9)]) for make in (AdamW, Lamb)),
        *((make, "eps", [0.0, math.nan]) for make in (AdamW, Lamb)),
    ],
)
def test_a_value_of_a_schedule_or_optimizer_out_of_its_range_is_refused(make, name, values):
    for value in values:
        with pytest.raises(InvalidInput, match=name):
            make(**{name: value})


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "epochs": [0, -1, 1.5, True],
        "updates": [0],
        "skipped_updates": [-1],
        "layer_decay": [0, -0.5, 1.1, math.nan, "0.8"],
        "learning_rate": [0.0, -1e-5, math.nan, math.inf, "fast"],
        "warmup_fraction": [-0.1, 1.1, math.nan],
        "max_gradient_norm": [0.0, -1.0, math.nan],
        "precision": ["float16", "bf16"],
        "patience": [0, -1, 1.0],
        "seed": [-1, 2**32, 1.0],
        "log_every_updates": [0],
        "checkpoint_every_updates": [0],
        "optimizer": ["adamw", None],
        "schedule": ["linear", None],
        "max_tokens": [0, 1.5, None],
        "log": [3],
        "checkpoints": [True],
        "resume": ["yes"],
        "keep_diverged": [None],
        "show_progress": ["no"],
    }.items(),
)
def test_a_setting_out_of_its_range_is_named(name, values):
    for value in values:
        with pytest.raises(InvalidInput, match=f"`{name}` must be .*, got"):
            settings(**{name: value})


def test_the_arguments_of_fit_are_the_options():
    assert get_type_hints(TrainingArguments) == get_type_hints(TrainingOptions)


@pytest.mark.parametrize(("hidden", "rate"), [(32, 1e-4), (512, 1e-4), (513, 3e-5)])
def test_learning_rate_and_precision_are_chosen_where_they_are_left_open(hidden, rate):
    chosen = resolved(TrainingOptions(patience=2), hidden, torch.device("cpu"))
    assert chosen == TrainingOptions(patience=2, epochs=3, learning_rate=rate, precision="float32")
    given = TrainingOptions(epochs=1, learning_rate=0.5, precision="bfloat16")
    assert resolved(given, hidden, torch.device("cpu")) == given


@pytest.mark.parametrize(
    ("per_epoch", "least", "epochs"), [(3, 150, 50), (4, 150, 38), (50, 150, 3), (500, 150, 3), (3, 0, 3)]
)
def test_small_data_are_read_in_more_epochs(per_epoch, least, epochs):
    options = resolved(TrainingOptions(), 32, torch.device("cpu"), updates_per_epoch=per_epoch, min_updates=least)
    assert options.epochs == epochs


@pytest.mark.parametrize(("given", "rows", "size"), [(None, 2000, 16), (None, 2001, 32), (None, None, 32), (5, 10, 5)])
def test_small_data_are_read_in_smaller_batches(given, rows, size):
    assert rows_in_update(TrainingOptions(batch_size=given), rows) == size


@pytest.mark.parametrize(("capability", "precision"), [((9, 0), "bfloat16"), ((8, 0), "bfloat16"), ((7, 5), "float32")])
def test_a_gpu_trains_in_bfloat16_where_it_has_it(capability, precision, monkeypatch):
    # A T4 (7.5) only emulates it. The device that is asked is the one that is trained on, not the current one.
    second = torch.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "get_device_capability", {second: capability}.__getitem__)
    assert resolved(TrainingOptions(), 32, second).precision == precision


def test_what_is_recorded_of_the_options_stays_as_it_is_on_disk():
    # An unfinished run is resumed only under these names and values.
    apart = {"batch_size": 5, "max_tokens": 70, "log": "log.jsonl", "checkpoints": "run", "resume": True}
    chosen = resolved(TrainingOptions(**apart, keep_diverged=True, show_progress=False), 32, torch.device("cpu"))
    assert json.dumps(recorded_options(chosen)) == (
        '{"epochs": 3, "updates": null, "optimizer": "adamw", "learning_rate": 0.0001, "layer_decay": null, '
        '"schedule": {"kind": "LinearDecay", "floor": 0.0}, '
        '"warmup_fraction": 0.1, "weight_decay": 0.01, "betas": [0.9, 0.999], "eps": 1e-08, "max_gradient_norm": 1.0, '
        '"precision": "float32", "patience": null, "seed": 0, "log_every_updates": 10, '
        '"checkpoint_every_updates": null}'
    )
    other = recorded_options(settings(schedule=CosineDecay(floor=0.1), optimizer=Lamb((0.8, 0.9), 1e-6, 0.3)))
    assert other["schedule"] == {"kind": "CosineDecay", "floor": 0.1}
    assert {name: other[name] for name in ("optimizer", "betas", "eps", "weight_decay")} == {
        "optimizer": "lamb",
        "betas": [0.8, 0.9],
        "eps": 1e-6,
        "weight_decay": 0.3,
    }


def test_settings_and_schedules_need_no_torch():
    code = "import sys, bothways.training.options; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_biases_and_norms_are_not_decayed_and_frozen_parameters_are_left_out():
    module = mlp()
    module[4].bias.requires_grad_(False)
    decayed, others = parameter_groups(module, 0.1)
    assert (decayed.weight_decay, decayed.names) == (0.1, ("0.weight", "4.weight"))
    assert (others.weight_decay, others.names) == (0.0, ("0.bias", "1.weight", "1.bias"))


@pytest.mark.parametrize("kind", [AdamW, Lamb])
def test_steps_are_those_of_the_paper(kind):
    module = nn.Linear(3, 2)
    optimizer = NamedOptimizer(module, settings(optimizer=kind((0.8, 0.9), eps=1e-3, weight_decay=0.3)))
    expected = {name: value.detach().clone().double() for name, value in module.named_parameters()}
    means = {name: torch.zeros_like(value) for name, value in expected.items()}
    squares = {name: torch.zeros_like(value) for name, value in expected.items()}
    for step in (1, 2, 3):
        module(torch.full((1, 3), float(step))).square().sum().backward()
        gradients = {name: value.grad.clone().double() for name, value in module.named_parameters()}
        optimizer.step(0.05)
        for name, decay in (("weight", 0.3), ("bias", 0.0)):
            means[name] = 0.8 * means[name] + 0.2 * gradients[name]
            squares[name] = 0.9 * squares[name] + 0.1 * gradients[name] ** 2
            adam = means[name] / (1 - 0.8**step) / ((squares[name] / (1 - 0.9**step)).sqrt() + 1e-3)
            move = adam + decay * expected[name]
            trust = expected[name].norm() / move.norm() if kind is Lamb and name == "weight" else 1.0
            expected[name] = expected[name] - 0.05 * trust * move
            torch.testing.assert_close(module.get_parameter(name).double(), expected[name], atol=1e-6, rtol=0)
            assert module.get_parameter(name).grad is None


def test_lamb_moves_weights_of_zero_by_adam_s_step():
    module = nn.Linear(3, 2)
    nn.init.zeros_(module.weight)
    optimizer = NamedOptimizer(module, settings(optimizer=Lamb(eps=1e-6, weight_decay=0.1)))
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step(0.05)
    torch.testing.assert_close(module.weight, torch.full((2, 3), -0.05), atol=1e-5, rtol=0)


@pytest.mark.parametrize("optimizer", [AdamW(), Lamb()])
def test_the_optimizer_state_is_a_table_by_name_that_can_be_loaded(optimizer):
    chosen = settings(optimizer=optimizer)
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    other.load_state_dict(one.state_dict())
    first, second = NamedOptimizer(one, chosen), NamedOptimizer(other, chosen)
    points = torch.randn(4, 3)
    one(points).sum().backward()
    first.step(0.1)
    other.load_state_dict(one.state_dict())
    second.load(first.state(), 3)
    assert second.state().keys() == {f"{k}/{n}" for k in ("step", "exp_avg", "exp_avg_sq") for n in ("weight", "bias")}
    for module, taken in ((one, first), (other, second)):
        module(points).square().sum().backward()
        taken.step(0.1)
    assert torch.equal(one.weight, other.weight)
    assert first.state()["step/bias"].item() == 2


@pytest.mark.parametrize("max_norm", [None, 100.0, 0.1])
def test_clipping_reports_the_norm_before_and_scales_down_only(max_norm):
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    assert clip_gradients([parameter.grad], max_norm).item() == pytest.approx(5.0)
    assert parameter.grad.norm().item() == pytest.approx(0.1 if max_norm == 0.1 else 5.0, rel=1e-4)


def draw():
    return torch.rand(2).tolist(), random.random(), random.gauss(0, 1), np.random.rand(), np.random.standard_normal()


def test_a_captured_random_state_survives_json():
    draw()  # leaves half of a pair of normals in Python's and numpy's generators
    written = json.dumps(RandomState.capture().to_dict())
    expected = draw()
    draw()
    RandomState.from_dict(json.loads(written)).restore()
    assert draw() == expected


def test_seeded_blocks_draw_the_same_and_leave_no_trace():
    RandomState.capture()
    before = RandomState.capture().to_dict()
    with seeded(3):
        first = draw()
    assert RandomState.capture().to_dict() == before
    with seeded(3):
        assert draw() == first
    with seeded(4):
        assert draw() != first


def test_tokens_become_updates_and_are_one_of_three_lengths():
    cpu = torch.device("cpu")
    found = resolved(TrainingOptions(total_tokens=1000), 32, cpu, updates_per_epoch=4, tokens_per_update=90.0)
    assert (found.updates, found.epochs, found.total_tokens) == (12, 3, None)
    assert resolved(TrainingOptions(total_tokens=1), 32, cpu, updates_per_epoch=4, tokens_per_update=90.0).updates == 1
    with pytest.raises(InvalidInput, match="total_tokens is not supported for this training"):
        resolved(TrainingOptions(total_tokens=1000), 32, cpu)
    ending = resolved(TrainingOptions(updates=4), 32, cpu, updates_per_epoch=5)
    assert (ending.epochs, ending.updates) == (1, 4)
    with pytest.raises(InvalidInput, match="expected epochs or updates, got both: 2 and 4"):
        resolved(TrainingOptions(epochs=2, updates=4), 32, cpu)
    for other in ("epochs", "updates"):
        with pytest.raises(InvalidInput, match=rf"one of epochs, .* got {other}=2, total_tokens=9"):
            TrainingOptions(total_tokens=9, **{other: 2})


def test_a_fine_tuning_reads_as_many_tokens_as_were_asked_for(tmp_path):
    write_checkpoint(tmp_path / "base", "bert")
    model = TextClassifier.from_pretrained(tmp_path / "base", device="cpu")
    record = model.fit(
        rows("single", 40), validation=rows("single", 6), total_tokens=2_000, batch_size=4, show_progress=False
    )
    assert record.tokens == pytest.approx(2_000, abs=record.tokens / record.updates)


def test_a_record_is_shown_in_a_line_and_summed_up_in_a_few():
    epochs = [EpochValidation(number, number, score, {"accuracy": score}) for number, score in ((0, 0.5), (1, 0.75))]
    stages = {"training": 40.0, "contrastive warm-up": 50.0, "tokenising": 1.0}
    record = TrainingRecord((0.1,) * 999, tuple(epochs), 1, 999, 5, 95.0, False, False, None, TrainingOptions(), 2)
    assert repr(record) == "TrainingRecord(999 updates in 1 min 35 s, kept epoch 1 of 2, accuracy 0.7500)"
    record = replace(
        record,
        stages=stages,
        stopped_early=True,
        baseline="linear model",
        notes=("Few rows.",),
        look_at=("line 2: 'a', but 'b'",),
    )
    assert record.summary().splitlines() == [
        "trained      999 updates in 1 min 35 s (contrastive warm-up 50 s, training 40 s), stopped early",
        "kept epoch   1 of 2: the best validation score, 0.7500",
        "validation   accuracy 0.7500",
        "baseline     accuracy 0.5000 (linear model)",
        "note         Few rows.",
        "look at      line 2: 'a', but 'b'",
    ]
    assert "notes" not in record.to_dict()
    assert repr(replace(record, interrupted=True, validations=(), kept_epoch=None)).endswith(
        "stopped early, interrupted)"
    )
