"""Vector scaling: a factor and a shift for the logit of each class.

Source: Guo et al. (2017), "On calibration of modern neural networks", arXiv:1706.04599, section 4.2. Two numbers for
each class are many where there are many classes, so the fit is held near plain temperature scaling by a penalty; with
many rows it hardly counts.

Shape letters: N rows, C classes, P = 2 C parameters.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bothways.errors import InvalidInput
from bothways.evaluation.calibration import fit_temperature, softmax
from bothways.evaluation.inputs import FloatArray, IntArray, class_indices, logit_array

_STEPS = 50
_CLOSE = 1e-9
_HALVINGS = 30


@dataclass(frozen=True, slots=True)
class VectorScaling:
    """Probabilities ``softmax(scale * logits + shift)``; the most probable class may change.

    Attributes:
        scale: A factor above 0 for each class.
        shift: What is added for each class, in nats.

    Raises:
        InvalidInput: Not as many factors as shifts, fewer than two, not finite, or a factor not above 0.
    """

    scale: tuple[float, ...]
    shift: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.scale) != len(self.shift) or len(self.scale) < 2:
            raise InvalidInput(
                f"vector scaling: expected a factor and a shift for each of two or more classes, got {len(self.scale)} "
                f"factors and {len(self.shift)} shifts"
            )
        if not all(math.isfinite(each) for each in (*self.scale, *self.shift)) or min(self.scale) <= 0:
            raise InvalidInput("vector scaling: expected finite numbers, and factors above 0")

    def apply(self, logits_NC: ArrayLike) -> FloatArray:
        """Calibrated class probabilities (N, C).

        Raises:
            InvalidInput: Logits of another number of classes, or not finite.
        """
        return softmax(logits_of_classes(logits_NC, len(self.scale)) * np.array(self.scale) + np.array(self.shift))


def logits_of_classes(logits_NC: ArrayLike, classes: int) -> FloatArray:
    """Logits, checked to be those of so many classes.

    Raises:
        InvalidInput: They are not.
    """
    logits = logit_array(logits_NC, least_columns=2)
    if logits.shape[1] != classes:
        raise InvalidInput(f"logits: expected {classes} classes, those of the calibration, got {logits.shape[1]}")
    return logits


def fit_vector_scaling(logits_NC: ArrayLike, labels_N: ArrayLike, penalty: float = 1.0) -> VectorScaling:
    """The factors and shifts of least negative log likelihood (NLL) plus penalty.

    The penalty is ``penalty / 2`` times the sum of squares of the shifts and of the factors' distances to 1 / T, in
    units of 1 / T, with T the temperature of the same rows: a prior under which a shift of one nat is usual. Newton's
    method with halved steps; the sum of NLL and penalty is convex.

    Args:
        logits_NC: logits of rows that the model was not trained on.
        labels_N: their true class numbers.
        penalty: weight of the prior, above 0.

    Raises:
        InvalidInput: no rows, fewer than two classes, logits that are not finite, or labels that do not fit.
    """
    logits = logit_array(logits_NC, least_columns=2)
    classes = logits.shape[1]
    labels = class_indices(labels_N, "labels", classes=classes, rows=len(logits))
    # In these units the prior is the same for factors and shifts: a factor of 1 is plain temperature scaling.
    temperature = fit_temperature(logits, labels)
    scaled_NC = logits / temperature
    start_P = np.concatenate([np.ones(classes), np.zeros(classes)])
    point_P, value = start_P, _objective(start_P, start_P, scaled_NC, labels, penalty)
    for _ in range(_STEPS):
        gradient_P, hessian_PP = _derivatives(point_P, start_P, scaled_NC, labels, penalty)
        step_P = np.linalg.solve(hessian_PP, gradient_P)
        if float(gradient_P @ step_P) < _CLOSE:
            break
        for halving in range(_HALVINGS):
            following_P = point_P - step_P / 2**halving
            found = _objective(following_P, start_P, scaled_NC, labels, penalty)
            if following_P[:classes].min() > 0 and found < value:
                point_P, value = following_P, found
                break
        else:
            break
    scale_C = point_P[:classes] / temperature
    return VectorScaling(tuple(scale_C.tolist()), tuple(point_P[classes:].tolist()))


def _objective(
    point_P: FloatArray, start_P: FloatArray, scaled_NC: FloatArray, labels_N: IntArray, penalty: float
) -> float:
    """NLL of all rows together, plus the penalty."""
    classes = scaled_NC.shape[1]
    logits_NC = scaled_NC * point_P[:classes] + point_P[classes:]
    top_N = logits_NC.max(axis=1)
    total_N = top_N + np.log(np.exp(logits_NC - top_N[:, None]).sum(axis=1))
    nll = (total_N - logits_NC[np.arange(len(labels_N)), labels_N]).sum()
    return float(nll + penalty / 2 * ((point_P - start_P) ** 2).sum())


def _derivatives(
    point_P: FloatArray, start_P: FloatArray, scaled_NC: FloatArray, labels_N: IntArray, penalty: float
) -> tuple[FloatArray, FloatArray]:
    """Gradient (P,) and Hessian (P, P) of the objective."""
    classes = scaled_NC.shape[1]
    probabilities_NC = softmax(scaled_NC * point_P[:classes] + point_P[classes:])
    gaps_NC = probabilities_NC.copy()
    gaps_NC[np.arange(len(labels_N)), labels_N] -= 1
    gradient_P = np.concatenate([(gaps_NC * scaled_NC).sum(axis=0), gaps_NC.sum(axis=0)])
    # A row's Hessian in its logits is diag(p) - p p'; the logit of class c depends on two parameters.
    weighted_NP = np.concatenate([probabilities_NC * scaled_NC, probabilities_NC], axis=1)
    hessian_PP = -weighted_NP.T @ weighted_NP
    first, second = np.arange(classes), np.arange(classes, 2 * classes)
    crossed_C = (probabilities_NC * scaled_NC).sum(axis=0)
    hessian_PP[first, first] += (probabilities_NC * scaled_NC**2).sum(axis=0)
    hessian_PP[second, second] += probabilities_NC.sum(axis=0)
    hessian_PP[first, second] += crossed_C
    hessian_PP[second, first] += crossed_C
    return gradient_P + penalty * (point_P - start_P), hessian_PP + penalty * np.eye(2 * classes)
