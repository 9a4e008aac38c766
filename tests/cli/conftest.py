"""A tiny model, a tiny run trained from it, and an index, made once; and signals that come during an update."""

import itertools
import os

import pytest
from command_line import call, rows, write_jsonl

import tiny_models
from bothways.training import optimizers


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """A folder with a model, tiny/, and data: train.jsonl.gz, validation.jsonl.gz, test.jsonl.gz, few.jsonl.gz."""
    folder = tmp_path_factory.mktemp("cli")
    tiny_models.write_checkpoint(folder / "tiny")
    for seed, (name, count) in enumerate({"train": 200, "validation": 20, "test": 30, "few": 24}.items()):
        write_jsonl(folder / f"{name}.jsonl.gz", rows(count, seed))
    return folder


@pytest.fixture(scope="session")
def train_words(files):
    """The words of a training command, without its output."""
    return [
        *("train", "classification", "--model", files / "tiny"),
        *("--train", files / "train.jsonl.gz", "--validation", files / "validation.jsonl.gz"),
        *("--text", "text", "--label", "label", "--seed", 1),
        *("--epochs", 8, "--learning-rate", 0.005, "--batch-size", 16, "--device", "cpu"),
    ]


@pytest.fixture(scope="session")
def trained(files, train_words):
    """The outcome of the training of the session's run, which is ``files / "runs" / "x"``."""
    return call(*train_words, "--output", files / "runs" / "x")


@pytest.fixture(scope="session")
def run(files, trained):
    """The folder of a trained run."""
    assert trained.code == 0, trained.err
    return files / "runs" / "x"


@pytest.fixture(scope="session")
def index(files):
    """The folder of a search index of the test texts."""
    folder = files / "index"
    data = files / "test.jsonl.gz"
    built = call(
        "search", "build", "--model", files / "tiny", "--data", data, "--text", "text", "--id", "id", "--output", folder
    )
    assert built.code == 0, built.err
    return folder


@pytest.fixture
def in_update(monkeypatch):
    """Do something once, during an update with this number, or send this process a signal."""

    def arrange(number, action):
        calls, usual = itertools.count(1), optimizers.Stepper.step

        def acting(self, *arguments):
            if next(calls) == number:
                action() if callable(action) else os.kill(os.getpid(), action)
            return usual(self, *arguments)

        monkeypatch.setattr(optimizers.Stepper, "step", acting)

    return arrange
