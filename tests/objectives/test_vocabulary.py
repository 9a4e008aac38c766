"""Vocabulary losses in chunks are those of whole logits, and so are their gradients and probabilities."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import bothways.objectives.vocabulary as vocabulary_module
from bothways.encoder import MaskedLMHead
from bothways.families import FAMILIES
from bothways.objectives.vocabulary import predict_tokens
from bothways.packing import pack
from tiny_models import random_ids, scramble, tiny_encoder

PLACES = 300


@pytest.fixture(params=[1, 2**23], ids=["five chunks", "one chunk"])
def inputs(request, monkeypatch):
    """A head, its token table, states of places and their targets."""
    monkeypatch.setattr(vocabulary_module, "_ON_CPU", request.param)
    config = tiny_encoder().config
    head = scramble(MaskedLMHead(config, FAMILIES["bert"].heads["masked_lm"].kind))
    torch.manual_seed(0)
    table = torch.randn(config.vocabulary, config.embedding.width, requires_grad=True)
    hidden_MH = torch.randn(PLACES, config.hidden, requires_grad=True)
    return head, table, hidden_MH, torch.randint(config.vocabulary, (PLACES,))


def test_losses_and_gradients_are_those_of_whole_logits(inputs):
    head, table, hidden_MH, targets_M = inputs
    leaves = [hidden_MH, table, *head.parameters()]
    found = predict_tokens(head, table, hidden_MH, targets_M, torch.arange(PLACES))
    logits_MV = head(hidden_MH, table)
    expected_M = cross_entropy(logits_MV, targets_M, reduction="none")
    torch.testing.assert_close(found.losses_M, expected_M.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.total, expected_M.sum(), rtol=1e-5, atol=0.0)
    assert torch.equal(found.right_M, logits_MV.argmax(-1) == targets_M)
    ours, theirs = (torch.autograd.grad(0.37 * loss, leaves) for loss in (found.total, expected_M.sum()))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))


def test_probabilities_of_all_places_are_shown(inputs):
    head, table, hidden_MH, targets_M = inputs
    seen_MV = torch.zeros(PLACES, len(table))

    def look(probabilities_mV, places):
        seen_MV[places] = probabilities_mV

    predict_tokens(head, table, hidden_MH, targets_M, torch.arange(PLACES), look)
    torch.testing.assert_close(seen_MV, head(hidden_MH, table).softmax(-1).detach())


def test_a_target_without_probability_has_a_finite_loss(inputs):
    head, table, hidden_MH, _ = inputs
    with torch.no_grad():
        head.bias[3] = -400.0
    targets_M = torch.full((PLACES,), 3)
    expected = cross_entropy(head(hidden_MH, table), targets_M, reduction="sum")
    found = predict_tokens(head, table, hidden_MH, targets_M, torch.arange(PLACES))
    assert found.losses_M.isfinite().all()
    torch.testing.assert_close(found.total, expected, rtol=1e-5, atol=0.0)


def test_no_places_have_no_loss_and_gradients_of_zero(inputs):
    head, table, hidden_MH, targets_M = inputs
    none = predict_tokens(head, table, hidden_MH[:0], targets_M[:0], torch.arange(0))
    none.total.backward()
    assert none.total.item() == 0.0
    assert not table.grad.any()


def test_without_gradients_the_sums_of_sequences_are_the_same(inputs):
    head, table, hidden_MH, targets_M = inputs
    packed = pack(random_ids((100, 120, 80)))
    trained = predict_tokens(head, table, hidden_MH, targets_M, torch.arange(PLACES))
    with torch.no_grad():
        validated = predict_tokens(head, table, hidden_MH, targets_M, torch.arange(PLACES))
    assert validated.sums(packed) == pytest.approx(trained.sums(packed))
    assert validated.sums(packed)[:, 2].tolist() == [100, 120, 80]
