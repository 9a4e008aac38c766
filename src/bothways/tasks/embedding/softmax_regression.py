"""Softmax regression: a linear map from vectors to classes, fitted to the end.

Shapes: N rows, K dimensions, C classes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.checkpoints.files import read_safetensors
from bothways.checkpoints.save import write_tensors
from bothways.errors import CorruptCheckpoint, InvalidInput
from bothways.families.weight_map import check_numbers

_STEPS, _GRADIENT = 1000, 1e-9


@dataclass(frozen=True, slots=True)
class LinearHead:
    """Weights of a linear map.

    Attributes:
        weight_CK: Of each class.
        bias_C: Of each class.
    """

    weight_CK: NDArray[np.float32]
    bias_C: NDArray[np.float32]

    def logits(self, vectors_NK: NDArray[Any]) -> NDArray[np.float64]:
        """Scores of the classes (N, C)."""
        scores_NC: NDArray[np.float64] = vectors_NK.astype(np.float64) @ self.weight_CK.T.astype(np.float64)
        return scores_NC + self.bias_C


def check_strength(strength: float) -> None:
    """Refuse a strength that no regression can be fitted with.

    Raises:
        InvalidInput: It is not above 0.
    """
    if not strength > 0.0:
        raise InvalidInput(f"the strength of a regression must be above 0, but it is {strength}.")


def fit_softmax_regression(
    vectors_NK: NDArray[Any], classes_N: NDArray[np.int64], classes: int, *, strength: float = 1.0
) -> LinearHead:
    """The map of least cross-entropy with a penalty on its weights, and not on its biases.

        minimise  sum_n -log softmax(W v_n + b)_{y_n} + |W|^2 / (2 strength)

    (Hastie, Tibshirani and Friedman 2009, section 4.4; ``strength`` is scikit-learn's C). The problem is convex; it is
    solved from zero with L-BFGS by scikit-learn, so nothing is drawn.

    Args:
        vectors_NK: What to tell the class from.
        classes_N: Class numbers.
        classes: C.
        strength: How little the weights are held back.

    Raises:
        InvalidInput: The strength is not above 0.
    """
    check_strength(strength)
    from sklearn.linear_model import LogisticRegression

    # Of two classes scikit-learn fits one row of weights w, for w / 2 and -w / 2 here: half the penalty for the same.
    binary = classes == 2
    regression = LogisticRegression(C=2 * strength if binary else strength, tol=_GRADIENT, max_iter=_STEPS)
    found = regression.fit(vectors_NK.astype(np.float64), classes_N)
    weight_CK, bias_C = found.coef_, found.intercept_
    if binary:
        weight_CK, bias_C = np.concatenate([-weight_CK, weight_CK]) / 2, np.concatenate([-bias_C, bias_C]) / 2
    return LinearHead(weight_CK.astype(np.float32, order="C"), bias_C.astype(np.float32))


def write_head(path: Path, head: LinearHead) -> None:
    """Write a head into a file.

    Raises:
        OSError: The disk is full, or the folder cannot be written to.
    """
    write_tensors(path, {"weight": torch.from_numpy(head.weight_CK), "bias": torch.from_numpy(head.bias_C)})


def read_head(path: Path, classes: int, dimensions: int) -> LinearHead:
    """A stored head.

    Raises:
        CorruptCheckpoint: It is damaged, or does not fit.
        IncompatibleWeights: It holds no floating point numbers.
    """
    tensors = read_safetensors(path)
    for name, value in tensors.items():
        check_numbers(f"{name} of {path.name}", value)
    try:
        head = LinearHead(tensors["weight"].float().numpy(), tensors["bias"].float().numpy())
    except KeyError as error:
        raise CorruptCheckpoint(
            f"{str(path)!r} holds no head of a classifier ({error}). Get the model again."
        ) from error
    if head.weight_CK.shape != (classes, dimensions) or head.bias_C.shape != (classes,):
        raise CorruptCheckpoint(
            f"{str(path)!r} must map vectors of {dimensions} to {classes} labels, but its weights are of the shape "
            f"{head.weight_CK.shape}. It belongs to another model, or the vectors were cut."
        )
    return head
