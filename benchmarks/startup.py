"""Cold start: from starting a Python process to its first vector, and the most memory it held until then.

Every measurement is a fresh process; the contestants take turns. The files are in the operating system's cache and the
byte code is compiled, because one unrecorded start of each comes first: what is measured is a restart, not the first
start after boot. ``import torch`` alone is the floor of everything that computes with torch.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.embedders import BASELINE, OURS, OURS_LIGHT, write_files
from benchmarks.harness import Options, Spread, interleaved, say, table, write_results
from benchmarks.reference import speedup
from benchmarks.workers import in_a_process

IMPORT_TORCH = "import torch, nothing else"
NAMES = (OURS, OURS_LIGHT, BASELINE, "transformers, given order", "onnxruntime, sorted by tokens", IMPORT_TORCH)
# Nothing but the standard library and what the contestant itself needs is imported before the vector is there.
_CHILD = f"""
import json, sys
from pathlib import Path

name, threads, graph = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
if name == {IMPORT_TORCH!r}:
    import torch

    vector = torch.zeros(0).tolist()
else:
    from benchmarks.embedders import Subject

    subject = Subject(name, threads, graph)
    subject.keep("first", ["An encoder reads both ways: every token sees the whole text."])
    vector = subject.vectors("first")[0].tolist()
print("vector", flush=True)
from benchmarks.harness import peak_memory

print(json.dumps({{"peak": peak_memory(), "vector": vector}}), flush=True)
"""


def run(options: Options) -> Path:
    """Start everybody in turn and write the results."""
    names = options.chosen(NAMES)
    with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as folder:
        graph = Path(folder) / "minilm.onnx"
        say("writing what the contestants read")
        in_a_process(write_files, names, graph, 0)
        expected: np.ndarray | None = None
        for name in names:
            say(f"unrecorded start: {name}")
            vector = np.array(_start(name, options.threads, graph)["vector"])
            if name == IMPORT_TORCH:
                continue
            expected = vector if expected is None else expected
            if not np.allclose(vector, expected, atol=1e-4):
                raise RuntimeError(f"{name}'s vector is not that of {names[0]}: the comparison would be of unlike work")
        rounds = interleaved(
            names, options.rounds, lambda name, _: _start(name, options.threads, graph), what="start-up"
        )
    figures: dict[str, Any] = {}
    rows = []
    for name, singles in rounds.items():
        walls = [single["wall"] for single in singles]
        faster, mebibytes = speedup(rounds, BASELINE, name, "wall"), [single["peak"] / 2**20 for single in singles]
        figures[name] = {"wall": walls, "peak_mebibytes": mebibytes, "speedup_wall": faster}
        rows.append([name, Spread.of(walls).text(), faster.ratio() if faster else "", Spread.of(mebibytes).text(0)])
    header = ("contestant", "process start to first vector, s", f"times {BASELINE}", "peak resident MiB")
    return write_results("startup", options, {"contestants": figures}, table(header, rows))


def _start(name: str, threads: int, graph: Path) -> dict[str, Any]:
    """Start one process; return ``wall`` seconds until its vector, ``peak`` bytes, ``vector``."""
    command = [sys.executable, "-c", _CHILD, name, str(threads), str(graph)]
    # Errors go to a file: nobody reads that pipe while the vector is awaited.
    with tempfile.TemporaryFile("w+") as errors:
        began = time.perf_counter()
        with subprocess.Popen(
            command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process:
            if process.stdout is None:
                raise RuntimeError("the process has no pipe")
            # What a library prints first is not the vector.
            while (line := process.stdout.readline()) and line.strip() != "vector":
                pass
            wall = time.perf_counter() - began
            rest = process.stdout.read()
        errors.seek(0)
        if not line or process.returncode != 0:
            raise RuntimeError(f"{name} ended with exit code {process.returncode}:\n{errors.read()}")
    return {"wall": wall, **json.loads(rest.strip().splitlines()[-1])}
