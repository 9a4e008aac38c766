"""Updates that are not finite: left out and counted, up to a limit."""

import pytest
import torch
from torch import nn
from training_toys import Toy, at, events, mlp, settings

from bothways.errors import TrainingDiverged
from bothways.training.loop import train
from bothways.training.optimizers import NamedOptimizer
from bothways.training.options import AdamW, Lamb


class Poisoned(Toy):
    """Some calls of the loss give what is not a number."""

    bad = (4, 9)

    def loss(self, payload):
        found = super().loss(payload)
        return found * float("nan") if self.loss_calls in self.bad else found


@pytest.mark.parametrize("optimizer", [AdamW(), Lamb()])
def test_updates_that_are_not_finite_leave_no_trace(optimizer, tmp_path):
    toy, log = Poisoned(module=mlp()), tmp_path / "log.jsonl"
    record = train(toy, settings(optimizer=optimizer, skipped_updates=2, log=log))
    assert (record.skipped, record.updates, len(record.losses)) == (2, 15, 13)
    assert all(torch.isfinite(each).all() for each in toy.module.parameters())
    assert [line["update"] for line in events(log) if line["event"] == "skipped"] == [4, 9]
    assert record.to_dict()["skipped"] == 2


@pytest.mark.parametrize("optimizer", [AdamW(), Lamb()])
def test_a_skipped_step_changes_neither_weights_nor_moments(optimizer):
    module = nn.Linear(3, 2)
    taken = NamedOptimizer(module, settings(optimizer=optimizer))
    module(torch.ones(1, 3)).sum().backward()
    taken.step(0.1, torch.tensor(True))
    before = {name: value.clone() for name, value in (taken.state() | dict(module.state_dict())).items()}
    (module(torch.ones(1, 3)).sum() * float("inf")).backward()
    taken.step(0.1, torch.tensor(False))
    after = taken.state() | dict(module.state_dict())
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    module(torch.ones(1, 3)).sum().backward()
    taken.step(0.1)
    assert taken.state()["step/bias"].item() == 2


def test_one_more_than_the_limit_ends_the_run(tmp_path):
    with pytest.raises(TrainingDiverged, match="the loss of update 9 is nan"):
        train(Poisoned(module=mlp()), settings(skipped_updates=1))
    with pytest.raises(TrainingDiverged, match="the loss of update 4 is nan"):
        train(Poisoned(module=mlp()), settings())


def test_a_resumed_run_goes_on_counting(tmp_path):
    whole = train(Poisoned(module=mlp()), settings(skipped_updates=2))

    def interrupt():
        raise KeyboardInterrupt

    options = {"skipped_updates": 2, "checkpoints": tmp_path / "c", "checkpoint_every_updates": 1}
    first = Poisoned(module=mlp(), on_loss=at(7, interrupt))
    assert train(first, settings(**options)).interrupted
    second = Poisoned(module=mlp(), loss_calls=6)
    record = train(second, settings(**options, resume=True))
    assert (record.skipped, record.losses) == (whole.skipped, whole.losses)


def test_a_run_without_skipped_updates_has_none_and_the_same_losses():
    record = train(Toy(module=mlp()), settings(skipped_updates=5))
    assert record.skipped == record.to_dict()["skipped"] == 0
    assert record.losses == train(Toy(module=mlp()), settings()).losses
