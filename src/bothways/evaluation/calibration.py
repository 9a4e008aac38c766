"""Temperature scaling: one number, or two, that make a model's probabilities match its hit rate.

Logits are divided by a temperature T before softmax or sigmoid; T is fitted on held-out rows by least negative
log likelihood (NLL). The order of the classes, and so the prediction, stays. Source: Guo et al. (2017), "On
calibration of modern neural networks", arXiv:1706.04599, section 4.2. A temperature may depend on how undecided the
model is (`bothways.evaluation.adaptive`).

Few rows without an error would ask for a temperature of 0, and thus for certainty. So the fit begins with a belief in
the model as it is (`prior`), which some tens of rows outweigh.

Shape letters: N rows, C classes or labels, B rows of a block.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bothways.errors import InvalidInput
from bothways.evaluation.inputs import FloatArray, class_indices, label_matrix, logit_array, row_blocks

TEMPERATURE_BOUNDS = (0.05, 20.0)
"""The search keeps to these: many rows without an error would ask for T = 0, useless logits for T = infinity."""

PRIOR = 2.0
"""Weight of the belief in T = 1, in nats; docs/LOG.md says what others were tried."""

_CLOSE = 1e-13

# Rows that are less undecided than this count as this: their temperature must not come near 0.
_LEAST_ENTROPY = 0.01


@dataclass(frozen=True)
class Temperature:
    """A temperature: above 1 it lowers confidence, below 1 it raises it, at 1 it changes nothing.

    With a slope, that of a row is ``value * h ** slope``, with h the entropy of its uncalibrated probabilities as a
    share of the most there can be: rows that the model is sure of are heated less than those that it is not. It stays
    above the lesser of 1 and the value, so that no row becomes surer than the model is or the value alone makes it.

    Raises:
        InvalidInput: the value is not a finite number above 0, or the slope not a finite number from 0 on.
    """

    value: float
    slope: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value > 0):
            raise InvalidInput(f"temperature: expected a finite number above 0, got {self.value}")
        if not (math.isfinite(self.slope) and self.slope >= 0):
            raise InvalidInput(f"slope of the temperature: expected a finite number from 0 on, got {self.slope}")

    def of_rows(self, logits_NC: FloatArray) -> FloatArray:
        """Return the temperature of each row, (N, 1)."""
        if not self.slope:
            return np.full((len(logits_NC), 1), self.value)
        return self.of_shares(undecidedness(logits_NC))

    def of_shares(self, shares: FloatArray) -> FloatArray:
        """Return the temperature of rows, given how undecided each is."""
        rows: FloatArray = self.value * shares**self.slope
        return np.maximum(rows, min(1.0, self.value))

    def apply(self, logits_NC: ArrayLike) -> FloatArray:
        """Calibrated class probabilities (N, C).

        Raises:
            InvalidInput: fewer than two classes, or logits that are not finite.
        """
        return apply_temperature(logits_NC, self)


def prior(inverse: FloatArray) -> FloatArray:
    """Return what comes to the NLL of all rows together for ``b = 1 / T``.

    ``2 * (b - log b - 1)``, which is 0 at T = 1.

    It is the negative logarithm of a gamma density whose mode is 1, but for a constant.
    """
    total: FloatArray = PRIOR * (inverse - np.log(inverse) - 1)
    return total


def undecidedness(logits_NC: FloatArray) -> FloatArray:
    """Entropy of each row's softmax as a share of the most there can be, at least 0.01: (N, 1)."""
    entropy_N1 = np.empty((len(logits_NC), 1))
    for rows in row_blocks(*logits_NC.shape):
        probabilities_BC = softmax(logits_NC[rows])
        logarithms_BC = np.log(np.maximum(probabilities_BC, np.finfo(np.float64).tiny))
        entropy_N1[rows] = -(probabilities_BC * logarithms_BC).sum(axis=1, keepdims=True)
    shares_N1: FloatArray = np.clip(entropy_N1 / math.log(logits_NC.shape[1]), _LEAST_ENTROPY, 1.0)
    return shares_N1


def softmax(logits: ArrayLike) -> FloatArray:
    """Probabilities over the last axis, without overflow: the greatest logit is subtracted first."""
    values = np.asarray(logits, dtype=np.float64)
    exponentials = np.exp(values - values.max(axis=-1, keepdims=True))
    probabilities: FloatArray = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities


def sigmoid(logits: ArrayLike) -> FloatArray:
    """Elementwise ``1 / (1 + exp(-logit))``, without overflow: only exp(-|logit|) is taken."""
    values = np.asarray(logits, dtype=np.float64)
    small = np.exp(-np.abs(values))
    probabilities: FloatArray = np.where(values >= 0, 1.0, small) / (1 + small)
    return probabilities


def apply_temperature(logits_NC: ArrayLike, temperature: Temperature | float) -> FloatArray:
    """Calibrated class probabilities (N, C): ``softmax(logits / T)``.

    Raises:
        InvalidInput: fewer than two classes, logits that are not finite, or a temperature not above 0.
    """
    logits = logit_array(logits_NC, least_columns=2)
    return softmax(logits / _temperature(temperature).of_rows(logits))


def apply_sigmoid_temperature(logits_NC: ArrayLike, temperature: Temperature | float) -> FloatArray:
    """Calibrated label probabilities (N, C): ``sigmoid(logits / T)``; a slope is not read.

    Raises:
        InvalidInput: logits that are not finite, or a temperature not above 0.
    """
    return sigmoid(logit_array(logits_NC, least_columns=1) / _temperature(temperature).value)


def _temperature(given: Temperature | float) -> Temperature:
    return given if isinstance(given, Temperature) else Temperature(given)


def fit_temperature(logits_NC: ArrayLike, labels_N: ArrayLike) -> float:
    """Return the temperature within `TEMPERATURE_BOUNDS` of least NLL under softmax and prior.

    Its NLL is never above T = 1's.

    Args:
        logits_NC: logits of rows that the model was not trained on.
        labels_N: their true class numbers.

    Raises:
        InvalidInput: no rows, fewer than two classes, logits that are not finite, or labels that do not fit.
    """
    logits = logit_array(logits_NC, least_columns=2)
    labels_N = class_indices(labels_N, "labels", classes=logits.shape[1], rows=len(logits))
    # Relative to the true class: NLL = logsumexp, and its derivative is the mean of the margins.
    margins_NC = logits - logits[np.arange(len(logits)), labels_N][:, None]

    def nll(inverse: float) -> float:
        scaled_NC = inverse * margins_NC
        top_N = scaled_NC.max(axis=1)
        return float((top_N + np.log(np.exp(scaled_NC - top_N[:, None]).sum(axis=1))).mean())

    def slope(inverse: float) -> float:
        return float((softmax(inverse * margins_NC) * margins_NC).sum(axis=1).mean())

    return least_temperature(nll, slope, len(logits))


def fit_sigmoid_temperature(logits_NC: ArrayLike, labels_NC: ArrayLike) -> float:
    """Return the temperature of least mean binary cross-entropy over all (row, label) decisions, shared by the labels.

    The prior counts as it does for one label a row; the NLL is never above that of T = 1.

    Args:
        logits_NC: logits of rows that the model was not trained on; one column for a binary task.
        labels_NC: 0 or 1, whether the row has the label.

    Raises:
        InvalidInput: no rows, logits that are not finite, or labels of another shape or other than 0 and 1.
    """
    logits = logit_array(logits_NC, least_columns=1)
    signs_NC = np.where(label_matrix(labels_NC, "labels", shape=logits.shape), -1.0, 1.0)
    margins_NC = signs_NC * logits

    def nll(inverse: float) -> float:
        return float(np.logaddexp(0.0, inverse * margins_NC).mean())

    def slope(inverse: float) -> float:
        return float((sigmoid(inverse * margins_NC) * margins_NC).mean())

    return least_temperature(nll, slope, logits.size)


def least_temperature(nll: Callable[[float], float], slope: Callable[[float], float], decisions: int) -> float:
    """Return the temperature that minimises prior and ``nll``, the mean of ``decisions`` and convex in 1 / T.

    It is the root of the derivative, found in log scale by Brent's method.
    """
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
        temperature = math.exp(-brentq(with_prior, low, high, xtol=_CLOSE))
    # Rounding could place the found minimum a hair above where it started; where the NLL is flat, T stays 1.
    return temperature if nll(1 / temperature) < nll(1.0) else 1.0
