"""Temperature scaling: one or two parameters that make a model's probabilities match its accuracy.

Logits are divided by a temperature T before softmax or sigmoid; T minimises the negative log likelihood (NLL) of
held-out rows. The order of the classes, and so the prediction, does not change. Source: Guo et al. (2017), "On
calibration of modern neural networks", arXiv:1706.04599, section 4.2. A few rows without an error would lead to a
temperature of 0, and thus to certainty, so a prior keeps T near 1 until a few dozen rows outweigh it.

One temperature for all rows leaves fine-tuned classifiers overconfident on confident rows and underconfident on the
others, or the reverse. So the temperature of a row may be ``value * h ** slope``, where h is its normalised entropy.
Slopes below 0 are excluded: they could reverse the order of two rows by confidence. Making the temperature a function
of the entropy follows Balanya et al. (2022), "Adaptive temperature scaling for robust calibration of deep neural
networks", arXiv:2208.00461; the power law keeps it positive without a second function.

Shape letters: N rows, C classes or labels, B rows of a block, K knots, D coefficients.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from bothways.errors import InvalidInput
from bothways.evaluation.inputs import (
    BoolArray,
    FloatArray,
    IntArray,
    class_indices,
    label_matrix,
    logit_array,
    row_blocks,
)
from bothways.progress import progress

TEMPERATURE_BOUNDS = (0.05, 20.0)
"""Search range: the best T would be 0 for many rows without an error, and infinite for uninformative logits."""

PRIOR = 2.0
"""Weight of the prior on T = 1, in nats; docs/LOG.md lists other weights that were tried."""

MAX_SLOPE = 0.5
"""Maximum slope; without this bound, the fit on a few rows that are nearly all right would give a larger slope."""

MANY_CLASSES = 200
"""Number of classes above which losses are tabulated, since that then takes less time and memory than the logits."""

_MIN_ENTROPY = 0.01  # keeps the temperature of very confident rows away from 0
_TOLERANCE = 1e-13
_SLOPE_TOLERANCE = 1e-6
_TABULATED_TOLERANCE = 1e-4


def softmax(logits: ArrayLike) -> FloatArray:
    """Return probabilities over the last axis, without overflow: the greatest logit is subtracted first."""
    values = np.asarray(logits, dtype=np.float64)
    exponentials = np.exp(values - values.max(axis=-1, keepdims=True))
    probabilities: FloatArray = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities


def sigmoid(logits: ArrayLike) -> FloatArray:
    """Return ``1 / (1 + exp(-logit))`` elementwise, without overflow: only exp(-|logit|) is computed."""
    values = np.asarray(logits, dtype=np.float64)
    small = np.exp(-np.abs(values))
    probabilities: FloatArray = np.where(values >= 0, 1.0, small) / (1 + small)
    return probabilities


def normalised_entropy(logits_NC: FloatArray) -> FloatArray:
    """Return the softmax entropy of each row (N, 1), divided by log(C) and clipped to at least 0.01."""
    entropy_N1 = np.empty((len(logits_NC), 1))
    for rows in row_blocks(*logits_NC.shape):
        probabilities_BC = softmax(logits_NC[rows])
        logarithms_BC = np.log(np.maximum(probabilities_BC, np.finfo(np.float64).tiny))
        entropy_N1[rows] = -(probabilities_BC * logarithms_BC).sum(axis=1, keepdims=True)
    shares_N1: FloatArray = np.clip(entropy_N1 / math.log(logits_NC.shape[1]), _MIN_ENTROPY, 1.0)
    return shares_N1


@dataclass(frozen=True)
class Temperature:
    """A temperature: above 1 it lowers confidence, below 1 it raises it, at 1 it changes nothing.

    With a slope, the temperature of a row is ``value * h ** slope``, where h is the normalised entropy of its
    uncalibrated probabilities, so it is lower for confident rows. It is at least ``min(1, value)``: no row becomes more
    confident than it is without calibration or with the value alone, whichever is more confident.
    """

    value: float
    slope: float = 0.0

    method: ClassVar[Literal["temperature"]] = "temperature"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value > 0):
            raise InvalidInput(f"temperature: expected a finite number above 0, got {self.value}")
        if not (math.isfinite(self.slope) and self.slope >= 0):
            raise InvalidInput(f"slope of the temperature: expected a finite number of at least 0, got {self.slope}")

    def for_rows(self, logits_NC: FloatArray) -> FloatArray:
        """Return the temperature of each row, (N, 1)."""
        if not self.slope:
            return np.full((len(logits_NC), 1), self.value)
        return self.for_entropies(normalised_entropy(logits_NC))

    def for_entropies(self, shares: FloatArray) -> FloatArray:
        """Return the temperature of each row, given its normalised entropy."""
        rows: FloatArray = self.value * shares**self.slope
        return np.maximum(rows, min(1.0, self.value))

    def apply(self, logits_NC: ArrayLike) -> FloatArray:
        """Return calibrated class probabilities (N, C): ``softmax(logits / T)``."""
        logits = logit_array(logits_NC, least_columns=2)
        return softmax(logits / self.for_rows(logits))


def apply_temperature(logits_NC: ArrayLike, temperature: Temperature | float) -> FloatArray:
    """Return calibrated class probabilities (N, C), see `Temperature.apply`."""
    return _temperature(temperature).apply(logits_NC)


def apply_sigmoid_temperature(logits_NC: ArrayLike, temperature: Temperature | float) -> FloatArray:
    """Return calibrated label probabilities (N, C): ``sigmoid(logits / T)``; the slope is ignored."""
    return sigmoid(logit_array(logits_NC, least_columns=1) / _temperature(temperature).value)


def _temperature(given: Temperature | float) -> Temperature:
    return given if isinstance(given, Temperature) else Temperature(given)


def fit_temperature(logits_NC: ArrayLike, labels_N: ArrayLike) -> float:
    """Return the temperature that minimises softmax NLL plus prior; its NLL is never above that of T = 1."""
    logits = logit_array(logits_NC, least_columns=2)
    labels_N = class_indices(labels_N, "labels", classes=logits.shape[1], rows=len(logits))
    # Logits relative to the true class: the NLL is their logsumexp, and its derivative is their softmax-weighted mean.
    margins_NC = logits - logits[np.arange(len(logits)), labels_N][:, None]

    def nll(inverse: float) -> float:
        scaled_NC = inverse * margins_NC
        top_N = scaled_NC.max(axis=1)
        return float((top_N + np.log(np.exp(scaled_NC - top_N[:, None]).sum(axis=1))).mean())

    def slope(inverse: float) -> float:
        return float((softmax(inverse * margins_NC) * margins_NC).sum(axis=1).mean())

    return _best_temperature(nll, slope, len(logits))


def fit_sigmoid_temperature(logits_NC: ArrayLike, labels_NC: ArrayLike) -> float:
    """Return the temperature that minimises binary cross-entropy plus prior over all (row, label) decisions."""
    logits = logit_array(logits_NC, least_columns=1)
    signs_NC = np.where(label_matrix(labels_NC, "labels", shape=logits.shape), -1.0, 1.0)
    margins_NC = signs_NC * logits

    def nll(inverse: float) -> float:
        return float(np.logaddexp(0.0, inverse * margins_NC).mean())

    def slope(inverse: float) -> float:
        return float((sigmoid(inverse * margins_NC) * margins_NC).mean())

    return _best_temperature(nll, slope, logits.size)


def fit_adaptive_temperature(logits_NC: ArrayLike, labels_N: ArrayLike) -> Temperature:
    """Fit a temperature to softmax NLL, with a slope if that lowers the summed NLL by over 1 (Akaike's criterion)."""
    logits = logit_array(logits_NC, least_columns=2)
    labels = class_indices(labels_N, "labels", classes=logits.shape[1], rows=len(logits))
    if logits.shape[1] > MANY_CLASSES:
        return fit_tabulated(TabulatedLosses.of(logits, labels))
    shares_N1 = normalised_entropy(logits)

    def fitted(slope: float) -> tuple[float, float]:
        value = fit_temperature(logits / shares_N1**slope, labels)
        chosen_N = softmax(logits / Temperature(value, slope).for_rows(logits))[np.arange(len(logits)), labels]
        return value, float(-np.log(np.maximum(chosen_N, np.finfo(np.float64).tiny)).sum())

    return _with_best_slope(fitted, _SLOPE_TOLERANCE)


def fit_tabulated(losses: "TabulatedLosses") -> Temperature:
    """Fit the temperature and slope from tabulated losses."""
    shares_N = losses.shares_N

    def fitted(slope: float) -> tuple[float, float]:
        factor_N = shares_N**-slope
        value = _best_temperature(
            lambda inverse: float(losses.nll(inverse * factor_N).mean()),
            lambda inverse: float((losses.slope(inverse * factor_N) * factor_N).mean()),
            len(shares_N),
        )
        return value, float(losses.nll(1 / Temperature(value, slope).for_entropies(shares_N)).sum())

    return _with_best_slope(fitted, _TABULATED_TOLERANCE)


def _with_best_slope(fitted: Callable[[float], tuple[float, float]], tolerance: float) -> Temperature:
    """Find the slope with the lowest NLL; ``fitted(slope)`` returns the best temperature value and the summed NLL."""
    from scipy.optimize import minimize_scalar

    bounds = (0.0, MAX_SLOPE)
    minimum = minimize_scalar(
        lambda slope: fitted(slope)[1], bounds, bounds, method="bounded", options={"xatol": tolerance}
    )
    slope = float(minimum.x)
    (plain, plain_nll), (value, nll) = fitted(0.0), fitted(slope)
    return Temperature(value, slope) if plain_nll - nll > 1.0 else Temperature(plain)


def prior(inverse: FloatArray) -> FloatArray:
    """Return the penalty ``2 * (b - log b - 1)`` on the summed NLL for ``b = 1 / T``, which is 0 at T = 1.

    It is the negative logarithm of a gamma density with mode 1, up to a constant.
    """
    total: FloatArray = PRIOR * (inverse - np.log(inverse) - 1)
    return total


def _best_temperature(nll: Callable[[float], float], slope: Callable[[float], float], decisions: int) -> float:
    """Return the T that minimises prior plus ``nll``, a mean over ``decisions`` with derivative ``slope`` in 1 / T."""
    from scipy.optimize import brentq

    coldest, hottest = TEMPERATURE_BOUNDS
    weight = PRIOR / decisions

    def with_prior(log_inverse: float) -> float:
        inverse = math.exp(log_inverse)
        return slope(inverse) * inverse + weight * (inverse - 1)

    low, high = -math.log(hottest), -math.log(coldest)
    if with_prior(low) >= 0:
        temperature = hottest
    elif with_prior(high) <= 0:
        temperature = coldest
    else:
        temperature = math.exp(-brentq(with_prior, low, high, xtol=_TOLERANCE))
    # By rounding, the NLL found could be slightly above that of T = 1; if the NLL is flat, T stays 1.
    return temperature if nll(1 / temperature) < nll(1.0) else 1.0


# Bounds of a row's 1 / T: the common 1 / T lies within `TEMPERATURE_BOUNDS`, and a slope raises it up to tenfold.
_LEAST, _MOST = 0.05, 200.0
_KNOTS = 49  # four intervals an octave
_STEP = math.log(_MOST / _LEAST) / (_KNOTS - 1)
_SLOW = 20_000_000  # number of logits above which a fit takes seconds


@dataclass(frozen=True, slots=True, eq=False)
class TabulatedLosses:
    """The NLL of each row under softmax as a function of b = 1 / T, tabulated once.

    Fitting a temperature and its slope in cross-validation evaluates the NLL of all rows about two thousand times. With
    many classes, each evaluation costs rows x classes exponentials (10,000 rows of 1,000 classes: twelve minutes in
    all), but the NLL of a row is a smooth function of b alone. It is computed exactly at 49 values of b, with its first
    two derivatives in log b; between them, polynomials of degree five interpolate it with an error below 3e-6.
    """

    gap_N: FloatArray  # highest logit minus that of the true class
    shares_N: FloatArray  # normalised entropy of each row
    # Polynomials in log b for ``log(sum(exp(b * (logit - highest))))``, one per interval, the highest power first.
    pieces_DKN: FloatArray

    @classmethod
    def of(cls, logits_NC: FloatArray, labels_N: IntArray) -> "TabulatedLosses":
        """Tabulate the losses, in blocks of rows that fit into a processor's cache."""
        from scipy.interpolate import BPoly, PPoly

        logs_K = math.log(_LEAST) + _STEP * np.arange(_KNOTS)
        values_K3N = np.empty((_KNOTS, 3, len(logits_NC)))
        gap_N = np.empty(len(logits_NC))
        show = None if logits_NC.size > _SLOW else False
        with progress(f"calibrating {logits_NC.shape[1]:,} classes", len(logits_NC), show=show) as bar:
            for rows in row_blocks(*logits_NC.shape):
                block_BC = logits_NC[rows] - logits_NC[rows].max(axis=1, keepdims=True)
                gap_N[rows] = -block_BC[np.arange(len(block_BC)), labels_N[rows]]
                for knot, inverse in enumerate(np.exp(logs_K)):
                    scaled_BC = inverse * block_BC
                    weights_BC = np.exp(scaled_BC)
                    total_B = weights_BC.sum(axis=1)
                    mean_B = np.einsum("bc,bc->b", weights_BC, scaled_BC) / total_B
                    square_B = np.einsum("bc,bc,bc->b", weights_BC, scaled_BC, scaled_BC) / total_B
                    values_K3N[knot, :, rows] = np.log(total_B), mean_B, mean_B + square_B - mean_B**2
                bar.advance(len(block_BC))
        pieces = PPoly.from_bernstein_basis(BPoly.from_derivatives(logs_K, values_K3N))
        return cls(gap_N, normalised_entropy(logits_NC)[:, 0], pieces.c)

    def take(self, rows_N: BoolArray) -> "TabulatedLosses":
        """Select rows."""
        return TabulatedLosses(self.gap_N[rows_N], self.shares_N[rows_N], self.pieces_DKN[:, :, rows_N])

    def nll(self, inverse_N: FloatArray) -> FloatArray:
        """Return the NLL of each row (N,) at its 1 / T."""
        place_N, piece_DN = self._pieces(inverse_N)
        return np.polyval(piece_DN, place_N) + inverse_N * self.gap_N

    def slope(self, inverse_N: FloatArray) -> FloatArray:
        """Return the derivative of each row's NLL with respect to its 1 / T (N,)."""
        place_N, piece_DN = self._pieces(inverse_N)
        return np.polyval(piece_DN[:-1] * [[5], [4], [3], [2], [1]], place_N) / inverse_N + self.gap_N

    def _pieces(self, inverse_N: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the distance of each row's log b from the knot below it, and the polynomial of that interval."""
        above_N = np.log(inverse_N / _LEAST)
        knot_N = np.clip((above_N / _STEP).astype(np.int64), 0, _KNOTS - 2)
        return above_N - _STEP * knot_N, self.pieces_DKN[:, knot_N, np.arange(len(self.gap_N))]
