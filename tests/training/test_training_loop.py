"""What the loop promises about a run that nobody disturbs."""

import io
import random
import sys

import numpy as np
import pytest
import torch
from torch import nn
from training_toys import Toy, Unvalidated, at, equal, events, mlp, settings, weights_of

from bothways.errors import InvalidInput, OutOfMemory, TrainingDiverged
from bothways.training.loop import train
from bothways.training.objective import Baseline
from bothways.training.options import AdamW, CosineDecay


def test_overfits_random_labels():
    toy = Toy()
    record = train(toy, settings(epochs=150, learning_rate=0.03, optimizer=AdamW(weight_decay=0.0)))
    assert record.losses[0] > 0.9
    assert record.losses[-1] < 0.05
    assert torch.equal(toy.module(toy.points).argmax(-1), toy.labels)
    assert not toy.module.training


@pytest.mark.parametrize("splits", [(5, 3), (1, 6, 1), (1,) * 8])
def test_splitting_an_update_into_unequal_micro_batches_changes_nothing(splits):
    whole, split = Toy(), Toy(splits=splits)
    # A large eps: otherwise AdamW turns the rounding of a gradient near zero into a whole step.
    same = settings(epochs=2, optimizer=AdamW(eps=1e-2), max_gradient_norm=0.5)
    one, other = train(whole, same), train(split, same)
    assert split.loss_calls == len(splits) * whole.loss_calls
    assert other.losses == pytest.approx(one.losses, abs=1e-6)
    assert one.tokens == other.tokens
    for name, value in weights_of(whole).items():
        torch.testing.assert_close(split.module.state_dict()[name], value, atol=1e-6, rtol=0)


def test_two_runs_with_dropout_are_equal_to_the_bit_and_another_seed_differs():
    runs = []
    for seed in (1, 1, 2):
        toy = Toy(mlp(dropout=0.3))
        runs.append((train(toy, settings(seed=seed)).losses, weights_of(toy)))
        torch.rand(3), random.random(), np.random.rand()  # what happens between runs does not matter
    assert runs[0][0] == runs[1][0]
    assert equal(runs[0][1], runs[1][1])
    assert runs[0][0] != runs[2][0]


def test_the_global_generators_stand_afterwards_where_they_stood_before():
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    expected = torch.rand(2), random.random(), np.random.rand()
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    train(Toy(mlp(dropout=0.3)), settings(epochs=1))
    assert torch.equal(torch.rand(2), expected[0])
    assert (random.random(), np.random.rand()) == expected[1:]


def test_equals_a_loop_written_by_hand_with_torch_and_transformers():
    from transformers import get_cosine_schedule_with_warmup

    chosen = settings(schedule=CosineDecay(), max_gradient_norm=0.7, optimizer=AdamW(weight_decay=0.1))
    toy, hand = Toy(), Toy()
    record = train(toy, chosen)
    decayed = [parameter for parameter in hand.module.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in hand.module.parameters() if parameter.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=0.01, fused=True
    )
    schedule = get_cosine_schedule_with_warmup(optimizer, 2, 15)
    losses = []
    for epoch in range(3):
        for update in hand.updates(epoch, 0):
            loss = hand.loss(update.micro_batches[0].payload) / 8
            loss.backward()
            nn.utils.clip_grad_norm_(hand.module.parameters(), 0.7)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert record.losses == pytest.approx(losses, abs=1e-6)
    assert record.kept_epoch == 3
    for name, value in weights_of(hand).items():
        torch.testing.assert_close(toy.module.state_dict()[name], value, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("scores", "standard_error", "kept"),
    [
        ((0.1, 0.6, 0.6, 0.2, 0.2), 0.0, 3),  # of equals the latest
        *(((0.1, 0.6, 0.55, 0.5, 0.3), *each) for each in [(0.0, 2), (0.04, 2), (0.06, 3), (0.15, 4), (0.5, 5)]),
    ],
)
def test_the_latest_epoch_within_a_standard_error_of_the_highest_score_is_kept(scores, standard_error, kept):
    toy = Toy(scores=scores, standard_error=standard_error)
    record = train(toy, settings(epochs=5))
    assert (record.kept_epoch, record.stopped_early) == (kept, False)
    assert {each.standard_error for each in record.validations} == {standard_error}
    assert equal(weights_of(toy), toy.seen[kept - 1])
    assert not equal(toy.seen[kept - 1], toy.seen[kept - 2])


def test_patience_goes_by_the_highest_score_and_not_by_what_is_kept():
    toy = Toy(scores=[0.1, 0.6, 0.58, 0.57, 0.9], standard_error=0.05)
    record = train(toy, settings(epochs=5, patience=2))
    assert (record.stopped_early, len(record.validations), record.kept_epoch, record.updates) == (True, 4, 4, 20)
    assert equal(weights_of(toy), toy.seen[3])


def test_without_validation_the_last_weights_stay():
    toy, reference = Unvalidated(), Toy(scores=[1.0, 2.0, 3.0])
    record = train(toy, settings(patience=1))
    train(reference, settings())
    assert record.kept_epoch is None
    assert record.validations == ()
    assert record.updates == 15
    assert equal(weights_of(toy), reference.seen[2])


@pytest.mark.parametrize("keep_diverged", [False, True])
@pytest.mark.parametrize(
    ("kind", "baseline", "scores", "kept"),
    [
        (Toy, None, (0.9, 0.5), 1),
        (Unvalidated, None, (), None),
        (Toy, Baseline("start"), (0.6, 0.5, 0.4), 0),
        (Toy, Baseline("start"), (0.6, 0.7, 0.4), 1),
    ],
)
def test_a_divergence_is_an_error_or_ends_the_run_with_what_was_kept(
    kind, baseline, scores, kept, keep_diverged, tmp_path
):
    toy, reference = kind(scores=scores, baseline=baseline), Toy(scores=[1.0, 2.0, 3.0])
    weights = [weights_of(toy)]
    toy.on_loss = at(13, lambda: toy.points.fill_(float("nan")))
    if keep_diverged:
        record = train(toy, settings(keep_diverged=True, log=tmp_path / "log.jsonl"))
        assert "the loss of update 13 is nan" in record.diverged
        assert (record.interrupted, record.finished_no_epoch, record.epochs) == (False, False, 2)
        assert record.kept_epoch == kept
        assert events(tmp_path / "log.jsonl")[-1]["event"] == "diverged"
    else:
        with pytest.raises(TrainingDiverged, match=r"loss of update 13 is nan.*Lower the learning rate") as caught:
            train(toy, settings())
        assert caught.value.kept_epoch == (2 if kept is None else kept)  # without validation, the latest
    train(reference, settings())
    weights += reference.seen
    assert equal(weights_of(toy), weights[2 if kept is None else kept])


@pytest.mark.parametrize(("bad", "call", "options"), [("nan", 3, {"keep_diverged": True}), ("inf", 1, {})])
def test_a_divergence_in_the_first_epoch_is_an_error_and_falls_back_to_the_start(bad, call, options):
    toy = Toy()
    toy.on_loss = at(call, lambda: toy.points.fill_(float(bad)))
    before = weights_of(toy)
    with pytest.raises(TrainingDiverged, match=f"update {call} "):
        train(toy, settings(**options))
    assert equal(weights_of(toy), before)


@pytest.mark.parametrize(
    ("scores", "baseline", "epoch"), [([0.5, float("nan")], None, 2), ([float("nan")], Baseline("start"), 0)]
)
def test_a_score_that_is_not_finite_is_refused(scores, baseline, epoch):
    toy = Toy(scores=scores, baseline=baseline)
    start = weights_of(toy)
    with pytest.raises(TrainingDiverged, match=f"a finite validation score, got nan in epoch {epoch}"):
        train(toy, settings())
    assert equal(weights_of(toy), toy.seen[0] if epoch else start)


def test_the_log_is_json_lines_that_agree_with_the_record(tmp_path):
    path = tmp_path / "made" / "log.jsonl"
    record = train(Toy(splits=(5, 3)), settings(log=path))
    lines = events(path)
    assert [event["event"] for event in lines[:1] + lines[-1:]] == ["start", "finished"]
    updates = [event for event in lines if event["event"] == "update"]
    # every second update, and the last of an epoch
    assert [event["update"] for event in updates] == [2, 4, 5, 6, 8, 10, 12, 14, 15]
    assert sum(event["tokens"] for event in updates) == record.tokens == 15 * 80
    assert updates[0]["loss"] == pytest.approx(sum(record.losses[:2]) / 2)
    assert all(event["tokens_per_second"] > 0 and event["gradient_norm"] > 0 for event in updates)
    assert [event["score"] for event in lines if event["event"] == "epoch"] == [v.score for v in record.validations]


def test_the_log_has_the_scheduled_rates_and_the_norm_before_clipping(tmp_path):
    free, clipped = tmp_path / "free.jsonl", tmp_path / "clipped.jsonl"
    train(Toy(), settings(epochs=1, log_every_updates=1, max_gradient_norm=None, log=free))
    train(Toy(), settings(epochs=1, log_every_updates=1, max_gradient_norm=1e-3, log=clipped))
    rates, norms = [], []
    for path in (free, clipped):
        lines = events(path)
        rates.append([event["learning_rate"] for event in lines if event["event"] == "update"])
        norms.append([event["gradient_norm"] for event in lines if event["event"] == "update"])
    assert rates[0] == rates[1] == pytest.approx([0.0, 0.01, 0.0075, 0.005, 0.0025])
    assert norms[0][0] == pytest.approx(norms[1][0])
    assert min(norms[1]) > 1e-3


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_weights():
    exact, rounded = Toy(), Toy()
    dtypes = set()
    rounded.module[0].register_forward_hook(lambda *call: dtypes.add(call[2].dtype))
    one = train(exact, settings(epochs=1))
    other = train(rounded, settings(epochs=1, precision="bfloat16"))
    assert torch.bfloat16 in dtypes
    assert {value.dtype for value in rounded.module.state_dict().values()} == {torch.float32}
    assert other.losses != one.losses
    assert other.losses == pytest.approx(one.losses, rel=0.02)


def test_what_cannot_be_trained_is_refused():
    frozen = Toy()
    frozen.module.requires_grad_(False)
    with pytest.raises(InvalidInput, match="nothing to train"):
        train(frozen, settings())
    with pytest.raises(InvalidInput, match="at least 1 update in an epoch, got 0"):
        train(Toy(splits=(41,)), settings())
    with pytest.raises(InvalidInput, match="resume=True needs a checkpoint folder"):
        train(Toy(), settings(resume=True))
    with pytest.raises(InvalidInput, match=r"expected a learning rate .* got None .*: pass resolved"):
        train(Toy(), settings(learning_rate=None))
    with pytest.raises(InvalidInput, match=r"precision, got 0\.01 and None: pass resolved"):
        train(Toy(), settings(precision=None))


def test_an_objective_that_miscounts_its_updates_is_refused():
    toy = Toy()
    toy.updates_per_epoch = lambda: 7
    with pytest.raises(InvalidInput, match=r"expected 7 updates in epoch 1 \(updates_per_epoch\(\)\), got 5"):
        train(toy, settings())


def test_an_update_without_units_is_refused():
    toy = Toy(splits=(8, 0))
    original = toy.updates
    train(toy, settings(epochs=1))  # an empty micro-batch beside a full one does no harm
    toy.updates = lambda epoch, start: (type(u)(u.micro_batches[1:]) for u in original(epoch, start))
    with pytest.raises(InvalidInput, match=r"a weight above 0, got 0.* in update 1"):
        train(toy, settings(epochs=1))


def test_the_bar_shows_loss_and_speed_and_a_pipe_gets_nothing_or_lines(capsys, monkeypatch):
    train(Toy(), settings(epochs=1))
    assert capsys.readouterr() == ("", "")
    train(Toy(), settings(epochs=1, show_progress=True))
    name, epoch = capsys.readouterr().err.splitlines()
    assert name == "training"
    assert epoch.startswith("training: epoch 1 of 1, 0 s: training loss ")
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    train(Toy(), settings(epochs=1))
    assert "5/5" in terminal.getvalue()


ON_CPU = "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried ..."


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError(ON_CPU)])
def test_a_batch_that_does_not_fit_says_what_to_reduce(error):
    def fail(_):
        raise error

    with pytest.raises(OutOfMemory, match=r"does not fit into the memory of cpu\. Lower the token budget"):
        train(Toy(on_loss=fail), settings())


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_a_run_that_fails_in_its_first_epoch_has_the_weights_that_it_began_with(error):
    def fail():
        raise error("no more")

    toy = Toy(on_loss=at(4, fail))
    before = weights_of(toy)
    with pytest.raises(error, match="no more"):
        train(toy, settings())
    assert equal(weights_of(toy), before)
    assert not toy.module.training
