"""A temperature that depends on how undecided the model is.

One temperature for all rows leaves fine-tuned classifiers overconfident where they are sure and underconfident where
they are not, or the other way round. Here the temperature of a row is ``value * h ** slope`` with h its normalised
entropy: two numbers, fitted on held-out rows by least negative log likelihood (NLL). With a slope of 0 it is plain
temperature scaling; slopes below 0 are left out, for they could make a surer row less sure than another. A temperature
as a function of the entropy is that of Balanya et al. (2022), "Adaptive temperature scaling for robust calibration of
deep neural networks", arXiv:2208.00461; the power law keeps it positive without a second function.

Shape letters: N rows, C classes.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bothways.evaluation.calibration import (
    Temperature,
    fit_temperature,
    least_temperature,
    softmax,
    undecidedness,
)
from bothways.evaluation.inputs import FloatArray, class_indices, logit_array
from bothways.evaluation.tabulated import TabulatedLosses

# Few rows, nearly all of them right, would ask for more.
MOST_SLOPE = 0.5
_CLOSE = 1e-6
_CLOSE_TABULATED = 1e-4
MANY_CLASSES = 200
"""Above this the losses of rows are tabulated, which then takes less time and less memory than the logits."""


def fit_adaptive_temperature(logits_NC: ArrayLike, labels_N: ArrayLike) -> Temperature:
    """Return the temperature of least NLL under softmax, with a slope where that is worth a second number.

    It is when it lowers the NLL of all rows together by more than 1 (Akaike's criterion); its NLL is never above that
    of plain temperature scaling.

    Args:
        logits_NC: logits of rows that the model was not trained on.
        labels_N: their true class numbers.

    Raises:
        InvalidInput: no rows, fewer than two classes, logits that are not finite, or labels that do not fit.
    """
    logits = logit_array(logits_NC, least_columns=2)
    labels = class_indices(labels_N, "labels", classes=logits.shape[1], rows=len(logits))
    if logits.shape[1] > MANY_CLASSES:
        return fit_tabulated(TabulatedLosses.of(logits, labels))
    shares_N1 = undecidedness(logits)

    def fitted(slope: float) -> tuple[float, float]:
        """Return the value for a slope, and the NLL of all rows together."""
        value = fit_temperature(logits / shares_N1**slope, labels)
        return value, _nll(logits / Temperature(value, slope).of_rows(logits), labels)

    return _chosen(fitted, _CLOSE)


def fit_tabulated(losses: TabulatedLosses) -> Temperature:
    """Return the same from tabulated losses of rows."""
    shares_N = losses.shares_N

    def fitted(slope: float) -> tuple[float, float]:
        """Return the same, fitted."""
        factor_N = shares_N**-slope
        value = least_temperature(
            lambda inverse: float(losses.nll(inverse * factor_N).mean()),
            lambda inverse: float((losses.slope(inverse * factor_N) * factor_N).mean()),
            len(shares_N),
        )
        return value, float(losses.nll(1 / Temperature(value, slope).of_shares(shares_N)).sum())

    return _chosen(fitted, _CLOSE_TABULATED)


def _chosen(fitted: Callable[[float], tuple[float, float]], close: float) -> Temperature:
    from scipy.optimize import minimize_scalar

    bounds = (0.0, MOST_SLOPE)
    found = minimize_scalar(lambda slope: fitted(slope)[1], bounds, bounds, method="bounded", options={"xatol": close})
    slope = float(found.x)
    (plain, plain_nll), (value, nll) = fitted(0.0), fitted(slope)
    return Temperature(value, slope) if plain_nll - nll > 1.0 else Temperature(plain)


def _nll(logits_NC: FloatArray, labels_N: NDArray[np.signedinteger]) -> float:
    chosen_N = softmax(logits_NC)[np.arange(len(logits_NC)), labels_N]
    return float(-np.log(np.maximum(chosen_N, np.finfo(np.float64).tiny)).sum())
