"""What a classifier learns on held-out rows: calibration, coverage, the out-of-domain threshold, and the card."""

import functools
import json
from dataclasses import replace

import numpy as np
import pytest

from bothways import MultiTask, PairClassifier, TaskData, TextClassifier
from bothways.confidence.confidence import ConfidenceOptions
from bothways.encoder import Recorder
from bothways.errors import CorruptCheckpoint, InvalidInput, NotCalibrated, TextsTruncated
from bothways.evaluation.calibration import Isotonic
from bothways.evaluation.detectors import Cosine, Mahalanobis, Neighbours
from bothways.evaluation.temperature import Temperature
from bothways.packing import pack
from bothways.tasks import compare
from bothways.tasks.evaluate import out_of_domain
from bothways.tasks.heads.targets import SingleLabel
from classifier_cases import LABELS, noisy_rows, rows, scored

DETECTORS = ("max_softmax", "energy", "mahalanobis", "neighbours", "cosine")
ELSEWHERE = [{"text": f"w{60 + number % 20} w{59 - number % 7} w{70 + number % 9}"} for number in range(20)]


def fitted(tiny_bert, *, data=None, validation=None, epochs=1, seed=3, target="single", open_with=None, **settings):
    classifier = TextClassifier.from_pretrained(tiny_bert, device="cpu", **(open_with or {}))
    classifier.fit(
        data or rows(36),
        validation=validation or noisy_rows(40),
        epochs=epochs,
        learning_rate=5e-3,
        batch_size=6,
        seed=seed,
        target=target,
        **settings,
        show_progress=False,
    )
    return classifier


@pytest.fixture(scope="module")
def classifier(tiny_bert):
    return fitted(tiny_bert)


@pytest.fixture(scope="module")
def numbers(tiny_bert):
    listed = [{"text": row["text"], "label": float(LABELS.index(row["label"]))} for row in rows(36)]
    return fitted(tiny_bert, data=listed, validation=listed, target="regression")


def texts(listed):
    return [row["text"] for row in listed]


@pytest.mark.parametrize(("method", "kind"), [("temperature", Temperature), ("isotonic", Isotonic), (None, type(None))])
def test_the_method_that_is_asked_for_is_fitted_and_kept(tiny_bert, method, kind, tmp_path):
    classifier = fitted(tiny_bert, calibration=method)
    assert isinstance(classifier.confidence.calibration, kind)
    classifier.save(tmp_path / "saved")
    again = TextClassifier.from_pretrained(tmp_path / "saved", device="cpu")
    assert again.confidence.calibration == classifier.confidence.calibration
    assert again.predict("w5 w20") == classifier.predict("w5 w20")
    logits_NC, _ = scored(classifier, rows())
    found = [[each.probabilities[label] for label in LABELS] for each in classifier.predict(texts(rows()))]
    expected = (classifier.confidence.calibration or Temperature(1.0)).apply(logits_NC)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_label_without_held_out_rows_is_calibrated_by_a_temperature_only(tiny_bert):
    held_out = [row for row in rows(36) if row["label"] != LABELS[-1]]
    with pytest.raises(
        InvalidInput, match=f"'isotonic' needs held-out rows of every label, and '{LABELS[-1]}' has none"
    ):
        fitted(tiny_bert, validation=held_out, calibration="isotonic")
    assert isinstance(fitted(tiny_bert, validation=held_out, calibration="auto").confidence.calibration, Temperature)


def test_several_labels_take_a_temperature_only(tiny_bert):
    listed = [{"text": row["text"], "label": [row["label"]]} for row in rows(36)]
    with pytest.raises(InvalidInput, match="'isotonic'"):
        fitted(tiny_bert, data=listed, validation=listed, target="multi", calibration="isotonic")
    labelling = fitted(tiny_bert, data=listed, validation=listed, target="multi")
    assert isinstance(labelling.confidence.calibration, Temperature)
    with pytest.raises(NotCalibrated, match="Fit a single-label or regression model"):
        labelling.predict("w5 w20", coverage=0.9)


def test_sets_of_labels_hold_the_best_one_grow_with_the_promise_and_stay_when_saved(classifier, tmp_path):
    data = rows(40)
    narrow, wide = (classifier.predict(texts(data), coverage=coverage) for coverage in (0.5, 0.95))
    for few, many in zip(narrow, wide, strict=True):
        assert few.label_set[0] == few.label == many.label_set[0]
        assert set(few.label_set) <= set(many.label_set)
    classifier.save(tmp_path / "saved")
    again = TextClassifier.from_pretrained(tmp_path / "saved", device="cpu")
    assert again.predict(texts(data), coverage=0.95) == wide
    assert wide[0].to_dict()["label_set"] == list(wide[0].label_set)
    assert "label_set" not in classifier.predict("w5 w20").to_dict()


def doubtful(count, first):
    """Rows with labels of their own, of which every fourth or so is drawn anew."""
    random = np.random.default_rng(first)
    return [
        {**row, "label": str(random.choice(LABELS)) if random.random() < 0.375 else row["label"]}
        for row in rows(count, first)
    ]


def test_label_sets_hold_the_truth_of_fresh_rows_as_often_as_promised(tiny_bert):
    classifier = fitted(tiny_bert, validation=doubtful(200, 100), detector=None)
    fresh = doubtful(600, 1_000)
    for coverage in (0.85, 0.95):
        found = classifier.predict(texts(fresh), coverage=coverage)
        inside = np.mean([row["label"] in each.label_set for each, row in zip(found, fresh, strict=True)])
        # Three standard errors of 200 held-out rows and 600 fresh ones.
        assert inside == pytest.approx(coverage, abs=3 * np.sqrt(coverage * (1 - coverage) * (1 / 200 + 1 / 600)))
        assert 1 < np.mean([len(each.label_set) for each in found]) < 3


def test_an_interval_around_a_number_holds_fresh_ones_as_often_as_promised(tiny_bert):
    def measured(count, first):
        noise = np.random.default_rng(first).normal(0, 0.5, count)
        return [
            {"text": row["text"], "label": LABELS.index(row["label"]) + more}
            for row, more in zip(rows(count, first), noise, strict=True)
        ]

    data = {"data": measured(60, 0), "validation": measured(200, 100)}
    classifier = fitted(tiny_bert, **data, target="regression")
    fresh = measured(600, 1_000)
    for coverage in (0.5, 0.8):
        found = classifier.predict(texts(fresh), coverage=coverage)
        inside = np.mean([each.low <= row["label"] <= each.high for each, row in zip(found, fresh, strict=True)])
        assert inside == pytest.approx(coverage, abs=3 * np.sqrt(coverage * (1 - coverage) * (1 / 200 + 1 / 600)))


def test_an_interval_around_a_number_stays_when_saved(numbers, tmp_path):
    found = numbers.predict(texts(rows(36)), coverage=0.8)
    assert all(each.low < each.value < each.high for each in found)
    numbers.save(tmp_path / "saved")
    again = TextClassifier.from_pretrained(tmp_path / "saved", device="cpu")
    assert again.predict("w5 w20", coverage=0.8) == numbers.predict("w5 w20", coverage=0.8)
    assert numbers.predict("w5 w20").to_dict().keys() == {"value", "windows", "dropped_tokens"}


@pytest.mark.parametrize("coverage", [0.0, 1.0, 1.5, 0.999])
def test_a_coverage_that_cannot_be_promised_is_refused(classifier, coverage):
    with pytest.raises(InvalidInput, match="coverage"):
        classifier.predict("w5 w20", coverage=coverage)


def test_coverage_without_calibration_is_refused(classifier):
    with pytest.raises(InvalidInput, match="calibrated"):
        classifier.predict("w5 w20", coverage=0.9, calibrated=False)


@pytest.fixture(scope="module")
def detecting(tiny_bert):
    """A factory: a classifier with a detector, fitted once."""
    return functools.cache(lambda kind: fitted(tiny_bert, detector=kind, validation=rows(40), in_domain_share=0.9))


@pytest.mark.parametrize("kind", [*DETECTORS, "mahalanobis_layers"])
def test_every_detector_keeps_most_of_the_domain_and_scores_the_same_when_saved(detecting, kind, tmp_path):
    classifier = detecting(kind)
    found = classifier.predict(texts(rows(40)))
    assert np.mean([each.out_of_domain for each in found]) <= 0.1
    assert all(
        each.out_of_domain == (each.out_of_domain_score > classifier.confidence.out_of_domain.threshold)
        for each in found
    )
    classifier.save(tmp_path / "saved")
    again = TextClassifier.from_pretrained(tmp_path / "saved", device="cpu")
    data = [*texts(rows(4)), *texts(ELSEWHERE), " ".join(["w5", *["w20"] * 60])]
    assert again.predict(data) == classifier.predict(data)


@pytest.mark.parametrize("kind", ["mahalanobis", "mahalanobis_layers", "cosine", "neighbours"])
def test_a_detector_is_fitted_on_the_training_rows_and_their_own_labels(detecting, kind):
    data, classifier = rows(36), detecting(kind)
    training = classifier.score(data)
    features_NLD = classifier.fitted.outputs.evidence(training.scores).features_NLD
    labels_N = [LABELS.index(row["label"]) for row in data]
    expected = (
        Neighbours.fit(features_NLD, 10)
        if kind == "neighbours"
        else {"cosine": Cosine}.get(kind, Mahalanobis).fit(features_NLD, labels_N, len(LABELS))
    )
    asked = [*data[:12], *({**row, "label": LABELS[0]} for row in ELSEWHERE)]
    scores_N = expected.score(classifier.fitted.outputs.evidence(classifier.score(asked).scores))
    found = [each.out_of_domain_score for each in classifier.predict(texts(asked))]
    np.testing.assert_allclose(found, scores_N, rtol=1e-4)


def test_features_change_nothing_else(tiny_bert):
    plain, featured = (fitted(tiny_bert, detector=kind) for kind in (None, "mahalanobis"))
    for one, other in zip(plain.predict(texts(rows())), featured.predict(texts(rows())), strict=True):
        assert one.out_of_domain is None
        assert other.out_of_domain is not None
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-6)


def test_all_layers_are_read_where_the_head_reads_its_own(tiny_bert):
    classifier = fitted(tiny_bert, detector="mahalanobis_layers", validation=rows(40), open_with={"max_length": 8})
    encoder, tokenizer = classifier.model.encoder, classifier.model.tokenizer
    assert classifier.confidence.out_of_domain.detector.roots_LDD.shape[0] == encoder.config.layers > 1
    ids = [text.windows[0].ids for text in tokenizer.encode(texts(rows(3)), max_length=8)]
    encoder(pack(ids), record=(record := Recorder()))
    first_rows = np.cumsum([0, *map(len, ids[:-1])])
    evidence = classifier.fitted.outputs.evidence(classifier.score(rows(3)).scores)
    for layer, state_TH in enumerate(reversed(record.hidden_states[1:])):
        np.testing.assert_allclose(evidence.features_NLD[:, layer], state_TH.detach()[first_rows], atol=1e-5)


def test_several_tasks_read_the_layers_that_each_of_them_wants(tiny_bert):
    shared = MultiTask.from_pretrained(tiny_bert, device="cpu")
    data = {name: TaskData(rows(24), rows(12), detector="mahalanobis_layers") for name in ("far", "near")}
    shared.fit(data, epochs=1)
    near = shared.fitted.parts["near"]
    confidence = replace(near.outputs.confidence, out_of_domain=None)
    blind = replace(near, outputs=replace(near.outputs, layers=0, confidence=confidence))
    shared = shared._with(replace(shared.fitted, parts={**shared.fitted.parts, "near": blind}))
    for found, text in zip(shared.predict(texts(rows(4))), texts(rows(4)), strict=True):
        alone = shared.part("far").predict(text)
        assert found["far"].out_of_domain_score == pytest.approx(alone.out_of_domain_score, rel=1e-4)
        assert found["near"].out_of_domain_score is None


def test_several_tasks_whose_detectors_read_all_layers_take_one_pass(tiny_bert, encoder_passes):
    shared = MultiTask.from_pretrained(tiny_bert, device="cpu")
    data = {name: TaskData(rows(24), rows(12), detector="mahalanobis_layers") for name in ("one", "two", "three")}
    shared.fit(data, epochs=1)
    encoder_passes.clear()
    shared.predict(texts(rows(1))[0])
    assert len(encoder_passes) == 1


def test_rows_from_elsewhere_move_the_border_between_both(tiny_bert, tmp_path):
    fitted(tiny_bert, validation=rows(40)).save(tmp_path / "saved")
    classifier = TextClassifier.from_pretrained(tmp_path / "saved", device="cpu")
    before = classifier.confidence.out_of_domain
    classifier.fit_threshold(ELSEWHERE)
    inside = classifier.score(rows(40))
    evidence = classifier.fitted.outputs.evidence(inside.scores)
    report = out_of_domain(classifier, inside, ELSEWHERE, resamples=50)
    assert report.counts["n_out_of_domain"] == len(ELSEWHERE)
    assert report.values["threshold"] == classifier.confidence.out_of_domain.threshold != before.threshold
    card = classifier.card
    assert len(card["confidence"]["calibrations_tried"]) == 2
    assert card["confidence"]["out_of_domain_threshold"] == classifier.confidence.out_of_domain.threshold
    assert card["confidence"]["out_of_domain_rows"] == len(ELSEWHERE)
    classifier.fit_threshold(ELSEWHERE[:5])
    assert [limit for limit in classifier.card["limits"] if "out-of-domain rows" in limit] == [
        "The out-of-domain threshold was fitted to 5 out-of-domain rows: metrics on the same rows are optimistic."
    ]
    classifier.fit_threshold(ELSEWHERE)
    balance = report.values["accepted_in_domain"] + 1 - report.values["accepted_out_of_domain"]
    scores = before.detector.score(evidence)
    assert balance >= (scores <= before.threshold).mean()


def test_texts_from_elsewhere_that_are_cut_are_counted(classifier, tmp_path):
    classifier.save(tmp_path / "saved")
    cutting = TextClassifier.from_pretrained(tmp_path / "saved", device="cpu", max_length=4, on_overflow="truncate")
    report = out_of_domain(cutting, cutting.score(rows(6)), ELSEWHERE, resamples=5)
    assert report.to_dict()["tokens_read"] == {"texts": 20, "in_windows": 0, "cut": 20, "dropped_tokens": 20}
    assert report.summary().endswith("20 of 20 texts were truncated: 20 tokens were not read")
    with pytest.warns(TextsTruncated, match=r"20 of 20 texts were truncated: 20 tokens were not read"):
        cutting.fit_threshold(ELSEWHERE)


@pytest.mark.parametrize(
    ("target", "label", "calibration", "message"),
    [
        ("multi", ["a"], "isotonic", "multi-label models are calibrated by a temperature, not by 'isotonic'"),
        ("regression", 0.5, "temperature", "regression models have no probabilities to calibrate by 'temperature'"),
    ],
)
def test_a_calibration_that_the_target_does_not_know_is_refused_before_the_training(
    tiny_bert, tmp_path, target, label, calibration, message
):
    classifier = TextClassifier.from_pretrained(tiny_bert, device="cpu")
    data = [{"text": row["text"], "label": label} for row in rows(20)]
    with pytest.raises(InvalidInput, match=message):
        classifier.fit(data, target=target, epochs=1, calibration=calibration, log=tmp_path / "log.jsonl")
    assert not (tmp_path / "log.jsonl").exists()


def test_the_card_says_metrics_calibration_and_limits(classifier, tmp_path):
    classifier.save(tmp_path / "saved")
    card = json.loads((tmp_path / "saved" / "bothways.json").read_text())["card"]
    report = classifier.evaluate(noisy_rows(40), seed=3).to_dict()
    for name in ("accuracy", "accuracy_low", "accuracy_high", "nll", "ece"):
        assert card["metrics"][name] == pytest.approx(report[name], abs=1e-5), name
    assert card["confidence"]["calibration"] == classifier.confidence.calibration.method
    assert [each["method"] for each in card["confidence"]["calibrations_tried"]] == [
        "temperature",
        "isotonic",
    ]
    assert card["confidence"]["out_of_domain"] == "mahalanobis"
    assert any("new rows may be covered slightly less often" in limit for limit in card["limits"])


def test_a_missing_or_altered_file_of_confidence_is_refused(classifier, tmp_path):
    classifier.save(tmp_path / "saved")
    path = tmp_path / "saved" / "confidence.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(CorruptCheckpoint, match=r"confidence\.safetensors"):
        TextClassifier.from_pretrained(tmp_path / "saved", device="cpu")
    path.unlink()
    with pytest.raises(CorruptCheckpoint, match=r"confidence\.safetensors"):
        TextClassifier.from_pretrained(tmp_path / "saved", device="cpu")


@pytest.mark.parametrize(
    "settings",
    [{"calibration": "beta"}, {"detector": "magic"}, {"in_domain_share": 0.0}, {"in_domain_share": 1.0}],
)
def test_settings_that_mean_nothing_are_refused(settings):
    with pytest.raises(InvalidInput):
        ConfidenceOptions(**settings)


def test_two_models_are_compared_on_the_same_rows_whatever_the_order_of_their_labels(classifier, tiny_bert):
    other = fitted(tiny_bert, data=rows(9), seed=4)
    data = noisy_rows(30)
    first, second = (each.evaluate(data, resamples=50) for each in (classifier, other))
    order = [2, 0, 1]
    output = other.fitted.backend.head_model.head.output
    output.weight.data, output.bias.data = output.weight.data[order], output.bias.data[order]
    target = SingleLabel(tuple(other.labels[index] for index in order))
    turned = other._with(replace(other.fitted, outputs=replace(other.fitted.outputs, target=target)))
    report = compare(classifier, turned, data, resamples=50, show_progress=False)
    assert report.metrics["accuracy"].first.value == first.accuracy.value
    assert report.metrics["accuracy"].second.value == second.accuracy.value
    assert report.metrics["nll"].difference.value == pytest.approx(second.nll.value - first.nll.value)
    assert report.tests[0].name == "mcnemar"


def test_numbers_are_compared_too(numbers):
    listed = [{"text": row["text"], "label": float(LABELS.index(row["label"]))} for row in rows(12)]
    report = compare(numbers, numbers, listed, resamples=20, show_progress=False)
    assert report.metrics["mse"].difference.value == 0
    assert report.tests[0].p_value == 1


def test_models_that_cannot_be_compared_are_refused(classifier, numbers, tiny_bert):
    with pytest.raises(InvalidInput, match="only one of them has 'ant'"):
        compare(classifier, numbers, rows())
    two = [row for row in rows(36) if row["label"] != "cow"]
    with pytest.raises(InvalidInput, match="'cow'"):
        compare(classifier, fitted(tiny_bert, data=two, validation=two), rows())
    with pytest.raises(InvalidInput, match="got a object"):
        compare(classifier, object(), rows())


def test_pairs_learn_confidence_as_well(tiny_bert, tmp_path):
    listed = [{"text_a": row["text"], "text_b": "w30", "label": row["label"]} for row in rows(36)]
    pairs = PairClassifier.from_pretrained(tiny_bert, device="cpu")
    pairs.fit(listed, validation=listed, epochs=1, show_progress=False)
    pairs.save(tmp_path / "saved")
    again = PairClassifier.from_pretrained(tmp_path / "saved", device="cpu")
    found = again.predict(("w5 w20", "w30"), coverage=0.9)
    assert found.label in found.label_set
    training = pairs.score(listed)
    detector = Mahalanobis.fit(pairs.fitted.outputs.evidence(training.scores).features_NLD, training.truth, len(LABELS))
    (score,) = detector.score(pairs.fitted.outputs.evidence(pairs.score(listed[:1]).scores))
    stated = pairs.predict((listed[0]["text_a"], "w30"))
    assert stated.out_of_domain_score == pytest.approx(score, rel=1e-4)
    assert stated.out_of_domain == (score > pairs.confidence.out_of_domain.threshold)
