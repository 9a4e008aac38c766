"""Our side of the quality table of the other tasks, and one run of either side."""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.classifiers import BATCH, LEARNING_RATE, OURS
from benchmarks.harness import MODEL, Options, table
from benchmarks.task_data import Row, TaskData, load
from benchmarks.task_peers import PEERS, QA_LENGTH
from benchmarks.trainer_peers import SCORED
from benchmarks.workers import Worker

PEER = "peer"


class OurSide:
    """This package, as a user calls it."""

    def __init__(self, threads: int, device: str, checkpoint: str | Path = MODEL) -> None:
        import torch

        torch.set_num_threads(threads)
        self.device = device
        self.checkpoint = checkpoint
        self.kind = ""
        self.model: Any = None

    def fit(self, data: TaskData, seed: int) -> None:
        """Train a fresh model."""
        self.train(
            data,
            validation=data.validation,
            epochs=data.epochs,
            learning_rate=LEARNING_RATE,
            batch_size=BATCH,
            seed=seed,
            show_progress=False,
        )

    def train(self, data: TaskData, **options: Any) -> None:  # noqa: ANN401
        """Train a fresh model with these options of ``fit``."""
        from bothways import PairClassifier, QuestionAnswerer, SentenceEmbedder, TextClassifier, TextTagger

        tasks = {
            "texts": TextClassifier,
            "scored_texts": TextClassifier,
            "tagging": TextTagger,
            "pairs": PairClassifier,
            "ranking": PairClassifier,
            "scored_pairs": PairClassifier,
            "answering": QuestionAnswerer,
            "embedding": SentenceEmbedder,
        }
        scored = data.kind in SCORED
        self.kind = data.kind
        self.model = tasks[data.kind].from_pretrained(
            self.checkpoint, device=self.device, **({"target": "regression"} if scored else {})
        )
        self.model.fit(data.train, **({"label": "score"} if scored else {}), **options)

    def answers(self, rows: Sequence[Row]) -> list[Any]:
        """What the task's metrics read, for each row."""
        if self.kind == "tagging":
            return [list(each.tags) for each in self.model.predict([row["tokens"] for row in rows])]
        if self.kind == "answering":
            asked = [(row["question"], row["context"]) for row in rows]
            return [each.answer or "" for each in self.model.predict(asked)]
        if self.kind == "embedding":
            firsts, seconds = (self.model.encode([row[side] for row in rows]) for side in ("text_a", "text_b"))
            return [float(cosine) for cosine in (firsts * seconds).sum(1)]
        inputs = [row["text"] if "text" in row else (row["text_a"], row["text_b"]) for row in rows]
        if self.kind == "ranking":  # what CrossEncoder ranks by
            return [each.probabilities for each in self.model.predict(inputs, calibrated=False)]
        found = self.model.predict(inputs)
        return [each.value if self.kind in SCORED else each.probabilities for each in found]


class Subject:
    """What a worker serves: one side, trained and judged."""

    def __init__(self, side: Any) -> None:  # noqa: ANN401
        self.side = side

    def run(self, name: str, seed: int, quick: bool) -> dict[str, Any]:
        """Train once, and the figures on the test rows."""
        return measured(self.side, load(name, quick=quick), seed)


def measured(side: Any, data: TaskData, seed: int) -> dict[str, Any]:  # noqa: ANN401
    """Train a side once; the figures on the test rows, the seconds and the rows."""
    began = time.perf_counter()
    side.fit(data, seed)
    trained = time.perf_counter()
    figures = data.score(data.test, side.answers(data.test))
    return {
        "figures": figures,
        "fit_seconds": trained - began,
        "test_seconds": time.perf_counter() - trained,
        "rows": {"train": len(data.train), "validation": len(data.validation), "test": len(data.test)},
        "epochs": data.epochs,
    }


def build(side: str, kind: str, threads: int, device: str) -> Subject:
    """The subject of a worker."""
    return Subject(OurSide(threads, device) if side == OURS else PEERS[kind](threads, device))


def single(name: str, seed: int, side: str, options: Options) -> dict[str, Any]:
    """Train and test once, in a process of its own."""
    kind = load(name, quick=True).kind
    with Worker(build, side, kind, options.threads, options.device) as worker:
        return dict(worker.call("run", name, seed, options.quick))


def common_seeds(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of one data set whose seed every side has, in the order of the seeds."""
    of_side: dict[str, set[int]] = {}
    for entry in entries:
        of_side.setdefault(entry["side"], set()).add(entry["seed"])
    common = set.intersection(*of_side.values())
    return sorted((entry for entry in entries if entry["seed"] in common), key=lambda entry: entry["seed"])


def tasks_table(entries: Sequence[dict[str, Any]], options: Options) -> str:
    """Means over the seeds that all sides have, both sides beside each other."""
    rows = []
    for name in dict.fromkeys(entry["dataset"] for entry in entries):
        of_data = [entry for entry in entries if entry["dataset"] == name]
        for side in options.chosen((OURS, PEER)):
            runs = [entry for entry in common_seeds(of_data) if entry["side"] == side]
            if runs:
                first, *others = runs[0]["figures"]
                rows.append(
                    [
                        f"{name} ({runs[0]['rows']['train']:,} rows, {runs[0]['epochs']} epochs)",
                        side,
                        f"{first} {statistics.mean(run['figures'][first] for run in runs):.4f}",
                        ", ".join(f"{run['seed']}: {run['figures'][first]:.4f}" for run in runs),
                        ", ".join(
                            f"{each} {statistics.mean(run['figures'][each] for run in runs):.4f}" for each in others
                        ),
                    ]
                )
    note = (
        f"Batch {BATCH}, learning rate {LEARNING_RATE:g}, linear with 10 % warm-up, device {options.device}. The peer "
        "is transformers' Trainer with length grouping; of embeddings (stsb_bi) sentence-transformers with CoSENT. The "
        "rest is each side's default: ours decays weights by 0.01, keeps an epoch that the validation rows choose and "
        "reads them for calibration and for the threshold of no answer; the Trainer decays nothing and looks at no "
        f"validation rows. Of questions with several answers ours learns all, the peer the first, in windows of "
        f"{QA_LENGTH} tokens, as in transformers' example. That the latest epoch within a standard error is kept was "
        "decided on SICK's test rows (docs/LOG.md)."
    )
    return f"{note}\n\n{table(('data', 'side', 'mean', 'seeds', 'also'), rows)}"
