"""Distillation equals plain torch on padded rows, leaves its teacher alone, and takes teachers of another width."""

import pytest
import torch
from torch import nn

from bothways.encoder import Encoder, Recorder
from bothways.encoder.heads import new_head
from bothways.errors import InvalidInput
from bothways.families import FAMILIES
from bothways.objectives.distillation import (
    AllTokens,
    ChosenTokens,
    MaskedLMDistillation,
    StateDistillation,
    StateLoss,
    TripleLoss,
    vector_distance,
)
from bothways.objectives.masked_lm import MaskedLM
from bothways.objectives.sequences import MaskedBatch
from bothways.packing import pack
from tiny_models import TINY, random_ids, scramble

LENGTHS = (7, 4, 11)


def encoder_of(seed, **settings):
    return scramble(Encoder(FAMILIES["bert"].config(TINY["bert"] | settings)), seed)


def masked_lm_of(seed, **settings):
    family, own = FAMILIES["bert"], TINY["bert"] | settings
    head = new_head(family.config(own), family.head("masked_lm", own).kind)
    return MaskedLM(encoder_of(seed, **settings), scramble(head, seed + 1))


def mean_of(hidden_TH, packed):
    return torch.stack([each.mean(0) for each in hidden_TH.split(list(packed.lengths))])


def states_of(encoder, packed):
    record = Recorder()
    encoder(packed, record=record)
    return record.hidden_states


@pytest.fixture
def batch():
    """Three sequences with four chosen places."""
    packed = pack(random_ids(LENGTHS))
    rows_M = torch.tensor([1, 5, 9, 20])
    empty = torch.empty(0, dtype=torch.long)
    return MaskedBatch(packed, rows_M, torch.tensor([6, 7, 8, 9]), torch.rand(4), empty, empty, counts=(1, 2, 1))


def means(model, batch):
    return {name: part.total / model.units(batch)[name] for name, part in model.outputs(batch).items()}


@pytest.mark.parametrize("places", [AllTokens(), ChosenTokens()], ids=["all", "chosen"])
def test_the_triple_loss_is_that_of_torch(batch, places):
    student, teacher = masked_lm_of(0, num_hidden_layers=2), masked_lm_of(5)
    found = means(MaskedLMDistillation(student, teacher, TripleLoss(places=places, temperature=3.0)), batch)
    (ours_TH, theirs_TH) = (each.encoder(batch.packed) for each in (student, teacher))
    rows = slice(None) if isinstance(places, AllTokens) else batch.rows_M
    logits = [
        each.head(hidden_TH, each.encoder.embedding.tokens.weight)
        for each, hidden_TH in ((student, ours_TH), (teacher, theirs_TH))
    ]
    soft = nn.KLDivLoss(reduction="batchmean")((logits[0][rows] / 3).log_softmax(-1), (logits[1][rows] / 3).softmax(-1))
    expected = {
        "teacher's predictions": soft * 9,
        "masked tokens": nn.CrossEntropyLoss()(logits[0][batch.rows_M], batch.targets_M),
        "last hidden states": nn.CosineEmbeddingLoss()(ours_TH, theirs_TH, torch.ones(len(ours_TH))),
    }
    assert list(found) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=name)


def test_states_and_vectors_are_compared_as_in_torch(batch):
    student, teacher = encoder_of(0, num_hidden_layers=2), encoder_of(5)
    model = StateDistillation(student, teacher, (0, 2), mean_of)
    found = means(model, batch)
    ours_TH, theirs_TH = student.embedding(batch.packed), teacher.embedding(batch.packed)
    torch.testing.assert_close(found["embeddings"], nn.MSELoss()(ours_TH, theirs_TH))
    states = [states_of(encoder, batch.packed) for encoder in (student, teacher)]
    errors = [nn.MSELoss()(states[0][1], states[1][1]), nn.MSELoss()(states[0][2], states[1][3])]
    torch.testing.assert_close(found["hidden states"], torch.stack(errors).mean())
    unit = [nn.functional.normalize(mean_of(each[-1], batch.packed), dim=-1) for each in states]
    torch.testing.assert_close(found["vectors"], nn.MSELoss()(*unit) * unit[0].shape[1] / 2)
    torch.testing.assert_close(model.vectors(batch.packed)[0], mean_of(states[0][-1], batch.packed))


def test_a_teacher_is_trained_by_nothing(batch):
    teacher = masked_lm_of(5).train()
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    model = MaskedLMDistillation(masked_lm_of(0), teacher, TripleLoss()).train()
    sum(means(model, batch).values()).backward()
    assert not teacher.training
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert all(map(torch.equal, before.values(), teacher.state_dict().values()))
    ours = {id(parameter) for parameter in model.parameters()}
    assert ours.isdisjoint(id(parameter) for parameter in teacher.parameters())
    assert not any("teacher" in name for name in model.state_dict())
    assert all(parameter.grad is not None for parameter in model.student.encoder.layers.parameters())


def test_a_student_of_states_and_vectors_is_trained_without_dropout(batch):
    noisy = {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5}
    model = StateDistillation(encoder_of(0, **noisy), encoder_of(5), (0, 1, 2), mean_of).train()
    first, second = (means(model, batch) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    sum(first.values()).backward()
    assert all(parameter.grad is not None for parameter in model.student.layers.parameters())


def test_a_part_of_weight_0_is_left_out(batch):
    states = StateDistillation(encoder_of(0), encoder_of(5), (0, 1, 2), mean_of, StateLoss(vectors=0.0, embeddings=0.5))
    assert states.weights == {"hidden states": 1.0, "embeddings": 0.5}
    assert list(states.outputs(batch)) == ["hidden states", "embeddings"]
    triple = MaskedLMDistillation(masked_lm_of(0), masked_lm_of(5), TripleLoss(masked=0.0))
    assert list(triple.outputs(batch)) == ["teacher's predictions", "last hidden states"]


def test_a_wider_teacher_is_met_by_a_projection(batch):
    wide = {"hidden_size": 32, "intermediate_size": 40}
    model = StateDistillation(encoder_of(0), encoder_of(5, **wide), (0, 1, 2), mean_of)
    assert model.projection.weight.shape == (32, 24)
    sum(means(model, batch).values()).backward()
    assert model.projection.weight.grad is not None
    assert model.embedding_projection.weight.grad is not None
    triple = MaskedLMDistillation(masked_lm_of(0), masked_lm_of(5, **wide), TripleLoss())
    means(triple, batch)["last hidden states"].backward()
    assert triple.projection.weight.grad is not None


def test_vectors_of_two_widths_are_compared_by_their_cosines():
    packed = pack(random_ids((5, 1, 4, 6)))  # the second one only fills the batch up
    ours_BK, theirs_BK = torch.randn(4, 6), torch.randn(4, 9)
    found_B = vector_distance(ours_BK, theirs_BK, packed)
    for row, others in ((0, (2, 3)), (2, (0, 3)), (3, (0, 2))):
        errors = [
            torch.cosine_similarity(ours_BK[row], ours_BK[each], dim=0)
            - torch.cosine_similarity(theirs_BK[row], theirs_BK[each], dim=0)
            for each in others
        ]
        torch.testing.assert_close(found_B[row], torch.stack(errors).square().mean())
    assert found_B[1] == 0


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(InvalidInput, match="teacher's vocabulary of 70 tokens, got 61"):
        StateDistillation(encoder_of(0), encoder_of(5, vocab_size=70), (0, 1, 2), mean_of)
    with pytest.raises(InvalidInput, match="teacher's vocabulary of 70 tokens, got 61"):
        MaskedLMDistillation(masked_lm_of(0), masked_lm_of(5, vocab_size=70), TripleLoss())
    for layers in ((0, 1), (0, 1, 3)):
        with pytest.raises(InvalidInput, match="expected a teacher layer from 0 to 2"):
            StateDistillation(encoder_of(0), encoder_of(5), layers, mean_of)
    with pytest.raises(InvalidInput, match="weights of 0 or more"):
        StateLoss(0, 0, 0)
    with pytest.raises(InvalidInput, match="weights of 0 or more"):
        TripleLoss(soft=-1)
    with pytest.raises(InvalidInput, match="temperature above 0"):
        TripleLoss(temperature=0)
