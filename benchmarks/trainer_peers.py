"""transformers' Trainer as a peer: what every task on it shares, taggers, and classifiers of texts and pairs.

It is used as its documentation shows. Predictions are made by a plain loop here, because its ``predict`` returns the
rows out of order when lengths are grouped.

Shapes: B rows or windows of a batch, S longest of them, W words of a text, C labels.
"""

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import minilm_folder
from benchmarks.task_data import Kind, Row, TaskData
from benchmarks.texts import MAX_TOKENS
from benchmarks.workers import AbsentPeerError

BATCH, LEARNING_RATE, WARM_UP = 32, 1e-4, 0.1
TEXT_COLUMNS: dict[Kind, tuple[str, ...]] = {
    "texts": ("text",),
    "scored_texts": ("text",),
    "pairs": ("text_a", "text_b"),
    "ranking": ("text_a", "text_b"),
    "scored_pairs": ("text_a", "text_b"),
}
SCORED: tuple[Kind, ...] = ("scored_texts", "scored_pairs")

Settings = Callable[[int], dict[str, Any]]


def common_settings(epochs: int) -> dict[str, Any]:
    """The settings of the quality tables, with rows in random order."""
    return {
        "num_train_epochs": epochs,
        "per_device_train_batch_size": BATCH,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "linear",
        "warmup_steps": WARM_UP,  # below 1 it is a share of all steps
    }


def grouped_settings(epochs: int) -> dict[str, Any]:
    """The settings of the quality tables, with rows of like lengths in a batch."""
    import transformers

    # Called group_by_length before version 5.
    new = "train_sampling_strategy" in {entry.name for entry in dataclasses.fields(transformers.TrainingArguments)}
    grouping = {"train_sampling_strategy": "group_by_length"} if new else {"group_by_length": True}
    return {**common_settings(epochs), **grouping}


class TransformersPeer:
    """What the peers on transformers' Trainer share.

    Args:
        threads: Compute threads.
        device: ``cpu`` or ``cuda``.
        checkpoint: The encoder's folder; MiniLM's when left out.
        settings: From epochs to settings of the Trainer; all others are its defaults.
    """

    def __init__(
        self, threads: int, device: str, checkpoint: Path | None = None, settings: Settings = grouped_settings
    ) -> None:
        try:
            import accelerate  # noqa: F401
            import transformers
        except ImportError as error:
            raise AbsentPeerError(str(error)) from error
        import torch

        torch.set_num_threads(threads)
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self.transformers = transformers
        self.device = device
        self.checkpoint = checkpoint or minilm_folder()
        self.settings = settings
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.checkpoint, model_max_length=MAX_TOKENS)
        self.model: Any = None

    def train(self, model: Any, rows: list[Any], collator: Any, epochs: int, seed: int) -> None:  # noqa: ANN401
        """Train a model on tokenised rows."""
        self.model = model
        with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as folder:
            trainer = self.transformers.Trainer(
                model=model,
                args=self.transformers.TrainingArguments(
                    output_dir=folder,
                    seed=seed,
                    save_strategy="no",
                    logging_strategy="no",
                    report_to="none",
                    disable_tqdm=True,
                    use_cpu=self.device == "cpu",
                    dataloader_pin_memory=self.device != "cpu",
                    **self.settings(epochs),
                ),
                train_dataset=rows,
                data_collator=collator,
                processing_class=self.tokenizer,
            )
            trainer.remove_callback(self.transformers.PrinterCallback)
            trainer.train()

    def outputs(self, encoded: Any) -> list[Any]:  # noqa: ANN401
        """The model's outputs of tokenised rows, one at a time, in their order; computed sorted by length."""
        import torch

        keys = [key for key in ("input_ids", "token_type_ids", "attention_mask") if key in encoded]
        count = len(encoded["input_ids"])
        order = sorted(range(count), key=lambda row: -len(encoded["input_ids"][row]))
        found: list[Any] = [None] * count
        self.model.eval()
        with torch.inference_mode():
            for start in range(0, count, BATCH):
                rows = order[start : start + BATCH]
                batch = self.tokenizer.pad(
                    {key: [encoded[key][row] for row in rows] for key in keys}, return_tensors="pt"
                )
                given = self.model(**batch.to(self.model.device))
                if "start_logits" in given:
                    scores = torch.stack([given.start_logits, given.end_logits], -1).cpu().numpy()
                else:
                    scores = given["logits" if "logits" in given else "last_hidden_state"].cpu().numpy()
                for row, each in zip(rows, scores, strict=True):
                    found[row] = each
        return found


class TaggingPeer(TransformersPeer):
    """Token classification; a word is tagged by its first piece."""

    def fit(self, data: TaskData, seed: int) -> None:
        """Train a fresh model."""
        self.labels = sorted({tag for row in data.train for tag in row["tags"]})
        self.transformers.set_seed(seed)
        model = self.transformers.AutoModelForTokenClassification.from_pretrained(
            self.checkpoint, num_labels=len(self.labels)
        )
        encoded = self._encoded(data.train)
        rows = []
        for index, row in enumerate(data.train):
            marks = [
                -100 if place is None else self.labels.index(row["tags"][place])
                for place in self._first(encoded, index)
            ]
            ids = encoded["input_ids"][index]
            rows.append({"input_ids": ids, "attention_mask": [1] * len(ids), "labels": marks})
        collator = self.transformers.DataCollatorForTokenClassification(self.tokenizer)
        self.train(model, rows, collator, data.epochs, seed)

    def answers(self, rows: Sequence[Row]) -> list[list[str]]:
        """A tag for each word."""
        tags = [["O"] * len(row["tokens"]) for row in rows]
        for of_text, (words, scores_WC) in zip(tags, self.word_outputs(rows), strict=True):
            if words:
                for word, tag in zip(words, self.decoded(scores_WC), strict=True):
                    of_text[word] = tag
        return tags

    def decoded(self, scores_WC: np.ndarray) -> list[str]:
        """The best tag of each word by itself."""
        return [self.labels[best] for best in scores_WC.argmax(1)]

    def word_outputs(self, rows: Sequence[Row]) -> list[tuple[list[int], np.ndarray]]:
        """For each text the words that the model reads, and its outputs at their first pieces."""
        encoded = self._encoded(rows)
        found = []
        for index, outputs_SC in enumerate(self.outputs(encoded)):
            places = {word: place for place, word in enumerate(self._first(encoded, index)) if word is not None}
            found.append((list(places), outputs_SC[list(places.values())]))
        return found

    def _encoded(self, rows: Sequence[Row]) -> Any:  # noqa: ANN401
        return self.tokenizer([row["tokens"] for row in rows], is_split_into_words=True, truncation=True)

    @staticmethod
    def _first(encoded: Any, index: int) -> list[int | None]:  # noqa: ANN401
        """The word of each first piece; None for other pieces and special tokens."""
        words = encoded.word_ids(index)
        return [word if word != before else None for before, word in zip([None, *words], words, strict=False)]


class SequencePeer(TransformersPeer):
    """Texts or pairs with a label or a number."""

    columns: tuple[str, ...] = ("text_a", "text_b")

    def fit(self, data: TaskData, seed: int) -> None:
        """Train a fresh model."""
        scored = data.kind in SCORED
        self.columns = TEXT_COLUMNS[data.kind]
        self.labels = [] if scored else sorted({row["label"] for row in data.train})
        self.transformers.set_seed(seed)
        model = self.transformers.AutoModelForSequenceClassification.from_pretrained(
            self.checkpoint,
            num_labels=1 if scored else len(self.labels),
            problem_type="regression" if scored else "single_label_classification",
        )
        encoded = self._encoded(data.train)
        rows = [
            {
                **{key: encoded[key][index] for key in ("input_ids", "token_type_ids", "attention_mask")},
                "labels": float(row["score"]) if scored else self.labels.index(row["label"]),
            }
            for index, row in enumerate(data.train)
        ]
        self.train(model, rows, self.transformers.DataCollatorWithPadding(self.tokenizer), data.epochs, seed)

    def answers(self, rows: Sequence[Row]) -> list[Any]:
        """Probabilities by label, or a number, for each row."""
        if not self.labels:
            return [float(scores_C[0]) for scores_C in self.outputs(self._encoded(rows))]
        return [dict(zip(self.labels, row, strict=True)) for row in self.probabilities(rows).tolist()]

    def probabilities(self, rows: Sequence[Row]) -> np.ndarray:
        """Softmax of the logits [rows, labels]."""
        logits_BC = np.stack(self.outputs(self._encoded(rows))).astype(np.float64)
        exponentials_BC = np.exp(logits_BC - logits_BC.max(1, keepdims=True))
        return exponentials_BC / exponentials_BC.sum(1, keepdims=True)

    def _encoded(self, rows: Sequence[Row]) -> Any:  # noqa: ANN401
        return self.tokenizer(*([row[column] for row in rows] for column in self.columns), truncation=True)
