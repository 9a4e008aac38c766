"""Inputs of a task in Python: one input or many, and inputs with their labels."""

from collections.abc import Mapping, Sequence

from bothways.data.row import Row
from bothways.data.tables import items_of, plain, remedy, table_rows
from bothways.errors import InvalidInput, shown


def as_batch(value: object, one: str = "a text", many: str = "texts") -> tuple[list[object], bool]:
    """Return inputs as a list of Python values, and True for a single input.

    >>> as_batch("Rates rose.")
    (['Rates rose.'], True)

    Args:
        value: One input (a string, or a row as a mapping), or many: a list, tuple, generator, NumPy array, Series,
            Arrow array or column of a Dataset; a DataFrame, Arrow table or Dataset gives its rows as dicts. The items
            are not checked; a missing one (NaN, pandas.NA) is None.
        one: What one input is called in messages.
        many: Their plural.

    Raises:
        InvalidInput: ``value`` is neither, or has to be opened first (a DatasetDict, a LazyFrame).
    """
    if getattr(value, "ndim", None) == 0:
        value = plain(value)
    if isinstance(value, str) or (isinstance(value, Mapping) and not remedy(value)):
        return [plain(value)], True
    items = items_of(value)
    if items is None:
        raise InvalidInput(f"expected {one}, or a list of {many}, got {_got(value)}")
    return list(items), False


def labelled_rows(
    inputs: object,
    labels: object,
    *,
    columns: str | Sequence[str] = "text",
    label: str = "label",
    many: str = "texts",
) -> list[Row]:
    """Return one row for each input with its label, as ``fit(texts, labels)`` gives them.

    Args:
        inputs: Many inputs, as for `as_batch`. With several ``columns`` each is a sequence of as many values; a mapping
            is a row to which the label is added.
        labels: A label for each, in the same order: a list, tuple, generator, NumPy array, Series or other column.
        columns: Columns that the inputs get.
        label: Column that the labels get.
        many: What the inputs are called in messages.

    Raises:
        InvalidInput: There is one input alone, there are not as many labels as inputs, the labels are more than one
            column, or an input does not fit the columns.
    """
    given, alone = as_batch(inputs, f"a list of {many}", many)
    if alone:
        raise InvalidInput(f"expected a list of {many} beside the labels, got {_got(inputs)}")
    if getattr(labels, "ndim", 1) > 1 or table_rows(labels, "the given labels") is not None:
        raise InvalidInput(
            f"expected one column of labels, got {type(labels).__name__}: choose one, such as data['label']. Several "
            "labels of one text go into a list."
        )
    found = items_of(labels)
    if found is None:
        raise InvalidInput(f"expected a list of labels, one for each of the {many}, got {_got(labels)}")
    listed = list(found)
    if len(listed) != len(given):
        raise InvalidInput(f"expected as many labels as {many}, got {len(listed)} and {len(given)}.")
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    rows = []
    for number, (item, value) in enumerate(zip(given, listed, strict=True), start=1):
        where = f"row {number} of the given {many}"
        rows.append(Row(number, {**_values(item, names, where), label: value}, where))
    return rows


def _values(item: object, columns: tuple[str, ...], where: str) -> dict[str, object]:
    if isinstance(item, Mapping):
        return dict(item)
    if len(columns) == 1:
        return {columns[0]: item}
    if isinstance(item, list | tuple) and len(item) == len(columns):
        return dict(zip(columns, item, strict=True))
    found = f"{len(item)} values" if isinstance(item, list | tuple) else type(item).__name__
    raise InvalidInput(
        f"{where}: expected {len(columns)} values, for {', '.join(map(repr, columns))}, got {found}. Give each as a "
        "tuple, or as a dict of column to value."
    )


def _got(value: object) -> str:
    advice = remedy(value)
    return f"{type(value).__name__}. {advice}" if advice else f"{type(value).__name__}: {shown(value)}"
