"""Fine-tuning on few rows, ours at its defaults beside everybody at their best: ``python -m benchmarks small_data``.

A cell is one fit of one contestant on a set, size and seed, in a process of its own. Cells of a set, size and seed
follow each other, on the same training and test rows. Each is written to ``small_data-partial.json`` as soon as it is
there, and is not run again while it stands there.
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from benchmarks.harness import MODEL, Options, commit, minilm_folder, say, write_results
from benchmarks.peers import OurSide
from benchmarks.quality import measured
from benchmarks.runs import Kept, is_due, origin
from benchmarks.small_data.sets import SETS, SIZES, drawn, load, usual_seeds
from benchmarks.small_data.tables import LABELS, OURS, page
from benchmarks.tasks import TaskData
from benchmarks.workers import AbsentPeerError, Worker

SETFIT = "setfit"
QUICK_TEST_ROWS = 48


@dataclass(frozen=True)
class Part:
    """The part of the benchmark to run; `add_options` describes its fields."""

    sets: tuple[str, ...] = SETS
    sizes: tuple[str, ...] = SIZES
    test_rows: int = 1_000
    setfit_updates: int = 3_000

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Self:
        """Take the options from those of the command line."""
        return cls(tuple(arguments.sets), tuple(arguments.sizes), arguments.test_rows, arguments.setfit_updates)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to those of the command line."""
    group, default = parser.add_argument_group("small_data"), Part()
    sizes = f"rows; 8 means 8 of each class (default {' '.join(SIZES)})"
    setfit = "leave SetFit out where it needs more updates (default 3000)"
    rows = "maximum of test rows, 0 for all (default 1000)"
    group.add_argument("--sets", nargs="+", default=default.sets, choices=SETS)
    group.add_argument("--sizes", nargs="+", default=default.sizes, type=_size, help=sizes)
    group.add_argument("--test-rows", type=int, default=default.test_rows, help=rows)
    group.add_argument("--setfit-updates", type=int, default=default.setfit_updates, help=setfit)


def _size(text: str) -> str:
    if text != "all" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number of rows or 'all', got {text!r}")
    return text


@dataclass(frozen=True)
class Cell:
    """One fit: set, size as it was asked for, seed of the draw and of the training, and contestant."""

    set: str
    size: str
    seed: int
    contestant: str

    def key(self, test_rows: int, device: str) -> str:
        """Return the key of a cell in the file."""
        return "/".join([*map(str, asdict(self).values()), f"{test_rows or 'all'} test rows", device])


def run(options: Options) -> Path:
    """Run the cells that are missing and write the tables of all that there are."""
    part = options.small_data or Part()
    if options.quick:
        part = replace(part, test_rows=QUICK_TEST_ROWS)
    kept = Kept(options.output / f"small_data-partial{'-quick' if options.quick else ''}.json")
    left_out: dict[str, str] = {}
    now = commit()
    plan = [] if options.kept else list(planned(options, part, left_out))
    for number, cell in enumerate(plan, start=1):
        key = cell.key(part.test_rows, options.device)
        progress = f"{number} of {len(plan)}: {key}"
        if not is_due(kept.entries.get(key), ours=cell.contestant == OURS, renew=options.renew, now=now):
            say(f"{progress}: kept from before")
            continue
        say(f"{progress}: fitting")
        try:
            found = _fitted(cell, options, part)
        except AbsentPeerError as error:
            left_out[cell.contestant] = str(error)
            say(f"{progress}: left out, {error}")
            continue
        more = {"test_cap": part.test_rows, "device": options.device}
        kept.add(key, {**asdict(cell), **found, **more, **origin(options)})
        say(f"{progress}: " + ", ".join(f"{name} {value:.4f}" for name, value in found["figures"].items()))
    runs = [each for each in kept.entries.values() if each["test_cap"] == part.test_rows]
    if not runs:
        raise SystemExit(f"no cell with {part.test_rows or 'all'} test rows was fitted, and none stands in {kept.path}")
    figures = {"left_out": left_out, "runs": runs}
    return write_results("small_data", replace(options, rounds=0), figures, page(runs, left_out))


def planned(options: Options, part: Part, left_out: dict[str, str]) -> Iterator[Cell]:
    """Yield the cells of a part; what a set cannot give goes to ``left_out`` with the reason.

    Raises:
        SystemExit: A contestant is not known.
    """
    chosen = [name for each in options.contestants for name in each.split(",") if name]
    unknown = sorted(set(chosen) - set(LABELS))
    if unknown:
        raise SystemExit(f"expected contestants of small_data among {', '.join(LABELS)}, got {', '.join(unknown)}")
    for name in part.sets:
        data = load(name)
        for size in part.sizes:
            first = drawn(data, size, 1, part.test_rows)
            for seed in options.seeds or usual_seeds(len(first.train) if first else 0):
                rows = drawn(data, size, seed, part.test_rows)
                if rows is None:
                    left_out[f"{name}, {size} rows"] = "more than the set has, or fewer than two of each class"
                    continue
                for contestant in chosen or LABELS:
                    reason = _unable(contestant, rows, part)
                    if reason is None:
                        yield Cell(name, size, seed, contestant)
                    else:
                        of_size = f", {size} rows" if rows.kind == "texts" else ""
                        left_out[f"{contestant} on {name}{of_size}"] = reason


def _unable(contestant: str, data: TaskData, part: Part) -> str | None:
    """Return the reason why a contestant has no cell with these rows, if there is one."""
    from benchmarks.small_data.trained import setfit_settings

    if contestant != SETFIT:
        return None
    if data.kind != "texts":
        return "it classifies single texts"
    if setfit_settings([row["label"] for row in data.train], part.setfit_updates) is None:
        return f"its pairs need more than {part.setfit_updates:,} updates"
    return None


class Subject:
    """What a worker serves: one contestant."""

    def __init__(self, contestant: str, threads: int, device: str, setfit_updates: int) -> None:
        from benchmarks.small_data import linear, trained

        encoder = threads, device, minilm_folder()
        makers: dict[str, Any] = {
            OURS: lambda: OurSide(threads, device, MODEL, defaults=True),
            "tfidf": lambda: linear.Linear(linear.tfidf),
            "probe": lambda: linear.Linear(linear.Embeddings(*encoder)),
            SETFIT: partial(trained.SetFit, *encoder, setfit_updates),
            "trainer": partial(trained.TrainerAtDefaults, *encoder),
            "trainer_tuned": partial(trained.TrainerTuned, *encoder),
        }
        self._side: Any = makers[contestant]()

    def run(self, name: str, size: str, seed: int, test_rows: int) -> dict[str, Any]:
        """Fit once and return the figures on the test rows."""
        data = drawn(load(name), size, seed, test_rows)
        if data is None:
            raise ValueError(f"expected a size that {name} has, got {size}")
        return measured(self._side, data, seed)


def _fitted(cell: Cell, options: Options, part: Part) -> dict[str, Any]:
    with Worker(Subject, cell.contestant, options.threads, options.device, part.setfit_updates) as worker:
        return dict(worker.call("run", cell.set, cell.size, cell.seed, part.test_rows))
