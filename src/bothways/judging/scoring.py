"""The success rate of a system, from a judge's probabilities and a few human labels.

Shapes: N rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np
from numpy.typing import NDArray

from bothways.choices import PpiMethod, Shared
from bothways.errors import InvalidInput
from bothways.evaluation.prediction_powered import PoweredEstimate, Sample, estimate_mean
from bothways.judging.labels import JudgeReport, judge_report, read_labels, with_labels
from bothways.judging.triples import ReadTriples, Triple, TripleColumns, read_triples

if TYPE_CHECKING:
    from bothways.data.known_rows import SharedRows
    from bothways.judging.judge import Judge
    from bothways.judging.triples import Rows

METHODS: tuple[PpiMethod, ...] = get_args(PpiMethod)
MIN_LABELS = 2
DEFAULT: PpiMethod = "ppi++"
_LEARNT = "the interval holds for rows that the judge was not trained on"
_ESTIMATE = ("value", "low", "high", "level", "method", "effective_labels")


@dataclass(frozen=True, slots=True, eq=False)
class JudgedSystem:
    """A system's rows with the judge's probabilities and, for some of them, human labels."""

    name: str  # name of the system
    triples: Sequence[Triple]  # all rows; labelled rows that are not among the data come last
    probability_N: NDArray[np.float64]  # the judge's probability that each triple is good
    incomplete: int = 0  # number of rows left out because they lack a text that the judge reads
    separate: int = 0  # number of labelled rows that are not among the data
    shared: "SharedRows | None" = None  # number of rows that the judge was trained on; None if unknown

    @property
    def rows(self) -> int:
        """Number of rows of the data."""
        return len(self.triples) - self.separate

    @property
    def labelled_N(self) -> NDArray[np.bool_]:
        """True for rows with a label (N)."""
        return np.array([each.label is not None for each in self.triples])

    def sample(self) -> Sample:
        """Return labels and probabilities for prediction-powered inference."""
        known_N = self.labelled_N
        if known_N.sum() < MIN_LABELS:
            raise InvalidInput(
                f"expected at least {MIN_LABELS} human labels of the system {self.name!r}, got {known_N.sum()} for "
                f"{self.rows:,} rows. Label randomly drawn rows of it: about 150 give a useful "
                "interval."
            )
        labels = [each.label for each in self.triples if each.label is not None]
        return Sample(labels, self.probability_N[known_N], self.probability_N[~known_N])


@dataclass(frozen=True, slots=True)
class SystemScore:
    """The success rate of a system."""

    system: str  # its name
    dimension: str
    rows: int  # number of its rows
    incomplete: int  # number of rows left out because they lack a text that the judge reads
    separate: int  # number of labelled rows that are not among its rows
    judge_mean: float  # mean of the judge's probabilities, without correction
    estimates: Mapping[PpiMethod, PoweredEstimate]  # the success rate with its interval by each method
    method: PpiMethod  # the method of `estimate`
    quality: JudgeReport  # the judge's agreement with the labels
    shared: "SharedRows | None" = None  # number of rows that the judge was trained on; None if unknown

    @property
    def estimate(self) -> PoweredEstimate:
        """The success rate by the chosen method."""
        return self.estimates[self.method]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons to doubt the interval."""
        lost = f"{self.incomplete:,} rows lack a text that the judge reads: the rate covers only the other rows."
        apart = (
            f"{self.separate:,} of {self.estimate.labels:,} labelled rows are not among the data: the judge read their "
            "own texts. The interval is valid if data and labelled rows are random samples of the same answers."
        )
        learnt = "" if self.shared is None else self.shared.summary(effect=_LEARNT)
        own = ((lost, self.incomplete), (apart, self.separate), (learnt, learnt))
        return *(sentence for sentence, holds in own if holds), *self.estimate.warnings

    @property
    def labelled(self) -> str:
        """The number of labels and of rows in words."""
        if self.separate:
            return f"{self.estimate.labels:,}, {self.separate:,} of them not among the {self.rows:,} rows"
        return f"{self.estimate.labels:,} of {self.rows:,} rows"

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        quality, estimates = self.quality.to_dict(), {name: _plain(each) for name, each in self.estimates.items()}
        return {
            "system": self.system,
            "dimension": self.dimension,
            "rows": self.rows,
            "incomplete": self.incomplete,
            "labels": self.estimate.labels,
            "labels_not_among_rows": self.separate,
            "judge_mean": self.judge_mean,
            **{name: estimates[self.method][name] for name in _ESTIMATE},
            "estimates": estimates,
            "agreement": {name: quality[name] for name in ("accuracy", "auroc", "ece") if name in quality},
            "disagreements": quality["disagreements"],
            "training_rows": None if self.shared is None else self.shared.to_dict(),
            "warnings": list(self.warnings),
        }


def _plain(estimate: PoweredEstimate) -> dict[str, object]:
    """Return JSON values; infinity becomes None."""
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value
        for name, value in asdict(estimate).items()
        if name != "warnings"
    }


def score_system(
    judge: "Judge",
    data: "Rows",
    labels: "Rows | None" = None,
    *,
    name: str = "system",
    columns: TripleColumns | None = None,
    method: PpiMethod = DEFAULT,
    level: float = 0.95,
    seed: int = 0,
    shared: Shared = "keep",
    show_progress: bool | None = None,
) -> SystemScore:
    """Estimate the success rate of a system.

    Args:
        judge: The judge.
        data: All rows of the system.
        labels: Human labels for a random sample of these rows, or labelled rows of the same system with texts of
            their own, which the judge reads too. Default: the labels in ``data``.
        name: Name of the system; if all rows name one, it has that name.
        columns: Names of the columns. Default: as in the judge's training.
        method: Method of the main interval: ``"ppi++"``, ``"ppi"`` or ``"classical"``.
        level: Confidence level of the intervals.
        seed: Seed of the bootstrap.
        shared: Rows that the judge was trained on: ``"keep"`` them, with a warning, or ``"drop"`` them.
        show_progress: Force the progress bar on or off.

    Raises:
        InvalidInput: There are fewer than two labels, or a label matches no row and lacks a text that the judge reads;
            the message lists some such labels.
    """
    columns = columns or judge.columns
    read = read_triples(data, judge.dimension, columns)
    own = {each.system for each in read.triples}
    if len(own) == 1:
        name = own.pop() or name
    (judged,) = judge_systems(judge, {name: read}, labels, columns, shared=shared, show_progress=show_progress)
    return scored(judged, judge, method=method, level=level, seed=seed)


def judge_systems(
    judge: "Judge",
    systems: Mapping[str, ReadTriples],
    labels: "Rows | None",
    columns: TripleColumns | None,
    *,
    shared: Shared,
    show_progress: bool | None = None,
) -> list[JudgedSystem]:
    """Judge the rows of each system; human labels come from ``labels``, or else from the rows."""
    rows = {name: list(read.triples) for name, read in systems.items()}
    own: dict[str, list[Triple]] = {name: [] for name in rows}
    if labels is not None:
        found = read_labels(labels, judge.dimension, columns)
        rows, own = with_labels(rows, found, judge.dimension)
    elif not any(read.labelled for read in systems.values()):
        column = (columns or TripleColumns()).label(judge.dimension)
        raise InvalidInput(
            f"expected human labels, got no file of labels and none in the column {column!r} of the data. Give labels "
            "(--labels) of randomly drawn rows: about 150 give a useful interval."
        )
    every = {name: [*each, *own[name]] for name, each in rows.items()}
    compared = {name: judge.compared(each, shared) for name, each in every.items()}
    kept = {name: [every[name][place] for place in places] for name, (places, _) in compared.items()}
    probability_N = judge.probabilities([row for each in kept.values() for row in each], show_progress=show_progress)
    judged, start = [], 0
    for name, (places, counts) in compared.items():
        own_N, separate = probability_N[start : start + len(places)], sum(place >= len(rows[name]) for place in places)
        judged.append(JudgedSystem(name, kept[name], own_N, systems[name].incomplete, separate, counts))
        start += len(places)
    return judged


def scored(
    system: JudgedSystem, judge: "Judge", *, method: PpiMethod = DEFAULT, level: float = 0.95, seed: int = 0
) -> SystemScore:
    """Estimate the success rate of a judged system by every applicable method."""
    sample = system.sample()
    possible = [each for each in METHODS if len(sample.unlabelled_judge_scores) or each in ("classical", method)]
    estimates = {each: estimate_mean(sample, method=each, level=level) for each in possible}
    labelled = [each for each in system.triples if each.label is not None]
    return SystemScore(
        system.name,
        judge.dimension.name,
        system.rows,
        system.incomplete,
        system.separate,
        float(system.probability_N[: system.rows].mean()),
        estimates,
        method,
        judge_report(labelled, system.probability_N[system.labelled_N], seed=seed),
        system.shared,
    )


def equivalent_labels(estimate: PoweredEstimate) -> str:
    """Return the number of labels that would give as narrow an interval without the judge; "all" if no number would."""
    return "all" if estimate.effective_labels == float("inf") else f"{estimate.effective_labels:,.0f}"
