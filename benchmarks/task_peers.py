"""The peers of the tasks benchmark: transformers' Trainer and sentence-transformers, as their documentation shows them.

MiniLM, batch 32, AdamW, linear schedule with 10 % warm-up, the learning rate and epochs of our side. The Trainer groups
by length and keeps the last epoch, as it does unless told otherwise.

Shapes: B rows or windows of a batch, S longest of them, C labels.
"""

import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.classifiers import BATCH, LEARNING_RATE, WARM_UP, trainer_arguments
from benchmarks.harness import minilm_folder
from benchmarks.task_data import Row, TaskData
from benchmarks.texts import MAX_TOKENS
from benchmarks.workers import AbsentPeerError

QA_LENGTH, QA_STRIDE, QA_BEST, QA_LONGEST = 384, 128, 20, 30


class TransformersPeer:
    """What the peers on transformers' Trainer share."""

    def __init__(self, threads: int, device: str) -> None:
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
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_folder(), model_max_length=MAX_TOKENS)
        self.model: Any = None

    def train(self, model: Any, rows: list[Any], collator: Any, epochs: int, seed: int) -> None:  # noqa: ANN401
        """Train a model on tokenised rows."""
        self.model = model
        with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as folder:
            trainer = self.transformers.Trainer(
                model=model,
                args=trainer_arguments(folder, epochs, seed, self.device, grouped=True),
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
                    scores = given.logits.cpu().numpy()
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
            minilm_folder(), num_labels=len(self.labels)
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
        encoded = self._encoded(rows)
        tags = [["O"] * len(row["tokens"]) for row in rows]
        for index, scores_SC in enumerate(self.outputs(encoded)):
            for place, word in enumerate(self._first(encoded, index)):
                if word is not None:
                    tags[index][word] = self.labels[int(scores_SC[place].argmax())]
        return tags

    def _encoded(self, rows: Sequence[Row]) -> Any:  # noqa: ANN401
        return self.tokenizer([row["tokens"] for row in rows], is_split_into_words=True, truncation=True)

    @staticmethod
    def _first(encoded: Any, index: int) -> list[int | None]:  # noqa: ANN401
        """The word of each first piece; None for other pieces and special tokens."""
        words = encoded.word_ids(index)
        return [word if word != before else None for before, word in zip([None, *words], words, strict=False)]


class PairPeer(TransformersPeer):
    """Pairs with a label or a number."""

    def fit(self, data: TaskData, seed: int) -> None:
        """Train a fresh model."""
        scored = data.kind == "scored_pairs"
        self.labels = [] if scored else sorted({row["label"] for row in data.train})
        self.transformers.set_seed(seed)
        model = self.transformers.AutoModelForSequenceClassification.from_pretrained(
            minilm_folder(),
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
        """Probabilities by label, or a number, for each pair."""
        logits = np.stack(self.outputs(self._encoded(rows))).astype(np.float64)
        if not self.labels:
            return list(logits[:, 0])
        exponentials = np.exp(logits - logits.max(1, keepdims=True))
        shares = exponentials / exponentials.sum(1, keepdims=True)
        return [dict(zip(self.labels, row, strict=True)) for row in shares.tolist()]

    def _encoded(self, rows: Sequence[Row]) -> Any:  # noqa: ANN401
        return self.tokenizer([row["text_a"] for row in rows], [row["text_b"] for row in rows], truncation=True)


class AnsweringPeer(TransformersPeer):
    """Extractive question answering with windows, as transformers' example does it."""

    always_answers = True

    def fit(self, data: TaskData, seed: int) -> None:
        """Train a fresh model."""
        self.transformers.set_seed(seed)
        model = self.transformers.AutoModelForQuestionAnswering.from_pretrained(minilm_folder())
        self.always_answers = all(row["answers"] for row in data.train)
        encoded = self._encoded(data.train)
        rows = []
        for window, index in enumerate(encoded["overflow_to_sample_mapping"]):
            start, end = self._places(encoded, window, data.train[index]["answers"])
            parts = {key: encoded[key][window] for key in ("input_ids", "token_type_ids", "attention_mask")}
            rows.append({**parts, "start_positions": start, "end_positions": end})
        self.train(model, rows, self.transformers.DataCollatorWithPadding(self.tokenizer), data.epochs, seed)

    def answers(self, rows: Sequence[Row]) -> list[str]:
        """The best span of each question; where some were learnt to have none, nothing if that scores higher."""
        encoded = self._encoded(rows)
        best: list[tuple[float, str]] = [(-np.inf, "")] * len(rows)
        nothing = [np.inf] * len(rows)
        for window, scores_S2 in enumerate(self.outputs(encoded)):
            index = encoded["overflow_to_sample_mapping"][window]
            nothing[index] = min(nothing[index], float(scores_S2[0].sum()))
            found = self._best_span(encoded, window, scores_S2, rows[index]["context"])
            best[index] = max(best[index], found)
        if self.always_answers:
            return [text for _, text in best]
        return [text if score >= none else "" for (score, text), none in zip(best, nothing, strict=True)]

    def _encoded(self, rows: Sequence[Row]) -> Any:  # noqa: ANN401
        return self.tokenizer(
            [row["question"].lstrip() for row in rows],
            [row["context"] for row in rows],
            truncation="only_second",
            max_length=QA_LENGTH,
            stride=QA_STRIDE,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )

    @staticmethod
    def _places(encoded: Any, window: int, answers: list[Row]) -> tuple[int, int]:  # noqa: ANN401
        """First and last token of the first answer, or 0 and 0 where it is not in the window."""
        if not answers:
            return 0, 0
        first, last = answers[0]["start"], answers[0]["start"] + len(answers[0]["text"])
        places = [place for place, part in enumerate(encoded.sequence_ids(window)) if part == 1]
        offsets = encoded["offset_mapping"][window]
        if offsets[places[0]][0] > first or offsets[places[-1]][1] < last:
            return 0, 0
        start = max(place for place in places if offsets[place][0] <= first)
        end = min(place for place in places if offsets[place][1] >= last)
        return start, end

    @staticmethod
    def _best_span(encoded: Any, window: int, scores_S2: np.ndarray, context: str) -> tuple[float, str]:  # noqa: ANN401
        inside = {place for place, part in enumerate(encoded.sequence_ids(window)) if part == 1}
        offsets = encoded["offset_mapping"][window]
        starts, ends = (
            [int(p) for p in np.argsort(-scores_S2[:, side])[:QA_BEST] if int(p) in inside] for side in (0, 1)
        )
        spans = [
            (float(scores_S2[start, 0] + scores_S2[end, 1]), context[offsets[start][0] : offsets[end][1]])
            for start in starts
            for end in ends
            if start <= end < start + QA_LONGEST
        ]
        return max(spans, default=(-np.inf, ""))


class EmbeddingPeer:
    """sentence-transformers with CoSENT on scored pairs."""

    def __init__(self, threads: int, device: str) -> None:
        try:
            import datasets
            import sentence_transformers
        except ImportError as error:
            raise AbsentPeerError(str(error)) from error
        import torch

        torch.set_num_threads(threads)
        self.package, self.datasets, self.device = sentence_transformers, datasets, device
        self.model: Any = None

    def fit(self, data: TaskData, seed: int) -> None:
        """Train a fresh model."""
        from sentence_transformers.losses import CoSENTLoss

        self.model = self.package.SentenceTransformer(str(minilm_folder()), device=self.device)
        rows = [{"sentence1": row["text_a"], "sentence2": row["text_b"], "score": row["score"]} for row in data.train]
        with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as folder:
            arguments = self.package.SentenceTransformerTrainingArguments(
                output_dir=folder,
                num_train_epochs=data.epochs,
                per_device_train_batch_size=BATCH,
                learning_rate=LEARNING_RATE,
                lr_scheduler_type="linear",
                warmup_steps=WARM_UP,  # below 1 it is a share of all steps
                seed=seed,
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=self.device == "cpu",
            )
            self.package.SentenceTransformerTrainer(
                model=self.model,
                args=arguments,
                train_dataset=self.datasets.Dataset.from_list(rows),
                loss=CoSENTLoss(self.model),
            ).train()

    def answers(self, rows: Sequence[Row]) -> list[float]:
        """The cosine of each pair."""
        sides = [
            self.model.encode([row[column] for row in rows], normalize_embeddings=True)
            for column in ("text_a", "text_b")
        ]
        return [float(value) for value in (sides[0] * sides[1]).sum(1)]


PEERS: dict[str, Any] = {
    "tagging": TaggingPeer,
    "pairs": PairPeer,
    "ranking": PairPeer,
    "scored_pairs": PairPeer,
    "answering": AnsweringPeer,
    "embedding": EmbeddingPeer,
}
