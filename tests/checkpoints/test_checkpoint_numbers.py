"""Weights that are not finite floating point numbers are refused by name, and sizes that no tensor has, before use."""

import json

import pytest
import torch
from opening import QUERY, WEIGHTS, open_and_build, rewrite

from bothways.checkpoints import load, open_checkpoint
from bothways.errors import CorruptCheckpoint, IncompatibleWeights, InvalidInput
from bothways.families import FAMILIES
from tiny_models import TINY, edit_config, write_checkpoint, write_tokenizer

TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize(
    ("kind", "number", "name"),
    [
        *((kind, number, QUERY) for kind in TYPES for number in (float("nan"), float("inf"), float("-inf"))),
        *((torch.float32, float("nan"), f"embeddings.{each}") for each in ("word_embeddings.weight", "LayerNorm.bias")),
    ],
)
def test_a_weight_that_is_not_finite_is_refused_by_name(folder, kind, number, name):
    def spoil(tensors):
        tensors.update({each: value.to(kind) for each, value in tensors.items()})
        tensors[name].view(-1)[-1] = number

    rewrite(folder, spoil)
    with pytest.raises(CorruptCheckpoint, match=rf"finite numbers in bert\.{name}, but one is infinite or NaN"):
        open_and_build(folder)


@pytest.mark.parametrize("kind", TYPES)
def test_the_largest_numbers_are_finite_though_their_sum_is_not(folder, kind):
    def enlarge(tensors):
        tensors.update({each: value.to(kind) for each, value in tensors.items()})
        tensors[QUERY].fill_(torch.finfo(kind).max)

    rewrite(folder, enlarge)
    assert open_and_build(folder).layers[1].attention.qkv.weight.max() == torch.finfo(kind).max


def test_weights_that_a_precision_has_no_room_for_are_refused(folder):
    write_tokenizer(folder, "bert")
    rewrite(folder, lambda tensors: tensors[QUERY].fill_(70_000.0))
    with pytest.raises(InvalidInput, match=r"layers\.1\.attention\.qkv\.weight has weights beyond 65504.*bfloat16"):
        load(folder, device="cpu", dtype="float16")
    assert load(folder, device="cpu", dtype="bfloat16").encoder.layers[1].attention.qkv.weight.isfinite().all()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("num_hidden_layers", value) for value in (62, 999, 10**5, 10**18)),
        *(("hidden_size", value) for value in (76, 10**5, 10**18, int(1e30))),
        *(("vocab_size", value) for value in (10**5, 10**18)),
        *(("intermediate_size", value) for value in (10**5, 10**18)),
        *(("max_position_embeddings", value) for value in (10**5, 10**18)),
        *(("type_vocab_size", value) for value in (10**5, 10**18)),
    ],
)
def test_sizes_beyond_the_tensors_are_refused_before_anything_is_built(folder, setting, value):
    edit_config(folder, **{setting: value})
    with pytest.raises((IncompatibleWeights, CorruptCheckpoint), match=rf"config.json.*{value}"):
        open_checkpoint(folder)


@pytest.mark.parametrize("sizes", [{"inner_group_num": 10**6}, {"inner_group_num": 500}, {"num_hidden_layers": 10**9}])
def test_shared_layers_beyond_any_encoder_are_refused(tmp_path, sizes):
    write_checkpoint(tmp_path, "albert")
    edit_config(tmp_path, **sizes)
    with pytest.raises(CorruptCheckpoint, match=r"config\.json must give"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("value", [10**400, float("nan"), float("inf"), 1e300])
def test_a_number_that_nothing_can_be_computed_with_is_refused(value):
    with pytest.raises(CorruptCheckpoint, match="layer_norm_eps as a finite number"):
        FAMILIES["bert"].config(TINY["bert"] | {"layer_norm_eps": value})


def test_a_header_of_hundreds_of_thousands_of_tensors_is_refused_unread(folder):
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"t{number}": empty for number in range(200_000)}).encode()
    (folder / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CorruptCheckpoint, match="to list its tensors in at most 4 MiB"):
        open_checkpoint(folder)
