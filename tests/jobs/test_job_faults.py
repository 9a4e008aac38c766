"""Jobs over data with faults: rows that are rejected, with the reasons."""

import json
import math
import os
import pickle
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from job_cases import jsonl, lines_in, texts, written

from bothways import errors, jobs
from bothways.errors import InvalidInput, OutOfDisk
from bothways.jobs.work import OpenedWork


def rejected_in(output):
    return [(Path(each["file"]).name, each["line"], each["reason"]) for each in lines_in(output / "rejected.jsonl")]


def test_rows_that_cannot_be_read_or_embedded_are_listed(embed, tmp_path, here):
    lines = [json.dumps(row) for row in texts(20)]
    lines[2], lines[5], lines[7] = "{", '{"id": 3}', '{"text": "  "}'
    lines[11], lines[15], lines[18] = '{"text": "\xff"}', '{"text": "w5 \\ud800"}', '{"text": "w5", "id": "\\ud800"}'
    path = written(tmp_path / "a.jsonl", "\n".join(lines).encode("latin-1"))
    other = jsonl(tmp_path / "b.jsonl", [*texts(2), {"text": "w5", "id": math.nan}])
    for size in (60, 10**6):
        output = tmp_path / str(size)
        done = jobs.run(embed, [path, other], output, block_bytes=size)
        found = rejected_in(output)
        assert [(name, line) for name, line, _ in found] == [
            *(("a.jsonl", n) for n in (3, 6, 8, 12, 16, 19)),
            ("b.jsonl", 3),
        ]
        assert (done.rows, done.rejected) == (16, 7)
        assert not any("line " in reason.replace("of the line", "") or "offset" in reason for _, _, reason in found)
        said = (
            "not valid JSON",
            "'text'",
            "white space",
            "byte 0xff at byte 11 of the line",
            "surrogate",
            "surrogate",
            "not JSON",
        )
        for (_, _, reason), part in zip(found, said, strict=True):
            assert part in reason


def test_a_row_of_many_megabytes_is_read(embed, tmp_path, here):
    path = jsonl(tmp_path / "a.jsonl", [*texts(3), {"id": "long", "text": "w5 " * 3_500_000}, *texts(3)])
    opening = {**embed.opening, "on_overflow": "truncate"}
    done = jobs.run(jobs.Embed(embed.model, opening=opening), path, tmp_path / "out")
    assert (done.rows, done.rejected) == (7, 0)
    assert done.blocks > 10


class Odd:
    """Work with some values that cannot be written, and rows that fail in their own ways."""

    verb = "embed"

    def __init__(self, model):
        self.model, self.opening = model, {}

    def open(self):
        def compute(rows):
            for row in rows:
                match row.values["text"]:
                    case "memory":
                        raise MemoryError
                    case "value":
                        raise ValueError("an odd value")
                    case "disk":
                        raise OutOfDisk("the disk is full")
            odd = {"nan": math.nan, "infinite": math.inf, "date": date(2024, 1, 1), "half": "\ud800"}
            return [{"score": odd.get(row.values["text"], 0.5)} for row in rows]

        return OpenedWork(("text",), compute, {"score": "json"})


@pytest.fixture
def odd(monkeypatch, bert):
    monkeypatch.setattr("bothways.jobs.running.identity_of", lambda *_: {"verb": "odd"})
    return Odd(str(bert))


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_rows_with_results_that_cannot_be_written_are_rejected(odd, tmp_path, here, format_):
    values = ["w", "nan", "w", "infinite", "date", "w", "half", "memory", "value", "w"]
    path = jsonl(tmp_path / "a.jsonl", [{"text": value} for value in values])
    done = jobs.run(odd, path, tmp_path / "out", output_format=format_)
    found = rejected_in(tmp_path / "out")
    assert [line for _, line, _ in found] == [2, 4, 5, 7, 8, 9]
    assert done.rows == 4
    for (_, _, reason), said in zip(
        found, ("not JSON", "not JSON", "date", "surrogate", "MemoryError", "an odd value"), strict=True
    ):
        assert said in reason


def test_a_full_disk_is_no_rejected_row(odd, tmp_path, here):
    path = jsonl(tmp_path / "a.jsonl", [{"text": "w"}, {"text": "disk"}])
    with pytest.raises(OutOfDisk):
        jobs.run(odd, path, tmp_path / "out", output_format="jsonl")


def test_a_prediction_that_is_not_finite_is_rejected(model_of, tmp_path, here, monkeypatch):
    from bothways.tasks.task import Task

    whole, wrong = Task.predict_stream, [None]

    def spoilt(self, *words, **named):
        for answer in whole(self, *words, **named):
            yield replace(answer, probability=math.nan) if answer.label == wrong[0] else answer

    monkeypatch.setattr(Task, "predict_stream", spoilt)
    path = jsonl(tmp_path / "a.jsonl", texts(10))
    work = jobs.Predict(str(model_of("classification")))
    jobs.run(work, path, tmp_path / "clean")
    answers = [row["label"] for row in lines_in(tmp_path / "clean" / "parts" / "part-0000000.jsonl")]
    assert len({*answers}) > 1
    wrong[:] = answers[:1]
    done = jobs.run(work, path, tmp_path / "out")
    bad = [n for n, label in enumerate(answers, 1) if label == answers[0]]
    assert done.rows == 10 - len(bad)
    assert rejected_in(tmp_path / "out") == [
        ("a.jsonl", n, "the row has a prediction that is not finite.") for n in bad
    ]


def test_a_job_stops_at_a_rejected_row_and_goes_on_without_it(embed, tmp_path, here):
    lines = [json.dumps(row) for row in texts(40)]
    lines[20] = "{"
    path = written(tmp_path / "a.jsonl", "\n".join(lines))
    with pytest.raises(InvalidInput, match=r"a\.jsonl', line 21: .*JSON.*--on-error reject"):
        jobs.run(embed, path, tmp_path / "out", on_error="stop", block_bytes=300)
    stopped = jobs.status(tmp_path / "out")
    assert (stopped.state, stopped.rejected) == ("interrupted", 0)
    assert 0 < stopped.blocks_done < stopped.blocks
    before, here[:] = [*here], []
    done = jobs.run(embed, path, tmp_path / "out", block_bytes=300)
    assert len(here) == stopped.blocks - stopped.blocks_done
    assert here[0] == before[-1]
    assert (done.rows, done.rejected) == (39, 1)
    clean = jobs.run(embed, path, tmp_path / "clean", block_bytes=300)
    assert clean.checksum == done.checksum


@pytest.mark.parametrize("count", [3, 1500])
def test_a_job_without_a_good_row_says_why(embed, tmp_path, here, count):
    path = jsonl(tmp_path / "a.jsonl", [{"body": "w5"}] * count)
    with pytest.raises(InvalidInput, match=r"rejected: .*a\.jsonl', line 1: .*'text'"):
        jobs.run(embed, path, tmp_path / "out", block_bytes=5000)
    mended = jobs.Embed(embed.model, ("body",), opening=embed.opening)
    assert jobs.run(mended, path, tmp_path / "out", block_bytes=5000).rows == count  # in the same folder
    assert not (tmp_path / "out" / "rejected.jsonl").exists()


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_data_without_rows_is_refused(embed, tmp_path, here, name):
    written(tmp_path / "in" / name, "")
    with pytest.raises(InvalidInput, match="has no rows: all of its 1 files are empty"):
        jobs.run(embed, tmp_path / "in", tmp_path / "out")


def test_a_half_written_file_is_rejected_and_the_others_go_on(embed, tmp_path, here):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name in ("a", "b", "c"):
        pq.write_table(pa.table({"text": ["w5", "w6"]}), tmp_path / f"{name}.parquet")
    half = (tmp_path / "b.parquet").read_bytes()
    (tmp_path / "b.parquet").write_bytes(half[: len(half) // 2])
    done = jobs.run(embed, tmp_path / "*.parquet", tmp_path / "out")
    assert (done.rows, done.rejected) == (4, 1)
    [(name, line, reason)] = rejected_in(tmp_path / "out")
    assert (name, line) == ("b.parquet", None)
    assert "damaged" in reason


def test_file_names_of_any_bytes_are_read(embed, tmp_path, here):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff.jsonl")
    Path(path).write_text('{"text": "w5"}\n{\n')
    for _ in range(2):
        done = jobs.run(embed, path, tmp_path / "out")
        assert (done.rows, done.rejected) == (1, 1)
    assert lines_in(tmp_path / "out" / "rejected.jsonl")[0]["file"] == path


@pytest.mark.parametrize(
    "kind",
    [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.BothwaysError)],
)
def test_errors_reach_the_process_that_began_the_job(kind):
    found = pickle.loads(pickle.dumps(kind("said")))
    assert (type(found), str(found)) == (kind, "said")
