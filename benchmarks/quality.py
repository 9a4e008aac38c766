"""The quality tables: a fine-tuned MiniLM, ours beside transformers' Trainer or sentence-transformers.

Classification (accuracy and calibration on three data sets) unless other data sets are named; three seeds, the same
rows, epochs, learning rate, decay, schedule, batch size and choice of the epoch. A run takes hours on a few CPU cores,
so each (data set, seed, side) is kept in ``quality-partial.json`` as soon as it is there, with the commit, machine and
versions that it was measured at, and an interrupted benchmark goes on where it was. Another version of the trainer,
device or number of epochs makes a new entry; ``--renew`` runs ours again where its entry is of another commit. No model
is kept.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import classifier_quality, contrasts, task_quality
from benchmarks.classifier_quality import EPOCHS
from benchmarks.harness import Options, commit, environment, say, write_results
from benchmarks.kept import Kept, origin, wanted
from benchmarks.our_side import OURS
from benchmarks.task_data import NAMES as TASKS
from benchmarks.task_peers import UNTRAINED

SEEDS = (1, 2, 3)


def run(options: Options) -> Path:
    """Train what is missing and write the table."""
    kept = Kept(options.output / ("quality-partial-quick.json" if options.quick else "quality-partial.json"))
    versions, now = environment(options)["versions"], commit()
    plan = {
        _key(dataset, seed, side, versions, options): (dataset, seed, side)
        for dataset in options.datasets
        for seed in options.seeds or SEEDS
        for side in options.chosen(_sides(dataset))
    }
    if options.kept:
        plan = {key: named for key, named in plan.items() if key in kept.entries}
    for number, (key, (dataset, seed, side)) in enumerate(plan.items(), start=1):
        renew = options.renew and not options.kept
        if not wanted(kept.entries.get(key), ours=_is_ours(side), renew=renew, now=now):
            say(f"{number} of {len(plan)}: {key}: kept from before")
            continue
        say(f"{number} of {len(plan)}: {key}: training")
        found = _single(dataset, seed, side, options)
        kept.add(key, {"dataset": dataset, "seed": seed, "side": side, **found, **origin(options)})
        figures = found.get("figures") or {name: found[name] for name in ("accuracy", "ece")}
        say(f"{number} of {len(plan)}: " + ", ".join(f"{name} {value:.4f}" for name, value in figures.items()))
    runs = [kept.entries[key] for key in plan]
    if not runs:
        raise SystemExit(f"no run of {', '.join(options.datasets)} stands in {kept.path}")
    kinds = (
        (classifier_quality.classifiers_table, [entry for entry in runs if entry["dataset"] in EPOCHS]),
        (classifier_quality.coverage_tables, [entry for entry in runs if "trust" in entry]),
        (task_quality.tasks_table, [entry for entry in runs if entry["dataset"] in TASKS]),
        (contrasts.contrasts_table, [entry for entry in runs if entry["dataset"] in contrasts.NAMES]),
    )
    text = "\n\n".join(made(of_kind, options) for made, of_kind in kinds if of_kind)
    return write_results("quality", replace(options, rounds=0), {"runs": runs}, text)


def _single(dataset: str, seed: int, side: str, options: Options) -> dict[str, Any]:
    if dataset in contrasts.NAMES:
        return contrasts.single(dataset, seed, options)
    return (task_quality if dataset in TASKS else classifier_quality).single(dataset, seed, side, options)


def _sides(dataset: str) -> tuple[str, ...]:
    if dataset in contrasts.NAMES:
        return (OURS,)
    return tuple((task_quality if dataset in TASKS else classifier_quality).sides_of(dataset))


def _is_ours(side: str) -> bool:
    return side.startswith(("bothways", "ours"))


def _key(dataset: str, seed: int, side: str, versions: dict[str, str], options: Options) -> str:
    """What tells one run from another in the file of partial results."""
    package = "bothways" if _is_ours(side) else "transformers"
    if not _is_ours(side) and (dataset == "stsb_bi" or side == UNTRAINED):
        package = "sentence-transformers"
    epochs = f"{EPOCHS[dataset]} epochs/" if dataset in EPOCHS else ""
    return f"{dataset}/{seed}/{side}/{package} {versions[package]}/{epochs}{options.device}"
