"""The categories of label columns: of pandas, polars, pyarrow, datasets and Parquet files.

The libraries are recognised by the names of their types and never imported, except pyarrow for a Parquet file.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from bothways.data.columns import Row
from bothways.data.labels import class_label
from bothways.errors import InvalidInput

_T = TypeVar("_T")


def known(value: object, kinds: Mapping[str, _T]) -> _T | None:
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

    They are those of a ``ClassLabel``, also in lists, of a Categorical or an Enum of pandas and polars, and of a
    dictionary of Arrow.
    """
    if isinstance(source, LabelledRows):
        return tuple(source.categories) if column == source.label else ()
    read = known(source, _COLUMNS_OF)
    return () if read is None else column_categories(read(source, column))


def column_categories(column: object) -> tuple[object, ...]:
    """Return the categories of a column, see `categories_of`."""
    read = known(column, _CATEGORIES)
    return () if read is None else tuple(read(column))


def _pandas_categories(series: Any) -> Iterable[object]:  # noqa: ANN401
    return series.cat.categories.tolist() if type(series.dtype).__name__ == "CategoricalDtype" else ()


def _polars_categories(series: Any) -> Iterable[object]:  # noqa: ANN401
    return series.cat.get_categories().to_list() if type(series.dtype).__name__ in ("Categorical", "Enum") else ()


def _arrow_categories(array: Any) -> Iterable[object]:  # noqa: ANN401
    chunks = array.unify_dictionaries().chunks if hasattr(array, "chunks") else [array]
    return chunks[0].dictionary.to_pylist() if chunks and hasattr(chunks[0], "dictionary") else ()


def _feature_categories(feature: Any) -> Iterable[object]:  # noqa: ANN401
    feature = getattr(feature, "feature", feature)  # of a list
    return feature.names if type(feature).__name__ == "ClassLabel" else ()


def category_names(source: object, column: str | None) -> tuple[str, ...]:
    """Return the names of the categories of a column in their order, also of a Parquet file; see `categories_of`."""
    if column is None:
        return ()
    if isinstance(source, str | os.PathLike):
        found = _parquet_categories(str(source), column) if str(source).lower().endswith(".parquet") else ()
    else:
        found = categories_of(source, column)
    try:
        return tuple(map(class_label, found))
    except InvalidInput:  # of a category that does not occur, since the labels of the rows were read before
        return ()


def _parquet_categories(path: str, column: str) -> tuple[object, ...]:
    """Return the values of a dictionary column of a Parquet file that was read before, in their order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, pre_buffer=False) as file:
        schema = file.schema_arrow
        if column not in schema.names or not pa.types.is_dictionary(schema.field(column).type):
            return ()
        return categories_of(file.read(columns=[column]), column)


_COLUMNS_OF: Mapping[str, Callable[[Any, str], object]] = {
    "pandas.DataFrame": lambda frame, column: frame.get(column),
    "polars.DataFrame": lambda frame, column: frame[column] if column in frame.columns else None,
    "pyarrow.Table": lambda table, column: table[column] if column in table.schema.names else None,
    "pyarrow.RecordBatch": lambda table, column: table[column] if column in table.schema.names else None,
    "datasets.Dataset": lambda dataset, column: (dataset.features or {}).get(column),
    "datasets.IterableDataset": lambda dataset, column: (dataset.features or {}).get(column),
}
_CATEGORIES: Mapping[str, Callable[[Any], Iterable[object]]] = {
    "pandas.Series": _pandas_categories,
    "polars.Series": _polars_categories,
    "pyarrow.ChunkedArray": _arrow_categories,
    "pyarrow.DictionaryArray": _arrow_categories,
    "datasets.Column": lambda column: _feature_categories(column.features),
    "datasets.ClassLabel": _feature_categories,
    "datasets.List": _feature_categories,
    "datasets.LargeList": _feature_categories,
    "datasets.Sequence": _feature_categories,
}
