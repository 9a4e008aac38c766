"""Command line: ``python -m benchmarks [embedding|finetuning|startup|... |all] [options]``; the names are below."""

import argparse
import importlib
from pathlib import Path

from benchmarks.harness import Options, limit_threads, say
from benchmarks.small_data.sets import SETS, SIZES
from benchmarks.tasks import NAMES as TASKS

# Run one after the other by "all"; the others only by name: one needs a GPU, the other makes models first.
NAMES = ("embedding", "finetuning", "startup", "memory", "quality", "retrieval")
BY_NAME = ("gpu", "small_data")


def main() -> None:
    """Run the named benchmarks, one after the other."""
    default = Options()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("which", nargs="?", default="all", choices=(*NAMES, *BY_NAME, "all"))
    parser.add_argument("--rounds", type=int, default=default.rounds, help="interleaved rounds (default 5)")
    parser.add_argument("--quick", action="store_true", help="a small sample, to see that everything runs")
    parser.add_argument("--threads", type=int, default=default.threads, help="compute threads a contestant (default 1)")
    parser.add_argument("--output", type=Path, default=default.output, help="folder of the result files")
    only = "only these (names as in the tables)"
    parser.add_argument("--contestants", nargs="+", default=(), metavar="NAME", help=only)
    parser.add_argument("--texts", type=int, default=default.texts, help="memory: number of texts")
    parser.add_argument("--datasets", nargs="+", default=default.datasets, choices=TASKS, help="quality")
    parser.add_argument("--seeds", nargs="+", type=int, default=default.seeds, help="quality, small_data")
    parser.add_argument("--device", default=default.device, help="quality, small_data: cpu (default) or cuda")
    kept = "quality, small_data: tables of what was trained before, no training"
    parser.add_argument("--kept", action="store_true", help=kept)
    renew = "quality, small_data: run ours again where another commit was measured"
    parser.add_argument("--renew", action="store_true", help=renew)
    models = "gpu: only these parts (from texts, BERT-base, ModernBERT-base, DeBERTa-v3-base)"
    parser.add_argument("--models", nargs="+", default=default.models, metavar="NAME", help=models)
    group = parser.add_argument_group("small_data")
    sizes = "rows; 8 means 8 of each class"
    rows = "maximum of test rows, 0 for all (default 1000)"
    group.add_argument("--sets", nargs="+", default=default.sets, choices=SETS)
    group.add_argument("--sizes", nargs="+", default=default.sizes, choices=SIZES, help=sizes)
    group.add_argument("--test-rows", type=int, default=default.test_rows, help=rows)
    arguments = parser.parse_args()
    if arguments.rounds < 1 or arguments.threads < 1 or arguments.texts < 100:
        parser.error("--rounds and --threads must be at least 1, --texts at least 100")
    which, given = arguments.which, {name: value for name, value in vars(arguments).items() if name != "which"}
    options = Options(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})
    limit_threads(options.threads)
    for name in NAMES if which == "all" else (which,):
        say(f"benchmark: {name}")
        importlib.import_module(f"benchmarks.{name}").run(options)


if __name__ == "__main__":
    main()
