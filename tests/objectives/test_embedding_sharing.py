"""Embeddings of generator and discriminator: which gradients reach them, and what is saved."""

import pytest
import torch
from replaced_token_cases import NO_DROPOUT, SHARINGS, batches, every_sharing, model_of, objective_of

from bothways.encoder import Encoder
from bothways.errors import InvalidInput
from bothways.objectives.pretraining import MASKED
from bothways.objectives.replaced_tokens import (
    REPLACED,
    DisentangledEmbeddings,
    DisentangledTable,
    OwnEmbeddings,
    SharedEmbeddings,
)
from bothways.packing import pack
from tiny_models import random_ids


def gradients(model, loss):
    """Names of the parameters that get a gradient other than zero, with its size."""
    model.zero_grad(set_to_none=True)
    loss.backward()
    named = ((name, parameter.grad) for name, parameter in model.named_parameters() if parameter.grad is not None)
    return {name: float(gradient.to_dense().abs().sum()) for name, gradient in named if gradient.to_dense().any()}


@every_sharing
def test_no_gradient_of_the_discriminator_reaches_the_generators_own_layers(tokenizer, source, sharing):
    model = model_of(sharing).eval()
    batch = batches(objective_of(model, source, tokenizer))[0]
    found = gradients(model, model.outputs(batch)[REPLACED].total)
    tables = {f"generator.embedding.{name}.weight" for name in ("tokens", "positions", "types")}
    norms = {"generator.embedding.norm.weight", "generator.embedding.norm.bias"}
    reached = {name for name in found if name.startswith("generator")}
    assert reached == (tables | norms if sharing == SharedEmbeddings() else set())
    assert any(name.startswith("discriminator.layers") for name in found)
    assert not any(name.startswith("generator_head") for name in found)
    masked = gradients(model, model.outputs(batch)[MASKED].total)
    assert not any(name.startswith("discriminator") for name in masked)
    assert masked["generator.embedding.tokens.weight"] > 0
    assert any(name.startswith("generator.layers") for name in masked)


def test_disentangled_tables_get_their_gradient_from_the_discriminator_alone(tokenizer, source):
    model = model_of(DisentangledEmbeddings()).eval()
    batch = batches(objective_of(model, source, tokenizer))[0]
    deltas = {f"discriminator.embedding.{name}.weight" for name in ("tokens", "positions", "types")}
    assert all(not dict(model.named_parameters())[name].any() for name in deltas)
    found = gradients(model, model.outputs(batch)[REPLACED].total)
    assert deltas <= found.keys()
    assert "generator.embedding.tokens.weight" not in found
    masked = gradients(model, model.outputs(batch)[MASKED].total)
    assert "generator.embedding.tokens.weight" in masked
    assert not deltas & masked.keys()


def test_disentangled_embeddings_begin_as_shared_ones_and_have_the_same_gradient(tokenizer, source):
    models = {sharing.name: model_of(sharing, **NO_DROPOUT) for sharing in SHARINGS[1:]}
    shared, apart = models["shared"], models["disentangled"]
    # Of the rest, only the norm behind the tables is shared in one and not in the other.
    apart.load_state_dict({**shared.state_dict(), **_deltas(apart)})
    batch = batches(objective_of(shared, source, tokenizer))[0]
    first, second = (model.outputs(batch)[REPLACED] for model in (shared, apart))
    assert torch.equal(shared.detect(batch)[1], apart.detect(batch)[1])
    for model, output in ((shared, first), (apart, second)):
        model.zero_grad(set_to_none=True)
        output.total.backward()
    both = shared.generator.embedding.tokens.weight.grad, apart.discriminator.embedding.tokens.weight.grad
    assert torch.allclose(*both, atol=1e-6)


def _deltas(model):
    names = ("tokens", "positions", "types")
    return {
        f"discriminator.embedding.{each}.weight": getattr(model.discriminator.embedding, each).weight for each in names
    }


@every_sharing
def test_copies_share_nothing_and_answer_the_same(tokenizer, source, sharing):
    model = model_of(sharing).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    generator, discriminator = model.separate()
    packed = pack(random_ids((5, 9)))
    with torch.no_grad():
        assert torch.allclose(discriminator(packed), model.discriminator(packed), atol=1e-6)
        assert torch.equal(generator(packed), model.generator(packed))
    assert not any(isinstance(part, DisentangledTable) for part in discriminator.modules())
    assert discriminator.state_dict().keys() == Encoder(discriminator.config).state_dict().keys()
    held = {parameter.data_ptr() for parameter in model.parameters()}
    copied = [parameter.data_ptr() for each in (generator, discriminator) for parameter in each.parameters()]
    assert not held & set(copied)
    assert len(set(copied)) == len(copied)


def test_a_run_with_other_embeddings_is_not_resumed(tokenizer, source):
    identities = [objective_of(model_of(sharing), source, tokenizer).identity for sharing in SHARINGS]
    assert [each["embeddings"] for each in identities] == ["own", "shared", "disentangled"]


def test_encoders_that_cannot_share_are_refused():
    with pytest.raises(InvalidInput, match=r"the table of tokens is \(61, 10\) in the generator and \(61, 14\)"):
        model_of(SharedEmbeddings(), generator={"embedding_size": 10})
    with pytest.raises(InvalidInput, match="the table of positions"):
        model_of(DisentangledEmbeddings(), generator={"max_position_embeddings": 9})
    with pytest.raises(InvalidInput, match="one vocabulary, got 60 and 61"):
        model_of(OwnEmbeddings(), generator={"vocab_size": 60})
    assert model_of(OwnEmbeddings(), generator={"embedding_size": 10})
