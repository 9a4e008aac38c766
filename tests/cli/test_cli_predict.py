"""``predict`` on rows without a text, with the labels that come first, and with six digits."""

import csv
import io
import itertools
import json
from dataclasses import asdict

import numpy as np
import pytest
from command_line import call, fails, ok, read_jsonl, read_table, rows, write_jsonl
from jsonschema import Draft202012Validator

from bothways.data import read_rows
from bothways.errors import EmptyInput, InvalidInput
from bothways.progress import six_digits
from bothways.tasks import TextClassifier, predict_or_none
from bothways.tasks.registry import SPECS
from bothways.tasks.schemas import DIALECT, Schemas


@pytest.fixture
def gaps(tmp_path):
    """Rows of which some have no text: the first two, one in the middle and the last."""
    made = rows(6, 2)
    for place, nothing in ((0, ""), (1, None), (3, " \t"), (5, "")):
        made[place]["text"] = nothing
    return write_jsonl(tmp_path / "gaps.jsonl", made)


@pytest.fixture
def model(run):
    return TextClassifier.from_pretrained(run, device="cpu")


def test_a_row_without_a_text_ends_a_prediction_and_the_message_names_the_option(run, gaps):
    fails(1, ("line 1 of", "--on-empty skip or --on-empty null"), "predict", run, "--data", gaps)


def test_rows_without_a_text_are_skipped_or_null_and_counted(run, gaps):
    skipped = call("predict", run, "--data", gaps, "--on-empty", "skip")
    assert [line["id"] for line in skipped.lines()] == ["r2", "r4"]
    assert skipped.err == "4 rows without a text: left out.\n"
    nulls = call("predict", run, "--data", gaps, "--on-empty", "null")
    assert nulls.err == "4 rows without a text: their predictions are null.\n"
    lines = nulls.lines()
    assert [line["id"] for line in lines] == [f"r{number}" for number in range(6)]
    assert [line for line in lines if line["label"]] == skipped.lines()
    for line in lines:
        assert line.keys() == lines[2].keys()
        assert line["label"] or set(line.values()) == {line["id"], None}


def test_a_file_of_another_encoding_or_format_is_read_as_the_message_says(run, tmp_path, monkeypatch):
    table = tmp_path / "a.csv"
    table.write_bytes("id;text\nr1;w5 é\n".encode("cp1252"))
    fails(1, ("line 2 of", "give --encoding cp1252 (in Python"), "predict", run, "--data", table)
    (line,) = call("predict", run, "--data", table, "--encoding", "cp1252").lines()
    assert line["id"] == "r1"
    monkeypatch.setattr("sys.stdin", io.StringIO("id;text\nr1;w5\n"))
    fails(1, "--format csv", "predict", run, "--data", "-")
    fails(1, "unknown encoding 'cp'", "predict", run, "--data", table, "--encoding", "cp")


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_a_table_has_empty_cells_for_rows_without_a_text(run, gaps, tmp_path, kind):
    output = tmp_path / f"out.{kind}"
    ok("predict", run, "--data", gaps, "--output", output, "--on-empty", "null", "--keep")
    with output.open(newline="") as stream:
        table = list(csv.DictReader(stream, delimiter="\t" if kind == "tsv" else ","))
    assert [row["id"] for row in table] == [f"r{number}" for number in range(6)]
    assert [bool(row["probability"]) for row in table] == [False, False, True, False, True, False]


def test_a_file_without_any_text_is_null_row_by_row(run, tmp_path):
    data = write_jsonl(tmp_path / "d.jsonl", [{"id": "a", "text": ""}, {"id": "b", "text": ""}])
    assert call("predict", run, "--data", data, "--on-empty", "null").lines() == [
        {"id": "a", "prediction": None},
        {"id": "b", "prediction": None},
    ]


def test_blank_lines_of_a_text_file_are_rows_without_a_text(run, tmp_path):
    (tmp_path / "a.txt").write_text("w6 w8\n\nw5\n")
    outcome = call("predict", run, "--data", tmp_path / "a.txt", "--on-empty", "skip")
    assert len(outcome.lines()) == 2
    assert "1 row without a text" in outcome.err


def test_a_missing_column_is_no_row_without_a_text(run, tmp_path):
    data = write_jsonl(tmp_path / "d.jsonl", [{"id": "a", "txt": "w6"}])
    fails(1, "has no column 'text'", "predict", run, "--data", data, "--on-empty", "skip")


def test_the_library_gives_none_for_them_in_flat_memory(model, gaps):
    found = list(predict_or_none(model, read_rows(gaps)))
    assert [each is None for each in found] == [True, True, False, True, False, True]
    with pytest.raises(EmptyInput, match="line 1"):
        list(model.predict_stream(read_rows(gaps)))
    read = 0

    def endless():
        nonlocal read
        for row in itertools.cycle(read_rows(gaps)):
            read += 1
            yield row

    assert sum(each is None for each in itertools.islice(predict_or_none(model, endless()), 60)) == 40
    assert read < 1_000_000


def test_top_gives_the_labels_that_come_first(run, model, tmp_path):
    text = "w6 w8 w10"
    whole = model.predict(text)
    found = model.predict(text, top=1)
    assert found.probabilities == {whole.label: whole.probability}
    assert (found.label, found.out_of_domain_score) == (whole.label, whole.out_of_domain_score)
    (line,) = call("predict", run, text, "--top", 1).lines()
    assert line["probabilities"] == six_digits({whole.label: whole.probability})
    # A set with a coverage is made of all labels, however few are given.
    assert model.predict(text, top=1, coverage=0.9).label_set == model.predict(text, coverage=0.9).label_set
    with pytest.raises(InvalidInput, match="top must be at least 1"):
        model.predict(text, top=0)
    with pytest.raises(InvalidInput, match="leave top out"):
        model.predict_proba([text], top=1)


def test_a_table_has_a_column_for_each_place_of_the_labels_that_come_first(run, files, tmp_path):
    output = tmp_path / "out.csv"
    ok("predict", run, "--data", files / "test.jsonl.gz", "--output", output, "--top", 2)
    table = read_table(output)
    assert {row["label_1"] for row in table} == {"even", "odd"}
    for row in table:
        assert (row["label_1"], row["probability_1"]) == (row["label"], row["probability"])
        assert float(row["probability_1"]) + float(row["probability_2"]) == pytest.approx(1, abs=2e-6)
        assert "probabilities_even" not in row


def test_a_table_has_the_texts_beside_the_predictions(run, gaps, tmp_path):
    output = tmp_path / "out.csv"
    ok("predict", run, "--data", gaps, "--output", output, "--on-empty", "null")
    table = read_table(output)
    assert list(table[0])[:3] == ["id", "text", "label"]
    texts = [each["text"] for each in read_jsonl(gaps)]
    assert [row["text"] for row in table] == [text or "" for text in texts]
    assert "text" not in call("predict", run, "--data", gaps, "--on-empty", "skip").lines()[0]


@pytest.mark.parametrize("name", ["-", "out.jsonl", "out.csv"])
def test_numbers_have_six_digits_in_every_form(run, tmp_path, name):
    output = "-" if name == "-" else tmp_path / name
    outcome = call("predict", run, "w6 w8 w10 w7", "--output", output)
    written = outcome.out if name == "-" else output.read_text()
    if name.endswith("csv"):
        (row,) = csv.DictReader(written.splitlines())
        numbers = [row["probability"], row["out_of_domain_score"], row["probabilities_even"]]
    else:
        row = json.loads(written)
        numbers = [str(row["probability"]), str(row["out_of_domain_score"]), *map(str, row["probabilities"].values())]
    assert all(len(each.split("e")[0].replace(".", "").lstrip("0")) <= 6 for each in numbers)
    assert any(len(each) > 6 for each in numbers)


def test_columns_that_are_kept_stay_as_they_were(run, tmp_path):
    data = write_jsonl(tmp_path / "d.jsonl", [{"text": "w6", "price": 0.12345678901234568}])
    (line,) = call("predict", run, "--data", data, "--keep").lines()
    assert line["price"] == 0.12345678901234568


def test_rows_without_a_text_have_no_vector_or_nan(files, gaps, tmp_path):
    words = ("embed", files / "tiny", "--data", gaps, "--output")
    fails(1, "--on-empty skip or --on-empty null", *words, tmp_path / "a.npy")
    assert "4 rows without a text: left out." in call(*words, tmp_path / "a.npy", "--on-empty", "skip").err
    assert "their vectors are null" in call(*words, tmp_path / "b.npy", "--on-empty", "null").err
    some_MD, all_ND = np.load(tmp_path / "a.npy"), np.load(tmp_path / "b.npy")
    assert np.isnan(all_ND).all(axis=1).tolist() == [True, True, False, True, False, True]
    np.testing.assert_array_equal(all_ND[[2, 4]], some_MD)
    ok(*words, tmp_path / "b.jsonl", "--on-empty", "null")
    lines = [each["vector"] for each in read_jsonl(tmp_path / "b.jsonl")]
    assert [each is None for each in lines] == [True, True, False, True, False, True]


# --- schemas ---


def test_printed_predictions_fit_the_printed_schema(run, files):
    schemas = call("schema", run).json()
    (row,) = read_rows([{"text": "w5 w7"}])
    assert Draft202012Validator(schemas["input"]).is_valid(row.values)
    fits = Draft202012Validator(schemas["prediction"])
    for options in ({}, {"top": 1}, {"coverage": 0.9}):
        Draft202012Validator(schemas["options"]).validate(options)
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        for line in call("predict", run, "w5 w7", "w6 w8", *words).lines():
            fits.validate(line)
            assert not fits.is_valid({**line, "id": "a"})


@pytest.mark.parametrize("task", SPECS)
def test_the_name_of_a_task_stands_for_its_schemas(task):
    expected = {name: {"$schema": DIALECT, **each} for name, each in asdict(Schemas.of(SPECS[task])).items()}
    assert call("schema", task.replace("_", "-")).json() == expected


def test_a_schema_needs_a_trained_model(files):
    assert call("schema", files / "tiny").code != 0
    misspelt = call("schema", "taging")
    assert (misspelt.code, "Did you mean 'tagging'?" in misspelt.err) == (1, True)
