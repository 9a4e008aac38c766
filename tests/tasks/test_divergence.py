"""Trainings that diverge, fail or are interrupted: which weights a task answers with, and what it says of itself."""

import itertools
import math
import os
import signal

import pytest
import torch

from answering_cases import questions
from bothways import MultiTask, TaggingData, TaskData
from bothways.errors import InvalidInput, NotFitted, TrainingDiverged
from bothways.objectives.pretraining import PretrainingObjective
from bothways.retrieval import SemanticSearch
from bothways.tasks import FillMask, QuestionAnswerer, SentenceEmbedder, TextClassifier, TextTagger
from bothways.tasks.columns import TextColumns
from bothways.tasks.embedding.objective import EmbeddingObjective
from bothways.tasks.embedding.spec import LabelledTexts
from bothways.tasks.heads.objective import WindowObjective
from classifier_cases import rows, tagged, without_dropout
from everyday import some_of

QUICK = {"epochs": 3, "learning_rate": 3e-3, "batch_size": 6}
TEXTS = [row["text"] for row in rows(6)]


def poison(monkeypatch, updates, kind=WindowObjective):
    """After so many updates, of one micro-batch each, the loss is no number."""
    calls, loss = itertools.count(1), kind.loss
    monkeypatch.setattr(
        kind, "loss", lambda self, payload: loss(self, payload) * (1.0 if next(calls) <= updates else math.nan)
    )


def diverge(monkeypatch, fit, updates, kind=WindowObjective):
    """The epoch whose weights a fit leaves behind that diverges after so many updates."""
    with monkeypatch.context() as patch:
        poison(patch, updates, kind)
        with pytest.raises(TrainingDiverged) as caught:
            fit()
    return caught.value.kept_epoch


def confident(task):
    """Whether it has learnt calibration, coverage and a detector."""
    learnt = task.confidence
    return None not in (learnt.calibration, learnt.conformal, learnt.out_of_domain)


# How each task is made and fitted, what it is asked, and what it has learnt of its answers.
ALONE = {
    "classification": (
        TextClassifier,
        lambda task, **more: task.fit(rows(18), validation=rows(9, 30), **QUICK, **more),
        TEXTS,
        confident,
    ),
    "tagging": (
        TextTagger,
        lambda task, **more: task.fit(tagged(18), validation=tagged(9), **QUICK, **more),
        TEXTS,
        lambda task: task.confidence.calibration is not None,
    ),
    "answering": (
        QuestionAnswerer,
        lambda task, **more: task.fit(questions(18), validation=questions(8), **QUICK, **more),
        [("w5", "w30 w5 w10 w11 w40")],
        lambda task: None not in (task.fitted.outputs.threshold, task.confidence.calibration),
    ),
}


@pytest.mark.parametrize("name", some_of(ALONE, "classification", "answering"))
def test_a_diverged_task_may_be_finished_from_the_epoch_that_was_kept(base, monkeypatch, name):
    kind, fit, asked, has_learnt = ALONE[name]
    task = kind.from_pretrained(base, device="cpu")
    with monkeypatch.context() as patch:
        poison(patch, 4)
        record = fit(task, keep_diverged=True)
    assert (record.kept_epoch, record.interrupted) == (1, False)
    assert "the loss of update 5 is nan" in record.diverged
    assert task.card["training"]["diverged"] == record.diverged
    assert has_learnt(task)
    assert len(task.predict(asked)) == len(asked)


# --- failures and Ctrl-C before an epoch was finished ---

UNFINISHED = {
    **{name: (kind, fit, WindowObjective) for name, (kind, fit, *_) in ALONE.items()},
    "several tasks": (MultiTask, lambda task, **more: task.fit(SHARED, **QUICK, **more), WindowObjective),
    "masks": (
        FillMask,
        lambda task, **more: task.fit([row["text"] for row in rows(18)], validation=TEXTS, **QUICK, **more),
        PretrainingObjective,
    ),
    "embeddings": (
        SentenceEmbedder,
        lambda task, **more: task.fit(rows(24), columns=LabelledTexts(), **QUICK, **more),
        EmbeddingObjective,
    ),
}


def interrupted(monkeypatch, kind, fit):
    """The record of a fit that Ctrl-C ends in its second update."""
    calls, loss = itertools.count(1), kind.loss

    def pressing(self, payload):
        if next(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return loss(self, payload)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "loss", pressing)
        return fit()


def encoder_of(task):
    return {name: value.clone() for name, value in task.model.encoder.state_dict().items()}


def same_weights(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def asked(task):
    if isinstance(task, SentenceEmbedder):
        return [task.predict((TEXTS[0], TEXTS[1]))]
    if isinstance(task, FillMask):
        return [task.predict("w5 [MASK] w20")]
    return task.predict([("w5", "w30 w5 w10")] if isinstance(task, QuestionAnswerer) else TEXTS)


# Tasks with a head share their training.
EVERYDAY = some_of(UNFINISHED, "classification", "several tasks", "masks", "embeddings")


@pytest.mark.parametrize("name", EVERYDAY)
def test_ctrl_c_before_an_epoch_was_finished_leaves_a_task_as_it_was(base, monkeypatch, name):
    kind, fit, objective = UNFINISHED[name]
    task = kind.from_pretrained(without_dropout(base), device="cpu")
    weights, columns = encoder_of(task), task.columns
    record = interrupted(monkeypatch, objective, lambda: fit(task))
    assert (record.finished_no_epoch, record.updates > 0) == (True, True)
    assert same_weights(encoder_of(task), weights)
    assert (task.columns, task.card) == (columns, {})
    if not isinstance(task, SentenceEmbedder):
        with pytest.raises(NotFitted):
            asked(task)


@pytest.mark.parametrize(
    ("name", "error"),
    [("several tasks", RuntimeError), ("classification", KeyboardInterrupt), ("masks", MemoryError)],
)
def test_an_untrained_head_does_not_answer_after_whatever_failure(base, monkeypatch, name, error):
    kind, fit, _ = UNFINISHED[name]
    task = kind.from_pretrained(base, device="cpu")

    def failing(*_, **__):
        raise error("no more")

    for module in ("training.stages", "compose.multitask.multitask"):
        monkeypatch.setattr(f"bothways.{module}.train", failing)
    with pytest.raises(error, match="no more"):
        fit(task)
    with pytest.raises(NotFitted):
        asked(task)


@pytest.mark.parametrize("name", EVERYDAY)
def test_a_second_fit_that_ends_early_leaves_a_task_as_it_was(base, monkeypatch, tmp_path, name):
    kind, fit, objective = UNFINISHED[name]
    task = kind.from_pretrained(without_dropout(base), device="cpu")
    fit(task)
    weights, before, card = encoder_of(task), asked(task), task.card
    again = lambda **more: fit(task, checkpoints=tmp_path / "run", **more)  # noqa: E731
    assert interrupted(monkeypatch, objective, again).finished_no_epoch
    assert (asked(task), task.card) == (before, card)
    with pytest.raises(IsADirectoryError):
        again(resume=True, log=tmp_path)
    assert same_weights(encoder_of(task), weights)
    assert (asked(task), task.card) == (before, card)
    assert again(resume=True).resumed_from is not None
    assert not same_weights(encoder_of(task), weights)


def test_an_embedder_counts_the_trainings_that_changed_it(base, monkeypatch):
    embedder = SentenceEmbedder.from_pretrained(without_dropout(base), device="cpu")
    search = SemanticSearch.build(embedder, TEXTS)
    fit = UNFINISHED["embeddings"][1]
    interrupted(monkeypatch, EmbeddingObjective, lambda: fit(embedder))
    assert embedder.model.trainings == 0
    assert diverge(monkeypatch, lambda: fit(embedder), updates=5, kind=EmbeddingObjective) == 1
    assert embedder.model.trainings == 0
    assert search.search(TEXTS[0], k=1)
    fit(embedder)
    assert embedder.model.trainings == 1
    with pytest.raises(InvalidInput, match="the embedder was trained after the index"):
        search.search(TEXTS[0], k=1)


# --- several tasks ---

SHARED = {
    "animal": TaskData([{"body": row["text"], "kind": row["label"]} for row in rows(18)], text="body", label="kind"),
    "names": TaggingData(tagged(18), tagged(9)),
}


def test_several_tasks_that_diverged_may_be_finished_from_the_epoch_that_was_kept(base, monkeypatch, tmp_path):
    model = MultiTask.from_pretrained(base, device="cpu")
    with monkeypatch.context() as patch:
        poison(patch, 8)
        record = model.fit(SHARED, keep_diverged=True, **QUICK)
    assert (record.kept_epoch, record.interrupted) == (1, False)
    assert [card["training"]["diverged"] for card in model.card.values()] == [record.diverged] * 2
    assert model.columns.text == ("body",)
    assert model.part("animal").columns == TextColumns(("body",), "kind")
    assert confident(model.part("animal"))
    assert model.part("names").confidence.calibration is not None
    model.save(tmp_path / "saved")
    again = MultiTask.from_pretrained(tmp_path / "saved", device="cpu")
    assert again.predict(TEXTS) == model.predict(TEXTS)


@pytest.mark.parametrize(("updates", "kept"), [(0, None), (8, 1)])
def test_several_tasks_that_diverge_are_as_before(base, monkeypatch, updates, kept):
    model = MultiTask.from_pretrained(base, device="cpu")
    assert diverge(monkeypatch, lambda: model.fit(SHARED, **QUICK), updates) == kept
    with pytest.raises(NotFitted):
        model.predict("w5")
    if kept is None:
        return
    model.fit(SHARED, **QUICK)
    before, fitted, card = model.predict(TEXTS), model.fitted, model.card
    assert diverge(monkeypatch, lambda: model.fit(SHARED, **QUICK), updates) == kept
    assert (model.predict(TEXTS), model.card) == (before, card)
    assert model.fitted is fitted
