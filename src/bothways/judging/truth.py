"""True success rates of systems, where they are known: of a file, or of labels of every row."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from bothways.errors import InvalidInput
from bothways.judging.dimensions import Dimension
from bothways.judging.ranking import by_system
from bothways.judging.triples import TripleColumns, read_triples

if TYPE_CHECKING:
    from bothways.data import Format, Source


def read_truth(source: "Source", *, format: "Format | None" = None) -> dict[str, float]:  # noqa: A002 (the option's name)
    """Read rows with the columns ``system`` and ``value``.

    Raises:
        InvalidInput: A column is missing, or a value is no number from 0 to 1.
    """
    from bothways.data import number, read_rows, value_at

    found = {}
    for row in read_rows(source, format=format):
        value = number(value_at(row, "value"))
        if not 0 <= value <= 1:
            raise InvalidInput(f"{row.where}: expected a success rate from 0 to 1 in 'value', got {value:g}.")
        found[str(value_at(row, "system"))] = value
    return found


def truth_in_labels(
    systems: "Mapping[str, Source | Iterable[Mapping[str, object]]]",
    dimension: Dimension,
    columns: TripleColumns,
    *,
    format: "Format | None" = None,  # noqa: A002 (the option's name)
) -> dict[str, float]:
    """Return the mean label of each system.

    Raises:
        InvalidInput: A row has no label.
    """
    found = {}
    for name, source in systems.items():
        for system, read in by_system(read_triples(source, dimension, columns, format=format), name).items():
            missing = next((each.where for each in read.triples if each.label is None), None)
            if missing is not None:
                raise InvalidInput(
                    f"truth: expected a label of every row in {columns.label(dimension)!r}, got none in {missing}. "
                    "Fill it in, or give the success rates in a file."
                )
            found[system] = sum(each.label or 0 for each in read.triples) / len(read.triples)
    return found
