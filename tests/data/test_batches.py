"""Arguments of calls in Python: one input or many, and inputs with their labels."""

import enum
from collections import deque

import numpy as np
import pytest
from table_samples import COLUMNS, ROWS, TABLES, labelled_dataset

from bothways.data import as_batch, class_label, label_set, labelled_rows, read_examples, read_rows, read_tagged
from bothways.errors import InvalidInput

TEXTS = COLUMNS["text"]


def refusal(value, *words):
    with pytest.raises(InvalidInput) as caught:
        as_batch(value, *words)
    return str(caught.value)


def refused_labels(inputs, labels, **options):
    with pytest.raises(InvalidInput) as caught:
        labelled_rows(inputs, labels, **options)
    return str(caught.value)


# One or many


@pytest.mark.parametrize("value", ["a", np.str_("a"), np.array("a"), np.array("a", dtype=object)])
def test_a_string_is_one_input_alone(value):
    (text,), alone = as_batch(value)
    assert (text, type(text), alone) == ("a", str, True)


@pytest.mark.parametrize("chance", [{"a", "b"}, frozenset("ab")])
def test_a_set_is_refused_since_its_order_is_chance(chance):
    assert "has no order" in refusal(chance)
    assert "has no order" in refused_labels(chance, ["x", "y"])
    assert "has no order" in refused_labels(["a", "b"], chance)
    with pytest.raises(InvalidInput, match=r"got (frozen)?set. A set has no order"):
        list(read_rows(chance))


class Kind(str, enum.Enum):  # noqa: UP042 (as users write it)
    GOOD = "good"


class Level(enum.Enum):
    HIGH = 2


def test_a_member_of_an_enum_is_its_value():
    assert [class_label(each) for each in (Kind.GOOD, Level.HIGH)] == ["good", "2"]
    (row,) = labelled_rows([Kind.GOOD], [Level.HIGH])
    assert row.values == {"text": "good", "label": 2}
    assert type(row.values["text"]) is str
    (example,) = read_examples([{"text": Kind.GOOD, "label": Kind.GOOD}])
    assert (example.text, example.label, type(example.label)) == ("good", "good", str)
    assert label_set([Kind.GOOD, Level.HIGH]) == ("good", "2")


def test_a_mapping_is_one_row_alone():
    assert as_batch({"text": "a", "n": np.int64(1)}) == ([{"text": "a", "n": 1}], True)


@pytest.mark.parametrize(
    "value",
    [TEXTS, tuple(TEXTS), np.array(TEXTS), np.array(TEXTS, dtype=object), deque(TEXTS), dict.fromkeys(TEXTS).keys()],
)
def test_many_texts_are_a_list_of_strings(value):
    texts, alone = as_batch(value)
    assert (texts, alone) == (TEXTS, False)
    assert {type(text) for text in texts} == {str}


def test_a_generator_and_nothing_are_many():
    assert as_batch(text for text in TEXTS) == (TEXTS, False)
    for empty in ([], (), np.array([], dtype=str)):
        assert as_batch(empty) == ([], False)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_the_rows_of_a_table_are_dicts_and_its_columns_lists(table):
    source = table(COLUMNS)
    assert as_batch(source) == (ROWS, False)
    for column in ("text", "label"):
        values, alone = as_batch(source[column])
        assert (values, alone) == (COLUMNS[column], False)
        assert {type(value) for value in values} <= {str, int}


def test_other_columns_of_pandas_and_arrow_are_lists():
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    for column in (pandas.Index(TEXTS), pandas.array(TEXTS), pandas.Categorical(TEXTS), pyarrow.array(TEXTS)):
        assert as_batch(column) == (TEXTS, False)


def test_missing_texts_of_a_column_are_none():
    pandas = pytest.importorskip("pandas")
    for missing in (None, np.nan, pandas.NA):
        assert as_batch(pandas.Series(["a", missing], dtype=object)) == (["a", None], False)
        assert as_batch(pandas.Series(["a", missing], dtype="string")) == (["a", None], False)


def test_rows_of_an_array_are_lists_and_other_items_stay_the_same_objects():
    assert as_batch(np.array([["a", "b"], ["c", "d"]])) == ([["a", "b"], ["c", "d"]], False)
    item = object()
    assert as_batch([item])[0][0] is item


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (5, "int: 5"),
        (None, "NoneType: None"),
        (b"a", "bytes: b'a'"),
        (bytearray(b"a"), "bytearray: bytearray(b'a')"),
        (np.int64(5), "int: 5"),
        (float("nan"), "float: nan"),
    ],
)
def test_what_is_neither_one_nor_many_is_refused(value, found):
    assert refusal(value).startswith(f"expected a text, or a list of texts, got {found}")


def test_the_refusal_names_the_inputs_of_the_task_and_what_to_do():
    assert refusal(5, "a question", "questions") == "expected a question, or a list of questions, got int: 5"
    datasets = pytest.importorskip("datasets")
    splits = datasets.DatasetDict({"train": TABLES["dataset"](COLUMNS)})
    assert refusal(splits).endswith("got DatasetDict. Choose one of its splits, such as data['train'].")
    lazy = TABLES["polars_frame"](COLUMNS).lazy()
    assert refusal(lazy).endswith("got LazyFrame. Collect it first: frame.collect().")


# Inputs with their labels


@pytest.mark.parametrize("labels", [["x", "y", "x"], ("x", "y", "x"), np.array(["x", "y", "x"]), iter("xyx")])
def test_texts_with_labels_are_the_examples_of_rows(labels):
    rows = labelled_rows(np.array(TEXTS), labels)
    assert [(row.number, row.where) for row in rows] == [(n, f"row {n} of the given texts") for n in (1, 2, 3)]
    of_rows = [{"text": text, "label": label} for text, label in zip(TEXTS, "xyx", strict=True)]
    assert read_examples(rows) == read_examples(of_rows)


def test_labels_come_from_tensors_columns_with_names_and_series_of_any_index():
    torch, pandas = pytest.importorskip("torch"), pytest.importorskip("pandas")
    named = labelled_dataset([1, 0])
    for texts, labels, expected in (
        (TEXTS, torch.tensor([2, 0, 1]), [2, 0, 1]),
        (named["text"], named["label"], ["pos", "neg"]),
        (TEXTS, pandas.Series([0, 1, 2], index=[2, 1, 0]), [0, 1, 2]),
    ):
        assert [row.values["label"] for row in labelled_rows(texts, labels)] == expected


def test_rows_get_the_label_beside_what_they_have():
    frame = TABLES["pandas_frame"](COLUMNS)
    rows = labelled_rows(frame[["text", "price"]], frame["label"], label="class")
    assert [row.values for row in rows] == [
        {"text": row["text"], "price": row["price"], "class": row["label"]} for row in ROWS
    ]


@pytest.mark.parametrize("pairs", [[("a", "b"), ("c", "d")], np.array([["a", "b"], ["c", "d"]])])
def test_pairs_fill_two_columns(pairs):
    rows = labelled_rows(pairs, [1, 0], columns=("text_a", "text_b"), many="pairs of texts")
    assert [row.values for row in rows] == [
        {"text_a": "a", "text_b": "b", "label": 1},
        {"text_a": "c", "text_b": "d", "label": 0},
    ]


def test_words_with_tags_and_texts_with_label_sets_are_rows():
    tagged = labelled_rows([["Ada", "writes"], ["x"]], [["B-PER", "O"], ["O"]], columns="tokens", label="tags")
    assert [row.label for row in read_tagged(tagged)] == [("B-PER", "O"), ("O",)]
    several = labelled_rows(["a", "b"], [["x", "y"], []])
    assert [example.label for example in read_examples(several, convert=label_set)] == [("x", "y"), ()]


@pytest.mark.parametrize(("texts", "labels"), [(2, 3), (3, 2), (0, 1)])
def test_another_number_of_labels_is_refused(texts, labels):
    said = refused_labels(["a"] * texts, ["x"] * labels)
    assert said == f"expected as many labels as texts, got {labels} labels and {texts} texts."


def test_a_label_that_is_missing_is_refused_with_its_row():
    rows = labelled_rows(["a", "b"], np.array([1.0, np.nan]))
    with pytest.raises(InvalidInput, match=r"^row 2 of the given texts: the label in 'label' is missing.* got null"):
        read_examples(rows, convert=class_label)


@pytest.mark.parametrize("labels", [TABLES["pandas_frame"], TABLES["arrow_table"]])
def test_labels_in_several_columns_are_refused(labels):
    said = refused_labels(TEXTS, labels(COLUMNS))
    assert said.startswith("expected one column of labels, or a column of zeros and ones for each label, got ")
    assert said.endswith("choose a column, such as data['label']. If a text has several labels, give them as a list.")


@pytest.mark.parametrize("labels", ["label", 3, {"a": 1}, np.array("x")])
def test_labels_that_are_no_list_are_refused(labels):
    assert refused_labels(TEXTS, labels).startswith("expected a list of labels, one for each of the texts, got ")


def test_a_file_or_one_text_is_refused_beside_labels():
    said = refused_labels("train.jsonl", ["x"])
    assert said == "expected a list of texts, one for each label, got str: 'train.jsonl'"


@pytest.mark.parametrize(("item", "found"), [("ab", "str"), (("a", "b", "c"), "3 values")])
def test_an_input_that_does_not_fill_the_columns_is_refused(item, found):
    said = refused_labels([("a", "b"), item], [1, 0], columns=("first", "second"), many="pairs of texts")
    assert said.startswith(f"row 2 of the given pairs of texts: expected 2 values, for 'first', 'second', got {found}.")
