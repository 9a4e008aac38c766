"""Fitting the confidence of a classifier on arrays of held-out rows.

Shapes: N rows, C classes, M held-out rows.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways.choices import CalibrationMethod, DetectorChoice
from bothways.confidence.confidence import Array, Confidence, OutOfDomain
from bothways.confidence.options import ConfidenceOptions
from bothways.evaluation.calibration import ChosenCalibration, HeldOutRows
from bothways.evaluation.coverage import MOST_KEPT, ConformalSets
from bothways.evaluation.detectors import (
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

Labels: TypeAlias = NDArray[np.int64]

# Part of its height that the out-of-domain threshold lies above the score that sets it: the row of that score would
# otherwise stand now on this side and now on that, as the last bits of a score depend on what is read beside a row.
_ROUNDING = 1e-4


def learn_classification(
    held_out: DetectorInput,
    labels_M: Labels,
    options: ConfidenceOptions,
    *,
    seed: int,
    training: Callable[[], tuple[DetectorInput, Labels]],
) -> Confidence:
    """Fit the confidence of a classifier with one label for each row.

    Args:
        held_out: Uncalibrated logits of held-out rows, with features if the detector reads them.
        labels_M: True class numbers of these rows.
        options: The confidence to fit.
        seed: Seed for drawing the folds of cross-validation.
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
    return replace(confidence, out_of_domain=fit_threshold(detector, held_out, options.in_domain_share))


def learn_conformal_sets(
    logits_MC: Array, labels_M: Labels, method: CalibrationMethod | None, *, seed: int
) -> ConformalSets:
    """Fit prediction sets with guaranteed coverage on held-out rows.

    Each row's probabilities come from a calibration that was fitted on the other rows, since the model's own was fitted
    on this one too. The rows also chose the method, and the epoch to keep, so the guarantee is
    approximate, and the card says so.
    """
    if method is None:
        return ConformalSets.fit(Temperature(1.0).apply(logits_MC), labels_M)
    return ConformalSets.fit_blocks(HeldOutRows.from_arrays(logits_MC, labels_M).held_out(method, seed), labels_M)


def fit_threshold(detector: Detector, held_out: DetectorInput, in_domain_share: float) -> OutOfDomain:
    """Choose the threshold that a share ``in_domain_share`` of the domain's rows stays below.

    Raises:
        InvalidInput: The share is not between 0 and 1.
    """
    inside_N = detector.score(held_out)
    if len(inside_N) > MOST_KEPT:
        inside_N = np.random.default_rng(0).choice(inside_N, MOST_KEPT, replace=False)
    threshold = out_of_domain_threshold(inside_N, in_domain_share)
    return OutOfDomain(detector, threshold + _ROUNDING * abs(threshold), np.sort(inside_N))


def separating(found: OutOfDomain, others: DetectorInput) -> OutOfDomain:
    """Return the detection with the threshold of the highest balanced accuracy against ``others``."""
    return replace(found, threshold=threshold_between(found.inside_M, found.detector.score(others)))


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
