"""The common ground of several models of one task, whose scores can be combined: see `bothways.compose`.

Members speak in logits that their own calibration is already in, so that softmax (or sigmoid, for several labels) gives
their calibrated probabilities. What comes out are scores again, on which the first member's outputs decide and report.

Shapes: M members, R rows of an input, C outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.schema import StoredEnsemble
from bothways.confidence.confidence import Confidence
from bothways.confidence.files import stored_temperature
from bothways.evaluation import Temperature
from bothways.progress import phase
from bothways.tasks.card import LIKE_THESE, NOTICES_NOTHING, optimistic
from bothways.tasks.head import StoredInputs
from bothways.tasks.outputs import HeadOutputs
from bothways.tasks.scores import Scores, most_read
from bothways.tasks.targets import Target, calibrated_logits

if TYPE_CHECKING:
    from bothways.tasks.objective import HeadModel, Units

InputT = TypeVar("InputT")
PlacesT = TypeVar("PlacesT")


@dataclass(frozen=True, slots=True, eq=False)
class CombinableOutputs(HeadOutputs[InputT, PlacesT], ABC, Generic[InputT, PlacesT]):
    """Outputs of a head that can be combined with those of other models.

    Attributes:
        shares_inputs: Whether rows of the scores are parts of the input, so that all members have to read the same.
        stackable: Whether every input has the same outputs, so that they can be weighed.
    """

    shares_inputs: ClassVar[bool] = False
    stackable: ClassVar[bool] = True

    @property
    @abstractmethod
    def row_target(self) -> Target:
        """The prediction of one row of scores."""

    @property
    def common(self) -> Mapping[str, str]:
        """Properties that members of an ensemble share besides their labels, by name."""
        return {}

    def stated(self, scores: Scores[PlacesT]) -> Scores[PlacesT]:
        """Return scores with the model's calibration in them."""
        logits_RC = calibrated_logits(self.row_target, scores.logits_RC, self.confidence.calibration)
        return replace(scores, logits_RC=logits_RC, features_LH=None)

    def together(self, members: Sequence[Self]) -> Self:
        """Return outputs of the same meaning for what the members say together, not calibrated yet."""
        del members
        return self.with_confidence(Confidence())

    def rows(self, members: Sequence[Scores[PlacesT]]) -> NDArray[np.float64]:
        """Return the members' logits for the same rows (M, R, C)."""
        return np.stack([each.logits_RC for each in members])

    def joined(
        self,
        members: Sequence[Scores[PlacesT]],
        combined_RC: NDArray[np.float64],
        options: Any = None,  # noqa: ANN401 (the task's own)
    ) -> Scores[PlacesT]:
        """Return what the members say together, given the combination of `rows`."""
        del options
        votes = [each.votes for each in members if each.votes is not None]
        read = most_read(each.read for each in members)
        return Scores(combined_RC, members[0].places, read, votes=float(np.mean(votes)) if votes else None)

    def differs(self, member: Scores[PlacesT], together: Any) -> float | None:  # noqa: ANN401 (the task's own)
        """Return whether a member decides otherwise than ``together``; None where its rows tell."""
        del member, together
        return None

    @abstractmethod
    def calibrated_on(self, scores: Sequence[Scores[PlacesT]], truth: Any) -> Self:  # noqa: ANN401 (the task's own)
        """Return the same with the confidence that held-out scores teach."""

    def flat(self, truth: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:  # noqa: ANN401 (the task's own)
        """Return the truth of the rows of all inputs, and which input each row is of."""
        return truth, np.arange(len(truth))

    def metrics(self, scores: Sequence[Scores[PlacesT]], truth: Any) -> Mapping[str, float]:  # noqa: ANN401 (as above)
        """Return metrics of scores that were `stated`."""
        return self.validate(scores, truth).metrics

    # --- what ``bothways.json`` and the card say ---

    def names(self) -> dict[str, object]:
        """Return names of what can be answered."""
        return {"labels": list(self.labels)}

    def stored_together(self) -> dict[str, object]:
        """Return what was learnt besides the temperature, as JSON values."""
        return {}

    def restored_together(self, stored: StoredEnsemble) -> Self:
        """Return the same with what was stored.

        Raises:
            CorruptCheckpoint: It is damaged.
        """
        return self.with_confidence(Confidence(stored_temperature(stored)))

    def limits_together(self, chose: str) -> tuple[str, ...]:
        """Return what a reader has to know of metrics on the rows that also chose something."""
        return optimistic("rows", chose), LIKE_THESE

    @abstractmethod
    def part_together(self, inputs: Sequence[InputT], truth: Any) -> dict[str, object]:  # noqa: ANN401 (the task's own)
        """Return what a card says of labelled inputs: how many, and SHA-256 of texts and truth."""

    def card_together(self) -> dict[str, object]:
        """Return further entries of the card of an ensemble."""
        return {}


class DistillableOutputs(ABC):
    """Outputs of a head whose decisions a smaller model can learn, beside `CombinableOutputs`."""

    @abstractmethod
    def unlearnt(self) -> Self:
        """Return the same without what held-out rows taught."""

    @abstractmethod
    def uncalibrated(self) -> Self:
        """Return the same without what only labels teach."""

    @abstractmethod
    def units(self, stored: StoredInputs) -> Units:
        """Return what is learnt of each window, which `row_target` says the meaning of."""

    @abstractmethod
    def decided(self, scores: Sequence[Scores[Any]]) -> Any:  # noqa: ANN401 (the task's own)
        """Return the truth of inputs as their scores decide it."""


@dataclass(frozen=True, slots=True, eq=False)
class TemperatureOutputs(CombinableOutputs[InputT, PlacesT], ABC, Generic[InputT, PlacesT]):
    """Outputs of a head whose probabilities a temperature calibrates, and nothing else is learnt.

    Subclasses are dataclasses with the fields ``confidence`` and ``calibrates``, whether a temperature is to be learnt.
    """

    calibrates = True

    @property
    def temperature(self) -> Temperature | None:
        """The calibration of probabilities."""
        found = self.confidence.calibration
        return found if isinstance(found, Temperature) else None

    def learn(
        self, model: HeadModel, training: StoredInputs, held: StoredInputs, seed: int, tokens: int
    ) -> tuple[Self, Sequence[Scores[PlacesT]]]:
        """Fit the temperature on held-out inputs."""
        del training, seed
        phase("calibrating" if self.calibrates else "reading the held-out rows")
        scores = held.scores(self, model, tokens)
        return (self.calibrated_on(scores, held.truth) if self.calibrates else self), scores

    @property
    def limits(self) -> tuple[str, ...]:
        """Limits that a reader of the card's metrics has to know."""
        return optimistic("texts", "the epoch to keep and the calibration"), LIKE_THESE, NOTICES_NOTHING

    def facts(self) -> dict[str, object]:
        """Return names and temperature."""
        return {**self.names(), **self.write(Path())}

    def write(self, folder: Path) -> dict[str, object]:
        """Return the temperature; there are no arrays."""
        del folder
        return {"temperature": None if self.temperature is None else asdict(self.temperature)}
