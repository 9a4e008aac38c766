"""What classifiers of texts, and of pairs of texts, keep to: every task with every family and kind of target."""

import inspect
import json

import pytest
import torch

from bothways import Ensemble
from bothways.data import read_rows
from bothways.evaluation import apply_sigmoid_temperature, apply_temperature, stored_form
from bothways.tasks import PairClassifier, TextClassifier
from contract_cases import CASES, answer, padding_side, rows_of, texts_of, write_pretrained
from tiny_models import every_family

transformers = pytest.importorskip("transformers", reason="the oracle is not installed: pip install 'bothways[test]'")

TASKS = {kind.spec.name: kind for kind in (TextClassifier, PairClassifier)}
LONG = " ".join(f"w{5 + place % 50}" for place in range(45))
every_case = pytest.mark.parametrize(("task", "target"), CASES)


@pytest.fixture(scope="module")
def overfitted(tmp_path_factory):
    """A factory: a classifier fitted to a few texts and the folder that it saved itself into, made once for a kind."""
    made = {}

    def make(task, model_type, target):
        if (task, model_type, target) not in made:
            folder = tmp_path_factory.mktemp(f"{task}-{model_type}-{target}")
            write_pretrained(folder / "base", model_type)
            classifier = TASKS[task].from_pretrained(folder / "base", device="cpu")
            data = rows_of(task, target)
            options = {"epochs": 60, "learning_rate": 2e-3, "batch_size": 8, "weight_decay": 0.0, "patience": 30}
            classifier.fit(data, validation=data, target=target, **options)
            classifier.save(folder / "saved")
            made[task, model_type, target] = (classifier, folder / "saved")
        return made[task, model_type, target]

    return make


@every_family
@every_case
def test_a_few_texts_are_learnt_by_heart(overfitted, task, model_type, target):
    classifier, _ = overfitted(task, model_type, target)
    data = rows_of(task, target)
    answers = [answer(prediction) for prediction in classifier.predict(texts_of(data))]
    if target == "regression":
        assert answers == pytest.approx([row["label"] for row in data], abs=0.1)
    else:
        assert answers == [row["label"] for row in data]


@every_family
@every_case
def test_evaluation_agrees_with_what_was_learnt(overfitted, task, model_type, target):
    classifier, _ = overfitted(task, model_type, target)
    report = classifier.evaluate(rows_of(task, target), resamples=10)
    if target == "single":
        assert report.accuracy.value == 1
    elif target == "multi":
        assert report.micro_f1.value == 1
    else:
        assert report.mse.value < 0.01


@every_family
@every_case
def test_a_saved_classifier_predicts_the_same_to_the_bit(overfitted, task, model_type, target):
    classifier, folder = overfitted(task, model_type, target)
    again = TASKS[task].from_pretrained(folder, device="cpu")
    assert again.outputs.target == classifier.outputs.target
    assert again.confidence.calibration == classifier.confidence.calibration
    texts = [*texts_of(rows_of(task, target)), LONG if task == "classification" else ("w5", LONG)]
    assert again.predict(texts) == classifier.predict(texts)


@every_family
@every_case
def test_saving_again_writes_the_same_weights(overfitted, task, model_type, target, tmp_path):
    _, folder = overfitted(task, model_type, target)
    TASKS[task].from_pretrained(folder, device="cpu").save(tmp_path / "again")
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes(), name


@every_family
@every_case
def test_a_saved_classifier_opens_in_transformers_with_the_same_logits(overfitted, task, model_type, target):
    classifier, folder = overfitted(task, model_type, target)
    model, info = transformers.AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    assert model.config.problem_type == classifier.outputs.target.problem_type
    assert tuple(model.config.id2label.values()) == classifier.labels
    assert model.config.label2id == {label: index for index, label in enumerate(classifier.labels)}
    data = rows_of(task, target)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    side = padding_side(model_type)
    asked = [texts_of(data)] if task == "classification" else list(zip(*texts_of(data), strict=True))
    inputs = tokenizer(*map(list, asked), padding=True, padding_side=side, return_tensors="pt")
    read = inspect.signature(model.forward).parameters
    with torch.no_grad():
        theirs_NC = model.eval()(**{name: value for name, value in inputs.items() if name in read}).logits
    ours_NC = classifier.score(data).logits
    torch.testing.assert_close(torch.from_numpy(ours_NC).float(), theirs_NC, rtol=0, atol=1e-5)


@every_family
@every_case
def test_probabilities_are_the_calibrated_logits(overfitted, task, model_type, target):
    classifier, folder = overfitted(task, model_type, target)
    stored = json.loads((folder / "bothways.json").read_text(encoding="utf-8"))
    calibration = classifier.confidence.calibration
    assert stored["calibration"] == (calibration and stored_form(calibration))
    if target == "regression":
        assert calibration is None
        return
    data = rows_of(task, target)
    logits_NC = classifier.score(data).logits
    calibrate = apply_temperature if target == "single" else apply_sigmoid_temperature
    expected_NC = calibrate(logits_NC, calibration)
    for prediction, expected_C in zip(classifier.predict(texts_of(data)), expected_NC, strict=True):
        found = [prediction.probabilities[label] for label in classifier.labels]
        assert found == pytest.approx(expected_C, abs=1e-6)


@every_family
@every_case
def test_models_of_two_families_answer_together_as_one_does(overfitted, task, model_type, target, tmp_path):
    folders = [overfitted(task, kind, target)[1] for kind in (model_type, "distilbert")]
    data = rows_of(task, target)
    ensemble = Ensemble.of(folders, calibrate=data, device="cpu")
    texts = [*texts_of(data), LONG if task == "classification" else ("w5", LONG)]
    found = ensemble.predict(texts)
    assert ensemble.predict(texts[0]) == ensemble.predict(texts[:1])[0]
    assert list(ensemble.predict_rows(read_rows(data))) == ensemble.predict(texts[:-1])
    answers = [answer(each.together) for each in found[:-1]]
    labels = [row["label"] for row in data]
    assert answers == (pytest.approx(labels, abs=0.1) if target == "regression" else labels)
    ensemble.save(tmp_path / "ensemble")
    assert Ensemble.from_pretrained(tmp_path / "ensemble", device="cpu").predict(texts) == found
