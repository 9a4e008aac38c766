"""Rules, findings and reports of audits. Imports nothing heavy: a scan of files needs no torch."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
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
    Severity.INFO: "a measurement: no fault was shown, which is no proof that there is none; see what so few rows show",
    Severity.LOW: "a weakness that most models have; know it before you rely on the model",
    Severity.MEDIUM: "an unusual weakness; fix it, or guard against it, before you use the model",
    Severity.HIGH: "the model is probably manipulated or easily abused; do not use it before this is explained",
    Severity.CRITICAL: "loading or using the model can run malicious code or serve an attacker; do not use it",
}

# The lowest severity that fails a detector.
FAILING = Severity.MEDIUM
DECISION = (
    f"an audit fails if a finding has severity {FAILING.label} or higher; a measured number is above info only if it "
    "is beyond its threshold by more than chance, see the rule of each detector"
)


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
        fault_below: True if a value below the threshold is a fault, instead of one above it.
    """

    statistic: str
    value: float | None = None
    threshold: float | None = None
    null: str = ""
    n: int = 0
    details: Mapping[str, object] = field(default_factory=dict)
    fault_below: bool = False

    @property
    def excess(self) -> float | None:
        """Distance of the value beyond the threshold, relative to the threshold; None without a threshold."""
        if self.value is None or self.threshold is None:
            return None
        distance = (self.value - self.threshold) / (abs(self.threshold) or 1.0)
        return -distance if self.fault_below else distance

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


POWER = 0.8
"""Probability with which the smallest detectable value of a `Checked` is found."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One check of a detector, with its number of rows and what so few rows can show.

    Attributes:
        what: The name of the check.
        n: Number of texts, rows or files.
        unit: What ``n`` counts.
        statistic: Name of the number that decides, such as ``"share"``; empty if chance does not decide.
        smallest: Smallest true value of the number that is found in four of five cases; None if no value is.
        untold: What the check cannot show besides; empty if nothing is known.
    """

    what: str
    n: int
    unit: str = "texts"
    statistic: str = ""
    smallest: float | None = None
    untold: str = ""

    @property
    def tells(self) -> bool:
        """True if there were enough rows for some value to be found."""
        return not self.statistic or self.smallest is not None

    def __str__(self) -> str:
        """Return a phrase such as "12 edits on 100 texts: a share of 0.21 or more is found (power 80%)"."""
        words = f"{self.what} on {self.n:,} {self.unit}"
        if self.statistic and self.smallest is not None:
            words += f": a {self.statistic} of {self.smallest:.2g} or more is found (power {POWER:.0%})"
        elif self.statistic:
            words += f": too few to find any {self.statistic}"
        return f"{words}; {self.untold}" if self.untold else words


@dataclass(frozen=True, slots=True)
class DetectorResult:
    """The outcome of one detector.

    Attributes:
        name: Name of the detector.
        verdict: ``"pass"`` only if it finished, found nothing of severity medium or worse, and had enough rows to find
            something.
        reason: Why it failed, could not decide, crashed or was not run; empty for a pass.
        ran: False if it could not run at all.
        seconds: Time that it took.
        counts: True if it affects the report's verdict: the caller named it, or all inputs that it needs were there.
        rule: The rule by which it decides.
        checks: What it checked.
        not_checked: What it did not check, with the reasons.
    """

    name: str
    verdict: Verdict
    reason: str = ""
    ran: bool = True
    seconds: float = 0.0
    counts: bool = True
    rule: str = ""
    checks: tuple[Checked, ...] = ()
    not_checked: tuple[str, ...] = ()

    @property
    def statements(self) -> dict[str, str]:
        """Sentences on what was checked, what was not, and the rule of the decision; empty ones are left out."""
        checked, not_checked = "; ".join(map(str, self.checks)), "; ".join(self.not_checked)
        words = {"checked": checked, "not checked": not_checked, "rule": self.rule if self.ran else ""}
        return {name: text for name, text in words.items() if text}

    def to_dict(self) -> dict[str, object]:
        """Return the result as JSON values."""
        return {
            "verdict": self.verdict,
            "ran": self.ran,
            "reason": self.reason,
            "seconds": round(self.seconds, 3),
            "rule": self.rule,
            "checked": [{**asdict(each), "enough": each.tells, "in_words": str(each)} for each in self.checks],
            "not_checked": list(self.not_checked),
        }


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

    @property
    def ran(self) -> str:
        """The number of detectors that ran to their end, in words."""
        count = sum(each.ran and each.verdict != "error" for each in self.detectors)
        return f"{count} of {len(self.detectors)} detectors ran"

    def at_least(self, severity: Severity) -> tuple[Finding, ...]:
        """Return the findings of this severity or worse."""
        return tuple(each for each in self.findings if each.severity >= severity)

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON values."""
        return {
            "verdict": self.verdict,
            "rule": DECISION,
            "power": POWER,
            "model": self.model,
            "findings": [each.to_dict() for each in self.findings],
            "detectors": {each.name: each.to_dict() for each in self.detectors},
            "notes": list(self.notes),
            "seed": self.seed,
            "version": self.version,
        }


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings in the order of a report: by severity, then by how far they are beyond their thresholds.

    Facts, which have no threshold, come before measurements if they are faults, and after them if they are not.
    """

    def key(finding: Finding) -> tuple[float, float]:
        excess = finding.evidence.excess
        fact = -math.inf if finding.severity > Severity.INFO else math.inf
        return -finding.severity, fact if excess is None else -excess

    return tuple(sorted(findings, key=key))


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
