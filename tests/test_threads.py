"""Threads: none are started by loading, a forked process computes, and there are as many as the machine grants."""

import json
import os
import pickle
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bothways import SemanticSearch, SentenceEmbedder, threads
from bothways.cli.program import build_app
from bothways.errors import ThreadsSpin
from bothways.packing import ALL_ROWS, FIRST_TOKENS, pack
from tiny_models import every_family, random_ids, random_types, tiny_config, tiny_encoder

needs_proc = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")

# Runs something in a forked process, whose result is JSON; one that hangs is killed.
FORKED = """
import json, os, select, signal, sys, threading, warnings
import faiss, numpy, scipy.linalg, torch
warnings.simplefilter("ignore", DeprecationWarning)  # what Python says of forks beside threads

def forked(work):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, json.dumps(work()).encode())
        except BaseException as error:
            os.write(writing, json.dumps(repr(error)).encode())
        os._exit(0)
    answered = select.select([reading], [], [], 120)[0]
    found = json.loads(os.read(reading, 65536)) if answered else "hangs"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return found

def count():
    return len(os.listdir("/proc/self/task"))
"""


def run(code, *arguments, **environment):
    """Return the JSON that a fresh interpreter with two computing threads prints; whatever it started ends with it."""
    started = subprocess.Popen(
        [sys.executable, "-c", FORKED + code, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = started.communicate(timeout=500)
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode == 0, err
    return json.loads(out.splitlines()[-1])


LOADING = """
import pickle
from pathlib import Path
import bothways
from bothways import MultiTask, SemanticSearch, SentenceEmbedder, TextClassifier

model, folder = sys.argv[1], Path(sys.argv[2])
ways = {
    "load": lambda: bothways.load(model),
    "half": lambda: bothways.load(model, dtype="bfloat16"),
    "classifier": lambda: TextClassifier.from_pretrained(model),
    "embedder": lambda: SentenceEmbedder.from_pretrained(model, dtype="float64"),
    "tasks": lambda: MultiTask.from_pretrained(model),
    "index": lambda: SemanticSearch.open(folder / "index"),
    "pickled": lambda: pickle.loads((folder / "stored").read_bytes()),
    "pickled whole": lambda: pickle.loads((folder / "whole").read_bytes()),
}
before, started = count(), {}
for name, way in ways.items():
    opened = way()
    started[name] = count() - before
encoder = bothways.load(model)
answer = forked(lambda: [*encoder(["some words"] * 50).last_hidden_state.shape, torch.get_num_threads()])
loading = {"started": started, "forked": answer, "threads": torch.get_num_threads()}
"""

USING = """
import multiprocessing

embedder = SentenceEmbedder.from_pretrained(model)
texts = [f"the words of text {number}" for number in range(20)]
rows = numpy.random.default_rng(0).normal(size=(2000, 384)).astype(numpy.float32)

def computed(_=None):
    found, _ = faiss.knn(rows[:200], rows, 5, metric=faiss.METRIC_INNER_PRODUCT)
    return [embedder.encode(texts).tobytes().hex()[:200], found.tobytes().hex()[:200], torch.get_num_threads()]

def beside():
    thread = threading.Thread(target=lambda: found.update({"a thread": forked(computed)}))
    thread.start()
    thread.join()

expected = computed()
found = {"fork": forked(computed), "fork again": forked(computed), "parent": computed()}
beside()
with multiprocessing.get_context("fork").Pool(2) as pool:
    found["first of pool"], found["second of pool"] = pool.map_async(computed, range(2)).get(timeout=120)

vectors = embedder.encode_stream(f"text {number}" for number in range(5000))
next(vectors)
refused = forked(lambda: len(list(vectors)))
print(json.dumps({"loading": loading, "using": {"expected": expected, "found": found, "refused": refused}}))
"""


@pytest.fixture(scope="module")
def in_a_process(minilm_folder, tmp_path_factory):
    """What a process found that first loads in every way, and then computes and forks."""
    folder, embedder = tmp_path_factory.mktemp("stored"), SentenceEmbedder.from_pretrained(minilm_folder)
    SemanticSearch.build(embedder, ["The cat sat.", "Rates rose."]).save(folder / "index")
    (folder / "stored").write_bytes(pickle.dumps(embedder))
    with torch.no_grad():
        next(embedder.model.encoder.parameters()).add_(1.0)
    (folder / "whole").write_bytes(pickle.dumps(embedder))
    return run(LOADING + USING, minilm_folder, folder)


@needs_proc
def test_loading_starts_no_threads_and_a_forked_process_computes(in_a_process):
    found = in_a_process["loading"]
    assert found == {
        "started": dict.fromkeys(found["started"], 0),
        "forked": [50, 4, 384, 2],
        "threads": 2,
    }


@needs_proc
def test_after_a_use_a_forked_process_computes_the_same_with_as_many_threads(in_a_process):
    found = in_a_process["using"]
    assert found["expected"][2] == 2
    assert found["found"] == dict.fromkeys(found["found"], found["expected"])
    assert "call the model again in the forked process" in found["refused"]


class RepeatedRows(TorchDispatchMode):
    """Notes sums into rows that are named twice, which torch spreads over threads in no fixed order on a CPU."""

    def __init__(self):
        super().__init__()
        self.sums = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, accumulate = func.name(), args[3] if len(args) > 3 else (kwargs or {}).get("accumulate", False)
        if "index_put" in name and accumulate:
            indices = [index for index in args[1] if index is not None]
            rows = torch.stack([index.reshape(-1) for index in torch.broadcast_tensors(*indices)])
            self.sums += rows.shape[1] > torch.unique(rows, dim=1).shape[1]
        return func(*args, **(kwargs or {}))


@every_family
@pytest.mark.parametrize("rows", [ALL_ROWS, FIRST_TOKENS])
def test_gradients_are_summed_in_a_fixed_order(model_type, rows):
    encoder, lengths = tiny_encoder(model_type).train(), (3, 9, 1, 9)
    types = random_types(lengths) if tiny_config(model_type).reads_types else None
    with RepeatedRows() as seen:
        encoder(pack(random_ids(lengths), types), rows=rows).sum().backward()
    assert seen.sums == 0


def test_a_sum_into_rows_that_are_named_twice_is_noticed():
    values = torch.randn(3, requires_grad=True)
    with RepeatedRows() as seen:
        values[torch.tensor([0, 0, 2])].sum().backward()
    assert seen.sums == 1


REPEATING = """
import subprocess
from bothways import load
from bothways.packing import FIRST_TOKENS
from bothways.packing import pack

encoder = load(sys.argv[1]).encoder.train()
numbers = torch.Generator().manual_seed(0)
packed = pack([torch.randint(999, 9999, (length,), generator=numbers).tolist() for length in range(10, 40, 7)])
busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
found = set()
try:
    for _ in range(25):
        torch.manual_seed(0)
        encoder.zero_grad()
        encoder(packed, rows=FIRST_TOKENS).square().sum().backward()
        found.add(hash(b"".join(each.grad.numpy().tobytes() for each in encoder.layers.parameters())))
finally:
    for each in busy:
        each.kill()
print(json.dumps(len(found)))
"""


@pytest.mark.slow
def test_two_threads_give_the_same_gradients_to_the_bit_on_a_busy_machine(minilm_folder):
    assert run(REPEATING, minilm_folder, OMP_WAIT_POLICY="PASSIVE") == 1


# --- how many ---


def machine(root, membership, **files):
    """A folder with what Linux says of a process and its cgroups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(membership)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 64),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "1000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "9900000 100000\n"}, 64),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3),
        ("0::/host/path\n", {"cpu.max": "400000 100000\n"}, 4),
        ("4:a:/\n3:cpu,b:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
        ("3:cpu,b:/d\n", {"cpu,b/d/cpu.cfs_quota_us": "50000\n", "cpu,b/d/cpu.cfs_period_us": "10000\n"}, 5),
        ("2:cpuset:/\n", {"cpuset/cpu.max": "100000 100000\n"}, 64),
        ("0::/\n", {"cpu.max": "0 100000\n"}, 64),
        ("0::/a\n", {"a/cpu.max": "half\n", "cpu.max": "250000 100000\n"}, 3),
        ("", {}, 64),
    ],
)
def test_a_cgroup_grants_cores(membership, files, cores, tmp_path, monkeypatch):
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert threads.granted_cores(machine(tmp_path, membership, **files)) == cores


def test_a_system_without_cgroups_or_affinity_grants_all_cores(tmp_path, monkeypatch):
    monkeypatch.delattr(threads.os, "sched_getaffinity", raising=False)
    assert threads.granted_cores(tmp_path) == os.cpu_count()


@pytest.fixture
def free(monkeypatch):
    """No word of the environment on threads, 64 cores of which 2 are granted; afterwards all is as it was."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS", *threads._WAITING):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setattr(threads, "_cores", lambda: 64)
    monkeypatch.setattr(threads, "_quotas", lambda _: [2.0])
    number = torch.get_num_threads()
    yield monkeypatch
    torch.set_num_threads(number)


@pytest.mark.parametrize(
    ("quotas", "before", "after"),
    [
        ([2.0], {}, {"OMP_NUM_THREADS": "2"}),
        ([], {}, {}),
        ([2.0], {"OMP_NUM_THREADS": "7"}, {"OMP_NUM_THREADS": "7"}),
        ([2.0], {"MKL_NUM_THREADS": "7"}, {"MKL_NUM_THREADS": "7"}),
    ],
)
def test_the_default_is_what_the_environment_says_and_then_what_the_cgroups_grant(free, quotas, before, after):
    free.setattr(threads, "_quotas", lambda _: quotas)
    for name, value in before.items():
        free.setenv(name, value)
    threads.choose_threads()
    assert {name: os.environ[name] for name in threads._NUMBER if name in os.environ} == after


def test_a_number_that_was_asked_for_counts_more(free):
    free.setenv("MKL_NUM_THREADS", "7")
    threads.choose_threads(3)
    assert [os.environ[f"{name}_NUM_THREADS"] for name in ("OMP", "MKL", "RAYON")] == ["3"] * 3
    assert torch.get_num_threads() == 3


# Notes the number of threads that it is imported with, and how they wait, as OpenMP does.
FAKE_TORCH = "import os; seen = {name: os.environ.get(name) for name in ('OMP_NUM_THREADS', 'OMP_WAIT_POLICY')}"

IMPORTING = """
import json, os, sys
from pathlib import Path
before = dict(os.environ)
import bothways
from bothways import threads
for each in (threads.granted_cores, threads.cores_are_shared):
    each.__defaults__ = (Path(sys.argv[1]),)
untouched = before == dict(os.environ)
try:
    from bothways import load
except ImportError:  # the fake has nothing that a torch should have
    pass
print(json.dumps([untouched, sys.modules["torch"].seen]))
"""


@pytest.fixture
def busy_container(tmp_path):
    """A folder with a fake torch, and what Linux says in a container with one core of a machine that is busy."""
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    root = machine(tmp_path / "root", "0::/\n", **{"cpu.max": "50000 100000\n"})
    (root / "proc/loadavg").write_text("99.00 99.00 99.00 99/999 7")
    return tmp_path


@pytest.mark.parametrize("given", [{}, {"OMP_NUM_THREADS": "3"}, {"OMP_WAIT_POLICY": "ACTIVE"}])
def test_an_import_of_torch_by_the_package_finds_the_threads_chosen_and_what_its_user_set(given, busy_container):
    ours = {name: value for name, value in os.environ.items() if name not in (*threads._NUMBER, *threads._WAITING)}
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING, str(busy_container / "root")],
        env={**ours, "PYTHONPATH": os.pathsep.join([str(busy_container), *sys.path]), **given},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = {"OMP_NUM_THREADS": "1" if threads._cores() > 1 else None, "OMP_WAIT_POLICY": "PASSIVE", **given}
    assert json.loads(done.stdout) == [True, expected]


@pytest.fixture
def torch_first(free):
    """A process that imported torch before this package and opened no model, on busy cores."""
    free.setattr(threads, "_TORCH_WAS_FIRST", True)
    free.setattr(threads, "_cores", lambda: 8)
    free.setattr(threads, "cores_are_shared", lambda _: True)
    threads._catch_up.cache_clear()
    yield free
    threads._catch_up.cache_clear()


@pytest.mark.parametrize(("before", "after"), [(8, 2), (4, 2), (5, 5)], ids=["cores", "cores of two threads", "set"])
def test_a_torch_that_came_first_is_limited_to_the_granted_cores_once_unless_its_user_set_a_number(
    before, after, torch_first
):
    torch.set_num_threads(before)
    with (
        pytest.warns(ThreadsSpin, match=f"its {after} threads spin .* import bothways before torch"),
        threads.loading(),
    ):
        pass
    assert torch.get_num_threads() == after
    torch.set_num_threads(4)
    with warnings.catch_warnings(action="error"), threads.loading():
        pass
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize("case", ["free cores", "one thread", "said how to wait", "imported by us"])
def test_nothing_is_said_where_threads_do_no_harm(case, torch_first):
    torch.set_num_threads(1 if case == "one thread" else 2)
    torch_first.setattr(threads, "cores_are_shared", lambda _: case != "free cores")
    torch_first.setattr(threads, "_TORCH_WAS_FIRST", case != "imported by us")
    if case == "said how to wait":
        torch_first.setenv("KMP_BLOCKTIME", "200")
    with warnings.catch_warnings(action="error"), threads.loading():
        pass


FIRST = """
import json, sys, warnings
import torch
import bothways
bothways.threads.cores_are_shared = lambda _: True
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        bothways.load(sys.argv[1])
print(json.dumps([each.category.__name__ for each in caught]))
"""


@pytest.mark.slow  # every day: the same in this process
def test_a_process_that_imports_torch_first_is_warned_once(base):
    assert run(FIRST, base) == ["ThreadsSpin"]


def test_a_thread_that_loads_leaves_the_number_of_the_others(free):
    free.setattr(threads, "_TORCH_WAS_FIRST", False)
    torch.set_num_threads(3)
    with threads.loading(), ThreadPoolExecutor(1) as pool:
        assert torch.get_num_threads() == 1
        assert pool.submit(torch.get_num_threads).result() == 3
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize(
    ("loads", "wanted", "shared"),
    [
        ("0.30 0.20 0.10 1/99 7", 8, False),
        ("8.00 8.00 8.00 9/99 7", 8, True),
        ("8.00 8.00 8.00 9/99 7", 1, True),
        ("1.00 1.00 1.00 2/99 7", 8, True),
        ("4.00 4.00 4.00 5/99 7", 4, False),
        ("8.00 8.00 8.00 1/99 7", 8, False),  # what was just left behind
        ("0.10 8.00 8.00 9/99 7", 8, False),  # a moment
    ],
)
def test_cores_are_shared_where_other_processes_keep_running(loads, wanted, shared, tmp_path, monkeypatch):
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 8)
    assert threads.cores_are_shared(wanted, tmp_path) is False
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/loadavg").write_text(loads)
    assert threads.cores_are_shared(wanted, tmp_path) is shared


@pytest.mark.parametrize(
    ("shared", "before", "after"),
    [
        (True, {}, {"OMP_WAIT_POLICY": "PASSIVE"}),
        (False, {}, {}),
        *((True, {name: "ACTIVE"}, {name: "ACTIVE"}) for name in sorted(threads._WAITING)),
    ],
)
def test_threads_sleep_while_they_wait_only_where_cores_are_shared_and_nothing_else_is_set(free, shared, before, after):
    free.setattr(threads, "cores_are_shared", lambda _: shared)
    for name, value in before.items():
        free.setenv(name, value)
    threads.choose_threads()
    assert {name: os.environ[name] for name in threads._WAITING if name in os.environ} == after


COMPUTING_NOTHING = {
    "cost",
    "examples",
    "mask",
    "models",
    "search delete",
    "job status",
    "search info",
    "sign",
    "verify",
}


def test_every_command_that_computes_takes_a_number_of_threads():
    lacking = set()

    def walk(app, path):
        for name in app:
            if name.startswith("-"):
                continue
            command = app[name]
            if command.default_command is None:
                walk(command, (*path, name))
            elif "--threads" not in {word for each in command.assemble_argument_collection() for word in each.names}:
                lacking.add(" ".join((*path, name)))

    walk(build_app(), ())
    assert lacking == COMPUTING_NOTHING


@pytest.mark.slow  # every day: that each command takes the number, and that a number asked for counts
def test_a_command_computes_with_so_many_threads():
    words = ["compare-models", "google/electra-small-discriminator", "--lengths", "8", "--seconds", "0.01", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "bothways", *words, "--threads", "2"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert json.loads(done.stdout)["threads"] == 2, done.stderr
