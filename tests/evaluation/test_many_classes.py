"""Thousands of classes: the same answers as for few, in time and memory that do not grow with steps."""

import time
import tracemalloc

import numpy as np
import pytest

from bothways.confidence.confidence import ConfidenceOptions
from bothways.confidence.fitting import learn_classification
from bothways.evaluation import calibration as calibration_module
from bothways.evaluation import temperature as temperature_module
from bothways.evaluation.calibration import HeldOutRows
from bothways.evaluation.detectors import Cosine, DetectorInput, Mahalanobis, MaxSoftmax
from bothways.evaluation.metrics import classification
from bothways.evaluation.metrics.classification import class_outcomes
from bothways.evaluation.temperature import TabulatedLosses, Temperature, fit_adaptive_temperature, softmax
from bothways.tasks.heads.target_training import validate
from bothways.tasks.heads.targets import SingleLabel

PLAIN = Temperature(2.0)


def drawn(rows, count, temperature=PLAIN, seed=0):
    """Logits, and labels drawn from what a temperature makes of them."""
    random = np.random.default_rng(seed)
    logits_NC = random.normal(0, 3, (rows, count))
    exact_NC = logits_NC / temperature.for_rows(logits_NC)
    return logits_NC, (exact_NC + random.gumbel(size=exact_NC.shape)).argmax(1)


@pytest.fixture
def exactly(monkeypatch):
    """Fit as with few classes."""

    def run(function, *arguments):
        with monkeypatch.context() as few:
            few.setattr(temperature_module, "MANY_CLASSES", 10**9)
            few.setattr(calibration_module, "MANY_CLASSES", 10**9)
            return function(*arguments)

    return run


@pytest.mark.parametrize("temperature", [Temperature(2.0), Temperature(0.6), Temperature(4.0, 0.4)])
def test_a_temperature_of_many_classes_is_that_of_the_exact_fit(temperature, exactly):
    given = drawn(300, 205, temperature)
    found, exact = fit_adaptive_temperature(*given), exactly(fit_adaptive_temperature, *given)
    # The searches for the slope end within 1e-4 and 1e-6: a row's temperature so differs by some 1e-4 of itself.
    assert found.slope == pytest.approx(exact.slope, abs=2e-4)
    assert exact.slope > 0.1 or not temperature.slope
    assert found.apply(given[0]) == pytest.approx(exact.apply(given[0]), abs=1e-4)


@pytest.mark.parametrize("inverse", [0.051, 0.3, 1.0, 3.3, 20.0, 199.0])
def test_tabulated_losses_are_those_of_the_rows(inverse):
    logits_NC, labels_N = drawn(50, 300)
    rows_N = np.arange(50)
    losses = TabulatedLosses.of(logits_NC, labels_N)
    margins_NC = logits_NC - logits_NC[rows_N, labels_N][:, None]
    exact_N = np.logaddexp.reduce(inverse * margins_NC, axis=1)
    np.testing.assert_allclose(losses.nll(np.full(50, inverse)), exact_N, atol=1e-6)
    slope_N = (softmax(inverse * margins_NC) * margins_NC).sum(1)
    np.testing.assert_allclose(losses.slope(np.full(50, inverse)), slope_N, atol=1e-4)


def test_held_out_probabilities_of_many_classes_are_those_of_exact_fits(exactly):
    def held_out():
        return np.concatenate([stated_BC for _, stated_BC in rows.held_out("temperature", 0)])

    rows = HeldOutRows.from_arrays(*drawn(120, 205))
    assert held_out() == pytest.approx(exactly(held_out), abs=1e-4)


def test_of_many_classes_the_temperature_alone_is_fitted_and_that_is_said():
    chosen = HeldOutRows.from_arrays(*drawn(3_000, 201)).choose()
    assert (chosen.method, chosen.scores) == ("temperature", ())
    assert "201 classes are more than 200" in chosen.reason
    assert (
        "9 held-out rows" in HeldOutRows.from_arrays(np.eye(2)[[0] * 9 + [1] * 20], [0] * 9 + [1] * 20).choose().reason
    )


def test_what_held_out_rows_teach_of_many_classes_takes_little_time_and_memory():
    logits_NC, labels_N = drawn(1_000, 2_500)
    held_out, options = DetectorInput.of(logits_NC), ConfidenceOptions(detector="energy")
    start = time.process_time()
    tracemalloc.start()
    found = learn_classification(held_out, labels_N, options, seed=0, training=lambda: (held_out, labels_N))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Two thousand passes over the whole matrix took minutes, and each several copies of its 20 MB.
    assert time.process_time() - start < 15
    assert peak < logits_NC.nbytes * 0.8
    assert found.to_card()["calibrations_not_tried"].startswith("2,500 classes")
    included_NC = found.conformal.at(0.9).includes(found.calibration.apply(logits_NC[:200]))
    assert included_NC[np.arange(200), labels_N[:200]].mean() > 0.8


@pytest.mark.parametrize("kind", [MaxSoftmax, Cosine, Mahalanobis])
def test_detectors_of_many_classes_take_little_memory(kind):
    logits_NC, labels_N = drawn(1_000, 2_500)
    evidence = DetectorInput.of(logits_NC, np.random.default_rng(1).normal(size=(1_000, 1, 8)))
    detector = MaxSoftmax() if kind is MaxSoftmax else kind.fit(evidence.features_NLD, labels_N, 2_500)
    tracemalloc.start()
    detector.score(evidence)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < logits_NC.nbytes * (0.8 if kind is MaxSoftmax else 8)


def test_detectors_score_blocks_of_rows_as_they_score_all(monkeypatch):
    random = np.random.default_rng(0)
    evidence = DetectorInput.of(random.normal(size=(30, 20)), random.normal(size=(30, 2, 4)))
    labels_N = np.arange(30) % 20
    for kind in (Cosine, Mahalanobis):
        detector = kind.fit(evidence.features_NLD, labels_N, 20)
        whole_N = detector.score(evidence)
        with monkeypatch.context() as small:
            small.setattr("bothways.evaluation.detectors._BLOCK_CELLS", 50)
            assert detector.score(evidence) == pytest.approx(whole_N, rel=1e-9)


def test_outcomes_of_blocks_are_those_of_the_whole_to_the_bit():
    logits_NC, truth_N = drawn(500, 150)
    target = SingleLabel(tuple(map(str, range(150))))
    whole = class_outcomes(target.labels, truth_N, softmax(logits_NC)).report(resamples=20)
    assert target.outcomes(logits_NC, truth_N, None).report(resamples=20) == whole
    assert np.array(whole.confusion).sum() == 500


def test_a_report_of_many_classes_has_no_table_of_confusions(monkeypatch):
    monkeypatch.setattr(classification, "MAX_CONFUSION_CLASSES", 149)
    logits_NC, truth_N = drawn(500, 150)
    report = class_outcomes(list(map(str, range(150))), truth_N, softmax(logits_NC)).report(resamples=20)
    assert report.confusion == ()
    assert "confusion" not in report.to_dict()
    assert len(report.per_class) == 150


def test_validation_of_many_classes_takes_little_memory():
    logits_NC, truth_N = drawn(1_000, 2_000)
    target = SingleLabel(tuple(map(str, range(2_000))))
    tracemalloc.start()
    found = validate(target, logits_NC, truth_N)
    target.outcomes(logits_NC, truth_N, None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < logits_NC.nbytes / 4
    stated_NC = softmax(logits_NC)
    assert found.metrics["nll"] == -np.log(stated_NC[np.arange(1_000), truth_N]).mean()
    assert found.score == (stated_NC.argmax(1) == truth_N).mean()
