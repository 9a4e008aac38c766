"""Trainings on Ray: the weights of ``torchrun``, one voice, one exit code, and runs that survive kills and Ctrl-C."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from command_line import call, fails, names, rows, write_jsonl

from bothways.cli.training import on_ray
from bothways.cli.training.on_ray import Relay, resuming, run_worker, train_on_ray, without_ray
from bothways.cli.training.run import RunOptions
from bothways.errors import PROCESS_ENDED, MissingDependency, WorkerLost

SOURCE = Path(__file__).parents[2] / "src"
ADAPT = ("adapt", "--model", "x", "--data", "y")
TRAIN = ("train", "classification", "--model", "x", "--train", "y")
COMMANDS = {
    "adapt": ADAPT,
    "classification": TRAIN,
    "multitask": ("train", "multitask", "--model", "x", "--task", "a=classification:y"),
    "distill": ("distill", "--teacher", "x", "--data", "y"),
    "pretrain": ("pretrain", "--recipe", "bert", "--tokenizer", "x", "--data", "y"),
}


class Local:
    """The relay in this process, called like an actor."""

    def __init__(self):
        self.relay = Relay()

    def __getattr__(self, name):
        return SimpleNamespace(remote=getattr(self.relay, name))


@pytest.fixture
def relay(monkeypatch):
    """A relay, and a Ray that computes at once; the worker is number 0."""
    pytest.importorskip("ray.train", reason="ray is not installed: pip install 'bothways[ray]'")
    monkeypatch.setattr("ray.get", lambda value: value)
    monkeypatch.setattr("ray.train.get_context", lambda: SimpleNamespace(get_world_rank=lambda: 0))
    monkeypatch.setattr(on_ray, "_LOOK", 0.01)
    return Local()


def followed(relay, fit):
    """Follow a training that a function stands for."""
    return on_ray._followed(SimpleNamespace(get=lambda value: value), relay, SimpleNamespace(fit=fit))


@pytest.mark.parametrize("end", [(), ("--", "--ray")])
@pytest.mark.parametrize("given", [("--ray", "local", "--workers", "2"), ("--ray=local", "--workers=2")])
def test_workers_run_the_command_without_its_ray_options(given, end):
    assert without_ray([*ADAPT, *given, "--seed", "1", *end]) == [*ADAPT, "--seed", "1", *end]
    assert resuming([*ADAPT, *end]) == [*ADAPT, "--resume", *end]


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_no_command_that_trains_starts_processes_within_those_of_torchrun(words, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    fails(2, "drop one of the two", *words, "--output", tmp_path / "run", "--ray", "local")
    monkeypatch.delenv("RANK")
    fails(2, "--workers is for Ray", *words, "--output", tmp_path / "run", "--workers", 2)


def test_standard_input_is_refused(tmp_path):
    fails(2, "give a file", *ADAPT[:-1], "-", "--output", tmp_path / "run", "--ray", "local")


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependency, match=r"bothways\[ray\]"):
        train_on_ray(RunOptions(ray="local"), ADAPT, call)


def test_the_code_and_the_output_are_those_of_the_first_worker(relay, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def main(words):
        assert words == ADAPT
        print("the summary")
        print("a note", file=sys.stderr)
        return 0

    def fit():
        relay.relay.write(1, "stderr", "of another\n")
        run_worker(relay=relay, folder=tmp_path, words=ADAPT, main=main)

    assert followed(relay, fit) == 0
    assert capsys.readouterr() == ("the summary\n", "a note\n")


@pytest.mark.parametrize("other", ["error: no rows\n", "error: out of memory\n"])
def test_an_error_of_several_workers_is_printed_once(relay, capsys, other):
    relay.relay.write(0, "stderr", "error: no rows\n")
    relay.relay.write(1, "stderr", other)
    relay.relay.end(1, 1)
    relay.relay.end(0, 2)
    assert followed(relay, lambda: None) == 2
    assert sorted(capsys.readouterr().err.splitlines(True)) == sorted({"error: no rows\n", other})
    assert relay.relay.begin(0) is None  # Ray may begin again; the workers do not


@pytest.mark.parametrize(
    ("ends", "code"),
    [(lambda: 7, 7), (lambda: print("x", PROCESS_ENDED, file=sys.stderr) or 1, on_ray._LOST), (lambda: 1 / 0, 1)],
    ids=["an error", "another is lost", "a bug"],
)
def test_a_worker_that_fails_ends_the_others(relay, monkeypatch, tmp_path, ends, code):
    monkeypatch.chdir(tmp_path)
    arguments = {"relay": relay, "folder": tmp_path, "words": ADAPT, "main": lambda _: ends()}
    with pytest.raises(RuntimeError, match="ended with exit code"):
        run_worker(**arguments)
    written, codes, begun = relay.relay.take()
    assert (codes, begun) == ({0: code}, 1)
    assert ("ZeroDivisionError" in str(written)) == (code == 1)
    assert PROCESS_ENDED not in str(written)


def test_workers_begin_again_after_a_loss_and_resume(relay, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = []
    arguments = {"relay": relay, "folder": tmp_path, "words": ADAPT, "main": lambda words: found.append(words) or 0}
    relay.relay.begin(0)
    relay.relay.end(0, on_ray._LOST)
    run_worker(**arguments)
    run_worker(**arguments)  # it has finished
    assert found == [[*ADAPT, "--resume"]]
    assert "goes on from the last checkpoint" in str(relay.relay.take())


def test_a_full_cluster_is_waited_for_with_a_note(relay, monkeypatch, capsys):
    monkeypatch.setattr(on_ray, "_WAITING", 0.05)

    def fit():
        time.sleep(0.3)
        relay.relay.begin(0)
        time.sleep(0.1)
        relay.relay.end(0, 0)

    assert followed(relay, fit) == 0
    assert capsys.readouterr().err.count("no process has begun yet: the cluster may be full") == 1


def test_a_full_cluster_is_waited_for_until_ctrl_c(relay, monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(on_ray, "Interrupts", lambda: nullcontext(SimpleNamespace(requested=True, received=2)))
    assert followed(relay, ended.wait) == 130
    ended.set()


def test_what_ray_gives_up_can_be_resumed(relay):
    def fit():
        raise RuntimeError("a traceback\nActorDiedError: the worker died")

    with pytest.raises(WorkerLost, match=r"ActorDiedError: the worker died\. The same command with --resume"):
        followed(relay, fit)


def test_ctrl_c_goes_to_the_workers(relay, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    told = threading.Event()
    monkeypatch.setattr(on_ray, "interrupt", lambda _: told.set())

    def main(_):
        os.kill(os.getpid(), signal.SIGINT)
        return 130 if told.wait(10) else 0

    def fit():
        run_worker(relay=relay, folder=tmp_path, words=ADAPT, main=main)

    assert followed(relay, fit) == 130
    assert relay.relay.begin(0) is None


def started(folder, output, *more):
    """A training of a user on Ray, as a process in the folder."""
    words = ("adapt", "--model", "tiny", "--data", "train.jsonl", "--validation", "validation.jsonl", "--seed", "1")
    words += ("--epochs", "12", "--batch-size", "16", "--device", "cpu", "--output", output)
    return subprocess.Popen(
        [sys.executable, *more[: more.index("adapt")], *words, *more[more.index("adapt") + 1 :]],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"},
    )


RAY = ("-m", "bothways", "adapt", "--ray", "local", "--workers", "2")


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory):
    """A folder with data, and a training by torchrun in it: its weights."""
    pytest.importorskip("ray.train", reason="ray is not installed: pip install 'bothways[ray]'")
    folder = tmp_path_factory.mktemp("ray")
    (folder / "tiny").symlink_to(files / "tiny")
    for seed, (name, count) in enumerate({"train": 400, "validation": 20}.items()):
        write_jsonl(folder / f"{name}.jsonl", rows(count, seed))
    many = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "bothways", "adapt")
    process = started(folder, "plain", *many)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return folder


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def wait_for(process, words):
    """Read standard error until a line begins so."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith(words):
            return
    pytest.fail("".join(lines))


@pytest.mark.slow
def test_ray_trains_the_model_that_torchrun_does(trained):
    before = names(trained)
    process = started(trained, "ray", *RAY)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert out.count("saved in     ray") == 1
    assert err.count("reading the data") == err.count("epoch 12 of 12") == 1
    assert "Train" not in err
    assert weights(trained / "ray") == weights(trained / "plain")
    assert names(trained) == sorted([*before, "ray"])


@pytest.mark.slow
def test_a_worker_that_is_killed_goes_on(trained):
    process = started(trained, "killed", *RAY)
    wait_for(process, "training: epoch 4 ")
    workers = [each for each in psutil.Process(process.pid).children(recursive=True) if "TrainWorker" in each.name()]
    assert workers
    workers[-1].kill()
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "A process was lost: the training goes on from the last checkpoint." in err
    assert "error" not in err
    assert weights(trained / "killed") == weights(trained / "plain")


@pytest.mark.slow
def test_ctrl_c_writes_a_checkpoint_for_resume(trained):
    process = started(trained, "stopped", *RAY)
    wait_for(process, "training: epoch 4 ")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert "--resume to continue" in err
    again = started(trained, "stopped", *RAY, "--resume")
    _, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    assert weights(trained / "stopped") == weights(trained / "plain")
