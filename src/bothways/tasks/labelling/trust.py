"""What a model learnt on held-out rows about its own answers: calibration, coverage, and what lies outside its domain.

Settings are kept in ``bothways.json``, arrays in ``trust.safetensors`` beside the weights.

Shapes: N texts, C classes, M held-out rows.
"""

import copyreg
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.checkpoints.files import read_safetensors
from bothways.checkpoints.pickling import reduce_value, remember_file
from bothways.checkpoints.save import write_tensors
from bothways.errors import CorruptCheckpoint, InvalidInput
from bothways.evaluation import (
    Adaptive,
    Calibration,
    ConformalInterval,
    ConformalSets,
    Detector,
    Evidence,
    LeastAmbiguous,
    MethodScore,
    SetScore,
    calibration_from,
    stored_form,
    threshold_between,
    threshold_keeping,
)
from bothways.evaluation.conformal import MOST_KEPT
from bothways.evaluation.detectors import DETECTORS
from bothways.tasks.card import NOTICES_NOTHING, flattered
from bothways.tasks.stored import Extras, damaged, stored_temperature

FILE = "trust.safetensors"

Arrays = dict[str, NDArray[Any]]

_DRAWN_BY = "The border of the domain was drawn by"

_SCORES: dict[str, type[SetScore]] = {"least_ambiguous": LeastAmbiguous, "adaptive": Adaptive}


@dataclass(frozen=True, slots=True, eq=False)
class Border:
    """Tells texts of a model's domain from others.

    Attributes:
        detector: Scores texts, higher for those from elsewhere.
        threshold: Scores above this are called outside.
        inside_M: Scores of held-out texts of the domain, in rising order.
    """

    detector: Detector
    threshold: float
    inside_M: NDArray[np.float64]

    @classmethod
    def keeping(cls, detector: Detector, held_out: Evidence, kept: float) -> "Border":
        """The border that a share ``kept`` of the domain's texts lies inside of.

        Raises:
            InvalidInput: The share is not between 0 and 1.
        """
        inside_N = detector.score(held_out)
        if len(inside_N) > MOST_KEPT:
            inside_N = np.random.default_rng(0).choice(inside_N, MOST_KEPT, replace=False)
        return cls(detector, threshold_keeping(inside_N, kept), np.sort(inside_N))

    def between(self, outside: Evidence) -> "Border":
        """The border that tells the domain best from these texts, by balanced accuracy."""
        return replace(self, threshold=threshold_between(self.inside_M, self.detector.score(outside)))


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Trust:
    """What a model learnt on held-out rows.

    Attributes:
        calibration: Makes probabilities of logits; None leaves them as they are.
        chosen_by: How each method of calibration did, where there was a choice.
        conformal: Promises coverage.
        border: Tells texts from elsewhere.
    """

    calibration: Calibration | None = None
    chosen_by: tuple[MethodScore, ...] = ()
    conformal: ConformalSets | ConformalInterval | None = None
    border: Border | None = None

    def to_card(self) -> dict[str, object]:
        """What the card says of it, as JSON values."""
        held_out = None if self.conformal is None else len(self.conformal.held_out_M)
        return {
            "calibration": None if self.calibration is None else stored_form(self.calibration)["method"],
            "calibrations_tried": [asdict(each) for each in self.chosen_by],
            "coverage_from_rows": held_out,
            "out_of_domain": None if self.border is None else _kind_of(self.border.detector),
            "out_of_domain_threshold": None if self.border is None else self.border.threshold,
        }

    @property
    def limits(self) -> tuple[str, ...]:
        """What a reader of the card's numbers has to know."""
        return (
            flattered("rows", "the epoch to keep and the calibration"),
            "Metrics, probabilities and coverage hold for texts like the validation rows.",
            *([NOTICES_NOTHING] if self.border is None else []),
        )


def card_told_from(card: Mapping[str, Any], trust: Trust, rows: int) -> dict[str, Any]:
    """A card after the border of the domain was drawn by so many rows from elsewhere."""
    drawn = {name: trust.to_card()[name] for name in ("out_of_domain", "out_of_domain_threshold")}
    limits = [limit for limit in card.get("limits", ()) if not limit.startswith(_DRAWN_BY)]
    limit = f"{_DRAWN_BY} {rows:,} rows from elsewhere: how well it tells these from others flatters it."
    trusted = {**card["trust"], **drawn, "out_of_domain_rows": rows}
    return {**card, "trust": trusted, "limits": [*limits, limit]}


def storable(detector: Detector) -> Detector:
    """A detector whose arrays are float32 numbers, as they are kept, so that a saved one scores the same."""
    values = {each.name: getattr(detector, each.name) for each in fields(detector)}
    rounded: dict[str, Any] = {
        name: _as_kept(each).astype(np.float64) for name, each in values.items() if isinstance(each, np.ndarray)
    }
    return replace(detector, **rounded)


def _as_kept(array: NDArray[np.float64]) -> NDArray[np.float32]:
    return array.astype(np.float32)


def write_trust(folder: Path, trust: Trust) -> dict[str, object]:
    """Write the arrays into a folder, and return what ``bothways.json`` is to say.

    Raises:
        OSError: The disk is full, or the folder cannot be written to.
    """
    arrays: Arrays = {}
    conformal: dict[str, object] | None = None
    match trust.conformal:
        case ConformalSets(held_out, score):
            kind = next(name for name, each in _SCORES.items() if isinstance(score, each))
            conformal, arrays["conformal"] = {"kind": kind, **asdict(score)}, held_out
        case ConformalInterval(held_out):
            conformal, arrays["conformal"] = {"kind": "interval"}, held_out
        case None:
            pass
    border: dict[str, object] | None = None
    if trust.border is not None:
        detector = trust.border.detector
        values = {each.name: getattr(detector, each.name) for each in fields(detector)}
        arrays |= {f"detector.{name}": _as_kept(each) for name, each in values.items() if isinstance(each, np.ndarray)}
        arrays["inside"] = trust.border.inside_M
        numbers = {name: each for name, each in values.items() if not isinstance(each, np.ndarray)}
        border = {"kind": _kind_of(detector), "threshold": trust.border.threshold, **numbers}
    if arrays:
        write_tensors(folder / FILE, {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()})
    calibration = None if trust.calibration is None else stored_form(trust.calibration)
    return {"calibration": calibration, "conformal": conformal, "out_of_domain": border}


def stored_trust(extras: Extras, folder: Path, classes: int) -> Trust:
    """What a saved model says, whose file was held against its checksum before.

    Raises:
        CorruptCheckpoint: A value or array is not one that was written.
    """
    calibration = _calibration(extras, classes)
    conformal, border = extras.get("conformal"), extras.get("out_of_domain")
    if conformal is None and border is None:
        return Trust(calibration)
    arrays = _arrays(folder)
    try:
        trust = Trust(
            calibration,
            (),
            None if conformal is None else _conformal(conformal, arrays),
            None if border is None else _border(border, arrays),
        )
    except (InvalidInput, TypeError, KeyError, ValueError, StopIteration) as error:
        raise damaged("conformal and out_of_domain", f"what belongs to {FILE}", (conformal, border)) from error
    return remember_file(trust, folder / FILE, stored_trust, extras, folder.absolute(), classes)


copyreg.pickle(Trust, reduce_value)


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


def _border(stored: object, arrays: Arrays) -> Border:
    settings = _settings(stored)
    kind, threshold = str(settings.pop("kind", None)), settings.pop("threshold")
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not np.isfinite(threshold):
        raise ValueError("the threshold is no number")
    parts = {name.partition(".")[2]: each for name, each in arrays.items() if name.startswith("detector.")}
    values: dict[str, Any] = {**settings, **parts}
    detector = next(each for name, each in DETECTORS.items() if name == kind)
    return Border(detector(**values), float(threshold), arrays["inside"])


def _settings(stored: object) -> dict[str, Any]:
    if not isinstance(stored, Mapping):
        raise TypeError("no object")
    return dict(stored)


def _arrays(folder: Path) -> Arrays:
    path = folder / FILE
    if not path.is_file():
        raise CorruptCheckpoint(f"{path.name} is missing from {folder.name!r}: get the model again from where it came.")
    return {name: tensor.double().numpy() for name, tensor in read_safetensors(path).items()}


def _kind_of(detector: Detector) -> str:
    return next(name for name, each in DETECTORS.items() if isinstance(detector, each))
