"""Runs on several processes: the same course as on one, resumed on any number, ended by one that dies."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from training_toys import Toy, settings
from worker_toys import SPLITS, STOP_AT

from bothways.training import workers as workers_module
from bothways.training.loop import train
from bothways.training.workers import Workers, current_workers, joined, share

SCRIPT = Path(__file__).with_name("worker_toys.py")


@pytest.fixture(scope="module")
def run():
    """A function that runs so many processes; their exit codes, what they said, and what they found."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, SCRIPT], **pipes, text=True, env=environment)

    def run(folder, count, mode="plain"):
        folder.mkdir(exist_ok=True)
        process.stdin.write(json.dumps([str(folder), mode, count]) + "\n")
        process.stdin.flush()
        codes, said = json.loads(process.stdout.readline())
        files = [folder / f"{mode}-{rank}.json" for rank in range(count)]
        return codes, said, [json.loads(each.read_text()) if each.exists() else None for each in files]

    yield run
    process.stdin.close()
    assert process.wait(30) == 0


@pytest.fixture(scope="module")
def alone():
    """The record and the weights of one process."""
    toy = Toy(splits=SPLITS)
    return train(toy, settings()), toy.module.state_dict()


def check_equal(found, alone):
    record, weights = alone
    assert found["losses"] == pytest.approx(record.losses, abs=1e-5)
    assert found["scores"] == pytest.approx([each.score for each in record.validations], abs=1e-5)
    for name, value in weights.items():
        torch.testing.assert_close(torch.tensor(found["weights"][name]), value, atol=1e-5, rtol=0)


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_course_does_not_depend_on_the_number_of_processes(run, tmp_path, alone, count):
    codes, _, found = run(tmp_path / "run", count, "shifted")
    assert codes == [0] * count
    for each in found:
        check_equal(each, alone)
        assert not [name for name in each["threads"] if "gloo" in name]
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines].count("epoch") == 3


@pytest.mark.parametrize("after", [1, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 4))])
def test_a_run_is_resumed_on_another_number_of_processes(run, tmp_path, alone, after):
    codes, _, found = run(tmp_path / "run", 2, "interrupt")
    assert codes == [0, 0]
    assert [each["interrupted"] for each in found] == [True, True]
    done = found[0]["updates"]
    assert found[1]["updates"] == done == STOP_AT // 2
    codes, _, found = run(tmp_path / "run", after, "resume")
    assert codes == [0] * after
    for each in found:
        assert each["resumed_from"] == done
        check_equal(each, alone)


def test_a_resumed_run_of_as_many_processes_has_their_dropout(run, tmp_path):
    _, _, whole = run(tmp_path / "dropout whole", 2)
    run(tmp_path / "dropout", 2, "interrupt")
    _, _, found = run(tmp_path / "dropout", 2, "resume")
    assert found[0]["losses"] == whole[0]["losses"] == whole[1]["losses"]


@pytest.mark.parametrize("name", ["whole", "shard"])
def test_a_process_that_dies_ends_the_run_with_its_reason(run, tmp_path, alone, name):
    begun = time.monotonic()
    codes, said, _ = run(tmp_path / name, 2, "die")
    assert time.monotonic() - begun < 60
    assert codes == [1, 9]
    assert "WorkerLost: another process of the run has ended" in said[0]
    codes, _, found = run(tmp_path / name, 2, "resume")
    assert codes == [0, 0]
    # What was being written is lost with the process.
    assert found[0]["resumed_from"] in (STOP_AT // 2 - 2, STOP_AT // 2 - 1)
    check_equal(found[0], alone)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["whole", "shard"])
def test_a_full_disk_under_any_process_leaves_the_checkpoint_before(run, tmp_path, alone, name):
    codes, said, _ = run(tmp_path / name, 2, "full")
    assert codes == [1, 1]
    for each in said:
        assert f"OutOfDisk: no space left for {tmp_path / name / 'c'} (No space left on device)" in each
    assert [each.name[:11] for each in (tmp_path / name / "c").iterdir()] == ["checkpoint-"]
    codes, _, found = run(tmp_path / name, 2, "resume")
    assert codes == [0, 0]
    assert found[0]["resumed_from"] == STOP_AT // 2
    check_equal(found[0], alone)


@pytest.mark.parametrize("name", ["whole", pytest.param("shard", marks=pytest.mark.slow)])
def test_processes_that_train_different_things_are_refused(run, tmp_path, name):
    codes, said, _ = run(tmp_path / name, 2, "disagree")
    assert codes == [1, 1]
    for each in said:
        assert "process 1 differs from process 0: identity.order_seed is 4, not 3" in each


def test_without_torchrun_there_is_one_process(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined() as workers:
        assert (workers.rank, workers.count) == (0, 1)
        assert current_workers().count == 1
        tensor = torch.ones(2)
        workers.add([tensor])
        assert tensor.tolist() == [1, 1]
        assert workers.gather("value") == ["value"]
    module = nn.Linear(2, 2)
    before = module.weight.clone()
    share(module, Workers())
    assert torch.equal(module.weight, before)


def test_a_lost_connection_is_named():
    said = r"ended \(Connection closed by peer\)\. Look for the cause in its output"
    with pytest.raises(workers_module.WorkerLost, match=said), workers_module.naming_losses():
        raise RuntimeError("Connection closed by peer\nand a long trace")
