"""Our side of the benchmarks that train: this package, as a user calls it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import MODEL
from benchmarks.task_data import SCORED, Row, TaskData
from benchmarks.trainer_peers import BATCH, LEARNING_RATE

# With the epochs, batch and rate of the peers, and with no option of training but the seed.
OURS, OURS_DEFAULTS = "bothways", "bothways, defaults"


class OurSide:
    """A model of ours.

    Args:
        threads: Compute threads.
        device: ``cpu`` or ``cuda``.
        checkpoint: The encoder.
        defaults: Leave epochs, batch size and learning rate to ``fit``.

    Attributes:
        more: Further options of ``fit``.
    """

    def __init__(self, threads: int, device: str, checkpoint: str | Path = MODEL, *, defaults: bool = False) -> None:
        import torch

        torch.set_num_threads(threads)
        self.device, self.checkpoint, self.defaults = device, checkpoint, defaults
        self.kind = ""
        self.more: dict[str, Any] = {}
        self.model: Any = None
        self.notes: dict[str, Any] = {}

    def fit(self, data: TaskData, seed: int) -> None:
        """Train a fresh model; without validation rows it holds some out."""
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
        scored, self.kind = data.kind in SCORED, data.kind
        self.model = tasks[data.kind].from_pretrained(
            self.checkpoint, device=self.device, **({"target": "regression"} if scored else {})
        )
        course = {"epochs": data.epochs, "learning_rate": LEARNING_RATE, "batch_size": BATCH}
        record = self.model.fit(
            data.train,
            validation=data.validation or None,
            seed=seed,
            show_progress=False,
            **({"label": "score"} if scored else {}),
            **({} if self.defaults else course),
            **self.more,
        )
        self.notes = {"kept epoch": record.kept_epoch}

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
