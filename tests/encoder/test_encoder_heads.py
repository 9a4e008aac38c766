"""Configurations, heads of every kind, dropout, and the encoder in NumPy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from bothways.encoder import Encoder, count_parameters
from bothways.encoder.config import (
    AbsolutePositions,
    DisentangledPositions,
    DropoutRates,
    GatedFeedForward,
    LocalGlobalAttention,
    LogBuckets,
    OwnWeights,
    ProjectedAfterNorm,
    RotaryPositions,
    SharedGroups,
    TransformerXLPositions,
)
from bothways.encoder.encoder import layer_order
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
from bothways.encoder.minimal import MinimalEncoder
from bothways.encoder.modules import ACTIVATIONS, Dropout, dropout
from bothways.errors import InvalidInput, UnsupportedConfig
from bothways.families import FAMILIES
from bothways.packing import pack
from tiny_models import random_ids, random_types, scramble, tiny_config, tiny_encoder

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


BERT = tiny_config("bert")


def disentangled(distances):
    return DisentangledPositions(512, distances, True, True, "shared", normed=False, absolute=False)


@pytest.mark.parametrize(("hidden", "heads", "advice"), [(26, 4, "24"), (30, 4, "32"), (4, 12, "12")])
def test_heads_that_do_not_divide_the_hidden_size_are_refused_with_a_size_that_would_do(hidden, heads, advice):
    embedding = replace(BERT.embedding, width=hidden)
    with pytest.raises(InvalidInput, match=f"{hidden} is not a multiple of {heads}.* such as {advice}\\."):
        replace(BERT, hidden=hidden, heads=heads, embedding=embedding)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": 0}, "layers must be at least 1"),
        ({"vocabulary": 0}, "vocabulary must be at least 1"),
        ({"positions": AbsolutePositions(-1, 2)}, "number of positions must be at least 1"),
        ({"feed_forward": replace(BERT.feed_forward, width=0)}, "feed-forward width must be at least 1"),
        (
            {"embedding": replace(BERT.embedding, width=0, projection=ProjectedAfterNorm())},
            "embedding width must be at least 1",
        ),
        ({"embedding": replace(BERT.embedding, width=14)}, "needs a projection"),
        ({"sharing": SharedGroups(4)}, "between 1 and the 3 layers"),
        ({"sharing": SharedGroups(0)}, "between 1 and the 3 layers"),
        ({"sharing": SharedGroups(1, 0)}, "inside a group must be at least 1"),
        ({"positions": TransformerXLPositions()}, "need the query's bias alone, not 'all'"),
        ({"positions": disentangled(LogBuckets(256, 18))}, "with 256 buckets, a max_distance above 129, got 18"),
        ({"positions": disentangled(LogBuckets(1, 512))}, "at least 2 buckets"),
        ({"pattern": LocalGlobalAttention(8, (True, False))}, "each of the 3 layers, got 2"),
    ],
)
def test_a_size_that_makes_no_sense_is_refused(change, words):
    with pytest.raises(InvalidInput, match=words):
        replace(BERT, **change)


def test_buckets_that_are_all_exact_need_no_larger_distance():
    replace(BERT, positions=replace(disentangled(LogBuckets(256, 128)), count=128))


@pytest.mark.parametrize("rate", [-0.1, 1.0, 5.0, float("nan")])
def test_a_dropout_rate_outside_its_range_is_refused(rate):
    with pytest.raises(InvalidInput, match="attention dropout"):
        DropoutRates(attention=rate)


def test_layers_of_their_own_run_one_after_the_other():
    assert layer_order(BERT) == ((0,), (1,), (2,))


def test_layers_of_a_group_run_in_its_steps_in_order():
    shared = replace(BERT, layers=4, sharing=SharedGroups(2, 2))
    assert layer_order(shared) == ((0, 1), (0, 1), (2, 3), (2, 3))


@given(groups=st.integers(1, 6), each=st.integers(1, 5), inner=st.integers(1, 3))
def test_groups_run_in_order_equally_often_and_own_all_weights(groups, each, inner):
    config = replace(BERT, layers=groups * each, sharing=SharedGroups(groups, inner))
    order = layer_order(config)
    assert [step[0] // inner for step in order] == [group for group in range(groups) for _ in range(each)]
    assert {index for step in order for index in step} == set(range(groups * inner))


def test_shared_layers_are_counted_once():
    one_layer = replace(BERT, layers=1, sharing=OwnWeights())
    assert count_parameters(replace(BERT, layers=3, sharing=SharedGroups(1))) == count_parameters(one_layer)


def test_counting_parameters_takes_no_memory_and_counts_them_all():
    huge = replace(BERT, vocabulary=10**11)
    assert count_parameters(huge) - count_parameters(BERT) == (10**11 - BERT.vocabulary) * BERT.hidden


def test_fresh_weights_are_normal_with_the_configured_spread():
    torch.manual_seed(0)
    config = replace(BERT, vocabulary=2000, initializer_range=0.07)
    encoder = Encoder(config)
    assert encoder.embedding.tokens.weight.std().item() == pytest.approx(0.07, rel=0.02)
    assert not encoder.layers[0].attention.qkv.bias.any()
    assert torch.equal(encoder.layers[0].attention_norm.weight, torch.ones(config.hidden))


BERT_STYLE = [name for name in FAMILIES if isinstance(tiny_config(name).positions, AbsolutePositions)]


@pytest.mark.parametrize(
    ("model_type", "activation"),
    [*((name, "gelu") for name in BERT_STYLE), *(("bert", name) for name in ACTIVATIONS if name != "gelu")],
)
@pytest.mark.parametrize("gradients", [False, True])
def test_packed_encoder_equals_numpy(model_type, activation, gradients):
    config = tiny_config(model_type)
    config = replace(config, feed_forward=replace(config.feed_forward, activation=activation))
    encoder = scramble(Encoder(config)).double()
    minimal = MinimalEncoder(config, {name: value.numpy() for name, value in encoder.state_dict().items()})
    lengths = (1, 6, 6, config.max_length)
    sequences = random_ids(lengths, seed=2)
    types = random_types(lengths) if config.embedding.types == 2 else [[0] * length for length in lengths]
    with torch.set_grad_enabled(gradients):
        ours_TH = encoder(pack(sequences, types)).detach().numpy()
    expected_TH = np.concatenate([minimal(ids, kinds) for ids, kinds in zip(sequences, types, strict=True)])
    assert ours_TH.dtype == np.float64
    np.testing.assert_allclose(ours_TH, expected_TH, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "change",
    [{"positions": RotaryPositions(18, 1e4, 1e4)}, {"feed_forward": GatedFeedForward(37, "gelu")}],
)
def test_numpy_encoder_refuses_what_it_does_not_know(change):
    with pytest.raises(UnsupportedConfig, match="absolute positions and dense feed-forward"):
        MinimalEncoder(replace(tiny_config("bert"), **change), {})


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 0.9])
def test_elements_are_dropped_at_the_rate_and_the_expectation_stays(rate):
    torch.manual_seed(1)
    values = torch.ones(1000, 1001)
    result = dropout(values, rate)
    count = values.numel()
    dropped = int((result == 0).sum())
    # Five standard deviations of a binomial distribution.
    assert abs(dropped - rate * count) < 5 * (count * rate * (1 - rate)) ** 0.5
    kept = result[result != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - rate)), rtol=1e-4, atol=0)


def test_neighbours_that_share_a_draw_are_independent():
    torch.manual_seed(2)
    dropped = (dropout(torch.ones(400_000), 0.5) == 0).view(-1, 4).double()
    correlation = torch.corrcoef(dropped.T) - torch.eye(4)
    assert correlation.abs().max() < 5 / 100_000**0.5


def test_the_gradient_passes_through_what_was_kept_and_nothing_else():
    values = torch.randn(37, 19, dtype=torch.float64, requires_grad=True)
    result = dropout(values, 0.3)
    result.sum().backward()
    assert values.grad is not None
    torch.testing.assert_close(values.grad * values.detach(), result.detach())


def test_a_seed_decides_the_mask():
    values = torch.ones(101)
    torch.manual_seed(3)
    first = dropout(values, 0.5)
    second = dropout(values, 0.5)
    torch.manual_seed(3)
    assert torch.equal(dropout(values, 0.5), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("rate", "expected"), [(0.0, 1.0), (1.0, 0.0)])
def test_the_ends_of_the_scale(rate, expected):
    assert torch.equal(dropout(torch.ones(5), rate), torch.full((5,), expected))


@pytest.mark.parametrize("shape", [(1,), (3,), (4,), (5, 7), (2, 0)])
def test_any_shape(shape):
    assert dropout(torch.ones(shape), 0.4).shape == shape


def test_the_module_is_the_identity_outside_training():
    module = Dropout(0.5).eval()
    values = torch.randn(8)
    assert module(values) is values
    assert not torch.equal(module.train()(torch.ones(64)), torch.ones(64))
