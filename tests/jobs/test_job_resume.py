"""Jobs that are refused, or go on: other work, changed files, damaged manifests, full disks."""

import errno
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from job_cases import jsonl, leftovers, texts, written

from bothways import jobs
from bothways.errors import CorruptCheckpoint, InvalidInput, OutOfDisk, OutputExists
from bothways.jobs import blocks, files
from bothways.jobs.manifest import BlockRecord, JobManifest


def test_a_finished_job_computes_nothing_again(job, here):
    assert job() == job.done
    assert here == []


def test_a_job_goes_on_from_another_folder(embed, tmp_path, here, monkeypatch):
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "link.jsonl").symlink_to(jsonl(tmp_path / "a", texts(9)))
    for folder, up in (("", ""), ("data/deep", "../../")):
        monkeypatch.chdir(tmp_path / folder)
        for data in ("data", "data/link.jsonl", "data/*.jsonl"):
            jobs.run(embed, f"{up}{data}", f"{up}out-{len(data)}")
    assert len(here) == 3


def test_a_table_that_is_the_same_is_cut_once(embed, tmp_path, here, monkeypatch):
    path, output, asked = tmp_path / "a.csv", tmp_path / "out", []
    path.write_text("text\n" + "".join(f"w{number} w5\n" for number in range(5, 55)))
    done = jobs.run(embed, path, output, block_bytes=100)
    records = blocks.records
    monkeypatch.setattr("bothways.jobs.blocks.records", lambda *given: asked.append(given) or records(*given))
    assert done.blocks > 3
    assert jobs.run(embed, path, output, block_bytes=100) == done
    assert not asked
    for options, said in (
        ({"block_bytes": 99}, "block_bytes"),
        ({"settings": {"format": "csv", "encoding": "cp1252"}}, ""),
        ({"settings": {"format": "tsv", "encoding": None}}, ""),
    ):
        with pytest.raises(InvalidInput, match=f"holds another job: {said}"):
            jobs.run(embed, path, output, **{"block_bytes": 100, **options})
        assert asked
        asked.clear()


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
def test_a_million_blocks_open_in_seconds(tmp_path):
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
    begun = time.process_time()
    manifest = JobManifest.open(str(tmp_path))
    opened = time.process_time()
    assert len(manifest.records) == 10**6
    for number in range(300):
        manifest.enter([BlockRecord(number, 1, 1, "", 1.0, 1.0, [])])
    entered = time.process_time()
    print(f"opened in {opened - begun:.2f} s, entered in {(entered - opened) / 300 * 1000:.1f} ms")
    assert opened - begun < 10  # two on a fast core, see the benchmark
    assert (entered - opened) / 300 < 0.2
