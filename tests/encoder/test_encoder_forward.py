"""What holds of every forward pass: rows, batches, dropout, traces."""

import pickle
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bothways.encoder import Encoder, Recorder
from bothways.encoder.config import DropoutRates
from bothways.encoder.encoder import layer_order
from bothways.packing import ALL_ROWS, FIRST_TOKENS, LAST_TOKENS, SelectedRows, pack, select
from tiny_models import every_family, every_family_and_backend, random_ids, scramble, tiny_config, tiny_encoder


def pickle_copy(encoder):
    return pickle.loads(pickle.dumps(encoder))


backends = pytest.mark.parametrize("backend", ["reference", "sdpa", "grouped", "padded"])
ragged = st.lists(st.integers(1, 18), min_size=1, max_size=6).map(tuple)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@backends
@settings(max_examples=25)
@given(lengths=ragged, seed=st.integers(0, 2**16))
def test_a_text_alone_gives_what_it_gives_in_a_batch(backend, lengths, seed):
    encoder, sequences = tiny_encoder(), random_ids(lengths, seed)
    together = encoder(pack(sequences), backend=backend).split(lengths)
    for sequence, found_nH in zip(sequences, together, strict=True):
        torch.testing.assert_close(found_nH, encoder(pack([sequence]), backend=backend), rtol=0, atol=1e-5)


@every_family_and_backend
def test_chosen_rows_equal_those_of_the_full_pass(model_type, backend):
    encoder, packed = tiny_encoder(model_type).double(), pack(random_ids((3, 9, 1, 9)))
    full_TH = encoder(packed, backend=backend)
    for rows in (
        FIRST_TOKENS,
        LAST_TOKENS,
        SelectedRows(torch.tensor([21, 0, 4, 4])),
        SelectedRows(torch.arange(22)),
        ALL_ROWS,
    ):
        found_MH = encoder(packed, rows=rows, backend=backend)
        torch.testing.assert_close(found_MH, select(full_TH, rows, packed), rtol=0, atol=1e-12)


@every_family
def test_every_token_sees_every_other_token_of_its_text_and_no_other_text(model_type):
    encoder = tiny_encoder(model_type)
    first, second = random_ids((6, 6), seed=4)
    before_TH = encoder(pack([first, second]))
    for place in range(6):
        changed = [*first[:place], 5 + (first[place] + 1) % 50, *first[place + 1 :]]
        after_TH = encoder(pack([changed, second]))
        moved_T = (after_TH - before_TH).abs().amax(1)
        assert (moved_T[:6] > 1e-4).all(), "a token did not look behind or before itself"
        assert (moved_T[6:] < 1e-6).all(), "another text was looked at"


@every_family
def test_a_record_ends_in_what_the_pass_returns(model_type):
    encoder, packed = tiny_encoder(model_type), pack(random_ids((3, 8)))
    expected_TH = encoder(packed)
    for attentions in (True, False):
        record = Recorder(attentions=attentions)
        assert torch.equal(encoder(packed, record=record), record.hidden_states[-1])
        assert len(record.hidden_states) == encoder.config.layers + 1
        assert torch.equal(record.hidden_states[0], encoder.embedding(packed))
        torch.testing.assert_close(record.hidden_states[-1], expected_TH, rtol=0, atol=1e-5 * attentions)
        # Of each layer and text the weights of every head, token by token.
        layers = sum(map(len, layer_order(encoder.config))) if attentions else 0
        shapes = [[(4, length, length) for length in (3, 8)]] * layers
        assert [[tuple(text_Nnn.shape) for text_Nnn in layer] for layer in record.attentions] == shapes
        for layer in record.attentions:
            for text_Nnn in layer:
                torch.testing.assert_close(text_Nnn.sum(-1), torch.ones(text_Nnn.shape[:2]))


@every_family
@pytest.mark.parametrize("rows", [FIRST_TOKENS, SelectedRows(torch.tensor([2, 0]))])
def test_a_record_of_chosen_rows_has_all_rows_of_the_layers_before_the_last(model_type, rows):
    encoder, packed = tiny_encoder(model_type), pack(random_ids((3, 8)))
    full, chosen = Recorder(attentions=True), Recorder(attentions=True)
    full_TH, chosen_MH = encoder(packed, record=full), encoder(packed, rows=rows, record=chosen)
    torch.testing.assert_close(chosen_MH, select(full_TH, rows, packed), rtol=0, atol=1e-5)
    assert all(map(torch.equal, full.hidden_states[:-1], chosen.hidden_states[:-1]))
    for full_layer, chosen_layer in zip(full.attentions, chosen.attentions, strict=True):
        assert all(map(torch.equal, full_layer, chosen_layer))


@every_family
@pytest.mark.parametrize("rows", [ALL_ROWS, FIRST_TOKENS, SelectedRows(torch.tensor([2, 0]))])
@pytest.mark.parametrize("training", [False, True])
def test_embedding_and_layers_apart_are_the_whole_pass_to_the_bit(model_type, rows, training):
    encoder, packed = tiny_encoder(model_type).train(training), pack(random_ids((3, 8)))
    torch.manual_seed(1)
    whole = encoder(packed, rows=rows)
    torch.manual_seed(1)
    assert torch.equal(encoder(packed, hidden_TH=encoder.embedding(packed), rows=rows), whole)


@every_family
def test_layers_are_differentiated_with_respect_to_the_embedding(model_type):
    encoder, packed = tiny_encoder(model_type).double(), pack(random_ids((3, 8)))
    hidden_TH = encoder.embedding(packed).detach().requires_grad_()
    before_TH = hidden_TH.detach().clone()
    with torch.enable_grad():
        total = encoder(packed, hidden_TH=hidden_TH, rows=FIRST_TOKENS).square().sum()
    (gradient_TH,) = torch.autograd.grad(total, hidden_TH)
    assert torch.equal(hidden_TH, before_TH)
    step_TH = 1e-5 * torch.randn(before_TH.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    up, down = (encoder(packed, hidden_TH=hidden_TH + s * step_TH, rows=FIRST_TOKENS).square().sum() for s in (1, -1))
    assert ((up - down) / 2).item() == pytest.approx((gradient_TH * step_TH).sum().item(), rel=1e-5)


@every_family
@pytest.mark.parametrize("way", [pickle_copy, deepcopy])
def test_a_copy_computes_the_same_and_shares_nothing(model_type, way):
    encoder, packed = tiny_encoder(model_type), pack(random_ids((3, 8)))
    expected_TH = encoder(packed)
    copy = way(encoder)
    assert list(copy.state_dict()) == list(encoder.state_dict())
    for parameter in encoder.parameters():
        parameter.fill_(torch.nan)
    assert torch.equal(copy(packed), expected_TH)


def test_sums_stay_in_single_precision_under_autocast(monkeypatch):
    encoder, seen = tiny_encoder(), []
    for layer in encoder.layers:
        layer.attention_norm.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        encoder(pack(random_ids((3, 8))))
    assert set(seen) == {torch.float32}


@pytest.mark.parametrize("kind", ["hidden", "attention"])
@backends
def test_dropout_is_active_only_in_training(kind, backend):
    rates = {"hidden": 0.0, "attention": 0.0, "embedding": 0.0, kind: 0.5}
    config = replace(tiny_config("bert"), dropout=DropoutRates(**rates))
    encoder, packed = scramble(Encoder(config)), pack(random_ids((9, 4)))
    torch.testing.assert_close(encoder(packed, backend=backend), encoder(packed, backend=backend), rtol=0, atol=0)
    evaluated_TH = encoder(packed, backend=backend)
    encoder.train()
    torch.manual_seed(0)
    first_TH, second_TH = encoder(packed, backend=backend), encoder(packed, backend=backend)
    assert (first_TH - second_TH).abs().max() > 1e-2
    assert (first_TH - evaluated_TH).abs().max() > 1e-2


@backends
def test_training_without_dropout_equals_evaluation(backend):
    encoder = scramble(Encoder(replace(tiny_config("bert"), dropout=DropoutRates(0.0, 0.0, 0.0, embedding=0.0))))
    packed = pack(random_ids((9, 4)))
    evaluated_TH = encoder(packed, backend=backend)
    assert torch.equal(encoder.train()(packed, backend=backend), evaluated_TH)


@every_family
def test_every_family_trains_in_half_precision_by_autocast(model_type):
    """Gradients point the way of those in single precision."""
    encoder, packed = tiny_encoder(model_type), pack(random_ids((9, 4, 9)))
    gradients = []
    for half in (False, True):
        encoder.zero_grad()
        with torch.enable_grad(), torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = (encoder(packed).float() * torch.linspace(0.5, 1.5, 24)).square().sum()
        loss.backward()
        gradients.append(torch.cat([one.grad.flatten() for one in encoder.parameters() if one.grad is not None]))
    assert torch.cosine_similarity(*gradients, dim=0) > 0.98
