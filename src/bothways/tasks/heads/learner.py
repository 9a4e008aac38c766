"""The training side of a task on a head: data, loss, validation, confidence, diagnostics.

A `Learner` is a frozen dataclass around the `Outputs` in training; only `fit` loads it.
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
from bothways.progress import phase
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
    """The training side of a task whose model is an encoder with a head.

    Its ``outputs`` have their confidence once it is fitted. If a student can be trained on the predictions of such a
    model (``distills``), the learner has `uncalibrated`, `loss_units` and `decided`.
    """

    outputs: OutputsT

    distills: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def from_data(
        cls,
        backend: TorchBackend,
        data: TrainingData,
        columns: AnyColumns,
        options: object,
        seed: int,
        before: OutputsT | None,
    ) -> tuple[Self, Sequence[Example[object]], Sequence[Example[object]]]:
        """Read training data; return the learner, the training examples and the held-out ones.

        Without validation data, held-out rows are drawn with the seed. If the labels are the same as in the earlier
        outputs ``before``, their order is kept.
        """

    def check_data(self, training: StoredInputs, held: StoredInputs) -> Collection[int]:
        """Refuse data that do not fit the options; return the indices of training inputs with nothing to learn from."""
        del training, held
        return ()

    # --- the head ---

    def is_compatible_with(self, before: OutputsT) -> bool:
        """Return True if a head with the outputs ``before`` can be trained further for the learner's outputs."""
        return self.outputs.labels == before.labels

    def with_target(self, target: Target) -> Self:
        """Return the learner with a rescaled regression target; unchanged for tasks without regression."""
        del target
        return self

    @property
    def start_strength(self) -> float | None:
        """Inverse penalty of the linear model that a new head starts from; None to draw the head at random."""
        return None

    def contrast_classes(self, stored: StoredInputs) -> NDArray[np.int64] | None:
        """Return the classes of inputs for a contrastive warm-up before the head starts; None for no warm-up."""
        del stored
        return None

    # --- the loss ---

    @abstractmethod
    def loss(self, stored: StoredInputs) -> LabelLoss:
        """Return the targets of windows and their loss."""

    @abstractmethod
    def validate(self, scores: Sequence[Scores[PlacesT]], truth: TruthT) -> Validation:
        """Return the metrics of an epoch."""

    @property
    @abstractmethod
    def identity(self) -> Identity:
        """Everything besides data and training options that determines the training."""

    # --- after the training ---

    def fit_confidence(
        self, model: HeadModel, training: StoredInputs, held: StoredInputs, seed: int, tokens: int
    ) -> tuple[Self, Sequence[Scores[PlacesT]]]:
        """Run the trained model on held-out inputs; return the learner with its confidence, and their scores."""
        del training, seed
        phase("reading the held-out rows")
        scores = held.scores(self.outputs, model, tokens)
        return replace(self, outputs=self.calibrated(scores, held.truth)), scores

    def calibrated(self, scores: Sequence[Scores[PlacesT]], truth: TruthT) -> OutputsT:
        """Return the outputs with a confidence fitted on held-out scores."""
        raise NotImplementedError

    def fit_confidence_of_folds(self, scores: Sequence[Scores[PlacesT]], truth: TruthT, seed: int) -> Self:
        """Return the learner with a confidence fitted on cross-validated scores of inputs with `contrast_classes`."""
        del scores, truth, seed
        return self

    @abstractmethod
    def data_facts(self, stored: StoredInputs) -> dict[str, object]:
        """Return counts and checksums of the truth for the card."""

    @property
    def limits(self) -> tuple[str, ...]:
        """Limits of the card's metrics, in sentences."""
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
        """Return the decisions for inputs, encoded as truth."""
        raise NotImplementedError


AnyLearner: TypeAlias = Learner[Any, Any, Any]
