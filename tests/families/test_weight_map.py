"""The rows of a weight map, written out for each layer, read and written back, and heads beside the encoder."""

import pytest
import torch

from bothways.encoder.head_kinds import FirstToken, Labels, MaskedLMHeadKind, MeanOfTokens, ScoreHeadKind, TextsOfPair
from bothways.errors import CorruptCheckpoint, IncompatibleWeights, UnsupportedConfig
from bothways.families.family import (
    HEAD_POOLING,
    MEAN_HEAD,
    CheckpointHead,
    DropoutSetting,
    HeadBySetting,
    head_beside,
    pair_settings,
    resolved,
    variants,
)
from bothways.families.layout import (
    Fused,
    Ignored,
    TensorRow,
    check_numbers,
    known_names,
    read_weights,
    write_weights,
)
from tiny_models import tiny_config

BERT = tiny_config("bert")  # three layers
ROWS = (
    TensorRow("table", "embeddings.table"),
    TensorRow("layer.{i}.norm.{wb}", "layers.{i}.norm.{wb}"),
    Fused(("layer.{i}.q", "layer.{i}.k"), "layers.{i}.qk"),
    Ignored("buffer"),
)


def stored(prefix=""):
    """Tensors under a family's names; every one has values of its own."""
    names = sorted(known_names(ROWS, BERT, prefix))
    return {name: torch.arange(6.0).reshape(2, 3) + 10 * number for number, name in enumerate(names)}


def test_what_is_read_is_a_copy_and_what_is_absent_is_left_out():
    theirs = stored()
    del theirs["table"], theirs["layer.1.q"], theirs["layer.1.k"]
    ours = read_weights(ROWS, BERT, theirs)
    assert {"embeddings.table", "layers.1.qk"}.isdisjoint(ours)
    ours["layers.0.norm.bias"].zero_()
    assert theirs["layer.0.norm.bias"].any()
    assert write_weights(ROWS, BERT, {}) == {}


def test_a_part_alone_and_parts_of_two_shapes_are_refused_by_name():
    theirs = stored()
    del theirs["layer.1.k"]
    with pytest.raises(IncompatibleWeights, match=r"has layer\.1\.q but not layer\.1\.k; both belong to layers\.1\.qk"):
        read_weights(ROWS, BERT, theirs)
    theirs["layer.1.k"] = torch.ones(2, 2)
    said = r"layer\.1\.q \(2, 3\) torch\.float32, layer\.1\.k \(2, 2\) torch\.float32"
    with pytest.raises(IncompatibleWeights, match=said):
        read_weights(ROWS, BERT, theirs)


def test_a_number_is_read_as_a_vector_of_one():
    ours = read_weights(ROWS, BERT, {"table": torch.tensor(2.0)})
    assert torch.equal(ours["embeddings.table"], torch.tensor([2.0]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("place", [0, 1, 2**16 - 1, 2**16, 2**16 + 1, 2**17, 2**17 + 2])
def test_one_number_that_is_none_is_found_wherever_it_stands(place, dtype):
    value = torch.full((2**17 + 3,), torch.finfo(dtype).max, dtype=dtype)
    check_numbers("table", value)
    value[place] = torch.nan
    with pytest.raises(CorruptCheckpoint, match="in table"):
        check_numbers("table", value)


FIRST = CheckpointHead(ScoreHeadKind(FirstToken(), None, Labels()), (TensorRow("first", "head.output.weight"),))
MEAN = CheckpointHead(
    ScoreHeadKind(MeanOfTokens(), None, Labels()),
    (TensorRow("mean", "head.output.weight"),),
    dropout=DropoutSetting("drop", 0.1),
    needs={"flat": (True,)},
)
CHOSEN = HeadBySetting("pooling", "cls", {"cls": FIRST, "mean": MEAN})


@pytest.mark.parametrize(
    ("settings", "read"),
    [({}, FirstToken()), ({"pooling": "cls"}, FirstToken()), ({"pooling": "mean"}, MeanOfTokens())],
)
def test_a_setting_chooses_the_head(settings, read):
    assert resolved(CHOSEN, settings).kind.read == read


@pytest.mark.parametrize("value", ["max", None, 1, ["cls"]])
def test_a_value_that_chooses_nothing_is_refused_by_name(value):
    with pytest.raises(UnsupportedConfig, match=r"pooling to .*; only 'cls' or 'mean' is") as refusal:
        resolved(CHOSEN, {"pooling": value})
    assert repr(value) in str(refusal.value)


def test_what_the_chosen_head_takes_for_granted_is_held_against_it_alone():
    with pytest.raises(UnsupportedConfig, match="flat to False"):
        resolved(CHOSEN, {"pooling": "mean", "flat": False})
    assert resolved(CHOSEN, {"flat": False}) == FIRST
    assert resolved(CHOSEN, {"pooling": "mean"}).kind.read == MeanOfTokens()


def test_a_dropout_rate_of_the_heads_own_is_read_or_left_at_its_default():
    assert resolved(MEAN, {}).kind.dropout == 0.1
    assert resolved(MEAN, {"drop": 0}).kind.dropout == 0
    assert resolved(FIRST, {"drop": 0.5}).kind.dropout == "head"
    with pytest.raises(CorruptCheckpoint, match="drop as a number, but it gives True"):
        resolved(MEAN, {"drop": True})


def test_a_head_has_as_many_forms_as_its_setting_has_values():
    assert variants("token", CHOSEN) == (FIRST, MEAN)
    assert variants("token", FIRST) == (FIRST,)


def test_a_classifier_of_any_family_may_read_the_mean():
    assert variants("sequence", CHOSEN) == (FIRST, MEAN, MEAN_HEAD)
    assert head_beside("sequence", {HEAD_POOLING: "mean"}) == MEAN_HEAD
    assert head_beside("sequence", {}) is None
    assert head_beside("token", {HEAD_POOLING: "mean"}) is None
    assert head_beside("sequence", pair_settings(2, 3)).kind.read == TextsOfPair(2, 3)
    with pytest.raises(CorruptCheckpoint, match="head_start_token_id and head_separator_token_id as numbers"):
        head_beside("sequence", {HEAD_POOLING: "pair", "head_start_token_id": 2})
    for value in ("max", None, 1):
        with pytest.raises(UnsupportedConfig, match=r"head_pooling to .*; only 'mean' or 'pair' is"):
            head_beside("sequence", {HEAD_POOLING: value})


def test_a_masked_lm_head_has_no_dropout_to_set():
    head = CheckpointHead(MaskedLMHeadKind(None), (), dropout=DropoutSetting("drop", 0.1))
    assert resolved(head, {}) == head
