"""Which system is better, and how many labels would tell."""

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from bothways.evaluation.prediction_powered import Sample, estimate_difference, labels_to_separate, probability_better


def two_systems(rates, labels, others=4000, accuracy=0.85, seed=0):
    rng = np.random.default_rng(seed)
    found = []
    for rate in rates:
        truth = (rng.random(labels + others) < rate).astype(float)
        judge_scores = np.where(rng.random(labels + others) < accuracy, truth, 1 - truth)
        found.append(Sample(truth[:labels], judge_scores[:labels], judge_scores[labels:]))
    return found


def test_the_probability_is_one_minus_the_one_sided_p_value():
    rng = np.random.default_rng(0)
    first, second = rng.normal(0.3, 1, 40), rng.normal(0, 1, 40)
    samples = [Sample(each, np.zeros(40), [0.0, 0.0]) for each in (first, second)]
    difference = estimate_difference(*samples, pairing="paired", method="classical")
    p_value = ttest_1samp(first - second, 0, alternative="greater").pvalue
    assert probability_better(difference) == pytest.approx(1 - p_value)


def test_the_probabilities_of_both_systems_add_up_to_one():
    first, second = two_systems((0.8, 0.75), 100)
    there = probability_better(estimate_difference(first, second, pairing="unpaired"))
    back = probability_better(estimate_difference(second, first, pairing="unpaired"))
    assert there + back == pytest.approx(1)
    assert probability_better(estimate_difference(first, first, pairing="paired")) == pytest.approx(0.5)


def test_the_probability_is_calibrated():
    """Of pairs with a probability of about p, about a share p of the first systems is better."""
    rng = np.random.default_rng(1)
    probabilities, better = [], []
    for seed in range(250):
        gap = rng.normal(0, 0.05)
        samples = two_systems((0.75 + gap / 2, 0.75 - gap / 2), 80, others=500, seed=seed)
        probabilities.append(probability_better(estimate_difference(*samples, pairing="unpaired")))
        better.append(gap > 0)
    probabilities, better = np.array(probabilities), np.array(better)
    sure = (probabilities > 0.8) | (probabilities < 0.2)
    right = np.where(probabilities > 0.5, better, ~better)
    # A flat prior on a population of near ties makes it a little too sure, hence the extra tenth.
    stated = np.where(probabilities > 0.5, probabilities, 1 - probabilities)[sure].mean()
    assert right[sure].mean() > stated - 0.1


def typical(rate, accuracy=0.85, labels=60, others=4000):
    """A sample whose shares are those of the population, in an order that is another for each rate."""
    parts = []
    for rows in (labels, others):
        ones = round(rate * rows)
        truth = np.repeat([1.0, 0.0], [ones, rows - ones])
        wrong = np.zeros(rows, bool)
        wrong[: round((1 - accuracy) * ones)] = True
        wrong[ones : ones + round((1 - accuracy) * (rows - ones))] = True
        order = np.random.default_rng(int(rate * 100)).permutation(rows)
        parts.append((truth[order], np.where(wrong, 1 - truth, truth)[order]))
    return Sample(*parts[0], parts[1][1])


def test_as_many_labels_as_are_asked_for_separate_the_systems_in_four_of_five_cases():
    more = labels_to_separate(typical(0.8), typical(0.7), pairing="unpaired")
    separated = []
    for seed in range(200):
        samples = two_systems((0.8, 0.7), 60 + more, others=4000 - more, seed=seed)
        separated.append(estimate_difference(*samples, pairing="unpaired").low > 0)
    assert np.mean(separated) == pytest.approx(0.8, abs=3 * np.sqrt(0.16 / 200))


def test_nothing_more_is_needed_where_the_interval_leaves_out_zero():
    assert labels_to_separate(*two_systems((0.9, 0.5), 100), pairing="unpaired") == 0


def test_no_number_of_labels_separates_equal_systems():
    first, _ = two_systems((0.8, 0.8), 100)
    assert labels_to_separate(first, first, pairing="paired") is None
    assert labels_to_separate(first, Sample([1, 0, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1]), pairing="unpaired") is None


def test_more_certainty_needs_more_labels():
    samples = two_systems((0.8, 0.7), 60, seed=3)
    usual, strict = (labels_to_separate(*samples, pairing="unpaired", level=level) for level in (0.95, 0.99))
    assert 0 < usual < strict
