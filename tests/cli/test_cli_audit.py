"""``bothways audit``: formats by the output's name, and exit codes for continuous integration."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
from command_line import call, fails, ok

import bothways.audit
from bothways.audit.finding import AuditReport, DetectorResult

MODEL = Path(__file__).parents[1] / "frozen" / "models" / "classifier"
FILES = ("--detectors", "ModelProvenanceChecker", "--quiet")


@pytest.fixture
def unsafe(tmp_path):
    folder = shutil.copytree(MODEL, tmp_path / "model")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(len))
    return folder


def test_the_output_says_its_format(unsafe, tmp_path):
    for name, begin in {
        "a.html": "<!doctype html>",
        "a.json": '{\n  "verdict": "fail"',
        "a.sarif": "{",
        "a": "FAIL",
    }.items():
        outcome = call("audit", unsafe, *FILES, "--thorough", "--output", tmp_path / name)
        assert outcome.code == 1, outcome.err
        assert (tmp_path / name).read_text(encoding="utf-8").lower().startswith(begin.lower())
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "imports builtins.len" in page
    assert f"bothways audit {unsafe} --thorough --detectors ModelProvenanceChecker" in page
    assert json.loads((tmp_path / "a.sarif").read_text())["runs"][0]["results"]


def test_a_quiet_audit_only_writes_its_report(tmp_path):
    words = ("audit", MODEL, "--detectors", "ModelProvenanceChecker", "--report", tmp_path / "a.json", "--overwrite")
    assert "verdict: pass" in call(*words).err
    quiet = call(*words, "--quiet")
    assert (quiet.out, quiet.err) == ("", "")


def test_a_page_needs_a_file():
    fails(2, "--report", "audit", MODEL, *FILES, "--format", "html")


@pytest.mark.parametrize(("fail_on", "clean"), [("critical", 0), ("high", 0), ("info", 1)])
def test_exit_codes_follow_the_mildest_severity(fail_on, clean, unsafe):
    assert call("audit", unsafe, *FILES, "--fail-on", fail_on).code == 1
    assert call("audit", MODEL, *FILES, "--fail-on", fail_on).code == clean


def test_what_cannot_run_is_no_success():
    outcome = call("audit", MODEL, "--detectors", "ClassifierConfidenceAnalyzer", "--quiet")
    assert outcome.code == 3
    assert "ERROR" in outcome.out
    assert call("audit", MODEL, "--detectors", "ModelProvenanceCheker", "--quiet").code == 2


def test_errors_of_reading_name_the_option_of_this_command(tmp_path):
    (tmp_path / "rows").write_text('{"text": "w5"}\n')
    for words in (("audit", MODEL, "--data"), ("audit-data",)):
        fails(1, "give the format (--data-format)", *words, tmp_path / "rows")
    fails(1, "give the format (--format)", "evaluate", MODEL, "--data", tmp_path / "rows")


def test_the_help_names_every_detector():
    shown = call("audit", "--help").out
    assert all(f"  {name} " in shown for name in bothways.audit.DETECTORS)


@pytest.fixture
def given(monkeypatch):
    """The settings that a scan is given, in place of the scan."""
    kept = {}

    def scan(name, *arguments, settings, **options):
        kept.update(settings)
        return AuditReport(name, (DetectorResult("ModelProvenanceChecker", "pass"),), ())

    monkeypatch.setattr("bothways.cli.audit.scan", scan)
    return kept


def test_triggers_and_clean_texts_reach_the_detectors(given, tmp_path):
    rows, triggers, texts = tmp_path / "rows.jsonl", tmp_path / "triggers.list", tmp_path / "texts.txt"
    rows.write_text('{"text": "w5 w6", "label": "ant"}\n')
    triggers.write_text("cf\n\n  no cross no crown \n")
    texts.write_text("w5\n\nw7 w8\n")
    ok("audit", MODEL, "--thorough", "--data", rows, "--triggers", triggers, "--clean-texts", texts)
    assert given == {"thorough": True, "triggers": ["cf", "no cross no crown"], "clean_texts": ["w5", "w7 w8"]}
    ok("audit", MODEL, "--data", rows, "--clean-texts", rows)
    assert [dict(row.values) for row in given["clean_texts"]] == [{"text": "w5 w6", "label": "ant"}]


def test_triggers_and_clean_texts_that_are_none_are_refused(given, tmp_path):
    blank, rows = tmp_path / "blank.txt", tmp_path / "rows.jsonl"
    blank.write_text("\n \n")
    rows.write_text('{"text": "w5 w6"}\n')
    for options, code, said in (
        (("--triggers", blank), 2, "got only empty lines"),
        (("--triggers", tmp_path / "nowhere.txt"), 1, "nowhere.txt"),
        (("--data", rows, "--clean-texts", blank), 2, "got only empty lines"),
        (("--clean-texts", rows), 2, "--clean-texts needs --data"),
    ):
        fails(code, said, "audit", MODEL, *options)
    assert not given
