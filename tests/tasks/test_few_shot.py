"""Classifiers from a few examples: the linear head, learning, saving, and bad input."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bothways import FewShotClassifier, MultiTask, SentenceEmbedder, open_trained
from bothways.errors import CorruptCheckpoint, InvalidInput, NotCalibrated, NotFitted
from bothways.evaluation import Cosine, Mahalanobis, Temperature
from bothways.tasks.embedding.softmax_regression import fit_softmax_regression
from classifier_cases import LABELS, rows, without_dropout

WORDS = [row["text"] for row in rows(9, first=40)]


def problem(count=60, width=7, classes=4):
    generator = np.random.default_rng(3)
    classes_N = generator.integers(0, classes, count)
    return generator.normal(size=(count, width)) + 0.8 * np.eye(classes, width)[classes_N], classes_N


@pytest.mark.parametrize("strength", [0.1, 1.0, 100.0])
def test_softmax_regression_is_that_of_scikit_learn(strength):
    linear = pytest.importorskip("sklearn.linear_model", reason="the oracle is not installed")
    vectors_NK, classes_N = problem()
    theirs = linear.LogisticRegression(C=strength, tol=1e-10, max_iter=10_000).fit(vectors_NK, classes_N)
    head = fit_softmax_regression(vectors_NK, classes_N, 4, strength=strength)
    np.testing.assert_allclose(head.weight_CK, theirs.coef_, rtol=0, atol=1e-4)
    found_NC = head.logits(vectors_NK)
    expected_NC = theirs.decision_function(vectors_NK)
    centred = [each - each.mean(1, keepdims=True) for each in (found_NC, expected_NC)]
    np.testing.assert_allclose(*centred, rtol=0, atol=1e-4)


def test_two_classes_are_told_apart_by_the_same_boundary_as_in_scikit_learn():
    linear = pytest.importorskip("sklearn.linear_model", reason="the oracle is not installed")
    vectors_NK, classes_N = problem(classes=2)
    # The binary problem has one row of weights w for two of w / 2 and -w / 2, so its penalty is half as large.
    theirs = linear.LogisticRegression(C=2.0, tol=1e-10, max_iter=10_000).fit(vectors_NK, classes_N)
    logits_N2 = fit_softmax_regression(vectors_NK, classes_N, 2, strength=1.0).logits(vectors_NK)
    found_N = logits_N2[:, 1] - logits_N2[:, 0]
    np.testing.assert_allclose(found_N, theirs.decision_function(vectors_NK), rtol=0, atol=1e-4)


def test_a_strength_out_of_range_is_refused():
    with pytest.raises(InvalidInput, match="strength of a regression must be above 0"):
        fit_softmax_regression(*problem(), 4, strength=0.0)


def fitted(base, **options):
    classifier = FewShotClassifier.from_pretrained(without_dropout(base), device="cpu")
    classifier.fit(rows(24), **{"epochs": 6, "learning_rate": 3e-3, **options})
    return classifier


def test_a_few_examples_are_learnt_and_carry_over(base):
    classifier = fitted(base)
    assert [each.label for each in classifier.predict([row["text"] for row in rows(24)])] == [
        row["label"] for row in rows(24)
    ]
    report = classifier.evaluate(rows(30, first=100), resamples=10)
    assert report.accuracy.value > 0.7  # where a third would be chance
    assert classifier.facts() == {"labels": list(LABELS), "calibration": None}


def test_validation_data_choose_the_epoch_and_calibrate(base):
    classifier = fitted(base, validation=rows(9, first=60))
    assert classifier.confidence.calibration is not None
    assert classifier.card["training"]["kept_epoch"] is not None
    assert classifier.card["validation_rows"] == 9


def test_one_validation_text_of_each_label_chooses_no_epoch_and_calibrates(base):
    classifier = fitted(base, validation=rows(3, first=60))
    assert classifier.confidence.calibration is not None
    assert classifier.card["training"]["kept_epoch"] is None
    assert (classifier.card["validation_rows"], classifier.card["metrics"]["n"]) == (3, 3)


def test_what_is_no_text_is_refused(base):
    classifier = FewShotClassifier.from_pretrained(base, device="cpu")
    for ask in (classifier.predict, classifier.embedder.encode, MultiTask.from_pretrained(base).predict):
        with pytest.raises(InvalidInput, match="expected a text, or a list of such, got int"):
            ask(5)


@pytest.mark.parametrize("detector", ["mahalanobis", "neighbours", "cosine", "energy", "max_softmax"])
def test_validation_data_teach_a_promise_and_a_border(base, tmp_path, detector):
    held_out, others = rows(30, first=60), [{"text": f"w{60 + number} w61"} for number in range(30)]
    classifier = fitted(base, validation=held_out, detector=detector)
    classifier.save(tmp_path / "saved")
    again = open_trained(tmp_path / "saved", device="cpu")
    for each in classifier, again:
        found = each.predict(WORDS, coverage=0.9)
        assert all(answer.label in answer.label_set for answer in found)
        domain = each.confidence.out_of_domain
        assert all(answer.outside == (answer.outside_score > domain.threshold) for answer in found)
        report = each.out_of_domain(each.score(held_out), others, resamples=10)
        assert (*report.counts.values(), report.tokens_read.texts) == (30, 30, 30)
        assert report.values["kept_inside"] == pytest.approx(0.95, abs=0.06)  # of 30
    assert again.predict(WORDS, coverage=0.9) == classifier.predict(WORDS, coverage=0.9)
    assert classifier.card["trust"]["out_of_domain"] == detector
    threshold = classifier.confidence.out_of_domain.threshold
    classifier.fit_threshold(others)
    assert classifier.confidence.out_of_domain.threshold != threshold


@pytest.mark.parametrize(("detector", "kind"), [("mahalanobis", Mahalanobis), ("cosine", Cosine)])
def test_the_detector_is_fitted_on_the_examples_and_their_own_labels(base, detector, kind):
    classifier = fitted(base, validation=rows(30, first=60), detector=detector)
    examples, asked = (classifier.outputs.evidence(classifier.score(rows(24, n)).scores) for n in (0, 100))
    labels_N = [LABELS.index(row["label"]) for row in rows(24)]
    expected_N = kind.fit(examples.features_NLD, labels_N, len(LABELS)).score(asked)
    found = [each.outside_score for each in classifier.predict([row["text"] for row in rows(24, 100)])]
    np.testing.assert_allclose(found, expected_N, rtol=1e-4)


def test_without_validation_data_nothing_is_promised(base):
    classifier = fitted(base, epochs=1)
    assert classifier.predict("w5").outside is None
    with pytest.raises(NotCalibrated, match="a coverage was asked for"):
        classifier.predict("w5", coverage=0.9)
    with pytest.raises(NotCalibrated, match="cannot tell texts of its domain"):
        classifier.fit_threshold([{"text": "w5"}])
    assert "trust" not in classifier.card


def test_a_detector_of_every_layer_is_refused_before_the_training(base):
    with pytest.raises(InvalidInput, match="'mahalanobis_layers' reads every layer: choose another"):
        fitted(base, validation=rows(9, first=60), detector="mahalanobis_layers")


def test_a_calibration_that_older_models_kept_is_read(base, tmp_path):
    classifier = fitted(base, validation=rows(9, first=60), epochs=1, detector=None)
    classifier.save(tmp_path / "saved")
    path = tmp_path / "saved" / "bothways.json"
    stored = json.loads(path.read_text())
    stored["temperature"] = {"value": 2.0, "slope": 0.5}
    stored = {
        name: value for name, value in stored.items() if name not in ("calibration", "conformal", "out_of_domain")
    }
    path.write_text(json.dumps(stored))
    assert open_trained(tmp_path / "saved", device="cpu").confidence.calibration == Temperature(2.0, 0.5)


def test_a_saved_classifier_is_opened_as_one_and_predicts_the_same(base, tmp_path):
    classifier = fitted(base, validation=rows(9, first=60), epochs=2)
    classifier.save(tmp_path / "saved")
    again = open_trained(tmp_path / "saved", device="cpu")
    assert isinstance(again, FewShotClassifier)
    assert again.predict(WORDS) == classifier.predict(WORDS)
    assert again.card == json.loads(json.dumps(classifier.card))
    assert (again.columns, again.confidence.calibration) == (
        classifier.columns,
        classifier.confidence.calibration,
    )
    again.save(tmp_path / "twice")
    for name in ("model.safetensors", "head.safetensors", "trust.safetensors", "bothways.json"):
        assert (tmp_path / "twice" / name).read_bytes() == (tmp_path / "saved" / name).read_bytes(), name


def test_a_saved_classifier_is_an_embedder_for_the_ecosystem(base, tmp_path):
    library = pytest.importorskip("sentence_transformers", reason="the oracle is not installed")
    classifier = fitted(base, epochs=1)
    classifier.save(tmp_path / "saved")
    ours = SentenceEmbedder.from_pretrained(tmp_path / "saved", device="cpu").encode(WORDS)
    assert np.array_equal(ours, classifier.embedder.encode(WORDS))
    theirs = library.SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(WORDS)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def test_the_same_seed_gives_the_same_classifier(base):
    first, second, other = (fitted(base, epochs=1, seed=seed).predict(WORDS) for seed in (1, 1, 2))
    assert first == second
    assert first != other


def test_how_much_of_a_long_text_was_read_stands_in_the_prediction(base):
    prediction = fitted(base, epochs=1).predict("w5 " * 40)
    assert prediction.reading.windows > 1
    assert prediction.reading.dropped_tokens == 0


def test_rows_and_typed_texts_are_read_from_the_columns_of_the_training(base):
    renamed = [{"title": row["text"], "body": "w9", "kind": row["label"]} for row in rows(12)]
    classifier = FewShotClassifier.from_pretrained(base, device="cpu")
    classifier.fit(renamed, text=("title", "body"), label="kind", epochs=1)
    assert classifier.rows_of(["w5"]) == [{"title": "w5", "body": ""}]
    assert classifier.evaluate(renamed, resamples=10).n == 12


def test_an_unfitted_classifier_says_so(base, tmp_path):
    classifier = FewShotClassifier.from_pretrained(base, device="cpu")
    for use in (lambda: classifier.predict("w5"), lambda: classifier.save(tmp_path / "x"), classifier.facts):
        with pytest.raises(NotFitted, match="call fit first"):
            use()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([{"text": "w5", "label": "a"}] * 4, "at least two classes"),
        ([{"text": "w5", "label": "a"}, {"text": "w6", "label": "b"}], "a label with at least two texts"),
        ([{"text": " ", "label": "a"}], "only white space"),
    ],
)
def test_examples_that_teach_nothing_are_refused(base, data, words):
    with pytest.raises(InvalidInput, match=words):
        FewShotClassifier.from_pretrained(base, device="cpu").fit(data, epochs=1)


def test_a_validation_label_that_training_has_not_is_named(base):
    with pytest.raises(InvalidInput, match="'zebra'"):
        fitted(base, validation=[{"text": "w5", "label": "zebra"}], epochs=1)


@pytest.mark.parametrize("labels", [None, ["x"], ["x", "x"], "ab", [1, 2]], ids=str)
def test_damaged_labels_are_refused(base, tmp_path, labels):
    fitted(base, epochs=1).save(tmp_path / "saved")
    path = tmp_path / "saved" / "bothways.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "labels": labels}))
    with pytest.raises(CorruptCheckpoint, match="labels"):
        FewShotClassifier.from_pretrained(tmp_path / "saved", device="cpu")


def test_labels_can_be_renamed_but_not_be_fewer(base, tmp_path):
    fitted(base, epochs=1).save(tmp_path / "saved")
    renamed = open_trained(tmp_path / "saved", labels=["x", "y", "z"], device="cpu")
    assert renamed.predict("w5 w30").label in "xyz"
    for labels in (["x", "y"], ["x", "y", "y"], ["x", "y", "z", "x"]):
        with pytest.raises(InvalidInput, match="needs as many different labels"):
            open_trained(tmp_path / "saved", labels=labels, device="cpu")
    with pytest.raises(InvalidInput, match="has none: call fit"):
        FewShotClassifier.from_pretrained(base, labels=["x", "y"], device="cpu")


def test_a_head_that_was_changed_or_does_not_fit_is_refused(base, tmp_path):
    fitted(base, epochs=1).save(tmp_path / "saved")
    path, ours = tmp_path / "saved" / "head.safetensors", tmp_path / "saved" / "bothways.json"
    tensors = load_file(path)
    save_file({**tensors, "weight": tensors["weight"] + 1}, path)
    with pytest.raises(CorruptCheckpoint, match="SHA-256"):
        FewShotClassifier.from_pretrained(tmp_path / "saved", device="cpu")
    extras = json.loads(ours.read_text())
    extras["checksums"].pop("head.safetensors")
    ours.write_text(json.dumps(extras))
    for changed in ({"weight": torch.ones(3, 5), "bias": torch.ones(3)}, {"weight": tensors["weight"]}):
        save_file(changed, path)
        with pytest.raises(CorruptCheckpoint, match=r"head\.safetensors"):
            FewShotClassifier.from_pretrained(tmp_path / "saved", device="cpu")
    with pytest.raises(CorruptCheckpoint, match="the vectors were cut"):
        extras["dimensions"] = 5
        ours.write_text(json.dumps(extras))
        save_file(tensors, path)
        FewShotClassifier.from_pretrained(tmp_path / "saved", device="cpu")
