"""Rules, findings and reports of audits. Imports nothing heavy: a scan of files needs no torch."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from bothways.evaluation.intervals import Estimate

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
        """The name in lower case, as in reports."""
        return self.name.lower()

    @property
    def meaning(self) -> str:
        """One sentence on what a finding of this severity means for the model."""
        return _MEANINGS[self]


_MEANINGS = {
    Severity.INFO: "a measurement worth knowing; nothing is wrong",
    Severity.LOW: "a weakness that most models have; know it before you rely on the model",
    Severity.MEDIUM: "an unusual weakness; fix it, or guard against it, before you use the model",
    Severity.HIGH: "the model is probably manipulated or easily abused; do not use it before this is explained",
    Severity.CRITICAL: "loading or using the model can run malicious code or serve an attacker; do not use it",
}

# The lowest severity that fails a detector.
FAILING = Severity.MEDIUM


@dataclass(frozen=True, slots=True)
class Evidence:
    """The measurement behind a finding.

    Attributes:
        statistic: Name of the number, such as ``"attack success"``.
        value: The number; None for plain facts, such as a file that may run code.
        threshold: The value beyond which it counts as a fault; None if there is no threshold.
        null: A description of the number's distribution in models without the fault.
        n: Number of texts, files or tests measured.
        details: Further facts for the reader; JSON values.
    """

    statistic: str
    value: float | None = None
    threshold: float | None = None
    null: str = ""
    n: int = 0
    details: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        statistic: str,
        estimate: "Estimate",
        threshold: float | None = None,
        null: str = "",
        n: int = 0,
        **details: object,
    ) -> "Evidence":
        """Return evidence from an estimate; the ends of its interval are added to the details."""
        interval = {"low": estimate.low, "high": estimate.high}
        return cls(statistic, estimate.value, threshold, null, n, {**interval, **details})

    def to_dict(self) -> dict[str, object]:
        """Return the evidence as JSON values."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "details"}
        return {**own, **self.details}


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of an audit.

    Attributes:
        detector: Name of the detector.
        severity: The severity.
        title: One line that says what was found.
        evidence: The measurement.
        rule: Id of its `Rule`.
        location: The file, layer, row, label or token that it concerns.
        remedy: Advice on what to do.
        references: Papers and advisories.
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
        """Return a copy with the control characters in names and texts escaped, see `printable`."""
        details = {printable(key): _printable(each) for key, each in self.evidence.details.items()}
        evidence = replace(self.evidence, null=printable(self.evidence.null), details=details)
        title, location = printable(self.title, lines=False), printable(self.location, lines=False)
        return replace(self, title=title, location=location, remedy=printable(self.remedy), evidence=evidence)

    def to_dict(self) -> dict[str, object]:
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
class Rule:
    """A kind of finding."""

    id: str
    severity: Severity  # severity of a fault of this kind; milder findings are measurements and have no remedy
    sentence: str  # title of its findings, with `str.format` fields
    remedy: str = ""  # advice
    references: tuple[str, ...] = ()  # papers and advisories


class Rules:
    """The rules of one detector, which makes all of its findings with `finding`.

    >>> rules = Rules("Toy", Rule("toy-share", Severity.LOW, "{share:.0%} of the texts are odd", "Look at them."))
    >>> rules.finding("toy-share", Evidence("share", 0.5), share=0.5).title
    '50% of the texts are odd'
    """

    def __init__(self, detector: str, *rules: Rule) -> None:
        self.detector = detector
        self._by_id = {rule.id: rule for rule in rules}

    def finding(
        self, rule: str, evidence: Evidence, *, severity: Severity | None = None, location: str = "", **words: object
    ) -> Finding:
        """Make a finding from a rule and its evidence.

        ``severity`` defaults to that of the rule. ``location`` is a file, layer, row, label or token. ``words`` fill
        the fields of the rule's title.
        """
        row = self._by_id[rule]
        severity = row.severity if severity is None else severity
        remedy = row.remedy if severity >= row.severity else ""
        title = row.sentence.format(**words)
        return Finding(self.detector, severity, title, evidence, rule, location, remedy, row.references)


@dataclass(frozen=True, slots=True)
class DetectorResult:
    """The outcome of one detector.

    Attributes:
        name: Name of the detector.
        verdict: ``"pass"`` only if it finished and found nothing of severity medium or worse.
        reason: Why it failed, could not decide, crashed or was not run; empty for a pass.
        ran: False if it could not run at all.
        seconds: Time that it took.
        counts: True if it affects the report's verdict: the caller named it, or all inputs that it needs were there.
    """

    name: str
    verdict: Verdict
    reason: str = ""
    ran: bool = True
    seconds: float = 0.0
    counts: bool = True

    def to_dict(self) -> dict[str, object]:
        """Return the result as JSON values."""
        return {"verdict": self.verdict, "ran": self.ran, "reason": self.reason, "seconds": round(self.seconds, 3)}


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The outcome of `scan`.

    Attributes:
        model: Name or folder of the model.
        detectors: One result for each detector, run or not.
        findings: All findings, the worst first.
        seed: Seed of every random choice.
        version: Version of this package.
        notes: Remarks on inputs that were given but not used.
    """

    model: str
    detectors: tuple[DetectorResult, ...]
    findings: tuple[Finding, ...]
    seed: int = 0
    version: str = ""
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the detectors that count; ``"error"`` if none of them ran.

        ``"fail"`` comes before ``"error"``, since a crash does not undo a fault, and ``"error"`` before
        ``"inconclusive"``. Detectors that lack an input do not count, unless the caller named them.
        """
        counted = [each for each in self.detectors if each.counts]
        verdicts: list[Verdict] = [each.verdict for each in counted]
        if "fail" in verdicts:
            return "fail"
        if "error" in verdicts or not any(each.ran for each in counted):
            return "error"
        return "inconclusive" if "inconclusive" in verdicts else "pass"

    @property
    def worst(self) -> Severity | None:
        """The worst severity; None without findings."""
        return max((each.severity for each in self.findings), default=None)

    def at_least(self, severity: Severity) -> tuple[Finding, ...]:
        """Return the findings of this severity or worse."""
        return tuple(each for each in self.findings if each.severity >= severity)

    def to_dict(self) -> dict[str, object]:
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
    """Return findings in the order of a report: the worst first, otherwise in the given order."""
    return tuple(sorted(findings, key=lambda each: -each.severity))


# Control characters other than line feed and tab, marks and overrides of the writing direction, surrogates.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, *, lines: bool = True) -> str:
    r"""Escape the characters that control a terminal, reorder text, or cannot be stored as UTF-8.

    ``lines`` keeps line feeds and tabs. File names and pickles of a hostile model can hold any character.

    >>> print(printable("weights\x1b[2J\udcff.bin"))
    weights\x1b[2J\xff.bin
    """
    escaped = _UNPRINTABLE.sub(lambda match: _escape(ord(match[0])), text)
    return escaped if lines else escaped.replace("\n", "\\n").replace("\t", "\\t")


def _escape(point: int) -> str:
    if 0xDC80 <= point <= 0xDCFF:  # a byte of a file name that is not UTF-8 (PEP 383)
        point -= 0xDC00
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}"


def _printable(value: object) -> object:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(str(key)): _printable(each) for key, each in value.items()}
    return [_printable(each) for each in value] if isinstance(value, list | tuple) else value
