"""Permutation language modelling: its targets and orders, its losses, its memories, and what a tiny model learns."""

from itertools import islice

import numpy as np
import pytest
import torch
import transformers
from corpora import random_documents, write_corpus

from bothways.checkpoints import load
from bothways.encoder import Encoder
from bothways.encoder.heads import new_head
from bothways.encoder.streams import VISIBLE
from bothways.errors import InvalidInput
from bothways.families import FAMILIES
from bothways.objectives.corpus import CorpusPieces
from bothways.objectives.masking import Masker, Masking
from bothways.objectives.permutation_lm import Permutation, PermutationLM, Permuter
from bothways.objectives.pretraining import PREDICTED, PretrainingObjective, sequence_sums
from bothways.objectives.streams import PhasedStream, StreamPhase
from cuda_emulation import emulated_cuda, no_waits
from tiny_models import FIRST_WORD, TINY, VOCABULARY, write_checkpoint

LENGTH, MEMORY = 14, 16


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


def in_lanes(model, tokenizer, source, validation=None, updates=6, tokens=120, lanes=4):
    """An objective whose sequences are read in lanes, with memories."""
    stream = PhasedStream([StreamPhase(source, 2 * updates, lanes, MEMORY)], 0)
    permuter = Permuter(tokenizer, Permutation(), 0)
    return PretrainingObjective(model, stream, validation, permuter, updates_per_epoch=updates, tokens=tokens)


def batches(objective, epoch=0):
    return [part.payload.batch for update in objective.updates(epoch, 0) for part in update.micro_batches]


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
        assert float(ours.losses_M.mean()) == pytest.approx(float(expected.loss), abs=1e-5)
        real = torch.arange(max(batch.counts)) < torch.tensor(batch.counts)[:, None]
        with torch.no_grad():
            logits = model(batch)
        assert torch.allclose(logits, expected.logits[real], atol=1e-5)
    assert compared > 3


def test_losses_do_not_depend_on_the_batch(xlnet, corpus):
    source = CorpusPieces.of(corpus, xlnet, LENGTH)
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


@pytest.mark.parametrize("made", [objective_of, in_lanes])
def test_a_gpu_does_not_wait(xlnet, corpus, monkeypatch, made):
    objective = made(model_of().train(), xlnet, CorpusPieces.of(corpus, xlnet, LENGTH))
    with emulated_cuda(monkeypatch):
        for part in (each for update in islice(objective.updates(0, 0), 2) for each in update.micro_batches):
            with no_waits():
                with torch.autocast("cpu", torch.bfloat16):
                    loss = objective.loss(part.payload)
                loss.backward()
            assert torch.isfinite(loss)
    parameters = objective.model.named_parameters()
    assert all(value.grad is None or value.grad.isfinite().all() for _, value in parameters)
    assert objective.model.encoder.embedding.blank.grad.abs().sum() > 0


def framed(tokenizer, words, seed=0):
    """Random words, and the two tokens that end a sequence."""
    ids = np.random.default_rng(seed).integers(FIRST_WORD, VOCABULARY, words)
    return np.array([*ids, tokenizer.sep_id, tokenizer.cls_id], dtype=np.int32)


def spans_of(places):
    """Lengths of the runs of neighbouring places."""
    return [len(run) for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)]


def test_a_sixth_of_the_tokens_are_targets_in_spans_of_up_to_five(xlnet):
    """Statistics of 100,000 tokens; where spans are too few, single tokens fill up, which may touch a span."""
    permuter, length = Permuter(xlnet, Permutation(), seed=1), 500
    places = [permuter.training(framed(xlnet, length), epoch, 0).places_M for epoch in range(200)]
    tokens = 200 * length
    assert sum(map(len, places)) / tokens == pytest.approx(1 / 6, abs=1 / length)
    everywhere = np.bincount(np.concatenate(places), minlength=length)
    # Targets are as frequent at the begin, in the middle and at the end; a context's begin alone has fewer.
    thirds = everywhere.reshape(5, -1).mean(axis=1) / 200
    assert thirds == pytest.approx(np.full(5, 1 / 6), abs=0.03)
    lengths = np.bincount(np.concatenate([spans_of(each) for each in places]), minlength=8)
    shares = lengths[1:6] / lengths.sum()
    assert (np.diff(shares) < 0).all()
    # By tokens, a 1 / L draw gives spans of each length the same share; the filling adds to single ones.
    assert shares[4] * 5 / shares[2] / 3 == pytest.approx(1, abs=0.25)
    assert lengths[6:].sum() / lengths.sum() < 0.03


def test_targets_and_framing_tokens_have_every_order_and_all_others_are_visible(xlnet):
    permuter, ids = Permuter(xlnet, Permutation(partial=4), seed=2), framed(xlnet, 8)
    firsts = np.zeros(len(ids))
    for epoch in range(2000):
        drawn = permuter.training(ids, epoch, 0)
        assert np.array_equal(drawn.ids_n, ids)
        assert np.array_equal(drawn.targets_M, ids[drawn.places_M])
        ordered = np.sort(np.concatenate([drawn.places_M, [8, 9]]))
        assert len(drawn.places_M) == 2
        assert np.array_equal(np.flatnonzero(drawn.order_n != VISIBLE), ordered)
        assert sorted(drawn.order_n[ordered]) == [0, 1, 2, 3]
        firsts[drawn.order_n.argsort()[len(ids) - len(ordered)]] += 1
    assert firsts[8:] / 2000 == pytest.approx([0.25, 0.25], abs=0.04)


def test_a_span_begins_with_a_word(xlnet):
    """Every third piece begins a word here; single tokens that fill up stand anywhere."""
    permuter = Permuter(xlnet, Permutation(), seed=0)
    permuter._kinds.continues_V[:] = np.arange(len(permuter._kinds.continues_V)) % 3 != 0
    ids = (6 + np.arange(480) % 48).astype(np.int32)
    begins = []
    for epoch in range(100):
        places = permuter.training(ids, epoch, 0).places_M
        begins += [run[0] for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1) if len(run) > 2]
    assert len(begins) > 500
    assert np.mean(ids[begins] % 3 == 0) > 0.9


def test_draws_depend_on_seed_epoch_and_sequence_alone(xlnet):
    ids = framed(xlnet, 60)

    def drawn(seed, epoch, sequence):
        found = Permuter(xlnet, Permutation(), seed).training(ids, epoch, sequence)
        return tuple(found.places_M), tuple(found.order_n), tuple(found.uniform_M)

    assert drawn(3, 1, 2) == drawn(3, 1, 2)
    assert len({drawn(3, 1, 2), drawn(4, 1, 2), drawn(3, 2, 2), drawn(3, 1, 3)}) == 4
    permuter = Permuter(xlnet, Permutation(), 3)
    first, second = permuter.validation(ids, 2), permuter.validation(ids, 2)
    assert np.array_equal(first.order_n, second.order_n)
    assert not any(np.array_equal(first.order_n, permuter.training(ids, epoch, 2).order_n) for epoch in range(5))


def test_short_sequences_have_a_target_and_special_ones_none(xlnet):
    permuter = Permuter(xlnet, Permutation(), 0)
    for words in range(1, 7):
        assert len(permuter.training(framed(xlnet, words), 0, words).places_M) in (1, 2)
    empty = permuter.training(framed(xlnet, 0), 0, 0)
    assert len(empty.places_M) == 0
    assert sorted(empty.order_n) == [0, 1]


def test_every_token_can_be_a_target(xlnet):
    found = Permuter(xlnet, Permutation(partial=1), 0).training(framed(xlnet, 12), 0, 0)
    assert found.places_M.tolist() == list(range(12))


@pytest.mark.parametrize("values", [{"partial": 0}, {"longest": 0}])
def test_values_below_one_are_refused(values):
    with pytest.raises(InvalidInput, match="at least 1"):
        Permutation(**values)
