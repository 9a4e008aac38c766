"""Confidence in a model's answers, and the options of fitting it: calibration, coverage, out-of-domain detection.

All parts are fitted on held-out rows (`bothways.confidence.fitting`), and the result is a frozen value.

Shapes: C classes, L layers that a detector reads, M held-out rows.
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, get_args

from bothways.choices import ALL_LAYERS, CalibrationChoice, DetectorChoice, TemperatureChoice
from bothways.errors import InvalidInput, NotCalibrated

if TYPE_CHECKING:
    from bothways.evaluation.calibration import Calibration, ConformalInterval, ConformalSets, LabelSets, MethodScore
    from bothways.evaluation.detectors import Detector, DetectorInput
    from bothways.evaluation.inputs import FloatArray
    from bothways.evaluation.temperature import Temperature


@dataclass(frozen=True, slots=True, eq=False)
class OutOfDomain:
    """Detects rows unlike those that a model was trained on."""

    detector: "Detector"  # scores rows, higher for those unlike the domain
    threshold: float  # rows that score above this are out of domain
    inside_M: "FloatArray"  # scores of held-out rows of the domain, ascending

    def detect(self, evidence: "DetectorInput") -> tuple[float, bool]:
        """Return the score of a single row, and whether it is out of domain."""
        score = float(self.detector.score(evidence)[0])
        return score, score > self.threshold


@dataclass(frozen=True, slots=True, eq=False)
class Confidence:
    """The confidence of a model, fitted on held-out rows."""

    calibration: "Calibration | None" = None  # turns logits into probabilities; None leaves them as they are
    chosen_by: "tuple[MethodScore, ...]" = ()  # scores of the methods of calibration; empty if there was no choice
    conformal: "ConformalSets | ConformalInterval | None" = None  # guarantees coverage
    out_of_domain: OutOfDomain | None = None  # detects rows unlike the training rows
    not_tried: str = ""  # a sentence on why only one method of calibration was tried, where there was a choice

    @property
    def layers(self) -> int:
        """Layers whose features the out-of-domain detector reads."""
        return 0 if self.out_of_domain is None else self.out_of_domain.detector.layers

    @property
    def temperature(self) -> "Temperature | None":
        """The calibration if it is a temperature."""
        calibration = self.calibration
        return calibration if calibration is not None and calibration.method == "temperature" else None

    def check_calibrated(self, name: str) -> None:
        """Refuse the model ``name`` with a `NotCalibrated` if it has no calibration."""
        if self.calibration is None:
            raise NotCalibrated(
                f"{name!r} is not calibrated, so it has no calibrated probabilities. Fit it with validation data, or "
                "leave calibrated out."
            )

    def detector(self, name: str) -> OutOfDomain:
        """Return the out-of-domain detector of the model ``name``; a `NotCalibrated` without one."""
        if self.out_of_domain is None:
            raise NotCalibrated(
                f"{name!r} has no out-of-domain detector: only single-label models that were fitted with a "
                "detector and held-out rows have one."
            )
        return self.out_of_domain

    def to_card(self) -> dict[str, object]:
        """Return JSON values for the model card."""
        held_out = None if self.conformal is None else len(self.conformal.held_out_M)
        return {
            "calibration": None if self.calibration is None else self.calibration.method,
            "calibrations_tried": [asdict(each) for each in self.chosen_by],
            **({"calibrations_not_tried": self.not_tried} if self.not_tried else {}),
            "coverage_from_rows": held_out,
            "out_of_domain": None if self.out_of_domain is None else self.out_of_domain.detector.kind,
            "out_of_domain_threshold": None if self.out_of_domain is None else self.out_of_domain.threshold,
        }


def coverage_guarantee(conformal: "ConformalSets | ConformalInterval | None", coverage: float) -> "LabelSets | float":
    """Return the prediction sets, or the half-width of the intervals, that hold the truth with this probability.

    Without a fitted coverage it is a `NotCalibrated`; a coverage outside of 0 to 1, or one that needs more held-out
    rows, an `InvalidInput`.
    """
    if conformal is None:
        raise NotCalibrated(
            "this model cannot guarantee coverage: only single-label and regression models that were fitted with "
            "held-out rows can."
        )
    return conformal.at(coverage)


# --- options ---


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
    """The calibration of taggers and question answerers: a temperature, fitted on held-out rows, or none.

    Attributes:
        calibration: ``"auto"`` and ``"temperature"`` fit a temperature, None leaves probabilities uncalibrated.

    Raises:
        InvalidInput: Another calibration is requested.
    """

    calibration: TemperatureChoice | None = "auto"

    def __post_init__(self) -> None:
        if self.calibration not in (*get_args(TemperatureChoice), None):
            raise InvalidInput(
                f"calibration of this task must be 'auto', 'temperature' or None, got {self.calibration!r}."
            )
