"""Jobs over data with faults, and jobs that are refused, interrupted and go on."""

import errno
import json
import math
import os
import pickle
import resource
import subprocess
import sys
import time
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from job_cases import jsonl, lines_in, texts, written

from bothways import errors, jobs
from bothways.errors import CorruptCheckpoint, InvalidInput, OutOfDisk, OutputExists
from bothways.jobs import files
from bothways.jobs.manifest import BlockRecord, JobManifest
from bothways.jobs.work import OpenedWork


def rejected_in(output):
    return [(Path(each["file"]).name, each["line"], each["reason"]) for each in lines_in(output / "rejected.jsonl")]


def leftovers(folder):
    return [path for path in folder.rglob("*") if path.name.startswith(".") or "unfinished" in path.name]


# --- rows that are rejected ---


@pytest.fixture
def embed(encoder):
    return jobs.Embed(str(encoder), opening={"device": "cpu"})


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
def odd(monkeypatch, encoder):
    monkeypatch.setattr("bothways.jobs.running.identity_of", lambda *_: {"verb": "odd"})
    return Odd(str(encoder))


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


# --- refusals and going on ---


@pytest.fixture
def job(embed, tmp_path, here):
    """A finished job of several blocks; call it again to go on."""
    path = jsonl(tmp_path / "a.jsonl", texts(40))

    def run(work=embed, data=path, **options):
        here.clear()
        return jobs.run(work, data, tmp_path / "out", **{"block_bytes": 300, **options})

    run.done = run()
    assert run.done.blocks > 4
    return run


def test_a_finished_job_computes_nothing_again(job, here):
    assert job() == job.done
    assert here == []


@pytest.mark.parametrize("damage", ["delete", "truncate", "ids"])
def test_a_lost_part_is_computed_again(job, here, tmp_path, damage):
    part = tmp_path / "out" / "parts" / f"part-0000002.npy{'.ids.jsonl' * (damage == 'ids')}"
    before = part.read_bytes()
    part.unlink() if damage != "truncate" else part.write_bytes(before[:-1])
    assert job().checksum == job.done.checksum
    assert here == [2]
    assert part.read_bytes() == before
    assert job() == job.done
    assert here == []


def test_another_job_is_refused_with_the_difference(job, embed, model_of, tmp_path):
    for options, said in (
        ({"work": jobs.Embed(embed.model, prompt="w5 ", opening=embed.opening)}, 'prompt was null and is now "w5 "'),
        ({"work": jobs.Embed(embed.model)}, "opening was"),
        (
            {"work": jobs.Predict(str(model_of("classification"))), "output_format": "jsonl"},
            'verb was "embed" and is now "predict"',
        ),
        ({"work": jobs.Embed(str(model_of("embedding")), opening=embed.opening)}, "weights was"),
        ({"block_bytes": 400}, "job: block_bytes was 300 and is now 400. Give"),
        ({"output_format": "jsonl"}, 'format was "npy" and is now "jsonl"'),
        ({"threads": 2}, "threads was 1 and is now 2"),
        ({"data": jsonl(tmp_path / "b.jsonl", texts(40))}, "b.jsonl' has changed"),
        ({"data": jsonl(tmp_path / "c.jsonl", texts(50))}, "blocks before, 1 files in"),
    ):
        with pytest.raises(InvalidInput, match="holds another job") as refused:
            job(**options)
        assert said in str(refused.value)
    assert job() == job.done


def test_a_file_that_changed_between_runs_is_named(job, tmp_path):
    time.sleep(0.01)
    jsonl(tmp_path / "a.jsonl", [*texts(39), {"id": "r39", "text": "w6 w7"}])
    with pytest.raises(InvalidInput, match=r"a\.jsonl' has changed"):
        job()
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(InvalidInput, match="there is none at"):
        job()


@pytest.mark.parametrize("change", ["grow", "vanish"])
def test_a_file_that_changes_while_it_is_read_stops_the_job(embed, tmp_path, here, monkeypatch, change):
    path = jsonl(tmp_path / "a.jsonl", texts(40))
    enter = JobManifest.enter

    def entered(self, records):
        enter(self, records)
        path.unlink() if change == "vanish" else path.write_text("{}\n")

    monkeypatch.setattr(JobManifest, "enter", entered)
    with pytest.raises(
        InvalidInput, match="has changed since the job began" if change == "grow" else "there is no file"
    ):
        jobs.run(embed, path, tmp_path / "out", block_bytes=300)
    assert jobs.status(tmp_path / "out").blocks_done == 1


@pytest.mark.parametrize("name", ["notes.txt", "deep/notes.txt", "parts/part-0000000.npy"])
def test_a_folder_with_other_files_is_refused(embed, tmp_path, here, name):
    other = written(tmp_path / "out" / name, "mine")
    path = jsonl(tmp_path / "a.jsonl", texts(2))
    with pytest.raises(OutputExists, match=r"and no job\. Choose another path"):
        jobs.run(embed, path, tmp_path / "out")
    assert other.read_text() == "mine"
    with pytest.raises(OutputExists, match="but it is a file"):
        jobs.run(embed, path, path)


def test_a_job_that_could_not_begin_leaves_nothing(embed, tmp_path, here):
    with pytest.raises(InvalidInput, match="there is none at"):
        jobs.run(embed, tmp_path / "absent.jsonl", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    path = jsonl(tmp_path / "a.jsonl", texts(2))
    with pytest.raises(InvalidInput):
        jobs.run(jobs.Embed(embed.model, prompt_name="absent"), path, tmp_path / "out")
    assert jobs.run(embed, path, tmp_path / "out").rows == 2  # another work, in the same folder


@pytest.mark.parametrize("name", ["job.json", "inputs.jsonl", "manifest/000000.jsonl"])
@pytest.mark.parametrize("damage", ["half", "empty", "other"])
def test_a_damaged_manifest_is_refused(job, tmp_path, name, damage):
    path = tmp_path / "out" / name
    content = path.read_bytes()
    other = b'[99999, 1, 1, "", 0, 0, []]' if "manifest" in name else b"[1]"
    path.write_bytes({"half": content[: len(content) // 2], "empty": b"", "other": other}[damage])
    if name.startswith("manifest") and damage == "empty":  # the blocks of a segment that is gone
        assert job() == job.done
        return
    for act in (job, lambda: jobs.status(tmp_path / "out")):
        with pytest.raises(CorruptCheckpoint, match=r"is damaged\. Restore it, or begin again"):
            act()


def test_a_job_of_a_later_release_is_refused(job, tmp_path):
    path = tmp_path / "out" / "job.json"
    path.write_text(path.read_text().replace('"format_version": 1', '"format_version": 2'))
    for act in (job, lambda: jobs.status(tmp_path / "out")):
        with pytest.raises(CorruptCheckpoint, match="version 2; this release reads 'bothways job', version 1"):
            act()


def test_what_a_killed_process_left_is_removed(job, embed, tmp_path):
    for folder in ("", "parts", "manifest"):
        written(tmp_path / "out" / folder / ".part-0000001.npy.abcdefgh.unfinished", "half")
    assert job() == job.done
    assert leftovers(tmp_path) == []
    written(tmp_path / "new" / ".inputs.jsonl.abcdefgh.unfinished", "half")
    written(tmp_path / "new" / "inputs.jsonl", "")
    assert jobs.run(embed, tmp_path / "a.jsonl", tmp_path / "new").rows == 40
    assert leftovers(tmp_path) == []


def test_a_job_in_use_is_refused(job, tmp_path):
    code = f"""
import sys
from bothways.jobs.locking import held_by_one
with held_by_one({str(tmp_path / "out")!r}):
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InvalidInput, match="another process is running the job in"):
            job()
    assert job() == job.done


@pytest.mark.parametrize(
    "options",
    [{"workers": 0}, {"workers": -1}, {"block_bytes": 0}, {"threads": 0}, {"workers": (1, 2)}, {"on_error": "skip"}],
)
def test_wrong_options_are_refused(embed, tmp_path, options):
    with pytest.raises(InvalidInput, match=next(iter(options))):
        jobs.run(embed, jsonl(tmp_path / "a.jsonl", texts(1)), tmp_path / "out", **options)


# --- disks ---


@pytest.mark.parametrize("size", [0, 200, 900])
def test_a_full_disk_stops_the_job_which_goes_on_later(embed, tmp_path, here, size):
    path, before = jsonl(tmp_path / "a.jsonl", texts(40)), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with pytest.raises(OutOfDisk, match="no space left for"):
            jobs.run(embed, path, tmp_path / "out", block_bytes=300)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert leftovers(tmp_path) == []
    done = jobs.run(embed, path, tmp_path / "out", block_bytes=300)
    assert done.checksum == jobs.run(embed, path, tmp_path / "whole", block_bytes=300).checksum


def test_a_folder_that_may_not_be_written_is_said(embed, tmp_path, here, monkeypatch):
    path = jsonl(tmp_path / "a.jsonl", texts(4))

    def refused(self, *_, **__):
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", refused)
        with pytest.raises(InvalidInput, match="cannot be written: Read-only file system"):
            jobs.run(embed, path, tmp_path / "out")
    jobs.run(embed, path, tmp_path / "out")
    monkeypatch.setattr(Path, "replace", refused)
    with pytest.raises(InvalidInput, match="cannot be written: Read-only file system"):
        jobs.run(embed, path, tmp_path / "out")


# --- the manifest ---


def test_a_segment_with_many_rejected_rows_is_not_written_again_and_again(tmp_path, monkeypatch):
    sizes, write = [], files.write
    monkeypatch.setattr(files, "write", lambda url, content: (sizes.append(len(content)), write(url, content)))
    manifest = JobManifest(str(tmp_path), None, [], [])
    for number in range(60):
        manifest.enter(
            [BlockRecord(number, 1, 1, "", 1.0, 1.0, [(n, "a reason of some length " * 4) for n in range(500)])]
        )
    assert max(sizes) < 2**21
    assert manifest.rejected == 30_000


def test_a_lost_block_survives_a_kill_while_it_is_dropped(job, here, tmp_path, monkeypatch):
    (tmp_path / "out" / "parts" / "part-0000001.npy").unlink()

    def killed(url):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            job()
    assert job().checksum == job.done.checksum
    assert here == [1]


@pytest.mark.slow
def test_a_million_blocks_open_in_two_seconds(tmp_path):
    from bothways.jobs.blocks import InputFile
    from bothways.jobs.manifest import header_of

    state = files.FileState("/data/a.jsonl", 10**6, "1")
    inputs = [InputFile(state, "jsonl", None, "lines", tuple(range(10**6 + 1)))]
    manifest = JobManifest.create(str(tmp_path), header_of({"verb": "embed"}, {}, inputs), inputs)
    for start in range(0, 10**6, 1000):
        lines = [
            json.dumps([start + n, 10_000, 123456, f"{start + n:064x}", 12.3456, 1.7e9, []]) + "\n" for n in range(1000)
        ]
        written(tmp_path / "manifest" / f"{start // 1000:06d}.jsonl", "".join(lines))
    begun = time.monotonic()
    manifest = JobManifest.open(str(tmp_path))
    opened = time.monotonic()
    assert len(manifest.records) == 10**6
    for number in range(300):
        manifest.enter([BlockRecord(number, 1, 1, "", 1.0, 1.0, [])])
    entered = time.monotonic()
    print(f"opened in {opened - begun:.2f} s, entered in {(entered - opened) / 300 * 1000:.1f} ms")
    assert opened - begun < 2
    assert (entered - opened) / 300 < 0.05
