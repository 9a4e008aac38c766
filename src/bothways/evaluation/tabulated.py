"""The loss of each row at any temperature, tabulated once: what a temperature is fitted on where classes are many.

A fit of a temperature and its slope, in cross-validation, asks some two thousand times for the NLL of all rows. With
many classes each answer costs rows x classes exponentials. But the NLL of a row is a smooth function of one number,
b = 1 / T. Here it is computed exactly at 49 values of b, with its first two derivatives in log b, and between them by
the polynomial of fifth degree that has these values, which is right to 1e-7. The values of b double every fourth time,
so that all but four of them only take a square instead of an exponential.

Shape letters: N rows, C classes, B rows of a block, K knots, D coefficients.
"""

import math
from dataclasses import dataclass

import numpy as np

from bothways.evaluation.calibration import undecidedness
from bothways.evaluation.inputs import BoolArray, FloatArray, IntArray, row_blocks
from bothways.progress import progress

# 1 / T of a row: that of all rows lies within `TEMPERATURE_BOUNDS`, and a slope raises it up to tenfold.
_LEAST, _MOST = 0.05, 200.0
_PER_OCTAVE = 4
_OCTAVES = math.ceil(math.log2(_MOST / _LEAST))
_LEAST_WEIGHT = 1e-150
_SLOW = 20_000_000  # logits that take seconds
_STEP = math.log(2) / _PER_OCTAVE

# From values, slopes and curvatures at both ends of a step to the coefficients of the polynomial between them.
_HERMITE_DD = np.array(
    [
        [1, 0, 0, 0, 0, 0],
        [0, 1, 0, 0, 0, 0],
        [0, 0, 0.5, 0, 0, 0],
        [-10, -6, -1.5, 10, -4, 0.5],
        [15, 8, 1.5, -15, 7, -1],
        [-6, -3, -0.5, 6, -3, 0.5],
    ]
)


@dataclass(frozen=True, slots=True, eq=False)
class TabulatedLosses:
    """The NLL of each row under softmax as a function of b = 1 / T.

    Attributes:
        gap_N: How far the logit of the true class lies below the highest.
        shares_N: How undecided each row is, see `undecidedness`.
        coefficients_KND: Of the logarithm of ``sum(exp(b * (logit - highest)))``, between two knots each.
    """

    gap_N: FloatArray
    shares_N: FloatArray
    coefficients_KND: FloatArray

    @classmethod
    def of(cls, logits_NC: FloatArray, labels_N: IntArray) -> "TabulatedLosses":
        """Tabulate the losses of rows, in blocks of rows that fit into a processor's cache."""
        knots = _PER_OCTAVE * _OCTAVES + 1
        values_3KN = np.empty((3, knots, len(logits_NC)))
        gap_N = np.empty(len(logits_NC))
        show = None if logits_NC.size > _SLOW else False
        with progress(f"calibrating {logits_NC.shape[1]:,} classes", len(logits_NC), show=show) as bar:
            for rows in row_blocks(*logits_NC.shape):
                block_BC = logits_NC[rows] - logits_NC[rows].max(axis=1, keepdims=True)
                gap_N[rows] = -block_BC[np.arange(len(block_BC)), labels_N[rows]]
                values_3KN[:, :, rows] = _at_knots(block_BC, knots)
                bar.advance(len(block_BC))
        values_3KN[1] *= _STEP
        values_3KN[2] *= _STEP**2
        ends_6KN = np.concatenate([values_3KN[:, :-1], values_3KN[:, 1:]])
        return cls(
            gap_N, undecidedness(logits_NC)[:, 0], np.ascontiguousarray(np.einsum("de,ekn->knd", _HERMITE_DD, ends_6KN))
        )

    def take(self, rows_N: BoolArray) -> "TabulatedLosses":
        """Return the losses of some of the rows."""
        return TabulatedLosses(self.gap_N[rows_N], self.shares_N[rows_N], self.coefficients_KND[:, rows_N])

    def nll(self, inverse_N: FloatArray) -> FloatArray:
        """Return the NLL of each row (N,), given 1 / T of each."""
        place_N, coefficients_ND = self._steps(inverse_N)
        total_N = coefficients_ND[:, 5]
        for degree in (4, 3, 2, 1, 0):
            total_N = total_N * place_N + coefficients_ND[:, degree]
        return total_N + inverse_N * self.gap_N

    def slope(self, inverse_N: FloatArray) -> FloatArray:
        """Return the derivative of each row's NLL by its 1 / T (N,)."""
        place_N, coefficients_ND = self._steps(inverse_N)
        total_N = 5 * coefficients_ND[:, 5]
        for degree in (4, 3, 2, 1):
            total_N = total_N * place_N + degree * coefficients_ND[:, degree]
        return total_N / (_STEP * inverse_N) + self.gap_N

    def _steps(self, inverse_N: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return how far each row lies between its two knots, from 0 to 1, and the polynomial of that step."""
        steps_N = np.log(inverse_N / _LEAST) / _STEP
        knot_N = np.clip(steps_N.astype(np.int64), 0, len(self.coefficients_KND) - 1)
        return steps_N - knot_N, self.coefficients_KND[knot_N, np.arange(len(self.gap_N))]


def _at_knots(block_BC: FloatArray, knots: int) -> FloatArray:
    """``log sum exp(b * block)`` at each knot, and its first and second derivative in log b: (3, K, B)."""
    found_3KB = np.empty((3, knots, len(block_BC)))
    squares_BC = block_BC * block_BC
    for first in range(_PER_OCTAVE):
        inverse = _LEAST * math.exp(first * _STEP)
        weights_BC = np.exp(inverse * block_BC)
        for knot in range(first, knots, _PER_OCTAVE):
            total_B = weights_BC.sum(axis=1)
            mean_B = inverse * np.einsum("bc,bc->b", weights_BC, block_BC) / total_B
            square_B = inverse**2 * np.einsum("bc,bc->b", weights_BC, squares_BC) / total_B
            found_3KB[:, knot] = np.log(total_B), mean_B, mean_B + square_B - mean_B**2
            # Squares below the least normal number would be computed a hundred times slower, and count for nothing.
            np.maximum(weights_BC, _LEAST_WEIGHT, out=weights_BC)
            np.multiply(weights_BC, weights_BC, out=weights_BC)
            inverse *= 2
    return found_3KB
