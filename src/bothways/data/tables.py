"""Conversion of tables, columns and batches of pandas, polars, pyarrow, datasets and NumPy to Python values.

The libraries are recognised by the names of their types and never imported. Missing values (None, NaN, NaT, pandas.NA)
become None. Integers of a ``ClassLabel`` feature become class names; -1, which marks a missing label, becomes None.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from operator import methodcaller
from typing import Any, Protocol, TypeVar

from bothways.data.columns import Row, check_columns
from bothways.errors import InvalidInput, shown

_ROWS_AT_ONCE = 1024
_listed = methodcaller("tolist")
_DEEPEST = 100

_T = TypeVar("_T")


class DataFrameLike(Protocol):
    """A DataFrame of pandas or polars, or a Table of pyarrow. A Dataset is an iterable of mappings already."""

    @property
    def columns(self) -> Any:  # noqa: ANN401 (names in one library, arrays in another)
        """The columns or their names."""


def table_rows(source: object, name: str) -> Iterator[Mapping[str, object]] | None:
    """Return the rows of a table as a stream, with unconverted cells (see `plain`); None if it is not a table."""
    read = _known(source, _TABLES)
    return None if read is None else read(source, name)


def is_column(source: object) -> bool:
    """Test whether ``source`` is one column: a Series, an Arrow array, a column of a Dataset or a NumPy array."""
    return _known(source, _COLUMNS) is not None


def items_of(source: object) -> Iterator[object] | None:
    """Return the items of a container as a stream of Python values; the rows of a table are dicts.

    Return None for strings, bytes, mappings, sets, zero-dimensional arrays, and objects that are not iterable.
    """
    if _axes(source) == 0 or isinstance(source, str | bytes | bytearray | Mapping | set | frozenset):
        return None
    items: Iterable[object] | None = table_rows(source, f"the given {type(source).__name__}")
    if items is None and (read := _known(source, _COLUMNS)):
        items = read(source)
    if items is None and isinstance(source, Iterable):
        items = source
    return None if items is None else map(plain, items)


def _known(value: object, kinds: Mapping[str, _T]) -> _T | None:
    """Return the entry for the type of a value, or for a base of it, by names such as ``pandas.DataFrame``."""
    for kind in type(value).__mro__:
        if found := kinds.get(f"{kind.__module__.partition('.')[0]}.{kind.__name__}"):
            return found
    return None


class LabelledRows(list[Row]):
    """Rows with labels, and the order of the categories if the labels were a column or a table that has one."""

    def __init__(self, rows: Iterable[Row], label: str, categories: Sequence[object]) -> None:
        super().__init__(rows)
        self.label = label
        self.categories = categories


def categories_of(source: object, column: str) -> tuple[object, ...]:
    """Return the categories of a column in their order, also those that do not occur; empty if it has none.

    They are those of a ``ClassLabel``, also in lists, of a Categorical of pandas or an Enum of polars, and of a
    dictionary of Arrow.
    """
    if isinstance(source, LabelledRows):
        return tuple(source.categories) if column == source.label else ()
    read = _known(source, _COLUMNS_OF)
    return () if read is None else _categories(read(source, column))


def _categories(column: object) -> tuple[object, ...]:
    """Return the categories of a column, see `categories_of`."""
    read = _known(column, _CATEGORIES)
    return () if read is None else tuple(read(column))


def remedy(source: object) -> str | None:
    """Return advice for messages about a DatasetDict or LazyFrame, which is not yet a table; None for other types."""
    return _known(source, _REMEDIES)


def plain(value: object, depth: int = 0) -> object:
    """Convert a cell, and the contents of lists and dicts, to Python values; missing values become None.

    >>> plain(("B-PER", float("nan")))
    ('B-PER', None)
    """
    if type(value) is str or type(value) is int or value is None:
        return value
    if depth > _DEEPEST:
        raise InvalidInput(f"expected values nested at most {_DEEPEST} deep, got more: flatten them.")
    if listed := _known(value, _ARRAYS):
        value = listed(value)
    # Exactly these types: a named tuple or another type of mapping has a meaning of its own for the user.
    if type(value) is list:
        return [plain(each, depth + 1) for each in value]
    if type(value) is tuple:
        return tuple(plain(each, depth + 1) for each in value)
    if type(value) is dict:
        return {key: plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, Enum):
        return plain(value.value, depth + 1)
    return None if _known(value, _MISSING) else value


def _kind(value: object) -> str:
    return type(value).__name__


def _axes(value: object) -> int | None:
    axes = getattr(value, "ndim", None)  # of an array, a tensor, a frame
    return axes if isinstance(axes, int) else None


def _pandas_rows(frame: Any, name: str) -> Iterator[Mapping[str, object]]:  # noqa: ANN401 (not imported)
    columns = list(frame.columns)
    check_columns(columns, name)
    for cells in frame.itertuples(index=False, name=None):
        yield dict(zip(columns, cells, strict=True))


def _arrow_rows(table: Any, name: str) -> Iterator[Mapping[str, object]]:  # noqa: ANN401
    check_columns(table.schema.names, name)
    for start in range(0, table.num_rows, _ROWS_AT_ONCE):
        yield from table.slice(start, _ROWS_AT_ONCE).to_pylist()


def _dataset_rows(dataset: Any, _: str) -> Iterator[Mapping[str, object]]:  # noqa: ANN401
    features = dataset.features or {}  # a stream may not know them
    for batch in _unformatted(dataset).iter(_ROWS_AT_ONCE):  # single rows would take several times as long
        columns = [[_with_names(plain(value), features.get(column)) for value in batch[column]] for column in batch]
        for cells in zip(*columns, strict=True):
            yield dict(zip(batch, cells, strict=True))


def _unformatted(dataset: Any) -> Any:  # noqa: ANN401
    """Return a Dataset that gives Python values instead of tensors or frames, unless the user has set a transform."""
    chosen = getattr(dataset, "format", None)
    if chosen is None:  # a stream
        return dataset.with_format(None)
    return dataset if chosen["type"] == "custom" else dataset.with_format(None, columns=chosen["columns"])


def _with_names(value: object, feature: Any) -> object:  # noqa: ANN401
    """Replace integers of a class label feature by names."""
    kind = type(feature).__name__
    if kind == "ClassLabel" and isinstance(value, int):
        return feature.names[value] if 0 <= value < len(feature.names) else None
    if kind in ("List", "LargeList", "Sequence") and isinstance(value, list):
        return [_with_names(each, feature.feature) for each in value]
    if kind == "dict" and isinstance(value, dict):
        return {key: _with_names(each, feature.get(key)) for key, each in value.items()}
    return value


def _arrow_cells(array: Any) -> Iterator[object]:  # noqa: ANN401
    return (cell.as_py() for cell in array)


def _dataset_cells(column: Any) -> Iterator[object]:  # noqa: ANN401
    for start in range(0, len(column), _ROWS_AT_ONCE):
        for value in column[start : start + _ROWS_AT_ONCE]:
            yield _with_names(plain(value), column.features)


_TABLES: Mapping[str, Callable[[Any, str], Iterator[Mapping[str, object]]]] = {
    "pandas.DataFrame": _pandas_rows,
    "polars.DataFrame": lambda frame, _: iter(frame.iter_rows(named=True)),
    "pyarrow.Table": _arrow_rows,
    "pyarrow.RecordBatch": _arrow_rows,
    "datasets.Dataset": _dataset_rows,
    "datasets.IterableDataset": _dataset_rows,
}
_COLUMNS: Mapping[str, Callable[[Any], Iterable[object]]] = {
    "numpy.ndarray": iter,
    "pandas.Series": iter,
    "pandas.Index": iter,
    "polars.Series": iter,
    "pyarrow.ChunkedArray": _arrow_cells,
    "pyarrow.Array": _arrow_cells,
    "datasets.Column": _dataset_cells,
    "datasets.IterableColumn": iter,
    "torch.Tensor": _listed,
}
_COLUMNS_OF: Mapping[str, Callable[[Any, str], object]] = {
    "pandas.DataFrame": lambda frame, column: frame.get(column),
    "polars.DataFrame": lambda frame, column: frame[column] if column in frame.columns else None,
    "pyarrow.Table": lambda table, column: table[column] if column in table.schema.names else None,
    "pyarrow.RecordBatch": lambda table, column: table[column] if column in table.schema.names else None,
    "datasets.Dataset": lambda dataset, column: (dataset.features or {}).get(column),
    "datasets.IterableDataset": lambda dataset, column: (dataset.features or {}).get(column),
}
_CATEGORIES: Mapping[str, Callable[[Any], Iterable[object]]] = {
    "pandas.Series": lambda series: series.cat.categories.tolist() if _kind(series.dtype) == "CategoricalDtype" else (),
    # A Categorical of polars has no order of its own.
    "polars.Series": lambda series: series.dtype.categories.to_list() if _kind(series.dtype) == "Enum" else (),
    "pyarrow.ChunkedArray": lambda array: next(map(_categories, array.unify_dictionaries().chunks), ()),
    "pyarrow.DictionaryArray": lambda array: array.dictionary.to_pylist(),
    "datasets.Column": lambda column: _categories(column.features),
    "datasets.ClassLabel": lambda feature: feature.names,
    "datasets.List": lambda feature: _categories(feature.feature),
    "datasets.LargeList": lambda feature: _categories(feature.feature),
    "datasets.Sequence": lambda feature: _categories(feature.feature),
}
_NO_ORDER = "A set has no order, so its items could not be told apart in the results: give a list, such as sorted(...)."
_REMEDIES = {
    "builtins.set": _NO_ORDER,
    "builtins.frozenset": _NO_ORDER,
    "datasets.DatasetDict": "Choose one of its splits, such as data['train'].",
    "datasets.IterableDatasetDict": "Choose one of its splits, such as data['train'].",
    "polars.LazyFrame": "Collect it first: frame.collect().",
}
_ARRAYS = {
    "numpy.ndarray": _listed,
    "numpy.generic": _listed,
    "torch.Tensor": _listed,
    "pyarrow.Scalar": methodcaller("as_py"),
}
_MISSING = {"pandas.NAType": True, "pandas.NaTType": True}


def as_batch(value: object, one: str = "a text", many: str = "texts") -> tuple[list[object], bool]:
    """Return inputs as a list of Python values, and True if ``value`` is a single input.

    >>> as_batch("Rates rose.")
    (['Rates rose.'], True)

    Args:
        value: One input (a string, or a row as a mapping), or many: a list, tuple, generator, NumPy array, Series,
            Arrow array or column of a Dataset; a DataFrame, Arrow table or Dataset gives its rows as dicts. The items
            are not checked; missing ones (NaN, pandas.NA) become None.
        one: Name of one input in messages.
        many: Its plural.

    Raises:
        InvalidInput: The value is neither one input nor many, such as a DatasetDict or a LazyFrame.
    """
    if _axes(value) == 0:
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
) -> LabelledRows:
    """Return one row for each input with its label, for ``fit(texts, labels)``.

    Args:
        inputs: Many inputs, as for `as_batch`. With several ``columns``, each input is a sequence with one value for
            each; a mapping is a row to which the label is added.
        labels: A label for each, in the same order: a list, tuple, generator, NumPy array, Series or other column; or
            multi-hot vectors, as an array with a row for each input or a table with a column for each label.
        columns: Columns of the inputs.
        label: Column of the labels.
        many: Name of the inputs in messages.

    Raises:
        InvalidInput: There is a single input, the numbers of labels and inputs differ, the labels have several
            columns, or an input does not fit the columns.
    """
    given, alone = as_batch(inputs, f"a list of {many}", many)
    if alone:
        raise InvalidInput(f"expected a list of {many}, one for each label, got {_got(inputs)}")
    found = items_of(labels)
    if found is None:
        raise InvalidInput(f"expected a list of labels, one for each of the {many}, got {_got(labels)}")
    listed, categories = list(found), _categories(labels)
    if table_rows(labels, "the given labels") is not None:
        listed, categories = _marked(listed, type(labels).__name__)
    if len(listed) != len(given):
        raise InvalidInput(f"expected as many labels as {many}, got {len(listed)} labels and {len(given)} {many}.")
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    rows = []
    for number, (item, value) in enumerate(zip(given, listed, strict=True), start=1):
        where = f"row {number} of the given {many}"
        rows.append(Row(number, {**_values(item, names, where), label: value}, where))
    return LabelledRows(rows, label, categories)


def _marked(table: Sequence[object], kind: str) -> tuple[list[object], tuple[object, ...]]:
    """Return the names of the columns that have a one in each row of a table of zeros and ones, and all names."""
    rows = [row for row in table if isinstance(row, dict) and len(row) > 1 and set(row.values()) <= {0, 1}]
    if not rows or len(rows) < len(table):
        raise InvalidInput(
            f"expected one column of labels, or a column of zeros and ones for each label, got {kind}: choose a "
            "column, such as data['label']. If a text has several labels, give them as a list."
        )
    return [[name for name, value in row.items() if value] for row in rows], tuple(rows[0])


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
