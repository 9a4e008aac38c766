"""Trustworthy numbers on the command line: compare, coverage, texts from elsewhere, the page of an evaluation."""

import json
import re

import numpy as np
import pytest
from command_line import call, fails, ok, rows, saved_of, write_jsonl
from sklearn.metrics import roc_auc_score

from bothways import open_trained
from bothways.errors import OutOfDisk
from bothways.progress import six_digits
from bothways.tasks.heads.training import CROSS_VALIDATED
from contract_cases import rows as few_rows
from contract_cases import write_embedder


@pytest.fixture(scope="module")
def other_run(files, tmp_path_factory):
    """A run that was trained too little, with rows from elsewhere to draw its border by."""
    folder = tmp_path_factory.mktemp("trust")
    others = write_jsonl(folder / "others.jsonl", [{"text": f"w{number} w{number + 1}"} for number in range(20, 50)])
    done = ok(
        *("train", "classification", "--model", files / "tiny", "--train", files / "test.jsonl.gz"),
        *("--epochs", 1, "--seed", 2, "--device", "cpu", "--output", folder / "run", "--quiet"),
        *("--calibration", "isotonic", "--detector", "cosine", "--out-of-domain", others),
    )
    assert "isotonic" in done.out
    return folder / "run"


@pytest.fixture
def others(tmp_path):
    return write_jsonl(tmp_path / "others.jsonl", [{"text": f"w{number} w{number + 1}"} for number in range(20, 50)])


def test_training_options_of_trust_reach_the_saved_model(other_run):
    saved = saved_of(other_run)
    assert saved["calibration"]["method"] == "isotonic"
    assert saved["out_of_domain"]["kind"] == "cosine"
    assert saved["card"]["confidence"]["out_of_domain"] == "cosine"


def test_nothing_is_learnt_that_was_not_wanted(files, tmp_path):
    done = call(
        *("train", "classification", "--model", files / "tiny", "--train", files / "test.jsonl.gz", "--epochs", 1),
        *("--device", "cpu", "--output", tmp_path / "run", "--calibration", "none", "--detector", "none", "--json"),
    )
    assert done.json()["calibration"] is None
    saved = saved_of(tmp_path / "run")
    assert (saved["calibration"], saved["out_of_domain"]) == (None, None)


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["classification", "--out-of-domain", "absent.jsonl"], 1, "absent.jsonl"),
        (["classification", "--out-of-domain", "others.jsonl", "--text", "words"], 1, "line 1 of 'others.jsonl'"),
        (["classification", "--out-of-domain", "others.jsonl", "--detector", "none"], 2, "--detector other than none"),
        (["classification", "--out-of-domain", "others.jsonl", "--target", "regression"], 2, "--target single"),
        (["pairs", "--out-of-domain", "others.jsonl", "--score", "score"], 2, "--target single"),
        (["classification", "--out-of-domain", "-", "--validation", "-"], 2, "--validation and --out-of-domain cannot"),
    ],
)
def test_what_could_not_be_learnt_is_refused_before_the_training(
    files, others, tmp_path, monkeypatch, words, code, problem
):
    monkeypatch.chdir(tmp_path)
    data = [{"text": row["text"], "label": row["label"]} for row in rows(8, 1)]
    train = ["--train", write_jsonl(tmp_path / "train.jsonl", data)]
    fails(code, problem, "train", *words, *train, "--model", files / "tiny", "--device", "cpu", "--output", "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["others.jsonl", "train.jsonl"]


def test_a_row_from_elsewhere_that_cannot_be_read_is_named_before_the_data_are(files, other_run, tmp_path):
    others = write_jsonl(tmp_path / "others.jsonl", [{"text": "w5"}, {"text": "w6"}, {"text": ""}])
    words = ("evaluate", other_run, "--data", tmp_path / "absent.jsonl", "--out-of-domain", others)
    fails(1, f"line 3 of '{others}'", *words)


def test_compare_gives_both_models_their_difference_and_tests(files, run, other_run):
    data = files / "test.jsonl.gz"
    given = call("compare", run, other_run, "--data", data, "--json", "--quiet").json()
    for side, folder in (("a", run), ("b", other_run)):
        alone = call("evaluate", folder, "--data", data, "--json", "--quiet").json()
        for name in ("accuracy", "macro_f1", "nll", "brier"):
            assert given[f"{name}_{side}"] == pytest.approx(alone[name])
            assert given[f"{name}_{side}_low"] == pytest.approx(alone[f"{name}_low"])
    assert given["accuracy_difference"] == pytest.approx(given["accuracy_b"] - given["accuracy_a"])
    assert [test["name"] for test in given["tests"]] == ["mcnemar", "permutation"]
    assert given["n"] == 30
    shown = ok("compare", run, other_run, "--data", data, "--quiet").out
    assert all(part in shown for part in ("difference", "accuracy", "mcnemar (right or wrong): p = "))


# Texts of five words, and of two from elsewhere, of which windows of four and three tokens hold two words and one.
CUTTING = ("--on-overflow", "truncate", "--quiet", "--resamples", 5)


def test_compare_says_what_each_model_did_not_read(files, run, other_run):
    words = ("compare", run, other_run, "--data", files / "test.jsonl.gz", "--max-length", 4, *CUTTING)
    assert call(*words).out.splitlines()[-2:] == [
        f"{model}: 30 of 30 texts were truncated: 90 tokens were not read" for model in ("first", "second")
    ]
    given = call(*words, "--json").json()
    read = {"texts": 30, "in_windows": 0, "cut": 30, "dropped_tokens": 90}
    assert given["tokens_read_a"] == given["tokens_read_b"] == read


def test_evaluate_says_what_of_texts_from_elsewhere_was_not_read(files, run, others, tmp_path):
    words = ("evaluate", run, "--data", files / "test.jsonl.gz", "--out-of-domain", others, "--max-length", 3, *CUTTING)
    said = [
        "30 of 30 texts were truncated: 120 tokens were not read",
        "30 of 30 texts were truncated: 30 tokens were not read",
    ]
    lines = call(*words, "--report", tmp_path / "page.html").out.splitlines()
    assert [line for line in lines if "truncated" in line] == said
    given = call(*words, "--json").json()
    assert [each["tokens_read"]["dropped_tokens"] for each in (given, given["out_of_domain"])] == [120, 30]
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert all(f"{each}." in page for each in said)


def test_compare_refuses_models_of_different_labels(files, run, tmp_path):
    relabelled = [{**row, "label": row["label"].upper()} for row in rows(30, 0)]
    data = write_jsonl(tmp_path / "upper.jsonl", relabelled)
    ok(
        *("train", "classification", "--model", files / "tiny", "--train", data, "--epochs", 1, "--device", "cpu"),
        *("--output", tmp_path / "run", "--quiet"),
    )
    fails(1, "must have the same labels", "compare", run, tmp_path / "run", "--data", files / "test.jsonl.gz")


def test_predict_gives_sets_with_a_promise(run):
    (narrow,) = call("predict", run, "w6 w8 w10", "--coverage", 0.6, "--device", "cpu").lines()
    assert narrow["label_set"] == [narrow["label"]]
    found = open_trained(run, device="cpu").predict("w6 w8 w10", coverage=0.6)
    assert narrow == json.loads(json.dumps(six_digits(found.to_dict())))
    (plain,) = call("predict", run, "w6 w8 w10", "--device", "cpu").lines()
    assert "label_set" not in plain


def test_evaluate_says_how_texts_from_elsewhere_are_told(files, run, others):
    words = ("evaluate", run, "--data", files / "test.jsonl.gz", "--out-of-domain", others, "--resamples", 50)
    given = call(*words, "--json").json()
    outside = given["out_of_domain"]
    assert (outside["n_in_domain"], outside["n_out_of_domain"]) == (30, 30)
    here, there = (call("predict", run, "--data", each).lines() for each in (files / "test.jsonl.gz", others))
    scores = [each["out_of_domain_score"] for each in (*here, *there)]
    assert outside["auroc"] == pytest.approx(roc_auc_score([0] * 30 + [1] * 30, scores), abs=1e-9)
    assert outside["auroc_high"] - outside["auroc_low"] > 0.02
    assert outside["accepted_out_of_domain"] == pytest.approx(np.mean([not each["out_of_domain"] for each in there]))
    assert outside["accepted_in_domain"] == pytest.approx(np.mean([not each["out_of_domain"] for each in here]))
    assert {"aupr", "fpr95", "threshold"} <= outside.keys()
    alone = call("evaluate", run, "--data", files / "test.jsonl.gz", "--resamples", 50, "--json").json()
    assert {name: value for name, value in given.items() if name != "out_of_domain"} == alone
    assert "accepted as in-domain" in call(*words).out


def test_evaluate_writes_a_page(files, run, others, tmp_path):
    page = tmp_path / "page.html"
    ok(
        *("evaluate", run, "--data", files / "test.jsonl.gz", "--out-of-domain", others),
        *("--report", page, "--resamples", 20, "--quiet"),
    )
    written = page.read_text(encoding="utf-8")
    for words in ("Before calibration", "After calibration", "Confusion matrix", "Out-of-domain texts", "even"):
        assert words in written
    assert "optimistic" in written  # the limits of the card
    assert "With this number of predictions, perfectly calibrated probabilities have an error of" in written


@pytest.mark.parametrize(("page", "code"), [("folder", 2), ("file/page.html", 1)])
def test_a_page_that_cannot_be_written_is_refused_before_the_model_is_opened(tmp_path, page, code):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    outcome = call("evaluate", "no/model", "--data", "no.jsonl", "--report", tmp_path / page)
    assert outcome.code == code
    assert str(tmp_path / page) in outcome.err
    assert "no/model" not in outcome.err
    assert "--overwrite" not in outcome.err


@pytest.mark.parametrize("json_", [True, False])
def test_metrics_are_printed_though_their_page_fails(files, run, tmp_path, monkeypatch, json_):
    def full(*_, **__):
        raise OutOfDisk("no space left")

    monkeypatch.setattr("bothways.report.write", full)
    words = ("evaluate", run, "--data", files / "test.jsonl.gz", "--report", tmp_path / "page.html", "--resamples", 5)
    outcome = fails(1, "no space left", *words, "--quiet", *(["--json"] if json_ else []))
    assert (outcome.json()["n"] == 30) if json_ else ("accuracy" in outcome.out)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "there is no file"), ("", "is empty"), ('{"words": "w5"}\n', "has no column 'text'")],
)
def test_texts_from_elsewhere_that_cannot_be_read_are_refused_before_the_data_are_read(run, tmp_path, content, said):
    others = tmp_path / "others.jsonl"
    if content is not None:
        others.write_text(content)
    outcome = fails(1, said, "evaluate", run, "--data", "no.jsonl", "--out-of-domain", others)
    assert str(others) in outcome.err


def test_numbers_have_a_page_and_no_detector(files, others, tmp_path):
    data = write_jsonl(tmp_path / "n.jsonl", [{**row, "label": float(len(row["text"]))} for row in rows(30, 0)])
    ok(
        *("train", "classification", "--model", files / "tiny", "--train", data, "--target", "regression"),
        *("--epochs", 1, "--device", "cpu", "--output", tmp_path / "run", "--quiet"),
    )
    ok("evaluate", tmp_path / "run", "--data", data, "--report", tmp_path / "page.html")
    written = (tmp_path / "page.html").read_text()
    assert "Predicted (vertical) against true numbers (horizontal)" in written
    assert "Calibration</h2>" not in written
    words = ("evaluate", tmp_path / "run", "--data", "no.jsonl", "--out-of-domain", others)
    fails(1, "has no out-of-domain detector", *words)
    (found,) = call("predict", tmp_path / "run", "w6 w8", "--coverage", 0.5).lines()
    assert found["low"] < found["value"] < found["high"]


def test_few_texts_have_a_border_against_texts_from_elsewhere(tmp_path, monkeypatch):
    """Of so few texts all are learnt from, and cross-validation teaches the detector."""
    monkeypatch.setattr("bothways.tasks.heads.contrastive._UPDATES_OF_FEW", 1)
    monkeypatch.setattr("bothways.tasks.heads.training._AFTER_CONTRAST", 1)
    base = write_embedder(tmp_path / "base")
    data = write_jsonl(tmp_path / "few.jsonl", few_rows("single"))
    others = write_jsonl(tmp_path / "others.jsonl", [{"text": f"w{40 + at} w{41 + at}"} for at in range(8)])
    words = ["--model", base, "--train", data, "--out-of-domain", others, "--batch-size", 8, "--device", "cpu"]
    outcome = ok("train", "classification", *words, "--output", tmp_path / "run")
    assert re.search(r"^validation +accuracy [\d.]+, .*\(cross-validation\)$", outcome.out, re.MULTILINE)
    assert re.search(rf"^baseline +accuracy .*\({CROSS_VALIDATED}\)$", outcome.out, re.MULTILINE)
    assert open_trained(tmp_path / "run", device="cpu").confidence.out_of_domain.detector.kind == "energy"
