"""The interface of models as members of an ensemble; see `bothways.compose`.

Members return logits with their calibration applied: their softmax (or sigmoid, for multi-label models) is calibrated.
The first member's outputs turn the combined scores of the ensemble into decisions.

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

    ``shares_inputs`` is True if rows of scores belong to parts of the input, such as words: all members must then read
    the same input. ``stackable`` is True if every input has the same outputs, as stacking requires.
    """

    outputs: OutputsT

    shares_inputs: ClassVar[bool] = False
    stackable: ClassVar[bool] = True

    @property
    def shared_settings(self) -> Mapping[str, str]:
        """Settings, besides the labels, that must be the same for all members."""
        return {}

    # --- combining scores ---

    def calibrated_scores(self, scores: Scores[PlacesT]) -> Scores[PlacesT]:
        """Return scores with the model's calibration applied."""
        logits_RC = calibrated_logits(self.outputs.row_target, scores.logits_RC, self.outputs.confidence.calibration)
        return replace(scores, logits_RC=logits_RC, features_LH=None)

    def rows(self, members: Sequence[Scores[PlacesT]]) -> NDArray[np.float64]:
        """Return the logits of all members for the same rows (M, R, C)."""
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
        """Return 1 if a member's decision differs from the ensemble's, else 0; None to compare scores instead."""
        del member, prediction
        return None

    # --- the confidence of the ensemble ---

    def uncalibrated(self, members: Sequence[Self]) -> Self:
        """Return the combiner of the ensemble before its calibration."""
        del members
        return replace(self, outputs=self.outputs.with_confidence(Confidence()))

    @abstractmethod
    def calibrated(self, scores: Sequence[Scores[PlacesT]], truth: TruthT) -> Self:
        """Return the combiner with calibration fitted on held-out scores."""

    def flat(self, truth: TruthT) -> tuple[Truth, NDArray[np.int64]]:
        """Return the truth of all rows of scores, concatenated over inputs, and the input index of each row."""
        rows: Truth = np.asarray(truth)
        return rows, np.arange(len(rows))

    @abstractmethod
    def metrics(self, scores: Sequence[Scores[PlacesT]], truth: TruthT) -> Mapping[str, float]:
        """Return metrics of calibrated scores."""

    # --- on disk, and the card ---

    def names(self) -> dict[str, object]:
        """Return the names of the outputs, as JSON values."""
        return {"labels": list(self.outputs.row_target.values or self.outputs.labels)}

    def state(self) -> dict[str, object]:
        """Return fitted values besides the temperature, as JSON values."""
        return {}

    def restored(self, stored: StoredEnsemble) -> Self:
        """Return the combiner with the stored calibration."""
        return replace(self, outputs=self.outputs.with_confidence(Confidence(stored_temperature(stored))))

    def limits(self, chose: str) -> tuple[str, ...]:
        """Return the limits of metrics on rows that also decided ``chose``, as sentences."""
        return optimistic("rows", chose), LIKE_THESE

    @abstractmethod
    def data_facts(self, inputs: Sequence[InputT], truth: TruthT) -> dict[str, object]:
        """Return counts and SHA-256 of labelled inputs for the card."""

    def card(self) -> dict[str, object]:
        """Return further entries of the card of an ensemble."""
        return {}
