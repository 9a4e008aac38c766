"""The page of an audit, for a security engineer: the verdict, the detectors, and every finding with its evidence."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bothways.audit.finding import DECISION, AuditReport, DetectorResult, Evidence, Finding, Severity
from bothways.progress import duration
from bothways.report.page import (
    Block,
    Code,
    KeyFigure,
    KeyFigures,
    Page,
    Paragraph,
    Section,
    Table,
    TextItem,
    TextList,
)

_VERDICTS = {
    "fail": "FAIL: at least one finding has severity medium or higher. Read it before you use the model.",
    "error": "ERROR: a detector crashed, or none ran. Conclude nothing from it: the model may be safe or unsafe.",
    "inconclusive": "INCONCLUSIVE: no finding has severity medium or higher, but a detector could not decide.",
    "pass": "PASS: every detector that ran finished, and no finding has severity medium or higher. That is no proof of "
    "safety: it says nothing about faults that no detector looks for.",
}
# Maximum number of entries that the page shows of a list of evidence; the JSON report has all.
_MAX_SHOWN = 12


def audit_page(report: AuditReport, command: str) -> Page:
    """Return the page of an audit.

    Args:
        report: The result of the audit.
        command: The command line that reproduces it.
    """
    severities = sorted({finding.severity for finding in report.findings}, reverse=True)
    return Page(
        title=f"Audit: {report.verdict.upper()}",
        subtitle=f"Model: {report.model}",
        sections=(
            _verdict(report),
            _detectors(report.detectors, report.notes),
            *(_findings(severity, report.findings) for severity in severities),
            _meanings(),
            Section("How to reproduce", (Code((command,)), Paragraph(_reproduction(report)))),
        ),
        footer=f"Written by “bothways audit”, version {report.version or 'unknown'}.",
    )


def _verdict(report: AuditReport) -> Section:
    ran = sum(each.ran for each in report.detectors)
    bad = report.at_least(Severity.MEDIUM)
    figures = (
        KeyFigure("Verdict", report.verdict.upper()),
        KeyFigure("Worst finding", "none" if report.worst is None else report.worst.label),
        KeyFigure("Medium or higher", f"{len(bad)}", f"of {len(report.findings)} findings"),
        KeyFigure("Detectors", f"{ran}", f"of {len(report.detectors)} ran"),
    )
    blocks: list[Block] = [KeyFigures(figures), Paragraph(_VERDICTS[report.verdict])]
    if bad:
        rows = tuple((each.severity.label, each.title, each.location or report.model) for each in bad)
        blocks.append(Table(("Severity", "Finding", "Where"), rows, "The findings to read first."))
    return Section("Verdict", tuple(blocks))


def _detectors(results: Sequence[DetectorResult], notes: Sequence[str]) -> Section:
    items = tuple(
        TextItem(
            each.name,
            {
                "verdict": each.verdict if each.ran else "not run",
                "why": each.reason.removeprefix("not run: ") or "no finding of severity medium or higher",
                **each.statements,
                "time": duration(each.seconds) if each.ran else "",
            },
        )
        for each in results
    )
    return Section(
        "What ran, and what did not",
        (
            Paragraph(
                "A detector that did not run or that crashed does not count as passed. One that passed shows no more "
                "than what it checked, on the rows that it had."
            ),
            Paragraph(f"The rule: {DECISION}."),
            TextList(items),
            *(Paragraph(f"Note: {note}") for note in notes),
        ),
    )


def _findings(severity: Severity, findings: Sequence[Finding]) -> Section:
    chosen = [each for each in findings if each.severity == severity]
    folded = severity < Severity.MEDIUM
    items = tuple(
        TextItem(each.title, _facts(each), tuple(_tables(each.evidence.details, folded=folded))) for each in chosen
    )
    meaning = severity.meaning
    return Section(f"Findings: {severity.label}", (Paragraph(f"{meaning[:1].upper()}{meaning[1:]}."), TextList(items)))


def _facts(finding: Finding) -> dict[str, str]:
    evidence, details = finding.evidence, dict(finding.evidence.details)
    ends = (details.pop("low"), details.pop("high")) if details.keys() >= {"low", "high"} else ()
    return {
        "where": finding.location,
        "evidence": _measurement(evidence),
        "95\u00a0% interval": " to ".join(map(_shown, ends)),
        "compared with": evidence.null,
        **{_words(key): _shown(value) for key, value in details.items() if not _rows(value)},
        "to do": finding.remedy,
        "references": "; ".join(finding.references),
        "detector": f"{finding.detector}, rule {finding.rule}",
    }


def _tables(details: Mapping[str, Any], *, folded: bool) -> Iterator[Table]:
    """Yield a table for each entry that is a list of records, such as examples, files or edits."""
    for key, value in details.items():
        rows = _rows(value)
        if rows:
            names = list(dict.fromkeys(name for row in rows for name in row))
            cells = tuple(tuple(_shown(row.get(name)) for name in names) for row in rows[:_MAX_SHOWN])
            some = f": {_MAX_SHOWN} of {len(rows)}, the JSON report has all" if len(rows) > _MAX_SHOWN else ""
            caption = f"{_words(key)[:1].upper()}{_words(key)[1:]}"
            numbers = tuple(
                _words(name) for name in names if all(isinstance(row.get(name), int | float) for row in rows)
            )
            summary = f"{caption} ({len(rows):,})" if folded else ""
            yield Table(tuple(map(_words, names)), cells, f"{caption}{some}.", numbers, summary)


def _rows(value: Any) -> list[Mapping[str, Any]]:  # noqa: ANN401 (JSON)
    """Return the rows of a list of mappings, or of a mapping of mappings; empty for other values."""
    listed: list[Mapping[str, Any]] = []
    if isinstance(value, Mapping):
        listed = [{"": name, **each} for name, each in value.items() if isinstance(each, Mapping)]
    elif isinstance(value, list | tuple):
        listed = [each for each in value if isinstance(each, Mapping)]
    else:
        return []
    return listed if len(listed) == len(value) else []


def _words(key: str) -> str:
    return key.replace("_", " ")


def _measurement(evidence: Evidence) -> str:
    parts = [evidence.statistic if evidence.value is None else f"{evidence.statistic} {evidence.value:,.4g}"]
    if evidence.threshold is not None:
        parts.append(f"threshold {evidence.threshold:,.4g}")
    if evidence.n:
        parts.append(f"n = {evidence.n:,}")
    return ", ".join(parts)


def _shown(value: Any) -> str:  # noqa: ANN401 (JSON)
    """Format a JSON value as text; long lists are shortened."""
    if isinstance(value, Mapping):
        entries = [f"{key}: {_shown(each)}" for key, each in value.items()]
    elif isinstance(value, list | tuple):
        entries = [_shown(each) for each in value]
    elif isinstance(value, float):
        return f"{value:,.4g}"
    else:
        return "" if value is None else str(value)
    more = f", and {len(entries) - _MAX_SHOWN} more" if len(entries) > _MAX_SHOWN else ""
    return ", ".join(entries[:_MAX_SHOWN]) + more


def _meanings() -> Section:
    rows = tuple((each.label, each.meaning) for each in sorted(Severity, reverse=True))
    return Section("What the severities mean", (Table(("Severity", "Meaning"), rows),))


def _reproduction(report: AuditReport) -> str:
    return (
        f"Seed {report.seed}. The same version, files, data and seed give the same findings, unless a detector reaches "
        "its time limit. --format json writes all evidence, --format sarif a file for code hosts such as GitHub."
    )
