"""Trainings under ``torchrun``: the same losses as of one process, one folder, one voice."""

import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from command_line import call, names, ok, read_jsonl, rows, short_training, write_jsonl

from classifier_cases import without_dropout

TEXTS = [f"the cat sat on the mat number {number}. and saw {number * 7} birds." for number in range(60)]


def torchrun(count, *words):
    """Run a command by torchrun on so many processes, or in this one."""
    if count == 1:
        done = call(*words)
        return subprocess.CompletedProcess(words, done.code, done.out, done.err)
    many = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *many, "-m", "bothways", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def losses_of(folder):
    lines = read_jsonl(folder / "training.jsonl")
    return [line["score"] for line in lines if line["event"] == "epoch"]


def test_a_process_that_is_not_the_first_writes_and_says_nothing(files, tmp_path, monkeypatch):
    monkeypatch.setattr("bothways.training.workers.joined", lambda: nullcontext(SimpleNamespace(rank=1)))
    outcome = call(*short_training(files, tmp_path / "run", "--no-checkpoints"))
    assert (outcome.code, outcome.out, outcome.err, names(tmp_path)) == (0, "", "", [])


@pytest.mark.slow
def test_pre_training_by_torchrun_equals_that_of_one_process(tmp_path):
    (tmp_path / "texts.txt").write_text("\n\n".join(TEXTS))
    data = ("--data", tmp_path / "texts.txt")
    ok("tokenizer", "train", "--vocabulary", 200, *data, "--output", tmp_path / "tok")
    found = []
    for count in (1, 2):
        # ModernBERT has no dropout, which each process would draw for itself.
        output = tmp_path / f"run {count}"
        small = ("--updates", 4, "--batch-size", 4, "--length", 24, "--device", "cpu", "--output", output)
        run = torchrun(count, "pretrain", "--recipe", "modernbert", "--tokenizer", tmp_path / "tok", *data, *small)
        assert run.returncode == 0, run.stderr
        assert run.stdout.count("trained      4 updates") == 1
        assert run.stderr.count("StableAdamW") == run.stderr.count("documents are in") == 1  # said by one process
        assert sorted(each.name for each in tmp_path.glob("run*")) == [
            name for number in range(1, count + 1) for name in (f"run {number}", f"run {number}.shards")
        ]
        found.append(losses_of(output))
    assert found[1] == pytest.approx(found[0], abs=1e-5)


@pytest.fixture
def data(files, tmp_path):
    """Rows to train on and to validate on, and a model without dropout, which each process would draw for itself."""
    train, test = (write_jsonl(tmp_path / f"{name}.jsonl", rows(count, 3)) for name, count in (("a", 60), ("b", 20)))
    return train, test, without_dropout(shutil.copytree(files / "tiny", tmp_path / "model"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["train", "distill a task", "distill an encoder", "adapt"])
def test_other_trainings_go_through_the_same_door(data, tmp_path, kind):
    train, test, model = data
    supervised = ("train", "classification", "--model", model, "--train", train, "--validation", test)
    short, teacher = ("--data", train, "--batch-size", 8), tmp_path / "classifier"
    if kind == "distill a task":
        ok(*supervised, "--epochs", 1, "--device", "cpu", "--output", teacher)
    words = {
        "train": (*supervised, "--epochs", 2),
        "distill a task": ("distill", "--updates", 12, *short, "--validation", test, "--teacher", teacher),
        "distill an encoder": ("distill", "--updates", 12, *short, "--teacher", model),
        "adapt": ("adapt", "--model", model, "--validation", test, "--epochs", 2, *short),
    }[kind]
    found, sharded = [], [(2, ("--shard",)), (4, ("--shard",))] * (kind == "train")
    for count, more in ((1, ()), (2, ()), *sharded):
        output = tmp_path / f"run {count} {len(more)}"
        run = torchrun(count, *words, "--device", "cpu", "--quiet", "--output", output, *more)
        assert run.returncode == 0, run.stderr
        assert run.stdout.count("saved in") == 1
        found.append(losses_of(output))
    assert len(found[0]) > 1
    for scores in found[1:]:
        assert scores == pytest.approx(found[0], abs=1e-5)
    if kind == "train":
        again = torchrun(2, *words, "--output", tmp_path / "run 2 0")
        assert (again.returncode != 0, "already exists" in again.stderr) == (True, True)
