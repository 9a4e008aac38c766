"""What config.json may choose about a head, and what is refused by name."""

import pytest

from bothways.encoder.head_kinds import FirstToken, Labels, MaskedLMHeadKind, MeanOfTokens, ScoreHeadKind, TextsOfPair
from bothways.errors import CorruptCheckpoint, UnsupportedConfig
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
from bothways.families.layout import TensorRow

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
