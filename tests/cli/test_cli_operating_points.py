"""``evaluate --at-precision`` and ``--at-recall``: a threshold for one of two classes."""

import numpy as np
import pytest
import sklearn.metrics as oracle
from command_line import call, fails, ok, rows, write_jsonl

from bothways import Ensemble, TextClassifier
from bothways.errors import InvalidInput
from bothways.tasks.evaluate import operating_points

FEW = ("--resamples", 20)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Texts of which a third are odd, some with the wrong label."""
    made = [row for at, row in enumerate(rows(90, 7)) if row["label"] == "even" or at % 4 == 1]
    made = [{**row, "label": "odd" if at % 9 == 0 else row["label"]} for at, row in enumerate(made)]
    return write_jsonl(tmp_path_factory.mktemp("points") / "data.jsonl", made), made


def best(run, made, label, least):
    """The highest recall of a class at a precision, by scikit-learn."""
    model = TextClassifier.from_pretrained(run, device="cpu")
    stated = model.predict_proba([row["text"] for row in made])[:, model.labels.index(label)]
    truth = np.array([row["label"] == label for row in made])
    precision, recall, _ = oracle.precision_recall_curve(truth, stated)
    return recall[:-1][precision[:-1] >= least].max(), truth, stated


def test_the_rarer_class_is_evaluated_at_a_wanted_precision(run, data, tmp_path):
    path, made = data
    page = tmp_path / "page.html"
    words = ("evaluate", run, "--data", path, "--at-precision", 0.6, *FEW)
    (point,) = call(*words, "--json", "--report", page).json()["operating_points"]
    expected, truth, stated = best(run, made, "odd", 0.6)
    assert (point["label"], point["wanted"], point["at_least"]) == ("odd", "precision", 0.6)
    assert point["recall"] == pytest.approx(expected)
    assert point["precision"] == pytest.approx(oracle.precision_score(truth, stated >= point["threshold"]))
    assert point["recall_low"] <= point["recall"] <= point["recall_high"]
    assert f"precision of at least 0.6: recall {expected:.4f}" in page.read_text()
    assert f"'odd' with a precision of at least 0.6: recall {expected:.4f}" in call(*words).out


def test_a_class_can_be_named_and_both_be_asked_for(run, data):
    path, made = data
    words = ("--at-precision", 0.7, "--at-recall", 0.95, "--at-label", "even", *FEW)
    precise, full = call("evaluate", run, "--data", path, *words, "--json").json()["operating_points"]
    assert [precise["label"], full["label"], full["wanted"]] == ["even", "even", "recall"]
    assert precise["recall"] == pytest.approx(best(run, made, "even", 0.7)[0])
    assert full["recall"] >= 0.95


def test_an_ensemble_has_operating_points(run, data):
    path, _ = data
    ensemble = Ensemble.of([run, run], device="cpu")
    (point,) = operating_points(ensemble, ensemble.score(str(path)), at_recall=0.5, resamples=20)
    assert point.label == "odd"
    assert point.recall.value >= 0.5


def test_a_model_of_no_two_classes_is_refused_before_the_data_are_read(files, tmp_path):
    data = write_jsonl(tmp_path / "data.jsonl", [{**row, "label": float(at)} for at, row in enumerate(rows(20, 0))])
    words = ("--train", data, "--epochs", 1, "--output", tmp_path / "run", "--target", "regression", "--quiet")
    ok("train", "classification", "--model", files / "tiny", "--device", "cpu", *words)
    fails(2, "need a binary classifier", "evaluate", tmp_path / "run", "--data", "no.jsonl", "--at-recall", 0.5)


def test_rows_of_one_class_have_no_operating_point(run, data):
    _, made = data
    model = TextClassifier.from_pretrained(run, device="cpu")
    scored = model.score([row for row in made if row["label"] == "even"])
    with pytest.raises(InvalidInput, match="need rows with and without this class"):
        operating_points(model, scored, at_precision=0.9)
