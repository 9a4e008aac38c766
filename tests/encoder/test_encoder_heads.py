"""Heads read the hidden states that their kind says, do to them what it says, and give answers of its shape."""

import pytest
import torch
from torch.nn import functional

from bothways.encoder.head_kinds import (
    ChoiceLogit,
    EachToken,
    FirstToken,
    HeadNorm,
    Labels,
    LastToken,
    MaskedLMHeadKind,
    MeanOfTokens,
    Relation,
    Replaced,
    ScoreHeadKind,
    SpanLogits,
    Transform,
)
from bothways.encoder.heads import head_logits, new_head, read_rows
from bothways.packing import pack
from tiny_models import random_ids, scramble, tiny_config, tiny_encoder

LENGTHS = (1, 7, 3, 3)


@pytest.fixture(scope="module")
def encoder():
    return tiny_encoder().double()


@pytest.fixture(scope="module")
def packed():
    return pack(random_ids(LENGTHS, seed=1))


def states(encoder, packed):
    """The last hidden states (n, H) of each sequence."""
    return encoder(packed).split(LENGTHS)


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (FirstToken(), lambda rows: torch.stack([row[0] for row in rows])),
        (LastToken(), lambda rows: torch.stack([row[-1] for row in rows])),
        (MeanOfTokens(), lambda rows: torch.stack([row.mean(0) for row in rows])),
        (EachToken(), torch.cat),
    ],
)
def test_a_head_reads_the_states_that_its_kind_says(encoder, packed, read, expected):
    torch.testing.assert_close(read_rows(read, encoder, packed), expected(states(encoder, packed)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("norm", [None, HeadNorm(), HeadNorm(bias=False)])
@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu", None])
def test_a_transform_is_a_linear_map_an_activation_and_a_norm(activation, norm, bias):
    config = tiny_config("bert")
    kind = ScoreHeadKind(FirstToken(), Transform(activation, norm=norm, bias=bias), Labels())
    head = scramble(new_head(config, kind, labels=3)).double()
    weights = head.state_dict()
    hidden_MH = torch.randn(5, config.hidden, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    step = hidden_MH @ weights["transform.dense.weight"].T + weights.get("transform.dense.bias", 0)
    step = {"tanh": torch.tanh, "relu": torch.relu, "gelu": functional.gelu, None: functional.gelu}[activation](step)
    if norm is not None:
        step = functional.layer_norm(step, (config.hidden,), eps=config.norm.eps)
        step = step * weights["transform.norm.weight"] + weights.get("transform.norm.bias", 0)
    expected_MC = step @ weights["output.weight"].T + weights["output.bias"]
    torch.testing.assert_close(head(hidden_MH), expected_MC, rtol=0, atol=1e-12)
    assert ("transform.dense.bias" in weights) is bias
    assert ("transform.norm.bias" in weights) is (norm is not None and norm.bias)


def test_a_masked_lm_head_without_a_transform_meets_the_token_table_as_it_is(encoder, packed):
    head = scramble(new_head(encoder.config, MaskedLMHeadKind(None))).double()
    assert head.state_dict().keys() == {"bias"}
    logits_BSV = head_logits(head, encoder, packed)
    last_7H = states(encoder, packed)[1]
    expected_7V = last_7H @ encoder.embedding.tokens.weight.T + head.bias
    torch.testing.assert_close(logits_BSV[1], expected_7V, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("read", "scores", "shape"),
    [
        (FirstToken(), Labels(), (4, 3)),
        (EachToken(), Labels(), (4, 7, 3)),
        (MeanOfTokens(), Relation(), (4, 2)),
        (EachToken(), Replaced(), (4, 7)),
        (EachToken(), SpanLogits(), (4, 7, 2)),
        (LastToken(), ChoiceLogit(), (2, 2)),
    ],
)
def test_an_answer_has_the_shape_of_its_kind(encoder, packed, read, scores, shape):
    head = new_head(encoder.config, ScoreHeadKind(read, None, scores), labels=3).double()
    assert head_logits(head, encoder, packed, choices=2).shape == shape


def test_dropout_stands_where_the_kind_says(packed):
    """With the transform's dropout alone on, the answer changes; it is the encoder's rate or the kind's own."""
    config = tiny_config("bert")
    for kind, rates in (
        (ScoreHeadKind(FirstToken(), Transform(dropout="head"), Labels(), dropout="hidden"), {"head", "hidden"}),
        (ScoreHeadKind(FirstToken(), Transform(dropout=0.0), Labels(), dropout=0.25), {0.0, 0.25}),
    ):
        head = new_head(config, kind, labels=3)
        wanted = {getattr(config.dropout, rate) if isinstance(rate, str) else rate for rate in rates}
        assert {head.transform.dropout.rate, head.dropout.rate} == wanted
    hidden_MH = torch.ones(64, config.hidden)
    head.eval()
    assert torch.equal(head(hidden_MH), head(hidden_MH))
    head.train()
    assert not torch.equal(head(hidden_MH), head(hidden_MH))


def test_a_new_head_is_drawn_as_the_encoder_is():
    config = tiny_config("bert")
    head = new_head(config, ScoreHeadKind(FirstToken(), Transform(norm=HeadNorm(bias=False)), Labels()), labels=3)
    assert torch.equal(head.output.bias, torch.zeros(3))
    assert torch.equal(head.transform.norm.weight, torch.ones(config.hidden))
    assert head.transform.dense.weight.std().item() == pytest.approx(config.initializer_range, rel=0.2)
