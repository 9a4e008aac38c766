"""Classifiers of few texts above a sentence embedder: all are learnt from, and cross-validation measures them."""

import json
import math
import os
import re
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from bothways import MultiTask, TaskData, TextClassifier, open_trained
from bothways.data import Example
from bothways.data.known_rows import TrainingRows
from bothways.encoder.head_kinds import MeanOfTokens
from bothways.encoder.heads import read_rows
from bothways.errors import NotFitted, TrainingDiverged
from bothways.tasks.backend import stored_windows
from bothways.tasks.classification.learner import learns_all
from bothways.tasks.classification.spec import LabelFitting
from bothways.tasks.heads import training as head_training
from bothways.tasks.heads.contrastive import FEW_TEXTS, ContrastObjective, contrast_updates, supervised_contrastive
from bothways.tasks.heads.diagnostics import KEPT_FROZEN, LEARNT_BEFORE
from bothways.tasks.heads.splits import folds
from bothways.tasks.heads.training import BY_FOLDS, CROSS_VALIDATED, LINEAR, HeadTraining
from bothways.tasks.torch_backend import above_embedder
from bothways.training import stages
from contract_cases import rows, write_embedder

QUIET = {"show_progress": False, "batch_size": 8, "learning_rate": 1e-3}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_embedder(tmp_path_factory.mktemp("few") / "base", "bert")


@pytest.fixture(autouse=True)
def short_trainings(request, monkeypatch):
    """Only the slow tests look at how long the trainings are."""
    if not request.node.get_closest_marker("slow"):
        monkeypatch.setattr(head_training, "MIN_UPDATES", 20)


def opened(base, **options):
    return TextClassifier.from_pretrained(base, device="cpu", **options)


@pytest.fixture(scope="module")
def fitted(base):
    classifier = opened(base)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_training, "MIN_UPDATES", 20)
        return classifier, classifier.fit(rows("single"), **QUIET)


# The loss


def test_the_loss_is_that_of_the_paper():
    generator = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(7, 5, generator=generator, dtype=torch.float64), dim=1)
    classes = [0, 1, 0, 2, 1, 0, 3]
    for number, found in enumerate(supervised_contrastive(vectors, torch.tensor(classes)).tolist()):
        others = [other for other in range(7) if other != number]
        exps = {other: math.exp(float(vectors[number] @ vectors[other]) / 0.05) for other in others}
        same = [other for other in others if classes[other] == classes[number]]
        logs = [math.log(exps[other] / sum(exps.values())) for other in same]
        assert found == pytest.approx(-sum(logs) / len(logs) if logs else 0.0)


def test_each_text_of_a_batch_stands_with_another_of_its_label(base):
    store = stored_windows(opened(base).backend, [f"w{5 + at}" for at in range(24)])
    classes = np.arange(24) % 5
    encoder = opened(base).model.encoder
    objective = ContrastObjective(encoder, None, store, classes, seed=3)
    updates = list(objective.updates(0, 0))
    assert len(updates) == 20 == objective.updates_per_epoch()
    for update in updates:
        (batch,) = update.micro_batches
        texts = store.text_of_window[batch.payload.windows]
        assert len(set(texts.tolist())) == len(texts)
        assert min(np.bincount(classes[texts])[np.unique(classes[texts])]) > 1
    again = list(objective.updates(0, 7))
    assert [each.micro_batches[0].payload.windows for each in again] == [
        each.micro_batches[0].payload.windows for each in updates[7:]
    ]


@pytest.mark.parametrize("tokens", [1, 100, 4096])
def test_a_batch_has_room_for_so_many_tokens_and_two_labels_at_least(base, tokens):
    store = stored_windows(opened(base).backend, [" ".join(["w5"] * 10) for _ in range(12)])
    classes = np.array([0, 1] * 2 + [0] * 8)
    objective = ContrastObjective(opened(base).model.encoder, None, store, classes, 0, tokens)
    for update in objective.updates(0, 0):
        texts = store.text_of_window[update.micro_batches[0].payload.windows]
        assert set(classes[texts].tolist()) == {0, 1}
        assert len(texts) <= max(4, tokens // 12 + 2)


def test_the_loss_has_all_digits_under_bfloat16(base):
    classifier = opened(base)
    store = stored_windows(classifier.backend, [f"w{5 + at} w{20 + at}" for at in range(6)])
    encoder, read = classifier.model.encoder, MeanOfTokens()
    objective = ContrastObjective(encoder, read, store, np.arange(6) % 2, seed=0)
    payload = next(iter(objective.updates(0, 0))).micro_batches[0].payload
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        rows_BH = read_rows(read, encoder, payload.packed).float()
        found = float(objective.loss(payload))
    exact = supervised_contrastive(torch.nn.functional.normalize(rows_BH, dim=1), torch.arange(6)[payload.windows] % 2)
    assert found == pytest.approx(float(exact.sum()), rel=1e-5)


# What a fit does


def test_all_rows_are_learnt_from_and_measured_by_cross_validation(fitted):
    classifier, record = fitted
    card = classifier.card
    assert (record.validations, record.kept_epoch, record.baseline) == ((), None, None)
    assert card["training_rows"] == len(rows("single"))
    assert (card["validation"], card["validation_rows"], card["metrics"]["n"]) == (BY_FOLDS, 0, len(rows("single")))
    assert card["baseline"]["name"] == CROSS_VALIDATED
    assert set(card["baseline"]["metrics"]) >= {"accuracy", "macro_f1", "nll"}
    assert classifier.fitted.facts()["calibration"]["method"] == "temperature"
    assert classifier.confidence.out_of_domain.detector.kind == "energy"
    assert classifier.evaluate(rows("single"), resamples=5).baseline.name == LINEAR


@pytest.mark.slow
def test_no_text_is_answered_by_a_model_that_learnt_from_it(base):
    """Labels at random cannot be told, though the model knows those of all of its texts."""
    texts = [f"w{5 + at} w{20 + (7 * at) % 35}" for at in range(40)]
    labels = np.random.default_rng(0).permutation(40) % 2
    data = [{"text": text, "label": str(label)} for text, label in zip(texts, labels, strict=True)]
    classifier = opened(base)
    classifier.fit(data, epochs=20, **QUIET)
    known = classifier.evaluate(data, resamples=5).accuracy.value
    assert known > 0.9
    assert classifier.card["metrics"]["accuracy"] < 0.75


def test_a_model_is_saved_and_opened_with_what_it_learnt(fitted, tmp_path):
    classifier, _ = fitted
    classifier.save(tmp_path / "saved")
    again = open_trained(tmp_path / "saved", device="cpu")
    asked = [row["text"] for row in rows("single")]
    for one, other in zip(classifier.predict(asked), again.predict(asked), strict=True):
        assert other.label == one.label
        assert other.probability == pytest.approx(one.probability, abs=1e-6)
    readme = (tmp_path / "saved" / "README.md").read_text()
    assert f"- baseline, {CROSS_VALIDATED}: accuracy" in readme
    assert "Measured on the rows in cross-validation" in readme
    json.dumps(again.card, allow_nan=False)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_model(fitted, base):
    classifier, _ = fitted
    again = opened(base)
    again.fit(rows("single"), **QUIET)
    assert again.card["metrics"] == classifier.card["metrics"]
    asked = rows("single")[0]["text"]
    assert again.predict(asked).probabilities == classifier.predict(asked).probabilities


def test_the_linear_model_is_kept_where_fine_tuning_does_worse(base, monkeypatch):
    """And its encoder is again what it was."""

    def wrong(setting, stored, *_):
        with torch.no_grad():
            setting.backend.model.encoder.embedding.tokens.weight.zero_()
        rows_W = [9.0 * np.eye(3)[(number + 1) % 3] for number in stored.truth.tolist()]
        return stored.merged(setting.learner.outputs, rows_W)

    monkeypatch.setattr("bothways.tasks.heads.training._scores_of_folds", wrong)
    before, classifier = opened(base), opened(base)
    classifier.fit(rows("single"), **QUIET)
    accuracy = classifier.card["baseline"]["metrics"]["accuracy"]
    advice = "its validation score is the highest possible." if accuracy == 1 else "more rows, or another encoder"
    assert classifier.card["notes"][0].startswith(KEPT_FROZEN + advice)
    assert classifier.card["metrics"]["accuracy"] == accuracy > 0
    ours, theirs = classifier.model.encoder.state_dict(), before.model.encoder.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_given_validation_rows_are_used_beside_the_contrast(base):
    classifier = opened(base)
    record = classifier.fit(rows("single"), validation=rows("single"), **QUIET)
    assert record.baseline == LINEAR
    assert classifier.card["validation"] == "given"
    assert 20 <= record.updates < 150


def test_all_are_learnt_from_only_if_they_are_few_and_nothing_else_needs_held_out_rows(base):
    backend = above_embedder(opened(base).backend, pairs=False)
    few = [Example(f"w{at}", str(at % 2), at) for at in range(FEW_TEXTS)]
    assert learns_all(backend, LabelFitting(), few)
    for options in ({"calibration": "temperature"}, {"calibration": None}, {"detector": "energy"}):
        assert not learns_all(backend, LabelFitting(**options), few)
    assert not learns_all(backend, LabelFitting(), [*few, Example("w5", "0", 0)])
    assert not learns_all(backend, LabelFitting(), [*few[1:], Example("w5", "alone", 0)])


@pytest.mark.parametrize(
    ("texts", "contrasted", "least"),
    [(90, 20, 20), *(pytest.param(*more, marks=pytest.mark.slow) for more in ((200, 40, 150), (2300, None, 1)))],
)
def test_more_texts_are_brought_together_for_longer_and_very_many_are_not(base, monkeypatch, texts, contrasted, least):
    many = [{"text": f"w{5 + at % 50} w{6 + at % 49}", "label": str(at % 2)} for at in range(texts)]
    began, bring = [], head_training.contrastive_warmup

    def spied(model, read, store, classes_N, options):
        began.append(contrast_updates(len(classes_N)))
        bring(model, read, store, classes_N, options)

    monkeypatch.setattr(head_training, "contrastive_warmup", spied)
    record = opened(base).fit(many, validation=many[:4], epochs=1 if contrasted is None else None, **QUIET)
    assert began == ([] if contrasted is None else [contrasted])
    assert record.updates >= least


@pytest.mark.slow
def test_long_texts_take_fewer_updates_but_three_passes(base, monkeypatch):
    many = [{"text": f"w{5 + at % 50} w{6 + at % 49}", "label": str(at % 2)} for at in range(200)]  # 25 updates a pass
    in_update = QUIET["batch_size"] * 4  # two words and two special tokens
    for tokens, updates in ((1_000 * in_update, 150), (110 * in_update, 125), (in_update, 75)):
        monkeypatch.setattr(head_training, "MIN_TOKENS", tokens)
        assert opened(base).fit(many, validation=many[:4], **QUIET).updates == updates  # whole passes


def test_an_encoder_that_others_share_is_left_alone(fitted, base, tmp_path, monkeypatch):
    """The heads of other tasks begin at it as it came."""
    classifier, _ = fitted
    classifier.save(tmp_path / "saved")
    monkeypatch.setattr("bothways.tasks.heads.training.contrastive_warmup", None)
    model = MultiTask.from_pretrained(tmp_path / "saved", device="cpu")
    model.fit({name: TaskData(rows("single")) for name in ("one", "two")}, epochs=1, **QUIET)


def test_the_rows_of_a_text_share_a_fold_and_those_of_a_label_do_not():
    examples = [Example(f"t{at // 2}", str(at % 4 // 2), 0, "") for at in range(32)]
    found = folds(examples, 0, lambda each: each.text)
    assert (found[::2] == found[1::2]).all()
    for label in "01":
        of_label = np.array([each.label == label for each in examples])
        assert np.bincount(found[of_label], minlength=4).tolist() == [4, 4, 4, 4]
    alike = [Example("t", str(at % 2), 0, "") for at in range(6)]
    assert sorted(set(folds(alike, 0, lambda each: each.text).tolist())) == [0, 1, 2, 3]


def test_a_text_that_occurs_twice_gives_nothing_away(base, monkeypatch):
    """All of its rows are in one fold."""
    drawn = []

    def measured(setting, stored, folds_N, _):
        drawn.extend(folds_N.tolist())
        raise TrainingDiverged("far enough")

    monkeypatch.setattr(head_training, "_scores_of_folds", measured)
    data = [{"text": f"w{5 + at} w{20 + (7 * at) % 35}", "label": str(at % 2)} for at in range(20)]
    opened(base).fit(data * 2, epochs=1, **QUIET)
    assert drawn[:20] == drawn[20:]
    assert set(drawn) == {0, 1, 2, 3}


def test_a_second_training_says_that_its_held_out_rows_were_learnt_before(fitted):
    known = TextClassifier(fitted[0].backend, fitted[0].fitted)
    known.fit(rows("single"), epochs=1, **QUIET)
    assert re.match(r"(\d+) of \1 held-out rows are training rows", known.card["notes"][0])
    classifier = TextClassifier(fitted[0].backend, replace(fitted[0].fitted, known=TrainingRows()))
    classifier.fit(rows("single"), epochs=1, **QUIET)
    assert classifier.card["notes"][0] == LEARNT_BEFORE
    classifier.fit(rows("single"), validation=rows("single"), epochs=1, **QUIET)
    assert LEARNT_BEFORE not in classifier.card["notes"]


def test_a_model_is_kept_where_one_that_measures_it_diverges(base, monkeypatch):
    def diverging(*_):
        raise TrainingDiverged("the loss is nan")

    monkeypatch.setattr("bothways.tasks.heads.training._scores_of_folds", diverging)
    classifier = opened(base)
    classifier.fit(rows("single"), **QUIET)
    assert classifier.card["metrics"] is None
    assert classifier.evaluate(rows("single"), resamples=5).accuracy.value > 0.5


def test_an_interrupted_training_is_kept_and_not_measured(base, monkeypatch):
    class Interrupting:
        def __init__(self, objective):
            self.objective, self.done = objective, 0

        def __getattr__(self, name):
            return getattr(self.objective, name)

        def loss(self, payload):
            self.done += 1
            if self.done == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return self.objective.loss(payload)

    objective = HeadTraining.objective
    monkeypatch.setattr(HeadTraining, "objective", property(lambda self: Interrupting(objective.fget(self))))
    classifier = opened(base)
    record = classifier.fit(rows("single"), epochs=4, **{**QUIET, "batch_size": 8})
    assert (record.interrupted, record.epochs) == (True, 1)
    assert classifier.card["metrics"] is None
    assert "did not finish" in classifier.card["limits"][0]
    assert classifier.fitted.facts()["calibration"] is None
    assert classifier.predict("w5").label in {"ant", "bee", "cow"}


def test_an_interrupted_contrast_ends_the_fit(base, monkeypatch):
    class Record:
        interrupted, signal = True, None

    monkeypatch.setattr(stages, "train", lambda *_, **__: Record)
    classifier = opened(base)
    with pytest.raises(KeyboardInterrupt):
        classifier.fit(rows("single"), **QUIET)
    assert classifier._fitted is None


def test_a_fit_that_fails_at_its_end_leaves_the_classifier_as_it_was(base, monkeypatch):
    def failing(*_, **__):
        raise MemoryError("no more")

    before, classifier = opened(base), opened(base)
    monkeypatch.setattr("bothways.tasks.heads.training._scores_of_folds", failing)
    with pytest.raises(MemoryError):
        classifier.fit(rows("single"), **QUIET)
    with pytest.raises(NotFitted):
        classifier.predict("w5")
    ours, theirs = classifier.model.encoder.state_dict(), before.model.encoder.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
