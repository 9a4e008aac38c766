"""The finer settings of fine-tuning, with defaults that suit most data."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from bothways.errors import InvalidInput
from bothways.evaluation import CalibrationMethod, DetectorKind
from bothways.evaluation.calibrating import METHODS
from bothways.evaluation.detectors import DETECTORS
from bothways.training.options import Precision
from bothways.training.schedules import LinearDecay, Schedule

DetectorChoice: TypeAlias = DetectorKind | Literal["mahalanobis_layers"]
ALL_LAYERS = "mahalanobis_layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """How a task is fine-tuned, beyond epochs, learning rate, batch size and seed.

    Attributes:
        schedule: What follows the warm-up.
        warmup_fraction: Part of all updates in which the learning rate rises.
        weight_decay: Of the weight matrices.
        max_gradient_norm: The gradient of an update is scaled down to this norm; None leaves it.
        patience: Stop after this many epochs without a better validation score; None never stops early.
        precision: None takes bfloat16 where the GPU has it, else float32.
        tokens: Token budget of one forward and backward pass; larger batches are accumulated.
        calibration: How probabilities are calibrated on the validation data: ``"auto"`` keeps the temperature unless
            another method is clearly better there, None leaves them as they are.
        detector: What tells texts from elsewhere, where one label is predicted; None leaves that out.
            ``"mahalanobis"`` and the other distances look at the last layer, ``"mahalanobis_layers"`` at all of them.
        kept: Share of the domain's texts that it is to take for such.
        checkpoint_every_updates: Checkpoints within an epoch, where a folder for them is given.
    """

    schedule: Schedule = field(default_factory=LinearDecay)
    warmup_fraction: float = 0.1
    weight_decay: float = 0.01
    max_gradient_norm: float | None = 1.0
    patience: int | None = None
    precision: Precision | None = None
    tokens: int = 8192
    calibration: CalibrationMethod | Literal["auto"] | None = "auto"
    detector: DetectorChoice | None = "mahalanobis"
    kept: float = 0.95
    checkpoint_every_updates: int | None = None

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise InvalidInput(f"the token budget must be at least 1, but it is {self.tokens}.")
        methods, detectors = (*METHODS, "auto", None), (*DETECTORS, ALL_LAYERS, None)
        if self.calibration not in methods:
            raise InvalidInput(f"calibration must be one of {methods}, but it is {self.calibration!r}.")
        if self.detector not in detectors:
            raise InvalidInput(f"detector must be one of {detectors}, but it is {self.detector!r}.")
        if not 0 < self.kept < 1:
            raise InvalidInput(f"kept must be a share between 0 and 1, such as 0.95, but it is {self.kept}.")

    def wants_temperature(self) -> bool:
        """Whether a task that knows no other calibration than a temperature is to fit one.

        Raises:
            InvalidInput: Another calibration was asked for.
        """
        if self.calibration not in ("auto", "temperature", None):
            raise InvalidInput(f"this task is calibrated by a temperature or not at all, not by {self.calibration!r}.")
        return self.calibration is not None
