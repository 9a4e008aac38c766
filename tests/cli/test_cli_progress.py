"""What a job says of its course where its output goes to a file."""

import shutil

import pytest
from command_line import call, ok


@pytest.fixture
def impatient(monkeypatch):
    """Every line is due at once."""
    monkeypatch.setattr("bothways.progress.FIRST_LINE_AFTER", 0.0)
    monkeypatch.setattr("bothways.progress.LINE_EVERY", 0.0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (lambda run, data, _: ["predict", run, "--data", data], "predicting: 30 done, 0 s"),
        (lambda run, data, _: ["evaluate", run, "--data", data, "--json"], "evaluating: 30 of 30 (100%), 0 s"),
        (
            lambda run, data, at: ["embed", run, "--data", data, "--output", at / "v.npy", "--json"],
            "embedding: 30 done",
        ),
        (
            lambda run, data, at: ["search", "build", "--model", run, "--data", data, "--output", at / "i", "--json"],
            "indexing words: 30 of 30 (100%), 0 s",
        ),
    ],
)
def test_long_work_says_on_standard_error_how_far_it_is(run, files, tmp_path, words, said):
    data = files / "test.jsonl.gz"
    outcome = ok(*words(run, data, tmp_path))
    assert said in outcome.err
    assert "done" not in outcome.out
    quiet = call(*words(run, data, tmp_path / "again"), "--quiet")
    assert quiet.err == ""


def test_every_phase_of_an_ensemble_and_of_an_audit_is_named(run, files, tmp_path):
    data = files / "validation.jsonl.gz"
    members = [run, shutil.copytree(run, tmp_path / "copy")]
    words = ["ensemble", *members, "--calibrate", data, "--output", tmp_path / "ensemble"]
    assert ok(*words).err.splitlines() == [
        "opening the members",
        "reading the data",
        "calibrating",
        "evaluating on the calibration rows",
    ]
    assert call(*words, "--method", "stacked", "--overwrite", "--quiet").err == ""
    words = ["audit", run, "--data", data, "--detectors", "ModelProvenanceChecker,ClassifierConfidenceAnalyzer"]
    shown = call(*words).err.splitlines()
    assert [line for line in shown if line in ("checking the files", "testing calibration and confidence")] == shown[:2]
    assert "checking the files" not in call(*words, "--quiet").err
