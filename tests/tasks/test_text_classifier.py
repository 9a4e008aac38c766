"""Fine-tuning, predicting, calibrating, resuming and saving text classifiers."""

import gc
import json
import shutil
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
from bothways.errors import CorruptCheckpoint, InvalidInput, NotCalibrated
from bothways.evaluation.report import Validation
from bothways.evaluation.temperature import apply_temperature, fit_adaptive_temperature
from bothways.tasks import TextClassifier
from bothways.tasks.classification.learner import LabelLearner
from bothways.tasks.heads.linear_start import MeasuredBaseline
from bothways.tasks.heads.objective import WindowObjective
from bothways.tasks.heads.splits import TrainingData, split_fit_options
from bothways.tasks.heads.target_training import TextLoss
from bothways.tasks.heads.targets import Regression
from bothways.tasks.heads.training import train_head
from bothways.tasks.torch_backend import HeadModel
from bothways.text import EncodedText, Window
from bothways.training.optimizers import Stepper
from bothways.training.options import AdamW
from classifier_cases import LABELS, noisy_rows, rows, same, scored, tensors
from tiny_models import FIRST_WORD, VOCABULARY, tiny_config, write_checkpoint

QUICK = {"epochs": 2, "learning_rate": 3e-3, "batch_size": 6, "validation": rows(6, first=30)}


def opened(folder, **options):
    return TextClassifier.from_pretrained(folder, device="cpu", **options)


def fitted(folder, data=None, *, open_with=None, **options):
    classifier = opened(folder, **(open_with or {}))
    classifier.fit(data or rows(), **{**QUICK, **options})
    return classifier


@pytest.fixture(scope="module")
def trained(tiny_bert):
    """A trained classifier that no test changes."""
    return fitted(tiny_bert)


@pytest.fixture
def saved(trained, tmp_path):
    trained.save(tmp_path / "saved")
    return tmp_path / "saved"


def softmax(logits_NC):
    exponentials = np.exp(logits_NC - logits_NC.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)


def probabilities(classifier, data, **options):
    predictions = classifier.predict([row["text"] for row in data], **options)
    return np.array([[prediction.probabilities[label] for label in LABELS] for prediction in predictions])


def test_training_moves_every_weight_of_encoder_and_head_that_the_texts_touch(tiny_bert, tmp_path, monkeypatch):
    # The start, which may be as good, is not to be kept.
    monkeypatch.setattr(MeasuredBaseline, "of", lambda *_: None)
    monkeypatch.setattr(LabelLearner, "validate", lambda *_: Validation({}, 0.0))
    before = load_file(tiny_bert / "model.safetensors")
    after = tensors(fitted(tiny_bert, learning_rate=1e-2), tmp_path / "saved")
    for name, value in before.items():
        changed = after[name if name in after else f"bert.{name}"]
        assert not torch.equal(changed, value), name


@pytest.mark.parametrize("overflow", ["window", "truncate"])
def test_training_reads_every_window_of_long_texts_or_as_far_as_they_are_not_cut(tiny_bert, monkeypatch, overflow):
    seen, forward = set(), HeadModel.forward
    monkeypatch.setattr(
        HeadModel, "forward", lambda self, packed: seen.update(packed.ids_T.tolist()) or forward(self, packed)
    )
    long = " ".join(f"w{number}" for number in range(FIRST_WORD, VOCABULARY))
    data = [{"text": long, "label": "ant"}, {"text": "w5 w6", "label": "bee"}]
    classifier = fitted(
        tiny_bert, data, epochs=1, validation=data, open_with={"on_overflow": overflow, "max_length": 8}
    )
    words = VOCABULARY - FIRST_WORD
    assert max(seen) == (VOCABULARY - 1 if overflow == "window" else FIRST_WORD + 5)
    assert set(range(FIRST_WORD, max(seen) + 1)) <= seen
    reading = classifier.predict(long).tokens_read
    assert (reading.windows > 1, reading.dropped_tokens) == ((True, 0) if overflow == "window" else (False, words - 6))


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(1, 5), st.integers(1, 80))
@hypothesis.settings(max_examples=25)
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
        model, store, answers, lambda: None, batch_size=batch_size, tokens=tokens, seed=0, run_settings={}
    )
    updates = list(objective.updates(epoch=0, start=0))
    assert len(updates) == objective.updates_per_epoch()
    weights, windows = np.zeros(len(lengths)), np.zeros(len(lengths))
    for update in updates:
        assert update.weight == pytest.approx(min(batch_size, len(lengths)), abs=1e-5) or update is updates[-1]
        for part in update.micro_batches:
            rows = store.text_of_window[part.payload.windows]
            np.add.at(weights, rows, answers.weights_W[part.payload.windows])
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


def test_a_training_copies_the_encoder_once(tiny_bert, monkeypatch):
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
    classifier = TextClassifier.from_pretrained(tiny_bert, device="cpu")
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
    objective = WindowObjective(
        model, store, answers, lambda: None, batch_size=64, tokens=8192, seed=0, run_settings={}
    )
    (update,) = objective.updates(epoch=0, start=0)
    assert [part.tokens for part in update.micro_batches] == [*[1000] * 6, 400]
    assert update.weight == 64


def test_a_long_text_is_labelled_by_the_mean_of_its_windows_logits(trained):
    classifier = trained
    long = " ".join(f"w{5 + place % 50}" for place in range(41))
    windows = classifier.model.tokenizer.encode([long], max_length=18)[0].windows
    words = [" ".join(classifier.model.tokenizer.tokens(window.ids[1:-1])) for window in windows]
    logits_WC, _ = scored(classifier, [{"text": text, "label": "ant"} for text in words])
    lengths = np.array([len(window.ids) for window in windows])
    expected = softmax((logits_WC * lengths[:, None]).sum(0, keepdims=True) / lengths.sum())[0]
    found = classifier.predict(long, calibrated=False)
    assert found.tokens_read.windows == len(windows) > 2
    np.testing.assert_allclose([found.probabilities[label] for label in LABELS], expected, rtol=0, atol=1e-6)


def test_probabilities_sum_to_one_and_are_ranked(trained):
    for prediction in trained.predict([row["text"] for row in rows()]):
        ranked = list(prediction.probabilities.values())
        assert sum(ranked) == pytest.approx(1)
        assert ranked == sorted(ranked, reverse=True)
        assert prediction.probability == ranked[0] == prediction.probabilities[prediction.label]
        assert set(prediction.probabilities) == set(LABELS)


def test_probabilities_are_calibrated_on_the_validation_data_and_stay_so_when_saved(tiny_bert, tmp_path):
    validation = noisy_rows()
    classifier = fitted(tiny_bert, validation=validation, epochs=6)
    logits_NC, truth_N = scored(classifier, validation)
    expected = fit_adaptive_temperature(logits_NC, truth_N)
    assert asdict(classifier.confidence.calibration) == pytest.approx(asdict(expected), rel=1e-4)
    assert classifier.confidence.calibration.value != pytest.approx(1, abs=0.01)
    calibrated = probabilities(classifier, validation)
    np.testing.assert_allclose(calibrated, apply_temperature(logits_NC, classifier.confidence.calibration), atol=1e-6)
    np.testing.assert_allclose(probabilities(classifier, validation, calibrated=False), softmax(logits_NC), atol=1e-6)
    classifier.save(tmp_path / "saved")
    again = opened(tmp_path / "saved")
    assert again.card == classifier.card
    assert again.confidence.calibration == classifier.confidence.calibration
    assert np.array_equal(probabilities(again, validation), calibrated)


def test_calibration_can_be_left_out(tiny_bert, tmp_path):
    classifier = fitted(tiny_bert, calibration=None)
    assert classifier.confidence.calibration is None
    assert np.array_equal(probabilities(classifier, rows()), probabilities(classifier, rows(), calibrated=False))
    with pytest.raises(NotCalibrated, match="is not calibrated"):
        classifier.predict("w5", calibrated=True)
    classifier.save(tmp_path / "saved")
    assert opened(tmp_path / "saved").confidence.calibration is None


@pytest.mark.parametrize("columns", ["text", {"text": "text", "label": "label"}, {"text": [], "label": "label"}])
def test_damaged_columns_of_a_card_are_refused(saved, columns):
    path = saved / "bothways.json"
    content = json.loads(path.read_text())
    content["card"]["columns"] = columns
    path.write_text(json.dumps(content))
    with pytest.raises(CorruptCheckpoint, match="columns of its card"):
        opened(saved)


def test_a_run_is_resumed_from_the_same_weights_with_the_same_labels_alone(base, tmp_path):
    run = {"checkpoints": tmp_path / "run", "checkpoint_every_updates": 1, **QUICK}
    trained = fitted(base, **run)
    write_checkpoint(tmp_path / "other", seed=7)
    with pytest.raises(InvalidInput, match=r"starting model \(its weights\) was '\w{16}' and is now '\w{16}'"):
        fitted(tmp_path / "other", resume=True, **run)
    renamed, held = ([{**row, "label": f"{row['label']}s"} for row in data] for data in (rows(), QUICK["validation"]))
    with pytest.raises(InvalidInput, match=r"labels was \"'ant', 'bee', 'cow'\" and is now \"'ants'"):
        fitted(base, renamed, resume=True, **{**run, "validation": held})
    shutil.copytree(base, tmp_path / "moved")
    moved = fitted(tmp_path / "moved", resume=True, **run)
    assert same(tensors(moved, tmp_path / "one"), tensors(trained, tmp_path / "two"))


BARELY = {"epochs": 1, "learning_rate": 1e-9, "optimizer": AdamW(weight_decay=0.0)}


@pytest.mark.parametrize("target", ["single", "multi"])
def test_outputs_in_another_order_keep_their_labels_when_training_goes_on(tiny_bert, tmp_path, target):
    names = dict(zip(LABELS, ("zebra", "yak", "ox"), strict=True))  # sorted the other way round
    learnt = [{**row, "label": [row["label"]] if target == "multi" else row["label"]} for row in rows()]
    renamed = [{**row, "label": [names[row["label"]]] if target == "multi" else names[row["label"]]} for row in rows()]
    fitted(tiny_bert, learnt, validation=learnt, target=target).save(tmp_path / "saved")
    classifier = opened(tmp_path / "saved", labels=list(names.values()))
    before, _ = scored(classifier, renamed)
    classifier.fit(renamed, validation=renamed, target=target, **BARELY)
    assert classifier.labels == ("zebra", "yak", "ox")
    np.testing.assert_allclose(scored(classifier, renamed)[0], before, atol=1e-4)


def test_fitting_on_other_labels_begins_a_head_that_no_seed_decides(trained, saved):
    other = [{**row, "label": row["label"] + "s"} for row in rows()]
    weights = [trained.fitted.backend.head_model.head.output.weight]
    for seed in (1, 1, 2):
        classifier = opened(saved)
        classifier.fit(other, validation=other, seed=seed, **BARELY)
        assert classifier.labels == ("ants", "bees", "cows")
        weights.append(classifier.fitted.backend.head_model.head.output.weight)
    known, first, again, second = weights
    assert torch.equal(first, again)
    assert torch.allclose(first, second, atol=1e-3)
    assert not torch.allclose(first, known, atol=1e-3)


def test_length_and_overflow_come_back_and_the_caller_overrules_them(saved, tmp_path):
    opened(saved, max_length=9, on_overflow="truncate").save(tmp_path / "cut")
    again = opened(tmp_path / "cut")
    assert (again.backend.reading.max_length, again.backend.reading.on_overflow) == (9, "truncate")
    other = opened(tmp_path / "cut", max_length=12, on_overflow="error")
    assert (other.backend.reading.max_length, other.backend.reading.on_overflow) == (12, "error")


@pytest.mark.parametrize("names", [("LABEL_0", "LABEL_1", "LABEL_2"), ("Ameise 🐜", "vache du pré", "蜂")])
def test_labels_that_look_like_numbered_ones_and_unicode_ones_come_back(tiny_bert, tmp_path, names):
    data = [{**row, "label": names[LABELS.index(row["label"])]} for row in rows()]
    fitted(tiny_bert, data, validation=data, epochs=1).save(tmp_path / "named")
    assert opened(tmp_path / "named").labels == names


def test_squared_errors_are_told_in_units_of_what_is_learnt_even_if_one_row_is_held_out(tiny_bert):
    data = [{"text": f"w{5 + number}", "label": 100.0 * number} for number in range(12)]
    classifier = opened(tiny_bert)

    def unit(data):
        options = {"target": "regression"}
        columns, own, training = split_fit_options(classifier, {"epochs": 1, **options})
        return train_head(classifier.spec, classifier.backend, None, TrainingData(data), columns, own, training).unit

    assert 0.5 < unit(data) / np.var([row["label"] for row in data]) < 2
    assert unit([{**row, "label": 3.0} for row in data]) == 1.0
