"""Prediction-powered inference: samples and requests that are refused, and warnings."""

import numpy as np
import pytest
from ppi_samples import drawn

from bothways.errors import InvalidInput
from bothways.evaluation.prediction_powered import (
    SHIFT_LEVEL,
    Sample,
    estimate_difference,
    estimate_mean,
    shift_p_value,
)

METHODS = ("ppi++", "ppi", "classical")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_labels_of_one_class_do_not_make_certain(method, label):
    sample = Sample([label] * 40, [label] * 40, [label] * 300 + [1 - label] * 100)
    estimate = estimate_mean(sample, method=method)
    assert any(f"all 40 labels are {label:g}" in each for each in estimate.warnings)
    assert estimate.high - estimate.low > 0.03


@pytest.mark.parametrize("method", METHODS)
def test_proportions_stay_between_0_and_1(method):
    estimate = estimate_mean(drawn(rate=0.97, labels=30, seed=4), method=method)
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [], [1]), "labels: expected 1 axes, none empty"),
        (([1], [1], [1]), "labels: expected at least 2, got 1; label more rows"),
        (([1, 0], [1], [1]), "judge_scores: expected 2 scores, one for each label, got 1"),
        (([1, np.nan], [1, 1], [1]), "labels: expected finite numbers"),
        (([1, 0], [1, np.inf], [1]), "judge_scores: expected finite numbers"),
        (([1, 0], [1, 0], [[1, 0]]), "unlabelled_judge_scores: expected 1 axes"),
        ((["yes", "no"], [1, 0], [1]), "labels: expected an array of numbers"),
    ],
)
def test_unusable_samples_are_refused(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        Sample(*arguments)


def test_a_sample_does_not_change_with_the_arrays_it_was_made_of():
    labels = np.array([1.0, 0.0, 1.0])
    sample = Sample(labels, labels, labels)
    labels[:] = 5
    assert sample.labels.tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match="read-only"):
        sample.judge_scores[0] = 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: estimate_mean(s, level=95), "level: expected a probability between 0 and 1"),
        (lambda _: estimate_mean(Sample([1, 0], [1, 0], []), method="ppi"), "'ppi' expects rows without labels"),
        (lambda s: estimate_mean(s, method="magic"), "method: expected one of 'ppi\\+\\+'"),
        (lambda s: estimate_difference(s, drawn(labels=99), pairing="paired"), "got 100 and 99 rows"),
    ],
)
def test_unusable_requests_are_refused(call, message):
    with pytest.raises(InvalidInput, match=message):
        call(drawn())


def warnings_of(sample, **options):
    return " ".join(estimate_mean(sample, **options).warnings)


def test_a_good_sample_has_no_warnings():
    assert estimate_mean(drawn()).warnings == ()


def test_fewer_than_30_labels_are_named_with_what_the_interval_is_worth():
    assert "29 labels are fewer than 30: in simulations" in warnings_of(drawn(labels=29))
    assert "held the truth in 94 % of samples" in warnings_of(drawn(labels=29))
    stars = np.arange(20.0) % 5
    assert "held the truth in 93 % of samples" in warnings_of(Sample(stars, stars, stars))
    both = estimate_difference(drawn(), drawn(labels=10), pairing="unpaired").warnings
    assert [each.split(":")[0] for each in both if "fewer than 30" in each] == ["second"]
    assert "fewer than 30" not in warnings_of(drawn(labels=30))


def test_a_judge_that_knows_nothing_is_named():
    rng = np.random.default_rng(0)
    labels = (rng.random(100) < 0.5).astype(float)
    assert "next to nothing" in warnings_of(Sample(labels, rng.random(100), rng.random(500)))
    assert "same score" in warnings_of(Sample(labels, np.ones(100), np.ones(500)))
    assert "next to nothing" in warnings_of(Sample(labels, 1 - labels, rng.random(500) < 0.5))
    assert "no rows without labels" in warnings_of(Sample(labels, labels, []))


def test_a_biased_judge_is_named():
    rng = np.random.default_rng(0)
    truth = (rng.random(1200) < 0.6).astype(float)
    judge_scores = np.where(rng.random(1200) < 0.6, 1.0, truth)
    text = warnings_of(Sample(truth[:200], judge_scores[:200], judge_scores[200:]))
    assert "above the labels" in text
    assert "above the labels" not in warnings_of(
        Sample(truth[:200], judge_scores[:200], judge_scores[200:]), method="classical"
    )


@pytest.mark.parametrize("scores", [False, True])
def test_labelled_rows_that_are_no_random_sample_are_named(scores):
    rng = np.random.default_rng(1)
    labelled, others = (
        drawn(rate=0.44, accuracy=0.8, labels=300, others=10),
        drawn(rate=0.65, accuracy=0.8, others=4000),
    )
    noise = (lambda size: rng.normal(0, 0.1, size)) if scores else np.zeros
    sample = Sample(labelled.labels, labelled.judge_scores + noise(300), others.unlabelled_judge_scores + noise(4000))
    assert "perhaps not a random sample" in warnings_of(sample)


def test_one_in_a_hundred_random_samples_is_suspected():
    alarms = sum(shift_p_value(drawn(rate=0.5, labels=200, seed=seed)) < SHIFT_LEVEL for seed in range(300))
    assert alarms <= 9  # Fisher's test is conservative; 3 are expected at most, and 9 is 3.5 standard errors more
