"""``bothways audit``: formats by the output's name, and exit codes for continuous integration."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
from command_line import call

MODEL = Path(__file__).parents[1] / "frozen" / "v1" / "classifier"
FILES = ("--detectors", "ModelProvenanceChecker", "--quiet")


@pytest.fixture
def unsafe(tmp_path):
    folder = shutil.copytree(MODEL, tmp_path / "model")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(print))
    return folder


def test_the_output_says_its_format(unsafe, tmp_path):
    for name, begin in {
        "a.html": "<!doctype html>",
        "a.json": '{\n  "verdict": "fail"',
        "a.sarif": "{",
        "a": "FAIL",
    }.items():
        outcome = call("audit", unsafe, *FILES, "--output", tmp_path / name)
        assert outcome.code == 1, outcome.err
        assert (tmp_path / name).read_text(encoding="utf-8").lower().startswith(begin.lower())
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "imports builtins.print" in page
    assert f"bothways audit {unsafe} --detectors ModelProvenanceChecker" in page
    assert json.loads((tmp_path / "a.sarif").read_text())["runs"][0]["results"]


def test_a_page_needs_a_file():
    outcome = call("audit", MODEL, *FILES, "--format", "html")
    assert outcome.code == 2
    assert "--output" in outcome.err


@pytest.mark.parametrize(("fail_on", "clean"), [("critical", 0), ("high", 0), ("info", 1)])
def test_exit_codes_follow_the_mildest_severity(fail_on, clean, unsafe):
    assert call("audit", unsafe, *FILES, "--fail-on", fail_on).code == 1
    assert call("audit", MODEL, *FILES, "--fail-on", fail_on).code == clean


def test_what_cannot_run_is_no_success():
    outcome = call("audit", MODEL, "--detectors", "ClassifierConfidenceAnalyzer", "--quiet")
    assert outcome.code == 3
    assert "ERROR" in outcome.out
    assert call("audit", MODEL, "--detectors", "ModelProvenanceCheker", "--quiet").code == 2
