"""The peers of the tasks benchmark: transformers' Trainer and sentence-transformers, as their documentation shows them.

MiniLM, batch 32, AdamW, linear schedule with 10 % warm-up; the learning rate, decay, epochs and validation rows of our
side, and its choice of the epoch to keep.

Shapes: S tokens of the longest window of a batch.
"""

import itertools
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.epochs import EpochChoice, validation_score
from benchmarks.harness import minilm_folder
from benchmarks.task_data import Kind, Row, TaskData
from benchmarks.trainer_peers import (
    SequencePeer,
    StandardisingPeer,
    TaggingPeer,
    TransformersPeer,
    common_settings,
    quiet_settings,
)
from benchmarks.workers import AbsentPeerError

QA_LENGTH, QA_STRIDE, QA_BEST, QA_LONGEST = 384, 128, 20, 30
THRESHOLDS = 101  # tried on the validation rows


class AnsweringPeer(TransformersPeer):
    """Extractive question answering with windows, as transformers' example does it."""

    always_answers = True
    threshold = 0.0  # how much better than no answer a span must be

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
        self.train(model, rows, self.transformers.DataCollatorWithPadding(self.tokenizer), data, seed)
        if data.validation and not self.always_answers:
            self.threshold = best_threshold(data, self.spans(data.validation))
            self.notes["no-answer threshold"] = self.threshold

    def answers(self, rows: Sequence[Row]) -> list[str]:
        """The best span of each question; where some were learnt to have none, nothing if that scores higher."""
        spans = self.spans(rows)
        return [text if self.always_answers or odds >= self.threshold else "" for odds, text in spans]

    def spans(self, rows: Sequence[Row]) -> list[tuple[float, str]]:
        """The best span of each question, and by how much it scores higher than no answer."""
        encoded = self._encoded(rows)
        best: list[tuple[float, str]] = [(-np.inf, "")] * len(rows)
        nothing = [np.inf] * len(rows)
        for window, scores_S2 in enumerate(self.outputs(encoded)):
            index = encoded["overflow_to_sample_mapping"][window]
            nothing[index] = min(nothing[index], float(scores_S2[0].sum()))
            found = self._best_span(encoded, window, scores_S2, rows[index]["context"])
            best[index] = max(best[index], found)
        return [(score - none, text) for (score, text), none in zip(best, nothing, strict=True)]

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


def best_threshold(data: TaskData, spans: Sequence[tuple[float, str]]) -> float:
    """Return the threshold of no answer with the highest F1 on the validation rows, as SQuAD 2.0's script looks for it.

    Of equally good ones the one closest to 0.
    """
    odds = sorted({each for each, _ in spans})
    between = [(low + high) / 2 for low, high in itertools.pairwise(odds)]
    tried = [0.0, *np.quantile(between, np.linspace(0, 1, THRESHOLDS)).tolist()] if between else [0.0]

    def f1(threshold: float) -> float:
        return data.score(data.validation, [text if each >= threshold else "" for each, text in spans])["F1"]

    return max(tried, key=lambda threshold: (f1(threshold), -abs(threshold)))


class Embedder:
    """The untrained embedder of sentence-transformers: two texts are as alike as their cosine."""

    def __init__(self, threads: int, device: str) -> None:
        try:
            import sentence_transformers
        except ImportError as error:
            raise AbsentPeerError(str(error)) from error
        import torch

        torch.set_num_threads(threads)
        self.package, self.device = sentence_transformers, device
        self.ranks = False
        self.model: Any = None
        self.notes: dict[str, Any] = {}

    def fit(self, data: TaskData, seed: int) -> None:  # noqa: ARG002 (the others')
        """Load the model."""
        self.ranks = data.kind == "ranking"
        self.model = self.package.SentenceTransformer(str(minilm_folder()), device=self.device)

    def answers(self, rows: Sequence[Row]) -> list[Any]:
        """The cosine of each pair; of rankings as the score of the right answers' label."""
        sides = [
            self.model.encode([row[column] for row in rows], normalize_embeddings=True, show_progress_bar=False)
            for column in ("text_a", "text_b")
        ]
        cosines = [float(value) for value in (sides[0] * sides[1]).sum(1)]
        return [{"yes": each} for each in cosines] if self.ranks else cosines


class EmbeddingPeer(Embedder):
    """sentence-transformers with CoSENT on scored pairs; it keeps the untrained embedder where no epoch is better."""

    def fit(self, data: TaskData, seed: int) -> None:
        """Train a fresh model."""
        import datasets
        import transformers
        from sentence_transformers.losses import CoSENTLoss

        super().fit(data, seed)
        choice = EpochChoice(self.model, lambda: validation_score(data, self.answers(data.validation)))
        choice.judge(0)
        rows = [{"sentence1": row["text_a"], "sentence2": row["text_b"], "score": row["score"]} for row in data.train]
        with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as folder:
            arguments = self.package.SentenceTransformerTrainingArguments(
                **quiet_settings(folder, seed),
                disable_tqdm=True,
                use_cpu=self.device == "cpu",
                **common_settings(data.epochs),
            )
            self.package.SentenceTransformerTrainer(
                model=self.model,
                args=arguments,
                train_dataset=datasets.Dataset.from_list(rows),
                loss=CoSENTLoss(self.model),
                callbacks=[choice.callback(transformers)],
            ).train()
        self.notes = {"kept epoch": choice.restore()}


PEER, STANDARDISED, UNTRAINED = "peer", "peer, standardised scores", "no training"
# By the kind of task, what is set beside ours; the peers' classes take threads and device.
PEERS: dict[Kind, dict[str, Any]] = {
    "tagging": {PEER: TaggingPeer},
    "pairs": {PEER: SequencePeer},
    "ranking": {PEER: SequencePeer, UNTRAINED: Embedder},
    "scored_pairs": {PEER: SequencePeer, STANDARDISED: StandardisingPeer, UNTRAINED: Embedder},
    "answering": {PEER: AnsweringPeer},
    "embedding": {PEER: EmbeddingPeer, UNTRAINED: Embedder},
}
