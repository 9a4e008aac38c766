"""Configurations, heads of every kind, dropout, and the encoder in NumPy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bothways.encoder import Encoder
from bothways.encoder.config import (
    AbsolutePositions,
    DisentangledPositions,
    DropoutRates,
    GatedFeedForward,
    LocalGlobalAttention,
    LogBuckets,
    ProjectedAfterNorm,
    RotaryPositions,
    SharedGroups,
    TransformerXLPositions,
)
from bothways.encoder.encoder import layer_order
from bothways.encoder.head_kinds import (
    EachToken,
    FirstToken,
    HeadNorm,
    Labels,
    LastToken,
    MeanOfTokens,
    ScoreHeadKind,
    Transform,
)
from bothways.encoder.heads import new_head, read_rows
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
        ({"positions": TransformerXLPositions()}, "need biases 'query only', got 'all'"),
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


@given(groups=st.integers(1, 6), each=st.integers(1, 5), inner=st.integers(1, 3))
def test_groups_run_in_order_equally_often_and_own_all_weights(groups, each, inner):
    config = replace(BERT, layers=groups * each, sharing=SharedGroups(groups, inner))
    order = layer_order(config)
    assert [step[0] // inner for step in order] == [group for group in range(groups) for _ in range(each)]
    assert {index for step in order for index in step} == set(range(groups * inner))


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
