"""A pickle is read only where that was allowed, and its code never runs."""

import os
import pickle
import sys
from pathlib import Path

import pytest
import torch
from opening import WEIGHTS, open_and_build, same_weights
from safetensors.torch import load_file

from bothways.checkpoints import open_checkpoint
from bothways.checkpoints.files import read_tensors
from bothways.errors import CorruptCheckpoint, MissingDependency, UnsafeCheckpoint
from tiny_models import write_checkpoint


class Payload:
    """Unpickling it makes a folder."""

    def __init__(self, path, call):
        self.path, self.call = path, call

    def __reduce__(self):
        return self.call, (str(self.path),)


@pytest.fixture
def pickled(folder):
    """The folder with its weights in a pickle only."""
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    return folder


def test_a_pickle_is_refused_unless_it_is_allowed(pickled):
    with pytest.raises(UnsafeCheckpoint, match=r"pytorch_model\.bin, a pickle.*allow_pickle=True"):
        open_checkpoint(pickled)


def test_an_allowed_pickle_of_plain_tensors_equals_safetensors(pickled, tmp_path):
    expected = write_checkpoint(tmp_path / "same")
    same_weights(read_tensors(pickled, allow_pickle=True), expected)
    found = open_and_build(pickled, allow_pickle=True).state_dict()
    same_weights(found, open_and_build(tmp_path / "same").state_dict())


def test_safetensors_are_preferred_to_a_pickle_beside_them(folder):
    (folder / "pytorch_model.bin").write_bytes(b"never looked at")
    open_and_build(folder, allow_pickle=True)


# A call that scanners know, and one that they need not know: the reader has to refuse what the scanner lets through.
@pytest.mark.parametrize("call", [os.mkdir, os.system, eval, print, Path], ids=lambda call: call.__name__)
@pytest.mark.parametrize("form", ["torch", "plain"])
def test_a_pickle_with_code_is_refused_and_its_code_does_not_run(pickled, tmp_path, call, form, capsys):
    ran = tmp_path / "ran"
    argument = {os.system: f"mkdir {ran}", eval: f"__import__('os').mkdir({str(ran)!r})"}.get(call, ran)
    content = {"weight": torch.zeros(2), "payload": Payload(argument, call)}
    if form == "torch":
        torch.save(content, pickled / "pytorch_model.bin")
    else:
        (pickled / "pytorch_model.bin").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(UnsafeCheckpoint):
        open_checkpoint(pickled, allow_pickle=True)
    assert not ran.exists()
    assert capsys.readouterr().out == ""


def test_the_payload_of_these_tests_would_run(tmp_path):
    pickle.loads(pickle.dumps(Payload(tmp_path / "ran", os.mkdir)))
    assert (tmp_path / "ran").is_dir()


@pytest.mark.parametrize("content", [b"", b"no pickle at all", b"PK\x03\x04 no archive either"])
def test_a_broken_pickle_is_refused(pickled, content):
    (pickled / "pytorch_model.bin").write_bytes(content)
    with pytest.raises((CorruptCheckpoint, UnsafeCheckpoint), match=r"pytorch_model\.bin"):
        open_checkpoint(pickled, allow_pickle=True)


def test_a_truncated_pickle_is_refused(pickled):
    content = (pickled / "pytorch_model.bin").read_bytes()
    (pickled / "pytorch_model.bin").write_bytes(content[: len(content) // 2])
    with pytest.raises((CorruptCheckpoint, UnsafeCheckpoint), match=r"pytorch_model\.bin"):
        open_checkpoint(pickled, allow_pickle=True)


@pytest.mark.parametrize("content", [[torch.zeros(2)], {"weight": 3}, torch.zeros(2)])
def test_a_pickle_of_something_else_is_refused(pickled, content):
    torch.save(content, pickled / "pytorch_model.bin")
    with pytest.raises(CorruptCheckpoint, match="mapping from names to tensors"):
        open_checkpoint(pickled, allow_pickle=True)


def test_a_pickle_in_parts_is_never_read(pickled):
    (pickled / "pytorch_model.bin").rename(pickled / "pytorch_model-00001-of-00001.bin")
    (pickled / "pytorch_model.bin.index.json").write_text("{}")
    with pytest.raises(UnsafeCheckpoint, match="in several parts are never read"):
        open_checkpoint(pickled, allow_pickle=True)


def test_without_a_scanner_no_pickle_is_read(pickled, monkeypatch):
    monkeypatch.setitem(sys.modules, "picklescan.scanner", None)
    with pytest.raises(MissingDependency, match=r"bothways\[unsafe\]"):
        open_checkpoint(pickled, allow_pickle=True)
