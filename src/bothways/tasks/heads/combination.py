"""The common interface of models of one task whose scores can be combined: see `bothways.compose`.

Members give logits with their own calibration applied, so that softmax (or sigmoid, for multi-label models) gives their
calibrated probabilities. The ensemble has scores too, which the first member's outputs turn into decisions.

Shapes: M members, R rows of an input, C outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.schema import StoredEnsemble
from bothways.confidence.confidence import Confidence
from bothways.confidence.fitting import stored_temperature
from bothways.tasks.card import LIKE_THESE, optimistic
from bothways.tasks.heads.targets import Truth, calibrated_logits
from bothways.tasks.outputs import AnyOutputs
from bothways.tasks.scores import Scores, most_read

InputT = TypeVar("InputT")
TruthT = TypeVar("TruthT")
PlacesT = TypeVar("PlacesT")
OutputsT = TypeVar("OutputsT", bound=AnyOutputs)


@dataclass(frozen=True, slots=True, eq=False)
class Combiner(ABC, Generic[OutputsT, InputT, TruthT, PlacesT]):
    """The outputs of a model as a member of an ensemble, or of the ensemble itself.

    If its rows of scores belong to parts of the input, such as words, all members must read the same input
    (``shares_inputs``). Stacking requires that every input has the same outputs (``stackable``).
    """

    outputs: OutputsT

    shares_inputs: ClassVar[bool] = False
    stackable: ClassVar[bool] = True

    @property
    def shared_settings(self) -> Mapping[str, str]:
        """Settings that all members share besides their labels, by name."""
        return {}

    # --- combining scores ---

    def calibrated_scores(self, scores: Scores[PlacesT]) -> Scores[PlacesT]:
        """Return scores with the model's calibration applied."""
        logits_RC = calibrated_logits(self.outputs.row_target, scores.logits_RC, self.outputs.confidence.calibration)
        return replace(scores, logits_RC=logits_RC, features_LH=None)

    def rows(self, members: Sequence[Scores[PlacesT]]) -> NDArray[np.float64]:
        """Return the members' logits for the same rows (M, R, C)."""
        return np.stack([each.logits_RC for each in members])

    def combine(
        self, members: Sequence[Scores[PlacesT]], combined_RC: NDArray[np.float64], options: object = None
    ) -> Scores[PlacesT]:
        """Return the scores of the ensemble, given the combination of `rows`."""
        del options
        votes = [each.votes for each in members if each.votes is not None]
        read = most_read(each.read for each in members)
        return Scores(combined_RC, members[0].places, read, votes=float(np.mean(votes)) if votes else None)

    def disagrees(self, member: Scores[PlacesT], prediction: object) -> float | None:
        """Return 1 if a member decides differently from the ensemble, else 0; None to compare row by row."""
        del member, prediction
        return None

    # --- the confidence of the ensemble ---

    def uncalibrated(self, members: Sequence[Self]) -> Self:
        """Return the outputs of the ensemble before it is calibrated."""
        del members
        return replace(self, outputs=self.outputs.with_confidence(Confidence()))

    @abstractmethod
    def calibrated(self, scores: Sequence[Scores[PlacesT]], truth: TruthT) -> Self:
        """Return the outputs with the confidence fitted on held-out scores."""

    def flat(self, truth: TruthT) -> tuple[Truth, NDArray[np.int64]]:
        """Return the truth of the rows of all inputs, and the input of each row."""
        rows: Truth = np.asarray(truth)
        return rows, np.arange(len(rows))

    @abstractmethod
    def metrics(self, scores: Sequence[Scores[PlacesT]], truth: TruthT) -> Mapping[str, float]:
        """Return metrics of `calibrated_scores`."""

    # --- on disk, and the card ---

    def names(self) -> dict[str, object]:
        """Return names of the outputs, as JSON values."""
        return {"labels": list(self.outputs.labels)}

    def state(self) -> dict[str, object]:
        """Return everything fitted besides the temperature, as JSON values."""
        return {}

    def restored(self, stored: StoredEnsemble) -> Self:
        """Return the outputs with the stored confidence."""
        return replace(self, outputs=self.outputs.with_confidence(Confidence(stored_temperature(stored))))

    def limits(self, chose: str) -> tuple[str, ...]:
        """Return the limits of metrics on rows that also decided something."""
        return optimistic("rows", chose), LIKE_THESE

    @abstractmethod
    def data_facts(self, inputs: Sequence[InputT], truth: TruthT) -> dict[str, object]:
        """Return counts and SHA-256 of labelled inputs for the card."""

    def card(self) -> dict[str, object]:
        """Return further entries of the card of an ensemble."""
        return {}
