"""Thresholds of several labels on the command line: learnt, shown, and given."""

import pytest
from command_line import call, fails, ok, rows, saved_of, write_jsonl


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    made = [{**row, "label": [row["label"], "any"][: 1 + at % 2]} for at, row in enumerate(rows(60, 0))]
    return write_jsonl(tmp_path_factory.mktemp("several") / "data.jsonl", made)


@pytest.fixture(scope="module")
def several(files, data, tmp_path_factory):
    output = tmp_path_factory.mktemp("several-run") / "run"
    words = ("--target", "multi", "--epochs", 2, "--train", data, "--validation", data, "--output", output, "--json")
    outcome = ok("train", "classification", "--model", files / "tiny", "--device", "cpu", *words)
    return output, outcome.json()


def test_a_training_says_its_thresholds(several):
    run, summary = several
    stored = saved_of(run)["thresholds"]
    assert summary.get("thresholds", [summary.get("threshold")] * 3) == stored


def test_a_threshold_is_given_to_a_prediction(several, tmp_path):
    run, _ = several
    (everything,) = call("predict", run, "w5 w6", "--threshold", 0).lines()
    (nothing,) = call("predict", run, "w5 w6", "--threshold", 1).lines()
    assert (sorted(everything["labels"]), nothing["labels"]) == (["any", "even", "odd"], [])
    fails(2, "--threshold must be at least 0 and at most 1, got 1.5", "predict", run, "w5 w6", "--threshold", 1.5)


def test_an_evaluation_is_at_the_thresholds_of_the_model_or_at_one_that_is_given(several, data, tmp_path):
    run, _ = several
    words = ("evaluate", run, "--data", data, "--resamples", 5)
    given = call(*words, "--threshold", 0, "--json", "--report", tmp_path / "page.html").json()
    assert given["threshold"] == 0
    assert all(row["recall"] == 1 for row in given["per_class"].values())
    assert "Labels are predicted at a probability of at least 0." in (tmp_path / "page.html").read_text()
    shown = call(*words)
    assert "probability" in shown.out
    assert call(*words, "--threshold", -1).code == 2


def test_a_threshold_is_given_to_a_training(files, data, tmp_path):
    words = ("--epochs", 1, "--train", data, "--output", tmp_path / "run", "--threshold", 0.3, "--quiet")
    start = ("train", "classification", "--model", files / "tiny", "--device", "cpu")
    outcome = ok(*start, *words, "--target", "multi")
    assert "threshold    0.300" in outcome.out
    outcome = call(*start, *words, "--target", "regression", "--overwrite")
    assert outcome.code == 1
    assert "expected a finite number" in outcome.err or "thresholds are for multi-label models" in outcome.err
