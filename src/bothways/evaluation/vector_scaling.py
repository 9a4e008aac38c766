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
from bothways.evaluation.inputs import FloatArray, class_indices, logit_array

_STEPS = 1000
_LEAST_FACTOR = 1e-6


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
    """Return the factors and shifts of least negative log likelihood (NLL) plus penalty.

    The penalty is ``penalty / 2`` times the sum of squares of the shifts and of the factors' distances to 1 / T, in
    units of 1 / T, with T the temperature of the same rows: a prior under which a shift of one nat is usual. The sum of
    NLL and penalty is convex; SciPy's L-BFGS-B minimises it and keeps the factors above 0.

    Args:
        logits_NC: logits of rows that the model was not trained on.
        labels_N: their true class numbers.
        penalty: weight of the prior, above 0.

    Raises:
        InvalidInput: no rows, fewer than two classes, logits that are not finite, or labels that do not fit.
    """
    from scipy.optimize import minimize

    logits = logit_array(logits_NC, least_columns=2)
    classes = logits.shape[1]
    labels = class_indices(labels_N, "labels", classes=classes, rows=len(logits))
    # In these units the prior is the same for factors and shifts: a factor of 1 is plain temperature scaling.
    temperature = fit_temperature(logits, labels)
    scaled_NC = logits / temperature
    start_P = np.concatenate([np.ones(classes), np.zeros(classes)])
    rows_N = np.arange(len(labels))

    def objective(point_P: FloatArray) -> tuple[float, FloatArray]:
        """NLL of all rows together plus the penalty, and the gradient."""
        gaps_NC = scaled_NC * point_P[:classes] + point_P[classes:]
        gaps_NC -= gaps_NC.max(axis=1, keepdims=True)
        of_truth = gaps_NC[rows_N, labels].sum()
        np.exp(gaps_NC, out=gaps_NC)
        total_N1 = gaps_NC.sum(axis=1, keepdims=True)
        gaps_NC /= total_N1
        gaps_NC[rows_N, labels] -= 1
        gradient_P = np.concatenate([np.einsum("nc,nc->c", gaps_NC, scaled_NC), gaps_NC.sum(axis=0)])
        off_P = point_P - start_P
        return float(np.log(total_N1).sum() - of_truth + penalty / 2 * (off_P @ off_P)), gradient_P + penalty * off_P

    bounds = [(_LEAST_FACTOR, None)] * classes + [(None, None)] * classes
    options = {"maxiter": _STEPS, "maxfun": 2 * _STEPS, "ftol": 1e-14, "gtol": 1e-6}
    point_P = minimize(objective, start_P, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    scale_C = point_P[:classes] / temperature
    return VectorScaling(tuple(scale_C.tolist()), tuple(point_P[classes:].tolist()))
