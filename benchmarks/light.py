"""Exported models without torch: a new process to its first prediction and its memory, then throughput and latency.

A classifier of SST-2 above MiniLM, trained with the defaults on few rows, is opened and asked for one text, in Python
and by the command. Every measurement is a fresh process, and the contestants take turns; files are in the system's
cache and byte code is compiled, as one unrecorded start of each sees to.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.contestants import LIGHT_NAMES, OURS, OURS_LIGHT
from benchmarks.embedding import measured
from benchmarks.harness import DATA, MODEL, REPOSITORY, Options, Spread, interleaved, ratios, say, table, write_results
from benchmarks.texts import labelled_texts

_ROWS = 100
_TEXT = "A warm and funny film that never loses its way."
_PYTHON = """
import sys
from bothways import TextClassifier

classifier = TextClassifier.from_pretrained(sys.argv[1], device="cpu")
print(classifier.predict(sys.argv[2]).label, flush=True)
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0], "torch" in sys.modules)
"""
_COMMAND = "on the command line"


def run(options: Options) -> Path:
    """Measure both, and write two pages."""
    starts(options)
    return measured("light", options, LIGHT_NAMES)


def starts(options: Options) -> Path:
    """Write how long a new process takes to its first prediction, and its memory."""
    with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as folder:
        folders = _trained(Path(folder), options)
        names = [*folders, *(f"{name} {_COMMAND}" for name in folders)]
        labels = {_start(name, folders)["label"] for name in names}  # unrecorded
        if len(labels) != 1:
            raise RuntimeError(f"the contestants disagree: {labels}")
        rounds = interleaved(names, options.rounds, lambda name, _: _start(name, folders), what="start")
    figures: dict[str, Any] = {}
    rows = []
    for name, singles in rounds.items():
        walls = [single["wall"] for single in singles]
        slower = rounds[OURS if not name.endswith(_COMMAND) else f"{OURS} {_COMMAND}"]
        times = ratios([single["wall"] for single in slower], walls)
        cpu = Spread.of([single["cpu"] for single in singles])
        figures[name] = {"wall": Spread.of(walls), "cpu": cpu, "faster": times}
        memory = "" if name.endswith(_COMMAND) else Spread.of([single["peak"] for single in singles]).text(0)
        rows.append([name, Spread.of(walls).text(3), cpu.text(3), times.ratio(), memory])
    header = (
        "contestant",
        "process start to first prediction, s",
        "processor time of the process, s",
        "times bothways with torch",
        "peak resident MiB",
    )
    return write_results("light-start", options, figures, table(header, rows))


def _trained(folder: Path, options: Options) -> dict[str, Path]:
    """Train, save and export a classifier in a process of its own; return the folders by contestant."""
    say("training and exporting")
    rows = labelled_texts(DATA / "sst2/train.jsonl.gz")
    sample = random.Random(1).sample(rows, 60 if options.quick else _ROWS)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sample))
    saved, exported = folder / "saved", folder / "exported"
    train = ("train", "classification", "--model", MODEL, "--train", str(folder / "rows.jsonl"), "--output", str(saved))
    for words in (train, ("export", str(saved), "--format", "onnx", "--output", str(exported))):
        subprocess.run((sys.executable, "-m", "bothways", *words), cwd=REPOSITORY, check=True, capture_output=True)
    return {OURS: saved, OURS_LIGHT: exported}


def _start(name: str, folders: dict[str, Path]) -> dict[str, Any]:
    """One new process: ``wall`` seconds until the line of its prediction, ``peak`` MiB."""
    typed = name.endswith(_COMMAND)
    folder = str(folders[name.removesuffix(f" {_COMMAND}")])
    words = ("-m", "bothways", "predict", folder, _TEXT) if typed else ("-c", _PYTHON, folder, _TEXT)
    # Where byte code is not written, every start would compile what it imports.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    with subprocess.Popen(
        (sys.executable, *words), cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        if process.stdout is None:
            raise RuntimeError("the process has no pipe")
        line = process.stdout.readline().decode()
        wall = time.perf_counter() - began
        rest = process.stdout.read().decode().split()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0 or not line:
        raise RuntimeError(f"{name} ended with exit code {process.returncode}")
    label = json.loads(line)["label"] if typed else line.strip()
    if rest and (rest[1] == "True") != (name == OURS):
        raise RuntimeError(f"{name}: expected torch to be loaded by {OURS} alone")
    peak = int(rest[0]) / 1024 if rest else 0.0
    return {"wall": wall, "cpu": used.ru_utime + used.ru_stime, "label": label, "peak": peak}
