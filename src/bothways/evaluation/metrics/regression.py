"""Regression metrics: MSE and its root, MAE, Pearson and Spearman correlation, and R2.

A correlation with a constant is undefined; it is 0.0 here, so that a training loop can compare it. Reports omit or
refuse undefined correlations: see `undefined_correlation`.

Shape letters: N rows, P pairs of them, R bootstrap resamples, G groups of equal values.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from bothways.errors import InvalidInput
from bothways.evaluation.inputs import FloatArray, paired_vectors
from bothways.evaluation.intervals import CHUNK_CELLS
from bothways.evaluation.metrics.classification import group_sums
from bothways.evaluation.outcomes import Outcomes
from bothways.evaluation.report import Report
from bothways.progress import figure

_CONSTANT = 1e-13
"""A standard deviation below this share of the largest magnitude counts as rounding error."""

MIN_ROWS = 3
"""Minimum number of rows for a correlation: any two rows lie on a line."""


def undefined_correlation(truth_N: FloatArray, predicted_N: FloatArray) -> str | None:
    """Explain why a correlation of two vectors is undefined; None if it is defined."""
    if len(truth_N) < MIN_ROWS:
        return f"a correlation needs at least {MIN_ROWS} rows, got {len(truth_N)}"
    once_1N = np.ones((1, len(truth_N)))
    for name, values_N in (("true values", truth_N), ("predicted values", predicted_N)):
        if _centred(values_N, once_1N)[1][0] == 0:
            return f"a correlation needs numbers that differ, but all {len(truth_N)} {name} are {values_N[0]:g}"
    return None


def correlated_vectors(truth: ArrayLike, predicted: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Check two vectors (N,) whose correlation is defined."""
    truth_N, predicted_N = paired_vectors(truth, predicted)
    why = undefined_correlation(truth_N, predicted_N)
    if why is not None:
        raise InvalidInput(f"{why}. Give more rows, or check the column of the scores.")
    return truth_N, predicted_N


def mean_squared_error(truth_N: ArrayLike, predicted_N: ArrayLike) -> float:
    """Return the mean squared difference, in squared units of the truth."""
    truth, predicted = paired_vectors(truth_N, predicted_N)
    return float(((truth - predicted) ** 2).mean())


def spearman(truth_N: ArrayLike, predicted_N: ArrayLike) -> float:
    """Return Spearman's rank correlation, -1 to 1, ties at their average rank; 0.0 if either vector is constant."""
    truth, predicted = paired_vectors(truth_N, predicted_N)
    return float(weighted_spearman(truth, predicted, np.ones((1, len(truth))))[0])


def r2(truth_N: ArrayLike, predicted_N: ArrayLike) -> float:
    """Return the explained share of the truth's variance, at most 1; for a constant truth, 1.0 if exact, else 0.0."""
    truth, predicted = paired_vectors(truth_N, predicted_N)
    return float(weighted_r2(truth, predicted, np.ones((1, len(truth))))[0])


def number_outcomes(truth_N: ArrayLike, predicted_N: ArrayLike, *, training_mean: float | None = None) -> Outcomes:
    """Return the outcomes of predicted values; correlations and R2 are left out where they are undefined.

    R2 is scikit-learn's, relative to the mean of these rows. With ``training_mean``, the mean of the training rows, the
    RMSE of always predicting it is reported as a baseline.
    """
    truth, predicted = paired_vectors(truth_N, predicted_N)
    squares_N = (truth - predicted) ** 2
    losses_NK = np.column_stack([squares_N, np.abs(truth - predicted)])
    further: dict[str, Callable[[FloatArray, FloatArray, FloatArray], FloatArray]] = {}
    if undefined_correlation(truth, predicted) is None:
        further |= {"pearson": weighted_pearson, "spearman": weighted_spearman}
    if undefined_correlation(truth, truth) is None:
        further["r2"] = weighted_r2

    further["rmse"] = _weighted_rmse
    baseline = training_mean is not None and math.isfinite(training_mean)
    notes: tuple[str, ...] = ()
    if baseline:
        answered = np.full(len(truth), training_mean)
        further["training_mean_rmse"] = lambda truth_N, _, counts_RN: _weighted_rmse(truth_N, answered, counts_RN)
        notes = (_against_the_mean(truth, squares_N, answered),)

    def statistic(counts_RN: FloatArray) -> FloatArray:
        others = [each(truth, predicted, counts_RN) for each in further.values()]
        return np.column_stack([counts_RN @ losses_NK / len(truth), *others])

    return Outcomes(
        frame=Report(
            kind="regression",
            title=f"{len(truth)} rows",
            counts={"n": len(truth)},
            values={"training_mean": training_mean} if baseline else {},
            notes=notes,
        ),
        truth=truth,
        metrics=("mse", "mae", *further),
        statistic=statistic,
        of_rows=[0] * (2 + len(further)),
        compared=("mse", "mae", "pearson", "spearman"),
        tested=("squared error", squares_N),
    )


def similarity_outcomes(scores_N: ArrayLike, cosines_N: ArrayLike) -> Outcomes:
    """Return the outcomes of predicted similarities of pairs (N), compared with human scores (N) in any units.

    The tested quantity is each pair's share of Spearman's correlation, the product of its standardised ranks.
    """
    scores, cosines = correlated_vectors(scores_N, cosines_N)
    names = ("pearson", "spearman")
    return Outcomes(
        frame=Report(kind="similarity", title=f"{len(scores)} pairs", counts={"n": len(scores)}),
        truth=scores,
        metrics=names,
        statistic=lambda counts_RN: np.column_stack(
            [each(scores, cosines, counts_RN) for each in (weighted_pearson, weighted_spearman)]
        ),
        of_rows=[0, 0],
        compared=names,
        tested=("spearman", spearman_shares(scores, cosines)),
    )


def agreement_outcomes(theirs_NN: FloatArray, ours_NN: FloatArray) -> Outcomes:
    """Return the outcomes of an embedder: the rank correlation of its cosines of all text pairs with another's (N, N).

    Texts are resampled and not pairs, since the pairs of one text depend on each other; a text that is drawn twice
    forms no pair with itself. Computing one resample of 512 texts takes 20 ms.
    """
    first_P, second_P = np.triu_indices(len(theirs_NN), 1)
    theirs_P, ours_P = correlated_vectors(theirs_NN[first_P, second_P], ours_NN[first_P, second_P])
    chunk = max(1, CHUNK_CELLS // len(theirs_P))

    def of_chunk(counts_RN: FloatArray) -> FloatArray:
        counts_RP = counts_RN[:, first_P] * counts_RN[:, second_P]
        # A resample of a single text has no pairs, so it takes the value of all texts.
        counts_RP[~counts_RP.any(axis=1)] = 1.0
        return weighted_spearman(theirs_P, ours_P, counts_RP)

    def statistic(counts_RN: FloatArray) -> FloatArray:
        chunks = [of_chunk(counts_RN[start : start + chunk]) for start in range(0, len(counts_RN), chunk)]
        return np.concatenate(chunks)[:, None]

    texts = len(theirs_NN)
    return Outcomes(
        frame=Report(kind="agreement", title=f"{texts} texts", counts={"n": texts}),
        truth=theirs_NN,
        metrics=("spearman_with_teacher",),
        statistic=statistic,
        of_rows=[0],
    )


def weighted_pearson(x: FloatArray, y: FloatArray, counts_RN: FloatArray) -> FloatArray:
    """Return Pearson's correlation (R,) of ``x`` and ``y``, each (N,) or (R, N), in every resample."""
    x_RN, x_deviation_R = _centred(x, counts_RN)
    y_RN, y_deviation_R = _centred(y, counts_RN)
    covariance_R = (counts_RN * x_RN * y_RN).sum(axis=1) / counts_RN.sum(axis=1)
    scale_R = x_deviation_R * y_deviation_R
    correlation_R: FloatArray = np.divide(covariance_R, scale_R, out=np.zeros(len(counts_RN)), where=scale_R != 0)
    return correlation_R.clip(-1.0, 1.0)


def weighted_spearman(x_N: FloatArray, y_N: FloatArray, counts_RN: FloatArray) -> FloatArray:
    """Return Spearman's correlation (R,) of ``x_N`` and ``y_N`` in every resample."""
    return weighted_pearson(_average_ranks(x_N, counts_RN), _average_ranks(y_N, counts_RN), counts_RN)


def spearman_shares(x_N: FloatArray, y_N: FloatArray) -> FloatArray:
    """Return the products of standardised ranks (N), whose mean is Spearman's correlation; 0 if either is constant."""
    once_1N = np.ones((1, len(x_N)))
    standard: list[FloatArray] = []
    for values_N in (x_N, y_N):
        deviations_1N, deviation_1 = _centred(_average_ranks(values_N, once_1N), once_1N)
        standard.append(deviations_1N[0] / deviation_1[0] if deviation_1[0] else np.zeros(len(values_N)))
    return standard[0] * standard[1]


def weighted_r2(truth_N: FloatArray, predicted_N: FloatArray, counts_RN: FloatArray) -> FloatArray:
    """Return R2 (R,) in every resample, against the mean of the resample."""
    _, deviation_R = _centred(truth_N, counts_RN)
    error_R = counts_RN @ (truth_N - predicted_N) ** 2 / counts_RN.sum(axis=1)
    unexplained_R = np.where(error_R == 0, 0.0, 1.0)
    np.divide(error_R, deviation_R**2, out=unexplained_R, where=deviation_R != 0)
    explained_R: FloatArray = 1 - unexplained_R
    return explained_R


def _weighted_rmse(truth_N: FloatArray, predicted_N: FloatArray, counts_RN: FloatArray) -> FloatArray:
    error_R: FloatArray = np.sqrt(counts_RN @ (truth_N - predicted_N) ** 2 / counts_RN.sum(axis=1))
    return error_R


def _against_the_mean(truth_N: FloatArray, squares_N: FloatArray, answered_N: FloatArray) -> str:
    baseline = mean_squared_error(truth_N, answered_N)
    share = f"; relative to that, R2 is {figure(1 - squares_N.mean() / baseline)}" if baseline else ""
    return (
        f"Always predicting {answered_N[0]:.6g}, the mean of the training rows, has an RMSE of "
        f"{math.sqrt(baseline):.6g} here{share}. The metric r2 is relative to the mean of these rows."
    )


def _centred(x: FloatArray, counts_RN: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return deviations (R, N) from each resample's mean, and standard deviations (R,), exactly 0 if constant."""
    rows_R = counts_RN.sum(axis=1)
    mean_R = (counts_RN * x).sum(axis=1) / rows_R
    deviations_RN = x - mean_R[:, None]
    deviation_R = np.sqrt((counts_RN * deviations_RN**2).sum(axis=1) / rows_R)
    return deviations_RN, np.where(deviation_R <= _CONSTANT * np.abs(x).max(), 0.0, deviation_R)


def _average_ranks(x_N: FloatArray, counts_RN: FloatArray) -> FloatArray:
    """Return the average rank (R, N) of each row's value in the resample, from 1."""
    values_G, group_N = np.unique(x_N, return_inverse=True)
    counts_RG = group_sums(counts_RN, group_N.astype(np.int64), len(values_G))
    ranks_RG = np.cumsum(counts_RG, axis=1) - (counts_RG - 1) / 2
    return ranks_RG[:, group_N]
