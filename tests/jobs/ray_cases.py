"""Jobs on a real Ray of this machine: their data, processes that are killed in the midst of them, and what is left."""

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
from job_cases import program

from bothways import jobs, ray_cluster
from forking import free_port

# Else Ray's workers get what other programs of the machine leave.
os.environ.setdefault("RAY_worker_niceness", "0")
SOURCE = Path(__file__).parents[2] / "src"
BLOCK = 2000
ACTOR = "ray::MapWorker"
# Cores of the Ray of the tests, and its actors.
CORES = WORKERS = 2
LOCAL = {"include_dashboard": False, "log_to_driver": False}


def write_corpus(folder, rows=1500, seed=0):
    """Write two files of short texts of the words of tiny models; block after block some 50 rows."""
    draw = random.Random(seed)
    folder.mkdir(parents=True)
    for name in ("a", "b"):
        lines = (
            json.dumps({"id": f"{name}{number}", "text": " ".join(draw.choices([f"w{k}" for k in range(5, 60)], k=6))})
            for number in range(rows // 2)
        )
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def run(model, corpus, output, **options):
    """Embed the corpus in blocks of some 2,000 bytes."""
    return jobs.run(jobs.Embed(str(model)), corpus, output, **{"block_bytes": BLOCK, "show_progress": False, **options})


def command(model, corpus, output, *options, **environment):
    """The command of a user, as a process."""
    words = ("embed", model, "--data", corpus, "--text", "text", "--output-dir", output, "--block-bytes", BLOCK)
    return program(*words, *options, **{"OMP_NUM_THREADS": "1", **environment})


@contextmanager
def cluster():
    """A Ray of this machine that belongs to no process of the tests, and asks for a token.

    Yields variables with its address, and the address for Ray's client.
    """
    main, client = free_port(), free_port()
    known = {"RAY_ADDRESS": f"127.0.0.1:{main}", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        options = (
            f"--port={main}",
            f"--ray-client-server-port={client}",
            f"--num-cpus={CORES}",
            f"--temp-dir={folder}",
        )
        ray = (sys.executable, "-m", "ray.scripts.scripts")
        environment = {**os.environ, **ray_cluster.QUIET, "PYTHONPATH": str(SOURCE), **known}
        with (Path(folder) / "said").open("w+") as said:
            head = subprocess.Popen(
                [*ray, "start", "--head", "--block", "--include-dashboard=false", *options],
                stdout=said,
                stderr=said,
                env=environment,
            )
        end = time.monotonic() + 120
        try:
            while "runtime started" not in (Path(folder) / "said").read_text():
                assert head.poll() is None, (Path(folder) / "said").read_text()
                assert time.monotonic() < end
                time.sleep(0.5)
            yield known, f"ray://127.0.0.1:{client}"
        finally:
            started = psutil.Process(head.pid).children(recursive=True) if head.poll() is None else []
            head.terminate()
            head.wait(60)
            for each in wait_for_end(started, 10):
                each.kill()


def parts_of(output):
    """What was written for each block: another time or place on the disk means that it was computed again."""
    return {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in Path(output, "parts").glob("part-*.npy")
    }


def computed_again(before, after):
    """The number of blocks whose output was there before, and was written again."""
    return sum(after.get(name) != state for name, state in before.items())


def wait_for_parts(output, count, process=None, seconds=120):
    """Wait until so many blocks are written."""
    end = time.monotonic() + seconds
    while len(parts_of(output)) < count:
        assert time.monotonic() < end, f"{len(parts_of(output))} of {count} blocks came"
        assert process is None or process.poll() is None, process.communicate()[1]
        time.sleep(0.005)


def descendants(pid, word):
    """The processes below one whose command has a word."""
    found = []
    for each in psutil.Process(pid).children(recursive=True):
        try:
            if word in " ".join(each.cmdline()):
                found.append(each)
        except psutil.Error:  # it has ended
            continue
    return found


def wait_for_end(processes, seconds=60):
    """Wait until processes that lost their parent are gone; return those that are not."""
    return psutil.wait_procs([each for each in processes if each.is_running()], seconds)[1]


@contextmanager
def killing_an_actor(output, after, killed):
    """Kill one of this process's actors once so many blocks are written; note what was written then."""

    def kill():
        wait_for_parts(output, after)
        victim = random.choice(descendants(os.getpid(), ACTOR))
        victim.kill()
        killed.append(parts_of(output))

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    yield
    thread.join(10)
    assert killed, "no actor was killed"
