"""Calibration of class probabilities, the choice of the method on held-out rows, and coverage guarantees.

A temperature has at most two parameters and never changes the predicted class. Isotonic regression has many parameters
for each class and can change the prediction, so it is used only if it is clearly better, see `HeldOutRows.choose`.
Vector scaling and Platt's sigmoid were best on none of the tested data sets (docs/LOG.md).

Coverage is guaranteed by split conformal prediction: if new rows are drawn like the held-out rows, the label set or
interval contains the truth with a probability of at least ``coverage``, on average over draws of both. For one draw of
n held-out rows, the actual coverage is off by about ``sqrt(coverage * (1 - coverage) / n)``. The guarantee holds for
any model, but a poor model gives large sets. It applies to all rows together, not to each class, and not to rows from
another distribution. It is exact only if the held-out rows were used for nothing else; if the epoch or the calibration
was chosen on them too, it is approximate. Source: Vovk et al. (2005), "Algorithmic learning in a random world"; Lei et
al. (2018), arXiv:1604.04173.

Shape letters: N rows, C classes, K knots, M held-out rows, B rows of a block.
"""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import TypeAdapter, ValidationError

from bothways.choices import CalibrationMethod as CalibrationMethod
from bothways.errors import InvalidInput, not_one_of
from bothways.evaluation.inputs import (
    BoolArray,
    FloatArray,
    IntArray,
    class_indices,
    class_probabilities,
    logit_array,
    paired_vectors,
    real_array,
    row_blocks,
)
from bothways.evaluation.metrics.classification import nll_per_row
from bothways.evaluation.temperature import (
    MANY_CLASSES,
    TabulatedLosses,
    Temperature,
    fit_adaptive_temperature,
    fit_tabulated,
    softmax,
)

FOLDS = 5
CLEARLY = 2.0
"""Number of standard errors by which isotonic regression, which may change predictions, has to be better."""

MIN_CLASS_ROWS = 10
"""Minimum number of rows of every class for trying isotonic regression."""

MAX_ROWS = 20_000
"""Maximum number of rows, drawn at random, for choosing the method; the chosen method is fitted on all rows."""


@dataclass(frozen=True, slots=True)
class Isotonic:
    """Isotonic calibration: an increasing function per class maps its softmax probability; then rows are normalised.

    The functions are linear between the knots and constant beyond them. Fitted on N rows, their values lie between
    1 / (N + 2) and 1 - 1 / (N + 2), since N rows cannot show that a class never occurs. Source: Zadrozny and Elkan
    (2002), "Transforming classifier scores into accurate multiclass probability estimates".

    Raises:
        InvalidInput: There are fewer than two classes, or the knots and values do not form increasing functions.
    """

    knots: tuple[tuple[float, ...], ...]  # for each class, softmax probabilities in increasing order
    # For each class, the calibrated probabilities at its knots, in non-decreasing order.
    values: tuple[tuple[float, ...], ...]

    method: ClassVar[Literal["isotonic"]] = "isotonic"

    def __post_init__(self) -> None:
        if len(self.knots) != len(self.values) or len(self.knots) < 2:
            raise InvalidInput(
                f"isotonic: expected knots and values for each of two or more classes, got {len(self.knots)} lists of "
                f"knots and {len(self.values)} of values"
            )
        for knots, values in zip(self.knots, self.values, strict=True):
            rising = all(low < high for low, high in itertools.pairwise(knots))
            falls = any(low > high for low, high in itertools.pairwise(values))
            if not knots or len(knots) != len(values) or not rising or falls:
                raise InvalidInput("isotonic: expected increasing knots with as many values, which never decrease")
            if not (all(map(math.isfinite, knots)) and all(0 < each < 1 for each in values)):
                raise InvalidInput("isotonic: expected finite knots, and values between 0 and 1")

    def apply(self, logits_NC: ArrayLike) -> FloatArray:
        """Return calibrated class probabilities (N, C).

        Raises:
            InvalidInput: The logits are not finite, or have another number of classes.
        """
        logits = logit_array(logits_NC, least_columns=2)
        if logits.shape[1] != len(self.knots):
            raise InvalidInput(
                f"logits: expected {len(self.knots)} classes, as in the calibration, got {logits.shape[1]}"
            )
        mapped = [
            np.interp(probabilities_N, knots, values)
            for probabilities_N, knots, values in zip(softmax(logits).T, self.knots, self.values, strict=True)
        ]
        values_NC = np.stack(mapped, axis=1)
        probabilities_NC: FloatArray = values_NC / values_NC.sum(axis=1, keepdims=True)
        return probabilities_NC


Calibration = Temperature | Isotonic

METHODS: Mapping[CalibrationMethod, type[Calibration]] = {"temperature": Temperature, "isotonic": Isotonic}


@dataclass(frozen=True, slots=True)
class MethodScore:
    """Scores of a calibration method, by cross-validation on held-out rows."""

    method: CalibrationMethod
    nll: float  # mean negative log likelihood, in nats
    accuracy: float  # share of rows whose most probable class is the true one


@dataclass(frozen=True, slots=True)
class ChosenCalibration:
    """The chosen calibration, and the scores of all methods tried."""

    calibration: Calibration  # fitted on all held-out rows
    method: CalibrationMethod
    scores: tuple[MethodScore, ...]  # scores of the methods tried; empty if only the temperature was
    reason: str = ""  # sentence that says why only the temperature was tried; empty if both methods were


@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """Rows that a model was not trained on, for fitting and choosing calibrations."""

    logits_NC: FloatArray  # their logits
    labels_N: IntArray  # their true class indices

    @classmethod
    def from_arrays(cls, logits_NC: ArrayLike, labels_N: ArrayLike) -> "HeldOutRows":
        """Create from arrays, after checking them."""
        logits = logit_array(logits_NC, least_columns=2)
        return cls(logits, class_indices(labels_N, "labels", classes=logits.shape[1], rows=len(logits)))

    @cached_property
    def losses(self) -> TabulatedLosses:
        """A table for computing the loss of each row at any temperature."""
        return TabulatedLosses.of(self.logits_NC, self.labels_N)

    def fit(self, method: CalibrationMethod, rows_N: BoolArray | None = None) -> Calibration:
        """Fit one method to the rows selected by a mask; default: all rows."""
        if method not in METHODS:
            raise not_one_of("calibration", method, METHODS)
        if method == "temperature" and self.logits_NC.shape[1] > MANY_CLASSES:
            return fit_tabulated(self.losses if rows_N is None else self.losses.take(rows_N))
        rows = slice(None) if rows_N is None else rows_N
        fit = fit_adaptive_temperature if method == "temperature" else fit_isotonic
        return fit(self.logits_NC[rows], self.labels_N[rows])

    def choose(self, seed: int = 0) -> ChosenCalibration:
        """Choose a method by cross-validation, and fit it to all rows.

        The temperature is chosen unless isotonic regression lowers the cross-validated NLL by more than two standard
        errors of the difference and makes no more mistakes. Isotonic regression is not tried if a class has fewer than
        ten rows, since it would learn that a class without rows never occurs, or if there are more than 200 classes,
        since its cost grows with rows and classes.
        """
        logits, labels = self.logits_NC, self.labels_N
        if reason := _no_choice(labels, logits.shape[1]):
            return ChosenCalibration(self.fit("temperature"), "temperature", (), reason)
        generator = np.random.default_rng(seed)
        drawn_N = generator.permutation(len(logits))[:MAX_ROWS]
        drawn = HeldOutRows(logits[drawn_N], labels[drawn_N])
        fold_N = _folds(drawn.labels_N, generator)
        nll: dict[CalibrationMethod, FloatArray] = {}
        right: dict[CalibrationMethod, int] = {}
        for method in METHODS:
            probabilities_NC = np.empty_like(drawn.logits_NC)
            for numbers_B, probabilities_BC in drawn.blocks(method, fold_N):
                probabilities_NC[numbers_B] = probabilities_BC
            nll[method] = nll_per_row(drawn.labels_N, probabilities_NC)
            right[method] = int((probabilities_NC.argmax(1) == drawn.labels_N).sum())
        gain_N = nll["temperature"] - nll["isotonic"]
        noise = CLEARLY * float(gain_N.std(ddof=1)) / math.sqrt(len(gain_N))
        better = float(gain_N.mean()) > noise and right["isotonic"] >= right["temperature"]
        chosen: CalibrationMethod = "isotonic" if better else "temperature"
        scores = tuple(MethodScore(name, float(nll[name].mean()), right[name] / len(drawn_N)) for name in METHODS)
        return ChosenCalibration(self.fit(chosen), chosen, scores)

    def held_out(self, method: CalibrationMethod, seed: int) -> Iterator[tuple[NDArray[np.int64], FloatArray]]:
        """Yield row indices (B) and their probabilities (B, C), calibrated by the method fitted on the other folds.

        No row calibrates itself, so results fitted on these are not optimistic, except with fewer than `FOLDS` rows.
        """
        few = len(self.labels_N) < FOLDS
        fold_N = np.full(len(self.labels_N), -1) if few else _folds(self.labels_N, np.random.default_rng(seed))
        return self.blocks(method, fold_N)

    def blocks(
        self, method: CalibrationMethod, fold_N: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], FloatArray]]:
        """Yield row indices (B) and their probabilities (B, C), calibrated by the method fitted on the other folds.

        Rows of fold -1 are calibrated by the method fitted on all rows.
        """
        for fold in np.unique(fold_N).tolist():
            fitted = self.fit(method, None if fold < 0 else fold_N != fold)
            numbers_M = np.flatnonzero(fold_N == fold)
            for rows in row_blocks(len(numbers_M), self.logits_NC.shape[1]):
                yield numbers_M[rows], fitted.apply(self.logits_NC[numbers_M[rows]])


def _no_choice(labels_N: IntArray, classes: int) -> str:
    """Return the reason to fit only the temperature; empty if both methods are tried."""
    only = "only the temperature was fitted, not isotonic regression"
    if classes > MANY_CLASSES:
        return f"{classes:,} classes are more than {MANY_CLASSES}: {only}, whose cost grows with rows and classes."
    if (rows := int(np.bincount(labels_N, minlength=classes).min())) < MIN_CLASS_ROWS:
        return f"a class has {rows} held-out rows, fewer than {MIN_CLASS_ROWS}: {only}, which needs rows of each class."
    return ""


def _folds(labels_N: IntArray, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw a fold for each row, stratified by class."""
    shuffled_N = generator.permutation(len(labels_N))
    order_N = shuffled_N[np.argsort(labels_N[shuffled_N], kind="stable")]
    fold_N = np.empty(len(labels_N), dtype=np.int64)
    fold_N[order_N] = np.arange(len(labels_N)) % FOLDS
    return fold_N


def fit_isotonic(logits_NC: ArrayLike, labels_N: ArrayLike) -> Isotonic:
    """Fit one isotonic regression for each class against the rest, on held-out rows."""
    logits = logit_array(logits_NC, least_columns=2)
    labels = class_indices(labels_N, "labels", classes=logits.shape[1], rows=len(logits))
    least = 1 / (len(labels) + 2)
    knots: list[tuple[float, ...]] = []
    values: list[tuple[float, ...]] = []
    for number, probabilities_N in enumerate(softmax(logits).T):
        knots_K, values_K = isotonic_regression(probabilities_N, (labels == number).astype(np.float64))
        knots.append(tuple(knots_K.tolist()))
        values.append(tuple(np.clip(values_K, least, 1 - least).tolist()))
    return Isotonic(tuple(knots), tuple(values))


def isotonic_regression(x_N: FloatArray, y_N: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Fit an increasing step function by least squares; return knots (K,) and values (K,) at the ends of its steps.

    SciPy's pool-adjacent-violators algorithm (Ayer et al. 1955) is used; rows of equal x count as one point.
    """
    from scipy.optimize import isotonic_regression as pooled

    points_G, group_N, weights_G = np.unique(x_N, return_inverse=True, return_counts=True)
    values_G = pooled(np.bincount(group_N, weights=y_N) / weights_G, weights=weights_G).x
    # Both ends of each step are knots, so that interpolation is constant within a step; a single point has one knot.
    rises = np.diff(values_G) > 0
    kept_G = np.concatenate([[True], rises]) | np.concatenate([rises, [True]])
    return points_G[kept_G], values_G[kept_G]


def stored_form(calibration: Calibration) -> dict[str, object]:
    """Return a calibration as JSON values, which `calibration_from` reads."""
    return {"method": calibration.method, **asdict(calibration)}


def calibration_from(stored: object) -> Calibration:
    """Read a calibration from JSON values."""
    values = dict(stored) if isinstance(stored, Mapping) else {}
    method = values.pop("method", None)
    kind = next((kind for name, kind in METHODS.items() if name == method), None)
    if kind is None:
        raise InvalidInput(f"calibration: expected an object whose method is {' or '.join(METHODS)}, got {stored!r}")
    names = [each.name for each in fields(kind)]
    try:
        calibration = TypeAdapter[Calibration](kind).validate_json(json.dumps(values), strict=True)
    except (TypeError, ValidationError) as error:
        raise InvalidInput(f"calibration: expected {', '.join(names)} for {method}, got {values!r:.200}") from error
    if not values.keys() <= set(names):
        raise InvalidInput(f"calibration: expected only {', '.join(names)} for {method}, got {', '.join(values)}")
    return calibration


# --- coverage ---

MOST_KEPT = 10_000
"""Maximum number of held-out scores to keep. From more, a random subset is kept, which gives the same guarantee."""


@dataclass(frozen=True, slots=True, eq=False)
class ConformalSets:
    """Prediction sets of labels with a coverage guarantee, from the nonconformity of held-out rows.

    Nonconformity is ``1 - p``, which gives the smallest sets on average (LAC). Source: Sadinle, Lei and Wasserman
    (2019), "Least ambiguous set-valued classifiers with bounded error levels", arXiv:1609.00451.
    """

    held_out_M: FloatArray  # nonconformity of each held-out row's true label, in rising order

    @classmethod
    def fit(cls, probabilities_MC: ArrayLike, labels_M: ArrayLike) -> "ConformalSets":
        """Fit to held-out rows whose probabilities are calibrated like those of later rows."""
        return cls.fit_blocks([(np.arange(len(np.asarray(labels_M))), probabilities_MC)], labels_M)

    @classmethod
    def fit_blocks(cls, blocks: Iterable[tuple[IntArray, ArrayLike]], labels_M: ArrayLike) -> "ConformalSets":
        """Fit to blocks of held-out rows, given as row indices (B) and probabilities (B, C)."""
        given = np.asarray(labels_M)
        scores_M = np.full(len(given), np.nan)
        for numbers_B, probabilities_BC in blocks:
            stated_BC = class_probabilities(probabilities_BC)
            labels_B = class_indices(given[numbers_B], "labels", classes=stated_BC.shape[1], rows=len(stated_BC))
            scores_M[numbers_B] = 1.0 - stated_BC[np.arange(len(labels_B)), labels_B]
        return cls(_kept(scores_M))

    def at(self, coverage: float) -> "LabelSets":
        """Return the rule that builds prediction sets of one coverage."""
        return LabelSets(held_out_quantile(self.held_out_M, coverage), coverage)


@dataclass(frozen=True, slots=True)
class LabelSets:
    """The rule that builds prediction sets of one coverage, created by `ConformalSets.at`."""

    threshold: float  # labels up to this nonconformity are in the set
    coverage: float  # target share of rows whose set contains the true label

    def includes(self, probabilities_NC: ArrayLike, *, never_empty: bool = True) -> BoolArray:
        """Return a mask (N, C) of the labels in the set of each row, given calibrated probabilities.

        ``never_empty`` puts the most probable label into every set. If the accuracy of the model is above ``coverage``,
        the actual coverage is then above it too; without ``never_empty``, some sets are empty, and the actual coverage
        is close to ``coverage``.
        """
        probabilities = class_probabilities(probabilities_NC)
        included_NC: BoolArray = 1.0 - probabilities <= self.threshold
        if never_empty:
            included_NC[np.arange(len(probabilities)), probabilities.argmax(axis=1)] = True
        return included_NC


@dataclass(frozen=True, slots=True, eq=False)
class ConformalInterval:
    """Prediction intervals of constant width, from the errors of held-out rows."""

    held_out_M: FloatArray  # absolute errors of held-out rows, in rising order

    @classmethod
    def fit(cls, predicted_M: ArrayLike, truth_M: ArrayLike) -> "ConformalInterval":
        """Fit to held-out rows."""
        truth, predicted = paired_vectors(truth_M, predicted_M)
        return cls(_kept(np.abs(truth - predicted)))

    def at(self, coverage: float) -> float:
        """Return the half-width of the interval, in units of the prediction."""
        return held_out_quantile(self.held_out_M, coverage)


def held_out_quantile(scores_M: FloatArray, coverage: float) -> float:
    """Return the ceil((M + 1) coverage)-th smallest score, which a new row does not exceed with this probability."""
    if not 0 < coverage < 1:
        raise InvalidInput(f"coverage: expected a share between 0 and 1, such as 0.9, got {coverage}")
    # Without the 1e-9, rounding errors could raise the rank by one: 100 * 0.55 is slightly above 55.
    rank = math.ceil((len(scores_M) + 1) * coverage - 1e-9)
    if rank > len(scores_M):
        needed, rows = math.ceil(coverage / (1 - coverage) - 1e-9), len(scores_M)
        parts = 10 ** max(3, len(str(rows)))
        highest = (rows * parts // (rows + 1)) / parts  # rounded down to three digits or more
        raise InvalidInput(
            f"coverage: {coverage} needs at least {needed} held-out rows, got {rows}; choose at most "
            f"{highest}, or hold out more rows"
        )
    return float(np.sort(scores_M)[rank - 1])


def _kept(scores_M: FloatArray) -> FloatArray:
    scores = real_array(scores_M, "held-out scores", dimensions=1)
    if len(scores) > MOST_KEPT:
        scores = np.random.default_rng(0).choice(scores, MOST_KEPT, replace=False)
    return np.sort(scores)
