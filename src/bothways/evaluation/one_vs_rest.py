"""Calibration of each class against the rest, by Platt's sigmoid or by isotonic regression.

Each class gets a map of its own from what the model says of it to how often it is true, and the rows are then divided
by their sums (Zadrozny and Elkan 2002, "Transforming classifier scores into accurate multiclass probability
estimates"). Of two classes, one map is the mirror of the other. Both may change which class comes first.

Shape letters: N rows, C classes, K knots.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bothways.errors import InvalidInput
from bothways.evaluation.calibration import sigmoid, softmax
from bothways.evaluation.inputs import BoolArray, FloatArray, class_indices, logit_array
from bothways.evaluation.vector_scaling import logits_of_classes

_CLOSE = 1e-6
# Log-odds beyond this are rounding: 1 - p is then below the spacing of numbers near 1.
_MOST_LOG_ODDS = 36.0
# A probability is kept above exp(-this), so that no row sums to 0.
_MOST_EXPONENT = 300.0


@dataclass(frozen=True, slots=True)
class Platt:
    """Probabilities of each class by ``sigmoid(factor * log odds + shift)``, rows then divided by their sums.

    The log odds are those of the class under softmax; of two classes, the difference of their logits.

    Attributes:
        factor: One for each class.
        shift: One for each class, in nats.

    Raises:
        InvalidInput: Not as many factors as shifts, fewer than two, or not finite.
    """

    factor: tuple[float, ...]
    shift: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.factor) != len(self.shift) or len(self.factor) < 2:
            raise InvalidInput(
                f"Platt: expected a factor and a shift for each of two or more classes, got {len(self.factor)} factors "
                f"and {len(self.shift)} shifts"
            )
        if not all(math.isfinite(each) for each in (*self.factor, *self.shift)):
            raise InvalidInput("Platt: expected finite factors and shifts")

    def apply(self, logits_NC: ArrayLike) -> FloatArray:
        """Calibrated class probabilities (N, C).

        Raises:
            InvalidInput: Logits of another number of classes, or not finite.
        """
        odds_NC = log_odds(logits_of_classes(logits_NC, len(self.factor)))
        exponents_NC = odds_NC * np.array(self.factor) + np.array(self.shift)
        return _shares(sigmoid(np.clip(exponents_NC, -_MOST_EXPONENT, _MOST_EXPONENT)))


@dataclass(frozen=True, slots=True)
class Isotonic:
    """Probabilities of each class by a rising function of its softmax probability, rows then divided by their sums.

    Between the knots the function is linear, beyond them constant. Its values keep away from 0 and 1 by
    1 / (N + 2) for N rows that it was fitted on: that many rows cannot show that something never happens.

    Attributes:
        knots: For each class, softmax probabilities in rising order.
        values: For each class, the probabilities there, which do not fall.

    Raises:
        InvalidInput: Fewer than two classes, or knots and values that are not such functions.
    """

    knots: tuple[tuple[float, ...], ...]
    values: tuple[tuple[float, ...], ...]

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
                raise InvalidInput("isotonic: expected rising knots, and for each a value that does not fall")
            if not (all(map(math.isfinite, knots)) and all(0 < each < 1 for each in values)):
                raise InvalidInput("isotonic: expected finite knots, and values between 0 and 1")

    def apply(self, logits_NC: ArrayLike) -> FloatArray:
        """Calibrated class probabilities (N, C).

        Raises:
            InvalidInput: Logits of another number of classes, or not finite.
        """
        probabilities_NC = softmax(logits_of_classes(logits_NC, len(self.knots)))
        mapped = [
            np.interp(probabilities_N, knots, values)
            for probabilities_N, knots, values in zip(probabilities_NC.T, self.knots, self.values, strict=True)
        ]
        return _shares(np.stack(mapped, axis=1))


def log_odds(logits_NC: FloatArray) -> FloatArray:
    """Log of ``p / (1 - p)`` for each class under softmax (N, C), within 36 of 0, where it is exact to rounding."""
    top_N1 = logits_NC.max(axis=1, keepdims=True)
    shifted_NC = logits_NC - top_N1
    exponentials_NC = np.exp(shifted_NC)
    # The sum over the others is taken without the class itself where that one is the largest: no cancellation.
    best_N = shifted_NC.argmax(axis=1)
    rows_N = np.arange(len(logits_NC))
    without_best_NC = exponentials_NC.copy()
    without_best_NC[rows_N, best_N] = 0.0
    others_NC = exponentials_NC.sum(axis=1, keepdims=True) - exponentials_NC
    others_NC[rows_N, best_N] = without_best_NC.sum(axis=1)
    smallest = np.exp(-2 * _MOST_LOG_ODDS)
    odds_NC: FloatArray = shifted_NC - np.log(np.maximum(others_NC, smallest))
    return np.clip(odds_NC, -_MOST_LOG_ODDS, _MOST_LOG_ODDS)


def fit_platt(logits_NC: ArrayLike, labels_N: ArrayLike) -> Platt:
    """Platt's sigmoid for each class against the rest, on targets that are held away from 0 and 1.

    A class of n+ rows aims at (n+ + 1) / (n+ + 2), the rest of n- rows at 1 / (n- + 2). Source: Platt (1999),
    "Probabilistic outputs for support vector machines".

    Args:
        logits_NC: logits of rows that the model was not trained on.
        labels_N: their true class numbers.

    Raises:
        InvalidInput: no rows, fewer than two classes, logits that are not finite, or labels that do not fit.
    """
    logits = logit_array(logits_NC, least_columns=2)
    labels = class_indices(labels_N, "labels", classes=logits.shape[1], rows=len(logits))
    odds_NC = log_odds(logits)
    fitted = [fit_sigmoid(odds_NC[:, each], labels == each) for each in range(logits.shape[1])]
    return Platt(tuple(factor for factor, _ in fitted), tuple(shift for _, shift in fitted))


def fit_isotonic(logits_NC: ArrayLike, labels_N: ArrayLike) -> Isotonic:
    """Isotonic regression of each class against the rest on its softmax probability.

    Args:
        logits_NC: logits of rows that the model was not trained on.
        labels_N: their true class numbers.

    Raises:
        InvalidInput: no rows, fewer than two classes, logits that are not finite, or labels that do not fit.
    """
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


def fit_sigmoid(scores_N: FloatArray, positive_N: BoolArray) -> tuple[float, float]:
    """Fit Platt's sigmoid for one class and return its factor and shift."""
    from scipy.optimize import minimize

    positives, negatives = int(positive_N.sum()), int((~positive_N).sum())
    target_N = np.where(positive_N, (positives + 1) / (positives + 2), 1 / (negatives + 2))

    def loss(point_2: FloatArray) -> tuple[float, FloatArray]:
        exponents_N = point_2[0] * scores_N + point_2[1]
        gaps_N = sigmoid(exponents_N) - target_N
        nll = (np.logaddexp(0.0, exponents_N) - target_N * exponents_N).sum()
        return float(nll), np.array([gaps_N @ scores_N, gaps_N.sum()])

    start_2 = [0.0, math.log((positives + 1) / (negatives + 1))]
    factor, shift = minimize(loss, start_2, jac=True, method="BFGS", options={"gtol": _CLOSE}).x
    return float(factor), float(shift)


def isotonic_regression(x_N: FloatArray, y_N: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Fit the rising step function of least squared error; return the ends of its steps: knots (K,) and values (K,).

    Pool adjacent violators (Ayer et al. 1955) by SciPy; rows of equal x are one point of their mean.
    """
    from scipy.optimize import isotonic_regression as pooled

    points_G, group_N, weights_G = np.unique(x_N, return_inverse=True, return_counts=True)
    values_G = pooled(np.bincount(group_N, weights=y_N) / weights_G, weights=weights_G).x
    # Both ends of each step, so that straight lines run only between the steps; a step of one point has one knot.
    rises = np.diff(values_G) > 0
    kept_G = np.concatenate([[True], rises]) | np.concatenate([rises, [True]])
    return points_G[kept_G], values_G[kept_G]


def _shares(values_NC: FloatArray) -> FloatArray:
    shares_NC: FloatArray = values_NC / values_NC.sum(axis=1, keepdims=True)
    return shares_NC
