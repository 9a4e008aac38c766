"""Confidence in a model's answers: calibrated probabilities, coverage guarantees, out-of-domain detection.

All parts are fitted on held-out rows (`bothways.confidence.fitting`), and the result is a frozen value.

Shapes: C classes, L layers that a detector reads, M held-out rows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways.errors import NotCalibrated

if TYPE_CHECKING:
    from bothways.evaluation.calibration import Calibration, MethodScore
    from bothways.evaluation.coverage import ConformalInterval, ConformalSets, LabelSets
    from bothways.evaluation.detectors import Detector, DetectorInput
    from bothways.evaluation.temperature import Temperature

Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class OutOfDomain:
    """Detects rows unlike those that a model was trained on."""

    detector: Detector  # scores rows, higher for those unlike the domain
    threshold: float  # rows that score above this are out of domain
    inside_M: Array  # scores of held-out rows of the domain, ascending

    def detect(self, evidence: DetectorInput) -> tuple[float, bool]:
        """Return the score of a single row, and whether it is out of domain."""
        score = float(self.detector.score(evidence)[0])
        return score, score > self.threshold


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Confidence:
    """The confidence of a model, fitted on held-out rows."""

    calibration: Calibration | None = None  # turns logits into probabilities; None leaves them as they are
    chosen_by: tuple[MethodScore, ...] = ()  # scores of each method of calibration, where there was a choice
    conformal: ConformalSets | ConformalInterval | None = None  # guarantees coverage
    out_of_domain: OutOfDomain | None = None  # detects rows unlike the training rows
    not_tried: str = ""  # why no more than one method of calibration was tried, where there was a choice; a sentence

    @property
    def layers(self) -> int:
        """Layers whose features the out-of-domain detector reads."""
        return 0 if self.out_of_domain is None else self.out_of_domain.detector.layers

    @property
    def temperature(self) -> Temperature | None:
        """The calibration if it is a temperature."""
        calibration = self.calibration
        return calibration if calibration is not None and calibration.method == "temperature" else None

    def chosen_calibration(self, calibrated: bool | None, name: str) -> Calibration | None:
        """Return the calibration to apply.

        Args:
            calibrated: True requires a calibration, False returns none, None returns the fitted one, if any.
            name: Name of the model, for messages.

        Raises:
            NotCalibrated: A calibration is required and there is none.
        """
        if calibrated and self.calibration is None:
            raise NotCalibrated(
                f"calibrated probabilities were asked for, but {name!r} was not calibrated. Fit it with validation "
                "data, or leave calibrated out."
            )
        return None if calibrated is False else self.calibration

    def detector(self, name: str) -> OutOfDomain:
        """Return the out-of-domain detector of the model ``name``.

        Raises:
            NotCalibrated: The model has no detector.
        """
        if self.out_of_domain is None:
            raise NotCalibrated(
                f"{name!r} cannot tell texts of its domain from others: that takes a model with one label for "
                "each text that was fitted here, with a detector and held-out rows."
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


def coverage_guarantee(
    conformal: ConformalSets | ConformalInterval | None, coverage: float | None
) -> LabelSets | float | None:
    """Return the prediction sets, or half the width of the interval, that hold the truth with this probability.

    Raises:
        NotCalibrated: A coverage is given, and no coverage was fitted.
        InvalidInput: The coverage is not between 0 and 1, or needs more held-out rows.
    """
    if coverage is None:
        return None
    if conformal is None:
        raise NotCalibrated(
            "a coverage was asked for, but this model can guarantee none: that takes one label or a number for "
            "each text, and a model that was fitted here and learnt it from held-out rows."
        )
    return conformal.at(coverage)
