"""Replaced token detection: what is sampled, what counts as replaced, what is shared, and what is learnt."""

import numpy as np
import pytest
import torch
import transformers
from corpora import numbered_documents, options, write_corpus
from replaced_token_cases import NO_DROPOUT, QUICK, SHARINGS, batches, every_sharing, model_of, objective_of

from bothways.checkpoints import load
from bothways.encoder import Encoder
from bothways.errors import InvalidInput
from bothways.objectives.corpus import CorpusPieces
from bothways.objectives.pretraining import MASKED
from bothways.objectives.replaced_tokens import (
    REPLACED,
    DisentangledEmbeddings,
    DisentangledTable,
    OwnEmbeddings,
    ReplacedTokens,
    SharedEmbeddings,
    corrupt,
    sample,
)
from bothways.packing import SelectedRows, pack
from bothways.training.loop import train
from cuda_emulation import emulated_cuda, no_waits
from tiny_models import random_ids, write_checkpoint


def test_a_sample_is_where_the_distribution_function_passes_the_random_number():
    probabilities = torch.tensor([[0.25, 0.0, 0.5, 0.25, 0.0]]).expand(7, -1)
    uniform = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 0.9999, 1 - 2**-24])
    assert sample(probabilities, uniform).tolist() == [0, 0, 2, 2, 3, 3, 3]
    assert sample(torch.full((2, 5), 0.2), torch.tensor([0.0, 0.999])).tolist() == [0, 4]


def test_replaced_are_the_tokens_that_differ_from_the_original(tokenizer, source):
    originals = {each.number: each.ids for each in source.read(range(len(source)), 0)}
    objective = objective_of(model_of(OwnEmbeddings()), source, tokenizer)
    seen = []
    for batch in batches(objective):
        torch.manual_seed(len(seen))
        sampled = torch.where(torch.rand(len(batch.rows_M)) < 0.5, batch.targets_M, 7)
        read, replaced = corrupt(batch, sampled)
        sequences = read.ids_T.split(list(read.lengths))
        labels = replaced.split(list(read.lengths))
        for ids, label in zip(sequences, labels, strict=True):
            # The plain reference: compare with the one original of that length and most of its tokens.
            original = max(
                (each for each in originals.values() if len(each) == len(ids)),
                key=lambda each: (each == ids.numpy()).sum(),
            )
            assert label.tolist() == (original != ids.numpy()).astype(int).tolist()
            seen += label.tolist()
        chosen = torch.zeros_like(read.ids_T).index_fill(0, batch.rows_M, 1).bool()
        assert not replaced[~chosen].any()
        assert torch.equal(read.ids_T[batch.rows_M], sampled)
        assert tokenizer.mask_id not in read.ids_T
        assert not chosen[torch.isin(read.ids_T, torch.tensor([1, 2]))].any()  # special tokens
    assert 0 < np.mean(seen) < 0.15


def test_units_are_chosen_places_and_all_tokens(tokenizer, source):
    objective = objective_of(model_of(SharedEmbeddings()), source, tokenizer)
    for batch in batches(objective):
        assert objective.model.units(batch) == {MASKED: len(batch.rows_M), REPLACED: len(batch.packed.ids_T)}
    update = next(objective.updates(0, 0))
    model = objective.model.eval()
    loss = sum(objective.loss(part.payload) for part in update.micro_batches) / update.weight
    outputs = [model.outputs(part.payload.batch) for part in update.micro_batches]
    masked = torch.cat([output[MASKED].losses_M for output in outputs]).mean()
    replaced = torch.cat([output[REPLACED].losses_M for output in outputs]).mean()
    assert float(loss.detach()) == pytest.approx(float((masked + 50 * replaced).detach()), rel=1e-5)


@every_sharing
def test_a_gpu_does_not_wait_and_sums_in_float32(tokenizer, source, sharing, monkeypatch):
    model = model_of(sharing).train()
    objective = objective_of(model, source, tokenizer)
    with emulated_cuda(monkeypatch):
        for part in next(objective.updates(0, 0)).micro_batches:
            with no_waits():
                with torch.autocast("cpu", torch.bfloat16):
                    loss = objective.loss(part.payload)
                loss.backward()
            assert torch.isfinite(loss)
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.slow  # every day: the golden losses of replaced tokens
@pytest.mark.parametrize("sharing", SHARINGS, ids=lambda sharing: sharing.name)
def test_a_tiny_corpus_is_learnt_by_heart(tokenizer, tmp_path, sharing):
    source = CorpusPieces.of(write_corpus(tmp_path, tokenizer, numbered_documents()), tokenizer, 18)
    wider = {"hidden_size": 32, "num_attention_heads": 4}
    model = model_of(sharing, generator=wider, **NO_DROPOUT, **QUICK, hidden_size=48, intermediate_size=96)
    objective = objective_of(model, source, tokenizer, source, tokens=300)
    with torch.no_grad():
        before = objective.validate().metrics
    train(objective, options(epochs=300, learning_rate=6e-3))
    after = objective.validate().metrics
    assert before[f"{MASKED} loss"] > 3.5
    assert after[f"{MASKED} loss"] < 1.5
    assert before[f"{REPLACED} loss"] > 0.4
    assert after[f"{REPLACED} loss"] < 0.1
    assert after[f"{REPLACED} accuracy"] > 0.97


def test_validation_draws_the_same_samples_whatever_was_drawn_before(tokenizer, source):
    objective = objective_of(model_of(SharedEmbeddings()).eval(), source, tokenizer, source)
    with torch.no_grad():
        first = objective.validate()
        torch.rand(5)
        assert objective.validate() == first
        objective.tokens = 40
        again = objective.validate()
    assert again.score == pytest.approx(first.score, rel=1e-5)


def test_the_discriminators_loss_is_that_of_transformers(tokenizer, source, tmp_path):
    write_checkpoint(tmp_path, "electra", architecture="ElectraForPreTraining")
    oracle = transformers.ElectraForPreTraining.from_pretrained(tmp_path).eval()
    opened = load(tmp_path, heads=["replaced_token"], device="cpu")
    made = model_of(OwnEmbeddings())
    model = ReplacedTokens(
        made.generator, made.generator_head, opened.encoder, opened.heads["replaced_token"], embeddings=OwnEmbeddings()
    ).eval()
    for batch in batches(objective_of(model, source, tokenizer)):
        with torch.no_grad():
            ours = model.outputs(batch)[REPLACED]
            _, scores, changed = model.detect(batch)
            states = model.generator(batch.packed, rows=SelectedRows(batch.rows_M))
            logits = model.generator_head(states, model.generator.embedding.tokens.weight)
            sampled = sample(logits.softmax(-1), batch.uniform_M)
            read, replaced = corrupt(batch, sampled)
            expected = oracle(
                input_ids=read.padded(read.ids_T),
                attention_mask=read.real_BS.long(),
                token_type_ids=read.padded(read.types_T),
                labels=read.padded(replaced),
            )
        assert torch.equal(replaced, changed)
        assert float(ours.losses_M.mean()) == pytest.approx(float(expected.loss), abs=1e-5)
        assert torch.allclose(scores, expected.logits[read.real_BS], atol=1e-5)


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
    own = {f"discriminator.embedding.{name}.weight" for name in ("tokens", "positions", "types")}
    assert found.keys().isdisjoint(own) if sharing == SharedEmbeddings() else own <= found.keys()
    if sharing == DisentangledEmbeddings():  # they begin at zero
        assert not any(dict(model.named_parameters())[name].any() for name in own)
    assert not any(name.startswith("generator_head") for name in found)
    masked = gradients(model, model.outputs(batch)[MASKED].total)
    assert not any(name.startswith("discriminator") for name in masked)
    assert masked["generator.embedding.tokens.weight"] > 0
    assert any(name.startswith("generator.layers") for name in masked)


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
    with pytest.raises(InvalidInput, match=r"the tokens table is \(61, 10\) in the generator and \(61, 14\)"):
        model_of(SharedEmbeddings(), generator={"embedding_size": 10})
    with pytest.raises(InvalidInput, match="the positions table"):
        model_of(DisentangledEmbeddings(), generator={"max_position_embeddings": 9})
    with pytest.raises(InvalidInput, match="equal vocabulary, got 60 and 61"):
        model_of(OwnEmbeddings(), generator={"vocab_size": 60})
    assert model_of(OwnEmbeddings(), generator={"embedding_size": 10})
