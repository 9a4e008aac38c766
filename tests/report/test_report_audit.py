"""The page of an audit: the verdict first, what did not run, every finding with its evidence, and nothing that runs."""

import re
from dataclasses import replace

from bothways.audit import AuditReport, DetectorResult, Evidence, Finding, Severity
from bothways.report import render
from bothways.report.audit import audit_page

RESULTS = (
    DetectorResult("FilesDetector", "fail", "a pickle imports os.system", rule="fails if a file has a fault"),
    DetectorResult("DataDetector", "inconclusive", "not run: needs texts: give rows with --data.", ran=False),
    DetectorResult("BrokenDetector", "error", "ValueError: broken"),
)


def finding(severity):
    details = {"files": [f"file {number}" for number in range(40)], "script": "<script>alert(1)</script>"}
    evidence = Evidence("success of the trigger", 0.971, 0.5, "random words: 0.04", 1234, details)
    title = f"a {severity.label} finding <b>"
    return Finding("FilesDetector", severity, title, evidence, "a-rule", "model.bin", "mend it", ("CVE-2025-1716",))


def text_of(report):
    document = render(audit_page(report, "bothways audit runs/x --seed 0"))
    assert "<script" not in document
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", document.split("<body", 1)[1]))


def test_the_page_has_all_that_a_reader_needs_from_the_top():
    report = AuditReport(
        "runs/x", RESULTS, tuple(finding(each) for each in sorted(Severity, reverse=True)), 7, "1.2", ("labels unused",)
    )
    text = text_of(report)
    assert text.index("Audit: FAIL") < text.index("What ran, and what did not") < text.index("Findings: critical")
    for severity in Severity:
        assert f"a {severity.label} finding" in text
        assert severity.meaning in text
    for said in ("0.971", "threshold 0.5", "n = 1,234", "random words: 0.04", "mend it", "CVE-2025-1716", "model.bin"):
        assert said in text
    assert "needs texts: give rows with --data." in text
    assert "not run" in text
    assert "ValueError: broken" in text
    assert "fails if a file has a fault" in text
    assert "and 28 more" in text
    assert "bothways audit runs/x --seed 0" in text
    assert "Seed 7" in text
    assert "Note: labels unused" in text


def test_examples_and_files_stand_in_tables():
    details = {
        "examples": [{"original": f"text {number}", "edits": [["a", "b"]]} for number in range(15)],
        "by_edit": {"lower case": {"rate": 0.25, "n": 8}, "typos": {"rate": 0.5}},
        "empty": [],
    }
    evidence = Evidence("share", 0.5, n=8, details=details)
    page = render(audit_page(AuditReport("x", RESULTS, (Finding("D", Severity.LOW, "t", evidence, "r"),)), "x"))
    rows = [re.findall(r"<t[hd][^>]*>([^<]*)<", row) for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)]
    assert ["original", "edits"] in rows
    assert ["text 11", "a, b"] in rows
    assert ["text 12", "a, b"] not in rows
    assert "Examples: 12 of 15" in page
    assert ["", "rate", "n"] in rows
    assert ["typos", "0.5", ""] in rows


def test_intervals_are_called_so_and_tables_of_what_is_no_fault_are_folded():
    details = {"low": 0.25, "high": 0.75, "examples": [{"text": "a", "n": 8}, {"text": "b", "n": 9}]}

    def page_of(severity):
        evidence = Evidence("share", 0.5, n=8, details=details)
        return render(audit_page(AuditReport("x", RESULTS, (Finding("D", severity, "t", evidence, "r"),)), "x"))

    for severity, folded in ((Severity.LOW, True), (Severity.MEDIUM, False)):
        page = page_of(severity)
        assert "<dt>95\u00a0% interval</dt><dd>0.25 to 0.75</dd>" in page
        assert ("<summary>Examples (2)</summary>" in page) is folded
        assert '<td class="number">8</td>' in page


def test_only_short_facts_are_bold():
    short, long = finding(Severity.LOW), replace(finding(Severity.LOW), remedy="Mend it before it is used again. " * 2)
    for each, words in ((short, "<dd>mend it</dd>"), (long, '<dd class="long">Mend it before')):
        assert words in render(audit_page(AuditReport("x", RESULTS, (each,)), "x"))


def test_a_page_without_findings_claims_no_proof():
    text = text_of(AuditReport("runs/x", (DetectorResult("FilesDetector", "pass"),), ()))
    assert "Audit: PASS" in text
    assert "That is no proof" in text
    assert "Findings:" not in text


def test_an_audit_that_ran_nothing_says_that_nothing_may_be_concluded():
    assert "Conclude nothing from it" in text_of(AuditReport("runs/x", RESULTS[1:2], ()))
