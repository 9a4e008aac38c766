"""Tables of other libraries as sources: the rows are those of a file, and no library is imported for them."""

import subprocess
import sys

import numpy as np
import pytest
from table_samples import (
    COLUMNS,
    ROWS,
    TABLES,
    arrow_table,
    dataset,
    labelled_dataset,
    pandas_arrow_frame,
    pandas_frame,
    pandas_nullable_frame,
    polars_frame,
    read_texts,
    refusal,
    streamed_dataset,
)

from bothways.data import class_label, label_set, read_examples, read_rows, read_tagged
from bothways.errors import InvalidInput

FRAMES = [pandas_frame, pandas_nullable_frame, pandas_arrow_frame]


@pytest.fixture(params=TABLES.values(), ids=TABLES)
def table(request):
    return request.param


def test_a_table_gives_the_rows_of_a_list_of_dicts_as_values_of_python(table):
    source = table(COLUMNS)
    read = list(read_rows(source))
    assert [row.values for row in read] == ROWS
    assert list(read_rows(source)) == read
    assert {type(value) for row in read for value in row.values.values()} == {str, int, float}
    assert [row.number for row in read] == [1, 2, 3]


def test_a_text_that_is_missing_is_refused_with_its_row(table):
    source = table({"text": ["a", None, "c"], "label": [1, 2, 3]})
    with pytest.raises(InvalidInput, match=rf"^row 2 of the given {type(source).__name__}: 'text' is null"):
        read_texts(source)


def test_a_table_longer_than_a_batch_is_read_to_its_end(table):
    count = 2_500
    assert [row.values["n"] for row in read_rows(table({"n": list(range(count))}))] == list(range(count))


@pytest.mark.parametrize("missing", [None, float("nan"), np.nan, np.float32("nan"), np.datetime64("NaT")])
def test_every_kind_of_missing_value_is_null(missing):
    (row,) = read_rows([{"text": missing}])
    assert row.values == {"text": None}


def test_the_missing_values_of_pandas_are_null():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [pandas.NA], "b": [pandas.NaT], "c": [np.nan], "d": [None]}, dtype=object)
    (row,) = read_rows(frame)
    assert row.values == dict.fromkeys("abcd")


@pytest.mark.parametrize("frame", FRAMES)
def test_a_number_that_is_missing_is_refused_and_leaves_the_others_numbers(frame):
    source = frame({"text": ["a", "b"], "label": [1, None]})
    with pytest.raises(InvalidInput, match=r"^row 2 of the given DataFrame: the label in 'label' is missing, got null"):
        read_examples(source)
    # pandas makes floats of integers beside a missing one; the class is the same.
    assert class_label(next(read_rows(source)).values["label"]) == "1"


def test_rows_of_a_frame_are_counted_by_place_whatever_its_index():
    frame = pandas_frame({"text": ["a", "b", ""]})[::-1]
    with pytest.raises(InvalidInput, match=r"^row 1 of the given DataFrame: the text in 'text' is empty"):
        read_texts(frame)


def test_lists_of_words_and_categories_of_pandas_are_read():
    pandas = pytest.importorskip("pandas")
    words = {"tokens": [np.array(["Ada", "writes"], dtype=object), ["x"]], "tags": [["B-PER", "O"], np.array(["O"])]}
    assert [row.label for row in read_tagged(pandas.DataFrame(words))] == [("B-PER", "O"), ("O",)]
    categories = pandas.DataFrame({"text": ["a", "b"], "label": pandas.Categorical(["x", "y"])})
    assert [example.label for example in read_examples(categories)] == ["x", "y"]


def test_class_labels_of_a_dataset_are_its_names():
    source = labelled_dataset([1, 0, 1])
    for each in (source, source.with_format("torch"), source.with_format("numpy"), source.to_iterable_dataset()):
        assert [example.label for example in read_examples(each)] == ["pos", "neg", "pos"]


def test_lists_of_class_labels_of_a_dataset_are_their_names():
    datasets = pytest.importorskip("datasets")
    tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B-PER"]))
    features = datasets.Features({"tokens": datasets.Sequence(datasets.Value("string")), "tags": tags})
    source = datasets.Dataset.from_dict({"tokens": [["Ada", "writes"]], "tags": [[1, 0]]}, features=features)
    (row,) = read_tagged(source)
    assert row.label == ("B-PER", "O")
    source = source.add_column("text", ["Ada writes"])
    (example,) = read_examples(source, label="tags", convert=label_set)
    assert example.label == ("B-PER", "O")


@pytest.mark.parametrize("unlabelled", [-1, None])
def test_rows_of_a_dataset_without_label_are_refused(unlabelled):
    with pytest.raises(InvalidInput, match=r"^row 2 of the given Dataset: the label in 'label' is missing.* got null"):
        read_examples(labelled_dataset([0, unlabelled]))


def test_columns_and_transforms_that_the_user_chose_on_a_dataset_stay():
    source = dataset(COLUMNS)
    (row, *_) = read_rows(source.with_format("torch", columns=["text"]))
    assert row.values == {"text": "Rates rose."}
    upper = source.with_transform(lambda batch: {"text": [text.upper() for text in batch["text"]]})
    assert read_texts(upper)[0] == "RATES ROSE."


def test_two_columns_of_the_same_name_are_refused():
    frame = pandas_frame(COLUMNS).rename(columns={"price": "text"})
    assert refusal(frame).startswith("the given DataFrame has the column 'text' twice.")
    table = arrow_table(COLUMNS).rename_columns(["a", "b", "a"])
    assert refusal(table).startswith("the given Table has the column 'a' twice.")


def test_a_column_named_like_a_method_of_a_file_is_a_column():
    frame = pandas_frame({"readline": ["a"], "name": ["b"], "text": ["c"]})
    assert read_texts(frame) == ["c"]


def test_a_subclass_of_a_frame_is_a_frame():
    pandas = pytest.importorskip("pandas")

    class Named(pandas.DataFrame):
        pass

    assert read_texts(Named(COLUMNS)) == COLUMNS["text"]


# What is no table


@pytest.mark.parametrize("table", [pandas_frame, polars_frame, arrow_table, dataset, streamed_dataset])
def test_a_column_alone_is_refused_with_what_to_give(table):
    assert refusal(table(COLUMNS)["text"]).endswith(
        "It has no named columns: give the table that it belongs to, or a list of dicts."
    )


def test_several_splits_are_refused_with_how_to_choose_one():
    datasets = pytest.importorskip("datasets")
    splits = datasets.DatasetDict({"train": dataset(COLUMNS)})
    assert refusal(splits).endswith("got DatasetDict. Choose one of its splits, such as data['train'].")
    streams = datasets.IterableDatasetDict({"train": streamed_dataset(COLUMNS)})
    assert refusal(streams).endswith("Choose one of its splits, such as data['train'].")


def test_a_lazy_frame_is_refused_with_how_to_collect_it():
    assert refusal(polars_frame(COLUMNS).lazy()).endswith("Collect it first: frame.collect().")


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        ((row for row in ROWS), "got generator. It can be read only once: write list(rows)."),
        (map(dict, ROWS), "got map. It can be read only once: write list(rows)."),
        (ROWS[0], "got dict. Put a single row into a list: [row]."),
        (b"text", "got bytes. Turn it into a list of dicts first."),
        (7, "got int. Turn it into a list of dicts first."),
        (None, "got NoneType. Turn it into a list of dicts first."),
        (np.array(["a"]), "It has no named columns: give the table that it belongs to, or a list of dicts."),
    ],
    ids=["generator", "map", "dict", "bytes", "int", "None", "array"],
)
def test_what_has_no_rows_or_only_once_is_refused_with_what_to_do(source, advice):
    said = refusal(source)
    assert said.startswith("expected a path, '-', an open file, a DataFrame, an Arrow table, a Dataset or a list")
    assert said.endswith(advice)


def test_any_iterable_of_mappings_that_can_be_read_again_is_a_source():
    by_id = dict(enumerate(ROWS)).values()
    assert [row.values for row in read_rows(by_id)] == ROWS
    assert list(read_rows(by_id))[2].where == "row 3 of the given dict_values"


def test_a_big_list_is_not_read_before_its_rows_are_asked_for():
    class Counting:
        read = 0

        def __iter__(self):
            for row in ROWS:
                Counting.read += 1
                yield row

    next(read_rows(Counting()))
    assert Counting.read == 1


def test_scalars_of_numpy_in_a_list_become_values_of_python():
    (row,) = read_rows([{"text": np.str_("a"), "label": np.int64(3), "x": np.float64(0.5), "on": np.True_}])
    assert [(type(value), value) for value in row.values.values()] == [(str, "a"), (int, 3), (float, 0.5), (bool, True)]


def test_no_library_of_tables_is_imported_to_look_for_its_tables():
    code = (
        "import sys; from bothways.data import as_batch, read_rows; list(read_rows([{'text': 'a'}])); as_batch(['a']); "
        "print([name for name in ('pandas', 'polars', 'pyarrow', 'datasets') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
