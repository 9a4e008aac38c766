"""``python -m benchmarks.serving [PART ...] [options]``: figures of ``bothways serve`` under load.

The parts: saturation and peers (tokens a second), single (one text at a time), mixed (short queries beside bulk),
overload (three times what it can do), memory, start, wrk (that load generator beside ours). Every part writes a result
of its own. Everybody runs on as many cores as it has threads, HTTP included, and the client on the others: where there
are none, it takes its time from the servers. Needs Linux.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

from benchmarks.harness import RESULTS, limit_threads, say, write_results
from benchmarks.serving import figures
from benchmarks.serving.servers import NAMES, ServingOptions

PARTS = ("saturation", "single", "mixed", "overload", "memory", "start", "peers", "wrk")
OPTIONS = (
    ("rounds", int, 5, "interleaved rounds (5)"),
    ("threads", int, 1, "compute threads of a server (1)"),
    ("seconds", float, 20.0, "seconds of a load (20)"),
    ("requests", int, 100_000, "memory: requests (100000)"),
    ("output", Path, RESULTS, "folder of the result files"),
    ("folder", Path, None, "folder of the models that are written, kept for the next run"),
    ("infinity", Path, None, "python of an environment with infinity-emb[torch,optimum,server]; left out without it"),
)


def main() -> None:
    """Measure the parts, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default all")
    parser.add_argument("--quick", action="store_true", help="seconds only, to see that everything runs")
    parser.add_argument("--contestants", nargs="+", default=(), metavar="NAME", help="only these (as in the tables)")
    for name, kind, default, text in OPTIONS:
        parser.add_argument(f"--{name}", type=kind, default=default, help=text)
    given = vars(parser.parse_args())
    parts, given["contestants"] = given.pop("parts") or PARTS, tuple(given["contestants"])
    if not set(parts) <= set(PARTS):
        parser.error(f"the parts are {', '.join(PARTS)}")
    # The folder of a virtual environment is known by the link to its python, so the link stays.
    given["infinity"] = given["infinity"] and given["infinity"].absolute()
    if given["quick"]:
        given |= {"rounds": 1, "seconds": 2.0, "requests": 300}
    limit_threads(given["threads"])
    with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as temporary:
        options = ServingOptions(**given | {"folder": (given["folder"] or Path(temporary)).absolute()})
        options.folder.mkdir(parents=True, exist_ok=True)
        for part in parts:
            say(f"part: {part}")
            if part == "wrk" and shutil.which(part) is None:
                say("left out, since wrk is not installed: apt-get install wrk")
                continue
            with figures.Bench(options) as bench:
                values, text = getattr(figures, part)(bench)
            absent = {name: "no --infinity" for name in NAMES if name.startswith("infinity") and not options.infinity}
            absent = absent if part in ("peers", "mixed") else {}
            write_results(f"serving-{part}-{options.threads_suffix}", options, {**values, "absent": absent}, text)


if __name__ == "__main__":
    main()
