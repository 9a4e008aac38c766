"""Out-of-domain detectors, which find texts that are unlike the training texts of a classifier.

A detector is immutable. Its ``score`` is higher for rows that are less like the training rows.

Shape letters: N rows, B rows of a block, M training rows, C classes, L layers, D width of a layer's features.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bothways.choices import DetectorKind as DetectorKind
from bothways.errors import InvalidInput
from bothways.evaluation.inputs import FloatArray, IntArray, class_indices, logit_array, real_array, row_blocks
from bothways.evaluation.temperature import softmax

_BLOCK_CELLS = 8_000_000
"""Maximum number of distances in memory, 64 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class DetectorInput:
    """The input of a detector: logits and hidden features of rows."""

    logits_NC: FloatArray  # uncalibrated logits
    features_NLD: FloatArray  # features of some layers; (N, 0, 0) if the detector reads none

    @classmethod
    def of(cls, logits_NC: ArrayLike, features_NLD: ArrayLike | None = None) -> "DetectorInput":
        """Create from arrays, after checking them."""
        logits = logit_array(logits_NC, least_columns=2)
        if features_NLD is None:
            return cls(logits, np.zeros((len(logits), 0, 0)))
        features = real_array(features_NLD, "features", dimensions=3)
        if len(features) != len(logits):
            raise InvalidInput(f"features: expected {len(logits)} rows, one per row of logits, got {len(features)}")
        return cls(logits, features)


@dataclass(frozen=True, slots=True)
class MaxSoftmax:
    """Uncertainty ``1 - max softmax``. Hendrycks and Gimpel (2017), arXiv:1610.02136."""

    kind: ClassVar[DetectorKind] = "max_softmax"
    layers: ClassVar[int] = 0

    def score(self, evidence: DetectorInput) -> FloatArray:
        """Return scores (N,), from 0 to 1."""
        scores_N = np.empty(len(evidence.logits_NC))
        for rows in row_blocks(*evidence.logits_NC.shape):
            stated_BC = softmax(evidence.logits_NC[rows])
            # The other probabilities are summed, since 1 - max would round to 0 for very confident rows.
            best_B = stated_BC.argmax(axis=1)
            stated_BC[np.arange(len(best_B)), best_B] = 0.0
            scores_N[rows] = stated_BC.sum(axis=1)
        return scores_N


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy ``-T log sum exp(logits / T)``, low for confident rows. Liu et al. (2020), arXiv:2010.03759.

    Raises:
        InvalidInput: The temperature is not a finite number above 0.
    """

    temperature: float = 1.0  # T, above 0

    kind: ClassVar[DetectorKind] = "energy"
    layers: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise InvalidInput(f"energy: expected a temperature above 0, got {self.temperature}")

    def score(self, evidence: DetectorInput) -> FloatArray:
        """Return scores (N,)."""
        scores_N = np.empty(len(evidence.logits_NC))
        for rows in row_blocks(*evidence.logits_NC.shape):
            scaled_BC = evidence.logits_NC[rows] / self.temperature
            top_B = scaled_BC.max(axis=1)
            logarithm_B = np.log(np.exp(scaled_BC - top_B[:, None]).sum(axis=1))
            scores_N[rows] = -self.temperature * (top_B + logarithm_B)
        return scores_N


@dataclass(frozen=True, slots=True, eq=False)
class Mahalanobis:
    """Squared Mahalanobis distance to the nearest class, summed over layers. Lee et al. (2018), arXiv:1807.03888.

    Features are scaled to unit length first (Mueller and Hein 2025, arXiv:2505.18032): the vector of a long text, a
    mean of many tokens, is short and would lie near every class. All classes share one covariance matrix, which is
    shrunk towards a multiple of the identity (Ledoit and Wolf 2004) and thus invertible. Each layer's distances are
    divided by their mean over the training rows, so no layer dominates.
    """

    roots_LDD: FloatArray  # W with ``W W' = inverse covariance / mean distance``
    points_LCD: FloatArray  # mean features of each class that has training rows, times W
    unit_length: bool = True

    kind: ClassVar[DetectorKind] = "mahalanobis"

    @property
    def layers(self) -> int:
        """Number of layers whose features are used."""
        return len(self.roots_LDD)

    @classmethod
    def fit(
        cls, features_MLD: ArrayLike, labels_M: ArrayLike, classes: int, *, unit_length: bool = True
    ) -> "Mahalanobis":
        """Fit to features of training rows."""
        from sklearn.covariance import ledoit_wolf

        features, labels = _labelled(features_MLD, labels_M, classes)
        features = _unit(features) if unit_length else features
        roots, points = [], []
        for layer in range(features.shape[1]):
            means_CD, class_M = class_means(features[:, layer], labels)
            centred_MD = features[:, layer] - means_CD[class_M]
            values_D, vectors_DD = np.linalg.eigh(ledoit_wolf(centred_MD, assume_centered=True)[0])
            floor = max(float(values_D.max()) * 1e-10, 1e-30)
            root_DD = vectors_DD / np.sqrt(np.maximum(values_D, floor))
            distances_M = _nearest_square(features[:, layer] @ root_DD, means_CD @ root_DD)
            roots.append(root_DD / math.sqrt(max(float(distances_M.mean()), 1e-30)))
            points.append(means_CD @ roots[-1])
        return cls(np.stack(roots), np.stack(points), unit_length)

    def score(self, evidence: DetectorInput) -> FloatArray:
        """Return scores (N,), at least 0."""
        features = _features(evidence, *self.roots_LDD.shape[:2])
        features = _unit(features) if self.unit_length else features
        layers = [
            _nearest_square(features[:, layer] @ root_DD, points_CD)
            for layer, (root_DD, points_CD) in enumerate(zip(self.roots_LDD, self.points_LCD, strict=True))
        ]
        scores_N: FloatArray = np.sum(layers, axis=0)
        return scores_N


@dataclass(frozen=True, slots=True, eq=False)
class Neighbours:
    """Distance to the k-th nearest training row, between unit-length features. Sun et al. (2022), arXiv:2204.06507.

    Raises:
        InvalidInput: k is below 1 or above the number of training rows.
    """

    features_MLD: FloatArray  # training features, scaled to unit length in each layer
    k: int = 10  # rank of the neighbour, from 1

    kind: ClassVar[DetectorKind] = "neighbours"
    layers: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not (isinstance(self.k, int) and 1 <= self.k <= len(self.features_MLD)):
            raise InvalidInput(f"neighbours: expected k from 1 to {len(self.features_MLD)} rows, got {self.k}")

    @classmethod
    def fit(cls, features_MLD: ArrayLike, k: int = 10) -> "Neighbours":
        """Fit to features of training rows."""
        return cls(_unit(real_array(features_MLD, "features", dimensions=3)), k)

    def score(self, evidence: DetectorInput) -> FloatArray:
        """Return scores (N,): the mean over layers of the Euclidean distance, from 0 to 2."""
        _, layers, width = self.features_MLD.shape
        features = _unit(_features(evidence, layers, width))
        distances_NL = np.empty((len(features), layers))
        step = max(1, _BLOCK_CELLS // len(self.features_MLD))
        for layer in range(layers):
            known_MD = self.features_MLD[:, layer]
            for start in range(0, len(features), step):
                cosines_NM = features[start : start + step, layer] @ known_MD.T
                kth_N = -np.partition(-cosines_NM, self.k - 1, axis=1)[:, self.k - 1]
                distances_NL[start : start + step, layer] = np.sqrt(np.maximum(0.0, 2 - 2 * kth_N))
        scores_N: FloatArray = distances_NL.mean(axis=1)
        return scores_N


@dataclass(frozen=True, slots=True, eq=False)
class Cosine:
    """``1 - cosine`` to the nearest class mean, averaged over layers."""

    # Mean of the unit-length features of each class that has training rows, itself scaled to unit length.
    means_LCD: FloatArray

    kind: ClassVar[DetectorKind] = "cosine"
    layers: ClassVar[int] = 1

    @classmethod
    def fit(cls, features_MLD: ArrayLike, labels_M: ArrayLike, classes: int) -> "Cosine":
        """Fit to features of training rows."""
        features, labels = _labelled(features_MLD, labels_M, classes)
        unit_MLD = _unit(features)
        means = [class_means(unit_MLD[:, layer], labels)[0] for layer in range(features.shape[1])]
        return cls(_unit(np.stack(means)))

    def score(self, evidence: DetectorInput) -> FloatArray:
        """Return scores (N,), from 0 to 2."""
        layers, _, width = self.means_LCD.shape
        features = _unit(_features(evidence, layers, width))
        scores_N = np.empty(len(features))
        for rows in row_blocks(len(features), layers * self.means_LCD.shape[1], _BLOCK_CELLS):
            cosines_BLC = np.einsum("bld,lcd->blc", features[rows], self.means_LCD, optimize=True)
            scores_N[rows] = 1.0 - cosines_BLC.max(axis=2).mean(axis=1)
        return scores_N


Detector = MaxSoftmax | Energy | Mahalanobis | Neighbours | Cosine

DETECTORS: Mapping[DetectorKind, type[Detector]] = {
    each.kind: each for each in (MaxSoftmax, Energy, Mahalanobis, Neighbours, Cosine)
}


def storable(detector: Detector) -> Detector:
    """Round a detector's arrays to float32, as saving does, so that a detector scores the same after loading."""
    values = {each.name: getattr(detector, each.name) for each in fields(detector)}
    rounded: dict[str, Any] = {
        name: each.astype(np.float32).astype(np.float64)
        for name, each in values.items()
        if isinstance(each, np.ndarray)
    }
    return replace(detector, **rounded)


def class_means(features_MD: FloatArray, labels_M: IntArray) -> tuple[FloatArray, IntArray]:
    """Return the mean features (C, D) of the classes that have rows, and the index of each row's class mean (M).

    Classes without rows are left out: any stand-in for their mean would attract rows far from all training rows.
    """
    _, class_M, counts_C = np.unique(labels_M, return_inverse=True, return_counts=True)
    sums_CD = np.zeros((len(counts_C), features_MD.shape[1]))
    np.add.at(sums_CD, class_M, features_MD)
    means_CD: FloatArray = sums_CD / counts_C[:, None]
    return means_CD, class_M


def _nearest_square(rows_ND: FloatArray, points_CD: FloatArray) -> FloatArray:
    """Return the squared Euclidean distance (N,) to the nearest point."""
    nearest_N = np.empty(len(rows_ND))
    for rows in row_blocks(len(rows_ND), len(points_CD), _BLOCK_CELLS):
        block_BD = rows_ND[rows]
        squares_BC = (block_BD**2).sum(axis=1)[:, None] - 2 * block_BD @ points_CD.T + (points_CD**2).sum(axis=1)
        nearest_N[rows] = np.maximum(squares_BC.min(axis=1), 0.0)
    return nearest_N


def _unit(features: FloatArray) -> FloatArray:
    lengths = np.linalg.norm(features, axis=-1, keepdims=True)
    unit: FloatArray = features / np.maximum(lengths, 1e-12)
    return unit


def _labelled(features_MLD: ArrayLike, labels_M: ArrayLike, classes: int) -> tuple[FloatArray, NDArray[np.int64]]:
    features = real_array(features_MLD, "features", dimensions=3)
    return features, class_indices(labels_M, "labels", classes=classes, rows=len(features))


def _features(evidence: DetectorInput, layers: int, width: int) -> FloatArray:
    if evidence.features_NLD.shape[1:] != (layers, width):
        raise InvalidInput(
            f"features: expected (layers, dimensions) of {(layers, width)}, as when the detector was fitted, got "
            f"{evidence.features_NLD.shape[1:]}"
        )
    return evidence.features_NLD


# --- thresholds ---


def out_of_domain_threshold(inside_N: ArrayLike, in_domain_share: float = 0.95) -> float:
    """Return the threshold that a new in-domain row does not exceed with probability ``in_domain_share``.

    It is the ceil((N + 1) in_domain_share)-th smallest score of held-out in-domain rows; the largest if N is too small.
    """
    if not 0 < in_domain_share < 1:
        raise InvalidInput(f"in_domain_share: expected a share between 0 and 1, such as 0.95, got {in_domain_share}")
    inside = np.sort(real_array(inside_N, "in-domain scores", dimensions=1))
    return float(inside[min(len(inside), math.ceil((len(inside) + 1) * in_domain_share - 1e-9)) - 1])


def threshold_between(inside_N: ArrayLike, outside_M: ArrayLike) -> float:
    """Return the threshold with the highest balanced accuracy, midway between adjacent scores; the highest in a tie."""
    inside = real_array(inside_N, "in-domain scores", dimensions=1)
    outside = real_array(outside_M, "out-of-domain scores", dimensions=1)
    values_G = np.unique(np.concatenate([inside, outside]))
    kept_G = np.searchsorted(np.sort(inside), values_G, side="right") / len(inside)
    caught_G = 1 - np.searchsorted(np.sort(outside), values_G, side="right") / len(outside)
    balance_G = kept_G + caught_G
    best = len(values_G) - 1 - int(balance_G[::-1].argmax())
    following = values_G[min(best + 1, len(values_G) - 1)]
    return float((values_G[best] + following) / 2)
