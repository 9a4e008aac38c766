"""Few-shot classifiers of earlier versions: they are asked, measured and saved as before, and not trained."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bothways import FewShotClassifier, MultiTask, SentenceEmbedder, open_trained
from bothways.errors import CorruptCheckpoint, InvalidInput, NotCalibrated, NotFitted
from bothways.evaluation import Temperature
from classifier_cases import LABELS, rows

V1 = Path(__file__).parents[1] / "frozen" / "v1"
WORDS = [row["text"] for row in rows(9, first=40)]
REFUSED = "none are trained any more. Fit a TextClassifier above a sentence embedder"


def stored(name):
    """A model as an earlier version saved it."""
    return open_trained(V1 / name, device="cpu")


@pytest.fixture
def saved(tmp_path):
    """A copy of the folder of a model, to be changed."""
    return shutil.copytree(V1 / "few_shot", tmp_path / "saved")


def changed(folder, **values):
    path = folder / "bothways.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


# What is refused


def unread():
    raise AssertionError("the data were read")
    yield


def test_a_fit_says_what_to_do_before_anything_is_read():
    classifier = stored("few_shot")
    before = classifier.predict(WORDS)
    for options in ({}, {"validation": unread(), "pairs_per_text": 4, "strength": 1.0}):
        with pytest.raises(InvalidInput, match=REFUSED):
            classifier.fit(unread(), **options)
    assert classifier.predict(WORDS) == before


def test_what_is_no_few_shot_classifier_is_refused(base):
    for folder in (base, V1 / "classifier", V1 / "embedder"):
        with pytest.raises(NotFitted, match=f"is no few-shot classifier: .*{REFUSED}"):
            FewShotClassifier.from_pretrained(folder, device="cpu")


def test_what_is_no_text_is_refused(base):
    classifier = stored("few_shot")
    for ask in (classifier.predict, classifier.embedder.encode, MultiTask.from_pretrained(base).predict):
        with pytest.raises(InvalidInput, match="expected a text, or a list of such, got int"):
            ask(5)


# Answers


def test_a_promise_and_a_border_are_kept():
    classifier, held_out = stored("few_shot"), rows(30, first=60)
    others = [{"text": f"w{60 + number} w61"} for number in range(30)]
    found, domain = classifier.predict(WORDS, coverage=0.8), classifier.confidence.out_of_domain
    assert all(answer.label in answer.label_set for answer in found)
    assert all(answer.out_of_domain == (answer.out_of_domain_score > domain.threshold) for answer in found)
    report = classifier.out_of_domain(classifier.score(held_out), others, resamples=10)
    assert (*report.counts.values(), report.tokens_read.texts) == (30, 30, 30)
    classifier.fit_threshold(others)
    assert classifier.confidence.out_of_domain.threshold != domain.threshold


def test_what_learnt_without_held_out_texts_promises_nothing():
    classifier = stored("few_shot_plain")
    assert classifier.facts() == {"labels": list(LABELS), "calibration": None}
    assert classifier.predict("w5").out_of_domain is None
    with pytest.raises(NotCalibrated, match="a coverage was asked for"):
        classifier.predict("w5", coverage=0.9)
    with pytest.raises(NotCalibrated, match="cannot tell texts of its domain"):
        classifier.fit_threshold([{"text": "w5"}])


def test_probabilities_are_the_calibrated_logits():
    classifier, data = stored("few_shot"), rows(9, first=40)
    expected_NC = classifier.confidence.calibration.apply(classifier.score(data).logits)
    for prediction, expected_C in zip(classifier.predict(WORDS), expected_NC, strict=True):
        assert [prediction.probabilities[label] for label in LABELS] == pytest.approx(expected_C, abs=1e-6)


def test_a_calibration_that_older_models_kept_is_read(saved):
    path = saved / "bothways.json"
    content = json.loads(path.read_text())
    content["temperature"] = {"value": 2.0, "slope": 0.5}
    newer = ("calibration", "conformal", "out_of_domain")
    path.write_text(json.dumps({name: value for name, value in content.items() if name not in newer}))
    assert open_trained(saved, device="cpu").confidence.calibration == Temperature(2.0, 0.5)


def test_how_much_of_a_long_text_was_read_stands_in_the_prediction():
    prediction = stored("few_shot").predict("w5 " * 40)
    assert prediction.tokens_read.windows > 1
    assert prediction.tokens_read.dropped_tokens == 0


def test_rows_and_typed_texts_are_read_from_other_columns():
    renamed = [{"title": row["text"], "body": "w9", "kind": row["label"]} for row in rows(12)]
    classifier = stored("few_shot").with_columns(text=("title", "body"), label="kind")
    assert classifier.rows_of(["w5"]) == [{"title": "w5", "body": ""}]
    assert classifier.evaluate(renamed, resamples=10).n == 12


# Files


@pytest.mark.parametrize("name", ["few_shot", "few_shot_plain"])
def test_a_classifier_that_is_saved_again_stays_the_same(tmp_path, name):
    classifier = stored(name)
    assert isinstance(classifier, FewShotClassifier)
    classifier.save(tmp_path / "saved")
    again = open_trained(tmp_path / "saved", device="cpu")
    assert again.predict(WORDS) == classifier.predict(WORDS)
    assert (again.card, again.columns) == (classifier.card, classifier.columns)
    assert again.confidence.calibration == classifier.confidence.calibration
    again.save(tmp_path / "twice")
    for path in (tmp_path / "saved").iterdir():
        if path.is_file() and path.name != "README.md":
            assert (tmp_path / "twice" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("name", ["few_shot", "few_shot_plain"])
def test_a_classifier_is_an_embedder_for_the_ecosystem(tmp_path, name):
    library = pytest.importorskip("sentence_transformers", reason="the oracle is not installed")
    classifier = stored(name)
    classifier.save(tmp_path / "saved")
    ours = SentenceEmbedder.from_pretrained(tmp_path / "saved", device="cpu").encode(WORDS)
    assert np.array_equal(ours, classifier.embedder.encode(WORDS))
    theirs = library.SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(WORDS)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("labels", [None, ["x"], ["x", "x"], "ab", [1, 2]], ids=str)
def test_damaged_labels_are_refused(saved, labels):
    changed(saved, labels=labels)
    with pytest.raises(CorruptCheckpoint, match="labels"):
        FewShotClassifier.from_pretrained(saved, device="cpu")


def test_labels_can_be_renamed_but_not_be_fewer(saved):
    renamed = open_trained(saved, labels=["x", "y", "z"], device="cpu")
    assert renamed.predict("w5 w30").label in "xyz"
    for labels in (["x", "y"], ["x", "y", "y"], ["x", "y", "z", "x"]):
        with pytest.raises(InvalidInput, match="needs as many different labels"):
            open_trained(saved, labels=labels, device="cpu")


def test_a_head_that_was_changed_or_does_not_fit_is_refused(saved):
    path, content = saved / "head.safetensors", json.loads((saved / "bothways.json").read_text())
    tensors = load_file(path)
    save_file({**tensors, "weight": tensors["weight"] + 1}, path)
    with pytest.raises(CorruptCheckpoint, match="SHA-256"):
        FewShotClassifier.from_pretrained(saved, device="cpu")
    content["checksums"].pop("head.safetensors")
    changed(saved, checksums=content["checksums"])
    for other in ({"weight": torch.ones(3, 5), "bias": torch.ones(3)}, {"weight": tensors["weight"]}):
        save_file(other, path)
        with pytest.raises(CorruptCheckpoint, match=r"head\.safetensors"):
            FewShotClassifier.from_pretrained(saved, device="cpu")


def test_vectors_that_were_cut_are_refused(tmp_path):
    folder = shutil.copytree(V1 / "few_shot_plain", tmp_path / "saved")
    changed(folder, dimensions=5)
    with pytest.raises(CorruptCheckpoint, match="the vectors were cut"):
        FewShotClassifier.from_pretrained(folder, device="cpu")
