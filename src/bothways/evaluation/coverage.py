"""Split conformal prediction: sets of labels, and intervals around numbers, with a guaranteed coverage of the truth.

The guarantee: of new rows that are drawn like the held-out ones, at least a share of ``coverage`` have their truth in
their set, on average over held-out and new rows; a single draw of n held-out rows is off by about
``sqrt(coverage * (1 - coverage) / n)``. It holds for any model; a poor one gives large sets. It covers all
rows together, not each class by itself, and not rows of another kind. It is proven for held-out rows that decided
nothing else about the model: if they also chose the epoch or the calibration, it is approximate. Source: Vovk et
al. (2005), "Algorithmic learning in a random world"; Lei et al. (2018), arXiv:1604.04173.

Shape letters: N rows, C classes, M held-out rows, B rows of a block.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bothways.errors import InvalidInput
from bothways.evaluation.inputs import (
    BoolArray,
    FloatArray,
    IntArray,
    class_indices,
    class_probabilities,
    paired_vectors,
    real_array,
)

MOST_KEPT = 10_000
"""Held-out scores that are kept; of more, a random subset, which guarantees the same."""


@dataclass(frozen=True, slots=True, eq=False)
class ConformalSets:
    """Prediction sets of labels with a coverage guarantee, from the nonconformity of held-out rows.

    Nonconformity is ``1 - p``, which gives the smallest sets on average (LAC). Source: Sadinle, Lei and Wasserman
    (2019), "Least ambiguous set-valued classifiers with bounded error levels", arXiv:1609.00451.
    """

    held_out_M: FloatArray  # nonconformity of the true labels of held-out rows, in rising order

    @classmethod
    def fit(cls, probabilities_MC: ArrayLike, labels_M: ArrayLike) -> "ConformalSets":
        """Fit to held-out rows, calibrated as later rows will be."""
        return cls.fit_blocks([(np.arange(len(np.asarray(labels_M))), probabilities_MC)], labels_M)

    @classmethod
    def fit_blocks(cls, blocks: Iterable[tuple[IntArray, ArrayLike]], labels_M: ArrayLike) -> "ConformalSets":
        """Fit to blocks of held-out rows, given as row numbers (B) and probabilities (B, C)."""
        given = np.asarray(labels_M)
        scores_M = np.full(len(given), np.nan)
        for numbers_B, probabilities_BC in blocks:
            stated_BC = class_probabilities(probabilities_BC)
            labels_B = class_indices(given[numbers_B], "labels", classes=stated_BC.shape[1], rows=len(stated_BC))
            scores_M[numbers_B] = 1.0 - stated_BC[np.arange(len(labels_B)), labels_B]
        return cls(_kept(scores_M))

    def at(self, coverage: float) -> "LabelSets":
        """Return the sets for one coverage."""
        return LabelSets(held_out_quantile(self.held_out_M, coverage), coverage)


@dataclass(frozen=True, slots=True)
class LabelSets:
    """Sets of labels for one coverage, made by `ConformalSets.at`."""

    threshold: float  # labels up to this nonconformity are in the set
    coverage: float  # target share of rows whose set holds the truth

    def includes(self, probabilities_NC: ArrayLike, *, never_empty: bool = True) -> BoolArray:
        """Return the membership (N, C) of each label in the set of each row, given calibrated probabilities.

        ``never_empty`` puts the most probable label into every set. If a model is right more often than the guarantee,
        sets then hold the truth more often than ``coverage``; without it some are empty, and the coverage is met
        closely.
        """
        probabilities = class_probabilities(probabilities_NC)
        included_NC: BoolArray = 1.0 - probabilities <= self.threshold
        if never_empty:
            included_NC[np.arange(len(probabilities)), probabilities.argmax(axis=1)] = True
        return included_NC


@dataclass(frozen=True, slots=True, eq=False)
class ConformalInterval:
    """Intervals of one width around predicted numbers, from the errors of held-out rows."""

    held_out_M: FloatArray  # absolute errors of held-out rows, in rising order

    @classmethod
    def fit(cls, predicted_M: ArrayLike, truth_M: ArrayLike) -> "ConformalInterval":
        """Fit to held-out rows."""
        truth, predicted = paired_vectors(truth_M, predicted_M)
        return cls(_kept(np.abs(truth - predicted)))

    def at(self, coverage: float) -> float:
        """Return the half-width of the interval, in units of the prediction."""
        return held_out_quantile(self.held_out_M, coverage)


def held_out_quantile(scores_M: FloatArray, coverage: float) -> float:
    """Return the ceil((M + 1) coverage)-th smallest score, a bound for new rows with this probability."""
    if not 0 < coverage < 1:
        raise InvalidInput(f"coverage: expected a share between 0 and 1, such as 0.9, got {coverage}")
    # Without the allowance, rounding would turn 10 * 0.9 into 10.
    rank = math.ceil((len(scores_M) + 1) * coverage - 1e-9)
    if rank > len(scores_M):
        needed, rows = math.ceil(coverage / (1 - coverage) - 1e-9), len(scores_M)
        parts = 10 ** max(3, len(str(rows)))
        highest = (rows * parts // (rows + 1)) / parts  # rounded down to three digits or more
        raise InvalidInput(
            f"coverage: {coverage} cannot be guaranteed from {rows} held-out rows, it takes {needed}; ask for less, at "
            f"most {highest}, or hold out more rows"
        )
    return float(np.sort(scores_M)[rank - 1])


def _kept(scores_M: FloatArray) -> FloatArray:
    scores = real_array(scores_M, "held-out scores", dimensions=1)
    if len(scores) > MOST_KEPT:
        scores = np.random.default_rng(0).choice(scores, MOST_KEPT, replace=False)
    return np.sort(scores)
