"""The peers of the tasks benchmark: transformers' Trainer and sentence-transformers, as their documentation shows them.

MiniLM, batch 32, AdamW, linear schedule with 10 % warm-up, the learning rate and epochs of our side. The Trainer groups
by length and keeps the last epoch, as it does unless told otherwise.

Shapes: S tokens of the longest window of a batch.
"""

import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.harness import minilm_folder
from benchmarks.task_data import Row, TaskData
from benchmarks.trainer_peers import SequencePeer, TaggingPeer, TransformersPeer, common_settings
from benchmarks.workers import AbsentPeerError

QA_LENGTH, QA_STRIDE, QA_BEST, QA_LONGEST = 384, 128, 20, 30


class AnsweringPeer(TransformersPeer):
    """Extractive question answering with windows, as transformers' example does it."""

    always_answers = True

    def fit(self, data: TaskData, seed: int) -> None:
        """Train a fresh model."""
        self.transformers.set_seed(seed)
        model = self.transformers.AutoModelForQuestionAnswering.from_pretrained(self.checkpoint)
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
                seed=seed,
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=self.device == "cpu",
                **common_settings(data.epochs),
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
    "pairs": SequencePeer,
    "ranking": SequencePeer,
    "scored_pairs": SequencePeer,
    "answering": AnsweringPeer,
    "embedding": EmbeddingPeer,
}
