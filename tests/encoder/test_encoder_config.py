"""Configurations that make no sense or are not built are refused by name; the others say what they mean."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bothways.encoder import Encoder, count_parameters
from bothways.encoder.config import (
    AbsolutePositions,
    DisentangledPositions,
    DropoutRates,
    LocalGlobalAttention,
    LogBuckets,
    OwnWeights,
    ProjectedAfterNorm,
    SharedGroups,
    TransformerXLPositions,
)
from bothways.encoder.encoder import layer_order
from bothways.errors import InvalidInput
from tiny_models import tiny_config

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
        ({"positions": disentangled(LogBuckets(256, 18))}, "with 256 a largest distance above 129, got 18"),
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
