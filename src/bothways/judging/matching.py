"""Human labels brought to the rows that they are of: by id, or else by texts, and by system where several answered."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bothways.errors import InvalidInput, shown
from bothways.judging.dimensions import Dimension
from bothways.judging.triples import Triple, TripleColumns, read_triple

if TYPE_CHECKING:
    from bothways.data import Format, Source

Systems = Mapping[str, Sequence[Triple]]

_MOST_NAMED = 5
_PARTS = ("query", "passage", "answer")


def read_labels(
    source: "Source | Iterable[Mapping[str, object]]",
    dimension: Dimension,
    columns: TripleColumns | None = None,
    *,
    format: "Format | None" = None,  # noqa: A002 (the option's name)
) -> list[Triple]:
    """Read labelled rows, which may lack texts where they have an id; rows without a label are passed over.

    Args:
        source: As for `bothways.data.read_rows`.
        dimension: Whose labels are read.
        columns: Where the parts of a row stand.
        format: As for `bothways.data.read_rows`.

    Raises:
        InvalidInput: No row has a label, a label is neither 0 nor 1, or a row has neither an id nor a query.
    """
    from bothways.data import read_rows

    named = columns or TripleColumns()
    rows = list(read_rows(source, format=format))
    read = [read_triple(row, dimension, named) for row in rows]
    found = [each for each in read if each.label is not None]
    column = named.label(dimension)
    if not found:
        there = ", ".join(map(repr, rows[0].values))
        raise InvalidInput(
            f"expected human labels in the column {column!r}, got none in {len(rows):,} rows, which have: {there}. "
            f"Name the column (--{dimension.name.replace('_', '-')}), or label some rows: about 150 make a useful "
            "interval."
        )
    for each in found:
        if each.id is None and not each.query:
            raise InvalidInput(
                f"{each.where}: expected an id ({named.id!r}) or a query ({named.query!r}) to find the row that the "
                "label is of, got neither."
            )
    return found


def with_labels(systems: Systems, labels: Sequence[Triple], dimension: Dimension) -> dict[str, list[Triple]]:
    """Return the rows of systems with the human labels that are given for them, and no others.

    A label is matched by the id of its row where both files have ids, else by the texts that it comes with. One that
    several systems' rows fit goes to all of them where the judge reads the same of each.

    Args:
        systems: Rows of each system.
        labels: What `read_labels` gave.
        dimension: Says which texts are read.

    Raises:
        InvalidInput: A label is of no row, of different ones, or of a system that is not there, or two labels of a row
            differ; the message names some.
    """
    found = _Finder(systems, dimension)
    chosen: dict[tuple[str, int], Triple] = {}
    missing: list[str] = []
    for label in labels:
        places = found.places(label)
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
        raise InvalidInput(
            f"expected every labelled row in the data, but {len(missing):,} of {len(labels):,} are not there: "
            f"{_some(missing)}. Give the answers that the labels are of, or check the column that names rows "
            "(--id)."
        )
    return {
        name: [
            replace(row, label=chosen[name, number].label if (name, number) in chosen else None)
            for number, row in enumerate(rows)
        ]
        for name, rows in systems.items()
    }


class _Finder:
    """Finds the rows that a label is of."""

    def __init__(self, systems: Systems, dimension: Dimension) -> None:
        self.systems, self.dimension = systems, dimension
        self._by: dict[tuple[str, ...], dict[tuple[str, ...], list[tuple[str, int]]]] = {}

    def places(self, label: Triple) -> list[tuple[str, int]]:
        """Return system and number of each row that a label is of.

        Raises:
            InvalidInput: It fits different rows, or its system is not there.
        """
        if label.system is not None and label.system not in self.systems:
            raise InvalidInput(
                f"{label.where}: expected a system of {', '.join(map(repr, self.systems))}, got {label.system!r}. Give "
                "its answers too, or leave its labels out."
            )
        places = self._by_id(label) or self._by_texts(label)
        if label.system is not None:
            places = [place for place in places if place[0] == label.system]
        pairs = {self.dimension.pair(self.systems[name][number]) for name, number in places}
        if len(pairs) > 1:
            among = ", ".join(dict.fromkeys(repr(name) for name, _ in places))
            raise InvalidInput(
                f"{label.where}: expected a label of one row, but {_named(label)} fits {len(places)} rows (of {among}) "
                "with different texts. Give the label an id, the answer's text, or the name of its system."
            )
        return places

    def _by_id(self, label: Triple) -> list[tuple[str, int]]:
        if label.id is None:
            return []
        places = self._index(("id",)).get((label.id,), [])
        # The same id may stand for a query in the files of several systems.
        return [place for place in places if self._agrees(label, place)]

    def _agrees(self, label: Triple, place: tuple[str, int]) -> bool:
        row = self.systems[place[0]][place[1]]
        return all(not getattr(label, part) or getattr(label, part) == getattr(row, part) for part in _PARTS)

    def _by_texts(self, label: Triple) -> list[tuple[str, int]]:
        parts = tuple(part for part in _PARTS if getattr(label, part))
        if "query" not in parts:
            return []
        places = self._index(parts).get(tuple(getattr(label, part) for part in parts), [])
        # Rows that have another id are others, whatever their texts.
        ids = {name_number: self.systems[name_number[0]][name_number[1]].id for name_number in places}
        return [place for place in places if label.id is None or ids[place] in (None, label.id)]

    def _index(self, parts: tuple[str, ...]) -> dict[tuple[str, ...], list[tuple[str, int]]]:
        if parts not in self._by:
            made: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
            for name, rows in self.systems.items():
                for number, row in enumerate(rows):
                    made[tuple(getattr(row, part) for part in parts)].append((name, number))
            self._by[parts] = made
        return self._by[parts]


def _named(triple: Triple) -> str:
    return f"id {triple.id!r}" if triple.id is not None else f"{triple.where} (query {shown(triple.query, 50)})"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"
