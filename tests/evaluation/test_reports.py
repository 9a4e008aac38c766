"""Reports: the numbers of the metrics, honest intervals, plain JSON and a short table."""

import math
import time
import tracemalloc

import numpy as np
import pytest
import sklearn.metrics as oracle
from hypothesis import given
from hypothesis import strategies as st
from reports import classification_report, multi_label_report, regression_report

from bothways.errors import InvalidInput
from bothways.evaluation.temperature import softmax
from bothways.text.windows import TextsRead


@pytest.mark.parametrize(
    ("truth", "predicted", "there"),
    [
        ([1.0], [2.0], set()),
        ([1.0, 2.0], [1.0, 3.0], set()),
        ([2.0] * 4, [1.0, 2.0, 3.0, 4.0], set()),
        ([1.0, 2.0, 3.0, 5.0], [2.0] * 4, {"r2"}),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 2.5], {"pearson", "spearman", "r2"}),
    ],
)
def test_numbers_that_are_undefined_are_left_out_of_a_regression_report(truth, predicted, there):
    report = regression_report(truth, predicted, resamples=20)
    assert set(report.estimates) == {"mse", "mae", "rmse", *there}
    assert report.mse.value == pytest.approx(oracle.mean_squared_error(truth, predicted))
    assert {"pearson", "spearman", "r2"} & set(report.to_dict()) == there
    assert "mse" in report.summary()


def test_every_metric_of_a_report_is_that_of_scikit_learn():
    rng = np.random.default_rng(4)
    probabilities, draws = rng.dirichlet(np.ones(4), 200), rng.random((200, 4))
    truth, sets = rng.integers(0, 4, 200), (draws < probabilities).astype(int)
    predicted, found = probabilities.argmax(1), (probabilities >= 0.3).astype(int)
    report, labelled = (
        classification_report("abcd", truth, probabilities, resamples=5),
        multi_label_report("abcd", sets, probabilities, threshold=0.3, resamples=5),
    )
    expected = {
        "accuracy": oracle.accuracy_score(truth, predicted),
        "macro_f1": oracle.f1_score(truth, predicted, average="macro"),
        "mcc": oracle.matthews_corrcoef(truth, predicted),
        "brier": oracle.brier_score_loss(truth, probabilities, labels=range(4)),
        "nll": oracle.log_loss(truth, probabilities),
    }
    assert {name: report.estimates[name].value for name in expected} == pytest.approx(expected)
    expected = {
        "micro_f1": oracle.f1_score(sets, found, average="micro"),
        "macro_f1": oracle.f1_score(sets, found, average="macro"),
        "subset_accuracy": oracle.accuracy_score(sets, found),
        "hamming_loss": oracle.hamming_loss(sets, found),
        "brier": oracle.mean_squared_error(sets, probabilities),
        "nll": oracle.log_loss(sets.ravel(), probabilities.ravel()),
    }
    assert {name: labelled.estimates[name].value for name in expected} == pytest.approx(expected)


def test_the_majority_of_label_sets_is_scored_as_a_prediction_for_every_row():
    sets = np.array([[1, 0], [1, 1], [1, 0], [1, 0], [1, 1], [1, 0]])
    report = multi_label_report("ab", sets, np.full((6, 2), 0.5), resamples=5)
    always = np.tile([1, 0], (6, 1))
    assert report.values["majority_micro_f1"] == pytest.approx(oracle.f1_score(sets, always, average="micro"))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12))
def test_the_smallest_and_most_degenerate_data_give_finite_reports(rows):
    truth, predicted = np.array(rows).T
    one_hot = np.eye(3)[predicted]
    reports = (
        classification_report("abc", truth, one_hot, resamples=5),
        multi_label_report("abc", np.eye(3)[truth], one_hot, resamples=5),
        regression_report(truth, predicted, resamples=5),
    )
    for report in reports:
        for each in report.estimates.values():
            assert all(map(math.isfinite, (each.value, each.low, each.high)))


def test_a_thousand_resamples_of_ten_thousand_rows_and_150_classes_are_quick_and_small():
    rng = np.random.default_rng(0)
    probabilities = softmax(rng.normal(size=(10_000, 150)) * 3)
    truth = rng.integers(0, 150, 10_000)
    tracemalloc.start()
    start = time.process_time()
    report = classification_report([str(index) for index in range(150)], truth, probabilities)
    seconds, (_, peak_bytes) = time.process_time() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 3
    # All draws at once would take 80 MB, their counts as much again, and confusion matrices 180 MB.
    assert peak_bytes < 80e6
    assert report.accuracy.low < 1 / 150 < report.accuracy.high


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: classification_report("ab", [], np.zeros((0, 2))), "none empty"),
        (lambda: classification_report("abc", [0], [[0.5, 0.5]]), "expected 2 different names"),
        (lambda: classification_report("aa", [0], [[0.5, 0.5]]), "1 different"),
        (lambda: classification_report("ab", [0], [[3.0, -1.0]]), "apply softmax"),
        (lambda: classification_report("ab", [0, 1], [[0.5, 0.5]]), "expected 1 rows"),
        (lambda: classification_report("ab", [0], [[0.5, 0.5]], resamples=0), "1 resample"),
        (lambda: classification_report("ab", [0], [[0.5, 0.5]], bins=0), "bins"),
        (lambda: multi_label_report("ab", [[1]], [[0.5, 0.5]]), "shape"),
        (lambda: multi_label_report("a", [[1]], [[5.0]]), "from 0 to 1"),
        (lambda: regression_report([], []), "none empty"),
        (lambda: regression_report([1.0], [1.0, 2.0]), "expected 1 rows"),
    ],
)
def test_unusable_input_is_refused_with_what_was_expected(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()


@pytest.mark.parametrize(
    ("windows", "dropped", "said"),
    [
        ([1, 1], [0, 0], ""),
        ([1, 3], [0, 0], "1 of 2 texts were read in several windows"),
        ([1, 1, 1], [0, 4, 3], "2 of 3 texts were truncated: 7 tokens were not read"),
        (
            [2, 1],
            [0, 5],
            "1 of 2 texts were read in several windows; 1 of 2 texts were truncated: 5 tokens were not read",
        ),
    ],
)
def test_a_report_says_how_its_texts_were_read(windows, dropped, said):
    assert TextsRead.of(windows, dropped).summary() == said
