"""Distillation of tiny teachers: losses fall, runs resume, students open where their teachers do."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from distilling_cases import corpus_of, embedder_teacher, encoder_teacher, masked_lm_teacher, texts
from pretraining_cases import interrupted_after

from bothways import load
from bothways.errors import InvalidInput, NotFitted, UnknownModel
from bothways.objectives.distillation import StateLoss
from bothways.pretraining.courses import BatchWarmup
from bothways.pretraining.distiller import Distiller, EmbedderTeacher, EncoderTeacher, MaskedLMTeacher, open_teacher
from bothways.pretraining.models import Student
from bothways.tasks import FillMask, SentenceEmbedder
from everyday import some_of
from tiny_models import TINY

CLASSIFIER = Path(__file__).parents[1] / "frozen" / "models" / "classifier"
READ = ["w5 w6 w7 w8", "w9 w40 w41"]
TEACHERS = {"embedder": embedder_teacher, "masked_lm": masked_lm_teacher, "encoder": encoder_teacher}
QUICK = {"updates": 60, "batch_size": 16, "learning_rate": 0.01, "show_progress": False, "precision": "float32"}


@pytest.fixture
def no_dropout(monkeypatch):
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    monkeypatch.setitem(TINY, "bert", TINY["bert"] | still)


def distiller_of(folder, kind="embedder", **options):
    folder.mkdir(parents=True, exist_ok=True)
    return Distiller.from_pretrained(TEACHERS[kind](folder / "teacher"), device="cpu", **{"layers": 2, **options})


def corpus_for(distiller, folder):
    return corpus_of(folder, distiller.student.model.tokenizer)


@pytest.mark.parametrize("kind", some_of(TEACHERS, "embedder"))
def test_every_loss_falls_far(tmp_path, kind, no_dropout):
    distiller = distiller_of(tmp_path, kind)
    teacher = distiller.teacher.model
    kept = {name: value.clone() for name, value in teacher.encoder.state_dict().items()}
    record = distiller.fit(corpus_of(tmp_path, distiller.student.model.tokenizer, texts(200)), **QUICK)
    before, after = record.validations[0].metrics, record.validations[-1].metrics
    assert record.validations[0].epoch == 0
    names = {
        "embedder": ("loss",),
        "masked_lm": ("teacher's predictions loss", "last hidden states loss"),
        "encoder": ("hidden states loss",),
    }[kind]
    for name in names:
        assert after[name] < before[name] / 2, name
    if kind == "embedder":
        assert after["spearman_with_teacher"] > before["spearman_with_teacher"] + 0.05
    assert record.losses[-1] < record.losses[0] * 0.7
    assert all(map(torch.equal, kept.values(), teacher.encoder.state_dict().values()))
    assert all(parameter.grad is None for parameter in teacher.encoder.parameters())


@pytest.mark.parametrize("kind", some_of(TEACHERS, "masked_lm"))
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, kind, monkeypatch):
    options = {**QUICK, "updates": 20, "checkpoint_every_updates": 5}
    whole, again, fresh = (distiller_of(tmp_path / name, kind) for name in ("whole", "again", "fresh"))
    corpus, kept = corpus_for(whole, tmp_path), {"checkpoints": tmp_path / "checkpoints"}
    record = whole.fit(corpus, **options)
    interrupted_after(monkeypatch, 13, lambda: again.fit(corpus, **kept, **options))
    resumed = fresh.fit(corpus, **kept, resume=True, **options)
    assert resumed.resumed_from
    assert resumed.losses == record.losses
    assert [each.metrics for each in resumed.validations] == [each.metrics for each in record.validations]
    ours, theirs = (each.fitted.model.encoder.state_dict() for each in (whole, fresh))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_run_of_another_teacher_is_not_resumed(tmp_path):
    options = {**QUICK, "updates": 4}
    first = distiller_of(tmp_path / "a")
    corpus = corpus_for(first, tmp_path)
    first.fit(corpus, checkpoints=tmp_path / "checkpoints", **options)
    other = Distiller.from_pretrained(encoder_teacher(tmp_path / "b", seed=9), layers=2, length=16, device="cpu")
    with pytest.raises(InvalidInput, match="teacher"):
        other.fit(corpus, checkpoints=tmp_path / "checkpoints", resume=True, **options)


def test_a_student_of_an_embedder_is_one_with_the_same_pooling(tmp_path):
    from sentence_transformers import SentenceTransformer

    distiller = distiller_of(tmp_path)
    distiller.fit(corpus_for(distiller, tmp_path), **{**QUICK, "updates": 5})
    distiller.save(tmp_path / "student")
    teacher = distiller.teacher.embedder
    student = SentenceEmbedder.from_pretrained(tmp_path / "student", device="cpu")
    assert student.fitted.settings == teacher.settings
    assert student.fitted.settings.pooling == "weighted_mean"
    vectors = student.encode(READ)
    oracle = SentenceTransformer(str(tmp_path / "student"), device="cpu")
    np.testing.assert_allclose(vectors, oracle.encode(READ), atol=1e-5)
    for name in ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"):
        folders = (tmp_path / "student", distiller.teacher.model.folder)
        ours, theirs = (json.loads((each / name).read_text()) for each in folders)
        assert ours == theirs
    card = json.loads((tmp_path / "student" / "bothways.json").read_text())["card"]
    assert card["loss"] == {"vectors": 1.0, "states": 0.0, "embeddings": 0.0}
    assert card["metrics"].keys() == {"loss", "spearman_with_teacher"}


def test_a_student_of_a_masked_language_model_fills_masks(tmp_path):
    distiller = distiller_of(tmp_path, "masked_lm")
    distiller.fit(corpus_for(distiller, tmp_path), **{**QUICK, "updates": 5})
    distiller.save(tmp_path / "student")
    again = load(tmp_path / "student", heads="masked_lm", device="cpu")
    with torch.inference_mode():
        logits = distiller.fitted.model.apply_head("masked_lm", READ).logits
        assert torch.equal(again.apply_head("masked_lm", READ).logits, logits)
    assert FillMask.from_pretrained(tmp_path / "student", device="cpu").predict("w5 [MASK] w7").fillings


def test_the_published_model_says_what_is_learnt(tmp_path):
    found = {kind: open_teacher(make(tmp_path / kind), device="cpu") for kind, make in TEACHERS.items()}
    assert [type(each) for each in found.values()] == [EmbedderTeacher, MaskedLMTeacher, EncoderTeacher]
    half = Distiller.from_pretrained(tmp_path / "encoder", device="cpu")
    assert half.student.copied == (0, 2)  # half of three layers, rounded up
    assert half.length == 18


def test_losses_can_follow_each_other(tmp_path):
    first = distiller_of(tmp_path)
    corpus = corpus_for(first, tmp_path)
    vectors = EmbedderTeacher(first.teacher.embedder, StateLoss(1.0, 0.0, 0.0))
    states = EmbedderTeacher(first.teacher.embedder, StateLoss(0.0, 1.0, 0.0))
    short = {**QUICK, "updates": 3}
    assert Distiller(vectors, first.student).fit(corpus, **short).validations[-1].metrics.keys() == {
        "loss",
        "spearman_with_teacher",
    }
    second = Distiller(states, first.student)
    before = second.student.model.encoder.embedding.tokens.weight.clone()
    second.fit(corpus, **short)
    assert not torch.equal(before, second.fitted.model.encoder.embedding.tokens.weight)


@pytest.mark.slow
def test_a_narrow_student_learns_from_a_wider_teacher(tmp_path, monkeypatch, no_dropout):
    narrow = encoder_teacher(tmp_path / "narrow", seed=7)
    monkeypatch.setitem(TINY, "bert", TINY["bert"] | {"hidden_size": 32, "num_hidden_layers": 4})
    embedder = open_teacher(embedder_teacher(tmp_path / "wide"), device="cpu").embedder
    teacher = EmbedderTeacher(embedder, StateLoss())
    corpus, longer = corpus_of(tmp_path, teacher.model.tokenizer, texts(300)), {"updates": 100, "learning_rate": 3e-3}
    distiller = Distiller(teacher, Student(load(narrow, device="cpu")))
    record = distiller.fit(corpus, **{**QUICK, **longer})
    same = Distiller(teacher, Student(load(narrow, device="cpu"))).fit(corpus, **{**QUICK, **longer})
    assert same.losses == record.losses  # the projections, too, are drawn by the seed
    before, after = record.validations[0].metrics, record.validations[-1].metrics
    for name in ("vectors loss", "hidden states loss", "embeddings loss"):
        assert after[name] < before[name] * 0.9, name
    distiller.save(tmp_path / "student")
    student = SentenceEmbedder.from_pretrained(tmp_path / "student", device="cpu")
    assert student.encode(READ).shape == (2, 24)
    assert student.fitted.settings == replace(teacher.embedder.settings, width=24)


def test_what_cannot_be_distilled_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="`layers` must be from 1 to 3, the number of the teacher's layers, got 4"):
        distiller_of(tmp_path / "a", layers=4)
    with pytest.raises(InvalidInput, match="`length` must be from 1 to 18 tokens"):
        distiller_of(tmp_path / "b", layers=2, length=19)
    with pytest.raises(UnknownModel):
        Distiller.from_pretrained(tmp_path / "nothing")
    distiller = distiller_of(tmp_path / "c")
    with pytest.raises(NotFitted, match="call fit first"):
        distiller.save(tmp_path / "student")
    with pytest.raises(InvalidInput, match="updates or tokens, got epochs"):
        distiller.fit(None, epochs=3)
    grows = {"updates": 4, "batch_size": 2, "batch_warmup": BatchWarmup(9, updates=2)}
    with pytest.raises(InvalidInput, match="9 sequences"):
        distiller.fit(corpus_for(distiller, tmp_path), **grows, show_progress=False)
    with pytest.raises(InvalidInput, match="is a model for classification: TaskDistiller distils"):
        open_teacher(CLASSIFIER, device="cpu")


def test_another_vocabulary_is_refused(tmp_path):
    teacher = open_teacher(embedder_teacher(tmp_path / "a"), device="cpu")
    other = load(encoder_teacher(tmp_path / "b", "roberta"), device="cpu")
    with pytest.raises(InvalidInput, match=r"the token with the id 0 is '<pad>|the token with the id 0 is '<s>'"):
        Distiller(teacher, Student(other))
