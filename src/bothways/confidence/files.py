"""Confidence on disk: settings in ``bothways.json``, arrays in ``trust.safetensors`` beside the weights."""

import copyreg
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.checkpoints.files import read_safetensors
from bothways.checkpoints.pickling import reduce_value, remember_file
from bothways.checkpoints.save import write_tensors
from bothways.checkpoints.stored import Extras, damaged
from bothways.confidence.confidence import Confidence, OutOfDomain
from bothways.errors import CorruptCheckpoint, InvalidInput
from bothways.evaluation import (
    Adaptive,
    Calibration,
    ConformalInterval,
    ConformalSets,
    LeastAmbiguous,
    SetScore,
    Temperature,
    calibration_from,
    stored_form,
)
from bothways.evaluation.detectors import DETECTORS

FILE = "trust.safetensors"

Arrays = dict[str, NDArray[Any]]

_SCORES: dict[str, type[SetScore]] = {"least_ambiguous": LeastAmbiguous, "adaptive": Adaptive}


def write_confidence(folder: Path, confidence: Confidence) -> dict[str, object]:
    """Write the arrays into a folder, and return the settings for ``bothways.json``.

    Raises:
        OSError: The disk is full, or the folder cannot be written to.
    """
    arrays: Arrays = {}
    conformal: dict[str, object] | None = None
    match confidence.conformal:
        case ConformalSets(held_out, score):
            kind = next(name for name, each in _SCORES.items() if isinstance(score, each))
            conformal, arrays["conformal"] = {"kind": kind, **asdict(score)}, held_out
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
        detection = {"kind": found.kind, "threshold": found.threshold, **numbers}
    if arrays:
        write_tensors(folder / FILE, {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()})
    calibration = None if confidence.calibration is None else stored_form(confidence.calibration)
    return {"calibration": calibration, "conformal": conformal, "out_of_domain": detection}


def open_confidence(extras: Extras, folder: Path, classes: int) -> Confidence:
    """Read what a saved model learnt about its answers; the files were compared with their checksums before.

    Raises:
        CorruptCheckpoint: A value or array is not one that was written.
    """
    calibration = _calibration(extras, classes)
    conformal, detection = extras.get("conformal"), extras.get("out_of_domain")
    if conformal is None and detection is None:
        return Confidence(calibration)
    arrays = _arrays(folder)
    try:
        confidence = Confidence(
            calibration,
            (),
            None if conformal is None else _conformal(conformal, arrays),
            None if detection is None else _out_of_domain(detection, arrays),
        )
    except (InvalidInput, TypeError, KeyError, ValueError, StopIteration) as error:
        raise damaged("conformal and out_of_domain", f"what belongs to {FILE}", (conformal, detection)) from error
    return remember_file(confidence, folder / FILE, open_confidence, extras, folder.absolute(), classes)


copyreg.pickle(Confidence, reduce_value)


def stored_temperature(extras: Extras) -> Temperature | None:
    """Return the temperature in ``bothways.json``, or None.

    Raises:
        CorruptCheckpoint: It is not a value above 0 and a slope from 0 on, both finite.
    """
    stored = extras.get("temperature")
    if stored is None:
        return None
    known = stored if isinstance(stored, dict) and stored.keys() == {"value", "slope"} else {}
    value, slope = (
        float(number) if isinstance(number, int | float) and not isinstance(number, bool) else math.nan
        for number in (known.get("value"), known.get("slope"))
    )
    try:
        return Temperature(value, slope)
    except InvalidInput as error:
        raise damaged("temperature", "a value above 0 and a slope from 0 on", stored) from error


def stored_guarantee(extras: Extras, *, interval: bool) -> ConformalSets | ConformalInterval | None:
    """Return the coverage guarantee of an ensemble, by the scores of held-out rows in ``bothways.json``.

    Args:
        extras: What the file says.
        interval: Whether it is one of numbers.

    Raises:
        CorruptCheckpoint: The scores are no numbers.
    """
    values = extras.get("conformal")
    if values is None:
        return None
    numbers = values if isinstance(values, list) else []
    if not numbers or not all(isinstance(each, int | float) and math.isfinite(each) for each in numbers):
        raise damaged("conformal", "a list of finite numbers", values)
    held_out_M = np.sort(np.array(numbers, dtype=np.float64))
    return ConformalInterval(held_out_M) if interval else ConformalSets(held_out_M)


def _calibration(extras: Extras, classes: int) -> Calibration | None:
    stored = extras.get("calibration")
    if stored is None:
        # Before there were other methods, the temperature stood alone.
        return stored_temperature(extras)
    try:
        calibration = calibration_from(stored)
        width = next((len(value) for value in asdict(calibration).values() if isinstance(value, tuple)), classes)
        if width != classes:
            raise InvalidInput(f"calibration: expected numbers for {classes} classes, got {width}")
    except InvalidInput as error:
        raise damaged("calibration", "a method and its numbers", stored) from error
    return calibration


def _conformal(stored: object, arrays: Arrays) -> ConformalSets | ConformalInterval:
    settings = _settings(stored)
    held_out, kind = arrays["conformal"], settings.pop("kind", None)
    if held_out.ndim != 1 or not len(held_out):
        raise ValueError("the held-out scores are no vector")
    if kind == "interval":
        return ConformalInterval(held_out)
    return ConformalSets(held_out, _SCORES[str(kind)](**settings))


def _out_of_domain(stored: object, arrays: Arrays) -> OutOfDomain:
    settings = _settings(stored)
    kind, threshold = str(settings.pop("kind", None)), settings.pop("threshold")
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not np.isfinite(threshold):
        raise ValueError("the threshold is no number")
    parts = {name.partition(".")[2]: each for name, each in arrays.items() if name.startswith("detector.")}
    values: dict[str, Any] = {**settings, **parts}
    detector = next(each for name, each in DETECTORS.items() if name == kind)
    return OutOfDomain(detector(**values), float(threshold), arrays["inside"])


def _settings(stored: object) -> dict[str, Any]:
    if not isinstance(stored, Mapping):
        raise TypeError("no object")
    return dict(stored)


def _arrays(folder: Path) -> Arrays:
    path = folder / FILE
    if not path.is_file():
        raise CorruptCheckpoint(f"{path.name} is missing from {folder.name!r}: get the model again from where it came.")
    return {name: tensor.double().numpy() for name, tensor in read_safetensors(path).items()}
