"""The sets of the small-data benchmark, and how training and test rows are drawn from them.

No rows to validate on are given: each contestant gets the training rows alone and holds out what it needs.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from benchmarks import tasks
from benchmarks.harness import DATA
from benchmarks.tasks import SCORED, Row, TaskData, correlation, label_metrics
from benchmarks.texts import labelled_texts

# Rows of each class, a number of rows, or the whole training file.
A_CLASS = 8
SIZES = (str(A_CLASS), "100", "500", "2000", "all")
AT_LEAST = 2  # rows of each class at the other sizes: one to learn from and one to hold out
FEW_ROWS, FEW_SEEDS, SEEDS = 500, (1, 2, 3, 4, 5), (1, 2, 3)
BINS = 5  # what stands for classes where numbers are predicted: fifths of the training rows


def number_metrics(rows: Sequence[Row], answers: Sequence[Any]) -> dict[str, float]:
    """Return R2, which sees a wrong scale, and the correlations, which do not (0 for a constant answer)."""
    truth, found = np.array([row["score"] for row in rows]), np.array(answers)
    spread = float(((truth - truth.mean()) ** 2).sum())
    r2 = 1 - float(((truth - found) ** 2).sum()) / spread if spread else 0.0
    correlations = correlation(rows, answers) if spread and np.ptp(found) else {"Spearman": 0.0, "Pearson": 0.0}
    return {"R2": r2, **correlations}


def _texts(folder: str) -> TaskData:
    train, test = (labelled_texts(DATA / folder / f"{part}.jsonl.gz") for part in ("train", "test"))
    return TaskData("texts", train, [], test, 3, label_metrics)


def _task(name: str) -> TaskData:
    data = replace(tasks.load(name), validation=[])
    return replace(data, score=number_metrics) if data.kind == SCORED else data


_LOADERS: dict[str, Callable[[], TaskData]] = {
    **{name: partial(_texts, name) for name in ("sst2", "ag_news", "bbc_news", "clinc150", "imdb")},
    **{name: partial(_task, task) for name, task in (("sick", "sick"), ("trecqa", "trecqa"), ("stsb", "stsb_cross"))},
}
SETS = tuple(_LOADERS)


@cache
def load(name: str) -> TaskData:
    """Read the whole of a set.

    Raises:
        SystemExit: The data are not on this machine.
    """
    if not DATA.exists():
        raise SystemExit("the small_data benchmark needs ../shared/data, which is not there")
    return _LOADERS[name]()


def drawn(data: TaskData, size: str, seed: int, test_rows: int) -> TaskData | None:
    """Return the set with so many training and test rows; None where it has no such size.

    The training rows are drawn from all rows alike, but for two of each class; ``8`` means 8 of each class. A size is
    missing where it would be the whole set, or less than two rows of each class. The test rows, 0 for all, are the same
    for every seed; of rankings they are whole questions.
    """
    order = list(data.train)
    random.Random(seed).shuffle(order)
    classes = _classes(data, order)
    if size == "all":
        chosen = range(len(order))
    elif size == str(A_CLASS):
        chosen = _of_each(classes, A_CLASS)
    else:
        first = _of_each(classes, AT_LEAST)
        if not len(first) <= int(size) < len(order):
            return None
        others = sorted(set(range(len(order))) - set(first))
        chosen = sorted([*first, *others[: int(size) - len(first)]])
    return replace(data, train=[order[index] for index in chosen], test=_test_rows(data, test_rows))


def usual_seeds(rows: int) -> tuple[int, ...]:
    """Return three seeds, and five where few training rows make the draw matter more."""
    return FEW_SEEDS if rows < FEW_ROWS else SEEDS


def _classes(data: TaskData, rows: Sequence[Row]) -> list[Any]:
    """Return the class of each row: its label, or the bin of its number."""
    if data.kind == SCORED:
        borders = np.quantile([row["score"] for row in data.train], np.arange(1, BINS) / BINS)
        return [int(np.searchsorted(borders, row["score"])) for row in rows]
    return [row["label"] for row in rows]


def _of_each(classes: Sequence[Any], count: int) -> list[int]:
    """Return the first rows that complete ``count`` of each class, as far as there are so many."""
    having: Counter[Any] = Counter()
    chosen = []
    for index, name in enumerate(classes):
        if having[name] < count:
            having[name] += 1
            chosen.append(index)
    return chosen


def _test_rows(data: TaskData, most: int) -> list[Row]:
    if not most or len(data.test) <= most:
        return data.test
    groups: dict[Any, list[Row]] = {}
    for index, row in enumerate(data.test):
        groups.setdefault(row["text_a"] if data.kind == "ranking" else index, []).append(row)
    order = list(groups.values())
    random.Random(0).shuffle(order)
    rows: list[Row] = []
    for group in order:
        if len(rows) >= most:
            break
        rows += group
    return rows
