"""A module that is worth something before the first update: validated as epoch 0, and kept where nothing beats it."""

import json
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_training_resume import comparable, out_of_range, refuse_changed
from training_toys import (
    Toy,
    Unvalidated,
    crashed,
    equal,
    events,
    mlp,
    settings,
    sigint_at,
    weights_of,
)

from bothways.evaluation.report import Validation
from bothways.training.loop import train
from bothways.training.objective import Baseline
from bothways.training.state import EpochValidation, kept_of

BASELINE = "toy before the training"


def baseline_toy(margin=-1.0, **changes):
    return Toy(baseline=Baseline(BASELINE, margin), **changes)


@pytest.mark.parametrize(
    ("scores", "standard_error", "margin", "kept"),
    [
        ((0.6, 0.5, 0.4, 0.3), 0.05, -1.0, 0),  # worse by more than a standard error
        ((0.6, 0.5, 0.56, 0.3), 0.05, -1.0, 2),  # worse by less
        ((0.6, 0.5, 0.56, 0.3), 0.05, 0.0, 0),  # where it must be as good, less is not enough
        ((0.6, 0.5, 0.6, 0.3), 0.05, 0.0, 2),  # as good is
        ((0.6, 0.5, 0.62, 0.59), 0.05, 0.0, 2),  # another epoch is within a standard error of the best, not of it
        ((0.6, 0.5, 0.62, 0.61), 0.05, 0.0, 3),
        ((0.6, 0.5, 0.62, 0.61), 0.05, 1.0, 0),  # where it must be better, as good is not enough
        ((0.6, 0.5, 0.66, 0.64), 0.05, 1.0, 2),
        ((0.1, 0.5, 0.62, 0.58), 0.05, 0.0, 3),  # a start that is far below says nothing
        ((0.6, 0.6, 0.1, 0.1), 0.0, -1.0, 1),  # of equals the latest
    ],
)
def test_the_start_is_kept_where_no_epoch_is_as_good(scores, standard_error, margin, kept):
    toy = baseline_toy(margin, scores=scores, standard_error=standard_error)
    start = weights_of(toy)
    record = train(toy, settings())
    assert record.kept_epoch == kept
    assert equal(toy.seen[0], start)
    assert equal(weights_of(toy), toy.seen[kept])
    assert [(each.epoch, each.update) for each in record.validations] == [(0, 0), (1, 5), (2, 10), (3, 15)]
    assert record.validations[0].standard_error == -margin * standard_error
    assert {each.standard_error for each in record.validations[1:]} == {standard_error}
    assert (record.epochs, record.updates, record.baseline) == (3, 15, BASELINE)


@given(
    st.sampled_from([0, 1]),
    st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.3, 0.4]), st.sampled_from([0.0, 0.1, 0.2])), min_size=1),
)
def test_what_is_kept_at_the_end_was_kept_when_it_was_validated(first, scores):
    validations = [EpochValidation(epoch, 0, score, {}, error) for epoch, (score, error) in enumerate(scores, first)]
    epochs = [kept_of(validations[:count]).epoch for count in range(1, len(validations) + 1)]
    assert epochs == sorted(epochs)
    assert epochs[epochs[-1] - first] == epochs[-1]
    start, kept = validations[0], validations[epochs[-1] - first]
    assert first or kept.score >= start.score - start.standard_error


@pytest.mark.parametrize(
    ("scores", "margin", "reason"),
    [
        ((0.6, 0.5, 0.4, 0.3), -1.0, "its validation score is 0.6000, and no later epoch reached 0.5500"),
        (
            (0.6, 0.5, 0.62, 0.61),
            1.0,
            "its validation score is 0.6000, and no later epoch is better by 0.0500",
        ),
        ((0.6, 0.5, 0.62, 0.64), 0.0, "the best validation score, 0.6400"),
        ((0.6, 0.5, 0.64, 0.64), 0.0, "the best validation score, 0.6400"),
        (
            (0.6, 0.5, 0.64, 0.62),
            0.0,
            "the latest validation score (0.6200) within a standard error of the best (0.6400 in epoch 2)",
        ),
        (
            (0.6, 0.5, 0.56, 0.3),
            -1.0,
            "the latest validation score (0.5600) within a standard error of the best (0.6000 in epoch 0)",
        ),
    ],
)
def test_a_line_says_why_an_epoch_is_kept(scores, margin, reason):
    record = train(baseline_toy(margin, scores=scores, standard_error=0.05), settings())
    assert record.kept_because == reason
    assert record.was_rising is (scores[-1] > max(scores[:-1]))


def test_without_validations_there_is_no_reason():
    record = train(Unvalidated(), settings())
    assert (record.kept_because, record.was_rising) == ("", False)


def test_the_start_does_not_change_the_course_of_the_training():
    plain, judged = Toy(mlp(dropout=0.3)), baseline_toy(module=mlp(dropout=0.3))
    assert train(plain, settings()).losses == train(judged, settings()).losses
    assert equal(weights_of(plain), weights_of(judged))
    assert (plain.validations, judged.validations) == (3, 4)


def test_without_validation_there_is_no_baseline():
    toy = Unvalidated(baseline=Baseline(BASELINE))
    record = train(toy, settings())
    assert (record.baseline, record.validations, record.kept_epoch) == (None, (), None)


def test_the_baseline_may_be_another_model_than_the_one_that_is_trained():
    toy = Toy(baseline=Baseline(BASELINE, 1.0, lambda: Validation({"other": 1.0}, 0.7, 0.1)), scores=[0.5, 0.75, 0.6])
    start = weights_of(toy)
    record = train(toy, settings())
    assert (record.kept_epoch, dict(record.validations[0].metrics)) == (0, {"other": 1.0})
    assert toy.validations == 3
    assert equal(weights_of(toy), start)


def test_patience_counts_from_the_start():
    toy = baseline_toy(scores=[0.6, 0.5, 0.4, 0.9])
    record = train(toy, settings(patience=2))
    assert (record.stopped_early, record.epochs, record.kept_epoch) == (True, 2, 0)
    assert equal(weights_of(toy), toy.seen[0])


def test_the_log_and_the_record_have_the_start(tmp_path, capsys):
    toy = baseline_toy(scores=[0.6, 0.5, 0.4, 0.3])
    record = train(toy, settings(log=tmp_path / "log.jsonl", show_progress=True))
    lines = events(tmp_path / "log.jsonl")
    assert [line["event"] for line in lines[:3]] == ["start", "epoch", "update"]
    assert [line["epoch"] for line in lines if line["event"] == "epoch"] == [0, 1, 2, 3]
    first = {"event": "epoch", "epoch": 0, "update": 0, "score": 0.6, "standard_error": 0.0}
    assert first.items() <= lines[1].items()
    assert (lines[-1]["event"], lines[-1]["kept_epoch"]) == ("finished", 0)
    values = json.loads(json.dumps(record.to_dict(), allow_nan=False))
    assert (values["baseline"], values["kept_epoch"], values["epochs"]) == (BASELINE, 0, 3)
    assert values["kept_because"] == record.kept_because != ""
    assert [each["epoch"] for each in values["validations"]] == [0, 1, 2, 3]
    assert f"{BASELINE}: scripted 1.0000" in capsys.readouterr().err


# Ends that come early


def test_ctrl_c_in_the_first_epoch_leaves_the_start(tmp_path):
    toy = baseline_toy(on_loss=sigint_at(3))
    start = weights_of(toy)
    record = train(toy, settings(log=tmp_path / "log.jsonl"))
    assert (record.interrupted, record.kept_epoch, record.epochs, record.updates) == (True, 0, 0, 3)
    assert record.finished_no_epoch
    assert equal(weights_of(toy), start)
    last = events(tmp_path / "log.jsonl")[-1]
    assert (last["event"], last["kept_epoch"]) == ("interrupted", 0)


def test_ctrl_c_while_the_start_is_validated_leaves_it_and_can_be_resumed(tmp_path):
    whole, stopped, resumed = (baseline_toy(module=mlp(dropout=0.3)) for _ in range(3))
    expected = train(whole, settings())
    stopped.on_validate = sigint_at(1)
    start = weights_of(stopped)
    record = train(stopped, settings(checkpoints=tmp_path))
    assert (record.interrupted, record.validations, record.baseline, record.updates) == (True, (), None, 0)
    assert equal(weights_of(stopped), start)
    record = train(resumed, settings(checkpoints=tmp_path, resume=True))
    assert (record.validations, record.losses) == (expected.validations, expected.losses)
    assert equal(weights_of(resumed), weights_of(whole))


# Resuming


FALLING, RISING = (0.6, 0.5, 0.4, 0.3), (0.6, 0.7, 0.8, 0.9)


@pytest.mark.parametrize(
    ("call", "scores"), [(2, FALLING), (4, RISING), (6, FALLING), (6, RISING), (8, FALLING), (13, RISING)]
)
def test_a_resumed_run_is_exact_and_does_not_validate_the_start_again(call, scores, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    whole, dying, resumed = (baseline_toy(module=mlp(dropout=0.3), scores=scores) for _ in range(3))
    every = {"checkpoint_every_updates": 1}
    expected = train(whole, settings(**every, log=tmp_path / "whole.jsonl", checkpoints=tmp_path / "whole"))
    crashed(dying, settings(**every, log=tmp_path / "log.jsonl", checkpoints=tmp_path / "run"), call)
    resumed.validations = done = 1 + (call - 1) // 5
    record = train(resumed, settings(**every, log=tmp_path / "log.jsonl", checkpoints=tmp_path / "run", resume=True))
    assert record.resumed_from == call - 1
    assert len(resumed.seen) == 4 - done
    assert (record.losses, record.validations) == (expected.losses, expected.validations)
    assert (record.kept_epoch, record.baseline) == (expected.kept_epoch, BASELINE)
    assert equal(weights_of(resumed), weights_of(whole))
    assert comparable(tmp_path / "log.jsonl") == comparable(tmp_path / "whole.jsonl")


def test_a_resumed_run_that_kept_its_start_falls_back_to_it(tmp_path):
    stopped, resumed = (baseline_toy(scores=(0.6, 0.5, 0.4, 0.3)) for _ in range(2))
    stopped.on_loss = sigint_at(8)
    assert train(stopped, settings(checkpoints=tmp_path)).kept_epoch == 0
    assert equal(weights_of(stopped), stopped.seen[0])
    # Whoever resumes may have trained the module in the meantime.
    with torch.no_grad():
        resumed.module[0].weight.add_(1)
    resumed.validations = 2
    record = train(resumed, settings(checkpoints=tmp_path, resume=True))
    assert record.kept_epoch == 0
    assert equal(weights_of(resumed), stopped.seen[0])


@pytest.fixture(scope="module")
def stopped_at_7(tmp_path_factory):
    """The checkpoint of a run with a baseline that was interrupted in its second epoch."""
    folder = tmp_path_factory.mktemp("baseline")
    train(baseline_toy(on_loss=sigint_at(7)), settings(checkpoints=folder))
    return folder


def changed(**values):
    def change(stored):
        stored["state"]["validations"][0].update(values)

    return pytest.param(change, id=", ".join(f"{name}={value!r}" for name, value in values.items()))


@pytest.mark.parametrize(
    "change",
    [
        changed(update=1),
        changed(update=5),
        changed(epoch=-1, update=-5),
        changed(epoch=False),
        changed(epoch=1),
        changed(epoch=2, update=10),
        changed(score=float("nan")),
        changed(standard_error=float("inf")),
        changed(metrics=[]),
        pytest.param(lambda values: values["state"]["validations"].reverse(), id="out of order"),
        pytest.param(
            lambda values: values["state"]["validations"].insert(0, values["state"]["validations"][0]), id="twice"
        ),
        out_of_range("validations", [None]),
    ],
)
def test_a_state_with_another_epoch_0_is_refused(tmp_path, stopped_at_7, change):
    refuse_changed(baseline_toy(), tmp_path, stopped_at_7, change)
