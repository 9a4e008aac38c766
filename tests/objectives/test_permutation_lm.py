"""Permutation language modelling: its losses, its memories, and what a tiny model learns."""

import numpy as np
import pytest
import torch
import transformers
from corpora import flat, random_documents, tiny_tokenizer, write_corpus

from bothways.checkpoints import load
from bothways.encoder import Encoder
from bothways.encoder.heads import new_head
from bothways.errors import InvalidInput
from bothways.families import FAMILIES
from bothways.objectives import (
    CorpusPieces,
    Masker,
    Masking,
    Permutation,
    PermutationLM,
    Permuter,
    PretrainingObjective,
)
from bothways.objectives.permutation_lm import remember
from bothways.objectives.pretraining import PREDICTED, sequence_sums
from bothways.objectives.sequences import Preceding
from bothways.packing import pack
from bothways.training.loop import train
from bothways.training.options import TrainingOptions
from cuda_emulation import emulated_cuda, no_waits
from tiny_models import TINY, write_checkpoint

LENGTH = 14


@pytest.fixture(scope="module")
def xlnet(tmp_path_factory):
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"), "xlnet")


@pytest.fixture(scope="module")
def corpus(xlnet, tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"), xlnet, random_documents(0, 12))


def model_of(seed=0, **settings):
    family, own = FAMILIES["xlnet"], TINY["xlnet"] | settings
    torch.manual_seed(seed)
    config = family.config(own)
    return PermutationLM(Encoder(config), new_head(config, family.head("permutation_lm", own).kind))


def objective_of(model, tokenizer, source, validation=None, partial=6, tokens=120, batch_size=4):
    permuter = Permuter(tokenizer, Permutation(partial=partial), 0)
    return PretrainingObjective.in_epochs(model, source, validation, permuter, batch_size=batch_size, tokens=tokens)


def batches(objective, epoch=0):
    return [part.payload.batch for update in objective.updates(epoch, 0) for part in update.micro_batches]


def options(**changes):
    usual = {"precision": "float32", "warmup_fraction": 0.05, "weight_decay": 0.0, "show_progress": False, "seed": 0}
    return TrainingOptions(**(usual | changes))


def left_padded(packed, values_T):
    """Values of a batch as upstream pads them."""
    parts = [each.flip(0) for each in values_T.split(list(packed.lengths))]
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True).flip(1)


def upstream_loss(theirs, batch):
    """Loss and logits of transformers, with the same permutation masks and target mappings."""
    packed, longest, most = batch.packed, batch.packed.max_length, max(batch.counts)
    hidden, mapping = torch.zeros(packed.count, longest, longest), torch.zeros(packed.count, most, longest)
    labels = torch.full((packed.count, most), -100)
    places = batch.rows_M - packed.first_tokens_B[packed.sequence_T[batch.rows_M]]
    split = zip(places.split(batch.counts), batch.targets_M.split(batch.counts), strict=True)
    for number, (order, (chosen, targets)) in enumerate(
        zip(batch.order_T.split(list(packed.lengths)), split, strict=True)
    ):
        begin = longest - len(order)
        hidden[number, begin:, begin:] = ((order[:, None] <= order) & (order >= 0)).float()
        mapping[number, range(len(chosen)), begin + chosen] = 1.0
        labels[number, : len(targets)] = targets
    return theirs(
        input_ids=left_padded(packed, packed.ids_T),
        attention_mask=left_padded(packed, torch.ones_like(packed.ids_T)),
        token_type_ids=left_padded(packed, packed.types_T),
        perm_mask=hidden,
        target_mapping=mapping,
        labels=labels,
    )


def test_the_loss_is_that_of_transformers(xlnet, corpus, tmp_path):
    write_checkpoint(tmp_path, "xlnet", architecture="XLNetLMHeadModel")
    theirs = transformers.XLNetLMHeadModel.from_pretrained(tmp_path).eval()
    opened = load(tmp_path, heads=["permutation_lm"], device="cpu")
    model = PermutationLM(opened.encoder, opened.heads["permutation_lm"]).eval()
    compared = 0
    objective = objective_of(model, xlnet, CorpusPieces.of(corpus, xlnet, LENGTH))
    for batch in (each for epoch in range(2) for each in batches(objective, epoch)):
        # Upstream attends to everything where a target is the first and all other tokens come behind it.
        if min(batch.packed.lengths) < 8:
            continue
        compared += 1
        with torch.no_grad():
            ours, expected = model.outputs(batch)[PREDICTED], upstream_loss(theirs, batch)
        assert float(ours.losses().mean()) == pytest.approx(float(expected.loss), abs=1e-5)
        real = torch.arange(max(batch.counts)) < torch.tensor(batch.counts)[:, None]
        assert torch.allclose(ours.scores, expected.logits[real], atol=1e-5)
    assert compared > 3


def test_losses_do_not_depend_on_the_batch(xlnet, corpus):
    source = CorpusPieces.of(corpus, xlnet, LENGTH, memory=10)
    model, permuter = model_of().eval(), Permuter(xlnet, Permutation(), 0)
    one, many = (sequence_sums(model, source, permuter, tokens) for tokens in (1, 400))
    np.testing.assert_allclose(one, many, atol=1e-5)


def test_a_batch_of_masks_is_refused(xlnet, corpus):
    source = CorpusPieces.of(corpus, xlnet, LENGTH)
    objective = PretrainingObjective.in_epochs(
        model_of(), source, None, Masker(xlnet, Masking(), 0), batch_size=4, tokens=100
    )
    with pytest.raises(InvalidInput, match="Permuter"):
        objective.model.outputs(batches(objective)[0])


def test_pieces_know_the_tokens_of_their_document_before_them(xlnet, tmp_path):
    documents = random_documents(1, 6)
    source = CorpusPieces.of(write_corpus(tmp_path, xlnet, documents), xlnet, LENGTH, memory=10)
    plain = CorpusPieces.of(write_corpus(tmp_path / "same", xlnet, documents), xlnet, LENGTH)
    read = source.read(range(len(source)), 0)
    expected = []
    for number, document in enumerate(documents):
        own = [each for each in read if source.framed.pieces.document_P[each.number] == number]
        before = []
        for each in own:
            expected.append(before[-10:])
            before += each.ids.tolist()[:-2]
        assert before == flat(document)
    assert [each.before.tolist() for each in read] == expected
    assert {len(each.before) for each in read} >= {0, 10}
    assert all(len(each.before) == 0 for each in plain.read(range(len(plain)), 0))
    assert source.digest != plain.digest
    for part in source.hold_out(0.3, 0):
        assert any(len(each.before) == 10 for each in part.read(range(len(part)), 0))


def test_a_memory_is_what_each_layer_reads_without_a_gradient(xlnet):
    model = model_of().eval()
    memory = remember(model.encoder, Preceding(pack([[7, 8, 9], [10, 11]]), (3, 0, 2)))
    theirs = transformers.XLNetModel(transformers.XLNetConfig(**TINY["xlnet"])).eval()
    assert memory.lengths == (3, 0, 2)
    assert [tuple(each.shape) for each in memory.states] == [(5, 24)] * len(theirs.layer)
    assert not any(each.requires_grad for each in memory.states)
    assert torch.equal(memory.states[0], model.encoder.embedding.tokens.weight[[7, 8, 9, 10, 11]])


def test_predictions_depend_on_the_memory_of_their_own_sequence(xlnet, corpus):
    model = model_of().eval()
    batch = next(
        each
        for each in batches(objective_of(model, xlnet, CorpusPieces.of(corpus, xlnet, LENGTH, memory=10)))
        if each.preceding is not None and 0 in each.preceding.lengths
    )
    with torch.no_grad():
        before = model(batch)
        batch.preceding.packed.ids_T.copy_(5 + (batch.preceding.packed.ids_T - 4) % 40)
        after = model(batch)
    has_memory = torch.tensor(batch.preceding.lengths)[batch.packed.sequence_T[batch.rows_M]] > 0
    changed = (before != after).any(1)
    assert torch.equal(changed, has_memory)


@pytest.mark.parametrize("memory", [0, 10])
def test_a_gpu_does_not_wait(xlnet, corpus, monkeypatch, memory):
    objective = objective_of(model_of().train(), xlnet, CorpusPieces.of(corpus, xlnet, LENGTH, memory=memory))
    with emulated_cuda(monkeypatch):
        for part in next(objective.updates(0, 0)).micro_batches:
            with no_waits():
                with torch.autocast("cpu", torch.bfloat16):
                    loss = objective.loss(part.payload)
                loss.backward()
            assert torch.isfinite(loss)
    parameters = objective.model.named_parameters()
    assert all(value.grad is None or value.grad.isfinite().all() for _, value in parameters)
    assert objective.model.encoder.embedding.blank.grad.abs().sum() > 0


@pytest.mark.parametrize("memory", [0, 8])
def test_a_tiny_corpus_is_learnt_by_heart(xlnet, tmp_path, memory):
    documents = [[[5 + 7 * number + 2 * at, 6 + 7 * number + 2 * at] for at in range(3)] for number in range(8)]
    source = CorpusPieces.of(write_corpus(tmp_path, xlnet, documents), xlnet, 6, memory=memory)
    model = model_of(d_model=48, n_layer=2, d_inner=96, dropout=0.0, initializer_range=0.15)
    objective = objective_of(model, xlnet, source, source, partial=3, tokens=300, batch_size=8)
    model.eval()
    with torch.no_grad():
        before = objective.validate().metrics
    train(objective, options(epochs=150, learning_rate=5e-3))
    after = objective.validate().metrics
    assert before["loss"] > 3.5
    assert after["loss"] < 1.0
    assert after["accuracy"] > 0.8
    assert after["perplexity"] == pytest.approx(np.exp(after["loss"]))


def test_runs_repeat_and_a_resumed_one_ends_as_an_uninterrupted_one(xlnet, corpus, tmp_path):
    source = CorpusPieces.of(corpus, xlnet, LENGTH, memory=10)

    def run(folder, **changes):
        objective = objective_of(model_of(), xlnet, source, source)
        given = options(epochs=2, learning_rate=1e-3, checkpoints=tmp_path / folder, **changes)
        return objective, given

    weights = []
    for name in ("a", "b"):
        objective, given = run(name)
        record = train(objective, given)
        weights.append(objective.module.state_dict())
    objective, given = run("c", checkpoint_every_updates=2)
    whole, calls = objective.loss, []

    def interrupted(payload):
        calls.append(payload)
        if len(calls) == 12:
            raise RuntimeError("power cut")
        return whole(payload)

    objective.loss = interrupted
    with pytest.raises(RuntimeError, match="power cut"):
        train(objective, given)
    objective, given = run("c", checkpoint_every_updates=2, resume=True)
    resumed = train(objective, given)
    assert resumed.resumed_from
    assert resumed.losses == record.losses
    assert resumed.validations == record.validations
    weights.append(objective.module.state_dict())
    for other in weights[1:]:
        assert all(torch.equal(value, other[name]) for name, value in weights[0].items())
