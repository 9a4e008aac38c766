"""A run that was killed and resumed is the run that was not."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from training_toys import (
    WIDTH,
    Toy,
    Unvalidated,
    crashed,
    equal,
    events,
    mlp,
    run_settings,
    settings,
    sigint_at,
    weights_of,
)

from bothways.checkpoints.files import sha256_of
from bothways.errors import (
    CorruptCheckpoint,
    IncompatibleWeights,
    InvalidInput,
    OutOfDisk,
    OutputExists,
    TrainingDiverged,
)
from bothways.products import ONEDNN, TORCH, matrix_product
from bothways.training import checkpoints
from bothways.training.loop import train
from bothways.training.options import CosineDecay, LinearDecay, resolved

pytestmark = pytest.mark.usefixtures("one_thread")

FILES = {"checksums.json", "state.json", "weights.safetensors", "optimizer.safetensors", "kept.safetensors"}
KILL_POINTS = {
    # point: updates done at the newest complete checkpoint
    "before the first checkpoint": None,
    "in an update": 6,
    "in validation": 9,
    "in the middle of a checkpoint": 5,
    "before the older checkpoint is removed": 9,
}


def comparable(path):
    """The events of a log without what is measured by the clock."""
    clock = {"seconds", "tokens_per_second"}
    return [{k: v for k, v in each.items() if k not in clock} for each in events(path) if each["event"] != "resumed"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    toy = Toy(mlp(dropout=0.3))
    record = train(toy, run_settings(log=folder / "log.jsonl", checkpoints=folder / "checkpoints"))
    return record, weights_of(toy), comparable(folder / "log.jsonl")


@pytest.fixture(scope="module")
def stopped_at_12(tmp_path_factory):
    """The checkpoint of a run that was interrupted after its twelfth update of 15."""
    folder = tmp_path_factory.mktemp("stopped")
    train(Toy(on_loss=sigint_at(12)), settings(checkpoints=folder))
    return folder


def stored_state(folder, stopped):
    """A copy of a run's folder, and its checkpoint."""
    shutil.copytree(stopped, folder / "run")
    return folder / "run", next((folder / "run").glob("checkpoint-*"))


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A folder for each kill point, left by a process that got SIGKILL there."""
    script, folder = Path(__file__).with_name("training_toys.py"), tmp_path_factory.mktemp("killed")
    command = [sys.executable, str(script), str(folder), *KILL_POINTS]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=True, env=environment)
    assert finished.stdout.split() == [str(-signal.SIGKILL.value)] * len(KILL_POINTS)
    return {point: folder / point for point in KILL_POINTS}


@pytest.mark.parametrize("point", KILL_POINTS)
def test_killed_by_sigkill_and_resumed_it_gives_the_same_bits(point, killed, uninterrupted):
    record, weights, lines = uninterrupted
    checkpoints = killed[point] / "checkpoints"
    toy = Toy(mlp(dropout=0.3))
    resumed = train(toy, run_settings(log=killed[point] / "log.jsonl", checkpoints=checkpoints, resume=True))
    assert resumed.resumed_from == KILL_POINTS[point]
    assert resumed.losses == record.losses
    assert resumed.validations == record.validations
    assert (resumed.updates, resumed.tokens, resumed.kept_epoch) == (record.updates, record.tokens, record.kept_epoch)
    assert equal(weights_of(toy), weights)
    assert comparable(killed[point] / "log.jsonl") == lines
    assert len(list(checkpoints.iterdir())) == 1  # no leftovers of the killed process either


def every_update():
    """A toy whose runs write a checkpoint after every update."""
    return Toy(mlp(dropout=0.3), splits=(5, 3), scores=[0.3, 0.2, 0.1])


EVERY = settings(checkpoint_every_updates=1, schedule=CosineDecay())


@pytest.fixture(scope="module")
def undisturbed():
    toy = every_update()
    return train(toy, EVERY), weights_of(toy)


@pytest.mark.parametrize("call", range(2, 16))
def test_resumes_exactly_from_every_update(call, tmp_path, monkeypatch, undisturbed):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # slow, and nothing loses power here
    expected, weights = undisturbed
    resumed = every_update()
    crashed(every_update(), replace(EVERY, checkpoints=tmp_path), 2 * call)
    resumed.validations = (call - 1) // 5
    record = train(resumed, replace(EVERY, checkpoints=tmp_path, resume=True))
    assert record.resumed_from == call - 1
    assert (record.losses, record.validations) == (expected.losses, expected.validations)
    assert equal(weights_of(resumed), weights)


def test_resuming_twice_and_resuming_a_finished_run_change_nothing(tmp_path, uninterrupted):
    record, weights, _ = uninterrupted
    for call in (8, 6):
        crashed(Toy(mlp(dropout=0.3)), run_settings(checkpoints=tmp_path, resume=True), call)
    for resumed_from in (10, 15):
        toy = Toy(mlp(dropout=0.3))
        again = train(toy, run_settings(checkpoints=tmp_path, resume=True))
        assert again.resumed_from == resumed_from
        assert again.losses == record.losses
        assert equal(weights_of(toy), weights)
    assert toy.loss_calls == 0


def test_a_run_that_stopped_early_is_not_taken_up_again(tmp_path):
    patient = settings(patience=1)
    toy = Toy(scores=[0.9, 0.1])
    train(toy, replace(patient, checkpoints=tmp_path))
    again = Toy(scores=[])
    record = train(again, replace(patient, checkpoints=tmp_path, resume=True))
    assert record.stopped_early
    assert again.loss_calls == 0
    assert equal(weights_of(again), toy.seen[0])


def test_resuming_under_other_settings_names_each_difference(tmp_path):
    train(Toy(), settings(checkpoints=tmp_path))
    other = settings(learning_rate=0.02, schedule=LinearDecay(floor=0.1))
    with pytest.raises(InvalidInput) as caught:
        train(Toy(), replace(other, checkpoints=tmp_path, resume=True))
    assert "settings.learning_rate was 0.01 and is now 0.02" in str(caught.value)
    assert "settings.schedule.floor was 0.0 and is now 0.1" in str(caught.value)
    assert "epochs" not in str(caught.value)


def test_resuming_with_other_arithmetic_is_refused(tmp_path, monkeypatch):
    number, ours = torch.get_num_threads(), matrix_product()
    train(Toy(), settings(checkpoints=tmp_path))
    try:
        torch.set_num_threads(number + 1)
        with pytest.raises(InvalidInput, match=f"threads was {number} and is now {number + 1}"):
            train(Toy(), settings(checkpoints=tmp_path, resume=True))
    finally:
        torch.set_num_threads(number)
    other = TORCH if ours == ONEDNN else ONEDNN
    monkeypatch.setattr(checkpoints, "matrix_product", lambda: other)
    with pytest.raises(InvalidInput, match=f"matrix_product was '{ours.library}' and is now '{other.library}'"):
        train(Toy(), settings(checkpoints=tmp_path, resume=True))


def test_resuming_on_other_data_or_another_model_is_refused(tmp_path):
    train(Toy(), settings(checkpoints=tmp_path))
    with pytest.raises(InvalidInput, match=r"identity\.order_seed was 3 and is now 4"):
        train(Toy(order_seed=4), settings(checkpoints=tmp_path, resume=True))
    with pytest.raises(InvalidInput, match=r"identity\.updates_per_epoch was 5 and is now 10"):
        train(Toy(splits=(4,)), settings(checkpoints=tmp_path, resume=True))
    with pytest.raises(IncompatibleWeights, match="weight"):
        train(Toy(nn.Linear(6, 4)), settings(checkpoints=tmp_path, resume=True))


def test_another_origin_is_refused_and_an_earlier_run_is_not_overwritten(tmp_path):
    train(Toy(), settings(epochs=1, checkpoints=tmp_path), origin={"model": "one"})
    with pytest.raises(OutputExists, match="checkpoints of an earlier run"):
        train(Toy(), settings(epochs=1, checkpoints=tmp_path))
    with pytest.raises(InvalidInput, match=r"identity\.model was 'one' and is now 'two'"):
        train(Toy(), settings(epochs=1, checkpoints=tmp_path, resume=True), origin={"model": "two"})
    assert train(Toy(), settings(epochs=1, checkpoints=tmp_path, resume=True), origin={"model": "one"}).epochs == 1


@pytest.mark.parametrize(("update", "kept"), [(3, None), (8, 1), (13, 2)])
def test_a_resumed_run_that_diverges_falls_back_to_what_was_kept_before_the_checkpoint(tmp_path, update, kept):
    reference, stopped, resumed = Toy(scores=[1.0, 2.0, 3.0]), Unvalidated(), Unvalidated()
    start = weights_of(resumed)
    train(reference, settings())
    stopped.on_loss = sigint_at(update)
    assert train(stopped, settings(checkpoints=tmp_path)).interrupted
    resumed.points.fill_(float("nan"))
    with pytest.raises(TrainingDiverged) as caught:
        train(resumed, settings(checkpoints=tmp_path, resume=True))
    assert caught.value.kept_epoch == kept
    assert equal(weights_of(resumed), start if kept is None else reference.seen[kept - 1])


def test_a_full_disk_leaves_the_checkpoint_before_and_the_best_weights(tmp_path, monkeypatch, uninterrupted):
    real, calls = os.fsync, []

    def full(handle):
        calls.append(handle)
        if len(calls) > 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    toy = Toy(mlp(dropout=0.3))
    with pytest.raises(OutOfDisk):
        train(toy, run_settings(checkpoints=tmp_path))
    assert equal(weights_of(toy), toy.seen[0])
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.undo()
    record = train(Toy(mlp(dropout=0.3)), run_settings(checkpoints=tmp_path, resume=True))
    assert record.resumed_from == 5
    assert record.losses == uninterrupted[0].losses


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs the device that is always full")
def test_a_full_disk_under_the_log_is_reported():
    with pytest.raises(OutOfDisk, match="training log"):
        train(Toy(), settings(log=Path("/dev/full")))


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize("damage", ["missing", "truncated", "a bit flipped", "empty"])
def test_a_damaged_checkpoint_is_reported(tmp_path, stopped_at_12, name, damage):
    run, folder = stored_state(tmp_path, stopped_at_12)
    path = folder / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # in a tensor's data, a number of the state, a checksum
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"truncated": content[:-50], "a bit flipped": content, "empty": b""}[damage])
    with pytest.raises(CorruptCheckpoint, match=r"checkpoint-.* Remove the checkpoint folder and train again"):
        train(Toy(), settings(checkpoints=run, resume=True))


def rewritten(folder, change):
    """Change the JSON of the state of a checkpoint, under a checksum that fits."""
    path, sums = folder / "state.json", folder / "checksums.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    sums.write_text(json.dumps({**json.loads(sums.read_text()), "state.json": sha256_of(path)}))


def refuse_changed(toy, folder, stopped, change):
    """Resume a toy from a changed copy of a stopped run, which is refused and leaves the weights."""
    run, checkpoint = stored_state(folder, stopped)
    rewritten(checkpoint, change)
    before = weights_of(toy)
    with pytest.raises(CorruptCheckpoint, match="Remove the checkpoint folder and train again"):
        train(toy, settings(checkpoints=run, resume=True))
    assert equal(weights_of(toy), before)


def out_of_range(name, value, inside="state"):
    return pytest.param(lambda values: values[inside].update({name: value}), id=f"{name}={value!r:.20}")


@pytest.mark.parametrize(
    "change",
    [
        *(out_of_range("epoch", value) for value in (-1, 0, 1, 3, 4, 10**30, 1.0, True, "2", None)),
        *(out_of_range("update_in_epoch", value) for value in (-2, 1, 6, 2.0)),
        *(out_of_range("updates", value) for value in (-1, 11, 13, 10**6)),
        *(out_of_range("tokens", value) for value in (-1, 1.5, None)),
        *(out_of_range("seconds", value) for value in (-1.0, float("nan"), float("inf"), "1")),
        *(out_of_range("log_lines", value) for value in (-1, 0.5)),
        *(out_of_range("losses", value) for value in ([], [0.1], [float("nan")] * 12, ["a"] * 12, 3, None)),
        *(out_of_range("validations", value) for value in (None, [None], [{}], {"a": 1})),
        *(
            pytest.param(lambda values, n=n, v=v: values["state"]["validations"][1].update({n: v}), id=f"{n} {v}")
            for n, v in {"epoch": 7, "update": 3, "score": float("nan"), "standard_error": -1.0, "metrics": 3}.items()
        ),
        pytest.param(lambda values: values["state"]["validations"].reverse(), id="out of order"),
        *(out_of_range("torch_cpu", value, "random") for value in ("", "00", "zz", 3)),
        *(out_of_range("python", value, "random") for value in ([3, [1], None], [3, [2**40] * 625, None], 1)),
        pytest.param(lambda values: values["random"]["numpy"]["state"].update(pos=10**6), id="place of numpy"),
        pytest.param(lambda values: values["random"]["numpy"]["state"].update(key=[1]), id="words of numpy"),
        pytest.param(lambda values: values["random"]["numpy"].update(bit_generator="PCG64"), id="another generator"),
        pytest.param(lambda values: values.update(conditions=[1]), id="conditions"),
        pytest.param(lambda values: values.pop("state"), id="no state"),
        pytest.param(lambda values: values.update(format=3), id="an older format"),
        pytest.param(lambda values: values.update(format=99), id="a later format"),
    ],
)
def test_a_state_that_no_run_comes_to_is_refused(tmp_path, stopped_at_12, change):
    refuse_changed(Toy(), tmp_path, stopped_at_12, change)


@pytest.mark.parametrize("step", [-1.0, 13.0, 2.5, float("nan")])
def test_a_step_of_the_optimizer_that_no_run_comes_to_is_refused(tmp_path, stopped_at_12, step):
    run, folder = stored_state(tmp_path, stopped_at_12)
    state = load_file(folder / "optimizer.safetensors")
    for change in ({"step/0.bias": torch.tensor(step)}, {"exp_avg/0.bias": None}):
        kept = {name: value for name, value in {**state, **change}.items() if value is not None}
        save_file(kept, folder / "optimizer.safetensors")
        sums = json.loads((folder / "checksums.json").read_text())
        sums["optimizer.safetensors"] = sha256_of(folder / "optimizer.safetensors")
        (folder / "checksums.json").write_text(json.dumps(sums))
        with pytest.raises(CorruptCheckpoint, match="the optimizer state of a parameter"):
            train(Toy(), settings(checkpoints=run, resume=True))


def tied():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.2), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    module[2].weight = module[0].weight
    return module


@pytest.mark.parametrize("make", [lambda: Unvalidated(mlp(dropout=0.3)), lambda: Toy(tied())], ids=["alone", "tied"])
def test_a_run_without_validation_or_with_tied_weights_and_buffers_resumes_exactly(make, tmp_path):
    whole, dying, resumed = (make() for _ in range(3))
    expected = train(whole, settings())
    crashed(dying, settings(checkpoints=tmp_path), 12)
    assert train(resumed, settings(checkpoints=tmp_path, resume=True)).losses == expected.losses
    assert equal(weights_of(resumed), weights_of(whole))
    names = [[name for name, _ in each.module.named_parameters()] for each in (resumed, whole)]  # a tied one once
    assert names[0] == names[1]


def test_only_json_and_safetensors_are_written(tmp_path):
    train(Toy(), settings(epochs=2, checkpoints=tmp_path))
    (folder,) = tmp_path.iterdir()
    assert {path.name for path in folder.iterdir()} == FILES


def test_a_run_of_so_many_updates_ends_within_an_epoch_and_resumes_exactly(tmp_path):
    options = resolved(settings(epochs=None, updates=13), WIDTH, torch.device("cpu"), updates_per_epoch=5)
    whole = Toy(mlp(dropout=0.3))
    record = train(whole, options)
    assert (record.updates, record.epochs, len(record.losses)) == (13, 3, 13)
    assert [each.update for each in record.validations] == [5, 10, 13]
    for call in (3, 12):
        folder = tmp_path / str(call)
        kept = replace(options, checkpoints=folder, checkpoint_every_updates=1)
        crashed(Toy(mlp(dropout=0.3)), kept, call)
        again = Toy(mlp(dropout=0.3))
        resumed = train(again, replace(kept, resume=True))
        assert resumed.losses == record.losses
        assert equal(weights_of(again), weights_of(whole))
        assert train(Toy(mlp(dropout=0.3)), replace(kept, resume=True)).losses == record.losses
    with pytest.raises(InvalidInput, match=r"settings\.updates was 13 and is now 14"):
        train(Toy(mlp()), replace(kept, resume=True, updates=14))
