"""Logging of a run to an experiment tracker."""

import sys
import types
from importlib.machinery import ModuleSpec

import pytest
from training_toys import Toy, settings

from bothways.errors import InvalidInput, MissingDependency
from bothways.training.log import TrainingLog, open_tracker
from bothways.training.options import TrainingOptions, recorded_options
from bothways.training.stages import train_within

SETTINGS = {"epochs": 3, "seed": 0}


class Calls(list):
    def named(self, name):
        return lambda *values, **options: self.append((name, values, options))


@pytest.fixture
def stub(monkeypatch):
    """Put a module in the place of a tracker's package; the list of calls of its functions."""

    def put(name, *functions):
        calls, module = Calls(), types.ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        for function in functions:
            setattr(module, function, calls.named(function))
        monkeypatch.setitem(sys.modules, name, module)
        return calls, module

    return put


def written(name, path=None):
    """Write a log of a few events to a tracker."""
    with TrainingLog(path, tracker=open_tracker(name, SETTINGS)) as log:
        log.write("start", updates=2, settings=SETTINGS)
        log.write("update", epoch=1, update=2, loss=0.5, learning_rate=0.1)
        log.write("epoch", epoch=1, update=2, score=0.9, metrics={"accuracy": 0.9, "nll": None})
        log.write("finished", update=2, kept_epoch=1, seconds=1.0)


LOGGED = [({"train/loss": 0.5, "train/learning_rate": 0.1}, 2), ({"validation/accuracy": 0.9}, 2)]


@pytest.mark.parametrize(
    ("name", "functions", "begin", "logged", "end"),
    [
        (
            "mlflow",
            "start_run log_params log_metrics end_run",
            [("start_run", (), {}), ("log_params", (SETTINGS,), {})],
            "log_metrics",
            "end_run",
        ),
        ("trackio", "init log finish", [("init", (), {"project": "bothways", "config": SETTINGS})], "log", "finish"),
    ],
)
def test_a_tracker_gets_settings_updates_and_epochs(stub, name, functions, begin, logged, end):
    calls, _ = stub(name, *functions.split())
    written(name)
    assert calls == [*begin, *((logged, (metrics,), {"step": step}) for metrics, step in LOGGED), (end, (), {})]


def test_weights_and_biases_get_settings_updates_and_epochs(stub):
    calls, module = stub("wandb")

    def init(config):
        calls.append(("init", config))
        return types.SimpleNamespace(log=calls.named("log"), finish=calls.named("finish"))

    module.init = init
    written("wandb")
    assert calls == [
        ("init", SETTINGS),
        *(("log", (metrics,), {"step": step}) for metrics, step in LOGGED),
        ("finish", (), {}),
    ]


def test_tensorboard_gets_settings_updates_and_epochs(stub, tmp_path):
    calls, _ = stub("tensorboard")
    _, module = stub("torch.utils.tensorboard")
    module.SummaryWriter = lambda: types.SimpleNamespace(
        **{name: calls.named(name) for name in ("add_text", "add_scalar", "close")}
    )
    written("tensorboard", tmp_path / "training.jsonl")
    assert [name for name, *_ in calls] == ["add_text", "add_scalar", "add_scalar", "add_scalar", "close"]
    assert ("add_scalar", ("validation/accuracy", 0.9, 2), {}) in calls
    assert len((tmp_path / "training.jsonl").read_text().splitlines()) == 4


def test_a_tracker_that_is_not_installed_is_refused_with_the_line_that_installs_it(stub, monkeypatch):
    monkeypatch.setattr("bothways.training.options.find_spec", {}.get)
    with pytest.raises(MissingDependency, match=r"logging to wandb needs the package 'wandb'.*: pip install wandb"):
        TrainingOptions(log_to="wandb")
    with pytest.raises(InvalidInput, match=r"`log_to` must be one of .*, got 'visdom'"):
        TrainingOptions(log_to="visdom")


def test_a_training_within_another_is_not_tracked(stub, tmp_path):
    calls, _ = stub("trackio", "init", "log", "finish")
    train_within(Toy(), settings(log_to="trackio", log=tmp_path / "log", checkpoints=tmp_path / "c"), None)
    assert calls == [*tmp_path.iterdir()] == []


def test_the_tracker_is_no_part_of_the_identity_of_a_run(stub):
    stub("trackio")
    assert recorded_options(TrainingOptions(log_to="trackio")) == recorded_options(TrainingOptions())
