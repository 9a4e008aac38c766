"""Confidence of a model's predictions (calibration, coverage, out-of-domain detection), and the options of fitting it.

`bothways.confidence.fitting` fits all parts on held-out rows; the result is a frozen value.

Shapes: M held-out rows.
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, get_args

from bothways.choices import ALL_LAYERS, CalibrationChoice, DetectorChoice, TemperatureChoice
from bothways.errors import InvalidInput, NotCalibrated, not_one_of

if TYPE_CHECKING:
    from bothways.evaluation.calibration import Calibration, ConformalInterval, ConformalSets, LabelSets, MethodScore
    from bothways.evaluation.detectors import Detector, DetectorInput
    from bothways.evaluation.inputs import FloatArray
    from bothways.evaluation.temperature import Temperature


@dataclass(frozen=True, slots=True, eq=False)
class OutOfDomain:
    """A detector of rows unlike the training rows, with its threshold."""

    detector: "Detector"  # scores rows; out-of-domain rows score higher
    threshold: float  # rows with a higher score are out of domain
    inside_M: "FloatArray"  # scores of held-out, in-domain rows, ascending

    def detect(self, evidence: "DetectorInput") -> tuple[float, bool]:
        """Return the score of a single row, and True if it is out of domain."""
        score = float(self.detector.score(evidence)[0])
        return score, score > self.threshold


@dataclass(frozen=True, slots=True, eq=False)
class Confidence:
    """Calibration, coverage and out-of-domain detection of a model, fitted on held-out rows."""

    calibration: "Calibration | None" = None  # turns logits into calibrated probabilities; None: uncalibrated
    chosen_by: "tuple[MethodScore, ...]" = ()  # scores of the calibration methods; empty if only one was tried
    conformal: "ConformalSets | ConformalInterval | None" = None  # sets or intervals with guaranteed coverage
    out_of_domain: OutOfDomain | None = None  # the out-of-domain detector
    not_tried: str = ""  # the reason if "auto" tried only one calibration method; else empty

    @property
    def layers(self) -> int:
        """Number of layers whose features the out-of-domain detector reads."""
        return 0 if self.out_of_domain is None else self.out_of_domain.detector.layers

    @property
    def temperature(self) -> "Temperature | None":
        """The calibration if it is a temperature, else None."""
        calibration = self.calibration
        return calibration if calibration is not None and calibration.method == "temperature" else None

    def check_calibrated(self, name: str) -> None:
        """Raise `NotCalibrated`, naming the model ``name``, if there is no calibration."""
        if self.calibration is None:
            raise NotCalibrated(
                f"{name!r} is not calibrated, so it has no calibrated probabilities. Fit it with validation data, or "
                "leave out the option calibrated."
            )

    def detector(self, name: str) -> OutOfDomain:
        """Return the out-of-domain detector; raise `NotCalibrated`, naming the model ``name``, if there is none."""
        if self.out_of_domain is None:
            raise NotCalibrated(
                f"{name!r} has no out-of-domain detector. Fit a single-label model with the option detector and "
                "with held-out rows."
            )
        return self.out_of_domain

    def to_card(self) -> dict[str, object]:
        """Return calibration, coverage and detector as JSON values for the model card."""
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
    """Return the prediction sets, or the half-width of the intervals, that contain the truth with this probability.

    Raises `NotCalibrated` if ``conformal`` is None, and `InvalidInput` if the coverage is not between 0 and 1 or needs
    more held-out rows.
    """
    if conformal is None:
        raise NotCalibrated(
            "this model cannot guarantee coverage. Fit a single-label or regression model with held-out rows, or "
            "leave out the option coverage."
        )
    return conformal.at(coverage)


# --- options ---


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceOptions:
    """Options for fitting a model's confidence on held-out rows.

    Attributes:
        calibration: Calibration method. ``"auto"`` uses a temperature unless another method is clearly better; None
            leaves probabilities uncalibrated.
        detector: Detector of out-of-domain rows, for models with one label per row; None fits none. ``"mahalanobis"``,
            ``"cosine"`` and ``"neighbours"`` read the last layer, ``"mahalanobis_layers"`` all layers. The default
            becomes ``"energy"`` if there are too few texts to hold any out.
        in_domain_share: Share of in-domain rows that score below the out-of-domain threshold.

    Raises:
        InvalidInput: A value is out of range.
    """

    calibration: CalibrationChoice | None = "auto"
    detector: DetectorChoice | None = "mahalanobis"
    in_domain_share: float = 0.95

    def __post_init__(self) -> None:
        methods, detectors = (*get_args(CalibrationChoice), None), (*get_args(DetectorChoice), None)
        if self.calibration not in methods:
            raise not_one_of("calibration", self.calibration, methods)
        if self.detector not in detectors:
            raise not_one_of("detector", self.detector, detectors)
        if not 0 < self.in_domain_share < 1:
            raise InvalidInput(f"in_domain_share must be between 0 and 1, such as 0.95, got {self.in_domain_share}.")

    @property
    def detects(self) -> bool:
        """True if `fit` should fit an out-of-domain detector."""
        return self.detector is not None

    def layers(self, encoder_layers: int) -> int:
        """Return the number of layers, counted from the last, that the detector reads."""
        if self.detector in (None, "max_softmax", "energy"):
            return 0
        return encoder_layers if self.detector == ALL_LAYERS else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureOptions:
    """Calibration options of tasks that support only a temperature, fitted on held-out rows.

    Attributes:
        calibration: ``"auto"`` and ``"temperature"`` fit a temperature; None leaves probabilities uncalibrated.

    Raises:
        InvalidInput: ``calibration`` is another method.
    """

    calibration: TemperatureChoice | None = "auto"

    def __post_init__(self) -> None:
        if self.calibration not in (methods := (*get_args(TemperatureChoice), None)):
            raise not_one_of("calibration", self.calibration, methods)
