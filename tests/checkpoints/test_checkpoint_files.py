"""Folders and configurations that cannot be used, and damaged files, are refused by name."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from opening import WEIGHTS, open_and_build

from bothways.checkpoints import fingerprint, open_checkpoint
from bothways.errors import CorruptCheckpoint, InvalidInput, UnknownModel, UnsupportedConfig
from bothways.families import FAMILIES
from tiny_models import edit_config, write_checkpoint


@pytest.mark.parametrize("name", ["absent", "./absent", "/absent/folder", "~/absent", "x" * 300])
def test_a_folder_that_is_not_there_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownModel, match=name[:100]):
        open_checkpoint(name)


def test_a_file_and_an_empty_folder_are_refused(folder, tmp_path):
    with pytest.raises(UnknownModel, match="a file, not a folder"):
        open_checkpoint(folder / WEIGHTS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnknownModel, match=r"expected config\.json"):
        open_checkpoint(tmp_path / "empty")
    (folder / WEIGHTS).unlink()
    with pytest.raises(UnknownModel, match=rf"expected {WEIGHTS}"):
        open_checkpoint(folder)


@pytest.fixture
def forbid(monkeypatch):
    """Take the permission to read away, by a stand-in for the system: no permission stops the superuser."""

    def take(path):
        def refusing(name, *args, _open=os.open, **kwargs):
            if path in (Path(name), *Path(name).parents):
                raise PermissionError(13, "Permission denied", str(name))
            return _open(name, *args, **kwargs)

        monkeypatch.setattr(os, "open", refusing)

    return take


def test_a_folder_that_may_not_be_read_is_refused(folder, forbid):
    forbid(folder)
    with pytest.raises(UnknownModel, match="Permission denied"):
        open_checkpoint(folder)


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


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        *(
            (each, r"config\.json' must be a JSON file")
            for each in (b"", b"{", b"not JSON", b"\xff\xfe\x00", b'{"a": "b"')
        ),
        *((each, "must hold a JSON object") for each in (b"[]", b"3", b"null")),
    ],
)
def test_a_configuration_that_is_no_json_object_is_refused(folder, content, problem):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match=problem):
        open_checkpoint(folder)


def test_a_folder_in_place_of_the_configuration_is_refused(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    with pytest.raises(UnknownModel, match=r"config\.json' cannot be read"):
        open_checkpoint(folder)


@pytest.mark.parametrize("model_type", ["wav2vec2", None, 3, ["bert"]])
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


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        *(("hidden_size", value, CorruptCheckpoint, "a whole number") for value in ("24", 24.0, True, -24, [24])),
        *(
            (name, None, CorruptCheckpoint, "")
            for name in ("vocab_size", "num_hidden_layers", "max_position_embeddings")
        ),
        *((name, 0, InvalidInput, "") for name in ("vocab_size", "max_position_embeddings")),
        ("num_attention_heads", 5, InvalidInput, ""),
        ("hidden_dropout_prob", 2, InvalidInput, ""),
    ],
)
def test_a_size_that_is_missing_or_makes_no_sense_is_refused(folder, name, value, error, words):
    edit_config(folder, **{name: value})
    with pytest.raises(error, match=f"{name} as {words}" if error is CorruptCheckpoint else None):
        open_checkpoint(folder)


def test_an_untied_output_matrix_is_refused_where_the_masked_lm_head_is_asked_for(folder):
    edit_config(folder, tie_word_embeddings=False)
    checkpoint = open_checkpoint(folder)
    with pytest.raises(UnsupportedConfig, match="tie_word_embeddings"):
        checkpoint.build_masked_lm_head()


# Decoders


@pytest.mark.parametrize("model_type", ["gpt2", "llama", "t5", "mistral", "bart"])
def test_a_family_of_decoders_is_called_one_and_the_encoders_are_named(folder, model_type):
    edit_config(folder, model_type=model_type)
    with pytest.raises(UnknownModel, match=f"this is a decoder: .*model_type '{model_type}'") as refusal:
        open_checkpoint(folder)
    assert all(name in str(refusal.value) for name in FAMILIES)


@pytest.mark.parametrize("model_type", ["bert", "somenewmodel"])
@pytest.mark.parametrize("architecture", ["BertLMHeadModel", "RobertaForCausalLM", "NewForConditionalGeneration"])
def test_an_architecture_that_generates_is_called_a_decoder(folder, model_type, architecture):
    edit_config(folder, model_type=model_type, architectures=[architecture])
    with pytest.raises((UnknownModel, UnsupportedConfig), match=f"this is a decoder: .*{architecture}"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["is_decoder", "is_encoder_decoder"])
def test_an_encoder_family_set_up_to_generate_is_called_a_decoder(folder, name):
    edit_config(folder, **{name: True})
    with pytest.raises(UnsupportedConfig, match=f"this is a decoder: .*{name}.* take an encoder"):
        open_checkpoint(folder)


def test_the_published_architecture_of_xlnet_is_no_decoder(tmp_path):
    write_checkpoint(tmp_path, "xlnet", architecture="XLNetLMHeadModel")
    assert open_checkpoint(tmp_path).heads() == ("permutation_lm",)


@pytest.mark.parametrize("architectures", [None, [], "BertForCausalLM", [3], ["SomethingElse"]])
def test_an_architecture_that_says_nothing_is_no_decoder(folder, architectures):
    edit_config(folder, architectures=architectures)
    open_and_build(folder)


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


@pytest.mark.parametrize(
    ("checksums", "problem"),
    [({"absent.bin": "0" * 64}, r"absent\.bin is missing"), *((each, "must map file names") for each in ([], "x", 3))],
)
def test_checksums_of_absent_files_or_in_another_form_are_refused(folder, checksums, problem):
    (folder / "bothways.json").write_text(json.dumps({"checksums": checksums}))
    with pytest.raises(CorruptCheckpoint, match=problem):
        open_checkpoint(folder)


def test_a_fingerprint_changes_with_the_weights_and_not_with_the_rest(folder):
    before = fingerprint(folder)
    edit_config(folder, hidden_dropout_prob=0.3)
    assert fingerprint(folder) == before
    flip(folder / WEIGHTS)
    assert fingerprint(folder) != before
