"""Broken, foreign and dangerous files are refused by name; sound ones are read whatever their form."""

import hashlib
import json
import os
import pickle
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bothways.checkpoints import fingerprint, load, open_checkpoint
from bothways.checkpoints.files import read_tensors
from bothways.errors import (
    BothwaysError,
    CorruptCheckpoint,
    IncompatibleWeights,
    InvalidInput,
    MissingDependency,
    UnknownModel,
    UnsafeCheckpoint,
    UnsupportedConfig,
)
from bothways.families import FAMILIES
from tiny_models import edit_config, every_family, write_checkpoint

WEIGHTS = "model.safetensors"
QUERY = "encoder.layer.1.attention.self.query.weight"


def rewrite(folder, change):
    """Change the tensors of a folder."""
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def open_and_build(folder, **options):
    return open_checkpoint(folder, **options).build_encoder()


def same_weights(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


# Folders


@pytest.mark.parametrize("name", ["absent", "./absent", "/absent/folder", "~/absent", "x" * 300])
def test_a_folder_that_is_not_there_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownModel, match=name[:100]):
        open_checkpoint(name)


def test_a_file_in_place_of_a_folder_is_refused(folder):
    with pytest.raises(UnknownModel, match="a file, not a folder"):
        open_checkpoint(folder / WEIGHTS)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(UnknownModel, match=r"must hold config\.json"):
        open_checkpoint(tmp_path)


@pytest.fixture
def forbid(monkeypatch):
    """Take the permission to read away; from the superuser, whom no permission stops, by a stand-in for the system."""

    def take(path):
        if os.geteuid():
            path.chmod(0)
            return

        def refusing(function):
            def call(self, *args, **kwargs):
                if path in (self, *self.parents):
                    raise PermissionError(13, "Permission denied", str(self))
                return function(self, *args, **kwargs)

            return call

        monkeypatch.setattr(Path, "open", refusing(Path.open))
        monkeypatch.setattr(Path, "read_text", refusing(Path.read_text))

    return take


def test_a_folder_that_may_not_be_read_is_refused(folder, forbid):
    forbid(folder)
    with pytest.raises(UnknownModel, match="Permission denied"):
        open_checkpoint(folder)
    if os.geteuid():
        folder.chmod(0o700)


def test_a_folder_behind_one_that_may_not_be_entered_is_refused(tmp_path, monkeypatch):
    def is_dir(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_dir", is_dir)
    with pytest.raises(UnknownModel, match="Permission denied"):
        open_checkpoint(tmp_path / "closed" / "model")


def test_weights_that_may_not_be_read_are_refused_when_their_checksum_is_on_record(folder, forbid):
    (folder / "bothways.json").write_text(json.dumps({"checksums": {WEIGHTS: "0" * 64}}))
    forbid(folder / WEIGHTS)
    with pytest.raises(UnknownModel, match=f"{WEIGHTS}.*Permission denied"):
        open_checkpoint(folder)


# config.json


@pytest.mark.parametrize("content", [b"", b"{", b"not JSON", b"\xff\xfe\x00", b'{"model_type": "bert"'])
def test_a_configuration_that_is_not_json_is_refused(folder, content):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match=r"config\.json' must be a JSON file"):
        open_checkpoint(folder)


@pytest.mark.parametrize("content", ["[]", "3", "null"])
def test_a_configuration_that_is_not_an_object_is_refused(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(CorruptCheckpoint, match="must hold a JSON object"):
        open_checkpoint(folder)


def test_a_folder_in_place_of_the_configuration_is_refused(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    with pytest.raises(UnknownModel, match=r"config\.json' cannot be read"):
        open_checkpoint(folder)


@pytest.mark.parametrize("model_type", ["llama", None, 3, ["bert"]])
def test_an_unknown_family_is_refused_and_the_known_ones_are_named(folder, model_type):
    edit_config(folder, model_type=model_type)
    with pytest.raises(UnknownModel) as refusal:
        open_checkpoint(folder)
    assert repr(model_type) in str(refusal.value)
    assert all(name in str(refusal.value) for name in FAMILIES)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("is_decoder", True),
        ("position_embedding_type", "relative_key"),
        ("position_embedding_type", "relative_key_query"),
        ("add_cross_attention", True),
        ("is_encoder_decoder", True),
        ("chunk_size_feed_forward", 16),
        ("pruned_heads", {"0": [1]}),
        ("quantization_config", {"bits": 4}),
        ("hidden_act", "quick_gelu"),
        ("hidden_act", 3),
    ],
)
def test_a_setting_that_is_not_built_is_refused_by_name(folder, name, value):
    edit_config(folder, **{name: value})
    with pytest.raises(UnsupportedConfig, match=name) as refusal:
        open_checkpoint(folder)
    assert repr(value) in str(refusal.value)


@pytest.mark.parametrize("value", ["24", 24.0, True, -24, [24]])
def test_a_size_that_is_not_a_whole_number_is_refused(folder, value):
    edit_config(folder, hidden_size=value)
    with pytest.raises(CorruptCheckpoint, match="hidden_size as a whole number"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings"])
def test_a_missing_size_is_refused_by_name(folder, name):
    edit_config(folder, **{name: None})
    with pytest.raises(CorruptCheckpoint, match=name):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [("vocab_size", 0), ("num_attention_heads", 5), ("hidden_dropout_prob", 2), ("max_position_embeddings", 0)],
)
def test_a_size_that_makes_no_sense_is_refused(folder, name, value):
    edit_config(folder, **{name: value})
    with pytest.raises(InvalidInput):
        open_checkpoint(folder)


def test_an_untied_output_matrix_is_refused_where_the_masked_lm_head_is_asked_for(folder):
    edit_config(folder, tie_word_embeddings=False)
    checkpoint = open_checkpoint(folder)
    with pytest.raises(UnsupportedConfig, match="tie_word_embeddings"):
        checkpoint.build_masked_lm_head()


# Tensors


def test_missing_tensors_are_named(folder):
    rewrite(folder, lambda tensors: tensors.pop("encoder.layer.1.output.dense.bias"))
    with pytest.raises(IncompatibleWeights, match=r"lacks 1 of the .*: layers\.1\.feed_forward\.outer\.bias"):
        open_and_build(folder)


def test_a_missing_part_of_a_fused_tensor_is_named(folder):
    rewrite(folder, lambda tensors: tensors.pop(QUERY))
    with pytest.raises(IncompatibleWeights, match=rf"but not bert\.{QUERY}; both belong to layers\.1\.attention\.qkv"):
        open_and_build(folder)


def test_left_over_tensors_are_named(folder):
    edit_config(folder, num_hidden_layers=2)
    with pytest.raises(
        IncompatibleWeights, match=r"16 encoder tensors .*bert\.encoder\.layer\.2\.attention.* and 11 more"
    ):
        open_and_build(folder)


def test_misshapen_tensors_are_named_with_both_shapes(folder):
    edit_config(folder, intermediate_size=40)
    with pytest.raises(IncompatibleWeights, match=r"9 tensors.*inner\.bias should be \(40,\) but is \(37,\)"):
        open_and_build(folder)


@pytest.mark.parametrize("shape", [(24, 25), (25, 24), (12, 24), (24,), ()])
def test_parts_that_cannot_be_fused_are_named(folder, shape):
    rewrite(folder, lambda tensors: tensors.update({QUERY: torch.zeros(shape)}))
    with pytest.raises(IncompatibleWeights, match=f"{QUERY}"):
        open_and_build(folder)


def test_three_scalars_do_not_fuse_to_a_tensor(folder):
    parts = [QUERY.replace("query", part) for part in ("query", "key", "value")]
    rewrite(folder, lambda tensors: tensors.update({name: torch.zeros(()) for name in parts}))
    with pytest.raises(IncompatibleWeights, match=r"qkv\.weight should be \(72, 24\)"):
        open_and_build(folder)


def test_quantised_tensors_are_refused_by_name(folder):
    name = "encoder.layer.1.output.dense.weight"
    rewrite(folder, lambda tensors: tensors.update({name: tensors[name].to(torch.int8)}))
    with pytest.raises(IncompatibleWeights, match=r"not: layers\.1\.feed_forward\.outer\.weight"):
        open_and_build(folder)


def test_a_checkpoint_without_a_masked_lm_head_says_so(folder):
    with pytest.raises(IncompatibleWeights, match="lacks 5 of the 5"):
        open_checkpoint(folder).build_masked_lm_head()


@every_family
def test_two_encoders_of_one_checkpoint_share_no_memory(tmp_path, model_type):
    write_checkpoint(tmp_path, model_type)
    checkpoint = open_checkpoint(tmp_path)
    first, second = checkpoint.build_encoder(), checkpoint.build_encoder()
    before = {name: value.clone() for name, value in second.state_dict().items()}
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.zero_()
    same_weights(second.state_dict(), before)
    same_weights(checkpoint.build_encoder().state_dict(), before)


def test_old_names_of_the_norms_are_read(folder):
    expected = open_and_build(folder).state_dict()

    def age(tensors):
        for name in [name for name in tensors if "LayerNorm" in name]:
            tensors[name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")] = (
                tensors.pop(name)
            )

    rewrite(folder, age)
    assert "embeddings.LayerNorm.gamma" in load_file(folder / WEIGHTS)
    same_weights(open_and_build(folder).state_dict(), expected)


@every_family
def test_names_with_and_without_the_prefix_are_read(tmp_path, model_type):
    write_checkpoint(tmp_path, model_type)
    expected = open_and_build(tmp_path).state_dict()
    save_file(
        {FAMILIES[model_type].prefix + k: v for k, v in load_file(tmp_path / WEIGHTS).items()}, tmp_path / WEIGHTS
    )
    same_weights(open_and_build(tmp_path).state_dict(), expected)


# Damage


@pytest.mark.parametrize("kept", [0, 4, 200, 0.5, 0.999])
def test_truncated_weights_are_refused(folder, kept):
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: kept if isinstance(kept, int) else int(len(content) * kept)])
    with pytest.raises(CorruptCheckpoint, match=f"{WEIGHTS}.*truncated or damaged"):
        open_checkpoint(folder)


def flip(path):
    """Flip one bit in the last tensor's bytes: the file stays well-formed."""
    content = bytearray(path.read_bytes())
    content[-3] ^= 0b100
    path.write_bytes(content)


def test_a_flipped_bit_is_found_by_the_checksum_that_lies_beside_the_weights(folder):
    digest = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    (folder / "bothways.json").write_text(json.dumps({"checksums": {WEIGHTS: digest}}))
    open_and_build(folder)
    flip(folder / WEIGHTS)
    with pytest.raises(CorruptCheckpoint, match=rf"{WEIGHTS}.*SHA-256 is [0-9a-f]{{64}}, expected {digest}"):
        open_checkpoint(folder)


def test_a_file_whose_checksum_is_on_record_must_be_there(folder):
    (folder / "bothways.json").write_text(json.dumps({"checksums": {"absent.bin": "0" * 64}}))
    with pytest.raises(CorruptCheckpoint, match=r"absent\.bin is missing"):
        open_checkpoint(folder)


@pytest.mark.parametrize("checksums", [[], "x", 3])
def test_checksums_in_another_form_are_refused(folder, checksums):
    (folder / "bothways.json").write_text(json.dumps({"checksums": checksums}))
    with pytest.raises(CorruptCheckpoint, match="must map file names"):
        open_checkpoint(folder)


def test_a_fingerprint_changes_with_the_weights_and_not_with_the_rest(folder):
    before = fingerprint(folder)
    edit_config(folder, hidden_dropout_prob=0.3)
    assert fingerprint(folder) == before
    flip(folder / WEIGHTS)
    assert fingerprint(folder) != before


# Pickles


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


def test_a_folder_without_weights_is_refused(folder):
    (folder / WEIGHTS).unlink()
    with pytest.raises(UnknownModel, match=rf"must hold {WEIGHTS}"):
        open_checkpoint(folder)


# Shards


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


def test_a_missing_shard_is_named(shards):
    (shards[0] / "b.safetensors").unlink()
    with pytest.raises(CorruptCheckpoint, match=r"b\.safetensors"):
        open_checkpoint(shards[0])


def test_a_truncated_shard_is_named(shards):
    content = (shards[0] / "b.safetensors").read_bytes()
    (shards[0] / "b.safetensors").write_bytes(content[:-8])
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
