"""The ways to calibrate class probabilities, and the choice between them on held-out rows.

Methods are compared by their negative log likelihood (NLL) on rows that they were not fitted on, in cross-validation
within the held-out rows. The temperature has two numbers at most and never changes which class comes first. All others
have at least two numbers for each class and can, so they must earn it: see `choose_calibration`.

Shape letters: N rows, C classes.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import TypeAdapter, ValidationError

from bothways.choices import CalibrationMethod as CalibrationMethod
from bothways.errors import InvalidInput
from bothways.evaluation.adaptive import fit_adaptive_temperature
from bothways.evaluation.calibration import Temperature
from bothways.evaluation.inputs import FloatArray, IntArray, class_indices, logit_array
from bothways.evaluation.metrics import nll_per_row
from bothways.evaluation.one_vs_rest import Isotonic, Platt, fit_isotonic, fit_platt
from bothways.evaluation.vector_scaling import VectorScaling, fit_vector_scaling

Calibration = Temperature | VectorScaling | Platt | Isotonic

METHODS: Mapping[CalibrationMethod, type[Calibration]] = {
    "temperature": Temperature,
    "vector": VectorScaling,
    "platt": Platt,
    "isotonic": Isotonic,
}
"""The simplest first."""

FOLDS = 5
CLEARLY = 2.0
"""Standard errors by which a method that may change predictions has to be better."""
LEAST_ROWS = 10
"""Rows of every class, below which only the temperature is tried."""
MOST_ROWS = 20_000
"""Rows that the choice is made on, drawn from more; the method that is chosen is fitted on all of them."""

_FITS: Mapping[CalibrationMethod, Callable[[ArrayLike, ArrayLike], Calibration]] = {
    "temperature": fit_adaptive_temperature,
    "vector": fit_vector_scaling,
    "platt": fit_platt,
    "isotonic": fit_isotonic,
}


@dataclass(frozen=True, slots=True)
class MethodScore:
    """How a method did on held-out rows that it was not fitted on.

    Attributes:
        method: Its name.
        nll: Mean negative log likelihood, in nats.
        accuracy: Share of rows whose most probable class is theirs.
    """

    method: CalibrationMethod
    nll: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class ChosenCalibration:
    """A calibration, and what it was chosen by.

    Attributes:
        calibration: Fitted on all held-out rows.
        method: Its name.
        scores: Of every method that was tried; none where there were too few rows to try more than the simplest.
    """

    calibration: Calibration
    method: CalibrationMethod
    scores: tuple[MethodScore, ...]


def fit_calibration(method: CalibrationMethod, logits_NC: ArrayLike, labels_N: ArrayLike) -> Calibration:
    """Fit one method.

    Args:
        method: Its name.
        logits_NC: logits of rows that the model was not trained on.
        labels_N: their true class numbers.

    Raises:
        InvalidInput: No such method, no rows, fewer than two classes, logits that are not finite, or labels that do
            not fit.
    """
    if method not in _FITS:
        raise InvalidInput(f"calibration: expected one of {', '.join(_FITS)}, got {method!r}")
    return _FITS[method](logits_NC, labels_N)


def choose_calibration(logits_NC: ArrayLike, labels_N: ArrayLike, *, seed: int = 0) -> ChosenCalibration:
    """Fit the method that suits the rows, where several do the simplest.

    The temperature is kept unless another method, in cross-validation, lowers the NLL of the same rows by more than two
    standard errors of the difference and makes no more mistakes. With fewer than ten rows of any class there is too
    little to choose by, and the temperature is taken at once: the others learn something of each class, and of one that
    is not there that it never comes.

    Args:
        logits_NC: logits of rows that the model was not trained on.
        labels_N: their true class numbers.
        seed: draws the folds.

    Raises:
        InvalidInput: no rows, fewer than two classes, logits that are not finite, or labels that do not fit.
    """
    logits = logit_array(logits_NC, least_columns=2)
    labels = class_indices(labels_N, "labels", classes=logits.shape[1], rows=len(logits))
    generator = np.random.default_rng(seed)
    if np.bincount(labels, minlength=logits.shape[1]).min() < LEAST_ROWS:
        return ChosenCalibration(fit_calibration("temperature", logits, labels), "temperature", ())
    drawn_N = generator.permutation(len(logits))[:MOST_ROWS]
    fold_N = _folds(labels[drawn_N], generator)
    found = {method: _held_out(method, logits[drawn_N], labels[drawn_N], fold_N) for method in METHODS}
    nll_of = {method: nll_per_row(labels[drawn_N], each_NC) for method, each_NC in found.items()}
    right_of = {method: int((each_NC.argmax(1) == labels[drawn_N]).sum()) for method, each_NC in found.items()}
    chosen: CalibrationMethod = "temperature"
    for method in METHODS:
        gain_N = nll_of[chosen] - nll_of[method]
        noise = CLEARLY * float(gain_N.std(ddof=1)) / math.sqrt(len(gain_N))
        if float(gain_N.mean()) > noise and right_of[method] >= right_of["temperature"]:
            chosen = method
    scores = tuple(MethodScore(name, float(nll_of[name].mean()), right_of[name] / len(drawn_N)) for name in METHODS)
    return ChosenCalibration(fit_calibration(chosen, logits, labels), chosen, scores)


def held_out_probabilities(
    method: CalibrationMethod, logits_NC: ArrayLike, labels_N: ArrayLike, *, seed: int = 0
) -> FloatArray:
    """Probabilities (N, C) of each row by a method that was fitted on the others, in cross-validation.

    What is to be learnt from calibrated probabilities of the rows that calibrated them would otherwise be too hopeful.

    Raises:
        InvalidInput: No such method, no rows, fewer than two classes, logits that are not finite, or labels that do
            not fit.
    """
    logits = logit_array(logits_NC, least_columns=2)
    labels = class_indices(labels_N, "labels", classes=logits.shape[1], rows=len(logits))
    if len(logits) < FOLDS:
        return fit_calibration(method, logits, labels).apply(logits)
    return _held_out(method, logits, labels, _folds(labels, np.random.default_rng(seed)))


def stored_form(calibration: Calibration) -> dict[str, object]:
    """A calibration as JSON values, which `calibration_from` reads."""
    return {"method": method_of(calibration), **asdict(calibration)}


def method_of(calibration: Calibration) -> CalibrationMethod:
    """The name of its method."""
    return next(name for name, kind in METHODS.items() if isinstance(calibration, kind))


def calibration_from(stored: object) -> Calibration:
    """A calibration from JSON values.

    Raises:
        InvalidInput: They are not those of a calibration.
    """
    values = dict(stored) if isinstance(stored, Mapping) else {}
    method = values.pop("method", None)
    kind = next((kind for name, kind in METHODS.items() if name == method), None)
    if kind is None:
        raise InvalidInput(f"calibration: expected an object with a method out of {', '.join(METHODS)}, got {stored!r}")
    names = [each.name for each in fields(kind)]
    try:
        calibration = TypeAdapter[Calibration](kind).validate_json(json.dumps(values), strict=True)
    except (TypeError, ValidationError) as error:
        raise InvalidInput(f"calibration: expected {', '.join(names)} of {method}, got {values!r:.200}") from error
    if not values.keys() <= set(names):
        raise InvalidInput(f"calibration: expected only {', '.join(names)} of {method}, got {', '.join(values)}")
    return calibration


def _folds(labels_N: IntArray, generator: np.random.Generator) -> NDArray[np.int64]:
    """A fold for each row, the classes spread evenly over the folds."""
    shuffled_N = generator.permutation(len(labels_N))
    order_N = shuffled_N[np.argsort(labels_N[shuffled_N], kind="stable")]
    fold_N = np.empty(len(labels_N), dtype=np.int64)
    fold_N[order_N] = np.arange(len(labels_N)) % FOLDS
    return fold_N


def _held_out(
    method: CalibrationMethod, logits_NC: FloatArray, labels_N: IntArray, fold_N: NDArray[np.int64]
) -> FloatArray:
    """Probabilities (N, C) of each row, by the method fitted on the other folds."""
    probabilities_NC = np.empty_like(logits_NC)
    for fold in range(FOLDS):
        inside_N = fold_N == fold
        fitted = fit_calibration(method, logits_NC[~inside_N], labels_N[~inside_N])
        probabilities_NC[inside_N] = fitted.apply(logits_NC[inside_N])
    return probabilities_NC
