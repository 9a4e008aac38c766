"""Human labels: matching them to the rows of systems by id or texts, and measuring a judge's agreement with them.

Shapes: N rows, S systems.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bothways import data
from bothways.data.columns import columns_there
from bothways.errors import InvalidInput, shown
from bothways.evaluation.intervals import Estimate
from bothways.evaluation.metrics.classification import class_outcomes
from bothways.evaluation.out_of_domain import out_of_domain_report
from bothways.evaluation.report import Report
from bothways.judging.triples import PARTS, Dimension, Part, Triple, TripleColumns, read_triple
from bothways.progress import figure

if TYPE_CHECKING:
    from bothways.judging.triples import Rows

Systems: TypeAlias = Mapping[str, Sequence[Triple]]
Place: TypeAlias = tuple[str, int]
"""A system's name and the index of one of its rows."""

# Maximum number of unmatched labels listed in an error, and of disagreements in a report.
_MAX_NAMED, _DISAGREEMENTS = 5, 10


def read_labels(
    source: "Rows",
    dimension: Dimension,
    columns: TripleColumns | None = None,
) -> list[Triple]:
    """Read the rows that have a label. Each needs an id or a query; the other texts may be missing."""
    named = columns or TripleColumns()
    rows = list(data.read_rows(source))
    labels = [each for each in (read_triple(row, dimension, named) for row in rows) if each.label is not None]
    if not labels:
        column = named.label(dimension)
        there = "" if column in rows[0].values else f" {columns_there(rows[0].values, column, dimension.name)}"
        raise InvalidInput(
            f"expected human labels in the column {column!r}, got none in {len(rows):,} rows. Label some of them: "
            f"about 150 give a useful interval.{there}"
        )
    for each in labels:
        if each.id is None and not each.query:
            raise InvalidInput(
                f"{each.where}: expected an id ({named.id!r}) or a query ({named.query!r}) to match the label to its "
                "row, got neither. Fill one in."
            )
    return labels


def with_labels(
    systems: Systems, labels: Sequence[Triple], dimension: Dimension
) -> tuple[dict[str, list[Triple]], dict[str, list[Triple]]]:
    """Return the rows of systems with the given human labels, and the labelled rows that are not among them.

    A label is matched by id if label and row have one, else by texts. If it matches rows of several systems and the
    judge reads the same texts in all of them, every one of these rows gets the label. A label without a row is a
    labelled row of its own if it has all texts that the judge reads, and belongs to the system that it names.

    Raises:
        InvalidInput: A label matches no row and lacks a text or its system, matches several rows, or contradicts
            another label; or its id is that of a row with other texts, while other labels match by id.
    """
    finder = _Finder(systems, dimension)
    chosen: dict[Place, Triple] = {}
    own: dict[tuple[str | None, ...], Triple] = {}
    missing: list[str] = []
    found = [(label, finder.places(label)) for label in labels]
    finder.check_ids(found)
    for label, places in found:
        for place in places:
            _check_same(chosen.setdefault(place, label), label)
        if not places and all(label.text(part).strip() for part in dimension.parts):
            named = replace(label, system=finder.system(label))
            _check_same(own.setdefault((named.system, named.id, *(named.text(part) for part in PARTS)), named), named)
        elif not places:
            missing.append(_named(label))
    if missing:
        more = f" and {len(missing) - _MAX_NAMED:,} more" if len(missing) > _MAX_NAMED else ""
        *others, last = dimension.parts
        raise InvalidInput(
            f"expected every label to match a row of the data, or to have its own {', '.join(others)} and {last}, but "
            f"{len(missing):,} of {len(labels):,} do neither: {', '.join(missing[:_MAX_NAMED])}{more}. Add the rows or "
            "texts that were labelled, or check the id column (--id)."
        )
    matched = {
        name: [
            replace(row, label=chosen[name, number].label if (name, number) in chosen else None)
            for number, row in enumerate(rows)
        ]
        for name, rows in systems.items()
    }
    return matched, {name: [each for each in own.values() if each.system == name] for name in systems}


def _check_same(before: Triple, label: Triple) -> None:
    if before.label != label.label:
        raise InvalidInput(
            f"{label.where}: expected one label for {_named(label)}, got {before.label} ({before.where}) and "
            f"{label.label}. Keep the correct one."
        )


class _Finder:
    def __init__(self, systems: Systems, dimension: Dimension) -> None:
        self._systems, self._dimension = systems, dimension
        self._rows = {(name, number): row for name, rows in systems.items() for number, row in enumerate(rows)}
        self._by_id: dict[str, list[Place]] = defaultdict(list)
        for place, row in self._rows.items():
            if row.id is not None:
                self._by_id[row.id].append(place)
        self._by_parts: dict[tuple[Part, ...], dict[tuple[str, ...], list[Place]]] = {}

    def places(self, label: Triple) -> list[Place]:
        """Return the system and the row index of each row that a label matches."""
        if label.system is not None and label.system not in self._systems:
            raise InvalidInput(
                f"{label.where}: expected one of the systems {', '.join(map(repr, self._systems))}, got "
                f"{label.system!r}. Add the rows of that system, or remove its labels."
            )
        parts = tuple(part for part in PARTS if label.text(part))
        # Files of several systems may use the same id for the same query.
        places = [
            place
            for place in self._by_id.get(label.id or "", [])
            if all(label.text(part) == self._rows[place].text(part) for part in parts)
        ] or self._with_texts(label, parts)
        if label.system is not None:
            places = [place for place in places if place[0] == label.system]
        if len({self._dimension.pair(self._rows[place]) for place in places}) > 1:
            among = ", ".join(dict.fromkeys(repr(name) for name, _ in places))
            raise InvalidInput(
                f"{label.where}: expected a label to match one row, but {_named(label)} matches {len(places)} rows "
                f"(of {among}) with different texts. Give the label an id, the answer's text, or its system."
            )
        return places

    def check_ids(self, found: Sequence[tuple[Triple, Sequence[Place]]]) -> None:
        """Refuse a label whose id is that of a row with other texts, unless no label matches by its id.

        Rows that are not among the data may be numbered like those of the data.
        """
        if not any(
            label.id is not None and self._rows[place].id == label.id for label, each in found for place in each
        ):
            return
        for label, places in found:
            same = [] if places else self._by_id.get(label.id or "", [])
            row = next((self._rows[place] for place in same if label.system in (None, place[0])), None)
            if row is not None:
                part = next(part for part in PARTS if label.text(part) not in ("", row.text(part)))
                raise InvalidInput(
                    f"{label.where}: expected the {part} of id {label.id!r} as in the data ({row.where}), got another "
                    f"one: {shown(label.text(part), 50)}. Correct one of them, or give another row another id."
                )

    def system(self, label: Triple) -> str:
        """Return the system of a label that is a row of its own."""
        if label.system is None and len(self._systems) > 1:
            raise InvalidInput(
                f"{label.where}: {_named(label)} is not among the data, so expected one of the systems "
                f"{', '.join(map(repr, self._systems))} in its column system, got none. Name the system that answered."
            )
        return label.system or next(iter(self._systems))

    def _with_texts(self, label: Triple, parts: tuple[Part, ...]) -> list[Place]:
        if "query" not in parts:
            return []
        if parts not in self._by_parts:
            index: dict[tuple[str, ...], list[Place]] = defaultdict(list)
            for place, row in self._rows.items():
                index[tuple(row.text(part) for part in parts)].append(place)
            self._by_parts[parts] = index
        places = self._by_parts[parts].get(tuple(label.text(part) for part in parts), [])
        # A row with another id is never a match, even with the same texts.
        return [place for place in places if label.id is None or self._rows[place].id in (None, label.id)]


def _named(triple: Triple) -> str:
    return f"id {triple.id!r}" if triple.id is not None else f"{triple.where} (query {shown(triple.query, 50)})"


# --- agreement of the judge with human labels ---


@dataclass(frozen=True, slots=True)
class JudgeDisagreement:
    """A triple on which the judge disagrees with the human label."""

    triple: Triple
    probability: float  # the judge's probability that the triple is good

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        names = ("where", "system", "query", "passage", "answer", "label")
        return {**{name: getattr(self.triple, name) for name in names}, "probability": self.probability}


@dataclass(frozen=True, slots=True)
class JudgeReport:
    """The agreement of a judge with human labels."""

    report: Report  # accuracy, F1, Brier score and calibration error, with intervals
    # Chance that a good triple has a higher probability than a bad one; None if all labels are the same.
    auroc: Estimate | None
    # Kendall's tau between the systems' mean probability and their mean label; None for fewer than two systems.
    tau: float | None
    systems: Mapping[str, tuple[float, float]]  # mean label and mean probability of each system
    disagreements: tuple[JudgeDisagreement, ...]  # the most confident disagreements, most confident first

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        auroc = {"auroc": None} if self.auroc is None else self.auroc.named("auroc")
        systems = {name: {"labels": label, "judge": mean} for name, (label, mean) in self.systems.items()}
        shown = [each.to_dict() for each in self.disagreements]
        return {**self.report.to_dict(), **auroc, "kendall_tau": self.tau, "systems": systems, "disagreements": shown}

    def summary(self) -> str:
        """Return the metrics, one per line, after warnings."""
        named = {**self.report.estimates, **({} if self.auroc is None else {"auroc": self.auroc})}
        lines = [*self.report.warnings] + [
            f"{name:<12} {figure(each.value)}  [{figure(each.low)}, {figure(each.high)}]"
            for name, each in named.items()
        ]
        lines += [f"kendall_tau  {figure(self.tau)}  over {len(self.systems)} systems"] if self.tau is not None else []
        return "\n".join(lines)


def judge_report(
    labelled: Sequence[Triple], probability_N: NDArray[np.float64], *, resamples: int = 1000, seed: int = 0
) -> JudgeReport:
    """Compare the probabilities of triples with their labels."""
    label_N = np.array([each.label for each in labelled], np.int64)
    both_NC = np.column_stack([1 - probability_N, probability_N])
    report = class_outcomes(("0", "1"), label_N, both_NC, values=(0, 1)).report(resamples=resamples, seed=seed)
    parts = probability_N[label_N == 0], probability_N[label_N == 1]
    auroc = None
    if all(map(len, parts)):
        auroc = out_of_domain_report(*parts, resamples=resamples, seed=seed).estimates["auroc"]
    rows: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for triple, label, probability in zip(labelled, label_N.tolist(), probability_N.tolist(), strict=True):
        if triple.system is not None:
            rows[triple.system].append((label, probability))
    means = {name: tuple(np.mean(each, axis=0).tolist()) for name, each in rows.items()}
    tau = tau_of(*zip(*means.values(), strict=True)) if len(means) > 1 else None
    gap_N = np.abs(probability_N - label_N)
    confident = [
        number for number in np.argsort(-gap_N, kind="stable")[:_DISAGREEMENTS].tolist() if gap_N[number] > 0.5
    ]
    wrong = tuple(JudgeDisagreement(labelled[number], float(probability_N[number])) for number in confident)
    return JudgeReport(report, auroc, tau, means, wrong)


def tau_of(first_S: ArrayLike, second_S: ArrayLike) -> float | None:
    """Return Kendall's tau-b between two scores of the systems; None if one score is the same for all of them."""
    from scipy.stats import kendalltau

    if np.ptp(first_S) == 0 or np.ptp(second_S) == 0:
        return None
    return float(kendalltau(first_S, second_S).statistic)
