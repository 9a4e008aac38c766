"""Activations that are computed again: the same gradients and random numbers, and less to keep."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from bothways.advice.costs import training_bytes
from bothways.encoder import Encoder
from bothways.encoder.attention import Recorder
from bothways.encoder.encoder import FeedForward, activation_checkpointing
from bothways.encoder.modules import checkpointed
from bothways.encoder.streams import MaskDecoding, Memory
from bothways.packing import ALL_ROWS, FIRST_TOKENS, pack
from everyday import some_of
from tiny_models import every_family, random_ids, scramble, tiny_config

LENGTHS = (9, 4, 9, 1)


def encoder_with_dropout(model_type):
    """A scrambled encoder that drops a fifth of everything."""
    config = tiny_config(model_type)
    rates = dict.fromkeys(config.dropout.__dataclass_fields__, 0.2)
    return scramble(Encoder(replace(config, dropout=replace(config.dropout, **rates))), spread=0.15).train()


def step(encoder, run, *, seed=5):
    """Output, gradients and the next random number of a forward and backward pass."""
    encoder.zero_grad()
    torch.manual_seed(seed)
    output = run(encoder)
    loss = (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum()
    after = torch.get_rng_state()
    loss.backward()
    assert torch.equal(after, torch.get_rng_state())
    gradients = {name: each.grad.clone() for name, each in encoder.named_parameters() if each.grad is not None}
    return output.detach(), gradients, torch.rand(1)


def check_same_step(encoder, run):
    """With and without checkpointing all is the same, and layers run again in the backward pass."""
    plain = step(encoder, run)
    calls = []
    hooks = [each.register_forward_hook(lambda *_: calls.append(1)) for each in encoder.layers]
    with activation_checkpointing(encoder):
        again = step(encoder, run)
    for hook in hooks:
        hook.remove()
    assert torch.equal(plain[0], again[0])
    assert torch.equal(plain[2], again[2])
    assert plain[1].keys() == again[1].keys()
    for name, gradient in plain[1].items():
        assert torch.equal(gradient, again[1][name]), name
    return len(calls)


@pytest.mark.parametrize("half", [False, True])
@every_family
def test_gradients_and_random_numbers_are_those_without(model_type, half):
    encoder, batch = encoder_with_dropout(model_type), pack(random_ids(LENGTHS))

    def run(each, rows):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            output = each(batch, rows=rows)
        assert not torch.is_autocast_enabled("cpu")
        return output.float()

    calls = check_same_step(encoder, lambda each: run(each, ALL_ROWS))
    assert calls == 2 * len(encoder.steps) - 1  # the last layer runs once
    check_same_step(encoder, lambda each: run(each, FIRST_TOKENS))


def test_two_streams_and_a_memory():
    encoder, batch = encoder_with_dropout("xlnet"), pack(random_ids(LENGTHS))
    rows_M, counts = torch.tensor([1, 3, 10, 15]), (2, 1, 1, 0)
    order_T = torch.cat([torch.randperm(length, generator=torch.Generator().manual_seed(1)) for length in LENGTHS])
    states = tuple(torch.randn(5, encoder.config.hidden) for _ in encoder.steps)
    memory = Memory((2, 0, 3, 0), states)

    def run(each):
        queries = each.queries(rows_M, counts, order_T)
        return each(batch, queries=queries, memory=memory)

    check_same_step(encoder, run)


def test_the_mask_decoder():
    encoder, batch = encoder_with_dropout("deberta-v2"), pack(random_ids(LENGTHS))
    rows_M = torch.tensor([1, 3, 10])
    added_MH = torch.randn(3, encoder.config.hidden)

    def run(each):
        queries = MaskDecoding(added_MH, rows_M, (2, 1, 0, 0))
        return each(batch, queries=queries)

    check_same_step(encoder, run)


def test_frozen_lower_layers_and_embedding():
    encoder, batch = encoder_with_dropout("bert"), pack(random_ids(LENGTHS))
    encoder.embedding.requires_grad_(False)
    encoder.layers[0].requires_grad_(False)
    check_same_step(encoder, lambda each: each(batch))


def test_attention_weights_are_recorded_once():
    encoder, batch = encoder_with_dropout("bert"), pack(random_ids(LENGTHS))
    records = []

    def run(each):
        records.append(Recorder(attentions=True))
        return each(batch, record=records[-1])

    assert check_same_step(encoder, run) == len(encoder.steps)
    assert [len(each.attentions) for each in records] == 2 * [len(encoder.steps)]


def test_a_second_backward_pass_gives_the_same():
    encoder, batch = encoder_with_dropout("bert"), pack(random_ids(LENGTHS))
    with activation_checkpointing(encoder):
        loss = encoder(batch).square().sum()
        parameters = list(encoder.layers.parameters())
        first = torch.autograd.grad(loss, parameters, retain_graph=True)
        second = torch.autograd.grad(loss, parameters)
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))


def test_it_ends_with_the_block_and_leaves_predictions_alone():
    encoder, batch = encoder_with_dropout("bert").eval(), pack(random_ids(LENGTHS))
    with activation_checkpointing(encoder):
        assert encoder.checkpointing
        with torch.no_grad():
            encoder(batch)
    assert not encoder.checkpointing
    assert "checkpointing" not in vars(encoder)


def test_random_numbers_go_on_where_a_run_fails():
    def fails(value, _):
        if len(calls) > 1:
            raise ValueError("twice")
        calls.append(torch.rand(3))
        return value * calls[-1] * value

    calls = [0]
    calls.clear()
    value = torch.ones(3, requires_grad=True)
    result = checkpointed(fails, value, None)
    calls.append(0)
    torch.manual_seed(9)
    expected = torch.get_rng_state()
    with pytest.raises(ValueError, match="twice"):
        result.sum().backward()
    assert torch.equal(expected, torch.get_rng_state())


@pytest.mark.parametrize("model_type", some_of(["bert", "modernbert"], "bert"))
def test_checkpointed_layers_keep_their_inputs_alone(model_type):
    config = replace(tiny_config(model_type), layers=3) if model_type == "bert" else tiny_config(model_type)
    batch, length = 40, 18
    plain = training_bytes(config, batch, length)
    lean = training_bytes(config, batch, length, checkpointing=True)
    inputs = 4 * batch * length * config.hidden
    per_layer = plain.activations / config.layers
    assert lean.activations < per_layer + (config.layers + 1) * inputs
    assert lean.peak < 0.8 * plain.peak


@pytest.mark.parametrize("model_type", some_of(["bert", "modernbert"], "bert"))
def test_of_the_inner_states_those_before_the_activation_are_kept(model_type):
    config, batch, length = tiny_config(model_type), 40, 18
    wide = replace(config, feed_forward=replace(config.feed_forward, width=137))
    grown = training_bytes(wide, batch, length).activations - training_bytes(config, batch, length).activations
    halves = 2 if model_type == "modernbert" else 1  # values and gates
    assert grown == config.layers * halves * 4 * batch * length * 100


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu", "tanh"])
@pytest.mark.parametrize("gated", [False, True])
def test_inner_states_are_computed_again_with_the_same_gradients(activation, gated):
    config = tiny_config("modernbert" if gated else "bert")
    config = replace(config, feed_forward=replace(config.feed_forward, activation=activation))
    network = scramble(FeedForward(config)).train()
    act = {"gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu, "silu": F.silu}
    act = act.get(activation, torch.tanh)
    hidden_TH = torch.randn(70, config.hidden, generator=torch.Generator().manual_seed(1), requires_grad=True)

    def plain(hidden_TH):
        inner_TF = network.inner(hidden_TH)
        if gated:
            value_TF, gate_TF = inner_TF.chunk(2, 1)
            return network.outer(act(value_TF) * gate_TF)
        return network.outer(act(inner_TF))

    inputs = [hidden_TH, *network.parameters()]
    expected = torch.autograd.grad(plain(hidden_TH).square().sum(), inputs)
    found = torch.autograd.grad(network(hidden_TH).square().sum(), inputs)
    assert torch.equal(network(hidden_TH), plain(hidden_TH))
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
