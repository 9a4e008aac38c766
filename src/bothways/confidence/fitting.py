"""Fitting a classifier's confidence on held-out rows, and storing it.

On disk, the settings are in ``bothways.json`` and its arrays in ``confidence.safetensors``, beside the weights.

Shapes: N rows, C classes, M held-out rows.
"""

from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.files import read_arrays, write_arrays
from bothways.checkpoints.schema import Stored, StoredDetection, StoredGuarantee, StoredLabels, damaged
from bothways.choices import CalibrationMethod, DetectorChoice
from bothways.confidence.confidence import Confidence, ConfidenceOptions, OutOfDomain
from bothways.errors import CorruptCheckpoint, InvalidInput
from bothways.evaluation.calibration import (
    MOST_KEPT,
    Calibration,
    ChosenCalibration,
    ConformalInterval,
    ConformalSets,
    HeldOutRows,
    calibration_from,
    stored_form,
)
from bothways.evaluation.detectors import (
    DETECTORS,
    Cosine,
    Detector,
    DetectorInput,
    Energy,
    Mahalanobis,
    MaxSoftmax,
    Neighbours,
    out_of_domain_threshold,
    storable,
    threshold_between,
)
from bothways.evaluation.temperature import Temperature
from bothways.progress import stage

Labels: TypeAlias = NDArray[np.int64]

# Relative margin of the out-of-domain threshold above the score of the row that sets it. The last bits of a score
# depend on the other rows of its batch; without the margin, this row could fall on either side of the threshold.
_ROUNDING = 1e-4


def learn_classification(
    held_out: DetectorInput,
    labels_M: Labels,
    options: ConfidenceOptions,
    *,
    seed: int,
    training: Callable[[], tuple[DetectorInput, Labels]],
) -> Confidence:
    """Fit calibration, coverage and out-of-domain detection of a single-label classifier on held-out rows.

    The seed draws the folds of cross-validation. ``training`` returns the logits, features and labels of the training
    rows; it is called only if the detector reads features.
    """
    logits_MC, method = held_out.logits_NC, options.calibration
    if method is None:
        with stage("fitting prediction sets"):
            confidence = Confidence(conformal=ConformalSets.fit(Temperature(1.0).apply(logits_MC), labels_M))
    else:
        with stage("calibrating"):
            rows = HeldOutRows.from_arrays(logits_MC, labels_M)
            chosen = rows.choose(seed) if method == "auto" else ChosenCalibration(rows.fit(method), method, ())
        with stage("fitting prediction sets"):
            conformal = unseen_conformal_sets(rows, labels_M, chosen.method, seed)
        confidence = Confidence(chosen.calibration, chosen.scores, conformal, not_tried=chosen.reason)
    if options.detector is None:
        return confidence
    with stage("fitting the out-of-domain detector"):
        detector = storable(_fitted_detector(options.detector, logits_MC.shape[1], training))
        return replace(confidence, out_of_domain=fit_threshold(detector, held_out, options.in_domain_share))


def unseen_conformal_sets(rows: HeldOutRows, labels_M: Labels, method: CalibrationMethod, seed: int) -> ConformalSets:
    """Fit prediction sets with guaranteed coverage on held-out rows.

    Each row's probabilities come from a calibration fitted without its cross-validation fold, since the final
    calibration was fitted on this row too. The held-out rows also chose the calibration method and the epoch to keep,
    so the guarantee is approximate; the card says so.
    """
    return ConformalSets.fit_blocks(rows.held_out(method, seed), labels_M)


def fit_threshold(detector: Detector, held_out: DetectorInput, in_domain_share: float) -> OutOfDomain:
    """Return the detector with the threshold below which a share ``in_domain_share`` of held-out rows scores."""
    inside_N = detector.score(held_out)
    if len(inside_N) > MOST_KEPT:
        inside_N = np.random.default_rng(0).choice(inside_N, MOST_KEPT, replace=False)
    threshold = out_of_domain_threshold(inside_N, in_domain_share)
    return OutOfDomain(detector, threshold + _ROUNDING * abs(threshold), np.sort(inside_N))


def separating(found: OutOfDomain, others: DetectorInput) -> OutOfDomain:
    """Return the detector with the threshold that best separates held-out rows from ``others`` (balanced accuracy)."""
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


# --- on disk ---

FILE = "confidence.safetensors"
"""File of the arrays; the settings are in ``bothways.json``."""

Arrays = dict[str, NDArray[np.float64]]


def write_confidence(folder: Path, confidence: Confidence) -> dict[str, object]:
    """Write the arrays to a folder; return the settings for ``bothways.json``."""
    arrays: Arrays = {}
    conformal: dict[str, object] | None = None
    match confidence.conformal:
        case ConformalSets(held_out):
            conformal, arrays["conformal"] = {"kind": "least_ambiguous"}, held_out
        case ConformalInterval(held_out):
            conformal, arrays["conformal"] = {"kind": "interval"}, held_out
        case None:
            pass
    detection: dict[str, object] | None = None
    if confidence.out_of_domain is not None:
        found = confidence.out_of_domain
        values = {each.name: getattr(found.detector, each.name) for each in fields(found.detector)}
        arrays |= {
            f"detector.{name}": each.astype(np.float32) for name, each in values.items() if isinstance(each, np.ndarray)
        }
        arrays["inside"] = found.inside_M
        numbers = {name: each for name, each in values.items() if not isinstance(each, np.ndarray)}
        detection = {"kind": found.detector.kind, "threshold": found.threshold, **numbers}
    if arrays:
        write_arrays(folder / FILE, arrays)
    calibration = None if confidence.calibration is None else stored_form(confidence.calibration)
    return {"calibration": calibration, "conformal": conformal, "out_of_domain": detection}


def open_confidence(stored: StoredLabels, folder: Path, classes: int, layers: int, width: int) -> Confidence:
    """Read the confidence of a saved model with ``classes`` logits, and ``layers`` layers of ``width`` features.

    The files' checksums were verified before. Raises `CorruptCheckpoint` if a value or an array does not fit.
    """
    calibration = _calibration(stored, classes)
    conformal, detection = stored.conformal, stored.out_of_domain
    if conformal is None and detection is None:
        return Confidence(calibration)
    arrays = _arrays(folder)
    try:
        return Confidence(
            calibration,
            (),
            None if conformal is None else _conformal(conformal, arrays),
            None if detection is None else _out_of_domain(detection, arrays, classes, layers, width),
        )
    except (InvalidInput, TypeError, KeyError, ValueError, IndexError, OverflowError) as error:
        raise damaged("conformal and out_of_domain", f"settings that fit {FILE}", (conformal, detection)) from error


def stored_temperature(stored: Stored) -> Temperature | None:
    """Return the temperature in ``bothways.json``; None if there is none."""
    found = stored.temperature
    return None if found is None else Temperature(found.value, found.slope)


def temperature_settings(temperature: Temperature | None) -> dict[str, object]:
    """Return the temperature as an entry of ``bothways.json``."""
    return {"temperature": None if temperature is None else asdict(temperature)}


def _calibration(stored: StoredLabels, classes: int) -> Calibration | None:
    if stored.calibration is None:
        return None
    content = stored.calibration.model_dump()
    try:
        calibration = calibration_from(content)
        width = next((len(value) for value in asdict(calibration).values() if isinstance(value, tuple)), classes)
        if width != classes:
            raise InvalidInput(f"calibration: expected parameters for {classes} classes, got {width}")
    except InvalidInput as error:
        raise damaged("calibration", "a method with its parameters", content) from error
    return calibration


def _conformal(stored: StoredGuarantee, arrays: Arrays) -> ConformalSets | ConformalInterval:
    held_out = arrays["conformal"]
    if held_out.ndim != 1 or not len(held_out):
        raise ValueError("the held-out scores are not a vector")
    return ConformalInterval(held_out) if stored.kind == "interval" else ConformalSets(held_out)


def _out_of_domain(stored: StoredDetection, arrays: Arrays, classes: int, layers: int, width: int) -> OutOfDomain:
    parts = {name.partition(".")[2]: each for name, each in arrays.items() if name.startswith("detector.")}
    make: Callable[..., Detector] = DETECTORS[stored.kind]
    found = OutOfDomain(make(**stored.settings, **parts), stored.threshold, arrays["inside"])
    reads = found.detector.layers
    if reads > layers or found.inside_M.ndim != 1:
        raise ValueError("more layers than the model has, or scores that are not a vector")
    # Arrays of wrong shapes fail here instead of in the first prediction.
    found.detect(DetectorInput(np.zeros((1, classes)), np.zeros((1, reads, width if reads else 0))))
    return found


def _arrays(folder: Path) -> Arrays:
    path = folder / FILE
    if not path.is_file():
        raise CorruptCheckpoint(f"{path.name} is missing from {folder.name!r}: download or copy the model again.")
    return {name: array.astype(np.float64) for name, array in read_arrays(path).items()}
