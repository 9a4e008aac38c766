"""The training code of a task with a head: data, loss, validation, calibration, diagnostics.

A `Learner` is a frozen dataclass that holds the `Outputs` in training; it is imported only by `fit`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from bothways.data import Example
from bothways.evaluation.report import Validation
from bothways.progress import stage
from bothways.tasks.card import EPOCH_AND_CALIBRATION, LIKE_THESE, NOTICES_NOTHING, optimistic
from bothways.tasks.columns import AnyColumns
from bothways.tasks.heads.diagnostics import LabelIssue
from bothways.tasks.heads.objective import LabelLoss, LossUnits, StoredInputs
from bothways.tasks.heads.splits import TrainingData
from bothways.tasks.heads.targets import Target
from bothways.tasks.outputs import AnyOutputs
from bothways.tasks.scores import Scores
from bothways.tasks.torch_backend import HeadModel

if TYPE_CHECKING:
    from bothways.tasks.torch_backend import TorchBackend

TruthT = TypeVar("TruthT")
PlacesT = TypeVar("PlacesT")
OutputsT = TypeVar("OutputsT", bound=AnyOutputs)

Identity: TypeAlias = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True, eq=False)
class Learner(ABC, Generic[OutputsT, TruthT, PlacesT]):
    """The training code of a task whose model is an encoder with a head.

    ``outputs`` is uncalibrated until `fit_confidence`. ``distills`` is True if a student can learn from the model's
    predictions; the learner then implements `uncalibrated`, `loss_units` and `decided`.
    """

    outputs: OutputsT

    distills: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def from_data(
        cls, backend: TorchBackend, data: TrainingData, columns: AnyColumns, options: object, before: OutputsT | None
    ) -> tuple[Self, Sequence[Example[object]], Sequence[Example[object]]]:
        """Read training data; return the learner, the training examples and the held-out examples.

        Without validation data, the held-out rows are drawn from the training data. If the labels are the same as in
        the previous outputs ``before``, their order is kept.
        """

    def check_data(self, training: StoredInputs, held: StoredInputs) -> Collection[int]:
        """Raise an error if the data do not fit the options; return the indices of unusable training inputs."""
        del training, held
        return ()

    # --- the head ---

    def is_compatible_with(self, before: OutputsT) -> bool:
        """Return True if training can continue with the head of the outputs ``before``."""
        return self.outputs.labels == before.labels

    def with_target(self, target: Target) -> Self:
        """Return the learner with a rescaled regression target; unchanged for tasks without regression."""
        del target
        return self

    @property
    def start_strength(self) -> float | None:
        """Inverse penalty of the linear model that a new head starts from; None for a random head."""
        return None

    def contrast_classes(self, stored: StoredInputs) -> NDArray[np.int64] | None:
        """Return the class of each input for a contrastive warm-up of the encoder; None for no warm-up."""
        del stored
        return None

    # --- the loss ---

    @abstractmethod
    def loss(self, stored: StoredInputs) -> LabelLoss:
        """Return the loss, which holds the targets of the windows."""

    @abstractmethod
    def validate(self, scores: Sequence[Scores[PlacesT]], truth: TruthT) -> Validation:
        """Return metrics on held-out inputs after an epoch."""

    @property
    @abstractmethod
    def identity(self) -> Identity:
        """The settings, besides data and training options, that determine the training."""

    # --- after the training ---

    def fit_confidence(
        self, model: HeadModel, training: StoredInputs, held: StoredInputs, seed: int, tokens: int
    ) -> tuple[Self, Sequence[Scores[PlacesT]]]:
        """Run the trained model on held-out inputs; return the learner with fitted confidence, and the scores."""
        del training, seed
        scores = held.scores(self.outputs, model, tokens, "reading the held-out rows")
        with stage("calibrating"):
            return replace(self, outputs=self.calibrated(scores, held.truth)), scores

    def rows_read_afterwards(self, rows: int) -> int:
        """Return the number of the ``rows`` training rows that `fit_confidence` reads."""
        del rows
        return 0

    def calibrated(self, scores: Sequence[Scores[PlacesT]], truth: TruthT) -> OutputsT:
        """Return the outputs with calibration and thresholds fitted on held-out scores."""
        raise NotImplementedError

    def constant(self, stored: StoredInputs) -> tuple[float, ...]:
        """Return the logits of the best constant prediction for training inputs; empty for tasks without one."""
        del stored
        return ()

    def fit_confidence_of_folds(self, scores: Sequence[Scores[PlacesT]], truth: TruthT, seed: int) -> Self:
        """Return the learner with a confidence fitted on cross-validated scores (classifiers of few texts only)."""
        del scores, truth, seed
        return self

    @abstractmethod
    def data_facts(self, stored: StoredInputs) -> dict[str, object]:
        """Return counts and checksums of the true labels for the card."""

    @property
    def limits(self) -> tuple[str, ...]:
        """Limits of the card's metrics, as sentences."""
        return optimistic("texts", EPOCH_AND_CALIBRATION), LIKE_THESE, NOTICES_NOTHING

    def card(self) -> dict[str, object]:
        """Return further entries of the card."""
        return {}

    def diagnostics(
        self,
        scores: Sequence[Scores[PlacesT]],
        truth: TruthT,
        training: Sequence[Example[object]],
        held_out: Sequence[Example[object]],
    ) -> tuple[list[str], tuple[LabelIssue, ...]]:
        """Return warnings about data and held-out predictions, and the most confident wrong predictions."""
        del scores, truth, training, held_out
        return [], ()

    # --- distillation ---

    def uncalibrated(self, *, detects: bool = False) -> Self:
        """Return the learner without anything fitted on held-out rows; ``detects`` keeps an out-of-domain detector."""
        raise NotImplementedError

    def loss_units(self, stored: StoredInputs) -> LossUnits:
        """Return the loss units of each window; the outputs' `row_target` gives their meaning."""
        raise NotImplementedError

    def decided(self, scores: Sequence[Scores[PlacesT]]) -> TruthT:
        """Return the predicted labels of inputs, encoded like true labels."""
        raise NotImplementedError


AnyLearner: TypeAlias = Learner[Any, Any, Any]
