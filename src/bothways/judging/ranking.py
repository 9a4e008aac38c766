"""Several systems in order of their success rates, and how sure that order is.

Shapes: N rows, Q queries.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from bothways.choices import Pairing, PpiMethod
from bothways.errors import InvalidInput
from bothways.evaluation.prediction_powered import (
    PoweredEstimate,
    estimate_difference,
    labels_to_separate,
    probability_better,
)
from bothways.judging.pairing import NextRow, paired_samples, rows_to_label_next
from bothways.judging.quality import JudgeReport, judge_report, tau_of
from bothways.judging.scoring import DEFAULT, JudgedSystem, SystemScore, judged_systems, labelled, scored
from bothways.judging.triples import ReadTriples, Triple, TripleColumns, read_triples

if TYPE_CHECKING:
    from bothways.data import Format, Source
    from bothways.judging.judge import Judge

NEXT_ROWS = 50


@dataclass(frozen=True, slots=True)
class SystemComparison:
    """Two systems.

    Attributes:
        first: The one that stands higher.
        second: The other.
        difference: Success rate of the first minus that of the second, with its interval.
        probability: That the first is better.
        pairing: ``"paired"`` where both answered the same queries and enough of them are labelled for both.
    """

    first: str
    second: str
    difference: PoweredEstimate
    probability: float
    pairing: Pairing

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        return {
            "first": self.first,
            "second": self.second,
            **self.difference.named("difference"),
            "probability_better": self.probability,
            "pairing": self.pairing,
        }


@dataclass(frozen=True, slots=True)
class SystemRanking:
    """Systems in order.

    Attributes:
        dimension: What was judged.
        systems: Their success rates, the highest first.
        comparisons: Every two of them.
        separating_labels: Further queries to label that would separate the first two; 0 where their interval leaves
            out 0 already, None where labels on all rows would not be enough, or with one system.
        truth: The true success rates, where they are known.
        tau: Kendall's tau between the order and the truth; None where it is not known.
        next_rows: Rows that are worth a label next.
        quality: How well the judge agrees with the labels of all systems together.
    """

    dimension: str
    systems: tuple[SystemScore, ...]
    comparisons: tuple[SystemComparison, ...]
    separating_labels: int | None
    truth: Mapping[str, float]
    tau: float | None
    next_rows: tuple[NextRow, ...]
    quality: JudgeReport

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons to doubt the intervals, each with the system that it is about."""
        return tuple(f"{each.system}: {warning}" for each in self.systems for warning in each.warnings)

    def probability(self, first: str, second: str) -> float:
        """Return the probability that one system is better than another."""
        for each in self.comparisons:
            if (each.first, each.second) == (first, second):
                return each.probability
            if (each.second, each.first) == (first, second):
                return 1 - each.probability
        raise InvalidInput(f"expected two systems of the ranking, got {first!r} and {second!r}.")

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        quality = self.quality.to_dict()
        return {
            "dimension": self.dimension,
            "systems": [each.to_dict() for each in self.systems],
            "comparisons": [each.to_dict() for each in self.comparisons],
            "labels_to_separate_first_two": self.separating_labels,
            "truth": dict(self.truth),
            "kendall_tau": self.tau,
            "agreement": {name: quality[name] for name in ("n", "accuracy", "auroc", "ece") if name in quality},
            "warnings": list(self.warnings),
        }


def rank_systems(
    judge: "Judge",
    systems: "Mapping[str, Source | Iterable[Mapping[str, object]]]",
    labels: "Source | Iterable[Mapping[str, object]] | None" = None,
    *,
    truth: Mapping[str, float] | None = None,
    columns: TripleColumns | None = None,
    method: PpiMethod = DEFAULT,
    level: float = 0.95,
    next_rows: int = NEXT_ROWS,
    seed: int = 0,
    format: "Format | None" = None,  # noqa: A002 (the option's name)
    show_progress: bool | None = None,
) -> SystemRanking:
    """Put systems in order of their success rates.

    Args:
        judge: The judge.
        systems: All rows of each system, by its name. Rows that name a system themselves count for that one.
        labels: Human labels of rows drawn at random, for every system; those in the data when left out. A label is of
            the row with its id, else of the row with its texts, of its system where it names one.
        truth: True success rates, where they are known.
        columns: Where the parts of a row stand.
        method: Of the intervals.
        level: Share of such intervals that hold the truth.
        next_rows: How many rows to suggest for labelling.
        seed: Of the bootstrap, and of ties.
        format: Of all files.
        show_progress: Force the progress bar on or off.

    Raises:
        InvalidInput: A system has fewer than two labels, a label is of no row, or the truth is not of these systems.
    """
    read = _read(systems, judge, columns, format)
    rows = labelled(read, judge, labels, columns, format=format)
    unknown = sorted({*(truth or {})}.symmetric_difference(rows)) if truth else []
    if unknown:
        raise InvalidInput(
            f"truth: expected a value for each of the systems {', '.join(map(repr, rows))}, but the two lists differ "
            f"in {', '.join(map(repr, unknown))}."
        )
    judged = judged_systems(judge, rows, read, show_progress=show_progress)
    return rank_judged(judge, judged, truth=truth, method=method, level=level, next_rows=next_rows, seed=seed)


def rank_judged(
    judge: "Judge",
    judged: Sequence[JudgedSystem],
    *,
    truth: Mapping[str, float] | None = None,
    method: PpiMethod = DEFAULT,
    level: float = 0.95,
    next_rows: int = NEXT_ROWS,
    seed: int = 0,
) -> SystemRanking:
    """Put systems in order that were judged already; see `rank_systems`."""
    scores = {each.name: scored(each, judge, method=method, level=level, seed=seed) for each in judged}
    ordered = sorted(judged, key=lambda each: -scores[each.name].estimate.value)
    pairs = [_compared(*two, method=method, level=level) for two in combinations(ordered, 2)]
    separating = None
    if len(ordered) > 1:
        samples, pairing = paired_samples(ordered[0], ordered[1])
        separating = labels_to_separate(*samples, pairing=pairing, level=level)
    names = [each.name for each in ordered]
    rates = [scores[name].estimate.value for name in names]
    tau = tau_of(rates, [truth[name] for name in names]) if truth else None
    rows = [(triple, stated) for each in ordered for triple, stated in zip(each.triples, each.stated_N, strict=True)]
    known = [(triple, stated) for triple, stated in rows if triple.label is not None]
    quality = judge_report([triple for triple, _ in known], np.array([stated for _, stated in known]), seed=seed)
    return SystemRanking(
        judge.dimension.name,
        tuple(scores[name] for name in names),
        tuple(pairs),
        separating,
        dict(truth or {}),
        tau,
        tuple(rows_to_label_next(ordered[:2], next_rows, seed)),
        quality,
    )


def by_system(read: ReadTriples, name: str) -> dict[str, ReadTriples]:
    """Divide the rows of a file by the system that they name; those that name none are of the file's own."""
    rows: dict[str, list[Triple]] = {}
    for triple in read.triples:
        system = triple.system or name
        rows.setdefault(system, []).append(replace(triple, system=system))
    # Which system an incomplete row is of matters to nobody but its count.
    first = next(iter(rows))
    return {each: ReadTriples(tuple(rows[each]), read.incomplete if each == first else 0) for each in rows}


def _read(
    systems: "Mapping[str, Source | Iterable[Mapping[str, object]]]",
    judge: "Judge",
    columns: TripleColumns | None,
    format_: "Format | None",
) -> dict[str, ReadTriples]:
    found: dict[str, ReadTriples] = {}
    for name, source in systems.items():
        for system, rows in by_system(read_triples(source, judge.dimension, columns, format=format_), name).items():
            if system in found:
                raise InvalidInput(
                    f"expected the rows of each system in one file, but {system!r} is in two. Put them together, or "
                    "name the systems apart."
                )
            found[system] = rows
    return found


def _compared(first: JudgedSystem, second: JudgedSystem, *, method: PpiMethod, level: float) -> SystemComparison:
    samples, pairing = paired_samples(first, second)
    if any(not len(each.unlabelled_judge_scores) for each in samples) and method == "ppi":
        method = "classical"
    difference = estimate_difference(*samples, pairing=pairing, method=method, level=level)
    return SystemComparison(first.name, second.name, difference, probability_better(difference), pairing)
