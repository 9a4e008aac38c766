"""The report of an audit as SARIF 2.1.0, which code hosts and security dashboards read (OASIS, 2020)."""

import hashlib
import re
from typing import Any

from bothways.audit.finding import AuditReport, Finding, Severity

_LEVELS = {
    Severity.INFO: "note",
    Severity.LOW: "note",
    Severity.MEDIUM: "warning",
    Severity.HIGH: "error",
    Severity.CRITICAL: "error",
}
# What GitHub sorts security findings by: 0 to 10.
_SCORES = {
    Severity.INFO: "0.0",
    Severity.LOW: "2.0",
    Severity.MEDIUM: "5.5",
    Severity.HIGH: "8.0",
    Severity.CRITICAL: "9.5",
}
_NOT_PASSED = {"error": "error", "inconclusive": "warning"}


def as_sarif(report: AuditReport) -> dict[str, Any]:
    """Return the report as a SARIF log of one run; detectors that crashed or were not run are its notifications."""
    rules = {each.rule: each for each in report.findings}
    places = {rule: number for number, rule in enumerate(rules)}
    notifications: list[dict[str, Any]] = [
        {
            "level": _NOT_PASSED[each.verdict] if each.asked else "note",
            "message": {"text": f"{each.name}: {each.reason or each.verdict}"},
            "descriptor": {"id": each.name},
        }
        for each in report.detectors
        if each.verdict in _NOT_PASSED
    ]
    notifications += [{"level": "warning", "message": {"text": each}} for each in report.notes]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "bothways audit",
                        "version": report.version,
                        "rules": [_rule(each) for each in rules.values()],
                    }
                },
                "invocations": [
                    {"executionSuccessful": report.verdict != "error", "toolExecutionNotifications": notifications}
                ],
                "results": [_result(each, places[each.rule], report.model) for each in report.findings],
                "properties": {"verdict": report.verdict, "model": report.model, "seed": report.seed},
            }
        ],
    }


def _rule(finding: Finding) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "id": finding.rule,
        "name": finding.detector,
        "shortDescription": {"text": finding.title},
        "properties": {"security-severity": _SCORES[finding.severity], "tags": ["security", finding.detector]},
    }
    if finding.remedy:
        rule["help"] = {"text": finding.remedy}
    if finding.references:
        rule["fullDescription"] = {"text": f"{finding.title}. See {'; '.join(finding.references)}"}
    return rule


def _result(finding: Finding, rule: int, model: str) -> dict[str, Any]:
    place = finding.location or model
    fingerprint = hashlib.sha256("\n".join((finding.rule, finding.title, place)).encode()).hexdigest()
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": finding.title},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": _uri(model)}},
                "logicalLocations": [{"fullyQualifiedName": place}],
            }
        ],
        "partialFingerprints": {"bothwaysAudit/v1": fingerprint},
        "properties": {"severity": finding.severity.label, "evidence": finding.evidence.to_dict()},
    }


def _uri(place: str) -> str:
    """Return a relative reference with everything percent-encoded that RFC 3986 reserves."""
    return re.sub(r"[^A-Za-z0-9._~/-]", lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), place)
