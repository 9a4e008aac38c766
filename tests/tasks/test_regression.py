"""Numbers are learnt in standard units and predicted in their own, whatever these are."""

import json
import shutil

import numpy as np
import pytest
import torch

from bothways import MultiTask, TaskData, TextClassifier
from bothways.errors import CorruptCheckpoint, InvalidInput
from bothways.evaluation.metrics.regression import mean_squared_error
from bothways.tasks.heads.targets import Regression

QUICK = {"epochs": 20, "learning_rate": 3e-3, "batch_size": 8}


def rows(count=32, mean=1000.0, spread=10.0, first=0):
    """Texts whose first word says the number: one of four around the mean."""
    made = []
    for number in range(first, first + count):
        filler = " ".join(f"w{20 + (7 * number + place) % 40}" for place in range(number % 3))
        made.append({"text": f"w{5 + number % 4} {filler}", "label": mean + spread * (number % 4 - 1.5)})
    return made


@pytest.fixture(scope="module")
def trained(bert):
    """A trained model that no test changes."""
    return fitted(bert)


@pytest.fixture(scope="module")
def saved(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("regression") / "saved"
    trained.save(folder)
    return folder


def fitted(bert, data=None, **options):
    classifier = TextClassifier.from_pretrained(bert, device="cpu", target="regression")
    data = rows() if data is None else data
    classifier.fit(data, validation=options.pop("validation", data), **{**QUICK, **options})
    return classifier


def raw(folder, texts):
    """What transformers makes of a saved regression."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        return model(**tokenizer(texts, padding=True, return_tensors="pt")).logits[:, 0].numpy()


def test_numbers_far_from_zero_are_learnt(trained):
    report = trained.evaluate(rows(), resamples=10)
    assert report.r2.value > 0.7
    assert report.rmse.value < 0.5 * report.training_mean_rmse.value


@pytest.mark.parametrize(("label", "advice"), [(1.5, "score names a column"), (["a"], "the target 'multi'")])
def test_labels_of_another_target_name_it(bert, label, advice):
    with pytest.raises(InvalidInput, match=f"expected a class name .*; .*{advice}"):
        TextClassifier.from_pretrained(bert, device="cpu").fit([{"text": "w5", "label": label}])


def test_the_unit_of_the_numbers_changes_nothing_but_the_unit(bert):
    # Slowly, so that the rounding of larger numbers is not carried on from update to update.
    near, far = (
        fitted(bert, rows(mean=mean, spread=spread), learning_rate=1e-5, epochs=5)
        for mean, spread in ((0.0, 1.0), (-4000.0, 500.0))
    )
    texts = [row["text"] for row in rows()]
    expected = [-4000 + 500 * each.value for each in near.predict(texts)]
    assert [each.value for each in far.predict(texts)] == pytest.approx(expected, abs=0.5)


def test_a_saved_regression_answers_in_transformers_with_the_numbers_themselves(trained, saved):
    texts = [row["text"] for row in rows(8)]
    expected = [each.value for each in trained.predict(texts)]
    assert raw(saved, texts) == pytest.approx(expected, abs=1e-3)
    again = TextClassifier.from_pretrained(saved, device="cpu")
    assert [each.value for each in again.predict(texts)] == expected
    assert again.fitted.outputs.target == trained.fitted.outputs.target == Regression(training_mean=1000.0)


def test_numbers_that_are_all_alike_are_learnt(bert):
    data = rows(spread=0.0)
    classifier = fitted(bert, data, epochs=2)
    assert classifier.predict("w5").value == pytest.approx(1000, abs=1)
    assert "r2" not in classifier.card["training"]["validations"][0]["metrics"]


def test_a_further_training_begins_with_what_the_model_says(saved):
    classifier = TextClassifier.from_pretrained(saved, device="cpu")
    texts = [row["text"] for row in rows()]
    before = [each.value for each in classifier.predict(texts)]
    # Of other numbers, with other units, and at a rate that moves nothing.
    barely = {"epochs": 1, "learning_rate": 1e-12, "target": "regression"}
    classifier.fit(rows(mean=-5.0, spread=1.0), validation=rows(), **barely)
    assert [each.value for each in classifier.predict(texts)] == pytest.approx(before, abs=1e-2)
    assert classifier.fitted.outputs.target.training_mean == pytest.approx(-5)


def test_a_regression_of_another_program_is_trained_further(bert, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(bert, num_labels=1, problem_type="regression")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(bert, config=config)
    with torch.no_grad():
        model.classifier.bias.fill_(1000.0)
    model.save_pretrained(tmp_path / "theirs")
    transformers.AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path / "theirs")
    classifier = TextClassifier.from_pretrained(tmp_path / "theirs", device="cpu")
    before = classifier.predict("w5 w6").value
    assert classifier.fitted.outputs.target == Regression()
    options = {**QUICK, "epochs": 1, "learning_rate": 1e-12}
    classifier.fit(rows(), validation=rows(), target="regression", **options)
    assert classifier.predict("w5 w6").value == pytest.approx(before, abs=1e-2)


def test_validation_is_told_in_the_units_of_the_numbers(bert):
    classifier, held_out = fitted(bert, epochs=1, validation=rows(8)), rows(8)
    start, validation = classifier.card["training"]["validations"]
    assert start["epoch"] == 0
    truth = np.array([row["label"] for row in held_out])
    predicted = [each.value for each in classifier.predict([row["text"] for row in held_out])]
    metrics = validation["metrics"]
    assert metrics["mse"] == pytest.approx(mean_squared_error(truth, predicted), rel=1e-3)
    assert metrics["rmse"] == pytest.approx(metrics["mse"] ** 0.5)
    assert metrics["training_mean_rmse"] == pytest.approx(truth.std())
    assert metrics["r2"] == pytest.approx(1 - metrics["mse"] / truth.var(), rel=1e-3)
    assert classifier.card["metrics"]["training_mean_rmse"] == pytest.approx(truth.std())


def test_a_run_is_resumed_in_its_units_and_refused_in_others(bert, tmp_path):
    options = {"checkpoints": tmp_path / "run", "checkpoint_every_updates": 1}
    whole = fitted(bert, epochs=2, **options).predict("w5 w6").value
    assert fitted(bert, epochs=2, **options, resume=True).predict("w5 w6").value == whole
    with pytest.raises(InvalidInput, match="mean of the numbers"):
        fitted(bert, rows(mean=10.0), epochs=2, **options, resume=True)


def test_tasks_beside_others_predict_in_their_own_units(bert, tmp_path):
    animals = [{"text": row["text"], "label": ("ant", "bee")[number % 2]} for number, row in enumerate(rows())]
    both = MultiTask.from_pretrained(bert, device="cpu")
    parts = {"amount": TaskData(rows(), rows(), target="regression"), "animal": TaskData(animals, animals)}
    both.fit(parts, **QUICK)
    assert both.part("amount").evaluate(rows(), resamples=10).r2.value > 0.7
    both.save(tmp_path / "saved")
    again = MultiTask.from_pretrained(tmp_path / "saved", device="cpu")
    assert again.predict("w5 w20")["amount"] == both.predict("w5 w20")["amount"]
    assert again.part("amount").fitted.outputs.target.training_mean == 1000
    before = both.predict("w5 w20")["amount"].value
    both.fit({**parts, "amount": TaskData(rows(mean=7.0), rows(mean=7.0), target="regression")}, epochs=1,
             learning_rate=1e-12)  # fmt: skip
    assert both.predict("w5 w20")["amount"].value == pytest.approx(before, abs=1e-2)


def test_a_damaged_training_mean_is_refused(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "saved")
    path = tmp_path / "saved" / "bothways.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "training_mean": 1e300}))
    with pytest.raises(CorruptCheckpoint, match="training_mean"):
        TextClassifier.from_pretrained(tmp_path / "saved", device="cpu")
