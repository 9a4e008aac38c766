"""Every class of malicious file that was made public is found, by its rule, within bounds, and nothing of it runs."""

import json
import os
import pickle
import subprocess
import sys
import time

import hostile_samples
import pytest
from sarif_schema import violations

from bothways.audit import scan
from bothways.audit.finding import FAILING
from bothways.audit.formats import as_sarif, as_text

DETECTOR = ["ModelProvenanceChecker"]
UNPICKLED = []
sys.addaudithook(lambda event, arguments: UNPICKLED.append(arguments) if event == "pickle.find_class" else None)


@pytest.mark.parametrize("name", hostile_samples.SAMPLES)
def test_a_malicious_file_is_found(name, tmp_path):
    make, rule, _ = hostile_samples.SAMPLES[name]
    make(tmp_path)
    UNPICKLED.clear()
    begun = time.monotonic()
    report = scan(tmp_path, detectors=DETECTOR)
    assert not UNPICKLED
    assert report.verdict == "fail", report
    found = [finding for finding in report.findings if finding.rule == rule and finding.severity >= FAILING]
    assert found, [(each.rule, each.title) for each in report.findings]
    assert found[0].references
    assert found[0].remedy
    assert not violations(as_sarif(report))
    assert time.monotonic() - begun < 10


def test_there_are_at_least_25_classes_with_their_publication():
    assert len({published for _, _, published in hostile_samples.SAMPLES.values()}) >= 25


def test_a_scan_of_files_loads_no_torch(tmp_path):
    make, _, _ = hostile_samples.SAMPLES["checkpoint_that_calls"]
    make(tmp_path)
    code = (
        "import sys; from bothways.audit import scan; "
        f"report = scan({str(tmp_path)!r}, detectors=['ModelProvenanceChecker']); "
        "print(report.verdict, [name for name in ('torch', 'transformers', 'safetensors') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == "fail []", run.stderr


def test_all_of_them_are_looked_at_within_bounded_memory(tmp_path):
    for name, (make, _, _) in hostile_samples.SAMPLES.items():
        (tmp_path / name).mkdir()
        make(tmp_path / name)
    code = (
        "import re, sys, pathlib; from bothways.audit import scan\n"
        "for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):\n"
        "    scan(folder, detectors=['ModelProvenanceChecker'])\n"
        # Not ru_maxrss, which begins with the memory of the process that started this one.
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1]) // 1024)"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert int(run.stdout) < 512, run.stderr  # MiB; a file claims 10 GB, another unpacks to more than it may


def test_names_of_files_can_neither_break_a_report_nor_control_a_terminal(tmp_path):
    name = b"x\xff\x1b[2J\nCRITICAL fake \xe2\x80\xaegpj.pkl"
    (tmp_path / os.fsdecode(name)).write_bytes(pickle.dumps(print))
    report = scan(tmp_path, detectors=DETECTOR)
    written = as_text(report)
    assert r"x\xff\x1b[2J\nCRITICAL fake \u202egpj.pkl" in written
    assert not any("CRITICAL fake" in line and r"\n" not in line for line in written.splitlines())
    for text in (written, json.dumps(report.to_dict(), ensure_ascii=False), json.dumps(as_sarif(report))):
        assert not {"\x1b", "\u202e"} & set(text)
        text.encode()
    assert not violations(as_sarif(report))
