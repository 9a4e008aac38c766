"""Fine-tuning on few rows, ours at its defaults beside everybody at their best: ``python -m benchmarks small_data``.

A cell is one fit of one contestant on a set, size and seed, in a process of its own. Cells of a set, size and seed
follow each other, on the same training and test rows. Each is written to ``small_data-partial.json`` as soon as it is
there, and is not run again while it stands there.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import MODEL, Options, minilm_folder, write_results
from benchmarks.peers import OurSide
from benchmarks.quality import measured
from benchmarks.runs import Kept
from benchmarks.small_data.sets import SETS, SIZES, drawn, load, usual_seeds
from benchmarks.small_data.tables import LABELS, OURS, page
from benchmarks.tasks import TaskData

SETFIT = "setfit"
QUICK_TEST_ROWS = 48


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
    if options.quick:
        options = replace(options, test_rows=QUICK_TEST_ROWS)
    kept = Kept(options.output / f"small_data-partial{'-quick' if options.quick else ''}.json")
    left_out: dict[str, str] = {}
    if not options.kept:
        more = {"test_cap": options.test_rows, "device": options.device}
        plan = {
            cell.key(options.test_rows, options.device): (
                cell.contestant,
                {**asdict(cell), **more},
                (fitted, cell, options),
            )
            for cell in planned(options, left_out)
        }
        kept.fill(plan, options, left_out)
    runs = [each for each in kept.entries.values() if each["test_cap"] == options.test_rows]
    if not runs:
        rows = options.test_rows or "all"
        raise SystemExit(f"no cell with {rows} test rows was fitted, and none stands in {kept.path}")
    figures = {"absent": left_out, "runs": runs}
    return write_results("small_data", replace(options, rounds=0), figures, page(runs))


def planned(options: Options, left_out: dict[str, str]) -> Iterator[Cell]:
    """Yield the cells; what a set cannot give goes to ``left_out`` with the reason.

    Raises:
        SystemExit: A contestant is not known.
    """
    chosen = [name for each in options.contestants for name in each.split(",") if name]
    unknown = sorted(set(chosen) - set(LABELS))
    if unknown:
        raise SystemExit(f"expected contestants of small_data among {', '.join(LABELS)}, got {', '.join(unknown)}")
    for name in options.sets or SETS:
        data = load(name)
        for size in options.sizes or SIZES:
            first = drawn(data, size, 1, options.test_rows)
            for seed in options.seeds or usual_seeds(len(first.train) if first else 0):
                rows = drawn(data, size, seed, options.test_rows)
                if rows is None:
                    left_out[f"{name}, {size} rows"] = "more than the set has, or fewer than two of each class"
                    continue
                for contestant in chosen or LABELS:
                    reason = _unable(contestant, rows)
                    if reason is None:
                        yield Cell(name, size, seed, contestant)
                    else:
                        of_size = f", {size} rows" if rows.kind == "texts" else ""
                        left_out[f"{contestant} on {name}{of_size}"] = reason


def _unable(contestant: str, data: TaskData) -> str | None:
    """Return the reason why a contestant has no cell with these rows, if there is one."""
    from benchmarks.small_data.trained import SETFIT_MOST, setfit_updates

    if contestant != SETFIT:
        return None
    if data.kind != "texts":
        return "it classifies single texts"
    needed = setfit_updates([row["label"] for row in data.train])
    return f"its pairs need {needed:,} updates" if needed > SETFIT_MOST else None


def fitted(cell: Cell, options: Options) -> dict[str, Any]:
    """Fit once and return the figures on the test rows."""
    from benchmarks.small_data import linear, trained

    encoder = options.threads, options.device, minilm_folder()
    makers: dict[str, Any] = {
        OURS: lambda: OurSide(options.threads, options.device, MODEL, defaults=True),
        "tfidf": lambda: linear.Linear(linear.tfidf),
        "probe": lambda: linear.Linear(partial(linear.embeddings, *encoder)),
        SETFIT: partial(trained.SetFit, *encoder),
        "trainer_tuned": partial(trained.TrainerTuned, *encoder),
    }
    data = drawn(load(cell.set), cell.size, cell.seed, options.test_rows)
    if data is None:
        raise ValueError(f"expected a size that {cell.set} has, got {cell.size}")
    return measured(makers[cell.contestant](), data, cell.seed)
