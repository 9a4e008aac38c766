"""Interpretation of a head's outputs: scores, predictions and metrics from logits. Does not import torch.

Outputs are immutable values, and their methods are pure functions that do not run a model. Code that only training
needs belongs to the task's `bothways.tasks.heads.learner.Learner`.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from bothways import checkpoints, data
from bothways.checkpoints.schema import Stored
from bothways.confidence.confidence import Confidence
from bothways.data.known_rows import AnyTrainingRows, TrainingRows
from bothways.errors import InvalidInput, RowsShared
from bothways.inference import Rows
from bothways.lazy import imported
from bothways.progress import progress
from bothways.tasks.backend import Backend
from bothways.tasks.columns import AnyColumns, Card, inputs_of, stored_columns
from bothways.tasks.opening import with_weights
from bothways.tasks.scores import BaselineScores, ScoredRows, Scores, texts_read, warn_of_cut
from bothways.tasks.spec import TaskSpec
from bothways.text.windows import Text

if TYPE_CHECKING:
    from bothways.checkpoints import ModelAnswer
    from bothways.choices import HeadName
    from bothways.data import Example, Row, Source
    from bothways.evaluation.outcomes import Outcomes
    from bothways.tasks.card import SavedBaseline
    from bothways.tasks.heads.diagnostics import LabelIssue
    from bothways.tasks.heads.targets import Target
    from bothways.text import EncodedText, TextTokenizer

_BASELINE = "bothways.tasks.evaluate:baseline_scores"

InputT = TypeVar("InputT")
TruthT = TypeVar("TruthT")
PlacesT = TypeVar("PlacesT")
PredictionT = TypeVar("PredictionT")


class Outputs(ABC, Generic[InputT, TruthT, PlacesT, PredictionT]):
    """The interpretation of a head's outputs, calibrated on held-out rows; subclasses are frozen dataclasses.

    ``head`` is the head's name in `bothways.families`, and ``head_title`` the noun for it in messages. ``per_token`` is
    True if the head has outputs for each token, and ``reads_words`` if an input is a list of words, which are joined by
    single spaces. ``layers`` is the number of layers whose hidden states are appended to the logits of each window.
    """

    head: ClassVar[HeadName]
    head_title: ClassVar[str]
    per_token: ClassVar[bool] = False
    reads_words: ClassVar[bool] = False

    confidence: Confidence
    layers = 0

    @property
    @abstractmethod
    def row_target(self) -> Target:
        """The target of one row of scores, such as the label of a text or the tag of a word."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the outputs; empty if they have none."""
        return self.row_target.labels

    @property
    def comparable(self) -> tuple[str, ...]:
        """All label names that a prediction can have; two models can be compared only if they have the same names."""
        return self.labels

    def with_confidence(self, confidence: Confidence) -> Self:
        """Return the outputs with another confidence."""
        changed: Self = replace(cast("Any", self), confidence=confidence)
        return changed

    def read(self, data: Source, columns: AnyColumns, options: object = None) -> Sequence[Example[object]]:
        """Read labelled inputs from a file or rows; error messages name the row."""
        raise NotImplementedError

    @abstractmethod
    def encode(self, examples: Sequence[Example[Any]]) -> TruthT:
        """Encode the labels of inputs as numbers; raise `InvalidInput` for a label that did not occur in training."""

    def texts(self, value: InputT) -> tuple[Text, ...]:
        """Return the texts of an input for the tokenizer: one, or one per choice in multiple choice."""
        return (cast("Text", value),)

    @abstractmethod
    def scores(self, value: InputT, rows: Sequence[Rows], options: object = None) -> Scores[PlacesT]:
        """Return the scores of an input, given the head's output rows for each of its texts."""

    @abstractmethod
    def decide(self, scores: Sequence[Scores[PlacesT]], options: object = None) -> list[PredictionT]:
        """Return the prediction for each input, given its scores."""

    @abstractmethod
    def outcomes(self, scores: Sequence[Scores[PlacesT]], truth: TruthT, *, calibrated: bool | None = None) -> Outcomes:
        """Return the results on labelled inputs, from which reports and comparisons are computed."""

    @abstractmethod
    def facts(self) -> dict[str, object]:
        """Return labels, calibration and thresholds as JSON values."""

    # --- on disk ---

    @classmethod
    def check_untrained(cls, backend: Backend) -> None:
        """Raise an error if a checkpoint has no trained head, but the task or an option needs one."""
        del backend

    @classmethod
    @abstractmethod
    def open(cls, backend: Backend, size: int, *, ours: bool) -> Self:
        """Return the outputs of a trained head of ``size`` outputs in a checkpoint.

        The backend has the task's options of `from_pretrained`. If this package trained the head for this task
        (``ours``), ``bothways.json`` has further settings. Raises `InvalidInput` for labels or options that do not fit
        the head, and `CorruptCheckpoint` for damaged settings.
        """

    def settings(self) -> Mapping[str, object]:
        """Return settings for ``config.json``; the value None removes a setting.

        The default removes the label settings of an earlier head.
        """
        return dict.fromkeys(("id2label", "label2id", "num_labels", "problem_type"))

    @abstractmethod
    def write(self, folder: Path) -> dict[str, object]:
        """Write the outputs' arrays into a folder, and return their settings for ``bothways.json``."""


AnyOutputs: TypeAlias = Outputs[Any, Any, Any, Any]

PlacedOutputs: TypeAlias = Outputs[Any, Any, PlacesT, Any]
"""Outputs whose `Scores.places` have this type."""

OutputsT = TypeVar("OutputsT", bound=AnyOutputs, default=AnyOutputs, covariant=True)


def outputs_type(spec: TaskSpec) -> type[AnyOutputs]:
    """Import the outputs class of a task with a head."""
    kind: type[AnyOutputs] = imported(spec.outputs)
    return kind


class TrainedModel(Protocol):
    """A trained model of one task, an ensemble, or several tasks on one encoder: an immutable value that predicts.

    The ``backend`` of an ensemble is that of its first member. The ``card`` is the record of the training, as JSON
    values. ``golden_inputs`` are held-out inputs for golden answers; a model that was opened has none. ``known`` are
    the checksums of the training rows.
    """

    @property
    def backend(self) -> Backend: ...

    @property
    def outputs(self) -> Any: ...  # noqa: ANN401 (an `Outputs`, or its counterpart for several models or tasks)

    @property
    def columns(self) -> Any: ...  # noqa: ANN401 (a `ColumnNames`, also of several models)

    @property
    def card(self) -> Card: ...

    @property
    def golden_inputs(self) -> tuple[object, ...]: ...

    @property
    def known(self) -> AnyTrainingRows: ...

    def read_texts(self, value: object) -> Iterable[tuple[Backend, Sequence[Text]]]:
        """Yield each model that reads an input, with the texts that it reads."""

    def score_blocks(self, inputs: Iterable[Any], options: object = None) -> Iterator[Sequence[Scores[object]]]:
        """Yield the scores of any number of inputs, block by block."""

    def score_baseline(self, rows: ScoredRows, show_progress: bool | None = None) -> Mapping[str, BaselineScores]:
        """Return the scores of the baseline of each task for rows that the model has scored; empty without one.

        The name of a single task is ``""``.
        """

    def facts(self) -> dict[str, object]:
        """Return labels, calibration and other settings, as JSON values."""

    def write(self, folder: Path) -> None:
        """Write the model into an existing folder."""


def score_blocks(
    fitted: TrainedModel,
    inputs: Iterable[object],
    options: object = None,
    *,
    description: str = "predicting",
    total: int | None = None,
    show_progress: bool | None = None,
) -> Iterator[Sequence[Scores[object]]]:
    """Yield the scores of inputs block by block, in order and in constant memory; show the progress."""
    with progress(description, total, show=show_progress) as bar:
        for scores in fitted.score_blocks(inputs, options):
            yield scores
            bar.advance(len(scores))


def score_inputs(
    fitted: TrainedModel,
    inputs: Sequence[object],
    *,
    description: str = "predicting",
    show_progress: bool | None = None,
) -> list[Scores[object]]:
    """Return the scores of inputs, in order."""
    blocks = score_blocks(fitted, inputs, description=description, total=len(inputs), show_progress=show_progress)
    return [each for block in blocks for each in block]


def score_rows(
    fitted: TrainedModel, examples: Sequence[Example[object]], show_progress: bool | None = None
) -> ScoredRows:
    """Return the scores and encoded labels of rows."""
    truth, inputs = fitted.outputs.encode(examples), tuple(each.text for each in examples)
    scores = score_inputs(fitted, inputs, description="evaluating", show_progress=show_progress)
    return ScoredRows(tuple(scores), truth, inputs, tuple(examples))


def logits_of_all(scores: Iterable[Scores[object]]) -> NDArray[np.float64]:
    """Return the uncalibrated logits of the rows of all inputs, concatenated."""
    return np.concatenate([each.logits_RC for each in scores])


READING_OTHERS = "reading out-of-domain rows"


def inputs_of_others(fitted: TrainedModel, name: str, others: Source) -> list[object]:
    """Return the inputs of out-of-domain rows; raise `NotCalibrated` if the model has no detector."""
    fitted.outputs.confidence.detector(name)  # raises before the texts are read
    rows = [data.Example(fitted.columns.read(row), None, row.number, row.where) for row in data.read_rows(others)]
    for counts in fitted.known.compared(rows, "keep")[1].values():
        if counts.shared:
            effect = "they are not out of domain"
            warnings.warn(counts.summary("out-of-domain rows", effect, "Remove them."), RowsShared, stacklevel=3)
    return [row.text for row in rows]


TrainedT = TypeVar("TrainedT", bound=TrainedModel)


def with_threshold(fitted: TrainedT, name: str, others: Source, show_progress: bool | None) -> TrainedT:
    """Return a model with the out-of-domain threshold that best separates held-out rows from ``others``.

    ``name`` is the model's name in messages. Raises `NotCalibrated` if the model has no detector.
    """
    from bothways.confidence.fitting import separating
    from bothways.tasks.card import card_with_threshold

    inputs, outputs = inputs_of_others(fitted, name, others), fitted.outputs
    score = score_inputs if fitted.backend.export else imported("bothways.tasks.heads.objective:kept_scores")
    scores: list[Scores[object]] = score(fitted, inputs, description=READING_OTHERS, show_progress=show_progress)
    warn_of_cut(texts_read(each.read for each in scores))
    detector = separating(outputs.confidence.detector(name), outputs.evidence(scores))
    confidence = replace(outputs.confidence, out_of_domain=detector)
    changed: TrainedT = replace(
        fitted,  # type: ignore[type-var]  # each is a dataclass
        outputs=replace(outputs, confidence=confidence),
        card=card_with_threshold(fitted.card, confidence, len(scores)),
    )
    return changed


@dataclass(frozen=True, slots=True, eq=False)
class TrainedHead(Generic[OutputsT]):
    """A trained head on top of an encoder, or the graph exported from both.

    Attributes:
        spec: The declarations of its task.
        backend: The opened encoder and head, or graph.
        outputs: The meaning of the head's outputs.
        columns: Names of the columns to read.
        card: The model's record of its training.
        issues: Confident predictions that contradict held-out labels; not saved, as they quote the data.
        golden_inputs: Held-out inputs for golden answers.
        baseline: The baseline of the training; None for a model that was saved without one.
        known: Checksums of its training rows.
    """

    spec: TaskSpec
    backend: Backend
    outputs: OutputsT
    columns: AnyColumns
    card: Card = field(default_factory=dict)
    issues: tuple[LabelIssue, ...] = ()
    golden_inputs: tuple[object, ...] = ()
    baseline: SavedBaseline | None = None
    known: TrainingRows = TrainingRows()  # noqa: RUF009 (frozen)

    def read_texts(self, value: object) -> tuple[tuple[Backend, Sequence[Text]], ...]:
        """Return the backend with the texts that it reads of an input."""
        return ((self.backend, self.outputs.texts(value)),)

    def score_blocks(self, inputs: Iterable[InputT], options: object = None) -> Iterator[list[Scores[object]]]:
        """Yield the scores of any number of inputs, block by block; this runs the model."""
        outputs = self.outputs
        for block in self.backend.runner.blocks(inputs, outputs.texts):
            yield [outputs.scores(value, rows, options) for value, rows in block]

    def score_baseline(self, rows: ScoredRows, show_progress: bool | None = None) -> dict[str, BaselineScores]:
        """Return the scores of the baseline under the name ``""``; empty without one."""
        found: dict[str, BaselineScores] = imported("bothways.tasks.evaluate:baseline_scores")(
            self, rows, show_progress
        )
        return found

    def facts(self) -> dict[str, object]:
        """Return labels, calibration and other settings, as JSON values."""
        return self.outputs.facts()

    def write(self, folder: Path) -> None:
        """Write the model in the layout of transformers into an existing folder."""
        outputs, backend = self.outputs, with_weights(self.backend, "save")
        backend.write(folder, outputs.head, outputs.settings(), {"task": self.spec.name, **self.write_own(folder)})

    def write_own(self, folder: Path) -> dict[str, object]:
        """Write the arrays of outputs and baseline; return their settings and the card for ``bothways.json``."""
        baseline = {} if self.baseline is None else self.baseline.write(folder)
        return {**self.outputs.write(folder), **baseline, "card": dict(self.card)}


def stored_baseline(stored: Stored, folder: Path) -> SavedBaseline | None:
    """Return the baseline of the model in a folder; None for a model that was saved without one."""
    if stored.baseline is None:
        return None
    found: SavedBaseline = imported("bothways.tasks.card:SavedBaseline").read(stored.baseline, folder)
    return found


def open_head(spec: TaskSpec, backend: Backend) -> TrainedHead | None:
    """Return the trained head in a checkpoint; None if it was not trained for the task.

    Raises `NotFitted` for an export of another task.
    """
    kind, ours = outputs_type(spec), backend.trained_for == spec.name
    # The head of another task may have the same shape and mean something else.
    size = backend.score_count(kind.head) if ours or backend.trained_for is None else None
    if size is None:
        if backend.export is not None:
            raise backend.not_fitted(spec.name, kind.head_title)
        kind.check_untrained(backend)
        return None
    outputs = kind.open(backend, size, ours=ours)
    stored = Stored.of(backend.files.extras if ours else {})
    card, baseline = stored.card, stored_baseline(stored, backend.files.folder)
    ready = backend.with_trained_head(spec.name, kind.head, outputs.layers, per_token=kind.per_token)
    columns, known = stored_columns(card, spec.columns), TrainingRows(backend.files.folder if ours else None)
    return TrainedHead(spec, ready, outputs, columns, card, baseline=baseline, known=known)


@dataclass(frozen=True, slots=True)
class AnsweringTask:
    """A trained model of a task as its golden answers see it, see `bothways.checkpoints.golden.Answering`."""

    task: str
    fitted: TrainedModel
    source: Path | None = None  # a folder whose golden inputs are kept

    @property
    def architecture(self) -> dict[str, object]:
        """The family and the size of the encoder."""
        backend = self.fitted.backend
        model_type = backend.files.settings.get("model_type")
        return {"model_type": model_type, "hidden": backend.config.hidden, "layers": backend.config.layers}

    @property
    def arithmetic(self) -> tuple[str, str]:
        """The precision and the device."""
        return self.fitted.backend.arithmetic

    @property
    def runtime(self) -> str:
        """The package that computes."""
        return "torch" if self.fitted.backend.export is None else "onnxruntime"

    @property
    def held_out(self) -> tuple[object, ...]:
        """Held-out inputs of the training."""
        return self.fitted.golden_inputs

    @property
    def opened_from(self) -> Path | None:
        """The folder with these weights; None after a training, whose rows may include the inputs recorded there."""
        backend = self.fitted.backend
        if self.source is not None or backend.export is not None:
            return self.source or backend.files.folder
        model = with_weights(backend, "save").model
        return None if model.trainings else model.folder

    def inputs_of(self, values: Sequence[object]) -> list[object]:
        """Return JSON values as checked inputs."""
        return list(inputs_of(self.fitted.columns, values))

    @property
    def columns(self) -> AnyColumns:
        """Columns of a row."""
        columns: AnyColumns = self.fitted.columns
        return columns

    def read(self, rows: Iterable[Row]) -> list[object]:
        """Return the inputs in rows."""
        return [self.columns.read(row) for row in rows]

    def neutral(self, texts: Sequence[str]) -> list[object]:
        """Return inputs made of the fewest texts each that the task reads."""
        for count in range(1, len(texts)):
            parts = [[texts[(place + more) % len(texts)] for more in range(count)] for place in range(len(texts))]
            try:
                rows = [row for part in parts for row in self.columns.rows_of(part)]
            except InvalidInput:
                continue
            return self.read(data.Row(number, row, f"text {number}") for number, row in enumerate(rows, start=1))
        raise InvalidInput(f"no input of {self.task} can be made of texts.")

    def answers(self, inputs: Sequence[object]) -> Iterator[ModelAnswer]:
        """Yield the tokens, the logits and the prediction of each input."""
        fitted, left = self.fitted, iter(inputs)
        for scores in fitted.score_blocks(inputs):
            for each, prediction in zip(scores, fitted.outputs.decide(scores), strict=True):
                yield checkpoints.ModelAnswer(list(tokens_of(fitted, next(left))), each.numbers, prediction.to_dict())


def tokens_of(fitted: TrainedModel, value: object) -> Iterator[tuple[TextTokenizer, EncodedText]]:
    """Yield the windows of the texts of an input, with the tokenizer that made them."""
    for backend, texts in fitted.read_texts(value):
        for text in backend.reading.encode(backend.tokenizer, texts):
            yield backend.tokenizer, text
