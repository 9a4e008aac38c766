"""The report of an evaluation: metrics with intervals, as JSON values (`to_dict`), as text, and for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from bothways.choices import LabelValue
from bothways.progress import figure

if TYPE_CHECKING:
    from bothways.data.known_rows import SharedRows
    from bothways.evaluation.differences import BaselineReport
    from bothways.evaluation.intervals import Estimate
    from bothways.text.windows import TextsRead

MULTI_LABEL = "multi-label classification"


@dataclass(frozen=True, slots=True)
class Validation:
    """The metrics of a model on held-out data during training, and the score derived from them."""

    metrics: Mapping[str, float]  # metrics by name, for the log and the record
    score: float  # criterion for early stopping and for choosing the epoch to keep; higher is better
    standard_error: float = 0.0  # standard error of the score over held-out rows; 0 if unknown
    highest: float = 1.0  # highest possible score: 1 for a share or a correlation, 0 for a negated error

    @property
    def perfect(self) -> bool:
        """True if no score can be higher."""
        return self.score >= self.highest - 1e-9  # a correlation is rounded


@dataclass(frozen=True)
class ClassRow:
    """Metrics of one class or label."""

    label: LabelValue
    precision: Estimate  # 0.0 if it was never predicted
    recall: Estimate  # 0.0 if it never occurs
    f1: Estimate  # 0.0 if it was never predicted and never occurs
    support: int  # rows of this class
    predicted: int  # rows predicted as this class
    threshold: float | None = None  # minimum probability for predicting it, if each label has its own threshold

    def to_dict(self) -> dict[str, float]:
        """Return flat JSON values, without the label."""
        scores = {"precision": self.precision, "recall": self.recall, "f1": self.f1}
        own = {} if self.threshold is None else {"threshold": self.threshold}
        return {**flat_estimates(scores), "support": self.support, "predicted": self.predicted, **own}


@dataclass(frozen=True)
class OperatingPoint:
    """A threshold on the probability of a class, chosen for a minimum precision or recall."""

    label: LabelValue
    target: str  # "precision" or "recall"
    minimum: float  # required minimum of the target
    # Rows with at least this probability are predicted as the class; None if no threshold reaches the minimum.
    threshold: float | None
    precision: Estimate | None  # at the threshold
    recall: Estimate | None  # at the threshold
    highest: float  # the highest value of the target at any threshold

    def to_dict(self) -> dict[str, object]:
        """Return flat JSON values; null if no threshold reaches the target."""
        scores = {"precision": self.precision, "recall": self.recall}
        flat = {name: None if each is None else each.value for name, each in scores.items()}
        flat |= flat_estimates({name: each for name, each in scores.items() if each is not None})
        point = {"label": self.label, "wanted": self.target, "at_least": self.minimum, "threshold": self.threshold}
        return {**point, **flat, f"highest_{self.target}": self.highest}

    def summary(self) -> str:
        """Return one sentence with the threshold, precision and recall."""
        if self.threshold is None or self.precision is None or self.recall is None:
            highest = f"the highest is {figure(self.highest)}"
            return f"No threshold has a {self.target} of {self.minimum:g} for {self.label!r}; {highest}."
        both = {"recall": self.recall, "precision": self.precision}
        # The optimised metric first.
        ordered = sorted(both.items(), key=lambda each: each[0] == self.target)
        scores = (f"{name} {figure(each.value)} [{figure(each.low)}, {figure(each.high)}]" for name, each in ordered)
        return (
            f"{self.label!r} with a {self.target} of at least {self.minimum:g}: {', '.join(scores)}, at the threshold "
            f"{self.threshold:.4g}. The threshold was chosen on these rows; on other rows, precision and recall "
            "may be lower."
        )


@dataclass(frozen=True)
class ReliabilityBin:
    """One point of a reliability diagram."""

    lower: float  # lowest confidence in the bin
    upper: float  # highest confidence in the bin
    count: int
    confidence: float  # mean confidence of the rows
    accuracy: float  # share of right rows


@dataclass(frozen=True)
class ConfusedPair:
    """The rows of one class that were predicted as another class."""

    truth: LabelValue
    predicted: LabelValue
    count: int
    share: float  # share of the true class's rows


@dataclass(frozen=True, kw_only=True, repr=False)
class Report:
    """Metrics of a model on labelled rows, each with its 95 % interval.

    Every estimate is also an attribute: ``report.accuracy.low``. Which estimates exist depends on the kind of model;
    metrics that are undefined on the rows, such as a correlation with a constant, are left out.

    Attributes:
        kind: "classification", "regression", "question answering" and so on.
        title: a description of the rows.
        counts: first the number of rows, named ``n`` or for example ``queries``, then other counts.
        settings: the variants of the metrics, such as ``squad_version``.
        estimates: the metrics by name.
        values: numbers without an interval; None for a threshold that was not given or differs between labels.
        labels: classes or labels in the order of their indices and in the types of the data, for classification.
        per_class: one row for each label.
        confusion: counts, true classes in rows, predicted in columns.
        reliability: bins of equal mass, from which the calibration error is computed.
        notes: sentences for the summary.
        tokens_read: tokens read and not read; None for a report on bare arrays.
        disagreement: distances between the members of an ensemble, as means over the rows.
        members: name and metrics of each member of an ensemble.
        operating_points: thresholds of classes for a minimum precision or recall.
        baseline: the model's baseline on the same rows, and the differences of the model from it.
        shared: counts of rows that the model was trained on; None if its training rows are not known.
    """

    kind: str
    title: str
    counts: Mapping[str, int]
    settings: Mapping[str, str] = field(default_factory=dict)
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    values: Mapping[str, float | None] = field(default_factory=dict)
    labels: tuple[LabelValue, ...] = ()
    per_class: tuple[ClassRow, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    reliability: tuple[ReliabilityBin, ...] = ()
    notes: tuple[str, ...] = ()
    tokens_read: TextsRead | None = None
    disagreement: Mapping[str, float] = field(default_factory=dict)
    members: tuple[tuple[str, Mapping[str, float]], ...] = ()
    operating_points: tuple[OperatingPoint, ...] = ()
    baseline: BaselineReport | None = None
    shared: SharedRows | None = None

    @property
    def n(self) -> int:
        """Number of rows: texts, pairs, questions or queries."""
        return next(iter(self.counts.values()))

    def __getattr__(self, name: str) -> Estimate:
        # Called only for names that are not fields; Python looks some up before the fields are set.
        estimates: Mapping[str, Estimate] = self.__dict__.get("estimates", {})
        if name in estimates:
            return estimates[name]
        if name in self.__dict__.get("values", {}) or name in self.__dict__.get("counts", {}):
            raise AttributeError(f"{name!r} has no interval: read it from `values` or `counts` of the report")
        raise AttributeError(f"this report has no estimate {name!r}; it has: {', '.join(estimates) or 'none'}")

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self.estimates]

    def to_dict(self) -> dict[str, object]:
        """Return JSON values: counts, then ``accuracy``, ``accuracy_low``, ``accuracy_high`` and so on, then tables."""
        tables: dict[str, object] = {
            "labels": list(self.labels),
            "per_class": {str(row.label): row.to_dict() for row in self.per_class},
            "confusion": [list(row) for row in self.confusion],
            "reliability": [asdict(each) for each in self.reliability],
            "tokens_read": None if self.tokens_read is None else self.tokens_read.to_dict(),
            "disagreement": dict(self.disagreement),
            "members": [{"member": name, **metrics} for name, metrics in self.members],
            "operating_points": [each.to_dict() for each in self.operating_points],
            "baseline": None if self.baseline is None else self.baseline.to_dict(),
            "training_rows": None if self.shared is None else self.shared.to_dict(),
        }
        numbers = {**self.counts, **self.settings, **flat_estimates(self.estimates), **self.values}
        return numbers | {name: table for name, table in tables.items() if table}

    def summary(self) -> str:
        """Return a short table of values and 95 % intervals, after warnings."""
        return "\n".join([*self.warnings, self.table()])

    __repr__ = __str__ = summary

    def table(self) -> str:
        """Return the summary without warnings."""
        width = max(map(len, self.estimates), default=0)
        lines = [f"{self.title}; 95 % intervals"]
        lines += [f"{name:<{width}}  {value}  {interval}" for name, value, interval in self._rows()]
        lines += [*self._remarks(), *([] if self.baseline is None else self.baseline.lines())]
        if self.members:
            lines += ["", "members", *(f"  {name}: {_listed(metrics)}" for name, metrics in self.members)]
            lines.append(f"disagreement, mean: {_listed(self.disagreement)}")
        return "\n".join(lines)

    def confused_pairs(self, most: int) -> list[ConfusedPair]:
        """Return at most ``most`` pairs of a true and a predicted class, the most frequent pairs first."""
        pairs = [
            ConfusedPair(self.labels[row], self.labels[column], count, count / sum(counts))
            for row, counts in enumerate(self.confusion)
            for column, count in enumerate(counts)
            if count and row != column
        ]
        return sorted(pairs, key=lambda each: (-each.count, -each.share))[:most]

    def chosen_classes(self, most: int) -> tuple[ClassRow, ...]:
        """Return at most ``most`` classes in the order of the labels.

        Half of them are the classes with the lowest F1 among those that occur; the rest are the most frequent others.
        """
        if len(self.per_class) <= most:
            return self.per_class
        present = [row for row in self.per_class if row.support]
        worst = sorted(present, key=lambda row: (row.f1.value, -row.support))[: most // 2]
        others = [row for row in self.per_class if row not in worst]
        frequent = sorted(others, key=lambda row: -row.support)[: most - len(worst)]
        chosen = {row.label for row in (*worst, *frequent)}
        return tuple(row for row in self.per_class if row.label in chosen)

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        cells = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in self._rows())
        rows = "".join(f"<tr>{each}</tr>" for each in cells)
        baseline = [] if self.baseline is None or self.warnings else [self.baseline.verdict]
        remarks = "".join(f"<p>{html.escape(each)}</p>" for each in [*self._remarks(), *baseline])
        first = "".join(f"<p>{html.escape(each)}</p>" for each in self.warnings)
        return f"{first}<table><caption>{html.escape(self.title)}; 95 % intervals</caption>{rows}</table>{remarks}"

    def _rows(self) -> list[tuple[str, str, str]]:
        return [
            (name, f"{figure(each.value):>8}", f"[{figure(each.low)}, {figure(each.high)}]")
            for name, each in self.estimates.items()
        ]

    def _remarks(self) -> list[str]:
        return [*self.remarks, *remarks_of(self.tokens_read)]

    @property
    def remarks(self) -> tuple[str, ...]:
        """Thresholds of the labels, notes and operating points, in sentences."""
        own = [row.threshold for row in self.per_class if row.threshold is not None]
        common = self.values.get("threshold") if self.kind == MULTI_LABEL else None
        lines = () if common is None else (f"Labels are predicted at a probability of at least {common:.4g}.",)
        if own:
            lines = (f"Each label has its own probability threshold, from {min(own):.4g} to {max(own):.4g}.",)
        return (*lines, *self.notes, *(each.summary() for each in self.operating_points))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences to read before the metrics: on training rows, and that the baseline is better than the model."""
        shared = "" if self.shared is None else self.shared.summary()
        found = self.baseline
        better = "" if found is None or found.better != "baseline" else found.verdict
        return tuple(filter(None, (shared, better)))


def flat_estimates(estimates: Mapping[str, Estimate], ending: str = "") -> dict[str, float]:
    """Return entries for a JSON object: each value and the ends of its interval; ``ending`` is added to each name."""
    return {key: number for name, each in estimates.items() for key, number in each.named(name + ending).items()}


def remarks_of(tokens_read: TextsRead | None) -> list[str]:
    """Return a list with one line about texts that were read in windows or truncated; empty if there are none."""
    remark = "" if tokens_read is None else tokens_read.summary()
    return [remark] if remark else []


def _listed(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {figure(value)}" for name, value in numbers.items())
