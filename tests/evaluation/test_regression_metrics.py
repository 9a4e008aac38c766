"""Regression metrics equal scikit-learn's and SciPy's, in every resample too."""

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics as oracle
from hypothesis import given
from hypothesis import strategies as st

from bothways.errors import InvalidInput
from bothways.evaluation.metrics import regression
from bothways.evaluation.metrics.regression import mean_squared_error, r2, spearman, weighted_pearson

NUMBERS = st.floats(-1e6, 1e6).map(lambda number: round(number, 3))


def pearson(truth, predicted):
    return weighted_pearson(np.asarray(truth), np.asarray(predicted), np.ones((1, len(truth))))[0]


def random_pair(case):
    rng = np.random.default_rng(2)
    truth = rng.normal(size=300) * 3 + 1
    predicted = truth * 0.7 + rng.normal(size=300)
    if case == "ties":
        return np.round(truth), np.round(predicted)
    if case == "far from zero":
        return truth + 1e6, predicted + 1e6
    return truth, predicted


@pytest.mark.parametrize("case", ["ordinary", "ties", "far from zero"])
def test_metrics_equal_the_oracles(case):
    truth, predicted = random_pair(case)
    assert mean_squared_error(truth, predicted) == pytest.approx(oracle.mean_squared_error(truth, predicted), abs=1e-12)
    assert r2(truth, predicted) == pytest.approx(oracle.r2_score(truth, predicted), abs=1e-12)
    assert pearson(truth, predicted) == pytest.approx(scipy.stats.pearsonr(truth, predicted)[0], abs=1e-12)
    assert spearman(truth, predicted) == pytest.approx(scipy.stats.spearmanr(truth, predicted)[0], abs=1e-12)


def test_a_resample_is_worth_what_its_rows_are_worth():
    truth, predicted = random_pair("ties")
    counts_RN = np.random.default_rng(1).integers(0, 4, (5, len(truth))).astype(float)
    for weighted, plain in (
        (weighted_pearson, pearson),
        (regression.weighted_spearman, spearman),
        (regression.weighted_r2, r2),
    ):
        values = weighted(truth, predicted, counts_RN)
        for value, times in zip(values, counts_RN.astype(int), strict=True):
            expected = plain(np.repeat(truth, times), np.repeat(predicted, times))
            assert value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e6 / 3])
def test_a_constant_has_no_correlation(constant):
    varied, flat = np.arange(7.0), np.full(7, constant)
    for correlation in (pearson, spearman):
        assert correlation(varied, flat) == 0.0
        assert correlation(flat, varied) == 0.0
    assert r2(flat, varied) == 0.0
    assert r2(flat, flat) == 1.0


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_correlations_stay_in_range_and_ignore_the_order_of_rows(rows, random):
    truth, predicted = np.array(rows).T
    shuffled_truth, shuffled_predicted = np.array(random.sample(rows, len(rows))).T
    for metric in (pearson, spearman, r2):
        value = metric(truth, predicted)
        assert value == pytest.approx(metric(shuffled_truth, shuffled_predicted), rel=1e-6, abs=1e-6)
        assert value <= 1
        assert metric is r2 or value >= -1


@pytest.mark.parametrize("metric", [mean_squared_error, spearman, r2])
def test_unusable_input_is_refused(metric):
    with pytest.raises(InvalidInput, match="none empty"):
        metric([], [])
    with pytest.raises(InvalidInput, match="expected 2 rows"):
        metric([1.0, 2.0], [1.0])
    with pytest.raises(InvalidInput, match="finite"):
        metric([1.0, np.inf], [1.0, 2.0])


def test_a_report_sets_the_error_beside_that_of_the_mean_of_the_training_rows():
    truth, predicted = random_pair("ordinary")
    report = regression.number_outcomes(truth, predicted, training_mean=1.5).report(resamples=40)
    baseline = oracle.mean_squared_error(truth, np.full(len(truth), 1.5))
    assert report.rmse.value == pytest.approx(oracle.root_mean_squared_error(truth, predicted))
    assert report.training_mean_rmse.value == pytest.approx(baseline**0.5)
    assert report.r2.value == pytest.approx(oracle.r2_score(truth, predicted))
    assert report.training_mean_rmse.low < baseline**0.5 < report.training_mean_rmse.high
    assert report.to_dict()["training_mean"] == 1.5
    against = 1 - oracle.mean_squared_error(truth, predicted) / baseline
    assert f"Always predicting 1.5, the mean of the training rows, has an RMSE of {baseline**0.5:.6g}" in str(report)
    assert f"R2 is {against:.4f}" in str(report)


def test_a_mean_without_an_error_is_nothing_to_compare_with():
    report = regression.number_outcomes([2.0] * 4, [2.0, 2.0, 3.0, 1.0], training_mean=2.0).report(resamples=10)
    assert "has an RMSE of 0 here." in report.summary()
