"""Jobs whose processes are killed: the output is that of an uninterrupted run, and little is computed again."""

import functools
import itertools
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from job_cases import jsonl, program, texts

from bothways import jobs
from bothways.data import text_at
from bothways.errors import WorkerLost
from bothways.jobs.manifest import JobManifest
from bothways.jobs.work import OpenedWork
from everyday import some_of
from killing import killed_before_file_event

SIZE = 250


@pytest.fixture
def data(tmp_path):
    return jsonl(tmp_path / "a.jsonl", texts(400))


def children(pid):
    """The workers that a process has started."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                worker = b"bothways.jobs" in (folder / "cmdline").read_bytes()
            except OSError:
                continue
            found += [int(folder.name)] if worker and int(parent) == pid and state != "Z" else []
    return found


def exists(pid):
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition, seconds=60):
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.005)
    return found


def started(bert, data, output, workers=2):
    words = ("embed", bert, "--data", data, "--output-dir", output, "--workers", workers, "--block-bytes", SIZE)
    return program(*words)


def done(output):
    """Number of finished blocks."""
    try:
        return jobs.status(output).blocks_done
    except Exception:  # it is about to begin
        return 0


@pytest.fixture
def whole(bert, data, tmp_path, here):
    """The status of a job that was not interrupted."""
    return jobs.run(jobs.Embed(str(bert)), data, tmp_path / "whole", block_bytes=SIZE)


def finished(process):
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return said


def killed_at(bert, data, output, blocks, delay, target):
    """Kill a process of a job after so many blocks; return the records then, if the job did not go on."""
    process = started(bert, data, output)
    until(lambda: process.poll() is not None or done(output) >= blocks)
    time.sleep(delay)
    workers = children(process.pid)
    if target == "worker" and workers:
        os.kill(random.choice(workers), signal.SIGKILL)
        finished(process)
        return {}
    process.kill()
    process.communicate()
    until(lambda: not any(map(exists, workers)))
    records = JobManifest.open(str(output)).records
    parts = {int(path.name[5:12]) for path in (output / "parts").glob("part-*.npy")}
    assert len(parts - records.keys()) <= 2
    return records


def check_goes_on(bert, data, output, records, whole):
    """Go on with a job, which computes none of these blocks again."""
    finished(started(bert, data, output, workers=1))
    after = JobManifest.open(str(output)).records
    assert all(after[number] == record for number, record in records.items())
    assert jobs.status(output).checksum == whole.checksum
    assert not list(output.rglob(".*"))


@pytest.mark.parametrize(("target", "blocks"), [("driver", 3), ("worker", 12)])
def test_a_killed_job_goes_on_and_gives_the_same(bert, data, whole, tmp_path, target, blocks):
    records = killed_at(bert, data, tmp_path / "out", blocks, 0.01, target)
    assert target == "worker" or 0 < len(records) < whole.blocks
    check_goes_on(bert, data, tmp_path / "out", records, whole)


@pytest.mark.slow
def test_jobs_that_are_killed_at_random_moments_give_the_same(bert, data, whole, tmp_path):
    for number in range(40):
        chance, output = random.Random(number), tmp_path / str(number)
        target = chance.choice(["driver", "worker"])
        blocks = chance.randrange(1, whole.blocks - 5)
        records = killed_at(bert, data, output, blocks, chance.random() / 50, target)
        check_goes_on(bert, data, output, records, whole)


class Lengths:
    """Work without a model."""

    verb = "embed"

    def __init__(self, model):
        self.model, self.opening = model, {}

    def open(self):
        def compute(rows):
            return [{"length": len(text_at(row, ("text",)))} for row in rows]

        return OpenedWork(None, compute, {"length": "integer"})


@pytest.mark.parametrize("step", some_of([1, 7], 7))
def test_a_job_that_is_killed_before_an_operation_on_files_gives_the_same(bert, tmp_path, here, monkeypatch, step):
    monkeypatch.setattr("bothways.jobs.running.identity_of", lambda *_: {"verb": "embed"})
    path = jsonl(tmp_path / "a.jsonl", [*texts(12), {"body": "rejected"}])

    def run(output):
        options = {"output_format": "jsonl", "block_bytes": 150, "show_progress": False}
        return jobs.run(Lengths(str(bert)), path, output, **options)

    whole = run(tmp_path / "whole")
    rejected = (tmp_path / "whole" / "rejected.jsonl").read_bytes()
    assert whole.blocks > 3
    for number in itertools.count(1, step):
        output = tmp_path / str(number)
        if not killed_before_file_event(number, functools.partial(run, output)):
            break
        assert run(output) == whole
        assert (output / "rejected.jsonl").read_bytes() == rejected
        assert not list(output.rglob(".*"))
    assert number > 60


@pytest.mark.parametrize("moment", ["opening", "computing"])
def test_ctrl_c_ends_all_processes_and_the_command_goes_on(bert, data, whole, tmp_path, moment):
    output = tmp_path / "out"
    process = started(bert, data, output)
    until(lambda: done(output) > 3 if moment == "computing" else children(process.pid))
    workers = children(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it
    _, said = process.communicate(timeout=30)
    assert process.returncode in (130, -signal.SIGINT)
    assert "interrupted" in said
    assert "Traceback" not in said
    until(lambda: not any(map(exists, workers)), 5)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    assert not list(output.rglob(".*"))
    if moment == "computing":
        assert jobs.status(output).state == "interrupted"
        check_goes_on(bert, data, output, JobManifest.open(str(output)).records, whole)


def test_a_block_that_kills_its_workers_is_named(bert, data, tmp_path, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import os, sys\n"
        "def die(event, arguments):\n"
        "    if event == 'open' and 'part-0000002' in str(arguments[0]) and 'bothways.jobs' in sys.orig_argv:\n"
        "        os.kill(os.getpid(), 9)\n"
        "sys.addaudithook(die)\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(WorkerLost, match=r"3 workers died of block 2 \('.*a\.jsonl', from 500 to 750\).*--workers"):
        jobs.run(jobs.Embed(str(bert)), data, tmp_path / "out", workers=1, block_bytes=SIZE)
    found = jobs.status(tmp_path / "out")
    assert (found.state, found.blocks_done) == ("interrupted", 2)


def test_a_model_that_cannot_be_opened_is_said_once(bert, data, tmp_path):
    with pytest.raises(Exception, match="absent") as error:
        jobs.run(jobs.Embed(str(bert), prompt_name="absent"), data, tmp_path / "out", workers=2)
    assert json.dumps(str(error.value)).count("absent") == 1
    assert children(os.getpid()) == []
