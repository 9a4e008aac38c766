"""Recall at a wanted precision and precision at a wanted recall, for one of two classes.

A threshold on the probability of the class trades one for the other. The one that is chosen is the best on these rows,
so on others precision or recall may be a little lower than was wanted; the intervals are of the threshold as it is.

Shape letters: N rows, K thresholds, R resamples.
"""

import numpy as np
from numpy.typing import ArrayLike

from bothways.errors import InvalidInput
from bothways.evaluation.bootstrap import bootstrap_estimates
from bothways.evaluation.inputs import BoolArray, FloatArray, label_matrix, probability_array
from bothways.evaluation.report import OperatingPoint
from bothways.evaluation.thresholds import divisions


def operating_point(
    label: str,
    truth_N: ArrayLike,
    probability_N: ArrayLike,
    *,
    precision: float | None = None,
    recall: float | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> OperatingPoint:
    """Return the threshold of the highest recall at a wanted precision, or of the highest precision at a wanted recall.

    It lies half way between two probabilities; rows at or above it are taken for the class.

    Args:
        label: name of the class.
        truth_N: 0 or 1, whether the row is of the class.
        probability_N: probability that it is.
        precision: at least this precision; or
        recall: at least this recall.
        resamples: bootstrap resamples for the intervals.
        seed: of the bootstrap.

    Raises:
        InvalidInput: not one of the two is wanted, or it is no share; no rows, none of the class or none of the other,
            or values that are not probabilities.
    """
    if (precision is None) == (recall is None):
        raise InvalidInput("operating point: expected a wanted precision or a wanted recall, got both or none")
    wanted, least = ("recall", recall) if precision is None else ("precision", precision)
    if least is None or not 0 < least <= 1:
        raise InvalidInput(f"at_{wanted}: expected a share above 0 and up to 1, such as 0.9, got {least}")
    stated_N = probability_array(probability_N, "probabilities", dimensions=1)
    truth = label_matrix(np.asarray(truth_N)[:, None], "truth", shape=(len(stated_N), 1))[:, 0]
    if truth.all() or not truth.any():
        raise InvalidInput(
            f"precision and recall of {label!r} need rows of it and of the other class, got {int(truth.sum())} of it "
            f"among {len(truth)}"
        )
    precision_K, recall_K, threshold_K = precision_recall(truth, stated_N)
    given_K, best_K = (precision_K, recall_K) if wanted == "precision" else (recall_K, precision_K)
    reached = given_K >= least
    if not reached.any():
        return OperatingPoint(label, wanted, least, None, None, None, float(given_K.max()))
    # Of equally good ones the one that has more of what was wanted.
    chosen = np.lexsort((given_K, best_K, reached))[-1]
    threshold = float(threshold_K[chosen])
    predicted = stated_N >= threshold

    def statistic(counts_RN: FloatArray) -> FloatArray:
        hits_R = counts_RN @ (truth & predicted)
        all_R2 = np.column_stack([counts_RN @ predicted, counts_RN @ truth])
        return np.divide(hits_R[:, None], all_R2, out=np.zeros_like(all_R2), where=all_R2 != 0)

    of_rows = [int(predicted.sum()), int(truth.sum())]
    found = bootstrap_estimates(statistic, len(truth), resamples=resamples, seed=seed, of_rows=of_rows)
    return OperatingPoint(label, wanted, least, threshold, found[0], found[1], float(given_K.max()))


def precision_recall(truth_N: BoolArray, probability_N: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return precision, recall and threshold (K) of every way to divide the rows, the highest threshold first."""
    hits_K, positive_K, threshold_K = divisions(truth_N, probability_N)
    return hits_K / positive_K, hits_K / hits_K[-1], threshold_K
