"""Ctrl-C never loses the best weights."""

import os
import signal
import threading

import pytest
import torch
from training_toys import Toy, at, equal, events, mlp, settings, sigint_at, weights_of

from bothways import interrupts
from bothways.training import loop
from bothways.training.checkpoints import CheckpointFolder
from bothways.training.loop import train
from bothways.training.workers import copy_weights


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_the_update_finish_and_the_best_weights_are_restored(tmp_path, number):
    handler = signal.getsignal(number)
    toy = Toy(scores=[0.9, 0.1, 0.1], on_loss=sigint_at(12, number))
    record = train(toy, settings(log=tmp_path / "log.jsonl"))
    assert record.interrupted
    assert record.signal == number
    assert "signal" not in record.to_dict()
    assert record.updates == len(record.losses) == 12
    assert record.kept_epoch == 1
    assert equal(weights_of(toy), toy.seen[0])
    last = events(tmp_path / "log.jsonl")[-1]
    assert (last["event"], last["update"], last["kept_epoch"]) == ("interrupted", 12, 1)
    assert signal.getsignal(number) is handler


def test_a_training_in_another_thread_can_be_interrupted(monkeypatch):
    monkeypatch.setattr(interrupts, "_told", [])
    toy = Toy(scores=[0.9, 0.1, 0.1], on_loss=at(12, lambda: interrupts.interrupt(signal.SIGTERM)))
    found = []
    thread = threading.Thread(target=lambda: found.append(train(toy, settings())))
    thread.start()
    thread.join()
    (record,) = found
    assert (record.interrupted, record.signal, record.updates) == (True, signal.SIGTERM, 12)


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_does_not_wait_for_the_update(second):
    toy = Toy(splits=(4, 4), on_loss=lambda call: [sigint_at(5)(call), sigint_at(6, second)(call)])
    record = train(toy, settings())
    assert record.interrupted
    assert record.updates == len(record.losses) == 2
    assert toy.loss_calls == 6


@pytest.mark.parametrize("signals", [1, 2])
def test_weights_are_never_kept_by_half(signals, monkeypatch):
    copied = loop.copy_weights

    def interrupted(module, over=None):
        if over is None:  # the start
            return copied(module)
        half = len(over) // 2
        for each in list(over.values())[:half]:
            each.fill_(7.0)
        for _ in range(signals):
            os.kill(os.getpid(), signal.SIGINT)
        return copied(module, over)

    monkeypatch.setattr(loop, "copy_weights", interrupted)
    toy = Toy(scores=[0.9, 0.1, 0.1])
    record = train(toy, settings())
    assert (record.interrupted, record.kept_epoch, record.epochs) == (True, 1, 1)
    assert equal(weights_of(toy), toy.seen[0])


def test_the_copy_of_the_weights_to_keep_takes_the_place_of_the_one_before():
    module = mlp()
    first = copy_weights(module)
    memory = {name: value.data_ptr() for name, value in first.items()}
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)
    second = copy_weights(module, over=first)
    assert {name: value.data_ptr() for name, value in second.items()} == memory
    assert all(torch.equal(second[name], value) for name, value in module.state_dict().items())


def test_a_keyboard_interrupt_out_of_the_objective_ends_the_run_with_the_best_weights():
    def interrupt():
        raise KeyboardInterrupt

    toy = Toy(scores=[0.9, 0.1, 0.1], on_loss=at(13, interrupt))
    record = train(toy, settings())
    assert record.interrupted
    assert record.updates == len(record.losses) == 12
    assert equal(weights_of(toy), toy.seen[0])


def test_interrupted_before_any_validation_the_last_weights_stay():
    toy = Toy(on_loss=sigint_at(3))
    start = weights_of(toy)
    record = train(toy, settings())
    assert (record.interrupted, record.kept_epoch, record.updates) == (True, None, 3)
    assert not equal(weights_of(toy), start)


@pytest.mark.parametrize("where", ["the weights are copied", "the checkpoint is written"])
def test_sigint_after_the_last_update_is_not_lost(tmp_path, monkeypatch, where):
    home, name = (loop, "copy_weights") if where == "the weights are copied" else (CheckpointFolder, "save")
    usual, toy = getattr(home, name), Toy()

    def pressed(*arguments):
        if toy.validations == 3 and not pressing:
            pressing.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        return usual(*arguments)

    pressing = []
    with monkeypatch.context() as patch:
        patch.setattr(home, name, pressed)
        record = train(toy, settings(log=tmp_path / "log.jsonl", checkpoints=tmp_path / "run"))
    assert pressing
    assert (record.interrupted, record.epochs, record.kept_epoch) == (True, 3, 3)
    assert events(tmp_path / "log.jsonl")[-1]["event"] == "interrupted"
    resumed = Toy()
    record = train(resumed, settings(checkpoints=tmp_path / "run", resume=True))
    assert (record.interrupted, record.resumed_from) == (False, 15)
    assert equal(weights_of(resumed), weights_of(toy))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_validation_acts_at_once(number):
    toy = Toy(on_validate=sigint_at(2, number))
    record = train(toy, settings())
    assert record.interrupted
    assert len(record.validations) == 1
    assert len(toy.seen) == 1  # the second validation got no further than the signal
    assert equal(weights_of(toy), toy.seen[0])


@pytest.mark.parametrize("where", ["an update", "the last update of an epoch", "validation"])
def test_an_interrupted_run_resumes_to_the_same_bits(tmp_path, where):
    whole, stopped, resumed = (Toy(mlp(dropout=0.3), on_validate=lambda _: torch.rand(1)) for _ in range(3))
    expected = train(whole, settings())
    if where == "validation":
        stopped.on_validate = lambda call: [torch.rand(1), sigint_at(2)(call)]
    else:
        stopped.on_loss = sigint_at(7 if where == "an update" else 10)
    assert train(stopped, settings(checkpoints=tmp_path)).interrupted
    record = train(resumed, settings(checkpoints=tmp_path, resume=True))
    assert record.resumed_from == (7 if where == "an update" else 10)
    assert record.losses == expected.losses
    assert record.validations == expected.validations
    assert equal(weights_of(resumed), weights_of(whole))


def test_outside_the_main_thread_signals_are_left_alone():
    handler, records = signal.getsignal(signal.SIGINT), []
    thread = threading.Thread(target=lambda: records.append(train(Toy(), settings(epochs=1))))
    thread.start()
    thread.join()
    assert records[0].updates == 5
    assert records[0].signal is None
    assert signal.getsignal(signal.SIGINT) is handler
