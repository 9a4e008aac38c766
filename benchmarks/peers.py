"""The two sides of the training benchmarks: this package, and transformers' Trainer or sentence-transformers.

Shapes: N rows, S tokens of the longest row or window of a batch, W words of a text, C labels.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import MODEL, minilm_folder
from benchmarks.tasks import SCORED, TEXT_COLUMNS, Kind, Row, TaskData
from benchmarks.trainer import (
    BATCH,
    LEARNING_RATE,
    EpochChoice,
    TransformersPeer,
    common_settings,
    quiet_settings,
    validation_score,
)
from benchmarks.workers import installed, set_torch_threads

QA_LENGTH, QA_STRIDE, QA_BEST, QA_LONGEST = 384, 128, 20, 30
# Ours with the epochs, batch and rate of the peers, and with no option of training but the seed.
OURS, OURS_DEFAULTS = "bothways", "bothways, defaults"
PEER, UNTRAINED = "peer", "no training"


class OurSide:
    """A model of this package, as a user calls it; ``defaults`` leaves epochs, batch and learning rate to ``fit``."""

    def __init__(
        self, threads: int, device: str, checkpoint: str | Path = MODEL, *, defaults: bool = False, **options: object
    ) -> None:
        set_torch_threads(threads)
        self.device, self.checkpoint, self.defaults, self.options = device, checkpoint, defaults, options
        self.kind: Kind = "texts"
        self.model: Any = None
        self.notes: dict[str, Any] = {}

    def fit(self, data: TaskData, seed: int) -> None:
        """Train a fresh model; without validation rows it holds some out."""
        from bothways import PairClassifier, QuestionAnswerer, SentenceEmbedder, TextClassifier, TextTagger

        tasks: dict[Kind, Any] = {
            "texts": TextClassifier, "tagging": TextTagger, "answering": QuestionAnswerer,
            "embedding": SentenceEmbedder, "pairs": PairClassifier, "ranking": PairClassifier,
            "scored_pairs": PairClassifier,
        }  # fmt: skip
        scored, self.kind = data.kind == SCORED, data.kind
        target = {"target": "regression"} if scored else {}
        self.model = tasks[data.kind].from_pretrained(self.checkpoint, device=self.device, **target)
        course = {"epochs": data.epochs, "learning_rate": LEARNING_RATE, "batch_size": BATCH}
        record = self.model.fit(
            data.train,
            validation=data.validation or None,
            seed=seed,
            show_progress=False,
            **({"label": "score"} if scored else {}),
            **({} if self.defaults else course),
            **self.options,
        )
        self.notes = {"kept epoch": record.kept_epoch}

    def answers(self, rows: Sequence[Row]) -> list[Any]:
        """Return the answer to each row, in the form that the task's metrics read."""
        if self.kind == "tagging":
            return [list(each.tags) for each in self.model.predict([row["tokens"] for row in rows])]
        if self.kind == "answering":
            asked = [(row["question"], row["context"]) for row in rows]
            return [each.answer or "" for each in self.model.predict(asked)]
        if self.kind == "embedding":
            firsts, seconds = (self.model.encode([row[side] for row in rows]) for side in ("text_a", "text_b"))
            return [float(cosine) for cosine in (firsts * seconds).sum(1)]
        inputs = [row["text"] if "text" in row else (row["text_a"], row["text_b"]) for row in rows]
        if self.kind == "ranking":  # as CrossEncoder ranks: uncalibrated
            return [each.probabilities for each in self.model.predict(inputs, calibrated=False)]
        found = self.model.predict(inputs)
        return [each.value if self.kind == SCORED else each.probabilities for each in found]


class TaggingPeer(TransformersPeer):
    """Token classification; a word is tagged by its first piece.

    Where tags make up spans, the answer is the best valid sequence, as for ours.
    """

    def fit(self, data: TaskData, seed: int) -> None:
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
        """Return a tag for each word; words that the model does not read are outside of spans."""
        spans = any(label.startswith("B-") for label in self.labels)
        tags = [["O"] * len(row["tokens"]) for row in rows]
        for of_text, (words, scores_WC) in zip(tags, self.word_outputs(rows), strict=True):
            if not words:
                continue
            best = [self.labels[index] for index in scores_WC.argmax(1)]
            if spans:
                best = valid_tags(self.labels, scores_WC.astype(np.float64), [len(words)])[0]
            for word, tag in zip(words, best, strict=True):
                of_text[word] = tag
        return tags

    def word_outputs(self, rows: Sequence[Row]) -> list[tuple[list[int], np.ndarray]]:
        """Return the words of each text that the model reads, and its outputs at their first pieces."""
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
        """Return the word of each first piece; None for other pieces and special tokens."""
        words = encoded.word_ids(index)
        return [word if word != before else None for before, word in zip([None, *words], words, strict=False)]


def valid_tags(labels: Sequence[str], scores_NC: np.ndarray, lengths: Sequence[int]) -> list[list[str]]:
    """Return each text's best sequence of BIO tags in which no span begins inside, by logits or log probabilities."""
    from bothways.tasks.tagging.tag_set import TagSet

    # A tag of probability 0 must not make all sequences equally bad.
    best_N = TagSet(tuple(labels), "BIO").decode(np.maximum(scores_NC, -1e4), lengths)
    ends = np.cumsum(lengths)
    return [[labels[tag] for tag in best_N[end - length : end]] for end, length in zip(ends, lengths, strict=True)]


class SequencePeer(TransformersPeer):
    """Texts or pairs with a label, or pairs with a number, which is learnt standardised."""

    columns: tuple[str, ...] = ("text_a", "text_b")
    scale = 0.0, 1.0  # mean and deviation of the numbers as they are learnt
    temperature = 1.0

    def fit(self, data: TaskData, seed: int) -> None:
        """Train a fresh model, and calibrate the probabilities of single texts on the validation rows."""
        scored = data.kind == SCORED
        self.columns, self.temperature = TEXT_COLUMNS[data.kind], 1.0
        self.labels = [] if scored else sorted({row["label"] for row in data.train})
        if scored:
            numbers = [row["score"] for row in data.train]
            self.scale = float(np.mean(numbers)), float(np.std(numbers)) or 1.0
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
        if data.kind == "texts" and data.validation:
            truth_N = np.array([self.labels.index(row["label"]) for row in data.validation])
            self.temperature = fitted_temperature(self.logits(data.validation), truth_N)

    def answers(self, rows: Sequence[Row]) -> list[Any]:
        """Return probabilities by label, or a number, for each row."""
        from scipy.special import softmax

        if not self.labels:
            mean, deviation = self.scale
            return [float(scores_C[0]) * deviation + mean for scores_C in self.outputs(self._encoded(rows))]
        probabilities_NC = softmax(self.logits(rows) / self.temperature, axis=1)
        return [dict(zip(self.labels, row, strict=True)) for row in probabilities_NC.tolist()]

    def logits(self, rows: Sequence[Row]) -> np.ndarray:
        return np.stack(self.outputs(self._encoded(rows))).astype(np.float64)

    def _encoded(self, rows: Sequence[Row]) -> Any:  # noqa: ANN401
        return self.tokenizer(*([row[column] for row in rows] for column in self.columns), truncation=True)


def fitted_temperature(logits_NC: np.ndarray, truth_N: np.ndarray) -> float:
    """Return the temperature of least negative log-likelihood (Guo et al. 2017, arXiv:1706.04599)."""
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    def nll(log_temperature: float) -> float:
        scores_NC = log_softmax(logits_NC / np.exp(log_temperature), axis=1)
        return -float(scores_NC[np.arange(len(truth_N)), truth_N].mean())

    return float(np.exp(minimize_scalar(nll, bounds=(-3, 3), method="bounded").x))


class AnsweringPeer(TransformersPeer):
    """Extractive question answering with windows, as transformers' example does it; every question has an answer."""

    def fit(self, data: TaskData, seed: int) -> None:
        self.transformers.set_seed(seed)
        model = self.transformers.AutoModelForQuestionAnswering.from_pretrained(self.checkpoint)
        encoded = self._encoded(data.train)
        rows = []
        for window, index in enumerate(encoded["overflow_to_sample_mapping"]):
            start, end = self._places(encoded, window, data.train[index]["answers"])
            parts = {key: encoded[key][window] for key in ("input_ids", "token_type_ids", "attention_mask")}
            rows.append({**parts, "start_positions": start, "end_positions": end})
        self.train(model, rows, self.transformers.DataCollatorWithPadding(self.tokenizer), data, seed)

    def answers(self, rows: Sequence[Row]) -> list[str]:
        encoded = self._encoded(rows)
        best: list[tuple[float, str]] = [(-np.inf, "")] * len(rows)
        for window, scores_S2 in enumerate(self.outputs(encoded)):
            index = encoded["overflow_to_sample_mapping"][window]
            best[index] = max(best[index], self._best_span(encoded, window, scores_S2, rows[index]["context"]))
        return [text for _, text in best]

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
        """Return first and last token of the first answer, or 0 and 0 where it is not in the window."""
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


class Embedder:
    """The untrained embedder of sentence-transformers: two texts are as alike as their cosine."""

    def __init__(self, threads: int, device: str) -> None:
        sentence_transformers = installed("sentence_transformers")
        set_torch_threads(threads)
        self.package, self.device, self.ranks = sentence_transformers, device, False
        self.model: Any = None
        self.notes: dict[str, Any] = {}

    def fit(self, data: TaskData, seed: int) -> None:  # noqa: ARG002 (the others')
        self.ranks = data.kind == "ranking"
        self.model = self.package.SentenceTransformer(str(minilm_folder()), device=self.device)

    def answers(self, rows: Sequence[Row]) -> list[Any]:
        """Return the cosine of each pair; for rankings as the score of the right answers' label."""
        sides = [
            self.model.encode([row[column] for row in rows], normalize_embeddings=True, show_progress_bar=False)
            for column in ("text_a", "text_b")
        ]
        cosines = [float(value) for value in (sides[0] * sides[1]).sum(1)]
        return [{"yes": each} for each in cosines] if self.ranks else cosines


class EmbeddingPeer(Embedder):
    """sentence-transformers with CoSENT on scored pairs; it keeps the untrained embedder where no epoch is better."""

    def fit(self, data: TaskData, seed: int) -> None:
        import datasets
        import transformers
        from sentence_transformers.losses import CoSENTLoss

        super().fit(data, seed)
        choice = EpochChoice(self.model, lambda: validation_score(data, self.answers(data.validation)))
        choice.judge(0)
        rows = [{"sentence1": row["text_a"], "sentence2": row["text_b"], "score": row["score"]} for row in data.train]
        with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as folder:
            arguments = self.package.SentenceTransformerTrainingArguments(
                **quiet_settings(folder, seed), use_cpu=self.device == "cpu", **common_settings(data.epochs)
            )
            self.package.SentenceTransformerTrainer(
                model=self.model,
                args=arguments,
                train_dataset=datasets.Dataset.from_list(rows),
                loss=CoSENTLoss(self.model),
                callbacks=[choice.callback(transformers)],
            ).train()
        self.notes = {"kept epoch": choice.restore()}


# What is set beside ours, by the kind of task.
PEERS: dict[Kind, dict[str, Callable[[int, str], Any]]] = {
    "texts": {PEER: SequencePeer},
    "tagging": {PEER: TaggingPeer},
    "pairs": {PEER: SequencePeer},
    "ranking": {PEER: SequencePeer, UNTRAINED: Embedder},
    "scored_pairs": {PEER: SequencePeer, UNTRAINED: Embedder},
    "answering": {PEER: AnsweringPeer},
    "embedding": {PEER: EmbeddingPeer, UNTRAINED: Embedder},
}
