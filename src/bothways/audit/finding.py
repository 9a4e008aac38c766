"""Findings of an audit, and the report that gathers them. Imports nothing heavy: a scan of files needs no torch."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Literal, TypeAlias

Verdict: TypeAlias = Literal["pass", "fail", "inconclusive", "error"]


class Severity(IntEnum):
    """The severity of a finding; ordered, so that ``Severity.HIGH > Severity.LOW``."""

    INFO = 0
    LOW = 1
    MEDIUM = 2
    HIGH = 3
    CRITICAL = 4

    @property
    def label(self) -> str:
        """The name in lower case, as reports have it."""
        return self.name.lower()

    @property
    def meaning(self) -> str:
        """The meaning for the model, in words."""
        return _MEANINGS[self]

    @classmethod
    def of(cls, label: str) -> "Severity":
        """Return the severity of a label such as ``"high"``."""
        return cls[label.upper()]


_MEANINGS = {
    Severity.INFO: "a measurement worth knowing; nothing is wrong",
    Severity.LOW: "a weakness that most models have; know it before you rely on the model",
    Severity.MEDIUM: "a weakness beyond the usual; mend it, or guard against it, before the model is used",
    Severity.HIGH: "the model is probably manipulated or easily abused; do not use it before this is explained",
    Severity.CRITICAL: "loading or using the model can run foreign code or obeys somebody else; do not use it",
}

# From here on a finding fails its detector.
FAILING = Severity.MEDIUM


@dataclass(frozen=True, slots=True)
class Evidence:
    """The measurement behind a finding.

    Attributes:
        statistic: Name of the number, such as ``"attack success"``.
        value: The number; None where a finding is a plain fact, such as a file that may run code.
        threshold: From where on it is a finding; None where there is no threshold.
        null: The distribution of the number where there is no fault, in words and figures.
        n: Number of texts, files or tests that it was measured on.
        details: Whatever else a reader wants to see; JSON values.
    """

    statistic: str
    value: float | None = None
    threshold: float | None = None
    null: str = ""
    n: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the evidence as JSON values."""
        return {
            "statistic": self.statistic,
            "value": self.value,
            "threshold": self.threshold,
            "null": self.null,
            "n": self.n,
            **self.details,
        }


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that an audit found.

    Attributes:
        detector: Name of the detector.
        severity: The severity.
        title: One line that says what was found.
        evidence: The measurement.
        location: Where: a file, a layer, a row, a token.
        remedy: Advice.
        references: Papers and advisories.
        rule: Short stable name of the kind of finding, such as ``"pickle-import"``.
    """

    detector: str
    severity: Severity
    title: str
    evidence: Evidence
    rule: str
    location: str = ""
    remedy: str = ""
    references: tuple[str, ...] = ()

    def printable(self) -> "Finding":
        """Return the finding with the characters of names and texts made harmless, see `printable`."""
        evidence = replace(self.evidence, null=printable(self.evidence.null), details=_printable(self.evidence.details))
        title, location = printable(self.title, lines=False), printable(self.location, lines=False)
        return replace(self, title=title, location=location, remedy=printable(self.remedy), evidence=evidence)

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        return {
            "detector": self.detector,
            "rule": self.rule,
            "severity": self.severity.label,
            "title": self.title,
            "evidence": self.evidence.to_dict(),
            "location": self.location,
            "remedy": self.remedy,
            "references": list(self.references),
        }


@dataclass(frozen=True, slots=True)
class DetectorResult:
    """The outcome of one detector.

    Attributes:
        name: Name of the detector.
        verdict: ``"pass"`` only where it ran to its end and found nothing of severity medium or worse.
        reason: Why it failed, could not decide, crashed or was not run; empty for a pass.
        ran: False where it could not run at all.
        seconds: Time that it took.
        asked: True where its verdict counts: it was named, or everything that it needs is there.
    """

    name: str
    verdict: Verdict
    reason: str = ""
    ran: bool = True
    seconds: float = 0.0
    asked: bool = True

    def printable(self) -> "DetectorResult":
        """Return the result with the characters of its reason made harmless, see `printable`."""
        return replace(self, reason=printable(self.reason))

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "verdict": self.verdict,
            "ran": self.ran,
            "reason": self.reason,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The outcome of `scan`.

    Attributes:
        model: Name or folder of the model.
        detectors: One result for each detector, run or not.
        findings: All findings, the worst first.
        seed: Seed of whatever was drawn.
        version: Version of this package.
        notes: Remarks on what was given and not used.
    """

    model: str
    detectors: tuple[DetectorResult, ...]
    findings: tuple[Finding, ...]
    seed: int = 0
    version: str = ""
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the detectors that count; ``"error"`` where none of them ran.

        ``"fail"`` comes before ``"error"``, since a fault that was found stays found, and ``"error"`` before
        ``"inconclusive"``. Detectors that lack what they need and were not named do not count.
        """
        counted = [each for each in self.detectors if each.asked]
        verdicts: list[Verdict] = [each.verdict for each in counted]
        if "fail" in verdicts:
            return "fail"
        if "error" in verdicts or not any(each.ran for each in counted):
            return "error"
        return "inconclusive" if "inconclusive" in verdicts else "pass"

    @property
    def worst(self) -> Severity | None:
        """The worst severity found; None where nothing was found."""
        return max((each.severity for each in self.findings), default=None)

    def at_least(self, severity: Severity) -> tuple[Finding, ...]:
        """Return the findings of this severity and worse."""
        return tuple(each for each in self.findings if each.severity >= severity)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "verdict": self.verdict,
            "model": self.model,
            "findings": [each.to_dict() for each in self.findings],
            "detectors": {each.name: each.to_dict() for each in self.detectors},
            "notes": list(self.notes),
            "seed": self.seed,
            "version": self.version,
        }


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings in the order of a report: the worst first, otherwise as they were found."""
    return tuple(sorted(findings, key=lambda each: -each.severity))


# Control characters but for line feed and tab, marks and overrides of the direction of writing, surrogates.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, *, lines: bool = True) -> str:
    r"""Return a text without characters that control a terminal, hide its order, or cannot be stored as UTF-8.

    They stand as escapes instead. File names and pickles of a hostile model hold whatever they like.

    >>> print(printable("weights\x1b[2J\udcff.bin"))
    weights\x1b[2J\xff.bin

    Args:
        text: The text.
        lines: Keep line feeds and tabs; else they are escaped too.
    """
    escaped = _UNPRINTABLE.sub(lambda found: _escape(ord(found[0])), text)
    return escaped if lines else escaped.replace("\n", "\\n").replace("\t", "\\t")


def _escape(point: int) -> str:
    if 0xDC80 <= point <= 0xDCFF:  # a byte of a file name that is no UTF-8 (PEP 383)
        point -= 0xDC00
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}"


def _printable(value: Any) -> Any:  # noqa: ANN401 (JSON values)
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(str(key)): _printable(each) for key, each in value.items()}
    return [_printable(each) for each in value] if isinstance(value, list | tuple) else value
