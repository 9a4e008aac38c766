"""The quality tables of text classification: rows, one run of a side, accuracy and calibration, coverage, detection."""

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import classifiers
from benchmarks.classifiers import TRAINER, Data, Row, accuracy, error_of_chance, expected_calibration_error
from benchmarks.foreign import TEXTS, foreign_texts
from benchmarks.harness import DATA, Options, table
from benchmarks.kept import stated_origin
from benchmarks.our_side import OURS, OURS_DEFAULTS
from benchmarks.spread import lead, spread
from benchmarks.texts import labelled_texts
from benchmarks.trainer_peers import BATCH, LEARNING_RATE
from benchmarks.trust import detection_table, trust_table
from benchmarks.workers import Worker

EPOCHS = {"sst2": 3, "clinc150": 5, "ag_news": 3}
AG_NEWS_TRAIN, AG_NEWS_VALIDATION = 2_000, 1_000
# Where ours trains otherwise by default: for three epochs, and in batches of 16 up to 2,000 rows.
OTHER_DEFAULTS = ("clinc150", "ag_news")

Run = Mapping[str, Any]


def sides_of(dataset: str) -> tuple[str, ...]:
    """Return who is trained on a data set."""
    return (OURS, *((OURS_DEFAULTS,) if dataset in OTHER_DEFAULTS else ()), TRAINER)


def single(dataset: str, seed: int, side: str, options: Options) -> dict[str, Any]:
    """Train and test once, in a process of its own."""
    data = load(dataset, quick=options.quick)
    epochs = 1 if options.quick else EPOCHS[dataset]
    with Worker(classifiers.build, side, options.threads, options.device) as worker:
        began = time.perf_counter()
        trained = worker.call("train", data, epochs, seed)
        found = worker.call("probabilities", [row["text"] for row in data.test])
        trusted = worker.call("trust", data)
    return {
        "accuracy": accuracy(found, data.test),
        "ece": expected_calibration_error(found.raw, found.labels, data.test),
        "ece_calibrated": expected_calibration_error(found.calibrated, found.labels, data.test),
        "ece_of_chance": error_of_chance(found.calibrated),
        "validation_accuracy": trained["validation_accuracy"],
        "loop_seconds": trained["wall"],
        "seconds": time.perf_counter() - began,
        "rows": {"train": len(data.train), "validation": len(data.validation), "test": len(data.test)},
        **trusted,
    }


def load(dataset: str, *, quick: bool) -> Data:
    """The rows of a data set; the same for every seed and side."""
    folder = DATA / dataset
    if not folder.exists():
        raise SystemExit(f"the quality benchmark needs ../shared/data/{dataset}, which is not there")
    train, test = (labelled_texts(folder / f"{part}.jsonl.gz") for part in ("train", "test"))
    foreign = foreign_texts(dataset, 24 if quick else TEXTS)
    if dataset == "ag_news":
        random.Random(2_000).shuffle(train)
        validation = train[AG_NEWS_TRAIN : AG_NEWS_TRAIN + AG_NEWS_VALIDATION]
        train = train[:AG_NEWS_TRAIN]
    else:
        validation = labelled_texts(folder / "validation.jsonl.gz")
    if quick:
        names = set(sorted({row["label"] for row in train})[:3])
        train, validation, test = ([row for row in rows if row["label"] in names] for rows in (train, validation, test))
        return Data(_spaced(train, 48), _spaced(validation, 128), _spaced(test, 24), foreign)
    return Data(train, validation, test, foreign)


def _spaced(rows: list[Row], count: int) -> list[Row]:
    """``count`` rows at equal distances: files that are sorted by label keep all of their labels."""
    step = max(1, len(rows) // count)
    return rows[::step][:count]


def classifiers_table(entries: Sequence[Run], options: Options) -> str:
    """Return accuracy and calibration of each side over its seeds, and ours minus it over those of both."""
    rows = []
    for dataset in dict.fromkeys(entry["dataset"] for entry in entries):
        of_data = [entry for entry in entries if entry["dataset"] == dataset]
        ours = {name: _figures(of_data, OURS, name) for name in ("accuracy", "ece_calibrated")}
        mark = " *" if dataset == "sst2" else ""
        for side in dict.fromkeys(entry["side"] for entry in of_data):
            own = {name: _figures(of_data, side, name) for name in (*ours, "ece", "ece_of_chance")}
            other = side != OURS
            rows.append(
                [
                    f"{dataset} ({of_data[0]['rows']['train']:,} rows, {EPOCHS[dataset]} epochs)",
                    side,
                    str(len(own["accuracy"])),
                    spread(list(own["accuracy"].values())),
                    lead(ours["accuracy"], own["accuracy"]) if other else "",
                    spread(list(own["ece"].values())),
                    spread(list(own["ece_calibrated"].values())) + mark,
                    lead(ours["ece_calibrated"], own["ece_calibrated"], lower_is_better=True) if other else "",
                    spread(list(own["ece_of_chance"].values())),
                ]
            )
    header = (
        "data", "side", "seeds", "test accuracy", "ours minus it", "ECE uncalibrated", "ECE calibrated",
        "ours minus it", "by chance",
    )  # fmt: skip
    mine = [entry for entry in entries if entry["side"] in (OURS, OURS_DEFAULTS)]
    note = (
        f"Means and standard deviations over the seeds. Batch {BATCH}, learning rate {LEARNING_RATE:g}, linear with "
        f"10 % warm-up, weight decay 0.01, device {options.device}; both sides keep the latest epoch within a standard "
        f"error of the best on the validation rows. {OURS_DEFAULTS}: no option of training but the seed, so 3 epochs, "
        "and batches of 16 up to 2,000 rows. ECE: 15 bins of equal mass on the test rows; calibrated: ours by the "
        "method that the validation rows choose, the Trainer by a temperature fitted on them; by chance: what a model "
        "that is right exactly as often as it says would show with as many rows. A mean difference not larger than its "
        "deviation over the seeds is a tie. *: that a temperature may depend on the entropy was decided on SST-2's "
        "test rows (docs/LOG.md), which so confirm nothing of it; the other data sets do. "
        f"{stated_origin(mine, [entry for entry in entries if entry not in mine])}"
    )
    return f"{note}\n\n{table(header, rows)}"


def coverage_tables(entries: Sequence[Run], _: Options) -> str:
    """Return the tables of label sets and of foreign texts."""
    note = (
        "Label sets of ours that are to hold the true label with a given probability, on the test rows, which chose "
        f"neither epoch nor calibration. {stated_origin(entries)}"
    )
    detected = (
        "Foreign texts: AUROC against the test rows, and the share above the threshold that keeps 95 % of the "
        "validation rows. All detectors read the same model and learn from its training and validation rows alone. The "
        "default detector was chosen on CLINC150's own texts without an intent, test rows among them, and on these and "
        "other kinds of text by classifiers of SST-2, AG News and CLINC150; BBC News confirmed it (docs/LOG.md)."
    )
    return f"{note}\n\n{trust_table(entries)}\n\n{detected}\n\n{detection_table(entries)}"


def _figures(entries: Sequence[Run], side: str, name: str) -> dict[int, float]:
    """A side's figure for each seed."""
    return {entry["seed"]: entry[name] for entry in entries if entry["side"] == side}
