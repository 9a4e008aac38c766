"""Checks of the arrays that metrics take.

Shape letters in this package: N rows (texts), C classes or labels, R bootstrap resamples, B reliability bins,
K statistics.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bothways.errors import InvalidInput

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

LARGEST_LOGIT = 1e100
"""Maximum magnitude of a logit: larger ones could overflow when squared, and no model gives such values."""

_BLOCK_CELLS = 30_000  # 0.24 MB, which fits into a processor's cache
_ROUNDING = 1e-6
_SUM_ROUNDING = 1e-2  # half-precision probabilities of many classes sum to 1 with an error of up to this


def real_array(values: ArrayLike, name: str, *, dimensions: int) -> FloatArray:
    """Convert to float64; check that all values are finite and that there are ``dimensions`` axes, none empty."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name}: expected an array of numbers, got {values!r:.80}") from error
    if array.ndim != dimensions or array.size == 0:
        raise InvalidInput(f"{name}: expected {dimensions} axes, none empty, got the shape {array.shape}")
    if not np.isfinite(array).all():
        count = int((~np.isfinite(array)).sum())
        raise InvalidInput(f"{name}: expected finite numbers, got {count} NaN or infinite values; remove them")
    return array


def logit_array(values: ArrayLike, *, least_columns: int) -> FloatArray:
    """Check logits (N, C) with at least ``least_columns`` classes; return them as float64."""
    logits_NC = real_array(values, "logits", dimensions=2)
    if logits_NC.shape[1] < least_columns:
        raise InvalidInput(f"logits: expected at least {least_columns} classes, got {logits_NC.shape[1]}")
    if max(logits_NC.max(), -logits_NC.min()) > LARGEST_LOGIT:
        raise InvalidInput(f"logits: expected magnitudes up to {LARGEST_LOGIT:g}, got larger ones; check the model")
    return logits_NC


def row_blocks(rows: int, width: int, cells: int = _BLOCK_CELLS) -> Iterator[slice]:
    """Return slices for processing rows in blocks of at most ``cells`` values (or of one row, if it has more)."""
    step = max(1, cells // width)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def class_indices(values: ArrayLike, name: str, *, classes: int, rows: int | None = None) -> IntArray:
    """Check class indices (N,), each from 0 to ``classes - 1``; return them as int64."""
    array = np.asarray(values)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise InvalidInput(f"{name}: expected a non-empty vector of class indices, got {array.dtype} {array.shape}")
    if rows is not None and len(array) != rows:
        raise InvalidInput(f"{name}: expected {rows} rows, one for each prediction, got {len(array)}")
    if array.min() < 0 or array.max() >= classes:
        raise InvalidInput(
            f"{name}: expected class indices from 0 to {classes - 1}, got {array.min()} to {array.max()}"
        )
    return array.astype(np.int64)


def label_matrix(values: ArrayLike, name: str, *, shape: tuple[int, ...] | None = None) -> BoolArray:
    """Check a matrix (N, C) of zeros and ones; return it as booleans, true for each label of a row."""
    matrix_NC = real_array(values, name, dimensions=2)
    if shape is not None and matrix_NC.shape != shape:
        raise InvalidInput(f"{name}: expected the shape {shape} of the predictions, got {matrix_NC.shape}")
    if not np.isin(matrix_NC, (0.0, 1.0)).all():
        raise InvalidInput(f"{name}: expected only 0 and 1, one column for each label, got other values")
    return matrix_NC.astype(np.bool_)


def probability_array(values: ArrayLike, name: str, *, dimensions: int) -> FloatArray:
    """Check probabilities, return them as float64, and clip values up to 1e-6 outside of 0 to 1."""
    array = real_array(values, name, dimensions=dimensions)
    if array.min() < -_ROUNDING or array.max() > 1 + _ROUNDING:
        raise InvalidInput(
            f"{name}: expected probabilities from 0 to 1, got {array.min():g} to {array.max():g}; "
            "apply softmax or sigmoid to logits first"
        )
    return np.clip(array, 0.0, 1.0)


def class_probabilities(values: ArrayLike) -> FloatArray:
    """Check probabilities (N, C) whose rows sum to 1, within 0.01 for half precision; return them as float64."""
    probabilities_NC = probability_array(values, "probabilities", dimensions=2)
    worst = float(np.abs(probabilities_NC.sum(axis=1) - 1).max())
    if worst > _SUM_ROUNDING:
        raise InvalidInput(
            f"probabilities: expected rows that sum to 1, got a row whose sum is off by {worst:g}; apply softmax"
        )
    return probabilities_NC


def paired_vectors(truth: ArrayLike, predicted: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Check two finite vectors (N,) of equal length; return them as float64."""
    truth_N = real_array(truth, "truth", dimensions=1)
    predicted_N = real_array(predicted, "predicted", dimensions=1)
    if truth_N.shape != predicted_N.shape:
        raise InvalidInput(f"predicted: expected {len(truth_N)} rows, one for each true value, got {len(predicted_N)}")
    return truth_N, predicted_N
