"""The success rate of a system, from a judge's answers on all rows and human labels of a few.

Shapes: N rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, get_args

import numpy as np
from numpy.typing import NDArray

from bothways.choices import PpiMethod
from bothways.errors import InvalidInput
from bothways.evaluation.prediction_powered import PoweredEstimate, Sample, estimate_mean
from bothways.judging.matching import read_labels, with_labels
from bothways.judging.quality import JudgeReport, judge_report
from bothways.judging.triples import ReadTriples, Triple, TripleColumns, read_triples

if TYPE_CHECKING:
    from bothways.data import Format, Source
    from bothways.judging.judge import Judge

METHODS: tuple[PpiMethod, ...] = get_args(PpiMethod)
FEWEST_LABELS = 2
DEFAULT: PpiMethod = "ppi++"


@dataclass(frozen=True, slots=True, eq=False)
class JudgedSystem:
    """The rows of a system with the judge's probabilities, and the human labels of some.

    Attributes:
        name: The system.
        triples: All rows.
        stated_N: The judge's probability that each is good.
        incomplete: Rows that were left out, since they lack a text that the judge reads.
    """

    name: str
    triples: Sequence[Triple]
    stated_N: NDArray[np.float64]
    incomplete: int = 0

    @property
    def labelled_N(self) -> NDArray[np.bool_]:
        """Rows that have a label (N), true or false."""
        return np.array([each.label is not None for each in self.triples])

    def sample(self) -> Sample:
        """Return labels and probabilities for prediction-powered inference.

        Raises:
            InvalidInput: There are fewer than two labels.
        """
        known_N = self.labelled_N
        if known_N.sum() < FEWEST_LABELS:
            raise InvalidInput(
                f"expected at least {FEWEST_LABELS} human labels of the system {self.name!r}, got {known_N.sum()} for "
                f"{len(self.triples):,} rows. Label rows of it that are drawn at random: about 150 make a useful "
                "interval."
            )
        labels = [each.label for each in self.triples if each.label is not None]
        return Sample(labels, self.stated_N[known_N], self.stated_N[~known_N])

    def report(self, *, resamples: int = 1000, seed: int = 0) -> JudgeReport:
        """Return how well the judge agrees with the labels."""
        known_N = self.labelled_N
        labelled = [each for each in self.triples if each.label is not None]
        return judge_report(labelled, self.stated_N[known_N], resamples=resamples, seed=seed)


@dataclass(frozen=True, slots=True)
class SystemScore:
    """The success rate of a system.

    Attributes:
        system: Its name.
        dimension: What was judged.
        rows: Rows of the system.
        incomplete: Rows that were left out, since they lack a text that the judge reads.
        judge_mean: Mean of the judge's probabilities, which nothing corrects.
        estimates: The success rate with its interval by each method.
        method: The method whose estimate is `estimate`.
        quality: How well the judge agrees with the labels.
    """

    system: str
    dimension: str
    rows: int
    incomplete: int
    judge_mean: float
    estimates: Mapping[PpiMethod, PoweredEstimate]
    method: PpiMethod
    quality: JudgeReport

    @property
    def estimate(self) -> PoweredEstimate:
        """The success rate by the method that was asked for."""
        return self.estimates[self.method]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons to doubt the interval."""
        lost = f"{self.incomplete:,} rows lack a text that the judge reads: the rate is of the other rows alone."
        return ((lost,) if self.incomplete else ()) + self.estimate.warnings

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        quality = self.quality.to_dict()
        kept = {name: quality[name] for name in ("accuracy", "auroc", "ece") if name in quality}
        return {
            "system": self.system,
            "dimension": self.dimension,
            "rows": self.rows,
            "incomplete": self.incomplete,
            "labels": self.estimate.labels,
            "judge_mean": self.judge_mean,
            **{name: value for name, value in _plain(self.estimate).items() if name in _SHOWN},
            "estimates": {name: _plain(each) for name, each in self.estimates.items()},
            "agreement": kept,
            "disagreements": [each.to_dict() for each in self.quality.disagreements],
            "warnings": list(self.warnings),
        }


_SHOWN = ("value", "low", "high", "level", "method", "effective_labels")


def score_system(
    judge: "Judge",
    data: "Source | Iterable[Mapping[str, object]]",
    labels: "Source | Iterable[Mapping[str, object]] | None" = None,
    *,
    name: str = "system",
    columns: TripleColumns | None = None,
    method: PpiMethod = DEFAULT,
    level: float = 0.95,
    seed: int = 0,
    format: "Format | None" = None,  # noqa: A002 (the option's name)
    show_progress: bool | None = None,
) -> SystemScore:
    """Estimate the success rate of a system.

    Args:
        judge: The judge.
        data: All rows of the system.
        labels: Human labels of rows that were drawn from them at random; those in ``data`` when left out.
        name: What the system is called.
        columns: Where the parts of a row stand.
        method: Which interval comes first: ``"ppi++"``, ``"ppi"`` or ``"classical"``.
        level: Share of such intervals that hold the truth.
        seed: Of the bootstrap.
        format: Of both files.
        show_progress: Force the progress bar on or off.

    Raises:
        InvalidInput: There are fewer than two labels, or a label is of no row; the message names some.
    """
    read = read_triples(data, judge.dimension, columns, format=format)
    systems = labelled({name: read}, judge, labels, columns, format=format)
    (judged,) = judged_systems(judge, systems, {name: read}, show_progress=show_progress)
    return scored(judged, judge, method=method, level=level, seed=seed)


def labelled(
    systems: Mapping[str, ReadTriples],
    judge: "Judge",
    labels: "Source | Iterable[Mapping[str, object]] | None",
    columns: TripleColumns | None,
    *,
    format: "Format | None" = None,  # noqa: A002 (the option's name)
) -> dict[str, list[Triple]]:
    """Return the rows of systems with the labels of a file, or where there is none with their own.

    Raises:
        InvalidInput: There is no label, or one is of no row.
    """
    rows = {name: list(read.triples) for name, read in systems.items()}
    if labels is not None:
        return with_labels(rows, read_labels(labels, judge.dimension, columns, format=format), judge.dimension)
    if not any(read.labelled for read in systems.values()):
        column = (columns or TripleColumns()).label(judge.dimension)
        raise InvalidInput(
            f"expected human labels, got no file of labels and none in the column {column!r} of the data. Give labels "
            "(--labels) of rows that are drawn at random: about 150 make a useful interval."
        )
    return rows


def judged_systems(
    judge: "Judge",
    systems: Mapping[str, Sequence[Triple]],
    read: Mapping[str, ReadTriples],
    *,
    show_progress: bool | None = None,
) -> list[JudgedSystem]:
    """Return systems with the judge's probabilities; rows with the same texts are read once."""
    everything = [triple for rows in systems.values() for triple in rows]
    stated_N = judge.probabilities(everything, show_progress=show_progress)
    found, start = [], 0
    for name, rows in systems.items():
        stated = stated_N[start : start + len(rows)]
        found.append(JudgedSystem(name, rows, stated, read[name].incomplete))
        start += len(rows)
    return found


def scored(
    system: JudgedSystem, judge: "Judge", *, method: PpiMethod = DEFAULT, level: float = 0.95, seed: int = 0
) -> SystemScore:
    """Return the success rate of a judged system by all methods.

    Raises:
        InvalidInput: There are fewer than two labels, or the method needs rows without labels and all have one.
    """
    sample = system.sample()
    possible = [each for each in METHODS if len(sample.unlabelled_judge_scores) or each in ("classical", method)]
    estimates = {each: estimate_mean(sample, method=each, level=level) for each in possible}
    return SystemScore(
        system.name,
        judge.dimension.name,
        len(system.triples),
        system.incomplete,
        float(system.stated_N.mean()),
        estimates,
        method,
        system.report(seed=seed),
    )


def labels_worth(estimate: PoweredEstimate) -> str:
    """Return how many labels an interval from labels alone would need to be as narrow, in digits or as "all"."""
    return "all" if estimate.effective_labels == float("inf") else f"{estimate.effective_labels:,.0f}"


def _plain(estimate: PoweredEstimate) -> dict[str, object]:
    """Return JSON values: an infinite number is null."""
    found = asdict(replace(estimate, warnings=()))
    del found["warnings"]
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value for name, value in found.items()
    }
