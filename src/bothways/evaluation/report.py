"""Evaluation reports: every number with its interval, for machines (`to_dict`) and terminals (`summary`).

`bothways.evaluation.builders` makes them from truth and predictions.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from bothways.evaluation.bootstrap import Estimate
from bothways.evaluation.reading import TextsRead
from bothways.evaluation.reliability import ReliabilityBin


@dataclass(frozen=True)
class ClassRow:
    """One class or label.

    Attributes:
        label: its name.
        precision: 0.0 if it was never predicted.
        recall: 0.0 if it never occurs.
        f1: 0.0 if neither.
        support: rows that are of it.
        predicted: rows predicted as it.
    """

    label: str
    precision: Estimate
    recall: Estimate
    f1: Estimate
    support: int
    predicted: int

    def to_dict(self) -> dict[str, float]:
        """Flat, JSON-ready; without the label."""
        return {
            **self.precision.named("precision"),
            **self.recall.named("recall"),
            **self.f1.named("f1"),
            "support": self.support,
            "predicted": self.predicted,
        }


@dataclass(frozen=True)
class ClassificationReport:
    """How well single-label predictions do, and how far their probabilities can be trusted.

    Attributes:
        n: rows.
        labels: class names, in the order of the class numbers.
        accuracy: share predicted right.
        macro_f1: mean F1 over the classes that occur in truth or predictions.
        mcc: Matthews correlation, -1 to 1.
        brier: sum-form Brier score, 0 to 2.
        nll: negative log likelihood in nats.
        ece: expected calibration error of the predicted class.
        mce: maximum calibration error; its interval is wide, see `maximum_error_interval`.
        ece_noise: the ECE that probabilities without error would show on so many rows, see `calibration_noise`.
        ece_sweep: the ECE with as many bins as the rows bear, see `sweep_calibration_error`.
        per_class: one row for each label.
        confusion: counts, true classes in rows, predicted in columns.
        reliability: bins of equal mass.
        reading: how much of the texts was read; None where the report is of numbers alone.
    """

    n: int
    labels: tuple[str, ...]
    accuracy: Estimate
    macro_f1: Estimate
    mcc: Estimate
    brier: Estimate
    nll: Estimate
    ece: Estimate
    mce: Estimate
    ece_noise: float
    ece_sweep: float
    per_class: tuple[ClassRow, ...]
    confusion: tuple[tuple[int, ...], ...]
    reliability: tuple[ReliabilityBin, ...]
    reading: TextsRead | None = None

    def estimates(self) -> dict[str, Estimate]:
        """The numbers that carry an interval, by name."""
        return {
            "accuracy": self.accuracy,
            "macro_f1": self.macro_f1,
            "mcc": self.mcc,
            "brier": self.brier,
            "nll": self.nll,
            "ece": self.ece,
            "mce": self.mce,
        }

    def to_dict(self) -> dict[str, object]:
        """JSON-ready: ``accuracy``, ``accuracy_low``, ``accuracy_high`` and so on, then the tables."""
        return {
            "n": self.n,
            **flat_estimates(self.estimates()),
            "ece_noise": self.ece_noise,
            "ece_sweep": self.ece_sweep,
            "labels": list(self.labels),
            "per_class": {row.label: row.to_dict() for row in self.per_class},
            "confusion": [list(row) for row in self.confusion],
            "reliability": [asdict(each) for each in self.reliability],
            **reading_values(self.reading),
        }

    def summary(self) -> str:
        """A short table of values and 95 % intervals."""
        return estimate_table(f"{self.n} rows, {len(self.labels)} classes", self.estimates(), self.reading)


@dataclass(frozen=True)
class MultiLabelReport:
    """How well multi-label predictions do; a decision is one label of one row.

    Attributes:
        n: rows.
        labels: label names, in the order of the columns.
        threshold: probability from which a label counts as predicted.
        micro_f1: F1 over all decisions.
        macro_f1: mean F1 over all labels.
        subset_accuracy: share of rows whose labels are all right.
        hamming_loss: share of wrong decisions.
        brier: mean squared error over decisions, 0 to 1.
        nll: mean binary cross-entropy over decisions, in nats.
        ece: expected calibration error of the labels' probabilities over all decisions.
        mce: maximum calibration error; its interval is wide, see `maximum_error_interval`.
        per_class: one row for each label.
        reliability: bins of equal mass over all decisions: mean probability, and share that have the label.
        reading: how much of the texts was read; None where the report is of numbers alone.
    """

    n: int
    labels: tuple[str, ...]
    threshold: float
    micro_f1: Estimate
    macro_f1: Estimate
    subset_accuracy: Estimate
    hamming_loss: Estimate
    brier: Estimate
    nll: Estimate
    ece: Estimate
    mce: Estimate
    per_class: tuple[ClassRow, ...]
    reliability: tuple[ReliabilityBin, ...]
    reading: TextsRead | None = None

    def estimates(self) -> dict[str, Estimate]:
        """The numbers that carry an interval, by name."""
        return {
            "micro_f1": self.micro_f1,
            "macro_f1": self.macro_f1,
            "subset_accuracy": self.subset_accuracy,
            "hamming_loss": self.hamming_loss,
            "brier": self.brier,
            "nll": self.nll,
            "ece": self.ece,
            "mce": self.mce,
        }

    def to_dict(self) -> dict[str, object]:
        """JSON-ready: ``micro_f1``, ``micro_f1_low``, ``micro_f1_high`` and so on, then the tables."""
        return {
            "n": self.n,
            **flat_estimates(self.estimates()),
            "threshold": self.threshold,
            "labels": list(self.labels),
            "per_class": {row.label: row.to_dict() for row in self.per_class},
            "reliability": [asdict(each) for each in self.reliability],
            **reading_values(self.reading),
        }

    def summary(self) -> str:
        """A short table of values and 95 % intervals."""
        return estimate_table(f"{self.n} rows, {len(self.labels)} labels", self.estimates(), self.reading)


@dataclass(frozen=True)
class RegressionReport:
    """How well predicted numbers do.

    Attributes:
        n: rows.
        mse: mean squared error, in squared units of the truth.
        mae: mean absolute error, in units of the truth.
        pearson: linear correlation; None of fewer than three rows, or where truth or predictions are all equal.
        spearman: rank correlation; likewise.
        r2: share of variance explained; None of fewer than three rows, or where the truth is all equal.
        reading: how much of the texts was read; None where the report is of numbers alone.
    """

    n: int
    mse: Estimate
    mae: Estimate
    pearson: Estimate | None
    spearman: Estimate | None
    r2: Estimate | None
    reading: TextsRead | None = None

    def estimates(self) -> dict[str, Estimate]:
        """The numbers that carry an interval, by name."""
        known = {"mse": self.mse, "mae": self.mae, "pearson": self.pearson, "spearman": self.spearman, "r2": self.r2}
        return {name: estimate for name, estimate in known.items() if estimate is not None}

    def to_dict(self) -> dict[str, object]:
        """JSON-ready: ``mse``, ``mse_low``, ``mse_high`` and so on."""
        return {"n": self.n, **flat_estimates(self.estimates()), **reading_values(self.reading)}

    def summary(self) -> str:
        """A short table of values and 95 % intervals."""
        return estimate_table(f"{self.n} rows", self.estimates(), self.reading)


@dataclass(frozen=True)
class MaskedLMReport:
    """How well masked tokens are predicted.

    Attributes:
        n: texts.
        tokens: tokens of them that were asked about.
        loss: mean negative log-probability of a token, in nats.
        perplexity: exp(loss).
        accuracy: share of tokens that were thought the likeliest.
        reading: how much of the texts was read; None where the report is of numbers alone.
    """

    n: int
    tokens: int
    loss: Estimate
    perplexity: Estimate
    accuracy: Estimate
    reading: TextsRead | None = None

    def estimates(self) -> dict[str, Estimate]:
        """The numbers that carry an interval, by name."""
        return {"loss": self.loss, "perplexity": self.perplexity, "accuracy": self.accuracy}

    def to_dict(self) -> dict[str, object]:
        """JSON-ready: ``loss``, ``loss_low``, ``loss_high`` and so on."""
        return {
            "n": self.n,
            "tokens": self.tokens,
            **flat_estimates(self.estimates()),
            **reading_values(self.reading),
        }

    def summary(self) -> str:
        """A short table of values and 95 % intervals."""
        return estimate_table(f"{self.n} texts, {self.tokens} masked tokens", self.estimates(), self.reading)


def flat_estimates(estimates: Mapping[str, Estimate]) -> dict[str, float]:
    """Entries for a JSON object: each value and the ends of its interval."""
    return {key: number for name, each in estimates.items() for key, number in each.named(name).items()}


def reading_values(reading: TextsRead | None, name: str = "reading") -> dict[str, object]:
    """How texts were read, for a report's JSON values; nothing of a report of numbers alone."""
    return {} if reading is None else {name: reading.to_dict()}


def reading_lines(reading: TextsRead | None) -> list[str]:
    """What of the texts was read in parts or not at all, for a report's summary; no line where there is nothing."""
    remark = "" if reading is None else reading.summary()
    return [remark] if remark else []


def estimate_table(title: str, estimates: Mapping[str, Estimate], reading: TextsRead | None = None) -> str:
    """A title and a line for each number, and what of the texts was read in parts or not at all."""
    width = max(len(name) for name in estimates)
    lines = [
        f"{name:<{width}}  {each.value:8.4f}  [{each.low:.4f}, {each.high:.4f}]" for name, each in estimates.items()
    ]
    return "\n".join([f"{title}; 95 % intervals", *lines, *reading_lines(reading)])
