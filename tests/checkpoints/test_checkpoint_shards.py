"""Weights in several files equal those in one, and never lead out of their folder."""

import json

import pytest
import torch
from opening import QUERY, WEIGHTS, open_and_build, same_weights
from safetensors.torch import load_file, save_file

from bothways.checkpoints import load, open_checkpoint
from bothways.checkpoints.files import read_tensors
from bothways.errors import BothwaysError, CorruptCheckpoint
from tiny_models import write_checkpoint


@pytest.fixture
def shards(folder):
    """The folder with its weights in two shards, and their index for tests to change."""
    tensors = load_file(folder / WEIGHTS)
    names = sorted(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, inside in halves.items():
        save_file({name: tensors[name] for name in inside}, folder / shard)
    (folder / WEIGHTS).unlink()
    places = {name: shard for shard, inside in halves.items() for name in inside}
    write_index(folder, places)
    return folder, places


def write_index(folder, places):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def test_shards_equal_the_whole_file(shards, tmp_path):
    expected = write_checkpoint(tmp_path / "same")
    same_weights(read_tensors(shards[0]), expected)
    same_weights(open_and_build(shards[0]).state_dict(), open_and_build(tmp_path / "same").state_dict())


@pytest.mark.parametrize("escape", ["../outside.safetensors", "sub/../../outside.safetensors", "absolute", "..", ""])
def test_a_shard_name_that_leads_out_of_the_folder_is_refused(shards, tmp_path, escape):
    folder, places = shards
    outside = tmp_path / "outside.safetensors"
    save_file({QUERY: torch.zeros(24, 24)}, outside)
    (folder / "sub").mkdir()
    name = str(outside) if escape == "absolute" else escape
    write_index(folder, places | {QUERY: name})
    with pytest.raises(CorruptCheckpoint, match="names the shard"):
        open_checkpoint(folder)


@pytest.mark.parametrize("kept", [None, -8], ids=["missing", "truncated"])
def test_a_missing_or_truncated_shard_is_named(shards, kept):
    path = shards[0] / "b.safetensors"
    content = path.read_bytes()
    path.unlink()
    if kept:
        path.write_bytes(content[:kept])
    with pytest.raises(CorruptCheckpoint, match=r"b\.safetensors"):
        open_checkpoint(shards[0])


def test_a_tensor_that_no_shard_holds_is_named(shards):
    folder, places = shards
    write_index(folder, places | {"promised.weight": "a.safetensors"})
    with pytest.raises(CorruptCheckpoint, match=r"promised\.weight"):
        open_checkpoint(folder)


@pytest.mark.parametrize("places", [None, [], {"name": 3}])
def test_an_index_in_another_form_is_refused(shards, places):
    write_index(shards[0], places)
    with pytest.raises(CorruptCheckpoint, match="weight_map"):
        open_checkpoint(shards[0])


def test_every_refusal_can_be_caught_by_the_root_of_the_tree(folder):
    (folder / WEIGHTS).write_bytes(b"")
    with pytest.raises(BothwaysError):
        load(folder)
