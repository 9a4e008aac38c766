"""An audit report as plain text, and as SARIF 2.1.0 for code hosts and security dashboards (OASIS, 2020)."""

import hashlib
import re
import textwrap
from collections.abc import Iterator

from bothways.audit.finding import DECISION, AuditReport, Finding, Severity
from bothways.progress import duration

_WIDTH = 100
# SARIF's level, and the score from 0 to 10 that GitHub sorts security findings by.
_LEVELS = {
    Severity.INFO: ("note", "0.0"),
    Severity.LOW: ("note", "2.0"),
    Severity.MEDIUM: ("warning", "5.5"),
    Severity.HIGH: ("error", "8.0"),
    Severity.CRITICAL: ("error", "9.5"),
}
_NOT_PASSED = {"error": "error", "inconclusive": "warning"}


def as_text(report: AuditReport) -> str:
    """Format the report for a terminal: verdict, detectors with what they checked, findings."""
    lines = [f"{report.verdict.upper()}  {report.model}: {report.ran}"]
    lines += [*_wrapped("rule: ", DECISION), ""]
    before = ""
    widest = max((len(each.name) for each in report.detectors), default=0)
    for each in report.detectors:
        verdict = each.verdict if each.ran else "not run"
        reason = each.reason.removeprefix("not run: ")
        text = "(as above)" if reason and reason == before else reason or duration(each.seconds)
        before = reason
        lines += _wrapped(f"{each.name:<{widest}}  {verdict:<12}  ", text)
        for name, statement in each.statements.items():
            lines += _wrapped(f"  {name:<11} ", statement)
    for note in report.notes:
        lines += _wrapped("note: ", note)
    for finding in report.findings:
        lines += ["", *_finding_lines(finding)]
    return "\n".join(lines)


def _finding_lines(finding: Finding) -> Iterator[str]:
    yield from _wrapped(f"{finding.severity.label.upper()}  ", finding.title)
    evidence = finding.evidence
    parts = [f"{evidence.statistic}" + ("" if evidence.value is None else f" {evidence.value:.4g}")]
    if evidence.threshold is not None:
        parts.append(f"threshold {evidence.threshold:.4g}")
    if evidence.n:
        parts.append(f"n = {evidence.n:,}")
    if evidence.null:
        parts.append(f"baseline: {evidence.null}")
    facts = {
        "detector": finding.detector,
        "where": finding.location,
        "evidence": "; ".join(parts),
        "to do": finding.remedy,
    }
    for name, value in facts.items():
        if value:
            yield from _wrapped(f"  {name:<9} ", value)


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head)) or [head.rstrip()]


def as_sarif(report: AuditReport) -> dict[str, object]:
    """Convert the report to a SARIF log of one run; detectors that crashed or did not run become notifications."""
    rules = {each.rule: each for each in report.findings}
    places = {rule: number for number, rule in enumerate(rules)}
    notifications: list[dict[str, object]] = [
        {
            "level": _NOT_PASSED[each.verdict] if each.counts else "note",
            "message": {"text": f"{each.name}: {each.reason or each.verdict}"},
            "descriptor": {"id": each.name},
        }
        for each in report.detectors
        if each.verdict in _NOT_PASSED
    ]
    notifications += [{"level": "warning", "message": {"text": each}} for each in report.notes]
    for each in report.detectors:
        if each.statements:
            words = "; ".join(f"{name}: {text}" for name, text in each.statements.items())
            message = {"text": f"{each.name}: {each.verdict}; {words}"}
            notifications.append({"level": "note", "message": message, "descriptor": {"id": each.name}})
    driver = {
        "name": "bothways audit",
        "version": report.version,
        "rules": [_sarif_rule(each) for each in rules.values()],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [
            {"executionSuccessful": report.verdict != "error", "toolExecutionNotifications": notifications}
        ],
        "results": [_sarif_result(each, places[each.rule], report.model) for each in report.findings],
        "properties": {
            "verdict": report.verdict,
            "rule": DECISION,
            "model": report.model,
            "seed": report.seed,
            "detectors": {each.name: each.to_dict() for each in report.detectors},
        },
    }
    return {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}


def _sarif_rule(finding: Finding) -> dict[str, object]:
    rule: dict[str, object] = {
        "id": finding.rule,
        "name": finding.detector,
        "shortDescription": {"text": finding.title},
        "properties": {"security-severity": _LEVELS[finding.severity][1], "tags": ["security", finding.detector]},
    }
    if finding.remedy:
        rule["help"] = {"text": finding.remedy}
    if finding.references:
        rule["fullDescription"] = {"text": f"{finding.title}. See {'; '.join(finding.references)}"}
    return rule


def _sarif_result(finding: Finding, rule: int, model: str) -> dict[str, object]:
    place = finding.location or model
    fingerprint = hashlib.sha256("\n".join((finding.rule, finding.title, place)).encode()).hexdigest()
    # A relative reference (RFC 3986), with all reserved characters percent-encoded.
    uri = re.sub(r"[^A-Za-z0-9._~/-]", lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), model)
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule,
        "level": _LEVELS[finding.severity][0],
        "message": {"text": finding.title},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": uri}},
                "logicalLocations": [{"fullyQualifiedName": place}],
            }
        ],
        "partialFingerprints": {"bothwaysAudit/v1": fingerprint},
        "properties": {"severity": finding.severity.label, "evidence": finding.evidence.to_dict()},
    }
