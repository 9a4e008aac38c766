"""Classification from a few examples of each label.

An encoder is first trained as a sentence embedder, with texts of one label as pairs; then a linear head is fitted to
its vectors (Tunstall et al. 2022, arXiv:2209.11055). There the pairs are compared one by one; here all texts of other
labels in a batch are a pair's negatives, which is the ranking loss of `bothways.tasks.embedding.losses`.

Shapes: N texts, K dimensions, C classes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Unpack, overload

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from bothways.data import Example, Row, Source, text_at
from bothways.errors import CorruptCheckpoint, InvalidInput, NotFitted
from bothways.evaluation import ClassJudgement, Temperature, fit_adaptive_temperature
from bothways.tasks.card import LIKE_THESE, NOTICES_NOTHING, Worth, flattered, unmeasured, worth_card
from bothways.tasks.columns import stored_columns, typed_texts
from bothways.tasks.embedding.data import EmbeddingRow, LabelledTexts, read_embedding_rows
from bothways.tasks.embedding.embedder import SentenceEmbedder
from bothways.tasks.embedding.losses import EmbeddingLoss
from bothways.tasks.embedding.softmax_regression import LinearHead, fit_softmax_regression
from bothways.tasks.embedding.training import EmbeddingExamples
from bothways.tasks.fitting import FitOptions, fit_plan
from bothways.tasks.opening import OpenOptions
from bothways.tasks.predictions import Prediction
from bothways.tasks.stored import damaged, stored_card, stored_temperature
from bothways.tasks.targets import Logits, Report, SingleLabel, Truth, target_of
from bothways.training.record import TrainingRecord

HEAD_FILE = "head.safetensors"

# As if the vectors had the length 20 and the strength were 1: the ranking loss, too, multiplies cosines by 20. With 1,
# the probabilities of 25 labels were as low as 0.43 on average where 0.95 were right.
STRENGTH = 400.0


# What a reader of the card has to know, with and without validation data.
MEASURED = (flattered("rows", "the epoch to keep and the calibration"), LIKE_THESE, NOTICES_NOTHING)
UNMEASURED = (unmeasured("no validation data were given"), "Probabilities are not calibrated.", NOTICES_NOTHING)


class FewShotClassifier:
    """Learns to label texts from a few examples of each label.

    What it saves is a sentence embedder, here and for the ecosystem, with the head in a file of its own: the families'
    classification heads read the first token through a pooler, and so cannot express a linear map of an embedding.

    >>> classifier = FewShotClassifier.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> classifier.fit("eight_of_each.jsonl")  # doctest: +SKIP
    >>> classifier.predict("Where is my card?").label  # doctest: +SKIP
    'card_arrival'

    Attributes:
        embedder: Makes the vectors.
        target: The labels; None before there is a head.
        temperature: What calibrates the probabilities; None without validation data.
        columns: Where texts and labels stood in training.
        card: What the model says of its making.
    """

    task: ClassVar[str] = "few_shot"

    def __init__(self, embedder: SentenceEmbedder) -> None:
        self.embedder = embedder
        self.target: SingleLabel | None = None
        self.temperature: Temperature | None = None
        self.columns = LabelledTexts()
        self.card: dict[str, Any] = {}
        self._head: LinearHead | None = None

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | Path, *, labels: Sequence[str] | None = None, **options: Unpack[OpenOptions]
    ) -> "FewShotClassifier":
        """Open an encoder to train, or a trained model to use.

        Args:
            name_or_path: A folder or a name, see `bothways.load`. Sentence embedders learn most from few examples.
            labels: Other names for the labels of a trained model, in their order.
            options: How the checkpoint is found, where it runs, and how texts are read; see
                `bothways.tasks.opening.OpenOptions`.

        Raises:
            InvalidInput: A setting is out of range, or labels were given without a trained head.
            CorruptCheckpoint: A file is damaged.
        """
        made = cls(SentenceEmbedder.from_pretrained(name_or_path, **options))
        extras = made.embedder.extras
        if extras.get("task") != cls.task:
            if labels is not None:
                raise InvalidInput("labels name the outputs of a trained head, but this checkpoint has none: call fit.")
            return made
        stored = extras.get("labels")
        names = tuple(stored) if isinstance(stored, list) and all(isinstance(name, str) for name in stored) else ()
        if len(names) < 2 or len(set(names)) != len(names):
            raise damaged("labels", "a list of different names", stored)
        if labels is not None and len(set(labels)) != len(names):
            raise InvalidInput(
                f"the trained head has {len(names)} outputs, so it needs as many labels: {list(labels)}."
            )
        made.target = SingleLabel(names if labels is None else tuple(labels))
        made.temperature = stored_temperature(extras)
        made._head = _read_head(made.embedder.model.folder / HEAD_FILE, len(names), made.embedder.dimensions)
        made.card = stored_card(extras)
        made.columns = stored_columns(made.card, LabelledTexts())
        return made

    def fit(
        self,
        train_data: Source,
        *,
        validation: Source | None = None,
        text: str | tuple[str, ...] = "text",
        label: str = "label",
        loss: EmbeddingLoss | None = None,
        pairs_per_text: int = 8,
        strength: float = STRENGTH,
        **options: Unpack[FitOptions],
    ) -> TrainingRecord:
        """Train the embedder on pairs of texts of one label, then fit the head to its vectors.

        Args:
            train_data: A file, or a list of mappings; at least one label must have two texts.
            validation: Held-out data. Few examples are too dear to hold some out: without, the last epoch stays, and
                probabilities are not calibrated.
            text: Column of the texts; several are joined by a space.
            label: Column of the labels.
            loss: What trains the embedder; ranking when left out.
            pairs_per_text: With how many others of its label each text is put together in an epoch.
            strength: How little the weights of the head are held back, see
                `bothways.tasks.embedding.softmax_regression`.
            options: ``epochs``, ``learning_rate``, ``batch_size``, ``seed`` and more, see
                `bothways.tasks.fitting.FitPlan`.

        Raises:
            InvalidInput: The data or a setting is not usable; the message names the row.
        """
        columns, plan = LabelledTexts((text,) if isinstance(text, str) else text, label), fit_plan(self, options)
        rows = read_embedding_rows(train_data, columns)
        held_out = [] if validation is None else read_embedding_rows(validation, columns)
        target = target_of("single", _examples(rows))
        if not isinstance(target, SingleLabel):
            raise InvalidInput("a few-shot classifier tells single labels apart.")
        classes_N, held_truth_N = target.encode(_examples(rows)), target.encode(_examples(held_out))
        examples = EmbeddingExamples(columns, rows, held_out, split=False)
        record = self.embedder.fit_examples(examples, plan, loss=loss, pairs_per_text=pairs_per_text)
        vectors_NK = self.embedder.encode([row.texts[0] for row in rows], show_progress=plan.show_progress)
        self._head = fit_softmax_regression(vectors_NK, classes_N, target.outputs, strength=strength)
        self.target, self.columns, self.temperature = target, columns, None
        if not held_out:
            self.card = self.embedder.card | worth_card(Worth(None, UNMEASURED))
            return record
        held_NK = self.embedder.encode([row.texts[0] for row in held_out], show_progress=plan.show_progress)
        logits_NC = self._head.logits(held_NK)
        if plan.settings.wants_temperature():
            self.temperature = fit_adaptive_temperature(logits_NC, held_truth_N)
        metrics = target.report(logits_NC, held_truth_N, self.temperature, resamples=1000, seed=plan.seed)
        self.card = self.embedder.card | worth_card(Worth(metrics, MEASURED))
        return record

    @overload  # a string is also a sequence of strings, which the first signature takes before the second
    def predict(self, texts: str, *, show_progress: bool | None = ...) -> Prediction: ...  # type: ignore[overload-overlap]

    @overload
    def predict(self, texts: Sequence[str], *, show_progress: bool | None = ...) -> list[Prediction]: ...

    def predict(
        self, texts: str | Sequence[str], *, show_progress: bool | None = None
    ) -> Prediction | list[Prediction]:
        """Predictions for texts, in order; one prediction for a single string. Calibrated where the model is.

        Raises:
            NotFitted: There is no trained head yet.
            InvalidInput: A text is empty or not a string.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        listed = [texts] if isinstance(texts, str) else list(texts)
        answers = list(self.predict_stream(listed, total=len(listed), show_progress=show_progress))
        return answers[0] if isinstance(texts, str) else answers

    def predict_stream(
        self, texts: Iterable[str], *, total: int | None = None, show_progress: bool | None = None
    ) -> Iterator[Prediction]:
        """Predictions for an iterable of any length, in order and in flat memory."""
        target, head = self._fitted()
        stream = self.embedder.read_stream(texts, total=total, description="predicting", show_progress=show_progress)
        for vector_K, reading in stream:
            yield target.predict(head.logits(vector_K[None])[0], self.temperature, reading)

    def predict_rows(self, rows: Iterable[Row], *, show_progress: bool | None = None) -> Iterator[Prediction]:
        """A prediction for each row, in order and in flat memory; columns as in `columns`."""
        return self.predict_stream((text_at(row, self.columns.text) for row in rows), show_progress=show_progress)

    def evaluate(
        self, data: Source, *, resamples: int = 1000, seed: int = 0, show_progress: bool | None = None
    ) -> Report:
        """Metrics on labelled texts, with 95 % bootstrap intervals; columns as in `columns`.

        Raises:
            NotFitted: There is no trained head yet.
            InvalidInput: The data are not usable, or hold a label that was not there in training.
        """
        target, _ = self._fitted()
        logits_NC, truth_N = self.logits(data, show_progress=show_progress)
        return target.report(logits_NC, truth_N, self.temperature, resamples=resamples, seed=seed)

    def judgement(self, data: Source, *, show_progress: bool | None = None) -> ClassJudgement:
        """Calibrated probabilities of labelled texts and what is right, to compare with another model's."""
        target, _ = self._fitted()
        return target.judgement(*self.logits(data, show_progress=show_progress), self.temperature)

    def logits(self, data: Source, *, show_progress: bool | None = None) -> tuple[Logits, Truth]:
        """Uncalibrated logits (N, C) of labelled texts, and their class numbers (N)."""
        target, head = self._fitted()
        rows = read_embedding_rows(data, self.columns)
        truth_N = target.encode(_examples(rows))
        return head.logits(self.embedder.encode([row.texts[0] for row in rows], show_progress=show_progress)), truth_N

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """A row for each text, as it would stand in a file."""
        return typed_texts(self.columns.text, texts)

    def facts(self) -> dict[str, object]:
        """Labels and calibration, as JSON values."""
        target, _ = self._fitted()
        return {
            "labels": list(target.labels),
            "temperature": None if self.temperature is None else asdict(self.temperature),
        }

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the embedder as the ecosystem has it, with the head beside it, whole or not at all.

        Raises:
            NotFitted: There is no trained head yet.
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        target, head = self._fitted()
        extras = {"task": self.task, **self.facts(), "labels": list(target.labels), "card": self.card}
        tensors = {"weight": torch.from_numpy(head.weight_CK), "bias": torch.from_numpy(head.bias_C)}
        self.embedder.save_with(folder, extras, {HEAD_FILE: tensors}, overwrite=overwrite)

    def _fitted(self) -> tuple[SingleLabel, LinearHead]:
        if self.target is None or self._head is None:
            raise NotFitted(f"{self.embedder.model.name!r} has no trained head yet: call fit first.")
        return self.target, self._head


def _examples(rows: Sequence[EmbeddingRow]) -> list[Example[str]]:
    return [Example(row.texts[0], row.label, 0, row.where) for row in rows]


def _read_head(path: Path, classes: int, dimensions: int) -> LinearHead:
    """A stored head.

    Raises:
        CorruptCheckpoint: It is damaged, or does not fit.
    """
    try:
        tensors = load_file(path)
        head = LinearHead(tensors["weight"].float().numpy(), tensors["bias"].float().numpy())
    except (OSError, SafetensorError, KeyError) as error:
        raise CorruptCheckpoint(
            f"{str(path)!r} holds no head of a classifier ({error}). Get the model again."
        ) from error
    fits = head.weight_CK.shape == (classes, dimensions) and head.bias_C.shape == (classes,)
    if not fits or not np.isfinite(head.weight_CK).all():
        raise CorruptCheckpoint(
            f"{str(path)!r} must map vectors of {dimensions} to {classes} labels, but its weights are of the shape "
            f"{head.weight_CK.shape}, or not finite. It belongs to another model, or the vectors were cut."
        )
    return head
