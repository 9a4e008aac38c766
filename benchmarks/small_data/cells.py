"""The cells of the small-data benchmark: planned, run one at a time in a process of its own, and kept.

A cell is one fit of one contestant. Cells of a set, size, seed and model follow each other, on the same training and
test rows. Each is written to ``small_data-partial.json`` as soon as it is there, and is not run again while it stands
there.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import MODEL, Options, commit, minilm_folder, say, write_results
from benchmarks.kept import Kept, origin, wanted
from benchmarks.our_side import OurSide
from benchmarks.small_data.options import Part
from benchmarks.small_data.sets import drawn, load, usual_seeds
from benchmarks.small_data.tables import tables
from benchmarks.task_data import TaskData
from benchmarks.task_quality import measured
from benchmarks.workers import AbsentPeerError, Worker

OURS, TFIDF, PROBE, SETFIT, TRAINER, TUNED = "ours", "tfidf", "probe", "setfit", "trainer", "trainer_tuned"
# What reads no encoder stands under no model; SetFit has nothing to gain from random weights.
CONTESTANTS = {
    "": (TFIDF,),
    "minilm": (OURS, PROBE, SETFIT, TRAINER, TUNED),
    "random": (OURS, PROBE, TRAINER, TUNED),
}
NAMES = (OURS, TFIDF, PROBE, SETFIT, TRAINER, TUNED)
QUICK_TEST_ROWS = 48


@dataclass(frozen=True)
class Cell:
    """One fit.

    Attributes:
        set: Name of the set.
        size: Training rows as they were asked for.
        seed: Draws the training rows and seeds the training.
        model: What the encoder is; empty for what has none.
        contestant: Who is fitted.
    """

    set: str
    size: str
    seed: int
    model: str
    contestant: str

    def key(self, test_rows: int, device: str) -> str:
        """What tells one cell from another in the file."""
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
        ours = cell.contestant == OURS
        if not wanted(kept.entries.get(key), ours=ours, renew=options.renew, now=now):
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
    return write_results(
        "small_data", replace(options, rounds=0), {"left_out": left_out, "runs": runs}, tables(runs, left_out)
    )


def planned(options: Options, part: Part, left_out: dict[str, str]) -> Iterator[Cell]:
    """The cells of the part that was asked for; what a set cannot give goes to ``left_out`` with the reason.

    Raises:
        SystemExit: A contestant is not known.
    """
    chosen = _chosen(options.contestants)
    for name in part.sets:
        data = load(name)
        for size in part.sizes:
            first = drawn(data, size, 1, part.test_rows)
            for seed in options.seeds or usual_seeds(len(first.train) if first else 0):
                rows = drawn(data, size, seed, part.test_rows)
                if rows is None:
                    left_out[f"{name}, {size} rows"] = "more than the set has, or fewer than two of each class"
                    continue
                for model, contestant in _of_models(part.models, chosen):
                    reason = _unable(contestant, rows, part)
                    if reason is None:
                        yield Cell(name, size, seed, model, contestant)
                    else:
                        of_size = f", {size} rows" if rows.kind == "texts" else ""
                        left_out[f"{contestant} on {name}{of_size}"] = reason


def _of_models(models: Sequence[str], chosen: Sequence[str]) -> Iterator[tuple[str, str]]:
    for model in ("", *models):
        for contestant in CONTESTANTS[model]:
            if contestant in chosen:
                yield model, contestant


def _chosen(names: Sequence[str]) -> Sequence[str]:
    """The contestants that were asked for, by words or by commas; all where none was."""
    found = [name for each in names for name in each.split(",") if name]
    unknown = sorted(set(found) - set(NAMES))
    if unknown:
        raise SystemExit(f"expected contestants of small_data among {', '.join(NAMES)}, got {', '.join(unknown)}")
    return found or NAMES


def _unable(contestant: str, data: TaskData, part: Part) -> str | None:
    """Why a contestant has no cell of these rows; None where it has."""
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

    def __init__(self, contestant: str, model: str, threads: int, device: str, setfit_updates: int) -> None:
        from benchmarks.small_data import linear, trained

        checkpoint = minilm_folder()
        if model == "random":
            self._folder = tempfile.TemporaryDirectory(prefix="bothways-benchmark-")
            checkpoint = trained.random_bert(Path(self._folder.name) / "bert")
        encoder = threads, device, checkpoint
        makers = {
            OURS: lambda: OurSide(threads, device, checkpoint if model == "random" else MODEL, defaults=True),
            TFIDF: lambda: linear.Linear(linear.tfidf),
            PROBE: lambda: linear.Linear(linear.Embeddings(*encoder)),
            SETFIT: partial(trained.SetFit, *encoder, setfit_updates),
            TRAINER: partial(trained.TrainerAtDefaults, *encoder),
            TUNED: partial(trained.TrainerTuned, *encoder),
        }
        self._side: Any = makers[contestant]()

    def run(self, name: str, size: str, seed: int, test_rows: int) -> dict[str, Any]:
        """Fit once, and the figures on the test rows."""
        data = drawn(load(name), size, seed, test_rows)
        if data is None:
            raise ValueError(f"expected a size that {name} has, got {size}")
        found = measured(self._side, data, seed)
        counts = {part: found["rows"][part] for part in ("train", "test")}
        return {
            "figures": found["figures"],
            "fit_seconds": found["fit_seconds"],
            "test_seconds": found["test_seconds"],
            "rows": counts,
            "notes": getattr(self._side, "notes", {}),
        }


def _fitted(cell: Cell, options: Options, part: Part) -> dict[str, Any]:
    """Fit and test once, in a process of its own."""
    with Worker(Subject, cell.contestant, cell.model, options.threads, options.device, part.setfit_updates) as worker:
        return dict(worker.call("run", cell.set, cell.size, cell.seed, part.test_rows))
