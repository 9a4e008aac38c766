"""Two models' classes, labels, numbers or similarities of the same rows: is one better, and could it be chance.

The intervals are those of `bothways.evaluation.differences`, the tests those of `bothways.evaluation.paired`.

Shape letters: N rows, C classes or labels, R resamples, K metrics.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from bothways.errors import InvalidInput
from bothways.evaluation import metrics, regression
from bothways.evaluation.bootstrap import Statistic
from bothways.evaluation.differences import ComparisonReport, check_shapes, paired_differences
from bothways.evaluation.inputs import (
    FloatArray,
    class_indices,
    class_probabilities,
    label_matrix,
    paired_vectors,
    probability_array,
)
from bothways.evaluation.metrics import ClassCounts
from bothways.evaluation.paired import mcnemar, permutation_test


def compare_classifications(
    truth_N: ArrayLike, first_NC: ArrayLike, second_NC: ArrayLike, *, resamples: int = 1000, seed: int = 0
) -> ComparisonReport:
    """Two models' class probabilities for the same rows.

    Args:
        truth_N: true class numbers.
        first_NC: the first model's class probabilities.
        second_NC: the second model's, of the same classes in the same order.
        resamples: bootstrap resamples.
        seed: seed of resamples and permutations.

    Raises:
        InvalidInput: no rows, shapes that do not fit, or values that are not probabilities.
    """
    pair = class_probabilities(first_NC), class_probabilities(second_NC)
    check_shapes(*pair)
    classes = int(pair[0].shape[1])
    truth = class_indices(truth_N, "truth", classes=classes, rows=len(pair[0]))
    predicted = [each_NC.argmax(axis=1) for each_NC in pair]
    losses = [
        np.column_stack([metrics.brier_per_row(truth, each_NC), metrics.nll_per_row(truth, each_NC)])
        for each_NC in pair
    ]

    def statistic_of(model: int) -> Statistic:
        def statistic(counts_RN: FloatArray) -> FloatArray:
            counts = ClassCounts.resampled(truth, predicted[model], classes, counts_RN)
            headline = [metrics.accuracy(counts), metrics.macro_f1(counts), metrics.mcc(counts)]
            return np.column_stack([*headline, counts_RN @ losses[model] / len(truth)])

        return statistic

    names = ("accuracy", "macro_f1", "mcc", "brier", "nll")
    first_rows, second_rows = ((*metrics.single_label_rows(truth, each_N, classes), 0, 0) for each_N in predicted)
    sides = statistic_of(0), statistic_of(1)
    found = paired_differences(names, *sides, len(truth), resamples, seed, of_rows=(first_rows, second_rows))
    return ComparisonReport(
        len(truth),
        found,
        (
            mcnemar(predicted[0] == truth, predicted[1] == truth),
            permutation_test(losses[0][:, 1], losses[1][:, 1], of="nll", seed=seed),
        ),
    )


def compare_labellings(
    truth_NC: ArrayLike,
    first_NC: ArrayLike,
    second_NC: ArrayLike,
    *,
    threshold: float = 0.5,
    resamples: int = 1000,
    seed: int = 0,
) -> ComparisonReport:
    """Two models' label probabilities for the same rows.

    Args:
        truth_NC: 0 or 1, whether the row has the label.
        first_NC: the first model's probability of each label.
        second_NC: the second model's, of the same labels in the same order.
        threshold: probability from which a label counts as predicted.
        resamples: bootstrap resamples.
        seed: seed of resamples and permutations.

    Raises:
        InvalidInput: no rows, shapes that do not fit, or values that are not probabilities.
    """
    pair = (
        probability_array(first_NC, "probabilities of the first model", dimensions=2),
        probability_array(second_NC, "probabilities of the second model", dimensions=2),
    )
    check_shapes(*pair)
    truth = label_matrix(truth_NC, "truth", shape=pair[0].shape)
    predicted = [each_NC >= threshold for each_NC in pair]
    right = [(each_NC == truth).all(axis=1) for each_NC in predicted]
    losses = [metrics.label_nll(truth, each_NC).mean(axis=1) for each_NC in pair]

    def statistic_of(model: int) -> Statistic:
        per_row_N2 = np.column_stack([right[model], losses[model]])

        def statistic(counts_RN: FloatArray) -> FloatArray:
            counts = ClassCounts.resampled_labels(truth, predicted[model], counts_RN)
            headline = [metrics.micro_f1(counts), metrics.multi_label_macro_f1(counts)]
            return np.column_stack([*headline, counts_RN @ per_row_N2 / len(truth)])

        return statistic

    names = ("micro_f1", "macro_f1", "subset_accuracy", "nll")
    first_rows, second_rows = ((*metrics.label_set_rows(truth, each_NC), len(truth), 0) for each_NC in predicted)
    sides = statistic_of(0), statistic_of(1)
    found = paired_differences(names, *sides, len(truth), resamples, seed, of_rows=(first_rows, second_rows))
    tests = mcnemar(*right), permutation_test(losses[0], losses[1], of="nll", seed=seed)
    return ComparisonReport(len(truth), found, tests)


def compare_regressions(
    truth_N: ArrayLike, first_N: ArrayLike, second_N: ArrayLike, *, resamples: int = 1000, seed: int = 0
) -> ComparisonReport:
    """Two models' predicted numbers for the same rows; correlations are left out where one is undefined.

    Raises:
        InvalidInput: empty, not finite, or of different lengths.
    """
    truth, first = paired_vectors(truth_N, first_N)
    _, second = paired_vectors(truth_N, second_N)
    errors = [(each_N - truth) ** 2 for each_N in (first, second)]
    related = all(regression.undefined_correlation(truth, each_N) is None for each_N in (first, second))
    correlations = {"pearson": regression.weighted_pearson, "spearman": regression.weighted_spearman} if related else {}

    def statistic_of(predicted_N: FloatArray, errors_N: FloatArray) -> Statistic:
        per_row_N2 = np.column_stack([errors_N, np.sqrt(errors_N)])

        def statistic(counts_RN: FloatArray) -> FloatArray:
            found = [each(truth, predicted_N, counts_RN) for each in correlations.values()]
            return np.column_stack([counts_RN @ per_row_N2 / len(truth), *found])

        return statistic

    names = ("mse", "mae", *correlations)
    sides = statistic_of(first, errors[0]), statistic_of(second, errors[1])
    found = paired_differences(names, *sides, len(truth), resamples, seed)
    tests = (permutation_test(errors[0], errors[1], of="squared error", seed=seed),)
    return ComparisonReport(len(truth), found, tests)


def compare_similarities(
    truth_N: ArrayLike, first_N: ArrayLike, second_N: ArrayLike, *, resamples: int = 1000, seed: int = 0
) -> ComparisonReport:
    """How two models' similarities of the same pairs go with the pairs' scores, whatever the units of either.

    The test exchanges each pair's share of Spearman's correlation, the product of its standardised ranks.

    Raises:
        InvalidInput: empty, not finite, of different lengths, fewer than three rows, or truth or similarities are all
            equal.
    """
    truth, first = regression.correlated_vectors(truth_N, first_N)
    _, second = regression.correlated_vectors(truth_N, second_N)

    def correlations_of(values_N: FloatArray) -> Statistic:
        def statistic(counts_RN: FloatArray) -> FloatArray:
            both = regression.weighted_pearson, regression.weighted_spearman
            return np.column_stack([each(truth, values_N, counts_RN) for each in both])

        return statistic

    sides = correlations_of(first), correlations_of(second)
    found = paired_differences(("pearson", "spearman"), *sides, len(truth), resamples, seed)
    shares = [regression.spearman_shares(truth, each_N) for each_N in (first, second)]
    return ComparisonReport(len(truth), found, (permutation_test(*shares, of="spearman", seed=seed),))


def compare_row_scores(
    first: Mapping[str, ArrayLike], second: Mapping[str, ArrayLike], *, resamples: int = 1000, seed: int = 0
) -> ComparisonReport:
    """Two models' scores of the same rows, for metrics that are the mean of their rows' scores.

    Args:
        first: the first model's scores of each row (N), from 0 to 1, by the name of the metric; the first is tested.
        second: the second model's.
        resamples: bootstrap resamples.
        seed: seed of resamples and permutations.

    Raises:
        InvalidInput: empty, not finite, of different lengths, or of different metrics.
    """
    if not first or list(first) != list(second):
        raise InvalidInput(f"second: expected scores of {', '.join(first)}, got {', '.join(second) or 'none'}")
    pairs = [paired_vectors(first[name], second[name]) for name in first]
    sides_NK = [np.column_stack([pair[side] for pair in pairs]) for side in (0, 1)]
    rows = len(sides_NK[0])

    def means_of(values_NK: FloatArray) -> Statistic:
        return lambda counts_RN: counts_RN @ values_NK / rows

    sides = means_of(sides_NK[0]), means_of(sides_NK[1])
    found = paired_differences(tuple(first), *sides, rows, resamples, seed, of_rows=([rows] * len(first),) * 2)
    return ComparisonReport(rows, found, (permutation_test(*pairs[0], of=next(iter(first)), seed=seed),))
