"""``python -m benchmarks.scale [PART ...] [options]``: figures of jobs over many files.

The parts: rate (a job beside the library's own stream, memory) and minilm (the same on sentences), workers (one, two,
and two on Ray), blocks (the cost of a block), manifest (a million blocks), plan (a billion texts, simulated from
measured rates), store (an index in PostgreSQL beside one in files). Every part writes a result of its own.
"""

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.harness import RESULTS, Options, limit_threads, say, write_results
from benchmarks.scale import figures

PARTS = ("rate", "minilm", "workers", "blocks", "manifest", "plan", "store")


def main() -> None:
    """Measure the parts, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default all")
    parser.add_argument("--quick", action="store_true", help="seconds only, to see that everything runs")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (3)")
    parser.add_argument("--texts", type=int, default=1_000_000, help="short texts for a tiny model (1000000)")
    parser.add_argument("--sentences", type=int, default=100_000, help="sentences for MiniLM (100000)")
    parser.add_argument("--store", help="store: postgresql://... of a database with pgvector; left out without it")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the result files")
    given = parser.parse_args()
    parts = given.parts or PARTS
    if not set(parts) <= set(PARTS):
        parser.error(f"the parts are {', '.join(PARTS)}")
    if given.quick:
        given.rounds, given.texts, given.sentences = 1, 2_000, 200
    limit_threads(1)
    options = Options(rounds=given.rounds, quick=given.quick, output=given.output)
    with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as folder:
        bench = figures.Bench(options, Path(folder), given.texts, given.sentences, given.store)
        for part in parts:
            say(f"part: {part}")
            if part == "store" and given.store is None:
                say("left out, since there is no --store")
                continue
            values, text = getattr(figures, part)(bench)
            write_results(f"scale-{part}", options, json.loads(json.dumps(values)), text)


if __name__ == "__main__":
    main()
