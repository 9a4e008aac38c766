"""Several labels of a text: thresholds are learnt on held-out rows, saved, and can be given."""

import json
import random
import shutil

import numpy as np
import pytest
import sklearn.metrics as oracle

from bothways import Ensemble, MultiTask, TaskData, TextClassifier
from bothways.errors import CorruptCheckpoint, InvalidInput
from bothways.evaluation.thresholds import fit_thresholds

NAMES = ("ant", "bee", "cow", "dog")
QUICK = {"epochs": 3, "learning_rate": 3e-3, "batch_size": 16}


def rows(count=120, seed=0):
    """Each of four labels is on a fourth of the texts, and mostly so where its word is."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        words = [f"w{30 + draw.randrange(30)}" for _ in range(3)]
        labels = []
        for number, name in enumerate(NAMES):
            there = draw.random() < 0.3
            words += [f"w{5 + number}"] if there else []
            labels += [name] if draw.random() < (0.8 if there else 0.05) else []
        made.append({"text": " ".join(words), "label": labels})
    return made


FEW = rows(40)
"""So few that no strength of the linear start is searched for."""


def fitted(tiny_bert, data, open_with=None, **options):
    classifier = TextClassifier.from_pretrained(tiny_bert, device="cpu", target="multi", **(open_with or {}))
    classifier.fit(data, validation=rows(80, seed=1), **{**QUICK, **options})
    return classifier


@pytest.fixture(scope="module")
def trained(tiny_bert):
    return fitted(tiny_bert, rows())


@pytest.fixture(scope="module")
def saved(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("several-saved") / "run"
    trained.save(folder)
    return folder


def stated(classifier, data, **options):
    return classifier.predict_proba([row["text"] for row in data], **options)


def truth_of(data):
    return np.array([[name in row["label"] for name in NAMES] for row in data])


def given(classifier, data, **options):
    found = classifier.predict([row["text"] for row in data], **options)
    return np.array([[name in each.labels for name in NAMES] for each in found])


def test_thresholds_are_those_of_the_calibrated_held_out_rows(trained):
    held_out = rows(80, seed=1)
    expected = fit_thresholds(truth_of(held_out), stated(trained, held_out))
    assert trained.fitted.outputs.target.thresholds == pytest.approx(expected)
    assert (given(trained, rows(seed=2)) == (stated(trained, rows(seed=2)) >= expected)).all()


def test_thresholds_find_more_than_one_half_does(trained):
    held_out = truth_of(rows(80, seed=1))
    learnt, half = given(trained, rows(80, seed=1)), given(trained, rows(80, seed=1), threshold=0.5)
    scores = [oracle.f1_score(held_out, each, average="micro") for each in (learnt, half)]
    assert scores[0] > scores[1]
    report = trained.evaluate(rows(80, seed=1), resamples=5)
    assert report.micro_f1.value == pytest.approx(scores[0])


def test_calibration_changes_no_decision(trained):
    data = rows(seed=2)
    assert not np.allclose(stated(trained, data), stated(trained, data, calibrated=False))
    assert (given(trained, data) == given(trained, data, calibrated=False)).all()
    scored = trained.score(data)
    calibrated, plain = (trained.evaluate(scored, calibrated=each, resamples=5) for each in (None, False))
    assert calibrated.micro_f1.value == plain.micro_f1.value


def test_thresholds_are_saved_and_in_the_card(trained, saved):
    again = TextClassifier.from_pretrained(saved, device="cpu")
    assert again.fitted.outputs.target == trained.fitted.outputs.target
    stored = json.loads((saved / "bothways.json").read_text())
    assert stored["thresholds"] == stored["card"]["thresholds"] == list(trained.fitted.outputs.target.thresholds)
    assert any("the calibration and the thresholds" in limit for limit in stored["card"]["limits"])
    assert "A label is predicted if its probability is at least" in (saved / "README.md").read_text()
    metrics = stored["card"]["training"]["validations"][0]["metrics"]
    assert set(metrics) == {"micro_f1", "loss", "threshold"}


def test_a_threshold_can_be_given(saved):
    data = rows(20, seed=3)
    plain = TextClassifier.from_pretrained(saved, device="cpu")
    opened = TextClassifier.from_pretrained(saved, device="cpu", threshold=0.2)
    expected = stated(plain, data) >= 0.2
    assert (given(opened, data) == expected).all()
    assert (given(plain, data, threshold=0.2) == expected).all()
    assert (given(plain, data, threshold=0.2, calibrated=False) == (stated(plain, data, calibrated=False) >= 0.2)).all()
    assert opened.evaluate(data, resamples=5).values["threshold"] == 0.2
    assert given(plain, data, threshold=0.0).all()


def test_a_threshold_that_is_given_before_the_training_stays(tiny_bert):
    classifier = fitted(tiny_bert, FEW, {"threshold": 0.3}, epochs=1)
    assert classifier.fitted.outputs.target.thresholds == (0.3,) * 4
    assert classifier.fitted.facts()["threshold"] == 0.3


def test_a_further_training_learns_thresholds_anew(tiny_bert):
    classifier = fitted(tiny_bert, FEW, epochs=1)
    before = classifier.fitted.outputs.target.thresholds
    classifier.fit(rows(40, seed=5), validation=rows(80, seed=6), **{**QUICK, "epochs": 1})
    assert classifier.fitted.outputs.target.thresholds != before
    assert classifier.labels == NAMES


def test_thresholds_are_learnt_without_calibration_too(tiny_bert):
    classifier = fitted(tiny_bert, FEW, calibration=None, epochs=1)
    held_out = rows(80, seed=1)
    expected = fit_thresholds(truth_of(held_out), stated(classifier, held_out))
    assert classifier.fitted.outputs.target.thresholds == pytest.approx(expected)


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan")])
def test_a_threshold_that_is_no_probability_is_refused(saved, trained, threshold):
    with pytest.raises(InvalidInput, match="threshold must be at least 0 and at most 1"):
        TextClassifier.from_pretrained(saved, device="cpu", threshold=threshold)
    with pytest.raises(InvalidInput, match="threshold must be at least 0 and at most 1"):
        trained.predict("w5", threshold=threshold)


def test_a_threshold_of_one_label_or_a_number_is_refused(tiny_bert, tmp_path):
    data = [{"text": f"w{5 + number % 2} w30", "label": "ab"[number % 2]} for number in range(12)]
    classifier = TextClassifier.from_pretrained(tiny_bert, device="cpu")
    classifier.fit(data, validation=data, epochs=1)
    with pytest.raises(InvalidInput, match="this model predicts one label; thresholds are for multi-label models"):
        classifier.predict("w5", threshold=0.3)
    classifier.save(tmp_path / "saved")
    with pytest.raises(InvalidInput, match="this model predicts one label"):
        TextClassifier.from_pretrained(tmp_path / "saved", device="cpu", threshold=0.3)
    numbers = TextClassifier.from_pretrained(tiny_bert, device="cpu", target="regression", threshold=0.3)
    with pytest.raises(InvalidInput, match="this model predicts a number"):
        numbers.fit([{**row, "label": 1.0} for row in data], epochs=1)


@pytest.mark.parametrize("damage", [[0.5] * 3, [0.5] * 5, [0.5, 0.5, 0.5, 1.5], [-0.1] * 4])
def test_damaged_thresholds_are_refused(saved, tmp_path, damage):
    shutil.copytree(saved, tmp_path / "damaged")
    path = tmp_path / "damaged" / "bothways.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "thresholds": damage}))
    with pytest.raises(CorruptCheckpoint, match="thresholds as a list of"):
        TextClassifier.from_pretrained(tmp_path / "damaged", device="cpu")


def test_an_ensemble_learns_thresholds_of_its_own(saved, tmp_path):
    held_out, plain = rows(80, seed=4), Ensemble.of([saved, saved], device="cpu")
    ensemble = Ensemble.of([saved, saved], calibrate=held_out, device="cpu")
    assert plain.fitted.outputs.own.target.thresholds == ()
    probabilities = np.array(
        [
            [each.together.probabilities[name] for name in NAMES]
            for each in ensemble.predict([r["text"] for r in held_out])
        ]
    )
    expected = fit_thresholds(truth_of(held_out), probabilities)
    assert ensemble.fitted.outputs.own.target.thresholds == pytest.approx(expected)
    ensemble.save(tmp_path / "ensemble")
    again = Ensemble.from_pretrained(tmp_path / "ensemble", device="cpu")
    assert again.fitted.outputs.own.target == ensemble.fitted.outputs.own.target
    assert again.evaluate(rows(30), resamples=5).to_dict() == ensemble.evaluate(rows(30), resamples=5).to_dict()
    path = tmp_path / "ensemble" / "bothways.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "thresholds": [0.5]}))
    with pytest.raises(CorruptCheckpoint, match="thresholds as a list of 4"):
        Ensemble.from_pretrained(tmp_path / "ensemble", device="cpu")


def test_a_task_beside_others_has_its_thresholds(tiny_bert, tmp_path):
    both = MultiTask.from_pretrained(tiny_bert, device="cpu")
    number = [{"text": row["text"], "label": float(len(row["label"]))} for row in FEW]
    parts = {
        "several": TaskData(FEW, rows(80, seed=1), target="multi"),
        "number": TaskData(number, number, target="regression"),
    }
    both.fit(parts, **{**QUICK, "epochs": 1})
    both.save(tmp_path / "saved")
    again = MultiTask.from_pretrained(tmp_path / "saved", device="cpu")
    thresholds = both.part("several").fitted.outputs.target.thresholds
    assert len(thresholds) == 4
    assert again.part("several").fitted.outputs.target.thresholds == thresholds
