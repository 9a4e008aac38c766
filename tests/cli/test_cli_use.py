"""What one does with a trained run or a model: evaluate, predict, embed, search, tokenize."""

import csv
import gzip
import io
import json
import os
import re
import shlex
import shutil
import sys

import numpy as np
import pytest
import torch
from command_line import call, fails, ok, read_jsonl, read_table, rows, saved_of, write_jsonl
from safetensors.torch import load_file

from bothways.errors import InvalidInput
from bothways.progress import six_digits
from bothways.tasks import SentenceEmbedder, TextClassifier


@pytest.fixture
def test_data(files):
    return files / "test.jsonl.gz"


def as_stdin(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


REFUSED = [
    (1, "held-out rows", "predict {run} w6 --coverage 0.999"),
    (1, "--on-overflow window", "predict {run} '" + "w6 " * 40 + "' --on-overflow error"),
    (1, "is a file, where a folder was expected. Choose another path.", "predict {run} w6 --output {data}/out.jsonl"),
    (1, "a folder is needed", "train classification --model {tiny} --train {data} --output {data}/run"),
    (1, "Did you mean --label label?", "evaluate {run} --data {data} --label lable"),
    (1, "evaluate it with the task 'similarity'", "evaluate {tiny} --data {data}"),
    (1, "On the command line: bothways train --help.", "evaluate {tiny} --data {data}"),
    (1, "nobody/nothing", "tokenize w6 --compare {tiny} nobody/nothing"),
    (2, "so leave out the task 'rankin'. Did you mean --task ranking?", "evaluate {run} --data {data} --task rankin"),
    (2, "Did you mean 'even'?", "evaluate {run} --data {data} --at-recall 0.9 --at-label evn"),
    (2, "--at-label names the class for --at-precision", "evaluate {run} --data no.jsonl --at-label odd"),
    (
        2,
        "expected the class 'even' or 'odd', got 'ood'",
        "evaluate {run} --data no.jsonl --at-precision 0.9 --at-label ood",
    ),
    (2, "cannot be used with --task ranking", "evaluate {run} --data no.jsonl --at-precision 0.9 --task ranking"),
    (2, "--at-precision", "evaluate {run} --data no.jsonl --at-precision 0"),
    (2, "--at-recall", "evaluate {run} --data no.jsonl --at-recall 1.1"),
    (2, "--threshold is 0.3, but this model", "evaluate {run} --data {data} --threshold 0.3"),
    (2, "--scheme can be given for models that tag words", "evaluate {run} --data {data} --scheme BIO"),
    (2, "--beam can be given for models that fill masks, but this model does not", "predict {run} w5 --beam 2"),
    (2, "--dimensions can only be given for models that compare vectors", "predict {run} w5 --dimensions 2"),
    (2, "--pooling and --dimensions can only be given", "evaluate {run} --data {data} --dimensions 8 --pooling cls"),
    (2, "between 1 and 24, got 25", "embed {tiny} --data {data} --output v.npy --dimensions 25"),
    (2, "between 1 and the model's limit, 18", "embed {tiny} --data {data} --output v.npy --max-length 10000"),
    (2, "between 0 and 5, got 6", "embed {tiny} --data {data} --output v.npy --max-length 6 --stride 6"),
    (2, "cannot both be standard input", "evaluate {run} --data - --out-of-domain -"),
    (2, "cannot both be standard input", "adapt --model {tiny} --data - --validation - --output r"),
    (2, "cannot both be standard input", "train classification --model {tiny} --train - --validation - --output r"),
    (2, "BMES", "train tagging --model {tiny} --train {data} --output r --scheme BMES"),
    *((2, "--coverage", f"predict {{run}} w6 --coverage {each}") for each in ("0", "1", "1.5", "much")),
]


@pytest.mark.parametrize(("code", "said", "line"), REFUSED)
def test_what_is_refused_says_why_and_leaves_nothing(files, run, test_data, tmp_path, monkeypatch, code, said, line):
    monkeypatch.chdir(tmp_path)
    words = (word.format(run=run, tiny=files / "tiny", data=test_data) for word in shlex.split(line))
    fails(code, said, *words)
    assert list(tmp_path.iterdir()) == []


# --- evaluate ---


def test_evaluate_gives_the_numbers_of_the_library(run, test_data):
    report = TextClassifier.from_pretrained(run, device="cpu").evaluate(test_data)
    given = call("evaluate", run, "--data", test_data, "--json").json()
    assert given == json.loads(json.dumps(report.to_dict()))
    assert {"accuracy", "macro_f1", "ece"} <= given.keys()
    assert given["baseline"]["name"] == "linear model of frozen hidden states"
    assert given["baseline"]["accuracy_difference"] == pytest.approx(given["accuracy"] - given["baseline"]["accuracy"])


def test_evaluate_prints_a_table_for_people(run, test_data):
    out = call("evaluate", run, "--data", test_data, "--resamples", 20).out
    assert out.startswith("30 rows, 2 classes")
    assert "accuracy" in out
    assert "baseline on the same rows, linear model of frozen hidden states" in out
    assert "baseline" not in call("evaluate", run, "--data", test_data, "--resamples", 20, "--no-baseline").out


def test_an_unknown_label_at_evaluation_is_named_with_its_row(run, tmp_path):
    data = write_jsonl(tmp_path / "d.jsonl", [{"text": "w5", "label": "odd"}, {"text": "w6", "label": "prime"}])
    outcome = call("evaluate", run, "--data", data)
    assert outcome.code == 1
    assert re.search(r"line 2 of '.*' is labelled 'prime'", outcome.err)


def test_columns_are_those_of_the_training_unless_others_are_named(files, run, test_data, tmp_path):
    other = shutil.copytree(run, tmp_path / "other")
    saved = saved_of(other)
    saved["card"]["columns"] = {"text": ["body"], "label": "class"}
    (other / "bothways.json").write_text(json.dumps(saved))
    made = rows(30, 2)
    data = write_jsonl(tmp_path / "d.jsonl", [{"body": row["text"], "class": row["label"]} for row in made])
    as_trained = call("evaluate", other, "--data", data, "--json").json()
    assert as_trained == call("evaluate", run, "--data", test_data, "--json").json()
    assert call("predict", other, "--data", data).out == call("predict", run, "--data", data, "--text", "body").out
    ok("predict", other, "w6 w8")
    fails(1, "no column 'body'", "predict", other, "--data", test_data)
    ok("predict", other, "--data", test_data, "--text", "text")


def test_every_command_that_reads_weights_takes_a_pickle_when_allowed(files, tmp_path):
    old = shutil.copytree(files / "tiny", tmp_path / "old")
    weights = load_file(old / "model.safetensors")
    (old / "model.safetensors").unlink()
    torch.save(weights, old / "pytorch_model.bin")
    data = write_jsonl(tmp_path / "d.jsonl", [{"text": "w5 w6"}])
    words = ("embed", old, "--data", data, "--output", tmp_path / "v.npy")
    assert "--allow-pickle" in call(*words).err
    ok(*words, "--allow-pickle")
    index = ("--data", data, "--output", tmp_path / "index", "--allow-pickle")
    ok("search", "build", "--model", old, *index)
    ok("search", "query", tmp_path / "index", "w5", "--allow-pickle")


def test_a_row_is_named_by_its_file_and_line_also_with_a_format_given(run, tmp_path):
    (tmp_path / "d.data").write_text("text,label\nw5,odd\n ,odd\n")
    outcome = call("evaluate", run, "--data", tmp_path / "d.data", "--format", "csv")
    assert "line 3 of " in outcome.err
    assert "d.data" in outcome.err


def test_a_truncated_model_is_refused(run, test_data, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    weights = tmp_path / "run" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    outcome = fails(1, "model.safetensors", "evaluate", tmp_path / "run", "--data", test_data)
    assert "Traceback" not in outcome.err


# --- predict ---


def test_predict_writes_one_object_a_line_with_the_rows_ids(run, test_data, tmp_path):
    outcome = ok("predict", run, "--data", test_data, "--output", tmp_path / "out.jsonl")
    assert outcome.out == ""
    written = read_jsonl(tmp_path / "out.jsonl")
    texts = [row["text"] for row in rows(30, 2)]
    expected = TextClassifier.from_pretrained(run, device="cpu").predict(texts)
    assert [row["id"] for row in written] == [f"r{number}" for number in range(30)]
    for row, prediction in zip(written, expected, strict=True):
        assert row["label"] == prediction.label
        assert row["probability"] == six_digits(prediction.probability)
        assert row["probabilities"] == six_digits(prediction.probabilities)


def test_predict_reads_texts_from_the_command_line(run):
    texts = [row["text"] for row in rows(2, 2)]
    first, second = call("predict", run, *texts).lines()
    expected = TextClassifier.from_pretrained(run, device="cpu").predict(texts)
    assert [first["probabilities"], second["probabilities"]] == six_digits([each.probabilities for each in expected])


def test_probabilities_that_nothing_calibrates_are_called_so(run, tmp_path):
    assert call("predict", run, "w6 w8").err == ""
    foreign = shutil.copytree(run, tmp_path / "foreign")
    (foreign / "bothways.json").unlink()
    said = "the probabilities of this model are not calibrated on held-out rows.\n"
    outcome = call("predict", foreign, "w6 w8")
    assert (outcome.code, outcome.err) == (0, said)
    assert call("predict", foreign, "w6 w8", "--output", tmp_path / "o.jsonl").err.endswith(said)
    assert call("predict", foreign, "w6 w8", "--quiet").err == ""


@pytest.mark.parametrize(
    ("content", "more"),
    [(b'{"text": "w6 w8"}\n{"text": "w5"}\n', ["--output", "-"]), (gzip.compress(b"w6 w8\nw5\n"), ["--format", "txt"])],
    ids=["plain", "compressed"],
)
def test_predict_reads_standard_input_compressed_or_not(run, monkeypatch, content, more):
    as_stdin(monkeypatch, content)
    assert len(call("predict", run, "--data", "-", *more).lines()) == 2


def test_keep_loses_no_column_of_the_input(run, test_data):
    first = call("predict", run, "--data", test_data, "--keep").lines()[0]
    row = rows(1, 2)[0]
    assert first["text"] == row["text"]
    assert first["input_label"] == row["label"]
    assert first["id"] == "r0"


def test_keep_loses_no_column_of_an_earlier_keep(run, tmp_path):
    gold = write_jsonl(tmp_path / "gold.jsonl", [{"text": "w6 w8", "label": "GOLD"}])
    once, twice, thrice = (tmp_path / f"{number}.jsonl" for number in (1, 2, 3))
    for data, output in ((gold, once), (once, twice), (twice, thrice)):
        ok("predict", run, "--data", data, "--keep", "--output", output)
    first, second, third = (json.loads(path.read_text()) for path in (once, twice, thrice))
    assert first["input_label"] == second["input_label"] == third["input_label"] == "GOLD"
    assert second["input_input_label"] == second["label"] == first["label"]
    # Each answer has the same names, and all of them are there from each of the passes.
    assert len(second) == len(first) + len(first.keys() - {"text", "input_label"})
    assert len(third) == len(second) + len(first.keys() - {"text", "input_label"})


@pytest.mark.parametrize("ids", [["a", None, "c"], ["a", None, None]])
@pytest.mark.parametrize("keep", [[], ["--keep"]])
def test_a_row_without_an_id_has_an_empty_cell_in_a_table(run, tmp_path, ids, keep):
    made = [{"text": f"w6 w{number}"} | ({} if each is None else {"id": each}) for number, each in enumerate(ids)]
    data, output = write_jsonl(tmp_path / "d.jsonl", made), tmp_path / "o.csv"
    ok("predict", run, "--data", data, "--output", output, *keep)
    with output.open(newline="") as stream:
        assert [row["id"] for row in csv.DictReader(stream)] == [each or "" for each in ids]
    lines = call("predict", run, "--data", data, *keep).lines()
    assert ["id" in line for line in lines] == [each is not None for each in ids]
    for row in made:
        row.pop("id", None)
    write_jsonl(data, made)
    ok("predict", run, "--data", data, "--output", output, "--overwrite", *keep)
    with output.open(newline="") as stream:
        assert "id" not in next(csv.reader(stream))


def test_predictions_can_be_a_table(run, test_data, tmp_path):
    ok("predict", run, "--data", test_data, "--output", tmp_path / "out.csv")
    table = read_table(tmp_path / "out.csv")
    assert len(table) == 30
    assert table[0]["label"] in ("even", "odd")
    assert float(table[0]["probabilities_even"]) + float(table[0]["probabilities_odd"]) == pytest.approx(1)
    assert not any("{" in cell or "[" in cell for row in table for cell in row.values())


def test_predict_takes_json_like_other_commands(run):
    assert call("predict", run, "w6 w8", "--json") == call("predict", run, "w6 w8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--output", "x.conll"], "a .conll output (x.conll) is for models that tag words"),
        (["--scheme", "BIOES"], "--scheme is for models that tag words"),
        (["--output", "x.parquet"], "the format of the output must be one of 'jsonl', 'csv', 'tsv'"),
        (["--output", "x"], "does not say what format to write"),
    ],
)
def test_a_form_that_the_answers_do_not_have_is_bad_usage(run, monkeypatch, tmp_path, words, said):
    monkeypatch.chdir(tmp_path)
    fails(2, said, "predict", run, "w6 w8", *words)
    assert not list(tmp_path.iterdir())


def test_a_bad_row_leaves_the_old_output_alone(run, tmp_path):
    data = write_jsonl(tmp_path / "d.jsonl", [{"text": "w5"}, {"text": 5}])
    (tmp_path / "out.jsonl").write_text("old\n")
    fails(1, "line 2", "predict", run, "--data", data, "--output", tmp_path / "out.jsonl", "--overwrite")
    assert (tmp_path / "out.jsonl").read_text() == "old\n"


def test_no_hint_is_given_that_would_not_help(files, tmp_path):
    rows = [{"question": "w6 " * 40, "context": f"w7 w{number}", "answers": []} for number in range(10, 16)]
    data = write_jsonl(tmp_path / "d.jsonl", rows)
    words = ("train", "question-answering", "--model", files / "tiny", "--train", data, "--output", tmp_path / "run")
    outcome = fails(1, "leaves no room", *words, "--device", "cpu")
    assert "--on-overflow" not in outcome.err


# --- embed ---


def test_embed_writes_the_array_of_the_library(files, test_data, tmp_path):
    out = tmp_path / "vectors.npy"
    ok("embed", files / "tiny", "--data", test_data, "--text", "text", "--output", out)
    expected = SentenceEmbedder.from_pretrained(files / "tiny", device="cpu").encode(
        [row["text"] for row in rows(30, 2)]
    )
    array = np.load(out)
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, expected)


def test_embed_says_how_much_was_cut(files, test_data, tmp_path):
    words = ["--data", test_data, "--output", tmp_path / "v.npy", "--max-length", 3, "--on-overflow", "truncate"]
    result = ok("embed", files / "tiny", *words)
    assert re.search(r"^warning: .* were truncated: \d+ tokens were not read\.$", result.err, re.M)


def test_embed_and_search_build_say_what_they_wrote_as_json(files, test_data, tmp_path):
    out, index = tmp_path / "v.npy", tmp_path / "index"
    result = call("embed", files / "tiny", "--data", test_data, "--output", out, "--json")
    vectors = np.load(out)
    written = {"dimensions": vectors.shape[1], "prompt": "", "output": str(out)}
    assert json.loads(result.out) == {"vectors": len(vectors), **written}
    result = call("search", "build", "--model", files / "tiny", "--data", test_data, "--output", index, "--json")
    assert json.loads(result.out) == {"texts": len(vectors), "dimensions": vectors.shape[1], "output": str(index)}


def test_vectors_as_json_lines_are_the_same_numbers(files, test_data, tmp_path):
    for name in ("v.npy", "v.jsonl.gz"):
        words = ["--data", test_data, "--output", tmp_path / name, "--pooling", "cls", "--dimensions", 7]
        ok("embed", files / "tiny", *words)
    with gzip.open(tmp_path / "v.jsonl.gz", "rt") as stream:
        vectors = np.array([json.loads(line)["vector"] for line in stream], dtype=np.float32)
    assert vectors.shape == (30, 7)
    np.testing.assert_array_equal(vectors, np.load(tmp_path / "v.npy"))


@pytest.mark.parametrize("count", [1, 9, 10, 1000, 123_456])
def test_the_header_of_an_array_fits_any_number_of_rows(tmp_path, count):
    from bothways.cli.predictions.output_files import write_npy

    vector = np.arange(2, dtype=np.float32)
    assert write_npy(str(tmp_path / "v.npy"), (vector for _ in range(count)), 2) == count
    array = np.load(tmp_path / "v.npy")
    assert array.shape == (count, 2)
    assert (array == vector).all()


def test_an_array_is_not_written_to_a_pipe(tmp_path):
    from bothways.cli.predictions.output_files import write_npy

    reading, writing = os.pipe()
    try:
        with pytest.raises(InvalidInput, match=r"cannot be written to the pipe .* write \.jsonl"):
            write_npy(f"/dev/fd/{writing}", iter([]), 2)
    finally:
        os.close(reading)
        os.close(writing)


def test_a_bad_row_leaves_no_array(files, tmp_path):
    data = write_jsonl(tmp_path / "d.jsonl", [{"text": "w5"}, {"text": " "}])
    assert call("embed", files / "tiny", "--data", data, "--output", tmp_path / "v.npy").code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["d.jsonl"]


# --- search ---


def test_an_index_is_searched_with_its_own_model_and_pooling(files, test_data, tmp_path, monkeypatch):
    monkeypatch.chdir(files)
    words = ["--data", test_data, "--output", tmp_path / "index", "--pooling", "max", "--dimensions", 9]
    ok("search", "build", "--model", "tiny", *words)
    monkeypatch.chdir(tmp_path)
    assert call("search", "query", tmp_path / "index", "w6 w8", "--json").json()[0]["rank"] == 1


def test_a_moved_model_is_named_and_another_one_refused(files, index, tmp_path):
    import tiny_models

    shutil.copytree(files / "tiny", tmp_path / "moved")
    ok("search", "query", index, "w6", "--model", tmp_path / "moved")
    tiny_models.write_checkpoint(tmp_path / "other", seed=1)
    fails(1, "fingerprint", "search", "query", index, "w6", "--model", tmp_path / "other")


# --- tokenize ---


def test_tokenize_shows_tokens_ids_and_counts(files):
    (given,) = call("tokenize", files / "tiny", "w6 w8", "--json").lines()
    assert given == {"count": 4, "windows": 1, "tokens": ["[CLS]", "w6", "w8", "[SEP]"], "ids": [1, 6, 8, 2]}


def test_tokenize_reports_texts_longer_than_the_model_reads(files, tmp_path):
    assert "more than the limit of 18" in call("tokenize", files / "tiny", "w6 " * 17).out
    data = write_jsonl(tmp_path / "d.jsonl", [{"text": "w6 " * 16}, {"text": "w6 " * 17}])
    out = call("tokenize", files / "tiny", "--data", data).out
    assert "longer than 18: 1 (50.0%)" in out
    assert "longest  19" in out


def test_tokenize_needs_no_weights(files, tmp_path):
    shutil.copytree(files / "tiny", tmp_path / "tiny")
    (tmp_path / "tiny" / "model.safetensors").unlink()
    ok("tokenize", tmp_path / "tiny", "w6")
