"""The quality tables: a fine-tuned MiniLM, ours beside transformers' Trainer or sentence-transformers.

Classification (accuracy and calibration on three data sets) unless other data sets are named; three seeds, the same
rows, epochs, learning rate, schedule and batch size. A run takes hours on a few CPU cores, so each (data set, seed,
side) is kept in ``quality-partial.json`` as soon as it is there, with the commit that it was measured at, and an
interrupted benchmark goes on where it was. Another version, device or number of epochs makes a new entry; delete
entries that another change has made untrue. No model is kept.
"""

import json
import random
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import classifiers
from benchmarks.classifiers import (
    BATCH,
    GROUPED,
    LEARNING_RATE,
    OURS,
    Data,
    Row,
    accuracy,
    error_of_chance,
    expected_calibration_error,
)
from benchmarks.contrasts import NAMES as CONTRASTS
from benchmarks.contrasts import contrasts_table
from benchmarks.contrasts import single as contrast
from benchmarks.harness import DATA, Options, commit, environment, say, table, write_results
from benchmarks.task_data import NAMES as TASKS
from benchmarks.task_quality import PEER, common_seeds, single, tasks_table
from benchmarks.texts import OUT_OF_SCOPE, labelled_texts, read_rows
from benchmarks.trust import trust_table
from benchmarks.workers import Worker
from bothways.storage import new_file

EPOCHS = {"sst2": 3, "clinc150": 5, "ag_news": 3}
AG_NEWS_TRAIN, AG_NEWS_VALIDATION = 2_000, 1_000
SIDES = (OURS, GROUPED)
SEEDS = (1, 2, 3)


def run(options: Options) -> Path:
    """Train what is missing and write the table."""
    kept = options.output / ("quality-partial-quick.json" if options.quick else "quality-partial.json")
    entries: dict[str, dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else {}
    versions = environment(options)["versions"]
    plan = {
        _key(dataset, seed, side, versions, options): (dataset, seed, side)
        for dataset in options.datasets
        for seed in options.seeds or SEEDS
        for side in options.chosen(_sides(dataset))
    }
    if options.kept:
        plan = {key: named for key, named in plan.items() if key in entries}
    for number, (key, (dataset, seed, side)) in enumerate(plan.items(), start=1):
        if key in entries:
            say(f"{number} of {len(plan)}: {key}: kept from before")
            continue
        say(f"{number} of {len(plan)}: {key}: training")
        named = {"dataset": dataset, "seed": seed, "side": side, "commit": commit()}
        entries[key] = {**named, **_run(dataset, seed, side, options)}
        with new_file(kept) as stream:
            stream.write(json.dumps(entries, indent=1) + "\n")
        figures = entries[key].get("figures") or {name: entries[key][name] for name in ("accuracy", "ece")}
        say(f"{number} of {len(plan)}: " + ", ".join(f"{name} {value:.4f}" for name, value in figures.items()))
    runs = [entries[key] for key in plan]
    kinds = (
        (_table, [entry for entry in runs if entry["dataset"] in EPOCHS]),
        (_trust_table, [entry for entry in runs if "trust" in entry]),
        (tasks_table, [entry for entry in runs if entry["dataset"] in TASKS]),
        (_contrasts_table, [entry for entry in runs if entry["dataset"] in CONTRASTS]),
    )
    text = "\n\n".join(made(of_kind, options) for made, of_kind in kinds if of_kind)
    return write_results("quality", replace(options, rounds=0), {"runs": runs}, text)


def _run(dataset: str, seed: int, side: str, options: Options) -> dict[str, Any]:
    if dataset in CONTRASTS:
        return contrast(dataset, seed, options)
    return (single if dataset in TASKS else _single)(dataset, seed, side, options)


def _sides(dataset: str) -> tuple[str, ...]:
    if dataset in CONTRASTS:
        return (OURS,)
    return (OURS, PEER) if dataset in TASKS else SIDES


def _key(dataset: str, seed: int, side: str, versions: dict[str, str], options: Options) -> str:
    """What tells one run from another in the file of partial results."""
    package = "bothways" if side == OURS else "transformers"
    if dataset == "stsb_bi" and side != OURS:
        package = "sentence-transformers"
    epochs = f"{EPOCHS[dataset]} epochs/" if dataset in EPOCHS else ""
    return f"{dataset}/{seed}/{side}/{package} {versions[package]}/{epochs}{options.device}"


def _single(dataset: str, seed: int, side: str, options: Options) -> dict[str, Any]:
    """Train and test once, in a process of its own."""
    data = load(dataset, quick=options.quick)
    epochs = 1 if options.quick else EPOCHS[dataset]
    with Worker(classifiers.build, side, options.threads, options.device) as worker:
        began = time.perf_counter()
        trained = worker.call("train", data, epochs, seed)
        found = worker.call("probabilities", [row["text"] for row in data.test])
        trusted = worker.call("trust", data)
    entry = {
        "accuracy": accuracy(found, data.test),
        "ece": expected_calibration_error(found.raw, found.labels, data.test),
        "validation_accuracy": trained["validation_accuracy"],
        "loop_seconds": trained["wall"],
        "seconds": time.perf_counter() - began,
        "rows": {"train": len(data.train), "validation": len(data.validation), "test": len(data.test)},
    }
    if found.calibrated is not None:
        entry["ece_calibrated"] = expected_calibration_error(found.calibrated, found.labels, data.test)
        entry["ece_of_chance"] = error_of_chance(found.calibrated)
    if trusted is not None:
        entry["trust"] = trusted
    return entry


def load(dataset: str, *, quick: bool) -> Data:
    """The rows of a data set; the same for every seed and side."""
    folder = DATA / dataset
    if not folder.exists():
        raise SystemExit(f"the quality benchmark needs ../shared/data/{dataset}, which is not there")
    train = labelled_texts(folder / "train.jsonl.gz")
    test = labelled_texts(folder / "test.jsonl.gz")
    outside = [row for row in read_rows(folder / "test.jsonl.gz") if row["label"] == OUT_OF_SCOPE]
    if dataset == "ag_news":
        random.Random(2_000).shuffle(train)
        validation = train[AG_NEWS_TRAIN : AG_NEWS_TRAIN + AG_NEWS_VALIDATION]
        train = train[:AG_NEWS_TRAIN]
    else:
        validation = labelled_texts(folder / "validation.jsonl.gz")
    if quick:
        names = set(sorted({row["label"] for row in train})[:3])
        train, validation, test = ([row for row in rows if row["label"] in names] for rows in (train, validation, test))
        return Data(_spread(train, 48), _spread(validation, 128), _spread(test, 24), outside[:24])
    return Data(train, validation, test, outside)


def _spread(rows: list[Row], count: int) -> list[Row]:
    """``count`` rows at equal distances: files that are sorted by label keep all of their labels."""
    step = max(1, len(rows) // count)
    return rows[::step][:count]


def _table(entries: list[dict[str, Any]], options: Options) -> str:
    rows = []
    for dataset in dict.fromkeys(entry["dataset"] for entry in entries):
        of_data = common_seeds([entry for entry in entries if entry["dataset"] == dataset])
        for side in options.chosen(SIDES):
            runs = [entry for entry in of_data if entry["side"] == side]
            if not runs:
                continue
            rows.append(
                [
                    f"{dataset} ({runs[0]['rows']['train']:,} rows, {EPOCHS[dataset]} epochs)",
                    side,
                    _mean(runs, "accuracy"),
                    ", ".join(f"{entry['seed']}: {entry['accuracy']:.4f}" for entry in runs),
                    _mean(runs, "ece"),
                    _mean(runs, "ece_calibrated") if "ece_calibrated" in runs[0] else "not offered",
                    _mean(runs, "ece_of_chance") if all("ece_of_chance" in run for run in runs) else "",
                ]
            )
    header = (
        "data",
        "side",
        "test accuracy, mean",
        "seeds",
        "ECE uncalibrated",
        "ECE calibrated",
        "by chance",
    )
    note = (
        f"Batch {BATCH}, learning rate {LEARNING_RATE:g}, linear with 10 % warm-up, device {options.device}. ECE: 15 "
        "bins of equal mass on the test rows; calibrated: by a method that the validation rows choose; by chance: what "
        "a model that is right exactly as often as it says would show with as many rows. The Trainer looks at no "
        "validation rows."
    )
    return f"{note}\n\n{table(header, rows)}"


def _contrasts_table(entries: list[dict[str, Any]], _: Options) -> str:
    note = (
        "With a feature of ours and without it, trained by ourselves on the same rows (`benchmarks/contrasts.py`). "
        "Few-shot puts each text into 7 pairs in an epoch: 3 epochs are 789 updates, about as many as 20 of "
        "fine-tuning, of which 3 are 114."
    )
    return f"{note}\n\n{contrasts_table(entries)}"


def _trust_table(entries: list[dict[str, Any]], _: Options) -> str:
    note = (
        "What ours says beside, on the test rows, which chose neither epoch nor calibration: sets of labels that "
        "promise to hold the truth, and whether a text is "
        "from elsewhere (detector and border from the training and validation rows alone; softmax: 1 - the highest "
        "probability)."
    )
    return f"{note}\n\n{trust_table(entries)}"


def _mean(runs: list[dict[str, Any]], key: str) -> str:
    return f"{statistics.mean(entry[key] for entry in runs):.4f}"
