"""Quality: a fine-tuned MiniLM, ours beside transformers' Trainer or sentence-transformers.

README.md has what is the same on both sides, and how runs are kept and renewed. No model is kept.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness import Options, environment, table, write_results
from benchmarks.peers import OURS, OURS_DEFAULTS, PEERS, QA_LENGTH, UNTRAINED, OurSide
from benchmarks.runs import Kept, Run, lead, spread, stated_origin
from benchmarks.tasks import TaskData, load
from benchmarks.trainer import BATCH, LEARNING_RATE

SEEDS = (1, 2, 3)
# Where ours trains otherwise by default: for three epochs, and in batches of 16 up to 2,000 rows.
OTHER_DEFAULTS = ("clinc150", "ag_news", "wnut17", "squad_v1")
CHOSEN_ON_TEST = {
    "sick": "SICK's test rows decided that the latest epoch within a standard error is kept",
    "sst2": "SST-2's test rows decided that a temperature may depend on the entropy",
}


def run(options: Options) -> Path:
    """Train what is missing and write the table."""
    kept = Kept(options.output / ("quality-partial-quick.json" if options.quick else "quality-partial.json"))
    versions, absent = environment(options)["versions"], {}
    plan = {
        _key(dataset, seed, side, versions, options): (
            side,
            {"dataset": dataset, "seed": seed, "side": side},
            (trained, dataset, seed, side, options),
        )
        for dataset in options.datasets
        for seed in options.seeds or SEEDS
        for side in options.chosen(list(sides_of(dataset)))
    }
    if not options.kept:
        kept.fill(plan, options, absent)
    runs = [kept.entries[key] for key in plan if key in kept.entries]
    if not runs:
        raise SystemExit(f"no run of {', '.join(options.datasets)} stands in {kept.path}")
    figures = {"absent": absent, "runs": runs}
    return write_results("quality", replace(options, rounds=0), figures, quality_table(runs, options))


def sides_of(dataset: str) -> dict[str, Callable[[int, str], Any]]:
    """Return who is trained on a data set: from names to makers that take threads and device."""
    ours: dict[str, Callable[[int, str], Any]] = {OURS: OurSide}
    if dataset in OTHER_DEFAULTS:
        ours[OURS_DEFAULTS] = lambda threads, device: OurSide(threads, device, defaults=True)
    return {**ours, **PEERS[load(dataset, quick=True).kind]}


def trained(dataset: str, seed: int, side: str, options: Options) -> dict[str, Any]:
    """Train once and return the figures on the test rows."""
    return measured(sides_of(dataset)[side](options.threads, options.device), load(dataset, quick=options.quick), seed)


def measured(side: Any, data: TaskData, seed: int) -> dict[str, Any]:  # noqa: ANN401
    """Train a side once and return the figures on the test rows, the seconds and the rows."""
    began = time.perf_counter()
    side.fit(data, seed)
    trained = time.perf_counter()
    figures = data.score(data.test, side.answers(data.test))
    seconds = {"fit_seconds": trained - began, "test_seconds": time.perf_counter() - trained}
    rows = {"train": len(data.train), "validation": len(data.validation), "test": len(data.test)}
    return {"figures": figures, **seconds, "rows": rows, "epochs": data.epochs, "notes": side.notes}


def quality_table(entries: Sequence[Run], options: Options) -> str:
    """Return mean and spread of each side over its seeds, and ours minus it over those of both."""
    rows = []
    for dataset in dict.fromkeys(entry["dataset"] for entry in entries):
        of_data = [entry for entry in entries if entry["dataset"] == dataset]
        ours = _figures(of_data, OURS)
        for side in dict.fromkeys(entry["side"] for entry in of_data):
            runs = [entry for entry in of_data if entry["side"] == side]
            first, *others = runs[0]["figures"]
            own = _figures(of_data, side)
            mark = " *" if dataset in CHOSEN_ON_TEST else ""
            about = f"{dataset}{mark} ({runs[0]['rows']['train']:,} rows, {runs[0]['epochs']} epochs)"
            also = ", ".join(f"{each} {spread([run['figures'][each] for run in runs])}" for each in others)
            ahead = lead(ours, own) if side != OURS else ""
            rows.append([about, side, f"{first} {spread(list(own.values()))}", str(len(own)), ahead, also])
    header = ("data", "side", "mean and deviation", "seeds", "ours minus it", "also")
    return f"{_note(entries, options)}\n\n{table(header, rows)}"


def _note(entries: Sequence[Run], options: Options) -> str:
    ours = [entry for entry in entries if entry["side"].startswith(OURS)]
    others = [entry for entry in entries if not entry["side"].startswith(OURS)]
    chosen = [text for name, text in CHOSEN_ON_TEST.items() if any(entry["dataset"] == name for entry in entries)]
    starred = f" *: {'; '.join(chosen)} (docs/LOG.md)." if chosen else ""
    return (
        f"Batch {BATCH}, learning rate {LEARNING_RATE:g}, linear with 10 % warm-up, weight decay 0.01, device "
        f"{options.device}; both sides keep the latest epoch within a standard error of the best on the validation "
        f"rows. {OURS_DEFAULTS}: no option of training but the seed. The peer is transformers' Trainer with rows in "
        "random order, valid sequences of tags, standardised numbers and a temperature fitted on the validation rows; "
        "for embeddings (stsb_bi) sentence-transformers with CoSENT. ECE: 15 bins of equal mass, calibrated. Of "
        f"several answers to a question ours learns all, the peer the first, in windows of {QA_LENGTH} tokens, as in "
        f"transformers' example. {UNTRAINED}: cosines of the embedder as it comes. A mean difference not larger than "
        f"its deviation over the seeds is a tie. {stated_origin(ours, others)}{starred}"
    )


def _figures(runs: Sequence[Run], side: str) -> dict[int, float]:
    """Return a side's first figure for each seed."""
    return {run["seed"]: next(iter(run["figures"].values())) for run in runs if run["side"] == side}


def _key(dataset: str, seed: int, side: str, versions: dict[str, str], options: Options) -> str:
    """Return the key of a run in the file of partial results."""
    package = "bothways" if side.startswith(OURS) else "transformers"
    if not side.startswith(OURS) and (dataset == "stsb_bi" or side == UNTRAINED):
        package = "sentence-transformers"
    return f"{dataset}/{seed}/{side}/{package} {versions[package]}/{options.device}"
