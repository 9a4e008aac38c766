"""The ways to calibrate class probabilities, and the choice between them on held-out rows.

Methods are compared by their negative log likelihood (NLL) on rows that they were not fitted on, in cross-validation
within the held-out rows. The temperature has two numbers at most and never changes which class comes first. All others
have at least two numbers for each class and can, so they must earn it: see `choose_calibration`.

Shape letters: N rows, C classes.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import TypeAdapter, ValidationError

from bothways.choices import CalibrationMethod as CalibrationMethod
from bothways.errors import InvalidInput
from bothways.evaluation.adaptive import MANY_CLASSES, fit_adaptive_temperature, fit_tabulated
from bothways.evaluation.calibration import Temperature
from bothways.evaluation.inputs import BoolArray, FloatArray, IntArray, class_indices, logit_array, row_blocks
from bothways.evaluation.metrics import nll_per_row
from bothways.evaluation.one_vs_rest import Isotonic, Platt, fit_isotonic, fit_platt
from bothways.evaluation.tabulated import TabulatedLosses
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
    """The result of a method on held-out rows that it was not fitted on.

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
        scores: Of every method that was tried; none where no more than the simplest was.
        reason: Why no other was tried, a sentence.
    """

    calibration: Calibration
    method: CalibrationMethod
    scores: tuple[MethodScore, ...]
    reason: str = ""


@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """Rows that a model was not trained on: what calibrations are fitted on and chosen by.

    Attributes:
        logits_NC: Their logits.
        labels_N: Their true class numbers.
    """

    logits_NC: FloatArray
    labels_N: IntArray

    @classmethod
    def of(cls, logits_NC: ArrayLike, labels_N: ArrayLike) -> "HeldOutRows":
        """Make it of arrays, which are checked.

        Raises:
            InvalidInput: no rows, fewer than two classes, logits that are not finite, or labels that do not fit.
        """
        logits = logit_array(logits_NC, least_columns=2)
        return cls(logits, class_indices(labels_N, "labels", classes=logits.shape[1], rows=len(logits)))

    @cached_property
    def losses(self) -> TabulatedLosses:
        """Those of the rows at any temperature."""
        return TabulatedLosses.of(self.logits_NC, self.labels_N)

    def fit(self, method: CalibrationMethod, rows_N: BoolArray | None = None) -> Calibration:
        """Fit one method, on some of the rows or all."""
        if method not in _FITS:
            raise InvalidInput(f"calibration: expected one of {', '.join(_FITS)}, got {method!r}")
        if method == "temperature" and self.logits_NC.shape[1] > MANY_CLASSES:
            return fit_tabulated(self.losses if rows_N is None else self.losses.take(rows_N))
        if rows_N is None:
            return _FITS[method](self.logits_NC, self.labels_N)
        return _FITS[method](self.logits_NC[rows_N], self.labels_N[rows_N])

    def choose(self, seed: int) -> ChosenCalibration:
        """Fit the method that suits the rows; see `choose_calibration`."""
        logits, labels = self.logits_NC, self.labels_N
        if reason := _no_choice(labels, logits.shape[1]):
            return ChosenCalibration(self.fit("temperature"), "temperature", (), reason)
        generator = np.random.default_rng(seed)
        drawn_N = generator.permutation(len(logits))[:MOST_ROWS]
        drawn = HeldOutRows(logits[drawn_N], labels[drawn_N])
        fold_N = _folds(drawn.labels_N, generator)
        found = {method: drawn.stated(method, fold_N) for method in METHODS}
        nll_of = {method: nll_per_row(drawn.labels_N, each_NC) for method, each_NC in found.items()}
        right_of = {method: int((each_NC.argmax(1) == drawn.labels_N).sum()) for method, each_NC in found.items()}
        chosen: CalibrationMethod = "temperature"
        for method in METHODS:
            gain_N = nll_of[chosen] - nll_of[method]
            noise = CLEARLY * float(gain_N.std(ddof=1)) / math.sqrt(len(gain_N))
            if float(gain_N.mean()) > noise and right_of[method] >= right_of["temperature"]:
                chosen = method
        scores = tuple(MethodScore(name, float(nll_of[name].mean()), right_of[name] / len(drawn_N)) for name in METHODS)
        return ChosenCalibration(self.fit(chosen), chosen, scores)

    def stated(self, method: CalibrationMethod, fold_N: NDArray[np.int64]) -> FloatArray:
        """Probabilities (N, C) of each row, by the method fitted on the other folds."""
        probabilities_NC = np.empty_like(self.logits_NC)
        for numbers_B, stated_BC in self.blocks(method, fold_N):
            probabilities_NC[numbers_B] = stated_BC
        return probabilities_NC

    def blocks(
        self, method: CalibrationMethod, fold_N: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], FloatArray]]:
        """Yield numbers of rows (B) and their probabilities (B, C), by the method fitted on the other folds.

        The rows of fold -1 are those that it is fitted on as well.
        """
        for fold in np.unique(fold_N).tolist():
            fitted = self.fit(method, None if fold < 0 else fold_N != fold)
            numbers_M = np.flatnonzero(fold_N == fold)
            for rows in row_blocks(len(numbers_M), self.logits_NC.shape[1]):
                yield numbers_M[rows], fitted.apply(self.logits_NC[numbers_M[rows]])

    def held_out(self, method: CalibrationMethod, seed: int) -> Iterator[tuple[NDArray[np.int64], FloatArray]]:
        """Yield numbers of rows (B) and their probabilities (B, C); see `held_out_probabilities`."""
        few = len(self.labels_N) < FOLDS
        fold_N = np.full(len(self.labels_N), -1) if few else _folds(self.labels_N, np.random.default_rng(seed))
        return self.blocks(method, fold_N)


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
    return HeldOutRows.of(logits_NC, labels_N).fit(method)


def choose_calibration(logits_NC: ArrayLike, labels_N: ArrayLike, *, seed: int = 0) -> ChosenCalibration:
    """Fit the method that suits the rows, where several do the simplest.

    The temperature is kept unless another method, in cross-validation, lowers the NLL of the same rows by more than two
    standard errors of the difference and makes no more mistakes. With fewer than ten rows of any class there is too
    little to choose by, and the temperature is taken at once: the others learn something of each class, and of one that
    is not there that it never comes. Of more than 200 classes the temperature alone is fitted: the cost of the others
    grows with rows, classes and steps.

    Args:
        logits_NC: logits of rows that the model was not trained on.
        labels_N: their true class numbers.
        seed: draws the folds.

    Raises:
        InvalidInput: no rows, fewer than two classes, logits that are not finite, or labels that do not fit.
    """
    return HeldOutRows.of(logits_NC, labels_N).choose(seed)


def _no_choice(labels_N: IntArray, classes: int) -> str:
    """Why only the temperature is fitted, as a sentence; empty where all methods are tried."""
    others = f"only the temperature was fitted, not {', '.join(list(METHODS)[1:-1])} or {list(METHODS)[-1]}"
    if classes > MANY_CLASSES:
        return f"of {classes:,} classes, more than {MANY_CLASSES}, {others}, whose cost grows with rows and classes."
    if (least := int(np.bincount(labels_N, minlength=classes).min())) < LEAST_ROWS:
        return f"a class has {least} held-out rows, fewer than {LEAST_ROWS}: {others}, which learn of each class."
    return ""


def held_out_probabilities(
    method: CalibrationMethod, logits_NC: ArrayLike, labels_N: ArrayLike, *, seed: int = 0
) -> FloatArray:
    """Probabilities (N, C) of each row by a method that was fitted on the others, in cross-validation.

    What is to be learnt from calibrated probabilities of the rows that calibrated them would otherwise be too hopeful.

    Raises:
        InvalidInput: No such method, no rows, fewer than two classes, logits that are not finite, or labels that do
            not fit.
    """
    held = HeldOutRows.of(logits_NC, labels_N)
    probabilities_NC = np.empty_like(held.logits_NC)
    for numbers_B, stated_BC in held.held_out(method, seed):
        probabilities_NC[numbers_B] = stated_BC
    return probabilities_NC


def stored_form(calibration: Calibration) -> dict[str, object]:
    """Return a calibration as JSON values, which `calibration_from` reads."""
    return {"method": method_of(calibration), **asdict(calibration)}


def method_of(calibration: Calibration) -> CalibrationMethod:
    """Return the name of its method."""
    return next(name for name, kind in METHODS.items() if isinstance(calibration, kind))


def calibration_from(stored: object) -> Calibration:
    """Return a calibration from JSON values.

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
    """Return a fold for each row, the classes spread evenly over the folds."""
    shuffled_N = generator.permutation(len(labels_N))
    order_N = shuffled_N[np.argsort(labels_N[shuffled_N], kind="stable")]
    fold_N = np.empty(len(labels_N), dtype=np.int64)
    fold_N[order_N] = np.arange(len(labels_N)) % FOLDS
    return fold_N
