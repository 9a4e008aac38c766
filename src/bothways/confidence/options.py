"""Options of fitting a model's confidence on held-out rows."""

from dataclasses import dataclass
from typing import get_args

from bothways.choices import ALL_LAYERS, CalibrationChoice, DetectorChoice, TemperatureChoice
from bothways.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceOptions:
    """Options of fitting a model's confidence on held-out rows.

    Attributes:
        calibration: Calibration method; ``"auto"`` keeps the temperature unless another method is clearly better, None
            leaves probabilities uncalibrated.
        detector: Detector of out-of-domain rows, for models of one label per row; None fits none. ``"mahalanobis"`` and
            the other distances read the last layer, ``"mahalanobis_layers"`` reads all layers. The default becomes
            ``"energy"`` if there are too few texts to hold any out.
        in_domain_share: Share of in-domain rows below the out-of-domain threshold.

    Raises:
        InvalidInput: A value is out of its range.
    """

    calibration: CalibrationChoice | None = "auto"
    detector: DetectorChoice | None = "mahalanobis"
    in_domain_share: float = 0.95

    def __post_init__(self) -> None:
        methods, detectors = (*get_args(CalibrationChoice), None), (*get_args(DetectorChoice), None)
        if self.calibration not in methods:
            raise InvalidInput(f"calibration must be one of {methods}, but it is {self.calibration!r}.")
        if self.detector not in detectors:
            raise InvalidInput(f"detector must be one of {detectors}, but it is {self.detector!r}.")
        if not 0 < self.in_domain_share < 1:
            raise InvalidInput(
                f"in_domain_share must be a share between 0 and 1, such as 0.95, but it is {self.in_domain_share}."
            )

    @property
    def detects(self) -> bool:
        """True if there is a detector."""
        return self.detector is not None

    def layers(self, encoder_layers: int) -> int:
        """Return the number of an encoder's layers that the detector reads, the last first."""
        if self.detector in (None, "max_softmax", "energy"):
            return 0
        return encoder_layers if self.detector == ALL_LAYERS else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureOptions:
    """An option to fit a temperature on held-out rows, the only calibration of words' tags and of answers.

    Attributes:
        calibration: ``"auto"`` and ``"temperature"`` fit a temperature, None leaves probabilities uncalibrated.

    Raises:
        InvalidInput: Another calibration is requested.
    """

    calibration: TemperatureChoice | None = "auto"

    def __post_init__(self) -> None:
        if self.calibration not in (*get_args(TemperatureChoice), None):
            raise InvalidInput(f"this task is calibrated by a temperature or not at all, not by {self.calibration!r}.")
