"""Classification from a few examples of each label.

An encoder is first trained as a sentence embedder, with texts of one label as pairs; then a linear head is fitted to
its vectors (Tunstall et al. 2022, arXiv:2209.11055). There the pairs are compared one by one; here all texts of other
labels in a batch are a pair's negatives, which is the ranking loss of `bothways.tasks.embedding.losses`.

Shapes: N texts, K dimensions, C classes, F numbers of a text: C, and K where the detector reads the vector.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bothways.checkpoints.schema import StoredFewShot, damaged
from bothways.confidence.files import open_confidence, write_confidence
from bothways.data import Example
from bothways.errors import InvalidInput
from bothways.evaluation import Evidence
from bothways.progress import phase
from bothways.tasks.card import NOTICES_NOTHING, Worth, unmeasured, worth_card
from bothways.tasks.columns import TextColumns, stored_columns
from bothways.tasks.embedding.embedder import SentenceEmbedder, SentenceTask
from bothways.tasks.embedding.objective import EmbeddingObjective
from bothways.tasks.embedding.rows import EmbeddingRow, read_embedding_rows
from bothways.tasks.embedding.softmax_regression import (
    LinearHead,
    check_strength,
    fit_softmax_regression,
    read_head,
    write_head,
)
from bothways.tasks.embedding.spec import FEW_SHOT, EmbeddingOpening, FewShotLearning, FewShotOpening, LabelledTexts
from bothways.tasks.embedding.trained import TrainedEmbedder, Vectors
from bothways.tasks.embedding.training import EmbeddingExamples, prepare_embedder
from bothways.tasks.head import TrainingData
from bothways.tasks.label_confidence import check_calibration, confidence_limits, learn_confidence
from bothways.tasks.labels import MOST_TRAINING, LabelOutputs, LabelScores
from bothways.tasks.learning import Preparation
from bothways.tasks.opening import OpenedModel
from bothways.tasks.predictions import Classification
from bothways.tasks.scores import TokensRead
from bothways.tasks.targets import Logits, SingleLabel, Truth, target_of
from bothways.training.options import TrainingOptions
from bothways.training.record import TrainingRecord

HEAD_FILE = "head.safetensors"

# What a reader of the card has to know without validation data.
UNMEASURED = (unmeasured("no validation data were given"), "Probabilities are not calibrated.", NOTICES_NOTHING)


@dataclass(frozen=True, slots=True, eq=False)
class TrainedFewShot:
    """A linear head on the vectors of an embedder: an immutable value.

    Attributes:
        embedder: Makes the vectors.
        head: Makes logits of them.
        outputs: What the logits mean, and what validation data taught about them.
        columns: Where texts and labels stand.
        card: What the model says of its making.
    """

    embedder: TrainedEmbedder
    head: LinearHead
    outputs: LabelOutputs
    columns: TextColumns
    card: Mapping[str, Any] = field(default_factory=dict)

    def scores(
        self,
        inputs: Iterable[str],
        options: object = None,
        *,
        description: str = "predicting",
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[LabelScores]:
        """Yield the scores of texts, in order and in flat memory."""
        del options
        stream = self.embedder.vectors(inputs, total=total, description=description, show_progress=show_progress)
        for vector_K, read in stream:
            yield self.outputs.scored(self.numbers(vector_K[None])[0], read)

    def numbers(self, vectors_NK: Vectors) -> Logits:
        """Return the logits of vectors, with the vectors beside them where the detector reads these (N, F)."""
        logits_NC = self.head.logits(vectors_NK)
        return np.concatenate([logits_NC, vectors_NK], axis=1) if self.outputs.layers else logits_NC

    def learnt(
        self,
        held_out: tuple[Vectors, list[TokensRead], Truth],
        training: tuple[Vectors, Truth],
        options: FewShotLearning,
        seed: int,
    ) -> "TrainedFewShot":
        """Return the same with the confidence that held-out texts teach, and their metrics in its card."""
        (held_NK, reads, truth_N), (vectors_NK, classes_N) = held_out, training
        target, layers = self.outputs.target, options.layers(1)
        reading = replace(self, outputs=replace(self.outputs, layers=layers))

        def scores_of(vectors_NK: Vectors, reads: Sequence[TokensRead]) -> list[LabelScores]:
            rows = zip(reading.numbers(vectors_NK), reads, strict=True)
            return [reading.outputs.scored(row_F, read) for row_F, read in rows]

        def some() -> tuple[Evidence, Truth]:
            drawn = np.random.default_rng(seed).permutation(len(classes_N))[:MOST_TRAINING]
            part = scores_of(vectors_NK[drawn], [TokensRead(1, 0)] * len(drawn))
            return reading.outputs.evidence(part), classes_N[drawn]

        held = scores_of(held_NK, reads)
        confidence = learn_confidence(target, reading.outputs.evidence(held), truth_N, options, seed, some)
        outputs = replace(reading.outputs, confidence=confidence)
        metrics = worth_card(Worth(outputs.outcomes(held, truth_N).report(seed=seed), confidence_limits(confidence)))
        return replace(self, outputs=outputs, card={**self.card, **metrics, **outputs.card()})

    def facts(self) -> dict[str, object]:
        """Return labels and calibration."""
        return self.outputs.facts()

    def write(self, folder: Path, task: str) -> None:
        """Write the embedder as the ecosystem has it, with the head beside it, into an existing folder.

        The families' classification heads read the first token through a pooler, so they cannot express a linear map
        of an embedding.

        Raises:
            OSError: The disk is full, or the folder cannot be written to.
        """
        write_head(folder / HEAD_FILE, self.head)
        confidence = write_confidence(folder, self.outputs.confidence)
        labels = list(self.outputs.labels)
        self.embedder.write_with(folder, {"task": task, "labels": labels, **confidence, "card": dict(self.card)})


class FewShotClassifier(SentenceTask[str, Classification, TrainedFewShot]):
    """A classifier that learns from a few examples of each label.

    It saves a sentence embedder, here and for the ecosystem, with the head in a file of its own. Few examples are too
    dear to hold some out: without validation data, `fit` keeps the last epoch, probabilities are not calibrated, no
    coverage is guaranteed, and texts out of domain are not noticed.

    >>> classifier = FewShotClassifier.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> classifier.fit("eight_of_each.jsonl")  # doctest: +SKIP
    >>> classifier.predict("Where is my card?").label  # doctest: +SKIP
    'card_arrival'
    """

    spec = FEW_SHOT

    @property
    def embedder(self) -> SentenceEmbedder:
        """Makes the vectors."""
        opened, fitted = self._state
        return SentenceEmbedder(opened, _embedder_of(opened, fitted))

    @classmethod
    def _open(cls, opened: OpenedModel, options: FewShotOpening) -> TrainedFewShot | None:
        labels = options.labels
        if opened.trained_for != FEW_SHOT.name:
            _embedder_of(opened, None)
            if labels is not None:
                raise InvalidInput("labels name the outputs of a trained head, but this checkpoint has none: call fit.")
            return None
        stored = StoredFewShot.of(opened.extras)
        names = tuple(stored.labels)
        if len(set(names)) != len(names):
            raise damaged("labels", "a list of different names", stored.labels)
        if labels is not None and not len(labels) == len(set(labels)) == len(names):
            raise InvalidInput(
                f"the trained head has {len(names)} outputs, so it needs as many different labels: {list(labels)}."
            )
        embedder, folder = _embedder_of(opened, None), opened.model.folder
        confidence = open_confidence(stored, folder, len(names), 1, embedder.dimensions)
        target = SingleLabel(names if labels is None else tuple(labels))
        outputs = LabelOutputs(target, confidence=confidence, layers=confidence.layers)
        head, card = read_head(folder / HEAD_FILE, len(names), embedder.dimensions), stored.card
        return TrainedFewShot(embedder, head, outputs, stored_columns(card, TextColumns()), card)

    def _prepare(
        self,
        opened: OpenedModel,
        before: TrainedFewShot | None,
        data: TrainingData,
        columns: TextColumns,
        options: FewShotLearning,
        training: TrainingOptions,
    ) -> Preparation[EmbeddingObjective, TrainedFewShot]:
        check_strength(options.strength)
        if data.validation is None and options.calibration not in ("auto", None):
            raise InvalidInput(
                f"calibration by {options.calibration!r} wants held-out texts: give validation data, or leave "
                "calibration at 'auto'."
            )
        kind = LabelledTexts(columns.text, columns.label)
        rows = read_embedding_rows(data.train, kind)
        held_out = [] if data.validation is None else read_embedding_rows(data.validation, kind)
        examples, held = ([Example(row.text, row.label, 0, row.where) for row in part] for part in (rows, held_out))
        target = target_of("single", examples)
        classes_N, truth_N = target.encode(examples), target.encode(held)
        check_calibration(target, options, truth_N)
        begun = replace(_embedder_of(opened, before), opened=opened)
        ready = prepare_embedder(begun, EmbeddingExamples(kind, rows, held_out, split=False), options, training)

        def encode(embedder: TrainedEmbedder, rows: Sequence[EmbeddingRow]) -> tuple[Vectors, list[TokensRead]]:
            return embedder.encode([row.text[0] for row in rows], show_progress=training.show_progress)

        def finish(record: TrainingRecord) -> TrainedFewShot:
            embedder = ready.finish(record)
            phase("fitting the head")
            vectors_NK, _ = encode(embedder, rows)
            head = fit_softmax_regression(vectors_NK, classes_N, target.outputs, strength=options.strength)
            outputs = LabelOutputs(target, options=options)
            if not held_out:
                card = {**embedder.card, **worth_card(Worth(None, UNMEASURED))}
                return TrainedFewShot(embedder, head, outputs, columns, card)
            fitted = TrainedFewShot(embedder, head, outputs, columns, embedder.card)
            measured = (*encode(embedder, held_out), truth_N)
            return fitted.learnt(measured, (vectors_NK, classes_N), options, training.seed)

        return Preparation(ready.objective, finish)


def _embedder_of(opened: OpenedModel, fitted: TrainedFewShot | None) -> TrainedEmbedder:
    return TrainedEmbedder.of(opened, EmbeddingOpening()) if fitted is None else fitted.embedder
