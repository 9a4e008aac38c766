"""Data sets of the tasks benchmark, and the metrics that both sides are judged by.

The metrics are those of other packages (seqeval, scipy) or a few lines here, so that neither side is judged by its own.
"""

import re
import string
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from benchmarks.harness import DATA
from benchmarks.texts import read_rows

Row = dict[str, Any]
Kind = Literal["texts", "scored_texts", "tagging", "pairs", "ranking", "scored_pairs", "embedding", "answering"]

TEXT_COLUMNS: dict[Kind, tuple[str, ...]] = {
    "texts": ("text",),
    "scored_texts": ("text",),
    "pairs": ("text_a", "text_b"),
    "ranking": ("text_a", "text_b"),
    "scored_pairs": ("text_a", "text_b"),
}
SCORED: tuple[Kind, ...] = ("scored_texts", "scored_pairs")


@dataclass(frozen=True)
class TaskData:
    """Rows of one task.

    Attributes:
        kind: What is to be learnt.
        train: Rows to learn from.
        validation: Rows to choose the best epoch by.
        test: Rows to be judged by.
        epochs: Passes over the training rows.
        score: From the test rows and an answer for each to named figures; the first is the one to compare.
    """

    kind: Kind
    train: list[Row]
    validation: list[Row]
    test: list[Row]
    epochs: int
    score: Callable[[Sequence[Row], Sequence[Any]], dict[str, float]]


def load(name: str, *, quick: bool) -> TaskData:
    """The rows of a data set; with ``quick`` a few of them."""
    if not DATA.exists():
        raise SystemExit("the tasks benchmark needs ../shared/data, which is not there")
    data = _LOADERS[name]()
    if not quick:
        return data
    few = {part: getattr(data, part)[:48] for part in ("train", "validation", "test")}
    return TaskData(data.kind, **few, epochs=1, score=data.score)


def _rows(name: str) -> list[Row]:
    return list(read_rows(DATA / name))


def _tagging(folder: str, epochs: int, score: Callable[[Sequence[Row], Sequence[Any]], dict[str, float]]) -> TaskData:
    parts = (_rows(f"{folder}/{part}.jsonl.gz") for part in ("train", "validation", "test"))
    return TaskData("tagging", *parts, epochs=epochs, score=score)


def _pairs(folder: str, kind: Kind, score: Callable[[Sequence[Row], Sequence[Any]], dict[str, float]]) -> TaskData:
    parts = [_rows(f"{folder}/{part}.jsonl.gz") for part in ("train", "validation", "test")]
    label = "label" if kind in ("pairs", "ranking") else "score"
    kept = [[{name: row[name] for name in ("text_a", "text_b", label)} for row in rows] for rows in parts]
    return TaskData(kind, *kept, epochs=3, score=score)


def _squad_v1() -> TaskData:
    """One half of the articles to learn from, the other to be judged by; two titles of the first are held out."""
    rows = _rows("squad_v1/validation.jsonl.gz")
    first, second = ([row for row in rows if row["half"] == half] for half in "ab")
    titles = sorted({row["title"] for row in first})
    held = set(titles[:: max(1, len(titles) // 3)][:2])
    train = [row for row in first if row["title"] not in held]
    return TaskData("answering", train, [row for row in first if row["title"] in held], second, 2, _answers)


def _squad_v2() -> TaskData:
    rows = _rows("squad_v2/train.jsonl.gz")
    held = sorted({row["title"] for row in rows})[0]
    train = [row for row in rows if row["title"] != held]
    validation = [row for row in rows if row["title"] == held]
    return TaskData("answering", train, validation, _rows("squad_v2/validation.jsonl.gz"), 2, _answers)


def _squad_v2_halves() -> TaskData:
    """The articles of the validation file by turns to learn from and to be judged by; the training file to learn from.

    Of the training file's questions 7 % have no answer, which no model can learn to see in half of them; of the
    validation file's 52 %, of which half alone are too few to learn from: both sides then answer nothing at all.
    """
    rows = _rows("squad_v2/validation.jsonl.gz")
    titles = sorted({row["title"] for row in rows})
    learnt, judged = titles[::2], titles[1::2]
    held = learnt[len(learnt) // 2]
    train, validation, test = (
        [row for row in rows if row["title"] in wanted] for wanted in (set(learnt) - {held}, {held}, set(judged))
    )
    train += _rows("squad_v2/train.jsonl.gz")
    return TaskData("answering", train, validation, test, 2, _answers)


def _subjqa() -> TaskData:
    parts = (_rows(f"subjqa/{part}.jsonl.gz") for part in ("train", "validation", "test"))
    return TaskData("answering", *parts, epochs=2, score=_answers)


_LOADERS: dict[str, Callable[[], TaskData]] = {
    "wnut17": lambda: _tagging("wnut17", 5, span_f1),
    "wikiann_en": lambda: _tagging("wikiann_en", 3, span_f1),
    "ud_ewt_pos": lambda: _tagging("ud_ewt_pos", 3, _token_accuracy),
    "sick": lambda: _pairs("sick", "pairs", label_accuracy),
    "trecqa": lambda: _pairs("trecqa", "ranking", mean_average_precision),
    "stsb_cross": lambda: _pairs("stsb", "scored_pairs", correlation),
    "stsb_causes": lambda: _pairs("stsb", "scored_pairs", correlation),
    "stsb_bi": lambda: _pairs("stsb", "embedding", correlation),
    "squad_v1": _squad_v1,
    "squad_v2": _squad_v2,
    "squad_v2_halves": _squad_v2_halves,
    "subjqa": _subjqa,
}
NAMES = tuple(_LOADERS)


def span_f1(rows: Sequence[Row], answers: Sequence[Any]) -> dict[str, float]:
    """Span F1 of seqeval, and the share of words whose tag is right."""
    from seqeval.metrics import f1_score

    truth = [row["tags"] for row in rows]
    return {"span F1": float(f1_score(truth, list(answers))), "token accuracy": _share(truth, answers)}


def _token_accuracy(rows: Sequence[Row], answers: Sequence[Any]) -> dict[str, float]:
    return {"token accuracy": _share([row["tags"] for row in rows], answers)}


def _share(truth: Sequence[Sequence[str]], answers: Sequence[Sequence[str]]) -> float:
    pairs = [pair for row in zip(truth, answers, strict=True) for pair in zip(*row, strict=True)]
    return float(np.mean([one == other for one, other in pairs]))


def label_accuracy(rows: Sequence[Row], answers: Sequence[Any]) -> dict[str, float]:
    """Share of rows whose most probable label is theirs."""
    best = [max(answer, key=answer.get) for answer in answers]
    return {"accuracy": float(np.mean([row["label"] == label for row, label in zip(rows, best, strict=True)]))}


def correlation(rows: Sequence[Row], answers: Sequence[Any]) -> dict[str, float]:
    """Spearman's and Pearson's correlation of numbers."""
    from scipy.stats import pearsonr, spearmanr

    truth = [row["score"] for row in rows]
    return {"Spearman": float(spearmanr(truth, answers)[0]), "Pearson": float(pearsonr(truth, answers)[0])}


def mean_average_precision(rows: Sequence[Row], answers: Sequence[Any]) -> dict[str, float]:
    """Over the questions that have both right and wrong candidates, as is usual for this data set.

    Of equal scores the wrong candidate comes first: in the files the right ones do, which ties must not profit from.
    """
    groups: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for row, answer in zip(rows, answers, strict=True):
        groups[row["text_a"]].append((answer["yes"], row["label"] == "yes"))
    precisions, firsts = [], []
    for candidates in groups.values():
        right = [relevant for _, relevant in sorted(candidates, key=lambda each: (-each[0], each[1]))]
        if any(right) and not all(right):
            hits = np.flatnonzero(right)
            precisions.append(np.mean((np.arange(len(hits)) + 1) / (hits + 1)))
            firsts.append(1 / (hits[0] + 1))
    return {"MAP": float(np.mean(precisions)), "MRR": float(np.mean(firsts))}


def _answers(rows: Sequence[Row], answers: Sequence[Any]) -> dict[str, float]:
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
    """Words in lower case without punctuation and articles."""
    plain = "".join(each for each in text.lower() if each not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def _overlap(gold: list[str], found: list[str]) -> float:
    """F1 of two bags of words; of nothing with nothing it is 1."""
    if not gold or not found:
        return float(gold == found)
    common = sum((Counter(gold) & Counter(found)).values())
    return 2 * common / (len(gold) + len(found))
