"""Fine-tuning, predicting, calibrating, resuming and saving text classifiers."""

import gc
import hashlib
import json
import os
import shutil
import signal
from dataclasses import asdict

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from bothways.data.windows import WindowStore
from bothways.encoder import Encoder, ScoreHead, ScoreHeadKind
from bothways.encoder.head_kinds import FirstToken, Labels, Transform
from bothways.errors import CorruptCheckpoint, InvalidInput, NotCalibrated, NotFitted, OutputExists
from bothways.evaluation.temperature import apply_temperature, fit_adaptive_temperature
from bothways.tasks import TextClassifier
from bothways.tasks.classification import learner
from bothways.tasks.classification.learner import LabelLearner
from bothways.tasks.heads.objective import WindowObjective
from bothways.tasks.heads.target_training import TextLoss
from bothways.tasks.heads.targets import Regression
from bothways.tasks.splits import TrainingData
from bothways.tasks.torch_backend import HeadModel
from bothways.text import EncodedText, Window
from bothways.training.optimizers import Stepper
from classifier_cases import LABELS, noisy_rows, rows, same, scored, tensors, without_dropout
from tiny_models import FIRST_WORD, VOCABULARY, tiny_config, write_checkpoint

QUICK = {"epochs": 2, "learning_rate": 3e-3, "batch_size": 6, "validation": rows(6, first=30)}


def opened(folder, **options):
    return TextClassifier.from_pretrained(folder, device="cpu", **options)


def fitted(folder, data=None, *, open_with=None, **options):
    classifier = opened(folder, **(open_with or {}))
    classifier.fit(data or rows(), **{**QUICK, **options})
    return classifier


def softmax(logits_NC):
    exponentials = np.exp(logits_NC - logits_NC.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)


def probabilities(classifier, data, **options):
    predictions = classifier.predict([row["text"] for row in data], **options)
    return np.array([[prediction.probabilities[label] for label in LABELS] for prediction in predictions])


def test_the_same_seed_gives_the_same_model_to_the_bit_and_another_seed_another(base, tmp_path):
    first, again, other = (
        tensors(fitted(base, seed=seed), tmp_path / name) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert same(first, again)
    assert not same(first, other)


def test_training_leaves_the_global_random_generators_and_the_files_of_the_base_alone(base):
    before = {path.name: hashlib.sha256(path.read_bytes()).digest() for path in base.iterdir()}
    torch.manual_seed(5)
    np.random.seed(5)
    expected = torch.rand(1), np.random.rand()
    classifier = opened(base)
    torch.manual_seed(5)
    np.random.seed(5)
    classifier.fit(rows(), **QUICK)
    assert (torch.rand(1), np.random.rand()) == expected
    assert {path.name: hashlib.sha256(path.read_bytes()).digest() for path in base.iterdir()} == before


def test_training_moves_every_weight_of_encoder_and_head_that_the_texts_touch(base, tmp_path, monkeypatch):
    # The start, which may be as good, is not to be kept.
    monkeypatch.setattr(LabelLearner, "validate", lambda *_: None)
    before = load_file(base / "model.safetensors")
    after = tensors(fitted(base, learning_rate=1e-2), tmp_path / "saved")
    for name, value in before.items():
        changed = after[name if name in after else f"bert.{name}"]
        assert not torch.equal(changed, value), name


def test_the_token_budget_changes_memory_and_not_the_weights(base, tmp_path):
    # In float64: AdamW scales a gradient that is zero but for rounding, such as that of the keys' biases, up to a step.
    without_dropout(base)
    data = [*rows(), {"text": "w9 " * 60, "label": "ant"}]
    small, large = (
        tensors(fitted(base, data, open_with={"dtype": "float64"}, max_tokens=budget), tmp_path / name)
        for name, budget in (("small", 8), ("large", 100_000))
    )
    for name in small:
        torch.testing.assert_close(small[name], large[name], rtol=0, atol=1e-6, msg=name)


def test_training_on_long_texts_reads_every_window(base, monkeypatch):
    seen = set()
    forward = HeadModel.forward

    def recording(self, packed):
        if self.training:
            seen.update(packed.ids_T.tolist())
        return forward(self, packed)

    monkeypatch.setattr(HeadModel, "forward", recording)
    long = " ".join(f"w{number}" for number in range(FIRST_WORD, VOCABULARY))
    data = [{"text": long, "label": "ant"}, {"text": "w5 w6", "label": "bee"}]
    fitted(base, data, epochs=1, validation=data)
    assert set(range(FIRST_WORD, VOCABULARY)) <= seen


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(1, 5), st.integers(1, 80))
@hypothesis.settings(max_examples=40)
def test_a_text_weighs_the_same_however_many_windows_it_has(lengths, batch_size, tokens):
    texts = [
        EncodedText(tuple(Window([row] * 4, [0] * 4) for _ in range(-(-count // 4))), count)
        for row, count in enumerate(lengths)
    ]
    store = WindowStore.of(texts)
    answers = TextLoss(Regression(), np.arange(len(lengths)), store)
    config = tiny_config("bert")
    kind = ScoreHeadKind(FirstToken(), Transform("tanh"), Labels())
    model = HeadModel(Encoder(config), ScoreHead(config, kind, 3))
    objective = WindowObjective(
        model, store, answers, lambda: None, batch_size=batch_size, tokens=tokens, seed=0, identity={}
    )
    updates = list(objective.updates(epoch=0, start=0))
    assert len(updates) == objective.updates_per_epoch()
    weights, windows = np.zeros(len(lengths)), np.zeros(len(lengths))
    for update in updates:
        assert update.weight == pytest.approx(min(batch_size, len(lengths)), abs=1e-5) or update is updates[-1]
        for part in update.micro_batches:
            rows = store.text_of_window[part.payload.windows]
            np.add.at(weights, rows, answers.weights(part.payload.windows))
            np.add.at(windows, rows, 1)
            # The window is that of its text, whose number here is also its token; a loss of 0 says that the text's
            # label, which is the same number, goes with it.
            packed = part.payload.packed
            assert packed.ids_T[packed.first_tokens_B].tolist() == rows.tolist()
            scores = torch.tensor(rows, dtype=torch.float32)[:, None]
            assert answers.loss(scores, part.payload.windows).item() == 0
            assert answers.loss(scores + 1, part.payload.windows).item() == pytest.approx(part.weight, abs=1e-5)
            assert part.tokens == sum(part.payload.packed.lengths)
    np.testing.assert_allclose(weights, 1, atol=1e-5)
    assert windows.tolist() == [len(text.windows) for text in texts]


def test_a_training_copies_the_encoder_once(base, monkeypatch):
    def counting(self, *arguments):
        gc.collect()
        embeddings = {
            each.data_ptr()
            for each in gc.get_objects()
            if type(each) is nn.Parameter and each.shape == shape and each.data_ptr() not in before
        }
        found.append(len(embeddings))
        return usual(self, *arguments)

    found, usual = [], Stepper.step
    before = {each.data_ptr() for each in gc.get_objects() if type(each) is nn.Parameter}
    classifier = TextClassifier.from_pretrained(base, device="cpu")
    shape = classifier.backend.model.encoder.embedding.tokens.weight.shape
    monkeypatch.setattr(Stepper, "step", counting)
    data = [{"text": "w5 w6", "label": "ant"}, {"text": "w7 w8", "label": "bee"}] * 4
    classifier.fit(data, epochs=1, validation=data)
    assert found
    assert set(found) == {2}  # as it was opened, and as it is trained


def test_a_cpu_trains_on_no_more_than_1024_tokens_at_once():
    store = WindowStore.of([EncodedText((Window([5] * 100, [0] * 100),), 100)] * 64)
    config = tiny_config("bert")
    model = HeadModel(Encoder(config), ScoreHead(config, ScoreHeadKind(FirstToken(), None, Labels()), 2))
    answers = TextLoss(Regression(), np.zeros(64), store)
    objective = WindowObjective(model, store, answers, lambda: None, batch_size=64, tokens=8192, seed=0, identity={})
    (update,) = objective.updates(epoch=0, start=0)
    assert [part.tokens for part in update.micro_batches] == [*[1000] * 6, 400]
    assert update.weight == 64


def test_cut_texts_are_trained_on_to_the_cut_only(base, monkeypatch):
    seen = set()
    forward = HeadModel.forward
    monkeypatch.setattr(
        HeadModel, "forward", lambda self, packed: seen.update(packed.ids_T.tolist()) or forward(self, packed)
    )
    long = " ".join(f"w{number}" for number in range(FIRST_WORD, VOCABULARY))
    data = [{"text": long, "label": "ant"}, {"text": "w5 w6", "label": "bee"}]
    classifier = fitted(base, data, epochs=1, validation=data, open_with={"on_overflow": "truncate", "max_length": 8})
    assert max(seen) == FIRST_WORD + 5
    reading = classifier.predict(long).tokens_read
    assert (reading.windows, reading.dropped_tokens) == (1, VOCABULARY - FIRST_WORD - 6)


def test_a_long_text_is_labelled_by_the_mean_of_its_windows_logits(base):
    classifier = fitted(base, calibration=None)
    long = " ".join(f"w{5 + place % 50}" for place in range(41))
    windows = classifier.model.tokenizer.encode([long], max_length=18)[0].windows
    words = [" ".join(classifier.model.tokenizer.tokens(window.ids[1:-1])) for window in windows]
    logits_WC, _ = scored(classifier, [{"text": text, "label": "ant"} for text in words])
    lengths = np.array([len(window.ids) for window in windows])
    expected = softmax((logits_WC * lengths[:, None]).sum(0, keepdims=True) / lengths.sum())[0]
    found = classifier.predict(long)
    assert found.tokens_read.windows == len(windows) > 2
    np.testing.assert_allclose([found.probabilities[label] for label in LABELS], expected, rtol=0, atol=1e-6)


def test_probabilities_sum_to_one_and_are_ranked(base):
    for prediction in fitted(base).predict([row["text"] for row in rows()]):
        assert sum(prediction.probabilities.values()) == pytest.approx(1)
        ranked = list(prediction.probabilities.values())
        assert ranked == sorted(ranked, reverse=True)
        assert prediction.probability == ranked[0] == prediction.probabilities[prediction.label]
        assert set(prediction.probabilities) == set(LABELS)


def test_a_prediction_becomes_flat_json_values(base):
    found = fitted(base).predict("w5 w6")
    assert found.to_dict() == {
        "label": found.label,
        "probability": found.probability,
        "probabilities": found.probabilities,
        "out_of_domain": found.out_of_domain,
        "out_of_domain_score": found.out_of_domain_score,
        "windows": 1,
        "dropped_tokens": 0,
    }


def test_probabilities_are_calibrated_on_the_validation_data_and_stay_so_when_saved(base, tmp_path):
    validation = noisy_rows()
    classifier = fitted(base, validation=validation, epochs=6)
    logits_NC, truth_N = scored(classifier, validation)
    expected = fit_adaptive_temperature(logits_NC, truth_N)
    assert asdict(classifier.confidence.calibration) == pytest.approx(asdict(expected), rel=1e-4)
    assert classifier.confidence.calibration.value != pytest.approx(1, abs=0.01)
    calibrated = probabilities(classifier, validation)
    np.testing.assert_allclose(calibrated, apply_temperature(logits_NC, classifier.confidence.calibration), atol=1e-6)
    np.testing.assert_allclose(probabilities(classifier, validation, calibrated=False), softmax(logits_NC), atol=1e-6)
    classifier.save(tmp_path / "saved")
    again = opened(tmp_path / "saved")
    assert again.confidence.calibration == classifier.confidence.calibration
    assert np.array_equal(probabilities(again, validation), calibrated)


def test_calibration_can_be_left_out(base, tmp_path):
    classifier = fitted(base, calibration=None)
    assert classifier.confidence.calibration is None
    assert np.array_equal(probabilities(classifier, rows()), probabilities(classifier, rows(), calibrated=False))
    with pytest.raises(NotCalibrated, match="is not calibrated"):
        classifier.predict("w5", calibrated=True)
    classifier.save(tmp_path / "saved")
    assert opened(tmp_path / "saved").confidence.calibration is None


def test_evaluation_agrees_with_the_predictions(base):
    classifier, data = fitted(base), noisy_rows()
    labels = [prediction.label for prediction in classifier.predict([row["text"] for row in data])]
    expected = np.mean([label == row["label"] for label, row in zip(labels, data, strict=True)])
    report = classifier.evaluate(data, resamples=20)
    assert report.accuracy.value == pytest.approx(expected)


def test_without_validation_data_a_tenth_is_held_out_by_the_seed(base, tmp_path):
    data = rows(40)
    first, again = (fitted(base, data, validation=None, seed=3) for _ in range(2))
    assert (first.card["training_rows"], first.card["validation_rows"]) == (36, 4)
    assert same(tensors(first, tmp_path / "a"), tensors(again, tmp_path / "b"))
    assert first.confidence.calibration == again.confidence.calibration


def test_numbers_that_are_all_different_can_be_held_out(base):
    data = [{"text": f"w{5 + number}", "label": 0.5 * number} for number in range(20)]
    classifier = fitted(base, data, validation=None, target="regression")
    assert classifier.card["validation_rows"] == 2


def test_what_was_made_of_what_is_kept_with_the_model(base, tmp_path):
    classifier = fitted(base, seed=4)
    classifier.save(tmp_path / "saved")
    card = opened(tmp_path / "saved").card
    assert card == classifier.card
    assert (card["training_rows"], card["validation_rows"], card["validation"]) == (18, 6, "given")
    assert card["base_model"] == str(base)
    assert card["training"]["settings"]["seed"] == 4


def test_the_columns_of_the_training_data_are_read_again_unless_others_are_named(base, tmp_path):
    def renamed(data):
        return [{"title": "w5", "body": row["text"], "class": row["label"]} for row in data]

    columns = {"text": ("title", "body"), "label": "class"}
    fitted(base, renamed(rows()), **columns, validation=renamed(rows(6, first=30))).save(tmp_path / "saved")
    classifier, test = opened(tmp_path / "saved"), renamed(rows(6, first=40))
    assert classifier.card["columns"] == {"text": ["title", "body"], "label": "class"}
    assert classifier.evaluate(test).to_dict() == classifier.evaluate(test, **columns).to_dict()
    with pytest.raises(InvalidInput, match="no column 'text'"):
        classifier.evaluate(test, text="text")
    with pytest.raises(InvalidInput, match="no column 'title'"):
        classifier.evaluate(rows(6))


@pytest.mark.parametrize("columns", ["text", {"text": "text", "label": "label"}, {"text": [], "label": "label"}])
def test_damaged_columns_of_a_card_are_refused(base, tmp_path, columns):
    fitted(base).save(tmp_path / "saved")
    path = tmp_path / "saved" / "bothways.json"
    content = json.loads(path.read_text())
    content["card"]["columns"] = columns
    path.write_text(json.dumps(content))
    with pytest.raises(CorruptCheckpoint, match="columns of its card"):
        opened(tmp_path / "saved")


class Interruption:
    """Validates as ever, remembers the logits, and presses Ctrl-C in one validation."""

    def __init__(self, monkeypatch, at):
        self.logits = []
        original = learner.validate

        def validate(target, logits_NC, truth_N, **options):
            if len(self.logits) + 1 == at:
                monkeypatch.setattr(learner, "validate", original)
                os.kill(os.getpid(), signal.SIGINT)
            self.logits.append(logits_NC.copy())
            return original(target, logits_NC, truth_N, **options)

        monkeypatch.setattr(learner, "validate", validate)


def test_after_ctrl_c_the_classifier_has_its_kept_epoch_and_is_usable(base, monkeypatch, tmp_path):
    interruption = Interruption(monkeypatch, at=3)
    classifier = opened(base)
    record = classifier.fit(rows(), **{**QUICK, "epochs": 50})
    assert record.interrupted
    assert len(interruption.logits) == 2
    found, _ = scored(classifier, QUICK["validation"])
    np.testing.assert_allclose(found, interruption.logits[record.kept_epoch], atol=1e-5)
    classifier.save(tmp_path / "saved")
    assert opened(tmp_path / "saved").predict("w5 w20") == classifier.predict("w5 w20")


def test_an_interrupted_run_that_is_resumed_gives_the_model_of_one_that_was_not(base, monkeypatch, tmp_path):
    options = {"epochs": 4, "seed": 2}
    whole = fitted(base, **options)
    Interruption(monkeypatch, at=4)  # the start, two epochs, and in the third
    assert opened(base).fit(rows(), checkpoints=tmp_path / "run", **{**QUICK, **options}).interrupted
    resumed = opened(base)
    record = resumed.fit(rows(), checkpoints=tmp_path / "run", resume=True, **{**QUICK, **options})
    assert record.resumed_from == 9
    assert same(tensors(whole, tmp_path / "whole"), tensors(resumed, tmp_path / "resumed"))
    assert resumed.confidence.calibration == whole.confidence.calibration


def test_a_run_is_not_resumed_from_another_model_or_with_other_labels(base, monkeypatch, tmp_path):
    run = {"checkpoints": tmp_path / "run", **QUICK}
    Interruption(monkeypatch, at=2)
    classifier = opened(base)
    assert classifier.fit(rows(), **run).interrupted
    write_checkpoint(tmp_path / "other", seed=7)
    other = opened(tmp_path / "other")
    with pytest.raises(InvalidInput, match=r"starting model \(its weights\) was '\w{16}' and is now '\w{16}'"):
        other.fit(rows(), resume=True, **run)
    renamed = [{**row, "label": f"{row['label']}s"} for row in rows()]
    held = [{**row, "label": f"{row['label']}s"} for row in QUICK["validation"]]
    with pytest.raises(InvalidInput, match=r"labels was \"'ant', 'bee', 'cow'\" and is now \"'ants'"):
        opened(base).fit(renamed, resume=True, **{**run, "validation": held})
    # The same weights from elsewhere, and the object that was interrupted, are the same model.
    shutil.copytree(base, tmp_path / "moved")
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    moved = opened(tmp_path / "moved")
    assert moved.fit(rows(), resume=True, **run).resumed_from
    assert classifier.fit(rows(), resume=True, **{**run, "checkpoints": tmp_path / "again"}).resumed_from
    assert same(tensors(moved, tmp_path / "one"), tensors(classifier, tmp_path / "two"))


def test_fitting_again_on_the_same_labels_goes_on_with_the_head(base, tmp_path):
    fitted(base).save(tmp_path / "saved")
    classifier = opened(tmp_path / "saved")
    before, _ = scored(classifier, rows())
    classifier.fit(rows(), **{**QUICK, "learning_rate": 1e-9, "weight_decay": 0.0})
    np.testing.assert_allclose(scored(classifier, rows())[0], before, atol=1e-4)


BARELY = {"epochs": 1, "learning_rate": 1e-9, "weight_decay": 0.0}


@pytest.mark.parametrize("target", ["single", "multi"])
def test_outputs_in_another_order_keep_their_labels_when_training_goes_on(base, tmp_path, target):
    names = dict(zip(LABELS, ("zebra", "yak", "ox"), strict=True))  # sorted the other way round
    learnt = [{**row, "label": [row["label"]] if target == "multi" else row["label"]} for row in rows()]
    renamed = [{**row, "label": [names[row["label"]]] if target == "multi" else names[row["label"]]} for row in rows()]
    fitted(base, learnt, validation=learnt, target=target).save(tmp_path / "saved")
    classifier = opened(tmp_path / "saved", labels=list(names.values()))
    before, _ = scored(classifier, renamed)
    classifier.fit(renamed, validation=renamed, target=target, **BARELY)
    assert classifier.labels == ("zebra", "yak", "ox")
    np.testing.assert_allclose(scored(classifier, renamed)[0], before, atol=1e-4)


def test_fitting_on_other_labels_begins_a_head_that_no_seed_decides(base, tmp_path):
    before = fitted(base)
    before.save(tmp_path / "saved")
    other = [{**row, "label": row["label"] + "s"} for row in rows()]
    weights = [before.fitted.backend.head_model.head.output.weight]
    for seed in (1, 1, 2):
        classifier = opened(tmp_path / "saved")
        classifier.fit(other, validation=other, seed=seed, **BARELY)
        weights.append(classifier.fitted.backend.head_model.head.output.weight)
    known, first, again, second = weights
    assert torch.equal(first, again)
    assert torch.allclose(first, second, atol=1e-3)
    assert not torch.allclose(first, known, atol=1e-3)


def test_fitting_on_other_labels_begins_a_new_head(base):
    classifier = fitted(base)
    other = [{**row, "label": row["label"] + "s"} for row in rows()]
    classifier.fit(other, **{**QUICK, "validation": other})
    assert classifier.labels == ("ants", "bees", "cows")
    assert classifier.predict("w5").label in {"ants", "bees", "cows"}


def test_length_and_overflow_come_back_and_the_caller_overrules_them(base, tmp_path):
    fitted(base, open_with={"max_length": 9, "on_overflow": "truncate"}).save(tmp_path / "saved")
    again = opened(tmp_path / "saved")
    assert (again.backend.reading.max_length, again.backend.reading.on_overflow) == (9, "truncate")
    other = opened(tmp_path / "saved", max_length=12, on_overflow="error")
    assert (other.backend.reading.max_length, other.backend.reading.on_overflow) == (12, "error")


def test_labels_of_ones_own_that_look_like_numbered_ones_come_back(base, tmp_path):
    data = [{**row, "label": f"LABEL_{LABELS.index(row['label'])}"} for row in rows()]
    fitted(base, data, validation=data).save(tmp_path / "saved")
    assert opened(tmp_path / "saved").labels == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_unicode_labels_come_back(base, tmp_path):
    data = [{**row, "label": {"ant": "Ameise 🐜", "bee": "蜂", "cow": "vache du pré"}[row["label"]]} for row in rows()]
    classifier = fitted(base, data, validation=data)
    classifier.save(tmp_path / "saved")
    assert opened(tmp_path / "saved").outputs.target == classifier.outputs.target


@pytest.mark.parametrize(
    "options",
    [
        {"validation": [{"text": "w5", "label": "dog"}]},
        {"batch_size": 0},
        {"epochs": 0},
        {"learning_rate": 0.0},
        {"resume": True},
    ],
    ids=str,
)
def test_a_fit_that_was_refused_leaves_the_classifier_as_it_was(base, options):
    classifier = opened(base)
    with pytest.raises(InvalidInput):
        classifier.fit(rows(), **{**QUICK, **options})
    with pytest.raises(NotFitted):
        classifier.predict("w5")


def test_a_refit_that_was_refused_keeps_the_trained_head(base, tmp_path):
    classifier = fitted(base, checkpoints=tmp_path / "run")
    before = classifier.predict("w5 w20")
    other = [{**row, "label": row["label"] + "s"} for row in rows()]
    with pytest.raises(OutputExists):
        classifier.fit(other, **{**QUICK, "validation": other}, checkpoints=tmp_path / "run")
    assert classifier.predict("w5 w20") == before


def test_resuming_from_a_damaged_checkpoint_is_refused(base, tmp_path):
    fitted(base, checkpoints=tmp_path / "run")
    newest = max(
        (path for path in (tmp_path / "run").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )
    newest.write_bytes(newest.read_bytes()[:100])
    classifier = opened(base)
    with pytest.raises(CorruptCheckpoint):
        classifier.fit(rows(), checkpoints=tmp_path / "run", resume=True, **QUICK)
    with pytest.raises(NotFitted):
        classifier.predict("w5")


def test_squared_errors_are_told_in_units_of_what_is_learnt_even_if_one_row_is_held_out(base):
    data = [{"text": f"w{5 + number}", "label": 100.0 * number} for number in range(12)]
    classifier = opened(base)

    def unit(data):
        options = {"target": "regression"}
        columns, own, training = classifier.fit_options({"epochs": 1, **options})
        return classifier._training(classifier.backend, TrainingData(data), columns, own, training).unit

    assert 0.5 < unit(data) / np.var([row["label"] for row in data]) < 2
    assert unit([{**row, "label": 3.0} for row in data]) == 1.0
