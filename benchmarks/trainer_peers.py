"""transformers' Trainer as a peer: what every task on it shares, taggers, and classifiers of texts and pairs.

It is used as its documentation shows, with our settings, and keeps the epoch that our rule chooses where there are
validation rows. Predictions are made by a plain loop here, because its ``predict`` returns the rows out of order when
lengths are grouped.

Shapes: B rows or windows of a batch, S longest of them, W words of a text, C labels.
"""

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.epochs import EpochChoice, validation_score
from benchmarks.harness import minilm_folder
from benchmarks.tag_decoding import valid_tags
from benchmarks.task_data import SCORED, TEXT_COLUMNS, Row, TaskData
from benchmarks.texts import MAX_TOKENS
from benchmarks.workers import AbsentPeerError

BATCH, LEARNING_RATE, WARM_UP, WEIGHT_DECAY = 32, 1e-4, 0.1, 0.01
VALID = "valid decoding"

Settings = Callable[[int], dict[str, Any]]


def quiet_transformers(threads: int) -> Any:  # noqa: ANN401
    """Return transformers, which computes on so many threads and prints errors alone.

    Raises:
        AbsentPeerError: It or accelerate, which its Trainer needs, is not installed.
    """
    try:
        import accelerate  # noqa: F401
        import transformers
    except ImportError as error:
        raise AbsentPeerError(str(error)) from error
    import torch

    torch.set_num_threads(threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def quiet_settings(folder: str, seed: int) -> dict[str, Any]:
    """Return the settings of any Trainer that saves and reports nothing."""
    off = {"save_strategy": "no", "logging_strategy": "no", "report_to": "none"}
    return {"output_dir": folder, "seed": seed, **off}


def common_settings(epochs: int) -> dict[str, Any]:
    """Return the settings of the quality tables: those of ours; the rows come in random order."""
    return {
        "num_train_epochs": epochs,
        "per_device_train_batch_size": BATCH,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "linear",
        "warmup_steps": WARM_UP,  # below 1 it is a share of all steps
        "weight_decay": WEIGHT_DECAY,
    }


def grouped_settings(epochs: int) -> dict[str, Any]:
    """Return the same with rows of like lengths in a batch, which is faster."""
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

    chooses_epoch = True

    def __init__(
        self, threads: int, device: str, checkpoint: Path | None = None, settings: Settings = common_settings
    ) -> None:
        transformers = self.transformers = quiet_transformers(threads)
        self.device = device
        self.checkpoint = checkpoint or minilm_folder()
        self.settings = settings
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.checkpoint, model_max_length=MAX_TOKENS)
        self.model: Any = None
        self.notes: dict[str, Any] = {}

    def answers(self, rows: Sequence[Row]) -> list[Any]:
        """What the task's metrics read, for each row."""
        raise NotImplementedError

    def all_answers(self, rows: Sequence[Row]) -> dict[str, list[Any]]:
        """Every reading of the same outputs by its name; that of `answers` has none."""
        return {"": self.answers(rows)}

    def validate(self, data: TaskData) -> tuple[float, float]:
        """Return the validation score of the model as it is, and its standard error."""
        return validation_score(data, self.answers(data.validation))

    def train(self, model: Any, rows: list[Any], collator: Any, data: TaskData, seed: int) -> None:  # noqa: ANN401
        """Train a model on tokenised rows, and keep the epoch that the validation rows choose."""
        self.model = model
        choice = EpochChoice(model, lambda: self.validate(data))
        chosen = self.chooses_epoch and bool(data.validation) and data.epochs > 1
        with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as folder:
            trainer = self.transformers.Trainer(
                model=model,
                args=self.transformers.TrainingArguments(
                    **quiet_settings(folder, seed),
                    disable_tqdm=True,
                    use_cpu=self.device == "cpu",
                    dataloader_pin_memory=self.device != "cpu",
                    **self.settings(data.epochs),
                ),
                train_dataset=rows,
                data_collator=collator,
                processing_class=self.tokenizer,
                callbacks=[choice.callback(self.transformers)] if chosen else None,
            )
            trainer.remove_callback(self.transformers.PrinterCallback)
            trainer.train()
        if chosen:
            self.notes = {"kept epoch": choice.restore()}

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
        self.train(model, rows, collator, data, seed)

    def answers(self, rows: Sequence[Row]) -> list[list[str]]:
        """The best tag of each word by itself, as transformers' example has it."""
        return self.all_answers(rows)[""]

    def all_answers(self, rows: Sequence[Row]) -> dict[str, list[list[str]]]:
        """The same, and where tags make up spans the best valid sequence by the same logits."""
        outputs = self.word_outputs(rows)
        found = {"": _tags(rows, outputs, lambda scores_WC: [self.labels[best] for best in scores_WC.argmax(1)])}
        if any(label.startswith("B-") for label in self.labels):
            found[VALID] = _tags(rows, outputs, self._valid)
        return found

    def validate(self, data: TaskData) -> tuple[float, float]:
        """Return the score of valid sequences where there are some: ours chooses by those."""
        found = self.all_answers(data.validation)
        return validation_score(data, found.get(VALID, found[""]))

    def _valid(self, scores_WC: np.ndarray) -> list[str]:
        return valid_tags(self.labels, scores_WC.astype(np.float64), [len(scores_WC)])[0]

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


class ValidTaggingPeer(TaggingPeer):
    """Token classification whose answers are valid sequences where tags make up spans."""

    def answers(self, rows: Sequence[Row]) -> list[list[str]]:
        """The best valid sequence."""
        found = self.all_answers(rows)
        return found.get(VALID, found[""])


class SequencePeer(TransformersPeer):
    """Texts or pairs with a label or a number."""

    columns: tuple[str, ...] = ("text_a", "text_b")
    standardises = False
    scale = 0.0, 1.0  # mean and deviation of the numbers as they are learnt

    def fit(self, data: TaskData, seed: int) -> None:
        """Train a fresh model."""
        scored = data.kind in SCORED
        self.columns = TEXT_COLUMNS[data.kind]
        self.labels = [] if scored else sorted({row["label"] for row in data.train})
        if scored and self.standardises:
            self.scale = mean_and_deviation([row["score"] for row in data.train])
        mean, deviation = self.scale
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
                "labels": (row["score"] - mean) / deviation if scored else self.labels.index(row["label"]),
            }
            for index, row in enumerate(data.train)
        ]
        self.train(model, rows, self.transformers.DataCollatorWithPadding(self.tokenizer), data, seed)

    def answers(self, rows: Sequence[Row]) -> list[Any]:
        """Probabilities by label, or a number, for each row."""
        if not self.labels:
            mean, deviation = self.scale
            return [float(scores_C[0]) * deviation + mean for scores_C in self.outputs(self._encoded(rows))]
        return [dict(zip(self.labels, row, strict=True)) for row in self.probabilities(rows).tolist()]

    def probabilities(self, rows: Sequence[Row]) -> np.ndarray:
        """Softmax of the logits [rows, labels]."""
        from scipy.special import softmax

        return np.asarray(softmax(self.logits(rows), axis=1))

    def logits(self, rows: Sequence[Row]) -> np.ndarray:
        """The logits [rows, labels]."""
        return np.stack(self.outputs(self._encoded(rows))).astype(np.float64)

    def _encoded(self, rows: Sequence[Row]) -> Any:  # noqa: ANN401
        return self.tokenizer(*([row[column] for row in rows] for column in self.columns), truncation=True)


class StandardisingPeer(SequencePeer):
    """Texts or pairs whose numbers are learnt in units of their deviation from the mean."""

    standardises = True


def mean_and_deviation(numbers: Sequence[float]) -> tuple[float, float]:
    """Return both; the deviation of numbers that are all alike is 1."""
    return float(np.mean(numbers)), float(np.std(numbers)) or 1.0


def _tags(
    rows: Sequence[Row],
    outputs: Sequence[tuple[list[int], np.ndarray]],
    decode: Callable[[np.ndarray], list[str]],
) -> list[list[str]]:
    """Return a tag for each word; words that the model does not read are outside of spans."""
    tags = [["O"] * len(row["tokens"]) for row in rows]
    for of_text, (words, scores_WC) in zip(tags, outputs, strict=True):
        if words:
            for word, tag in zip(words, decode(scores_WC), strict=True):
                of_text[word] = tag
    return tags
