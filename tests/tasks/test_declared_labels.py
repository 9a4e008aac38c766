"""Labels that a user declares, by name or as the categories of a column, and multi-hot vectors of them."""

import json
from copy import copy

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from bothways import MultiTask, PairClassifier, TaskData, TextClassifier, TextTagger
from bothways.cli.program import main
from bothways.data import label_set, labelled_rows, read_examples
from bothways.data.labels import declared
from bothways.data.sources import category_names
from bothways.errors import CorruptCheckpoint, InvalidInput

NAMES = ("sun", "rain", "air")
TEXTS = [f"w{5 + number % 3} w20" for number in range(12)]
VECTORS = [[int(number % 3 == place or number % 4 == place) for place in range(3)] for number in range(12)]
QUICK = {"epochs": 1, "batch_size": 12}
BITS = pd.DataFrame(VECTORS, columns=NAMES)


def opened(tiny_bert, kind=TextClassifier, **options):
    return kind.from_pretrained(tiny_bert, device="cpu", **options)


def rows(labels):
    return [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=True)]


@pytest.fixture(scope="module")
def trained(tiny_bert):
    model = opened(tiny_bert, target="multi", labels=NAMES)
    model.fit(rows(VECTORS), validation=rows(VECTORS), **QUICK)
    return model


@pytest.mark.parametrize(
    "vector",
    [
        *(
            [0, 1, 1],
            (0, 1, 1),
            [0.0, 1.0, 1.0],
            [False, True, True],
            "[0, 1, 1]",
            "[0 1 1]",
            "[0. 1. 1.]",
            "(0, 1, 1)",
        ),
        *("0 1 1", "0,1,1", "0|1|1", "[False, True, True]", "[False  True  True]", " [0 1 1] "),
        *("array([0, 1, 1])", "np.array([0., 1., 1.], dtype=float32)", "tensor([0, 1, 1], device='cuda:0')"),
        *("rain|air", ["rain", "air"], "['rain', 'air']", "array(['rain', 'air'], dtype=object)"),
    ],
)
def test_a_vector_marks_the_declared_labels(vector):
    assert label_set(vector, NAMES) == ("rain", "air")


@pytest.mark.parametrize(
    "vector", [[1, 0, 0], "[1 0 0]", "[1. 0. 0.]", "1 0 0", "1,1,0", [True, False, False], "[0 0]"]
)
def test_a_vector_of_undeclared_labels_is_refused(vector):
    with pytest.raises(InvalidInput, match=r"got a multi-hot vector .* labels=\[\.\.\.\] .* or --labels a,b,c"):
        label_set(vector)


@pytest.mark.parametrize("vector", [[1, 0], "[1, 0, 0, 0]", "[1]"])
def test_a_vector_of_another_length_is_refused(vector):
    with pytest.raises(InvalidInput, match="expected a multi-hot vector of 3 numbers, for sun, rain, air, got"):
        label_set(vector, NAMES)


def test_numbers_may_be_names_of_labels():
    assert label_set([0, 1], ("0", "1", "2")) == ("0", "1")
    assert label_set([0, 1, 1], ("0", "1", "2")) == ("1", "2")
    assert label_set("[3 7]") == ("3", "7")
    assert label_set("[12345678901234567891, -2.]") == ("12345678901234567891", "-2")
    assert label_set("[007]") == ("[007]",)
    assert label_set("[1" + " " * 100_000 + "x]") == ("[1" + " " * 100_000 + "x]",)
    assert label_set([0, 1], ("1", "0")) == ("0", "1")


@pytest.mark.parametrize("labels", [[[1, 0], [0, 1]], ["[1 0]", "[0 1]"], ["1 0", "0 1"], np.eye(2), torch.eye(2)])
def test_vectors_of_two_labels_are_refused_or_read(labels):
    data = labelled_rows(["w5", "w6"], labels)
    with pytest.raises(InvalidInput, match=r"a zero and a one in every row: .* multi-hot vectors of two labels"):
        read_examples(data, convert=label_set)
    found = read_examples(data, convert=label_set, names=("a", "b"))
    assert [each.label for each in found] == [("a",), ("b",)]


def test_a_model_of_vectors_keeps_their_order(tiny_bert, trained, tmp_path):
    assert trained.labels == NAMES
    by_name = [[name for name, bit in zip(NAMES, vector, strict=True) if bit] for vector in VECTORS]
    trained.save(tmp_path / "saved")
    again = opened(tmp_path / "saved")
    report = trained.evaluate(rows(by_name), resamples=5).to_dict()
    for model in (trained, again):
        assert model.evaluate(rows(VECTORS), resamples=5).to_dict() == report
    # In another order they are those of the data; the model keeps its own.
    turned = opened(tmp_path / "saved", labels=NAMES[::-1])
    assert turned.labels == NAMES
    assert turned.evaluate(rows([each[::-1] for each in VECTORS]), resamples=5).to_dict() == report
    both = MultiTask.from_pretrained(tiny_bert, device="cpu")
    several = TaskData(rows(VECTORS), rows(VECTORS), target="multi", labels="sun,rain,air")
    both.fit({"a": several, "b": several}, **QUICK)
    assert both.part("a").labels == NAMES
    settings = json.loads((tmp_path / "saved" / "bothways.json").read_text())
    (tmp_path / "saved" / "bothways.json").write_text(json.dumps({**settings, "vector_labels": ["sun", "fog", "air"]}))
    with pytest.raises(CorruptCheckpoint, match="vector_labels"):
        opened(tmp_path / "saved")


def test_other_labels_in_a_further_training_end_the_order_of_vectors(trained, tmp_path):
    again, data = copy(trained), rows([[name] for name in ("fog", "sun") * 6])
    again.fit(data, validation=data, target="multi", **QUICK)
    assert again.labels == ("fog", "sun")
    again.save(tmp_path / "saved")
    with pytest.raises(InvalidInput, match=r"got a multi-hot vector|a zero and a one|does not know"):
        opened(tmp_path / "saved").evaluate(rows([[0, 1]] * 12))
    assert trained.labels == NAMES


@pytest.mark.parametrize("form", [list, tuple, str, np.array, lambda vector: str(np.array(vector))])
def test_one_label_may_be_a_one_hot_vector(tiny_bert, tmp_path, form):
    vectors = [form([int(number % 3 == place) for place in range(3)]) for number in range(12)]
    model = opened(tiny_bert, labels=NAMES)
    model.fit(TEXTS, vectors, validation=rows(vectors), **QUICK)
    assert model.labels == NAMES
    model.save(tmp_path / "saved")
    by_name = rows([NAMES[number % 3] for number in range(12)])
    report = model.evaluate(by_name, resamples=5).to_dict()
    assert opened(tmp_path / "saved").evaluate(rows(vectors), resamples=5).to_dict() == report
    with pytest.raises(InvalidInput, match=r"row 3 .*expected one label, got 2 in .*'multi' takes several"):
        model.evaluate(rows([*vectors[:2], form([1, 0, 1]), *vectors[3:]]))


def test_one_hot_vectors_without_names_are_refused(tiny_bert):
    with pytest.raises(
        InvalidInput, match=r"need the target 'multi', and one-hot vectors labels=\[\.\.\.\] \(--labels a,b,c\)"
    ):
        opened(tiny_bert).fit(rows([[1, 0, 0], [0, 1, 0]] * 6), **QUICK)
    with pytest.raises(InvalidInput, match="labels name classes, but this model predicts a number"):
        opened(tiny_bert, labels="a,b").fit(rows(range(12)), target="regression", **QUICK)


@pytest.mark.parametrize("labels", [np.array(VECTORS), torch.tensor(VECTORS), BITS, BITS.astype(bool)])
def test_labels_are_an_array_or_a_table_of_vectors(tiny_bert, trained, labels):
    named = {} if isinstance(labels, pd.DataFrame) else {"labels": NAMES}
    model = opened(tiny_bert, target="multi", **named)
    model.fit(TEXTS, labels, validation=(TEXTS, labels), **QUICK)
    assert model.labels == NAMES
    assert model.predict_proba(TEXTS).tolist() == trained.predict_proba(TEXTS).tolist()


def test_a_table_of_other_columns_is_refused():
    table = pd.DataFrame({"label": ["a", "b"], "other": ["c", "d"]})
    with pytest.raises(InvalidInput, match="a column of zeros and ones for each label, got DataFrame: choose a column"):
        labelled_rows(["w5", "w6"], table)


def test_declared_labels_are_the_only_ones(tiny_bert, tmp_path, capsys):
    data = [{"text": text, "label": "ab"[number % 2]} for number, text in enumerate(TEXTS)]
    model = opened(tiny_bert, labels=["b", "c", "a"])
    model.fit(data, validation=data, **QUICK)
    assert model.labels == ("b", "c", "a")
    assert model.predict_proba(TEXTS).shape == (12, 3)
    data[4]["label"] = "d"
    for given in ({}, {"validation": data}):
        with pytest.raises(InvalidInput, match=r"row 5 .* is labelled 'd'.* It knows 'b', 'c', 'a'"):
            opened(tiny_bert, labels="b,c,a").fit(data[:4] if given else data, **given, **QUICK)
    with pytest.raises(InvalidInput, match="got 'a' twice"):
        opened(tiny_bert, labels="a,a").fit(data, **QUICK)
    with pytest.raises(InvalidInput, match="target 'regression' predicts a number"):
        opened(tiny_bert, labels="a,b", target="regression")
    numbers = opened(tiny_bert, labels=[2, 1], kind=PairClassifier)
    numbers.fit([{"text_a": text, "text_b": "w9", "label": 1 + at % 2} for at, text in enumerate(TEXTS)], **QUICK)
    assert numbers.labels == (2, 1)
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in data))
    words = (
        "train",
        "classification",
        "--model",
        str(tiny_bert),
        "--train",
        str(tmp_path / "rows.csv"),
        "--device",
        "cpu",
    )
    assert main([*words, "--output", str(tmp_path / "run"), "--labels", "b,c,a"]) == 1
    assert "line 6 of" in (said := capsys.readouterr().err)
    assert "is labelled 'd'" in said


ORDER = ["low", "mid", "high", "never"]
ORDERED = pd.Categorical(["high", "low", "mid"] * 4, categories=ORDER, ordered=True)


def as_dataset(column, feature):
    features = datasets.Features({"text": datasets.Value("string"), "label": feature})
    return datasets.Dataset.from_dict({"text": TEXTS, "label": column}, features=features)


def test_categories_keep_their_order(tiny_bert, tmp_path):
    frame = pd.DataFrame({"text": TEXTS, "label": ORDERED})
    frame.to_parquet(tmp_path / "rows.parquet")
    table, numbers = pa.Table.from_pandas(frame), [2, 0, 1] * 4
    several = as_dataset([[number] for number in numbers], datasets.List(datasets.ClassLabel(names=ORDER)))
    listed = as_dataset(numbers, datasets.ClassLabel(names=ORDER))
    of_columns = [labelled_rows(TEXTS, labels) for labels in (frame["label"], table["label"], listed["label"])]
    enum = pl.DataFrame({"text": TEXTS, "label": pl.Series(ORDERED.tolist(), dtype=pl.Enum(ORDER))})
    sources = [frame, table, tmp_path / "rows.parquet", listed, several, enum, *of_columns]
    for source in sources:
        assert list(category_names(source, "label")) == ORDER
        assert category_names(source, "text") == ()
    for source, target in ((frame, "single"), (tmp_path / "rows.parquet", "single"), (several, "multi")):
        model = opened(tiny_bert, target=target)
        model.fit(source, validation=source, **QUICK)
        assert model.labels == ("low", "mid", "high")  # the categories that occur
    assert category_names(enum.cast({"label": pl.Categorical}), "label") == ()  # those of polars have no order
    model = opened(tiny_bert)
    model.fit(TEXTS, frame["label"], validation=(TEXTS, frame["label"]), **QUICK)
    assert model.labels == ("low", "mid", "high")


def test_tags_of_class_labels_keep_their_order(tiny_bert):
    features = {
        "tokens": datasets.List(datasets.Value("string")),
        "tags": datasets.List(datasets.ClassLabel(names=["X", "O", "N"])),
    }
    data = datasets.Dataset.from_dict(
        {"tokens": [each.split() for each in TEXTS], "tags": [[0, 2]] * 12}, features=datasets.Features(features)
    )
    tagger = opened(tiny_bert, kind=TextTagger)
    tagger.fit(data, validation=data, scheme="plain", **QUICK)
    assert tagger.labels == ("X", "N")


def test_labels_are_declared_as_words_or_with_commas():
    assert declared(["a,b"]) == declared("a, b") == declared(("a", "b")) == ("a", "b")
    assert declared(["a, b", "c"]) == ("a, b", "c")
    assert declared([1, True]) == (1, True)
