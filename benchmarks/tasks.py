"""Data sets of the training benchmarks, and the metrics that all sides are judged by.

The metrics are those of other packages (seqeval, SciPy) or a few lines here, so that no side is judged by its own.
"""

import random
import re
import string
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from benchmarks.harness import DATA
from benchmarks.texts import labelled_texts, read_rows

Row = dict[str, Any]
Kind = Literal["texts", "tagging", "pairs", "ranking", "scored_pairs", "embedding", "answering"]
Metrics = Callable[[Sequence[Row], Sequence[Any]], dict[str, float]]

_PAIR = ("text_a", "text_b")
TEXT_COLUMNS: dict[Kind, tuple[str, ...]] = {
    "texts": ("text",),
    "pairs": _PAIR,
    "ranking": _PAIR,
    "scored_pairs": _PAIR,
}
SCORED: Kind = "scored_pairs"
PARTS = ("train", "validation", "test")
AG_NEWS_TRAIN, AG_NEWS_VALIDATION = 2_000, 1_000


@dataclass(frozen=True)
class TaskData:
    """Rows of one task."""

    kind: Kind
    train: list[Row]
    validation: list[Row]  # they choose the epoch
    test: list[Row]
    epochs: int
    score: Metrics  # from test rows and an answer for each to named figures; the first is the one to compare


def load(name: str, *, quick: bool = False) -> TaskData:
    """Read a data set; with ``quick`` a few rows of it."""
    if not DATA.exists():
        raise SystemExit(f"the benchmark needs ../shared/data/{name}, which is not there")
    data = _LOADERS[name]()
    return replace(data, **{part: _spaced(getattr(data, part), 48) for part in PARTS}, epochs=1) if quick else data


def _spaced(rows: list[Row], count: int) -> list[Row]:
    """Return ``count`` rows: of the first three labels, at equal distances where files are sorted by label."""
    if "label" in rows[0] and "text" in rows[0]:
        names = sorted({row["label"] for row in rows})[:3]
        rows = [row for row in rows if row["label"] in names]
        return rows[:: max(1, len(rows) // count)][:count]
    return rows[:count]


def _parts(folder: str) -> list[list[Row]]:
    return [list(read_rows(DATA / f"{folder}/{part}.jsonl.gz")) for part in PARTS]


def _texts(folder: str, epochs: int) -> TaskData:
    parts = [labelled_texts(DATA / f"{folder}/{part}.jsonl.gz") for part in PARTS]
    return TaskData("texts", *parts, epochs=epochs, score=label_metrics)


def _ag_news() -> TaskData:
    """Rows of a fixed shuffle of the training file, and the full test file."""
    train, test = (labelled_texts(DATA / f"ag_news/{part}.jsonl.gz") for part in ("train", "test"))
    random.Random(2_000).shuffle(train)
    held = train[AG_NEWS_TRAIN : AG_NEWS_TRAIN + AG_NEWS_VALIDATION]
    return TaskData("texts", train[:AG_NEWS_TRAIN], held, test, 3, label_metrics)


def _pairs(folder: str, kind: Kind, score: Metrics) -> TaskData:
    columns = ("text_a", "text_b", "label" if kind in ("pairs", "ranking") else "score")
    parts = [[{name: row[name] for name in columns} for row in rows] for rows in _parts(folder)]
    return TaskData(kind, *parts, epochs=3, score=score)


def _squad_v1() -> TaskData:
    """One half of the articles to learn from, the other to be judged by; two titles of the first are held out."""
    rows = list(read_rows(DATA / "squad_v1/validation.jsonl.gz"))
    first, second = ([row for row in rows if row["half"] == half] for half in "ab")
    titles = sorted({row["title"] for row in first})
    held = set(titles[:: max(1, len(titles) // 3)][:2])
    train = [row for row in first if row["title"] not in held]
    return TaskData("answering", train, [row for row in first if row["title"] in held], second, 2, answer_metrics)


_LOADERS: dict[str, Callable[[], TaskData]] = {
    "sst2": lambda: _texts("sst2", 3),
    "clinc150": lambda: _texts("clinc150", 5),
    "ag_news": _ag_news,
    "wnut17": lambda: TaskData("tagging", *_parts("wnut17"), epochs=5, score=span_f1),
    "ud_ewt_pos": lambda: TaskData("tagging", *_parts("ud_ewt_pos"), epochs=3, score=token_accuracy),
    "sick": lambda: _pairs("sick", "pairs", label_metrics),
    "trecqa": lambda: _pairs("trecqa", "ranking", mean_average_precision),
    "stsb_cross": lambda: _pairs("stsb", "scored_pairs", correlation),
    "stsb_bi": lambda: _pairs("stsb", "embedding", correlation),
    "squad_v1": _squad_v1,
}
NAMES = tuple(_LOADERS)


def span_f1(rows: Sequence[Row], answers: Sequence[Any]) -> dict[str, float]:
    """Return seqeval's span F1, and the share of words whose tag is right."""
    from seqeval.metrics import f1_score

    return {"span F1": float(f1_score([row["tags"] for row in rows], list(answers))), **token_accuracy(rows, answers)}


def token_accuracy(rows: Sequence[Row], answers: Sequence[Any]) -> dict[str, float]:
    """Return the share of words whose tag is right."""
    pairs = [pair for row, tags in zip(rows, answers, strict=True) for pair in zip(row["tags"], tags, strict=True)]
    return {"token accuracy": float(np.mean([one == other for one, other in pairs]))}


def label_metrics(rows: Sequence[Row], answers: Sequence[Any]) -> dict[str, float]:
    """Return accuracy, and the expected calibration error over 15 bins of equal mass.

    The error is that of Naeini et al. 2015 with the bins of Nguyen and O'Connor 2015.
    """
    best = [max(answer, key=answer.get) for answer in answers]
    right = np.array([row["label"] == label for row, label in zip(rows, best, strict=True)])
    confidence = np.array([answer[label] for answer, label in zip(answers, best, strict=True)])
    bins = [part for part in np.array_split(np.argsort(confidence, kind="stable"), 15) if len(part)]
    gaps = [len(part) * abs(confidence[part].mean() - right[part].mean()) for part in bins]
    return {"accuracy": float(right.mean()), "ECE": float(sum(gaps) / len(right))}


def correlation(rows: Sequence[Row], answers: Sequence[Any]) -> dict[str, float]:
    """Return Spearman's and Pearson's correlation."""
    from scipy.stats import pearsonr, spearmanr

    truth = [row["score"] for row in rows]
    return {"Spearman": float(spearmanr(truth, answers)[0]), "Pearson": float(pearsonr(truth, answers)[0])}


def mean_average_precision(rows: Sequence[Row], answers: Sequence[Any]) -> dict[str, float]:
    """Return MAP and MRR over the questions that have both right and wrong candidates, as is usual for TREC-QA.

    Of equal scores the wrong candidate comes first: in the files the right ones do, which ties must not profit from.
    """
    precisions = average_precisions(rows, answers)
    return {name: float(np.mean(values)) for name, values in zip(("MAP", "MRR"), precisions, strict=True)}


def average_precisions(rows: Sequence[Row], answers: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Return the average precision and the reciprocal rank of each question."""
    groups: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for row, answer in zip(rows, answers, strict=True):
        groups[row["text_a"]].append((answer["yes"], row["label"] == "yes"))
    precisions, reciprocals = [], []
    for candidates in groups.values():
        right = [relevant for _, relevant in sorted(candidates, key=lambda each: (-each[0], each[1]))]
        if any(right) and not all(right):
            hits = np.flatnonzero(right)
            precisions.append(float(np.mean((np.arange(len(hits)) + 1) / (hits + 1))))
            reciprocals.append(float(1 / (hits[0] + 1)))
    return precisions, reciprocals


def answer_metrics(rows: Sequence[Row], answers: Sequence[Any]) -> dict[str, float]:
    """Return F1 and exact match as SQuAD 2.0's script has them.

    Both are the best over the gold answers that are more than articles and punctuation; no answer is an empty string.
    """
    overlaps, matches = [], []
    for row, answer in zip(rows, answers, strict=True):
        golds = [words for gold in row["answers"] if (words := _words(gold["text"]))] or [[]]
        found = _words(answer)
        overlaps.append(max(_overlap(gold, found) for gold in golds))
        matches.append(any(gold == found for gold in golds))
    return {"F1": float(np.mean(overlaps)), "exact match": float(np.mean(matches))}


def _words(text: str) -> list[str]:
    """Return the words in lower case without punctuation and articles."""
    plain = "".join(each for each in text.lower() if each not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def _overlap(gold: list[str], found: list[str]) -> float:
    if not gold or not found:
        return float(gold == found)
    common = sum((Counter(gold) & Counter(found)).values())
    return 2 * common / (len(gold) + len(found))
