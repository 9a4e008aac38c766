"""`ClassifierConfidenceAnalyzer`: a model that is surer than right is found, and one that is right is left alone."""

import numpy as np
from planted import BAD, FILLER, GOOD, audited, planted, rows_of_opinions, trained

from bothways.audit import Severity

NAME = "ClassifierConfidenceAnalyzer"


def test_overconfidence_is_found_and_what_was_not_learnt_is_said(tmp_path, monkeypatch):
    sure = planted(tmp_path, {**dict.fromkeys(GOOD, 0.2), **dict.fromkeys(BAD, -0.2)}, monkeypatch, words=FILLER)
    rng = np.random.default_rng(1)
    rows = [{**row, "label": str(rng.choice(["bad", "good"]))} for row in rows_of_opinions(120, seed=5)]
    report, found = audited(NAME, sure, rows)
    finding = found["confidence-overconfident"]
    assert finding.severity == Severity.MEDIUM
    assert report.verdict == "fail"
    assert finding.evidence.value > finding.evidence.threshold >= 0.05
    assert {"ece", "ece_low", "nll", "accuracy"} <= set(finding.evidence.details)
    assert {"confidence-uncalibrated", "confidence-no-detector"} <= set(found)


def test_a_calibrated_model_passes_without_labels_and_with_them(tmp_path, monkeypatch):
    classifier = trained(tmp_path / "base", monkeypatch, rows_of_opinions(200), validation=rows_of_opinions(60, seed=2))
    rows = rows_of_opinions(80, seed=3)
    report, found = audited(NAME, classifier, rows)
    assert report.verdict == "pass"
    assert found["confidence-calibration"].severity == Severity.INFO
    assert 0 <= found["confidence-detector"].evidence.value <= 1
    unlabelled, found = audited(NAME, classifier, [{"text": row["text"]} for row in rows])
    assert unlabelled.verdict == "pass"
    assert "labels" in found["confidence-distribution"].evidence.details["calibration_not_measured"]
    one_class = [row for row in rows if row["label"] == "bad"][:3]
    assert audited(NAME, classifier, one_class)[0].verdict == "pass"
