"""Classification from a few examples of each label.

An encoder is first trained as a sentence embedder, with texts of one label as pairs; then a linear head is fitted to
its vectors (Tunstall et al. 2022, arXiv:2209.11055). There the pairs are compared one by one; here all texts of other
labels in a batch are a pair's negatives, which is the ranking loss of `bothways.tasks.embedding.losses`.

Shapes: N texts, K dimensions, C classes.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Unpack, cast, overload

import numpy as np

from bothways.data import Example, Row, Source, text_at
from bothways.errors import InvalidInput, NotFitted
from bothways.evaluation import Calibration, Evidence, Outcomes, Report, TextsRead
from bothways.tasks.card import NOTICES_NOTHING, Worth, unmeasured, worth_card
from bothways.tasks.columns import stored_columns, typed_texts
from bothways.tasks.embedding.data import EmbeddingRow, LabelledTexts, read_embedding_rows
from bothways.tasks.embedding.embedder import SentenceEmbedder
from bothways.tasks.embedding.losses import EmbeddingLoss
from bothways.tasks.embedding.softmax_regression import (
    LinearHead,
    check_strength,
    fit_softmax_regression,
    read_head,
    write_head,
)
from bothways.tasks.embedding.training import EmbeddingExamples
from bothways.tasks.embedding.vectors import Vectors
from bothways.tasks.fitting import FitOptions, FitPlan, fit_plan
from bothways.tasks.given import given_many
from bothways.tasks.labelling.judging import MOST_TRAINING, check_calibration, layers_read, layers_wanted, learn_trust
from bothways.tasks.labelling.trust import Trust, stored_trust, write_trust
from bothways.tasks.labelling.trusted import Trusted
from bothways.tasks.labelling.trusting import TrustingTask
from bothways.tasks.opening import OpenOptions
from bothways.tasks.predictions import Prediction, Reading, texts_read
from bothways.tasks.settings import ALL_LAYERS, FitSettings
from bothways.tasks.stored import damaged, stored_card
from bothways.tasks.targets import Logits, SingleLabel, Truth, labelled_texts, target_of
from bothways.text.texts import Text
from bothways.training.record import TrainingRecord

HEAD_FILE = "head.safetensors"

# As if the vectors had the length 20 and the strength were 1: the ranking loss, too, multiplies cosines by 20. With 1,
# the probabilities of 25 labels were as low as 0.43 on average where 0.95 were right.
STRENGTH = 400.0


# What a reader of the card has to know without validation data.
UNMEASURED = (unmeasured("no validation data were given"), "Probabilities are not calibrated.", NOTICES_NOTHING)


class FewShotClassifier(TrustingTask):
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
        trust: What it learnt on validation data: calibration, coverage, and the border of its domain.
        columns: Where texts and labels stood in training.
        card: What the model says of its making.
    """

    task: ClassVar[str] = "few_shot"

    def __init__(self, embedder: SentenceEmbedder) -> None:
        self.embedder = embedder
        self.target: SingleLabel | None = None
        self.trust = Trust()
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
        if labels is not None and not len(labels) == len(set(labels)) == len(names):
            raise InvalidInput(
                f"the trained head has {len(names)} outputs, so it needs as many different labels: {list(labels)}."
            )
        made.target = SingleLabel(names if labels is None else tuple(labels))
        made.trust = stored_trust(extras, made.embedder.model.folder, len(names))
        made._head = read_head(made.embedder.model.folder / HEAD_FILE, len(names), made.embedder.dimensions)
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
            validation: Held-out data. Few examples are too dear to hold some out: without, the last epoch stays,
                probabilities are not calibrated, no coverage is promised, and texts from elsewhere are not noticed.
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
        layers = _layers(plan.settings)
        check_strength(strength)
        if validation is None and plan.settings.calibration not in ("auto", None):
            raise InvalidInput(
                f"calibration by {plan.settings.calibration!r} wants held-out texts: give validation data, or leave "
                "calibration at 'auto'."
            )
        rows = read_embedding_rows(train_data, columns)
        held_out = [] if validation is None else read_embedding_rows(validation, columns)
        target = target_of("single", _examples(rows))
        if not isinstance(target, SingleLabel):
            raise InvalidInput("a few-shot classifier tells single labels apart.")
        classes_N, held_truth_N = target.encode(_examples(rows)), target.encode(_examples(held_out))
        check_calibration(target, plan.settings.calibration, held_truth_N)
        examples = EmbeddingExamples(columns, rows, held_out, split=False)
        with self._dropped_with_its_vectors():
            record = self.embedder.fit_examples(examples, plan, loss=loss, pairs_per_text=pairs_per_text)
            if record.came_to_nothing:
                return record
            vectors_NK = self.embedder.encode([row.texts[0] for row in rows], show_progress=plan.show_progress)
            head = fit_softmax_regression(vectors_NK, classes_N, target.outputs, strength=strength)
        self._head, self.target, self.columns, self.trust, self.card = head, target, columns, Trust(), {}
        if not held_out:
            self.card = self.embedder.card | worth_card(Worth(None, UNMEASURED))
            return record
        held_NK = self.embedder.encode([row.texts[0] for row in held_out], show_progress=plan.show_progress)
        self._learn((held_NK, held_truth_N), (vectors_NK, classes_N), layers, plan)
        return record

    @property
    def trusted(self) -> Trusted:
        """What is predicted, and how far to trust it."""
        target, _ = self._fitted()
        return Trusted(self.embedder.model.name, target, self.trust)

    @property
    def calibration(self) -> Calibration | None:
        """What makes probabilities of logits; None where they are taken as they are."""
        return self.trust.calibration

    @overload  # a string is also a sequence of strings, which the first signature takes before the second
    def predict(  # type: ignore[overload-overlap]
        self, texts: str, *, coverage: float | None = ..., show_progress: bool | None = ...
    ) -> Prediction: ...

    @overload
    def predict(
        self, texts: Sequence[str], *, coverage: float | None = ..., show_progress: bool | None = ...
    ) -> list[Prediction]: ...

    def predict(
        self, texts: str | Sequence[str], *, coverage: float | None = None, show_progress: bool | None = None
    ) -> Prediction | list[Prediction]:
        """Predictions for texts, in order; one prediction for a single string. Calibrated where the model is.

        Args:
            texts: One text or many.
            coverage: Also give a set of labels that holds the truth for this share of texts.
            show_progress: Force the progress bar on or off.

        Raises:
            NotFitted: There is no trained head yet.
            NotCalibrated: A coverage is asked for, and the model was fitted without validation data.
            InvalidInput: A text is empty or not a string, or the coverage is none that the model can promise.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        listed, alone = self.given(texts)
        stream = self.predict_stream(listed, coverage=coverage, total=len(listed), show_progress=show_progress)
        answers = list(stream)
        return answers[0] if alone else answers

    def given(self, texts: str | Sequence[str]) -> tuple[list[str], bool]:
        """The texts that `predict` was given, and whether it was one alone.

        Raises:
            InvalidInput: It is neither a string nor many.
        """
        return given_many(texts)

    def predict_stream(
        self,
        texts: Iterable[str],
        *,
        coverage: float | None = None,
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[Prediction]:
        """Predictions for an iterable of any length, in order and in flat memory."""
        judge = self.trusted.judge(coverage=coverage)
        for row_K, reading in self.said(texts, "predicting", total, show_progress):
            yield judge(row_K, reading)

    def predict_rows(
        self, rows: Iterable[Row], *, coverage: float | None = None, show_progress: bool | None = None
    ) -> Iterator[Prediction]:
        """A prediction for each row, in order and in flat memory; columns as in `columns`, coverage as in `predict`."""
        texts = (text_at(row, self.columns.text) for row in rows)
        return self.predict_stream(texts, coverage=coverage, show_progress=show_progress)

    def evaluate(
        self, data: Source, *, resamples: int = 1000, seed: int = 0, show_progress: bool | None = None
    ) -> Report:
        """Metrics on labelled texts, with 95 % bootstrap intervals; columns as in `columns`.

        Raises:
            NotFitted: There is no trained head yet.
            InvalidInput: The data are not usable, or hold a label that was not there in training.
        """
        evidence, truth_N, read = self.evidence(data, show_progress=show_progress)
        return replace(self.report(evidence.logits_NC, truth_N, resamples=resamples, seed=seed), tokens_read=read)

    def outcomes(self, data: Source, *, show_progress: bool | None = None) -> Outcomes:
        """Return the results on labelled texts, with calibrated probabilities, to compare with another model's."""
        target, _ = self._fitted()
        evidence, truth_N, read = self.evidence(data, show_progress=show_progress)
        return replace(target.outcomes(evidence.logits_NC, truth_N, self.calibration), tokens_read=read)

    def logits(self, data: Source, *, show_progress: bool | None = None) -> tuple[Logits, Truth]:
        """Uncalibrated logits (N, C) of labelled texts, and their class numbers (N)."""
        evidence, truth_N, _ = self.evidence(data, show_progress=show_progress)
        return evidence.logits_NC, truth_N

    def evidence(self, data: Source, *, show_progress: bool | None = None) -> tuple[Evidence, Truth, TextsRead]:
        """Of labelled texts: uncalibrated logits and what the detector reads, class numbers, how texts were read.

        Raises:
            NotFitted: There is no trained head yet.
            InvalidInput: The data are not usable, or hold a label that was not there in training.
        """
        target, _ = self._fitted()
        texts, truth_N = labelled_texts(data, self.columns.inputs, self.columns.label, target)
        evidence, read = self._read(texts, "evaluating", show_progress)
        return evidence, truth_N, read

    def said(
        self, texts: Iterable[Text], description: str, total: int | None, show: bool | None
    ) -> Iterator[tuple[Logits, Reading]]:
        """Of each text its logits, and the vector that they are of where the detector reads that; how it was read."""
        _, head = self._fitted()
        layers = layers_read(self.trust)
        alone = cast("Iterable[str]", texts)  # `inputs` and `given` give no pairs here
        stream = self.embedder.read_stream(alone, total=total, description=description, show_progress=show)
        for vector_K, reading in stream:
            yield _numbers(head, vector_K[None], layers)[0], reading

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """A row for each text, as it would stand in a file."""
        return typed_texts(self.columns.text, texts)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the embedder as the ecosystem has it, with the head beside it, whole or not at all.

        Raises:
            NotFitted: There is no trained head yet.
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        target, head = self._fitted()

        def beside(new: Path) -> dict[str, object]:
            write_head(new / HEAD_FILE, head)
            stored = write_trust(new, self.trust)
            return {"task": self.task, "labels": list(target.labels), **stored, "card": self.card}

        self.embedder.save_with(folder, beside, overwrite=overwrite)

    @contextmanager
    def _dropped_with_its_vectors(self) -> Iterator[None]:
        """Drop the head where fitting fails after the vectors that it was fitted to have changed."""
        trainings = self.embedder.trainings
        try:
            yield
        except BaseException:
            if self.embedder.trainings > trainings:
                self._head, self.target, self.trust, self.card = None, None, Trust(), {}
            raise

    def _learn(
        self, held_out: tuple[Vectors, Truth], training: tuple[Vectors, Truth], layers: int, plan: FitPlan
    ) -> None:
        """Learn from vectors of held-out texts, and of those of the training, how far to trust the head."""
        target, head = self._fitted()
        (held_NK, truth_N), (vectors_NK, classes_N) = held_out, training

        def some() -> tuple[Logits, Truth]:
            drawn = np.random.default_rng(plan.seed).permutation(len(classes_N))[:MOST_TRAINING]
            return _numbers(head, vectors_NK[drawn], layers), classes_N[drawn]

        numbers_NK = _numbers(head, held_NK, layers)
        self.trust = learn_trust(target, numbers_NK, truth_N, plan.settings, plan.seed, some, layers)
        metrics = self.trusted.report(numbers_NK[:, : target.outputs], truth_N, seed=plan.seed)
        worth = worth_card(Worth(metrics, self.trust.limits))
        self.card = {**self.embedder.card, **worth, "trust": self.trust.to_card()}

    def _read(self, texts: Sequence[Text], description: str, show: bool | None) -> tuple[Evidence, TextsRead]:
        said = list(self.said(texts, description, len(texts), show))
        read = texts_read([reading for _, reading in said])
        return self.trusted.evidence(np.stack([row_K for row_K, _ in said])), read

    def _evidence_of(self, texts: list[Text], show_progress: bool | None) -> tuple[Evidence, TextsRead]:
        return self._read(texts, "reading others", show_progress)

    def _set_trust(self, trust: Trust) -> None:
        self.trust = trust

    def _fitted(self) -> tuple[SingleLabel, LinearHead]:
        if self.target is None or self._head is None:
            raise NotFitted(f"{self.embedder.model.name!r} has no trained head yet: call fit first.")
        return self.target, self._head


def _layers(settings: FitSettings) -> int:
    """How many layers the detector of these settings reads: the one that vectors are made of, or none.

    Raises:
        InvalidInput: It reads others too.
    """
    if settings.detector == ALL_LAYERS:
        raise InvalidInput(
            f"a few-shot classifier has one vector of a text, and {ALL_LAYERS!r} reads every layer: choose another "
            "detector, such as 'mahalanobis'."
        )
    return layers_wanted(settings.detector, 1)


def _numbers(head: LinearHead, vectors_NK: Vectors, layers: int) -> Logits:
    """Logits, and the vectors behind them where a detector reads those."""
    logits_NC = head.logits(vectors_NK)
    return np.concatenate([logits_NC, vectors_NK], axis=1) if layers else logits_NC


def _examples(rows: Sequence[EmbeddingRow]) -> list[Example[str]]:
    return [Example(row.texts[0], row.label, 0, row.where) for row in rows]
