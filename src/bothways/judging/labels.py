"""Human labels matched to the rows of systems: by id, else by texts, and by system if several answered."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from bothways import data
from bothways.errors import InvalidInput, shown
from bothways.judging.triples import PARTS, Dimension, Part, Triple, TripleColumns, read_triple

if TYPE_CHECKING:
    from bothways.data import Format
    from bothways.judging.triples import Rows

Systems: TypeAlias = Mapping[str, Sequence[Triple]]
Place: TypeAlias = tuple[str, int]
"""A system and the number of its row."""

_MAX_NAMED = 5


def read_labels(
    source: "Rows",
    dimension: Dimension,
    columns: TripleColumns | None = None,
    *,
    format: "Format | None" = None,  # noqa: A002 (the option's name)
) -> list[Triple]:
    """Read labelled rows, which may lack texts if they have an id; rows without a label are skipped."""
    named = columns or TripleColumns()
    rows = list(data.read_rows(source, format=format))
    labels = [each for each in (read_triple(row, dimension, named) for row in rows) if each.label is not None]
    if not labels:
        there = ", ".join(map(repr, rows[0].values))
        raise InvalidInput(
            f"expected human labels in the column {named.label(dimension)!r}, got none in {len(rows):,} rows, which "
            f"have: {there}. Name the column (--{dimension.name.replace('_', '-')}), or label some rows: about 150 "
            "make a useful interval."
        )
    for each in labels:
        if each.id is None and not each.query:
            raise InvalidInput(
                f"{each.where}: expected an id ({named.id!r}) or a query ({named.query!r}) to match the label to its "
                "row, got neither."
            )
    return labels


def with_labels(systems: Systems, labels: Sequence[Triple], dimension: Dimension) -> dict[str, list[Triple]]:
    """Return the rows of systems with these human labels only.

    A label is matched by the id of its row if both files have ids, else by the texts that it comes with. If it fits the
    rows of several systems and the judge reads the same text in each, it goes to all of them.
    """
    finder = _Finder(systems, dimension)
    chosen: dict[Place, Triple] = {}
    missing: list[str] = []
    for label in labels:
        places = finder.places(label)
        if not places:
            missing.append(_named(label))
        for place in places:
            before = chosen.setdefault(place, label)
            if before.label != label.label:
                raise InvalidInput(
                    f"{label.where}: expected one label for {_named(label)}, got {before.label} ({before.where}) and "
                    f"{label.label}. Decide which one holds."
                )
    if missing:
        more = f" and {len(missing) - _MAX_NAMED:,} more" if len(missing) > _MAX_NAMED else ""
        raise InvalidInput(
            f"expected every labelled row in the data, but {len(missing):,} of {len(labels):,} are not there: "
            f"{', '.join(missing[:_MAX_NAMED])}{more}. Add the answers that the labels belong to, or check the column "
            "of ids (--id)."
        )
    return {
        name: [
            replace(row, label=chosen[name, number].label if (name, number) in chosen else None)
            for number, row in enumerate(rows)
        ]
        for name, rows in systems.items()
    }


class _Finder:
    """Finds the rows that labels belong to."""

    def __init__(self, systems: Systems, dimension: Dimension) -> None:
        self._systems, self._dimension = systems, dimension
        self._by_id: dict[str, list[Place]] = defaultdict(list)
        for place in self._places():
            if (name := self._row(place).id) is not None:
                self._by_id[name].append(place)
        self._by_parts: dict[tuple[Part, ...], dict[tuple[str, ...], list[Place]]] = {}

    def _places(self) -> list[Place]:
        return [(name, number) for name, rows in self._systems.items() for number in range(len(rows))]

    def _row(self, place: Place) -> Triple:
        return self._systems[place[0]][place[1]]

    def places(self, label: Triple) -> list[Place]:
        """Return the rows that a label belongs to."""
        if label.system is not None and label.system not in self._systems:
            raise InvalidInput(
                f"{label.where}: expected a system of {', '.join(map(repr, self._systems))}, got {label.system!r}. "
                "Give its answers too, or leave its labels out."
            )
        parts = tuple(part for part in PARTS if label.text(part))
        # The same id may stand for a query in the files of several systems.
        places = [
            place
            for place in self._by_id.get(label.id or "", [])
            if all(label.text(part) == self._row(place).text(part) for part in parts)
        ] or self._with_texts(label, parts)
        if label.system is not None:
            places = [place for place in places if place[0] == label.system]
        if len({self._dimension.pair(self._row(place)) for place in places}) > 1:
            among = ", ".join(dict.fromkeys(repr(name) for name, _ in places))
            raise InvalidInput(
                f"{label.where}: expected a label of one row, but {_named(label)} fits {len(places)} rows (of {among}) "
                "with different texts. Give the label an id, the answer's text, or the name of its system."
            )
        return places

    def _with_texts(self, label: Triple, parts: tuple[Part, ...]) -> list[Place]:
        if "query" not in parts:
            return []
        if parts not in self._by_parts:
            index: dict[tuple[str, ...], list[Place]] = defaultdict(list)
            for place in self._places():
                index[tuple(self._row(place).text(part) for part in parts)].append(place)
            self._by_parts[parts] = index
        places = self._by_parts[parts].get(tuple(label.text(part) for part in parts), [])
        # Rows with another id are other rows, whatever their texts.
        return [place for place in places if label.id is None or self._row(place).id in (None, label.id)]


def _named(triple: Triple) -> str:
    return f"id {triple.id!r}" if triple.id is not None else f"{triple.where} (query {shown(triple.query, 50)})"
