"""What classifiers of texts, and of pairs of texts, keep to, with every family and kind of target.

Each family learns one kind by heart, and each kind is learnt by several families: every day by three. That one update
is the one that transformers makes, tests/contract/test_training_parity.py says for each family with each kind.
"""

import functools
import inspect
import json

import pytest
import torch

from bothways import Ensemble
from bothways.data import read_rows
from bothways.evaluation.calibration import stored_form
from bothways.evaluation.temperature import apply_sigmoid_temperature, apply_temperature
from bothways.families import FAMILIES
from bothways.tasks import PairClassifier, TextClassifier
from bothways.training.options import AdamW
from contract_cases import CASES, answer, padding_side, rows_of, texts_of, write_pretrained
from everyday import some_of

transformers = pytest.importorskip("transformers", reason="the oracle is not installed: pip install 'bothways[test]'")

TASKS = {kind.spec.name: kind for kind in (TextClassifier, PairClassifier)}
LONG = " ".join(f"w{5 + place % 50}" for place in range(45))
BY_HEART = [(model_type, *CASES[number % len(CASES)]) for number, model_type in enumerate(FAMILIES)]
BRIEFLY = [(model_type, *CASES[0]) for model_type in FAMILIES if (model_type, *CASES[0]) not in BY_HEART]
EVERY_DAY = [case for case in BY_HEART if case[0] in ("roberta", "deberta-v2", "xlnet")]
every_case = pytest.mark.parametrize(("model_type", "task", "target"), BY_HEART + BRIEFLY)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A factory: a classifier fitted to a few texts and the folder that it saved itself into, made once for a kind."""

    @functools.cache
    def make(model_type, task, target, by_heart):
        folder = tmp_path_factory.mktemp(f"{task}-{model_type}-{target}")
        write_pretrained(folder / "base", model_type)
        classifier = TASKS[task].from_pretrained(folder / "base", device="cpu")
        data = rows_of(task, target)
        options = {"epochs": 60 if by_heart else 1, "learning_rate": 2e-3, "batch_size": 8, "patience": 30}
        classifier.fit(data, validation=data, target=target, optimizer=AdamW(weight_decay=0.0), **options)
        classifier.save(folder / "saved")
        return classifier, folder / "saved"

    return lambda *case, by_heart=False: make(*case, by_heart or case in EVERY_DAY)


@pytest.mark.parametrize(("model_type", "task", "target"), some_of(BY_HEART, *EVERY_DAY))
def test_a_few_texts_are_learnt_by_heart(fitted, model_type, task, target):
    classifier, _ = fitted(model_type, task, target, by_heart=True)
    data = rows_of(task, target)
    answers = [answer(prediction) for prediction in classifier.predict(texts_of(data))]
    if target == "regression":
        assert answers == pytest.approx([row["label"] for row in data], abs=0.1)
    else:
        assert answers == [row["label"] for row in data]
    report = classifier.evaluate(data, resamples=10)
    if target == "single":
        assert report.accuracy.value == 1
    elif target == "multi":
        assert report.micro_f1.value == 1
    else:
        assert report.mse.value < 0.01


@every_case
def test_a_saved_classifier_predicts_the_same_to_the_bit(fitted, model_type, task, target):
    classifier, folder = fitted(model_type, task, target)
    again = TASKS[task].from_pretrained(folder, device="cpu")
    assert again.fitted.outputs.target == classifier.fitted.outputs.target
    assert again.confidence.calibration == classifier.confidence.calibration
    texts = [*texts_of(rows_of(task, target)), LONG if task == "classification" else ("w5", LONG)]
    assert again.predict(texts) == classifier.predict(texts)


@every_case
def test_saving_again_writes_the_same_weights(fitted, model_type, task, target, tmp_path):
    _, folder = fitted(model_type, task, target)
    TASKS[task].from_pretrained(folder, device="cpu").save(tmp_path / "again")
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes(), name


@every_case
def test_a_saved_classifier_opens_in_transformers_with_the_same_logits(fitted, model_type, task, target):
    classifier, folder = fitted(model_type, task, target)
    model, info = transformers.AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    assert model.config.problem_type == classifier.fitted.outputs.target.problem_type
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


@every_case
def test_probabilities_are_the_calibrated_logits(fitted, model_type, task, target):
    classifier, folder = fitted(model_type, task, target)
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


# Of two every day; tests/compose has ensembles of every target.
@pytest.mark.parametrize(("model_type", "task", "target"), some_of(BY_HEART, ("roberta", "classification", "multi")))
def test_models_of_two_families_answer_together_as_one_does(fitted, model_type, task, target, tmp_path):
    others = [case for case in (*EVERY_DAY, *BY_HEART) if case[1:] == (task, target) and case[0] != model_type]
    folders = [fitted(*case, by_heart=True)[1] for case in ((model_type, task, target), others[0])]
    data = rows_of(task, target)
    ensemble = Ensemble.of(folders, calibrate=data, device="cpu")
    texts = [*texts_of(data), LONG if task == "classification" else ("w5", LONG)]
    found = ensemble.predict(texts)
    assert ensemble.predict(texts[0]) == ensemble.predict(texts[:1])[0]
    assert list(ensemble.predict_stream(read_rows(data))) == ensemble.predict(texts[:-1])
    answers = [answer(each.together) for each in found[:-1]]
    labels = [row["label"] for row in data]
    assert answers == (pytest.approx(labels, abs=0.1) if target == "regression" else labels)
    ensemble.save(tmp_path / "ensemble")
    assert Ensemble.from_pretrained(tmp_path / "ensemble", device="cpu").predict(texts) == found
