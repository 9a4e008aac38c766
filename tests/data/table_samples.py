"""The same few rows as tables of every library that is recognised."""

import pytest

from bothways.data import read_rows, text_at
from bothways.errors import InvalidInput

COLUMNS = {"text": ["Rates rose.", "Łódź 🚲", "A goal."], "label": [0, 1, 0], "price": [1.5, 2.0, -3.0]}
ROWS = [dict(zip(COLUMNS, cells, strict=True)) for cells in zip(*COLUMNS.values(), strict=True)]


def pandas_frame(columns):
    return pytest.importorskip("pandas").DataFrame(columns)


def pandas_nullable_frame(columns):
    return pandas_frame(columns).convert_dtypes()


def pandas_arrow_frame(columns):
    return pandas_frame(columns).convert_dtypes(dtype_backend="pyarrow")


def polars_frame(columns):
    return pytest.importorskip("polars").DataFrame(columns)


def arrow_table(columns):
    return pytest.importorskip("pyarrow").table(columns)


def arrow_batch(columns):
    return pytest.importorskip("pyarrow").RecordBatch.from_pydict(columns)


def dataset(columns):
    return pytest.importorskip("datasets").Dataset.from_dict(columns)


def dataset_of_tensors(columns):
    return dataset(columns).with_format("torch")


def dataset_of_arrays(columns):
    return dataset(columns).with_format("numpy")


def streamed_dataset(columns):
    return dataset(columns).to_iterable_dataset()


TABLES = {
    each.__name__: each
    for each in (
        *(pandas_frame, pandas_nullable_frame, pandas_arrow_frame, polars_frame, arrow_table, arrow_batch, dataset),
        *(dataset_of_tensors, dataset_of_arrays, streamed_dataset),
    )
}


def labelled_dataset(labels, names=("neg", "pos")):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=list(names))})
    return datasets.Dataset.from_dict({"text": ["a"] * len(labels), "label": labels}, features=features)


def read_texts(source, text="text", **options):
    """The texts in the rows of a source."""
    return [text_at(row, text) for row in read_rows(source, **options)]


def refusal(source, **options):
    """What is said of a source that cannot be read."""
    with pytest.raises(InvalidInput) as caught:
        list(read_rows(source, **options))
    return str(caught.value)
