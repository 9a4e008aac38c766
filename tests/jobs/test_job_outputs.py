"""Outputs of jobs: the library's own answers, in the order of the rows and with their ids."""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from job_cases import jsonl, lines_in, texts, written

from bothways import Ensemble, MultiTask, SentenceEmbedder, TaskData, jobs
from bothways.errors import InvalidInput
from task_cases import CASES, LONG, QUICK, close, fitted

sys.path.append(str(Path(__file__).resolve().parents[1] / "cli"))  # the calls of the command line
from command_line import ok


def parts(output):
    """The files of the output in order, as index.json lists them; their checksums are checked."""
    index = json.loads((output / "index.json").read_text())
    found = [output / part["file"] for part in index["parts"]]
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in found] == [
        each["sha256"] for each in index["parts"]
    ]
    assert index["rows"] == sum(part["rows"] for part in index["parts"])
    assert index["checksum"] == jobs.status(output).checksum
    return found


def table_of(output):
    """The rows of an output of Parquet files, all of one schema."""
    dataset = pytest.importorskip("pyarrow.dataset").dataset([str(path) for path in parts(output)])
    assert all(fragment.physical_schema == dataset.schema for fragment in dataset.get_fragments())
    return dataset.to_table().to_pylist()


def rows_of(output):
    """The rows of an output of JSON Lines."""
    return [row for path in parts(output) for row in lines_in(path)]


@pytest.fixture
def data(tmp_path):
    jsonl(tmp_path / "data" / "a.jsonl", texts(20))
    jsonl(tmp_path / "data" / "b.jsonl", [*texts(9, 20), {"id": 5, "text": LONG}])
    return tmp_path / "data"


def test_vectors_are_those_of_the_embedder_in_every_format(bert, data, tmp_path, here):
    rows = [*texts(29), {"id": 5, "text": LONG}]
    embedder = SentenceEmbedder.from_pretrained(bert, device="cpu")
    expected = embedder.encode([row["text"] for row in rows])
    work = jobs.Embed(str(bert), opening={"device": "cpu"})
    for format_ in ("npy", "jsonl", "parquet"):
        done = jobs.run(work, data, tmp_path / format_, output_format=format_, block_bytes=150)
        assert (done.state, done.rows, done.rejected) == ("complete", 30, 0)
        assert done.blocks == done.blocks_done > 5
    found = parts(tmp_path / "npy")
    arrays = [np.load(path) for path in found]
    assert {(each.dtype.str, each.shape[1]) for each in arrays} == {("<f4", embedder.dimensions)}
    np.testing.assert_allclose(np.concatenate(arrays), expected, atol=1e-6)
    ids = [line for path in found for line in lines_in(f"{path}.ids.jsonl")]
    lines, cells = rows_of(tmp_path / "jsonl"), table_of(tmp_path / "parquet")
    assert ids == [line["id"] for line in lines] == [row["id"] for row in rows]
    assert [cell["id"] for cell in cells] == [*(row["id"] for row in rows[:-1]), "5"]
    for made in (lines, cells):
        assert np.array_equal(np.array([each["vector"] for each in made], np.float32), np.concatenate(arrays))


def test_vectors_have_no_ids_where_the_rows_have_none(bert, tmp_path, here):
    path = written(tmp_path / "a.txt", "w5 w6\nw7\n")
    jobs.run(jobs.Embed(str(bert)), path, tmp_path / "out")
    assert [each.name for each in (tmp_path / "out" / "parts").iterdir()] == ["part-0000000.npy"]


def test_prompts_come_before_texts(bert, tmp_path, here):
    path = jsonl(tmp_path / "a.jsonl", texts(5))
    jobs.run(jobs.Embed(str(bert), prompt="w9 ", opening={"device": "cpu"}), path, tmp_path / "out")
    expected = SentenceEmbedder.from_pretrained(bert).encode([row["text"] for row in texts(5)], prompt="w9 ")
    np.testing.assert_allclose(np.load(parts(tmp_path / "out")[0]), expected, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_predictions_are_those_of_the_command(model_of, tmp_path, here, name):
    case = CASES[name]
    columns = (*case.inputs, "id")
    asked = [{"id": f"r{n}", **row} for n, row in enumerate(case.questions())]
    asked = [{column: row[column] for column in columns} for row in asked]
    path = jsonl(tmp_path / "a.jsonl", asked)
    ok("predict", model_of(name), "--data", path, "--output", tmp_path / "o.jsonl", "--device", "cpu")
    expected = lines_in(tmp_path / "o.jsonl")
    work = jobs.Predict(str(model_of(name)), opening={"device": "cpu"})
    jobs.run(work, path, tmp_path / "lines", block_bytes=300)
    found = rows_of(tmp_path / "lines")
    assert len(parts(tmp_path / "lines")) > 1
    assert close(found, expected)
    jobs.run(work, path, tmp_path / "cells", output_format="parquet", block_bytes=300)
    for cells, line in zip(table_of(tmp_path / "cells"), found, strict=True):
        values = {key: value for key, value in cells.items() if value is not None}
        values = {
            key: value if isinstance(line[key], str) or not isinstance(value, str) else json.loads(value)
            for key, value in values.items()
        }
        assert close(values, {key: value for key, value in line.items() if value is not None})


def test_models_that_are_made_of_others_predict_too(bert, model_of, tmp_path, here):
    fitted(bert, "classification", seed=1).save(tmp_path / "second", golden=None)
    Ensemble.of([model_of("classification"), tmp_path / "second"], device="cpu").save(tmp_path / "ensemble")
    several = MultiTask.from_pretrained(bert, device="cpu")
    labelled = CASES["classification"].rows(24)
    several.fit({name: TaskData(labelled, validation=labelled[:6]) for name in ("animal", "beast")}, **QUICK)
    several.save(tmp_path / "several")
    path = jsonl(tmp_path / "a.jsonl", [*texts(5), {"id": "bad", "text": ""}, *texts(2)])
    for name in ("ensemble", "several"):
        for format_ in ("jsonl", "parquet"):
            output = tmp_path / f"{name}-{format_}"
            done = jobs.run(jobs.Predict(str(tmp_path / name)), path, output, output_format=format_, block_bytes=150)
            assert (done.rows, done.rejected) == (7, 1)
        lines, cells = rows_of(tmp_path / f"{name}-jsonl"), table_of(tmp_path / f"{name}-parquet")
        ok("predict", tmp_path / name, "--data", jsonl(path, texts(5)), "--output", tmp_path / f"{name}.jsonl")
        assert close(lines[:5], lines_in(tmp_path / f"{name}.jsonl"))
        jsonl(path, [*texts(5), {"id": "bad", "text": ""}, *texts(2)])
        for cell, line in zip(cells, lines, strict=True):
            assert line.keys() <= cell.keys()
            assert all(cell[name] is not None for name, value in line.items() if value is not None)


@pytest.mark.parametrize("options", [{}, {"likelihood": True}, {"likelihood": True, "whole_words": True}])
def test_masks_and_likelihoods_are_those_of_the_command(model_of, tmp_path, here, options):
    path = jsonl(tmp_path / "a.jsonl", [{"id": n, "text": f"w5 [MASK] w{n + 6}"} for n in range(8)])
    words = ["--pseudo-likelihood"] * ("likelihood" in options) + ["--whole-words"] * ("whole_words" in options)
    model = model_of("masked_lm")
    ok("fill-mask", model, "--data", path, "--output", tmp_path / "o.jsonl", "--device", "cpu", *words)
    for format_ in ("jsonl", "parquet"):
        work = jobs.FillMasks(str(model), **options, opening={"device": "cpu"})
        jobs.run(work, path, tmp_path / format_, output_format=format_, block_bytes=80)
    expected, found = lines_in(tmp_path / "o.jsonl"), rows_of(tmp_path / "jsonl")
    assert close(found, expected)
    for cells, line in zip(table_of(tmp_path / "parquet"), found, strict=True):
        assert {key: json.loads(value) if isinstance(value, str) else value for key, value in cells.items()} == line


@pytest.mark.parametrize("format_", ["jsonl", "parquet", "npy"])
@pytest.mark.parametrize("on_empty", ["skip", "null"])
def test_rows_without_a_text_are_left_out_or_null(bert, model_of, tmp_path, here, on_empty, format_):
    rows = texts(6)
    for place in (0, 3):
        rows[place]["text"] = ""
    path = jsonl(tmp_path / "a.jsonl", rows)
    kept = [row["id"] for row in rows if row["text"] or on_empty == "null"]
    if format_ == "npy":
        done = jobs.run(jobs.Embed(str(bert), on_empty=on_empty), path, tmp_path / "out", block_bytes=80)
        vectors = np.concatenate([np.load(part) for part in parts(tmp_path / "out")])
        assert np.isnan(vectors).all(1).tolist() == [on_empty == "null" and n in (0, 3) for n in range(len(kept))]
        ids = [line for part in parts(tmp_path / "out") for line in lines_in(f"{part}.ids.jsonl")]
    else:
        work = jobs.Predict(str(model_of("classification")), on_empty=on_empty)
        done = jobs.run(work, path, tmp_path / "out", output_format=format_)
        found = rows_of(tmp_path / "out") if format_ == "jsonl" else table_of(tmp_path / "out")
        ids = [row["id"] for row in found]
        assert [row["id"] for row in found if row["label"] is None] == (["r0", "r3"] if on_empty == "null" else [])
    assert ids == kept
    assert (done.rows, done.rejected) == (len(kept), 0)


def test_blocks_without_any_text_have_the_columns_of_the_others(model_of, tmp_path, here):
    path = jsonl(tmp_path / "a.jsonl", [{"id": n, "label": "x", "text": "" if n < 6 else "w5"} for n in range(9)])
    work = jobs.Predict(str(model_of("classification")), keep=True, on_empty="null", options={"top": 1})
    jobs.run(work, path, tmp_path / "out", block_bytes=40)
    found = rows_of(tmp_path / "out")
    assert len(parts(tmp_path / "out")) > 3
    assert len({frozenset(row) for row in found}) == 1
    assert {row["input_label"] for row in found} == {"x"}
    assert [row["id"] for row in found if row["label"] is None] == [*range(6)]


def test_kept_columns_stay_in_every_format(model_of, tmp_path, here):
    rows = [{**row, "label": "old", "year": 2000 + n} for n, row in enumerate(texts(4))]
    path, work = jsonl(tmp_path / "a.jsonl", rows), jobs.Predict(str(model_of("classification")), keep=True)
    jobs.run(work, path, tmp_path / "lines")
    jobs.run(work, path, tmp_path / "cells", output_format="parquet")
    for line, cells, row in zip(rows_of(tmp_path / "lines"), table_of(tmp_path / "cells"), rows, strict=True):
        kept = {"text": row["text"], "year": row["year"], "input_label": "old"}
        assert kept.items() <= line.items()
        assert json.loads(cells["input"]) == kept
        assert cells["label"] == line["label"]


def test_columns_and_options_of_predictions_are_used(model_of, tmp_path, here):
    path = jsonl(tmp_path / "a.jsonl", [{"body": row["text"]} for row in texts(4)])
    model = str(model_of("classification"))
    work = jobs.Predict(model, columns={"text": "body"}, options={"top": 1})
    jobs.run(work, path, tmp_path / "out")
    assert [len(row["probabilities"]) for row in rows_of(tmp_path / "out")] == [1] * 4
    for wrong in ({"columns": {"txt": "body"}}, {"options": {"topp": 1}}):
        with pytest.raises(InvalidInput, match="Did you mean"):
            jobs.run(jobs.Predict(model, **wrong), path, tmp_path / "wrong")


def test_the_output_is_the_same_for_any_number_of_workers(bert, data, tmp_path):
    work = jobs.Embed(str(bert))
    one, three = (jobs.run(work, data, tmp_path / str(n), workers=n, block_bytes=100) for n in (1, 3))
    assert one.checksum == three.checksum is not None
    assert [path.read_bytes() for path in parts(tmp_path / "1")] == [
        path.read_bytes() for path in parts(tmp_path / "3")
    ]


def test_the_output_may_lie_in_the_folder_of_the_data(bert, data, here):
    for _ in range(2):
        assert jobs.run(jobs.Embed(str(bert)), data, data / "out", output_format="jsonl").rows == 30


def test_an_output_may_be_a_url_of_a_file(bert, data, tmp_path, here, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jobs.run(jobs.Embed(str(bert)), data, f"file://{tmp_path}/out")
    assert jobs.status(f"file://{tmp_path}/out").rows == 30
    assert parts(tmp_path / "out")
    assert not (tmp_path / "file:").exists()


def test_an_array_is_for_vectors_only(model_of, data, tmp_path):
    for work in (jobs.Predict(str(model_of("classification"))), jobs.FillMasks("x")):
        with pytest.raises(InvalidInput, match="choose jsonl or parquet"):
            jobs.run(work, data, tmp_path / "out", output_format="npy")
    with pytest.raises(InvalidInput, match="the format of the output must be one of"):
        jobs.run(jobs.Embed("x"), data, tmp_path / "out", output_format="csv")
    assert not (tmp_path / "out").exists()
