"""Two models on the same rows: paired intervals, McNemar and permutations against scipy."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from reports import (
    compare_classifications,
    compare_regressions,
    compare_row_scores,
    compare_similarities,
    words_of_counts,
)

from bothways.errors import InvalidInput
from bothways.evaluation.comparison import compare, mcnemar, permutation_test
from bothways.evaluation.intervals import Estimate
from bothways.evaluation.metrics.classification import class_outcomes, label_outcomes
from bothways.evaluation.metrics.regression import number_outcomes, similarity_outcomes, spearman_shares
from bothways.evaluation.metrics.tagging import span_outcomes, tag_outcomes
from bothways.evaluation.tag_schemes import TagSpan
from bothways.evaluation.temperature import softmax


@given(st.integers(0, 400), st.integers(0, 400))
def test_mcnemars_p_value_is_that_of_the_exact_binomial_test(first, second):
    expected = scipy.stats.binomtest(first, first + second).pvalue if first + second else 1.0
    right = np.repeat([1, 0, 1], [first, second, 3])
    other = np.repeat([0, 1, 1], [first, second, 3])
    test = mcnemar(right, other)
    assert (test.only_first, test.only_second) == (first, second)
    assert test.p_value == pytest.approx(expected, rel=1e-9)


def test_the_permutation_test_agrees_with_scipy():
    random = np.random.default_rng(0)
    first, second = random.normal(0, 1, 40), random.normal(0.35, 1, 40)
    expected = scipy.stats.permutation_test(
        (first, second),
        lambda a, b, axis: (a - b).mean(axis),
        permutation_type="samples",
        n_resamples=20_000,
        vectorized=True,
        rng=1,
    ).pvalue
    found = permutation_test(first, second, of="score", flips=20_000).p_value
    assert found == pytest.approx(expected, abs=4 * np.sqrt(expected / 20_000))


def test_equal_models_differ_by_nothing_and_p_is_1():
    stated_NC = softmax(np.random.default_rng(0).normal(size=(60, 3)))
    report = compare_classifications(np.arange(60) % 3, stated_NC, stated_NC, resamples=50)
    assert all(each.difference == Estimate(0, 0, 0) for each in report.metrics.values())
    assert [test.p_value for test in report.tests] == [1.0, 1.0]


def test_any_mean_of_row_scores_can_be_compared():
    first, second = {"exact_match": [1, 0, 1, 0], "f1": [1, 0.5, 1, 0]}, {"exact_match": [1] * 4, "f1": [1] * 4}
    report = compare_row_scores(first, second, resamples=50)
    assert report.metrics["exact_match"].difference.value == 0.5
    assert report.metrics["f1"].difference.value == 0.375
    assert [test.of for test in report.tests] == ["exact_match"]
    with pytest.raises(InvalidInput, match=r"exact_match, f1\), got f1"):
        compare_row_scores(first, {"f1": [1] * 4})


def test_similarities_are_compared_by_their_correlations_whatever_their_units():
    random = np.random.default_rng(4)
    truth = random.normal(size=80)
    close, far = truth + random.normal(size=80) / 4, truth + random.normal(size=80) * 2
    report = compare_similarities(truth, far, 5 + 100 * close, resamples=200)
    assert report.metrics["spearman"].first.value == pytest.approx(scipy.stats.spearmanr(truth, far)[0])
    assert report.metrics["pearson"].second.value == pytest.approx(scipy.stats.pearsonr(truth, close)[0])
    assert report.metrics["spearman"].difference.low > 0
    assert report.tests[0].p_value < 0.01
    assert spearman_shares(truth, far).mean() == pytest.approx(scipy.stats.spearmanr(truth, far)[0])
    assert not spearman_shares(truth, np.ones(80)).any()


def test_correlations_that_are_undefined_are_not_compared():
    assert set(compare_regressions([1.0, 2.0], [1.0, 2.0], [2.0, 1.0], resamples=5).metrics) == {"mse", "mae"}
    constant = compare_regressions([1.0, 2.0, 4.0], [1.0, 2.0, 3.0], [2.0] * 3, resamples=5)
    assert set(constant.metrics) == {"mse", "mae"}
    with pytest.raises(InvalidInput, match="at least 3 rows, got 2"):
        compare_similarities([1.0, 2.0], [0.1, 0.2], [0.2, 0.1])
    with pytest.raises(InvalidInput, match="all 3 true values are 1"):
        compare_similarities([1.0] * 3, [0.1, 0.2, 0.4], [0.2, 0.1, 0.4])


def test_models_of_different_shapes_or_rows_are_refused():
    with pytest.raises(InvalidInput, match="have the same labels; only one of them has 'c'"):
        compare_classifications([0], [[0.5, 0.5]], [[0.2, 0.3, 0.5]])
    with pytest.raises(InvalidInput):
        compare_regressions([0.0, 1.0], [0.0, 1.0], [0.0])
    with pytest.raises(InvalidInput, match="expected 1 for each row with a right answer and 0"):
        mcnemar([0.5], [1])
    with pytest.raises(InvalidInput, match="2 rows"):
        mcnemar([1, 0], [1])
    whole, part = (tag_outcomes(words_of_counts([[1, 1]] * texts), "ab") for texts in (5, 3))
    with pytest.raises(InvalidInput, match="shape"):
        compare(whole, part)
    with pytest.raises(InvalidInput, match="flips"):
        permutation_test([1.0], [2.0], of="score", flips=0)
    with pytest.raises(InvalidInput, match="a seed of at least 0"):
        permutation_test([1.0], [2.0], of="score", seed=-1)


def spans_of(count):
    """Outcomes of two texts: a span in the first, and so many in the second."""
    spans = [[TagSpan("PER", place, place + 1) for place in range(each)] for each in (1, count)]
    return span_outcomes(spans, spans, words_of_counts([[1, 1], [1, count]]), ["PER"])


STATED = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])


@pytest.mark.parametrize(
    ("first", "second", "wrong"),
    [
        (
            class_outcomes(["a", "b"], np.array([0, 1, 0]), STATED),
            class_outcomes(["b", "a"], np.array([1, 1, 0]), STATED[:, ::-1]),
            "2 of 3 rows, first in row 2",
        ),
        (
            label_outcomes(["a", "b"], np.array([[1, 0], [1, 1], [0, 0]]), STATED),
            label_outcomes(["b", "a"], np.array([[0, 1], [1, 1], [0, 1]]), STATED[:, ::-1]),
            "1 of 3 rows, first in row 3",
        ),
        (
            number_outcomes(np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, 2.0])),
            number_outcomes(np.array([1.0, 1.0, 2.0]), np.array([0.0, 1.0, 2.0])),
            "1 of 3 rows, first in row 1",
        ),
        (
            similarity_outcomes(np.array([0.0, 1.0, 2.0]), np.array([0.0, 0.5, 1.0])),
            similarity_outcomes(np.array([0.0, 1.0, 5.0]), np.array([0.0, 0.5, 1.0])),
            "1 of 3 rows, first in row 3",
        ),
        (
            spans_of(1),
            spans_of(2),
            "1 of 2 rows, first in row 2",
        ),
        (
            tag_outcomes(words_of_counts([[1, 1], [1, 1]]), "AB"),
            tag_outcomes(words_of_counts([[1, 1], [1, 2]]), "AB"),
            "1 of 2 rows, first in row 2",
        ),
    ],
)
def test_models_that_are_judged_by_labels_of_their_own_are_not_compared(first, second, wrong):
    for each in (first, second):
        compare(each, each, resamples=5)
    with pytest.raises(InvalidInput, match=f"evaluated on different labels in {wrong}.*Name the columns"):
        compare(first, second)
