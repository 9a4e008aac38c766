"""Several systems in order of their success rates, and how sure that order is.

Shapes: N rows, Q queries.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from bothways.choices import Pairing, PpiMethod
from bothways.errors import InvalidInput
from bothways.evaluation.prediction_powered import (
    PoweredEstimate,
    Sample,
    estimate_difference,
    labels_to_separate,
    probability_better,
    rows_to_label,
)
from bothways.judging.quality import JudgeReport, judge_report, kendall_tau
from bothways.judging.scoring import DEFAULT, JudgedSystem, SystemScore, judged_systems, labelled, scored
from bothways.judging.triples import ReadTriples, Triple, TripleColumns, read_triples

if TYPE_CHECKING:
    from bothways.data import Format, Source
    from bothways.judging.judge import Judge

NEXT_ROWS = 50
_LEAST_PAIRED = 0.5


@dataclass(frozen=True, slots=True)
class Comparison:
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
class NextRow:
    """A row that is worth a label: the judge is unsure of it, or sees the systems far apart.

    Attributes:
        system: Whose answer it is.
        triple: The row.
        probability: That it is good, according to the judge.
    """

    system: str
    triple: Triple
    probability: float

    def to_dict(self, columns: TripleColumns) -> dict[str, object]:
        """Return a row of a file, under the names of columns that are given."""
        named = {} if self.triple.id is None else {columns.id: self.triple.id}
        texts = {columns.query: self.triple.query, columns.passage: self.triple.passage}
        return {
            **named,
            columns.system: self.system,
            **texts,
            columns.answer: self.triple.answer,
            "judge": round(self.probability, 6),
        }


@dataclass(frozen=True, slots=True)
class Ranking:
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
    comparisons: tuple[Comparison, ...]
    separating_labels: int | None
    truth: Mapping[str, float]
    tau: float | None
    next_rows: tuple[NextRow, ...]
    quality: JudgeReport

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes intervals doubtful, each with the system that it is about."""
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
) -> Ranking:
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
            f"truth: expected a value for each of the systems {', '.join(map(repr, rows))}, but the two lists differ in "
            f"{', '.join(map(repr, unknown))}."
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
) -> Ranking:
    """Put systems in order that were judged already; see `rank_systems`."""
    scores = {each.name: scored(each, judge, method=method, level=level, seed=seed) for each in judged}
    ordered = sorted(judged, key=lambda each: -scores[each.name].estimate.value)
    pairs = [
        _compared(*two, method=method, level=level, seed=seed) for two in combinations(ordered, 2)
    ]
    separating = None
    if len(ordered) > 1:
        samples, pairing = _samples(ordered[0], ordered[1])
        separating = labels_to_separate(*samples, pairing=pairing, level=level)
    names = [each.name for each in ordered]
    tau = kendall_tau([scores[name].estimate.value for name in names], [truth[name] for name in names]) if truth else None
    rows = [(triple, stated) for each in ordered for triple, stated in zip(each.triples, each.stated_N, strict=True)]
    known = [(triple, stated) for triple, stated in rows if triple.label is not None]
    quality = judge_report([triple for triple, _ in known], np.array([stated for _, stated in known]), seed=seed)
    return Ranking(
        judge.dimension.name,
        tuple(scores[name] for name in names),
        tuple(pairs),
        separating,
        dict(truth or {}),
        tau,
        tuple(_next_rows(ordered[:2], next_rows, seed)),
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


def _compared(
    first: JudgedSystem, second: JudgedSystem, *, method: PpiMethod, level: float, seed: int
) -> Comparison:
    samples, pairing = _samples(first, second)
    if any(not len(each.unlabelled_judged) for each in samples) and method == "ppi":
        method = "classical"
    difference = estimate_difference(*samples, pairing=pairing, method=method, level=level, seed=seed)
    return Comparison(first.name, second.name, difference, probability_better(difference), pairing)


def _samples(first: JudgedSystem, second: JudgedSystem) -> tuple[tuple[Sample, Sample], Pairing]:
    """Return samples of two systems: row by row of the same queries, where enough of them are labelled for both."""
    one, other = _numbers(first), _numbers(second)
    if one is not None and other is not None and one.keys() == other.keys():
        known = [first.labelled_N, second.labelled_N]
        both = [query for query in one if known[0][one[query]] and known[1][other[query]]]
        if len(both) >= max(2, _LEAST_PAIRED * min(each.sum() for each in known)):
            rest = [query for query in one if query not in set(both)]
            return (_aligned(first, one, both, rest), _aligned(second, other, both, rest)), "paired"
    return (first.sample(), second.sample()), "unpaired"


def _numbers(system: JudgedSystem) -> dict[str, int] | None:
    """Return the row of each query; None where a query has several."""
    numbers = {each.query: number for number, each in enumerate(system.triples)}
    return numbers if len(numbers) == len(system.triples) else None


def _aligned(system: JudgedSystem, number: Mapping[str, int], both: Sequence[str], rest: Sequence[str]) -> Sample:
    known, others = [number[query] for query in both], [number[query] for query in rest]
    labels = [label for each in known if (label := system.triples[each].label) is not None]
    return Sample(labels, system.stated_N[known], system.stated_N[others])


def _next_rows(systems: Sequence[JudgedSystem], count: int, seed: int) -> Iterator[NextRow]:
    """Yield rows without labels on which the judge sees the first two systems furthest apart, else is least sure."""
    if count < 1:
        return
    numbers = [_numbers(each) for each in systems]
    if len(systems) == 2 and numbers[0] is not None and numbers[1] is not None:
        one, other = numbers[0], numbers[1]
        open_queries = [
            query
            for query in one
            if query in other
            and (systems[0].triples[one[query]].label is None or systems[1].triples[other[query]].label is None)
        ]
        if open_queries:
            stated = [[systems[at].stated_N[each[query]] for query in open_queries] for at, each in enumerate((one, other))]
            for chosen in rows_to_label(np.array(stated), count=-(-count // 2), seed=seed).tolist():
                for system, number in zip(systems, (one, other), strict=True):
                    place = number[open_queries[chosen]]
                    if system.triples[place].label is None:
                        yield NextRow(system.name, system.triples[place], float(system.stated_N[place]))
            return
    rows = [
        NextRow(system.name, triple, float(stated))
        for system in systems
        for triple, stated in zip(system.triples, system.stated_N, strict=True)
        if triple.label is None
    ]
    if rows:
        for chosen in rows_to_label(np.array([each.probability for each in rows]), count=count, seed=seed).tolist():
            yield rows[chosen]
