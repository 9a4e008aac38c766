"""Outputs of a head with the confidence fitted on held-out rows: the part of a task that is its own.

A new task on a head is a subclass of `HeadOutputs`, columns and a spec. Every method is a function of values: none
changes the outputs, runs a model or reads a file, but where it says so.

Shapes: W windows, B windows of a batch, C outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from bothways.confidence.confidence import Confidence
from bothways.data import Example, Source
from bothways.evaluation import Outcomes
from bothways.families import HeadName
from bothways.inference import TextRows, TokenOutputs
from bothways.tasks.opened import Opened
from bothways.tasks.scores import Scores
from bothways.text.texts import Text
from bothways.training.objective import Validation

if TYPE_CHECKING:
    from bothways.encoder import ScoreHead
    from bothways.tasks.findings import Mistake
    from bothways.tasks.head import StoredInputs, TrainingData
    from bothways.tasks.objective import Answers, HeadModel, Scoring
    from bothways.tasks.opening import OpenedModel

InputT = TypeVar("InputT")
PlacesT = TypeVar("PlacesT")

Rows: TypeAlias = TextRows | TokenOutputs
"""What a module gives for one text: a row for each window, or for each token of each window."""

Identity: TypeAlias = Mapping[str, str | int | float | bool | None]


class HeadOutputs(ABC, Generic[InputT, PlacesT]):
    """Outputs of a head with the confidence fitted on held-out rows: a frozen dataclass.

    Attributes:
        head: Name of the head in the family's tables.
        head_title: What the head is called in messages.
        per_token: Whether the head reads each token, so that `scores` wants the places of tokens.
        keeps_inputs: Whether `scores` reads the input itself, which training then keeps.
        reads_words: Whether an input is the words of a text, which are read with single spaces between them.
        merges: Whether the scores of windows are merged by a rule that `from_pretrained` takes.
        labels: Names of the outputs; none where they have no names.
        two_classes: Names of the classes, where every input is of one of two.
        layers: Layers whose hidden states stand behind the logits that `forward`'s module gives.
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
    two_classes: tuple[str, ...] = ()
    layers = 0

    @property
    def size(self) -> int:
        """Outputs of the head, C."""
        return len(self.labels)

    @property
    def comparable(self) -> tuple[str, ...]:
        """The names that predictions can have: two models with the same names can be compared."""
        return self.labels

    def with_confidence(self, confidence: Confidence) -> Self:
        """Return the same with another confidence."""
        return cast("Self", replace(cast("Any", self), confidence=confidence))

    # --- from inputs to answers ---

    def texts(self, value: InputT) -> tuple[Text, ...]:
        """Return what the tokenizer reads of an input: one text, or one for each choice."""
        return (value,)  # type: ignore[return-value]

    def forward(self, model: HeadModel) -> Scoring:
        """Return the module to run: the model, or one that also gives features."""
        return model

    @abstractmethod
    def scores(self, value: InputT, rows: Sequence[Rows], options: Any = None) -> Scores[PlacesT]:  # noqa: ANN401 (the task's own)
        """Return the scores of an input, given the rows of `forward`'s module for each of its texts."""

    @abstractmethod
    def decide(self, scores: Iterable[Scores[PlacesT]], options: Any = None) -> Iterator[Any]:  # noqa: ANN401 (the task's own)
        """Yield a prediction for each input."""

    @abstractmethod
    def outcomes(
        self,
        scores: Sequence[Scores[PlacesT]],
        truth: Any,  # noqa: ANN401 (the task's own)
        *,
        calibrated: bool | None = None,
    ) -> Outcomes:
        """Return the outcomes of labelled inputs, which reports and comparisons are computed from."""

    @abstractmethod
    def facts(self) -> dict[str, object]:
        """Return labels, calibration and thresholds as JSON values."""

    # --- learning ---

    @classmethod
    @abstractmethod
    def begin(
        cls,
        opened: OpenedModel,
        data: TrainingData,
        columns: Any,  # noqa: ANN401 (the task's own)
        options: Any,  # noqa: ANN401 (the task's own)
        seed: int,
        before: Self | None,
    ) -> tuple[Self, list[Example[Any]], list[Example[Any]]]:
        """Read training data; return the outputs that they call for, the training examples and the held-out ones.

        Args:
            opened: The encoder, and how it reads texts.
            data: Training data and validation data.
            columns: Where the parts of a row stand.
            options: The task's options of `fit`.
            seed: Draws held-out rows where there are no validation data.
            before: The outputs that the model had; labels keep their order where they are the same.

        Raises:
            InvalidInput: The data are not usable; the message names the row.
        """

    @abstractmethod
    def read(self, data: Source, columns: Any, options: Any = None) -> list[Example[Any]]:  # noqa: ANN401 (the task's own)
        """Return labelled inputs.

        Raises:
            InvalidInput: The data are not usable; the message names the row.
        """

    @abstractmethod
    def encode(self, examples: Sequence[Example[Any]]) -> Any:  # noqa: ANN401 (the task's own)
        """Return the truth of labelled inputs.

        Raises:
            InvalidInput: A label was not there in training; the message names the row.
        """

    def check_data(self, training: StoredInputs, held: StoredInputs) -> Collection[int]:
        """Refuse data that cannot be learnt from; return the numbers of training inputs to leave out.

        Raises:
            InvalidInput: The data or an option does not go with the other.
        """
        del training, held
        return ()

    def standardize(self, head: ScoreHead) -> None:
        """Change a trained head, in place, into one that gives what `answers` trains; most heads stay as they are."""

    def unstandardize(self, head: ScoreHead) -> Self:
        """Change a head at the end of its training, in place, into the one to keep; return what its outputs mean."""
        del head
        return self

    def continues(self, before: Self) -> bool:
        """Return whether a head with the outputs ``before`` can be trained further for these."""
        return self.labels == before.labels

    @property
    def start_strength(self) -> float | None:
        """Inverse penalty of the linear model that a new head begins at; None where the head is drawn instead."""
        return None

    def contrasted_classes(self, stored: StoredInputs) -> NDArray[np.int64] | None:
        """Return the classes of inputs, where those of one are to be brought together before a head begins."""
        del stored
        return None

    def learn_from(self, scores: Sequence[Scores[PlacesT]], truth: Any, seed: int) -> Self:  # noqa: ANN401 (as above)
        """Return the outputs with what held-out scores teach, of few inputs that have `contrasted_classes`."""
        del scores, truth, seed
        return self

    @abstractmethod
    def answers(self, stored: StoredInputs) -> Answers:
        """Return the loss of windows."""

    @abstractmethod
    def validate(self, scores: Sequence[Scores[PlacesT]], truth: Any) -> Validation:  # noqa: ANN401 (the task's own)
        """Return the metrics of an epoch."""

    @abstractmethod
    def learn(
        self, model: HeadModel, training: StoredInputs, held: StoredInputs, seed: int, tokens: int
    ) -> tuple[Self, Sequence[Scores[PlacesT]]]:
        """Run the trained model on held-out inputs; return the outputs with what they teach, and their scores.

        Args:
            model: Encoder and head.
            training: What it learnt from.
            held: Held-out inputs.
            seed: Of what is drawn.
            tokens: Token budget of a batch.
        """

    @property
    @abstractmethod
    def identity(self) -> Identity:
        """Everything besides data and training options that decides the course of a training."""

    @abstractmethod
    def part(self, stored: StoredInputs) -> dict[str, object]:
        """Return counts and checksums of the truth for the card."""

    def unit(self, truth: Any) -> float:  # noqa: ANN401 (the task's own)
        """Return what a validation score is divided by to be comparable between tasks."""
        del truth
        return 1.0

    @property
    @abstractmethod
    def limits(self) -> tuple[str, ...]:
        """Limits that a reader of the card's metrics has to know."""

    def card(self) -> dict[str, Any]:
        """Return further entries of the card."""
        return {}

    def findings(
        self,
        scores: Sequence[Scores[PlacesT]],
        truth: Any,  # noqa: ANN401 (the task's own)
        training: Sequence[Example[Any]],
        held_out: Sequence[Example[Any]],
    ) -> tuple[list[str], tuple[Mistake, ...]]:
        """Return what speaks against the data or the answers, in sentences, and the most confident mistakes.

        Args:
            scores: Of the held-out inputs.
            truth: Theirs.
            training: What was learnt from.
            held_out: The held-out inputs.
        """
        del scores, truth, training, held_out
        return [], ()

    # --- on disk ---

    @classmethod
    @abstractmethod
    def open(cls, opened: Opened, options: Any, size: int, *, ours: bool) -> Self:  # noqa: ANN401 (the task's own)
        """Return the outputs of a trained head in a checkpoint.

        Args:
            opened: The checkpoint.
            options: The task's options of `from_pretrained`.
            size: Outputs of its head.
            ours: Whether it was trained here for this task; ``bothways.json`` then says more.

        Raises:
            InvalidInput: Labels are not known, or an option does not fit the head.
            CorruptCheckpoint: What was saved is damaged.
        """

    @abstractmethod
    def settings(self) -> Mapping[str, object]:
        """Return settings for ``config.json``; None takes one out."""

    @abstractmethod
    def write(self, folder: Path) -> dict[str, object]:
        """Write arrays into a folder, and return settings for ``bothways.json``.

        Raises:
            OSError: The disk is full, or the folder cannot be written to.
        """
