"""The few-shot classifiers of earlier versions: opened, asked and saved, and not trained.

One is a sentence embedder with a linear head on its vectors. What `FewShotClassifier` did for few examples, a
`bothways.tasks.TextClassifier` above a sentence embedder does by itself; see `bothways.tasks.contrast`.

Shapes: N texts, K dimensions, C classes, F numbers of a text: C, and K where the detector reads the vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.files import read_arrays
from bothways.checkpoints.save import write_arrays
from bothways.checkpoints.schema import StoredFewShot, damaged
from bothways.confidence.files import open_confidence, write_confidence
from bothways.errors import CorruptCheckpoint, InvalidInput, NotFitted
from bothways.tasks.columns import TextColumns, stored_columns
from bothways.tasks.embedding.embedder import SentenceEmbedder, SentenceTask
from bothways.tasks.embedding.spec import FEW_SHOT, EmbeddingOpening, FewShotOpening
from bothways.tasks.embedding.trained import TrainedEmbedder, Vectors
from bothways.tasks.labels import LabelOutputs, LabelScores
from bothways.tasks.opened import Opened
from bothways.tasks.predictions import Classification
from bothways.tasks.targets import Logits, SingleLabel

HEAD_FILE = "head.safetensors"

ASKED_ALONE = (
    "few-shot classifiers that earlier versions saved can be opened and asked, and none are trained any more. Fit a "
    "TextClassifier above a sentence embedder: it does by itself what FewShotClassifier did for few examples."
)


@dataclass(frozen=True, slots=True)
class LinearHead:
    """Weights of a linear map.

    Attributes:
        weight_CK: Of each class.
        bias_C: Of each class.
    """

    weight_CK: NDArray[np.float32]
    bias_C: NDArray[np.float32]

    @classmethod
    def read(cls, path: Path, classes: int, dimensions: int) -> LinearHead:
        """Return a stored head.

        Raises:
            CorruptCheckpoint: It is damaged, or does not fit.
            IncompatibleWeights: It holds no floating point numbers.
        """
        arrays = read_arrays(path)
        try:
            head = cls(arrays["weight"].astype(np.float32), arrays["bias"].astype(np.float32))
        except KeyError as error:
            raise CorruptCheckpoint(
                f"{str(path)!r} holds no head of a classifier ({error}). Get the model again."
            ) from error
        if head.weight_CK.shape != (classes, dimensions) or head.bias_C.shape != (classes,):
            raise CorruptCheckpoint(
                f"{str(path)!r} must map vectors of {dimensions} to {classes} labels, but its weights are of the shape "
                f"{head.weight_CK.shape}. It belongs to another model, or the vectors were cut."
            )
        return head

    def write(self, path: Path) -> None:
        """Write it into a file.

        Raises:
            OSError: The disk is full, or the folder cannot be written to.
        """
        write_arrays(path, {"weight": self.weight_CK, "bias": self.bias_C})

    def logits(self, vectors_NK: NDArray[Any]) -> NDArray[np.float64]:
        """Scores of the classes (N, C)."""
        scores_NC: NDArray[np.float64] = vectors_NK.astype(np.float64) @ self.weight_CK.T.astype(np.float64)
        return scores_NC + self.bias_C


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
        self.head.write(folder / HEAD_FILE)
        confidence = write_confidence(folder, self.outputs.confidence)
        labels = list(self.outputs.labels)
        self.embedder.write_with(folder, {"task": task, "labels": labels, **confidence, "card": dict(self.card)})


class FewShotClassifier(SentenceTask[str, Classification, TrainedFewShot]):
    """A classifier that an earlier version trained on a few examples of each label.

    It can be asked, evaluated, compared, saved, and be a member of ensembles; `fit` refuses. For few examples fit a
    `TextClassifier`, which does by itself what this did.

    >>> classifier = FewShotClassifier.from_pretrained("runs/few")  # doctest: +SKIP
    >>> classifier.predict("Where is my card?").label  # doctest: +SKIP
    'card_arrival'
    """

    spec = FEW_SHOT

    @property
    def embedder(self) -> SentenceEmbedder:
        """Makes the vectors."""
        opened, _ = self._state
        return SentenceEmbedder(opened, self.fitted.embedder)

    def fit(self, *_: object, **__: object) -> NoReturn:
        """Refuse: fit a `TextClassifier`.

        Raises:
            InvalidInput: Always.
        """
        raise InvalidInput(ASKED_ALONE)

    @classmethod
    def _open(cls, opened: Opened, options: FewShotOpening) -> TrainedFewShot:
        if opened.trained_for != FEW_SHOT.name:
            raise NotFitted(f"{opened.name!r} is no few-shot classifier: {ASKED_ALONE}")
        labels, stored = options.labels, StoredFewShot.of(opened.extras)
        names = tuple(stored.labels)
        if len(set(names)) != len(names):
            raise damaged("labels", "a list of different names", stored.labels)
        if labels is not None and not len(labels) == len(set(labels)) == len(names):
            raise InvalidInput(
                f"the trained head has {len(names)} outputs, so it needs as many different labels: {list(labels)}."
            )
        embedder, folder = TrainedEmbedder.of(opened, EmbeddingOpening()), opened.folder
        confidence = open_confidence(stored, folder, len(names), 1, embedder.dimensions)
        target = SingleLabel(names if labels is None else tuple(labels))
        outputs = LabelOutputs(target, confidence=confidence, layers=confidence.layers)
        head, card = LinearHead.read(folder / HEAD_FILE, len(names), embedder.dimensions), stored.card
        return TrainedFewShot(embedder, head, outputs, stored_columns(card, TextColumns()), card)

    def _prepare(self, *_: object) -> NoReturn:
        raise InvalidInput(ASKED_ALONE)
