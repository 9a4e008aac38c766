"""Two systems side by side: samples of the same queries, and the rows that are worth a label.

Shapes: N rows, S systems.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bothways.choices import Pairing
from bothways.evaluation.prediction_powered import Sample
from bothways.judging.scoring import JudgedSystem
from bothways.judging.triples import Triple, TripleColumns

_LEAST_PAIRED = 0.5


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


def paired_samples(first: JudgedSystem, second: JudgedSystem) -> tuple[tuple[Sample, Sample], Pairing]:
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


def rows_to_label_next(systems: Sequence[JudgedSystem], count: int, seed: int) -> list[NextRow]:
    """Choose the rows without labels that are most worth a label.

    The judge's probabilities differ most on them between the systems, or are nearest to 0.5 for one system. Ties go to
    the more uncertain row, then to a random one. Rows chosen in this way are no random sample: use their labels to
    correct or train a judge, and do not mix them with labels drawn at random.
    """
    groups = _shared_queries(systems) or [(row,) for system in systems for row in _rows(system)]
    groups = [rows for rows in groups if any(row.triple.label is None for row in rows)]
    if count < 1 or not groups:
        return []
    stated_NS = np.array([[row.probability for row in rows] for rows in groups])
    disagreement_N, uncertain_N = np.ptp(stated_NS, axis=1), (stated_NS * (1 - stated_NS)).sum(axis=1)
    chance_N = np.random.default_rng(seed).random(len(groups))
    order = np.lexsort((chance_N, -uncertain_N, -disagreement_N))[:count].tolist()
    found = [row for number in order for row in groups[number] if row.triple.label is None]
    return found[:count]


def _shared_queries(systems: Sequence[JudgedSystem]) -> list[tuple[NextRow, ...]]:
    """Return the rows of each query that all systems answered once; none where a query has several rows."""
    numbers = [_numbers(each) for each in systems]
    if len(systems) < 2 or any(each is None for each in numbers):
        return []
    rows = [{row.triple.query: row for row in _rows(each)} for each in systems]
    return [tuple(each[query] for each in rows) for query in rows[0] if all(query in each for each in rows)]


def _rows(system: JudgedSystem) -> list[NextRow]:
    stated = system.stated_N.tolist()
    return [NextRow(system.name, triple, value) for triple, value in zip(system.triples, stated, strict=True)]
