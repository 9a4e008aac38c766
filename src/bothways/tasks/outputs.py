"""The answers of a head above an encoder: from rows of numbers to scores, predictions and outcomes. Loads no torch.

Outputs are immutable values, and their methods are functions of values: none runs a model, and none changes anything.
What only a training needs is the business of a task's `bothways.tasks.heads.learner.Learner`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeAlias, TypeVar, cast

from bothways.confidence.confidence import Confidence
from bothways.inference import Rows
from bothways.inference.texts import blocks, text_size
from bothways.lazy import imported
from bothways.tasks.backend import Backend
from bothways.tasks.columns import ColumnNames
from bothways.tasks.scores import Scores
from bothways.tasks.spec import TaskSpec
from bothways.text import EncodedText
from bothways.text.windows import Text

if TYPE_CHECKING:
    from bothways.choices import HeadName
    from bothways.data import Example, Source
    from bothways.evaluation.outcomes import Outcomes
    from bothways.tasks.heads.diagnostics import LabelIssue

InputT = TypeVar("InputT")
TruthT = TypeVar("TruthT")
PlacesT = TypeVar("PlacesT")
PredictionT = TypeVar("PredictionT")


class Outputs(ABC, Generic[InputT, TruthT, PlacesT, PredictionT]):
    """The outputs of a head, with the confidence fitted on held-out rows: a frozen dataclass.

    Attributes:
        head: Name of the head in the family's tables.
        head_title: What the head is called in messages.
        per_token: Whether the head reads each token.
        keeps_inputs: Whether `scores` reads the input itself, which training then keeps.
        reads_words: Whether an input is the words of a text, which are read with single spaces between them.
        merges: Whether windows are merged by a rule that `from_pretrained` takes.
        labels: Names of the outputs; empty where they have none.
        layers: Layers whose hidden states stand behind the logits of each window.
        confidence: Calibration, coverage, out-of-domain detection.
    """

    head: ClassVar[HeadName]
    head_title: ClassVar[str]
    per_token: ClassVar[bool] = False
    keeps_inputs: ClassVar[bool] = False
    reads_words: ClassVar[bool] = False
    merges: ClassVar[bool] = False

    labels: tuple[str, ...]
    confidence: Confidence
    layers = 0

    @property
    def size(self) -> int:
        """Outputs of the head, C."""
        return len(self.labels)

    @property
    def comparable(self) -> tuple[str, ...]:
        """The names that predictions can have; only models with the same names can be compared."""
        return self.labels

    def with_confidence(self, confidence: Confidence) -> Self:
        """Return the same with another confidence."""
        changed: Self = replace(cast("Any", self), confidence=confidence)
        return changed

    def read(self, data: Source, columns: ColumnNames, options: object = None) -> list[Example[Any]]:
        """Return labelled inputs.

        Raises:
            InvalidInput: The data are not usable; the message names the row.
        """
        raise NotImplementedError

    @abstractmethod
    def encode(self, examples: Sequence[Example[Any]]) -> TruthT:
        """Return the truth of labelled inputs.

        Raises:
            InvalidInput: A label was not there in training; the message names the row.
        """

    def texts(self, value: InputT) -> tuple[Text, ...]:
        """Return the texts of an input that the tokenizer reads: one, or one for each choice."""
        return (cast("Text", value),)

    @abstractmethod
    def scores(self, value: InputT, rows: Sequence[Rows], options: object = None) -> Scores[PlacesT]:
        """Return the scores of an input, given the rows of the head for each of its texts."""

    @abstractmethod
    def decide(self, scores: Sequence[Scores[PlacesT]], options: object = None) -> list[PredictionT]:
        """Return a prediction for each input."""

    @abstractmethod
    def outcomes(self, scores: Sequence[Scores[PlacesT]], truth: TruthT, *, calibrated: bool | None = None) -> Outcomes:
        """Return the outcomes of labelled inputs, from which reports and comparisons are computed."""

    @abstractmethod
    def facts(self) -> dict[str, object]:
        """Return labels, calibration and thresholds as JSON values."""

    # --- on disk ---

    @classmethod
    def check_untrained(cls, backend: Backend, options: Any) -> None:  # noqa: ANN401 (the task's own)
        """Refuse a checkpoint without a trained head that cannot get one, and options that need one.

        Raises:
            InvalidInput: It cannot, or one was given.
        """
        del backend, options

    @classmethod
    @abstractmethod
    def open(cls, backend: Backend, options: Any, size: int, *, ours: bool) -> Self:  # noqa: ANN401 (the task's own)
        """Return the outputs of a trained head in a checkpoint.

        Args:
            backend: The checkpoint.
            options: The task's options of `from_pretrained`.
            size: Outputs of its head.
            ours: Whether it was trained here for this task; ``bothways.json`` then says more.

        Raises:
            InvalidInput: Labels are not known, or an option does not fit the head.
            CorruptCheckpoint: The stored outputs are damaged.
        """

    @abstractmethod
    def settings(self) -> Mapping[str, object]:
        """Return settings for ``config.json``; None removes one."""

    @abstractmethod
    def write(self, folder: Path) -> dict[str, object]:
        """Write arrays into a folder, and return settings for ``bothways.json``.

        Raises:
            OSError: The disk is full, or the folder cannot be written to.
        """


AnyOutputs: TypeAlias = Outputs[Any, Any, Any, Any]


def outputs_type(spec: TaskSpec) -> type[AnyOutputs]:
    """Import the outputs of a task on a head."""
    kind: type[AnyOutputs] = imported(spec.outputs)
    return kind


InputTexts: TypeAlias = tuple[Any, tuple[Text, ...]]
"""An input of a head, and its texts."""


class Fitted(Protocol):
    """A trained model: an immutable value that answers.

    Attributes:
        outputs: The meaning of its scores.
        columns: Columns of the parts of a row.
        card: What it says of its training, as JSON values.
    """

    @property
    def outputs(self) -> Any: ...  # noqa: ANN401 (an `Outputs`, or what answers for several models or tasks)

    @property
    def columns(self) -> Any: ...  # noqa: ANN401 (a `ColumnNames`, also of several models)

    @property
    def card(self) -> Mapping[str, Any]: ...

    def blocks(self, inputs: Iterable[Any]) -> Iterator[list[Any]]:
        """Yield inputs, in the form that `tokenize` and `scores` take, in blocks that are answered at once."""

    def tokenize(self, block: Sequence[Any], first: int) -> list[EncodedText]:
        """Return the windows of a block's texts; ``first`` inputs came before it."""

    def scores(
        self, block: Sequence[Any], encoded: Sequence[EncodedText], options: object = None
    ) -> Sequence[Scores[Any]]:
        """Return the scores of the inputs of a block."""

    def facts(self) -> dict[str, object]:
        """Return labels, calibration and the like, as JSON values."""


@dataclass(frozen=True, slots=True, eq=False)
class FittedHead:
    """A trained head above an encoder, or the graph that was exported of both.

    Attributes:
        spec: The declarations of its task.
        backend: The model.
        outputs: The meaning of the head's outputs.
        columns: Columns of the parts of a row.
        card: What the model says of its training.
        issues: Held-out labels that the most confident wrong answers contradict; not saved, since they quote the data.
    """

    spec: TaskSpec
    backend: Backend
    outputs: AnyOutputs
    columns: ColumnNames
    card: Mapping[str, Any] = field(default_factory=dict)
    issues: tuple[LabelIssue, ...] = ()

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.backend.name

    def blocks(self, inputs: Iterable[Any]) -> Iterator[list[InputTexts]]:
        """Yield inputs, each with its texts, in blocks that are answered at once."""
        reading = self.backend.reading
        with_texts: Iterable[InputTexts] = ((value, self.outputs.texts(value)) for value in inputs)
        return blocks(
            with_texts,
            reading.block_size(self.backend.budget),
            reading.block_characters,
            lambda one: sum(map(text_size, one[1])),
        )

    def tokenize(self, block: Sequence[InputTexts], first: int) -> list[EncodedText]:
        """Return the windows of a block's texts; ``first`` inputs came before it."""
        return self.backend.runner.tokenize([text for _, texts in block for text in texts], first)

    def scores(
        self, block: Sequence[InputTexts], encoded: Sequence[EncodedText], options: object = None
    ) -> list[Scores[Any]]:
        """Return the scores of the inputs of a block, given their windows: here the model runs."""
        rows = iter(self.backend.runner.rows(encoded))
        return [self.outputs.scores(value, [next(rows) for _ in texts], options) for value, texts in block]

    def facts(self) -> dict[str, object]:
        """Return labels, calibration and the like, as JSON values."""
        return self.outputs.facts()
