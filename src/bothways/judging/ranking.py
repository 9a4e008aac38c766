"""Ranking of systems by success rate, and the uncertainty of that ranking.

Shapes: N rows or queries, S systems.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from bothways import data
from bothways.choices import Pairing, PpiMethod, Shared
from bothways.errors import InvalidInput
from bothways.evaluation.prediction_powered import (
    PoweredEstimate,
    Sample,
    SeparatingLabels,
    estimate_difference,
    probability_better,
    separation,
)
from bothways.judging.labels import JudgeReport, judge_report, tau_of
from bothways.judging.scoring import DEFAULT, JudgedSystem, SystemScore, judge_systems, scored
from bothways.judging.triples import Dimension, ReadTriples, Triple, TripleColumns, read_triples
from bothways.progress import figure

if TYPE_CHECKING:
    from bothways.data import Source
    from bothways.judging.judge import Judge
    from bothways.judging.triples import Rows

NEXT_ROWS = 50
# Minimum queries labelled for both systems, as a share of the smaller number of labels, for a paired comparison.
_MIN_PAIRED = 0.5


@dataclass(frozen=True, slots=True)
class NextRow:
    """A row to label next: the judge is unsure of it, or rates the systems' answers to its query very differently."""

    system: str  # the system that answered
    triple: Triple
    probability: float  # the judge's probability that the triple is good

    def to_dict(self, columns: TripleColumns) -> dict[str, object]:
        """Return the row as a dictionary whose keys are the names of these columns."""
        triple = self.triple
        return {
            **({} if triple.id is None else {columns.id: triple.id}),
            columns.system: self.system,
            columns.query: triple.query,
            columns.passage: triple.passage,
            columns.answer: triple.answer,
            "judge": round(self.probability, 6),
        }


@dataclass(frozen=True, slots=True)
class SystemComparison:
    """A comparison of the success rates of two systems."""

    first: str  # the system that ranks higher
    second: str  # the system that ranks lower
    difference: PoweredEstimate  # success rate of the first minus that of the second, with its interval
    probability: float  # probability that the first is better
    pairing: Pairing  # ``"paired"`` if both answered the same queries and enough of them are labelled for both

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
    """Systems ranked by success rate."""

    dimension: str
    systems: tuple[SystemScore, ...]  # success rates, highest first
    comparisons: tuple[SystemComparison, ...]  # every pair of systems
    separating: SeparatingLabels | None  # the labels that would separate the first two; None for a single system
    truth: Mapping[str, float]  # the true success rates, if they are known
    tau: float | None  # Kendall's tau between estimated and true success rates; None without the true ones
    next_rows: tuple[NextRow, ...]  # rows to label next
    quality: JudgeReport  # the judge's agreement with the labels of all systems together

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons to doubt the intervals, each after the name of its system."""
        return tuple(f"{each.system}: {warning}" for each in self.systems for warning in each.warnings)

    @property
    def separation(self) -> str:
        """A sentence on the number of labels needed to separate the first two systems, with its power."""
        if self.separating is None:
            return ""
        found, first = self.separating, self.comparisons[0]
        names, level = f"{first.first} and {first.second}", f"{first.difference.level:.0%} interval of the difference"
        if found.labels == 0:
            return f"The {level} between {names} excludes 0: no further labels are needed."
        if found.labels is not None:
            return (
                f"If the difference is as estimated, labels of {found.labels:,} more random rows each would separate "
                f"{names} with a power of {found.power:.0%}: the probability that the {level} then excludes 0."
            )
        if not first.difference.unlabelled:
            return f"All rows have labels, and the {level} contains 0: only more rows can separate {names}."
        return (
            f"With labels of all rows, the {level} between {names} would be about {figure(found.low, sign=True)} to "
            f"{figure(found.high, sign=True)}. "
            f"If the difference is as estimated, such an interval excludes 0 with a probability of "
            f"{found.power_of_all:.0%} (the power; {found.power:.0%} is usual)."
        )

    def probability(self, first: str, second: str) -> float:
        """Return the probability that one system is better than another."""
        for each in self.comparisons:
            if (each.first, each.second) == (first, second):
                return each.probability
            if (each.second, each.first) == (first, second):
                return 1 - each.probability
        raise InvalidInput(f"expected two different systems of the ranking, got {first!r} and {second!r}.")

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        quality = self.quality.to_dict()
        return {
            "dimension": self.dimension,
            "systems": [each.to_dict() for each in self.systems],
            "comparisons": [each.to_dict() for each in self.comparisons],
            "labels_to_separate_first_two": self.separating and self.separating.labels,
            "separation": self.separating and asdict(self.separating),
            "truth": dict(self.truth),
            "kendall_tau": self.tau,
            "agreement": {name: quality[name] for name in ("n", "accuracy", "auroc", "ece") if name in quality},
            "warnings": list(self.warnings),
        }


def rank_systems(
    judge: "Judge",
    systems: "Mapping[str, Rows]",
    labels: "Rows | None" = None,
    *,
    truth: Mapping[str, float] | None = None,
    columns: TripleColumns | None = None,
    method: PpiMethod = DEFAULT,
    level: float = 0.95,
    next_rows: int = NEXT_ROWS,
    seed: int = 0,
    shared: Shared = "keep",
    show_progress: bool | None = None,
) -> SystemRanking:
    """Rank systems by success rate.

    Args:
        judge: The judge.
        systems: All rows of each system, by its name. A row counts for the system that it names, if any.
        labels: Human labels for a random sample of each system's rows. Default: the labels in ``systems``. A label is
            matched by id, else by texts; if it names a system, only to the rows of that system. A label that matches no
            row is a labelled row of its own if it has all texts that the judge reads and names its system.
        truth: True success rates, if they are known.
        columns: Names of the columns. Default: as in the judge's training.
        method: Method of the intervals.
        level: Confidence level of the intervals.
        next_rows: Number of rows to suggest for labelling.
        seed: Seed of the bootstrap and of tie-breaking.
        shared: Rows that the judge was trained on: ``"keep"`` them, with a warning, or ``"drop"`` them.
        show_progress: Force the progress bar on or off.

    Raises:
        InvalidInput: A system has fewer than two labels, a label fits no system, or ``truth`` has other systems.
    """
    read = _read_systems(systems, judge.dimension, columns := columns or judge.columns)
    _check_systems(truth, read)
    judged = judge_systems(judge, read, labels, columns, shared=shared, show_progress=show_progress)
    scores = {each.name: scored(each, judge, method=method, level=level, seed=seed) for each in judged}
    ordered = sorted(judged, key=lambda each: -scores[each.name].estimate.value)
    separating = None
    if len(ordered) > 1:
        samples, pairing = paired_samples(ordered[0], ordered[1])
        separating = separation(*samples, pairing=pairing, level=level)
    ranked = [scores[each.name] for each in ordered]
    labelled = [triple for each in ordered for triple in each.triples if triple.label is not None]
    probability_N = np.concatenate([each.probability_N[each.labelled_N] for each in ordered])
    return SystemRanking(
        judge.dimension.name,
        tuple(ranked),
        tuple(_compared(*two, method=method, level=level) for two in combinations(ordered, 2)),
        separating,
        dict(truth or {}),
        tau_of([each.estimate.value for each in ranked], [truth[each.name] for each in ordered]) if truth else None,
        tuple(rows_to_label_next(ordered[:2], next_rows, seed)),
        judge_report(labelled, probability_N, seed=seed),
    )


def _check_systems(truth: Mapping[str, float] | None, read: Mapping[str, ReadTriples]) -> None:
    other = sorted({*truth}.symmetric_difference(read)) if truth else []
    if other:
        raise InvalidInput(
            f"truth: expected a value for each of the systems {', '.join(map(repr, read))} and no others, but "
            f"{', '.join(map(repr, other))} is only in the truth or only in the data. Correct the names."
        )


def _compared(first: JudgedSystem, second: JudgedSystem, *, method: PpiMethod, level: float) -> SystemComparison:
    samples, pairing = paired_samples(first, second)
    if any(not len(each.unlabelled_judge_scores) for each in samples) and method == "ppi":
        method = "classical"
    difference = estimate_difference(*samples, pairing=pairing, method=method, level=level)
    return SystemComparison(first.name, second.name, difference, probability_better(difference), pairing)


# --- reading ---


def _read_systems(
    systems: "Mapping[str, Rows]",
    dimension: Dimension,
    columns: TripleColumns | None,
) -> dict[str, ReadTriples]:
    """Read the rows of each system; a row that names no system belongs to the system of its file."""
    read: dict[str, ReadTriples] = {}
    for name, source in systems.items():
        rows = dict[str, list[Triple]]()
        found = read_triples(source, dimension, columns)
        for triple in found.triples:
            rows.setdefault(triple.system or name, []).append(replace(triple, system=triple.system or name))
        for place, (system, own) in enumerate(rows.items()):
            if system in read:
                raise InvalidInput(
                    f"expected all rows of a system in one file, but {system!r} is in two. Merge the files, or "
                    "rename one system."
                )
            # The systems of incomplete rows are not known; all count for the first system of the file.
            read[system] = ReadTriples(tuple(own), 0 if place else found.incomplete)
    return read


def read_truth(
    source: "Source",
) -> dict[str, float]:
    """Read true success rates from rows with the columns ``system`` and ``value``.

    Raises:
        InvalidInput: A column is missing, or a value is not a number from 0 to 1.
    """
    truth = {}
    for row in data.read_rows(source):
        value = data.number(data.value_at(row, "value"))
        if not 0 <= value <= 1:
            raise InvalidInput(f"{row.where}: expected a success rate from 0 to 1 in 'value', got {value:g}.")
        truth[str(data.value_at(row, "system"))] = value
    return truth


def truth_in_labels(
    systems: "Mapping[str, Rows]",
    dimension: Dimension,
    columns: TripleColumns,
) -> dict[str, float]:
    """Return the mean label of each system; every row must have a label.

    Raises:
        InvalidInput: A row has no label.
    """
    truth = {}
    for system, read in _read_systems(systems, dimension, columns).items():
        missing = next((each.where for each in read.triples if each.label is None), None)
        if missing is not None:
            raise InvalidInput(
                f"truth: expected a label for every row in {columns.label(dimension)!r}, got none in {missing}. "
                "Fill it in, or give the success rates in a file."
            )
        truth[system] = sum(each.label or 0 for each in read.triples) / len(read.triples)
    return truth


# --- pairs of systems, and rows to label next ---


def paired_samples(first: JudgedSystem, second: JudgedSystem) -> tuple[tuple[Sample, Sample], Pairing]:
    """Return samples of two systems, paired if they answered the same queries and enough are labelled for both."""
    one, other = _rows_of_queries(first), _rows_of_queries(second)
    if one is not None and other is not None and one.keys() == other.keys():
        known = [first.labelled_N, second.labelled_N]
        both = [query for query in one if known[0][one[query]] and known[1][other[query]]]
        if len(both) >= max(2, _MIN_PAIRED * min(each.sum() for each in known)):
            rest = [query for query in one if query not in set(both)]
            return (_aligned(first, one, both, rest), _aligned(second, other, both, rest)), "paired"
    return (first.sample(), second.sample()), "unpaired"


def _rows_of_queries(system: JudgedSystem) -> dict[str, int] | None:
    """Return the row index of each query; None if a query has several rows."""
    numbers = {each.query: number for number, each in enumerate(system.triples)}
    return numbers if len(numbers) == len(system.triples) else None


def _aligned(system: JudgedSystem, number: Mapping[str, int], both: Sequence[str], rest: Sequence[str]) -> Sample:
    known, others = [number[query] for query in both], [number[query] for query in rest]
    labels = [label for each in known if (label := system.triples[each].label) is not None]
    return Sample(labels, system.probability_N[known], system.probability_N[others])


def rows_to_label_next(systems: Sequence[JudgedSystem], count: int, seed: int) -> list[NextRow]:
    """Choose the unlabelled rows whose labels would be most informative.

    These are rows of the queries on which the judge's probabilities differ most between the systems; for one system,
    rows with probabilities nearest to 0.5. Ties are broken by uncertainty, then at random. The rows are not a random
    sample: use their labels to correct or train a judge, and do not mix them with labels of randomly drawn rows.
    """
    groups = _shared_queries(systems) or [(row,) for system in systems for row in _rows(system)]
    groups = [rows for rows in groups if any(row.triple.label is None for row in rows)]
    if count < 1 or not groups:
        return []
    probability_NS = np.array([[row.probability for row in rows] for rows in groups])
    disagreement_N = np.ptp(probability_NS, axis=1)
    uncertain_N = (probability_NS * (1 - probability_NS)).sum(axis=1)
    chance_N = np.random.default_rng(seed).random(len(groups))
    order = np.lexsort((chance_N, -uncertain_N, -disagreement_N))[:count].tolist()
    return [row for number in order for row in groups[number] if row.triple.label is None][:count]


def _shared_queries(systems: Sequence[JudgedSystem]) -> list[tuple[NextRow, ...]]:
    """Return the rows of each query that all systems answered once; empty if a query has several rows."""
    if len(systems) < 2 or any(_rows_of_queries(each) is None for each in systems):
        return []
    rows = [{row.triple.query: row for row in _rows(each)} for each in systems]
    return [tuple(each[query] for each in rows) for query in rows[0] if all(query in each for each in rows)]


def _rows(system: JudgedSystem) -> list[NextRow]:
    probabilities = system.probability_N.tolist()
    return [NextRow(system.name, triple, each) for triple, each in zip(system.triples, probabilities, strict=True)]
