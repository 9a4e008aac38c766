"""Confidence on disk: settings in ``bothways.json``, arrays in ``confidence.safetensors`` beside the weights."""

import copyreg
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.files import read_arrays, reduce_value, remember_file
from bothways.checkpoints.save import write_arrays
from bothways.checkpoints.schema import Stored, StoredDetection, StoredGuarantee, StoredLabels, damaged
from bothways.confidence.confidence import Confidence, OutOfDomain
from bothways.errors import CorruptCheckpoint, InvalidInput
from bothways.evaluation.calibration import Calibration, calibration_from, stored_form
from bothways.evaluation.coverage import ConformalInterval, ConformalSets
from bothways.evaluation.detectors import DETECTORS, Detector, DetectorInput
from bothways.evaluation.temperature import Temperature

FILE = "confidence.safetensors"
"""The arrays; beside settings in ``bothways.json``."""

Arrays = dict[str, NDArray[np.float64]]


def write_confidence(folder: Path, confidence: Confidence) -> dict[str, object]:
    """Write the arrays into a folder, and return the settings for ``bothways.json``.

    Raises:
        OSError: The disk is full, or the folder cannot be written to.
    """
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
    """Read the confidence of a saved model; the files were compared with their checksums before.

    Args:
        stored: Its settings in ``bothways.json``.
        folder: The folder of its arrays.
        classes: The number of logits of the model.
        layers: The number of layers that a detector can read.
        width: The width of their features.

    Raises:
        CorruptCheckpoint: A value or an array was altered or damaged.
    """
    calibration = _calibration(stored, classes)
    conformal, detection = stored.conformal, stored.out_of_domain
    if conformal is None and detection is None:
        return Confidence(calibration)
    arrays = _arrays(folder)
    try:
        confidence = Confidence(
            calibration,
            (),
            None if conformal is None else _conformal(conformal, arrays),
            None if detection is None else _out_of_domain(detection, arrays, classes, layers, width),
        )
    except (InvalidInput, TypeError, KeyError, ValueError, IndexError, OverflowError) as error:
        raise damaged("conformal and out_of_domain", f"what belongs to {FILE}", (conformal, detection)) from error
    arguments = (stored, folder.absolute(), classes, layers, width)
    return remember_file(confidence, folder / FILE, open_confidence, *arguments)


copyreg.pickle(Confidence, reduce_value)


def stored_temperature(stored: Stored) -> Temperature | None:
    """Return the temperature in ``bothways.json``, or None."""
    found = stored.temperature
    return None if found is None else Temperature(found.value, found.slope)


def temperature_settings(temperature: Temperature | None) -> dict[str, object]:
    """Return the temperature as ``bothways.json`` has it."""
    return {"temperature": None if temperature is None else asdict(temperature)}


def _calibration(stored: StoredLabels, classes: int) -> Calibration | None:
    if stored.calibration is None:
        return None
    content = stored.calibration.model_dump()
    try:
        calibration = calibration_from(content)
        width = next((len(value) for value in asdict(calibration).values() if isinstance(value, tuple)), classes)
        if width != classes:
            raise InvalidInput(f"calibration: expected numbers for {classes} classes, got {width}")
    except InvalidInput as error:
        raise damaged("calibration", "a method and its numbers", content) from error
    return calibration


def _conformal(stored: StoredGuarantee, arrays: Arrays) -> ConformalSets | ConformalInterval:
    held_out = arrays["conformal"]
    if held_out.ndim != 1 or not len(held_out):
        raise ValueError("the held-out scores are no vector")
    return ConformalInterval(held_out) if stored.kind == "interval" else ConformalSets(held_out)


def _out_of_domain(stored: StoredDetection, arrays: Arrays, classes: int, layers: int, width: int) -> OutOfDomain:
    parts = {name.partition(".")[2]: each for name, each in arrays.items() if name.startswith("detector.")}
    make: Callable[..., Detector] = DETECTORS[stored.kind]
    found = OutOfDomain(make(**stored.settings, **parts), stored.threshold, arrays["inside"])
    reads = found.detector.layers
    if reads > layers or found.inside_M.ndim != 1:
        raise ValueError("more layers than the model has, or scores that are no vector")
    # Arrays that do not fit together, or the model, fail here rather than when the model is asked.
    found.detect(DetectorInput(np.zeros((1, classes)), np.zeros((1, reads, width if reads else 0))))
    return found


def _arrays(folder: Path) -> Arrays:
    path = folder / FILE
    if not path.is_file():
        raise CorruptCheckpoint(f"{path.name} is missing from {folder.name!r}: get the model again from where it came.")
    return {name: array.astype(np.float64) for name, array in read_arrays(path).items()}
