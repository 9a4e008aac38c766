"""Confidence in a model's answers: calibrated probabilities, coverage guarantees, out-of-domain detection.

Everything here is fitted on held-out rows and is a frozen value. It reads arrays of logits and features, no model.

Shapes: N rows, C classes, L layers that a detector reads, H hidden, M held-out rows.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways.choices import CalibrationMethod, DetectorChoice
from bothways.confidence.options import ConfidenceOptions
from bothways.errors import NotCalibrated
from bothways.evaluation.calibration import Calibration, ChosenCalibration, HeldOutRows, MethodScore, stored_form
from bothways.evaluation.coverage import MOST_KEPT, ConformalInterval, ConformalSets, LabelSets
from bothways.evaluation.detectors import (
    DETECTORS,
    Cosine,
    Detector,
    DetectorInput,
    Energy,
    Mahalanobis,
    MaxSoftmax,
    Neighbours,
    storable,
)
from bothways.evaluation.out_of_domain import out_of_domain_threshold, threshold_between
from bothways.evaluation.temperature import Temperature
from bothways.progress import phase

Array: TypeAlias = NDArray[np.float64]
Labels: TypeAlias = NDArray[np.int64]


# Part of its height that the out-of-domain threshold lies above the score that sets it: the row of that score would
# otherwise stand now on this side and now on that, as the last bits of a score depend on what is read beside a row.
_ROUNDING = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class OutOfDomain:
    """Detects rows unlike those that a model was trained on.

    Attributes:
        detector: Scores rows, higher for those unlike the domain.
        threshold: Rows that score above this are out of domain.
        inside_M: Scores of held-out rows of the domain, ascending.
    """

    detector: Detector
    threshold: float
    inside_M: Array

    @classmethod
    def fit_threshold(cls, detector: Detector, held_out: DetectorInput, in_domain_share: float) -> "OutOfDomain":
        """Choose the threshold that a share ``in_domain_share`` of the domain's rows stays below.

        Raises:
            InvalidInput: The share is not between 0 and 1.
        """
        inside_N = detector.score(held_out)
        if len(inside_N) > MOST_KEPT:
            inside_N = np.random.default_rng(0).choice(inside_N, MOST_KEPT, replace=False)
        threshold = out_of_domain_threshold(inside_N, in_domain_share)
        return cls(detector, threshold + _ROUNDING * abs(threshold), np.sort(inside_N))

    def separating(self, others: DetectorInput) -> "OutOfDomain":
        """Return the same with the threshold of the highest balanced accuracy against ``others``."""
        return replace(self, threshold=threshold_between(self.inside_M, self.detector.score(others)))

    def detect(self, evidence: DetectorInput) -> tuple[float, bool]:
        """Return the score of a single row, and whether it is out of domain."""
        score = float(self.detector.score(evidence)[0])
        return score, score > self.threshold

    @property
    def kind(self) -> str:
        """Name of the detector."""
        return next(name for name, each in DETECTORS.items() if isinstance(self.detector, each))


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Confidence:
    """The confidence of a model, fitted on held-out rows.

    Attributes:
        calibration: Turns logits into probabilities; None leaves them as they are.
        chosen_by: Scores of each method of calibration, where there was a choice.
        conformal: Guarantees coverage.
        out_of_domain: Detects rows unlike the training rows.
        not_tried: Why no more than one method of calibration was tried, where there was a choice; a sentence.
    """

    calibration: Calibration | None = None
    chosen_by: tuple[MethodScore, ...] = ()
    conformal: ConformalSets | ConformalInterval | None = None
    out_of_domain: OutOfDomain | None = None
    not_tried: str = ""

    @property
    def layers(self) -> int:
        """Layers whose features the out-of-domain detector reads."""
        return 0 if self.out_of_domain is None else layers_of(self.out_of_domain.detector)

    @property
    def temperature(self) -> Temperature | None:
        """The calibration where it is a temperature."""
        return self.calibration if isinstance(self.calibration, Temperature) else None

    def chosen_calibration(self, calibrated: bool | None, name: str) -> Calibration | None:
        """Return the calibration to apply.

        Args:
            calibrated: True insists on one, False wants none, None takes what there is.
            name: Of the model, for the message.

        Raises:
            NotCalibrated: One was insisted on and there is none.
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
            NotCalibrated: There is none.
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
            "calibration": None if self.calibration is None else stored_form(self.calibration)["method"],
            "calibrations_tried": [asdict(each) for each in self.chosen_by],
            **({"calibrations_not_tried": self.not_tried} if self.not_tried else {}),
            "coverage_from_rows": held_out,
            "out_of_domain": None if self.out_of_domain is None else self.out_of_domain.kind,
            "out_of_domain_threshold": None if self.out_of_domain is None else self.out_of_domain.threshold,
        }


def learn_classification(
    held_out: DetectorInput,
    labels_M: Labels,
    options: ConfidenceOptions,
    *,
    seed: int,
    training: Callable[[], tuple[DetectorInput, Labels]],
) -> Confidence:
    """Learn the confidence of a classifier with one label for each row.

    Args:
        held_out: Uncalibrated logits of held-out rows, with features if the detector reads them.
        labels_M: True class numbers of these rows.
        options: What to learn.
        seed: Draws the folds of cross-validation.
        training: Evidence and class numbers of the training rows; called if the detector reads features.
    """
    logits_MC, method = held_out.logits_NC, options.calibration
    phase("learning label sets with a coverage" if method is None else "calibrating")
    if method is None:
        confidence = Confidence(conformal=learn_conformal_sets(logits_MC, labels_M, None, seed=seed))
    else:
        rows = HeldOutRows.from_arrays(logits_MC, labels_M)
        chosen = rows.choose(seed) if method == "auto" else ChosenCalibration(rows.fit(method), method, ())
        phase("learning label sets with a coverage")
        conformal = ConformalSets.fit_blocks(rows.held_out(chosen.method, seed), labels_M)
        confidence = Confidence(chosen.calibration, chosen.scores, conformal, not_tried=chosen.reason)
    if options.detector is None:
        return confidence
    phase("fitting the out-of-domain detector")
    detector = storable(_fitted_detector(options.detector, logits_MC.shape[1], training))
    return replace(confidence, out_of_domain=OutOfDomain.fit_threshold(detector, held_out, options.in_domain_share))


def learn_conformal_sets(
    logits_MC: Array, labels_M: Labels, method: CalibrationMethod | None, *, seed: int
) -> ConformalSets:
    """Learn prediction sets with guaranteed coverage from held-out rows.

    Each row's probabilities come from a calibration that was fitted on the other rows, since the model's own has seen
    this one. That the rows also chose the method, and the epoch to keep, cannot be undone here: the guarantee is
    approximate, and the card says so.
    """
    if method is None:
        return ConformalSets.fit(Temperature(1.0).apply(logits_MC), labels_M)
    return ConformalSets.fit_blocks(HeldOutRows.from_arrays(logits_MC, labels_M).held_out(method, seed), labels_M)


def coverage_guarantee(
    conformal: ConformalSets | ConformalInterval | None, coverage: float | None
) -> LabelSets | float | None:
    """Return the prediction sets, or half the width of the interval, that hold the truth with this probability.

    Raises:
        NotCalibrated: A coverage is asked for, and nothing was learnt that guarantees one.
        InvalidInput: The coverage is not between 0 and 1, or needs more held-out rows.
    """
    match conformal:
        case _ if coverage is None:
            return None
        case ConformalSets():
            return conformal.at(coverage)
        case ConformalInterval():
            return conformal.half_width(coverage)
        case None:
            raise NotCalibrated(
                "a coverage was asked for, but this model can guarantee none: that takes one label or a number for "
                "each text, and a model that was fitted here and learnt it from held-out rows."
            )


def layers_of(detector: Detector) -> int:
    """Return the number of layers whose features a detector reads; 0 for one that reads logits."""
    match detector:
        case MaxSoftmax() | Energy():
            return 0
        case Mahalanobis():
            return len(detector.roots_LDD)
        case Cosine() | Neighbours():
            return 1


def _fitted_detector(
    kind: DetectorChoice, classes: int, training: Callable[[], tuple[DetectorInput, Labels]]
) -> Detector:
    match kind:
        case "max_softmax":
            return MaxSoftmax()
        case "energy":
            return Energy()
        case "mahalanobis" | "mahalanobis_layers":
            evidence, labels_N = training()
            return Mahalanobis.fit(evidence.features_NLD, labels_N, classes)
        case "cosine":
            evidence, labels_N = training()
            return Cosine.fit(evidence.features_NLD, labels_N, classes)
        case "neighbours":
            evidence, _ = training()
            return Neighbours.fit(evidence.features_NLD, min(10, len(evidence.features_NLD)))
