"""The report of an audit as plain text."""

import textwrap
from collections.abc import Iterator

from bothways.audit.finding import AuditReport, Finding
from bothways.progress import duration

_WIDTH = 100


def as_text(report: AuditReport) -> str:
    """Return the report as lines for a terminal: verdict, detectors, findings."""
    ran = sum(each.ran and each.verdict != "error" for each in report.detectors)
    lines = [f"{report.verdict.upper()}  {report.model}: {ran} of {len(report.detectors)} detectors ran", ""]
    before = ""
    widest = max((len(each.name) for each in report.detectors), default=0)
    for each in report.detectors:
        shown = each.verdict if each.ran else "not run"
        reason = each.reason.removeprefix("not run: ")
        text = "(as above)" if reason and reason == before else reason or duration(each.seconds)
        before = reason
        lines += _wrapped(f"{each.name:<{widest}}  {shown:<12}  ", text)
    for note in report.notes:
        lines += _wrapped("note: ", note)
    for finding in report.findings:
        lines += ["", *_finding(finding)]
    return "\n".join(lines)


def _finding(finding: Finding) -> Iterator[str]:
    yield f"{finding.severity.label.upper()}  {finding.title}"
    evidence = finding.evidence
    parts = [f"{evidence.statistic}" + ("" if evidence.value is None else f" {evidence.value:.4g}")]
    if evidence.threshold is not None:
        parts.append(f"threshold {evidence.threshold:.4g}")
    if evidence.n:
        parts.append(f"n = {evidence.n:,}")
    if evidence.null:
        parts.append(f"judged by {evidence.null}")
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
