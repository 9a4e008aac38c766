"""Prediction-powered inference: equal to ppi-python, sound at its limits, intervals that hold; planning of labels."""

import json
from pathlib import Path

import numpy as np
import ppi_python_values as reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm, t, ttest_1samp

from bothways.errors import InvalidInput
from bothways.evaluation.prediction_powered import (
    Moments,
    Sample,
    estimate_difference,
    estimate_mean,
    powered_mean,
    probability_better,
    separation,
)

FROZEN = json.loads(Path(reference.__file__).with_suffix(".json").read_text())
METHODS = ("ppi++", "ppi", "classical")
WRONG = ((0, 1), (1, 0))


def drawn(rate=0.8, accuracy=0.9, labels=100, others=1000, seed=0):
    rng = np.random.default_rng(seed)
    truth = (rng.random(labels + others) < rate).astype(float)
    judge_scores = np.where(rng.random(labels + others) < accuracy, truth, 1 - truth)
    return Sample(truth[:labels], judge_scores[:labels], judge_scores[labels:])


def ends(estimate):
    return [estimate.value, estimate.low, estimate.high]


# --- equal to ppi-python ---


@pytest.mark.parametrize("kind", reference.SIZES)
@pytest.mark.parametrize("method", ["classical", "ppi"])
def test_means_without_corrections_are_those_of_ppi_python(kind, method):
    moments = Moments.from_sample(Sample(*reference.rows(kind)))
    mean, n, others = powered_mean(moments, method=method), moments.labels, moments.unlabelled
    # The corrections: divisors of n - 1 instead of n, and Student's t.
    judge = mean.power**2 * moments.unlabelled_variance
    variance = (mean.variance - judge / (others - 1)) * (n - 1) / n + judge / others
    reach = norm.ppf(1 - reference.ALPHA / 2) * np.sqrt(variance)
    assert [mean.value, mean.value - reach, mean.value + reach] == pytest.approx(FROZEN[kind][method], rel=1e-9)
    low, high = mean.interval(1 - reference.ALPHA)
    assert (high - low) / 2 == pytest.approx(t.ppf(1 - reference.ALPHA / 2, n - 1) * np.sqrt(mean.variance))


# --- limits ---

vectors = st.integers(3, 40).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(-50, 50), min_size=n, max_size=n),
        st.lists(st.floats(-50, 50), min_size=n, max_size=n),
        st.lists(st.floats(-50, 50), min_size=2, max_size=60),
    )
)


@given(vectors)
@settings(max_examples=60, deadline=None)
def test_a_constant_judge_leaves_the_mean_of_the_labels(data):
    labels, _, others = data
    sample = Sample(labels, [7.0] * len(labels), [7.0] * len(others))
    powered, classical = estimate_mean(sample), estimate_mean(sample, method="classical")
    assert powered.power == 0
    assert powered.value == pytest.approx(classical.value)
    assert powered.value == pytest.approx(np.mean(labels), abs=1e-9)


@given(vectors, st.floats(-100, 100))
@settings(max_examples=60, deadline=None)
def test_a_shift_of_labels_and_scores_shifts_the_interval(data, shift):
    labels, judge_scores, others = (np.array(each) for each in data)
    # With labels of 0 and 1 alone the interval ends at 0 and 1, and a shift would change that.
    labels = np.append(labels, 0.5)
    judge_scores = np.append(judge_scores, 0.5)
    for method in ("ppi++", "ppi", "classical"):
        here = estimate_mean(Sample(labels, judge_scores, others), method=method)
        there = estimate_mean(Sample(labels + shift, judge_scores + shift, others + shift), method=method)
        assert ends(there) == pytest.approx([each + shift for each in ends(here)], abs=1e-5)


@given(vectors, st.floats(0.01, 100))
@settings(max_examples=60, deadline=None)
def test_the_scale_of_the_judge_does_not_matter_to_a_tuned_power(data, scale):
    labels, judge_scores, others = (np.array(each) for each in data)
    judge_scores, others = np.round(judge_scores, 3), np.round(others, 3)
    here = estimate_mean(Sample(labels, judge_scores, others))
    there = estimate_mean(Sample(labels, judge_scores * scale, others * scale))
    assert ends(there) == pytest.approx(ends(here), rel=1e-6, abs=1e-6)


@given(vectors)
@settings(max_examples=60, deadline=None)
def test_a_tuned_power_has_the_least_variance_of_all(data):
    sample = Sample(*data)
    moments = Moments.from_sample(sample)
    best = powered_mean(moments, method="ppi++")
    rows = moments.labels - 2

    def variance(power):
        (label_variance, covariance), (_, judge_variance) = moments.covariance_22
        residual = label_variance - 2 * power * covariance + power**2 * judge_variance
        return residual / moments.labels + power**2 * moments.unlabelled_variance / moments.unlabelled

    others = variance(np.linspace(0, 3, 61))
    assert variance(best.power) <= others.min() + 1e-9 * (1 + abs(others.min()))
    assert best.degrees == max(rows, 1)


def test_a_perfect_judge_gives_the_interval_of_all_rows():
    truth = np.random.default_rng(3).gamma(2, size=100)
    others = np.tile(truth, 10)
    estimate = estimate_mean(Sample(truth, truth, others))
    everything = estimate_mean(Sample(np.tile(truth, 11), np.zeros(1100), []), method="classical")
    assert estimate.power == pytest.approx(10 / 11)
    assert estimate.value == pytest.approx(everything.value)
    # 98 and 999 degrees of freedom, where all rows have 1099
    assert estimate.standard_error == pytest.approx(truth.std() * np.sqrt((1 / 11) ** 2 / 98 + (10 / 11) ** 2 / 999))
    assert estimate.standard_error == pytest.approx(everything.standard_error, rel=2e-3)
    assert estimate.effective_labels == pytest.approx(1100, rel=0.01)


def test_a_good_judge_is_worth_labels_and_a_bad_one_costs_them_if_it_counts_in_full():
    good, bad = drawn(accuracy=0.95), drawn(accuracy=0.6)
    assert estimate_mean(good).effective_labels > 200
    in_full = estimate_mean(bad, method="ppi")
    assert in_full.effective_labels < 60
    assert any("more noise than information" in each for each in in_full.warnings)
    assert estimate_mean(bad, method="classical").effective_labels == pytest.approx(100)


# --- differences ---


@pytest.mark.parametrize("pairing", ["paired", "unpaired"])
@pytest.mark.parametrize("method", METHODS)
def test_a_difference_turns_round_with_its_systems(pairing, method):
    first, second = drawn(rate=0.9), drawn(rate=0.7, seed=1)
    one = estimate_difference(first, second, pairing=pairing, method=method)
    other = estimate_difference(second, first, pairing=pairing, method=method)
    assert one.value == pytest.approx(-other.value, abs=1e-12)
    assert (one.low, one.high) == (pytest.approx(-other.high), pytest.approx(-other.low))
    assert one.low < 0.2 < one.high


def test_the_same_questions_give_a_narrower_difference():
    rng = np.random.default_rng(2)
    hard = rng.random(1200)
    samples = []
    for rate in (0.8, 0.7):
        truth = (hard < rate).astype(float)
        judge_scores = np.where(rng.random(1200) < 0.9, truth, 1 - truth)
        samples.append(Sample(truth[:200], judge_scores[:200], judge_scores[200:]))
    paired = estimate_difference(*samples, pairing="paired")
    unpaired = estimate_difference(*samples, pairing="unpaired")
    assert paired.high - paired.low < 0.85 * (unpaired.high - unpaired.low)
    assert (paired.labels, unpaired.labels) == (200, 400)


def test_an_unpaired_difference_adds_the_variances():
    labels, judge_scores, others = reference.rows("numbers")
    first, second = Sample(labels, judge_scores, others), Sample(2 * labels[:60], judge_scores[:60], others)
    apart = [estimate_mean(each) for each in (first, second)]
    both = estimate_difference(first, second, pairing="unpaired")
    assert both.value == pytest.approx(apart[0].value - apart[1].value)
    assert both.standard_error == pytest.approx(np.hypot(apart[0].standard_error, apart[1].standard_error))


# --- coverage ---


@pytest.mark.parametrize("labels", [20, 50, 150])
@pytest.mark.parametrize(("rate", "accuracy"), [(0.9, 0.95), (0.7, 0.6), (0.8, 0.8)])
def test_the_default_interval_holds_the_truth_in_95_of_100_samples(labels, rate, accuracy):
    draws, rng = 4000, np.random.default_rng(7)
    wrong = 1 - accuracy
    false_ones = min(0.9 * wrong, 0.9 * (1 - rate))  # a generous judge, with whom the uncorrected interval covers least
    cells = [rate - (wrong - false_ones), wrong - false_ones, false_ones, 1 - rate - false_ones]
    counts = rng.multinomial(labels, cells, size=draws) / labels
    others = rng.binomial(2000, cells[0] + cells[2], size=draws) / 2000
    label, judge_scores = counts[:, 0] + counts[:, 1], counts[:, 0] + counts[:, 2]
    moments = Moments(
        labels=labels,
        unlabelled=2000,
        mean_2=np.stack([label, judge_scores]),
        covariance_22=np.array(
            [
                [label * (1 - label), counts[:, 0] - label * judge_scores],
                [counts[:, 0] - label * judge_scores, judge_scores * (1 - judge_scores)],
            ]
        ),
        unlabelled_mean=others,
        unlabelled_variance=others * (1 - others),
    )
    low, high = powered_mean(moments, WRONG, method="ppi++").interval(0.95)
    coverage = np.mean((low <= rate) & (rate <= high))
    assert coverage > 0.94 - 3 * np.sqrt(0.95 * 0.05 / draws)
    low, high = powered_mean(moments, method="ppi++").interval(0.95)
    assert np.mean((low <= rate) & (rate <= high)) < coverage


def test_many_samples_at_once_are_the_same_samples_one_by_one():
    samples = [drawn(labels=40, others=60, seed=seed) for seed in range(5)]
    each = [Moments.from_sample(sample) for sample in samples]
    fields = [name for name in Moments.__dataclass_fields__ if name not in ("labels", "unlabelled")]
    together = Moments(40, 60, **{name: np.stack([getattr(one, name) for one in each], -1) for name in fields})
    low, high = powered_mean(together, WRONG, method="ppi++").interval(0.9)
    for index, sample in enumerate(samples):
        estimate = estimate_mean(sample, level=0.9)
        assert (estimate.low, estimate.high) == (pytest.approx(low[index]), pytest.approx(min(high[index], 1)))


# --- refusals and warnings ---


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
        (lambda s: estimate_mean(s, method="magic"), "method must be one of 'ppi\\+\\+'"),
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
    assert "contained the true value in 94 % of samples" in warnings_of(drawn(labels=29))
    stars = np.arange(20.0) % 5
    assert "contained the true value in 93 % of samples" in warnings_of(Sample(stars, stars, stars))
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
    assert "may not be a random sample" in warnings_of(sample)


def two_systems(rates, labels, others=4000, accuracy=0.85, seed=0):
    return [drawn(rate, accuracy, labels, others, seed=[seed, place]) for place, rate in enumerate(rates)]


def test_the_probability_is_one_minus_the_one_sided_p_value():
    rng = np.random.default_rng(0)
    first, second = rng.normal(0.3, 1, 40), rng.normal(0, 1, 40)
    samples = [Sample(each, np.zeros(40), [0.0, 0.0]) for each in (first, second)]
    difference = estimate_difference(*samples, pairing="paired", method="classical")
    p_value = ttest_1samp(first - second, 0, alternative="greater").pvalue
    assert probability_better(difference) == pytest.approx(1 - p_value)


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
    more = separation(typical(0.8), typical(0.7), pairing="unpaired").labels
    separated = []
    for seed in range(200):
        samples = two_systems((0.8, 0.7), 60 + more, others=4000 - more, seed=seed)
        separated.append(estimate_difference(*samples, pairing="unpaired").low > 0)
    assert np.mean(separated) == pytest.approx(0.8, abs=3 * np.sqrt(0.16 / 200))


def test_nothing_more_is_needed_where_the_interval_leaves_out_zero():
    assert separation(*two_systems((0.9, 0.5), 100), pairing="unpaired").labels == 0


def test_no_number_of_labels_separates_equal_systems():
    first, _ = two_systems((0.8, 0.8), 100)
    assert separation(first, first, pairing="paired").labels is None
    other = Sample([1, 0, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1])
    assert separation(first, other, pairing="unpaired").labels is None
    # Equal systems are told apart by chance alone, at the level of the interval.
    same = separation(first, first, pairing="unpaired")
    assert (same.labels, same.low) == (None, -same.high)
    assert same.power_of_all == pytest.approx(0.05, abs=0.01)
    # Nor do labels without any difference show that there is none.
    assert separation(first, first, pairing="paired").high > 1e-4
    constant = Sample([0.4] * 9, [0.4] * 9, [0.4, 0.4])
    assert separation(constant, constant, pairing="paired").labels is None


def test_the_interval_and_the_power_of_labels_on_all_rows_are_those_of_samples_of_that_size():
    found = separation(typical(0.8, others=240), typical(0.7, others=240), pairing="unpaired")
    drawn = []
    for seed in range(300):
        samples = two_systems((0.8, 0.7), 300, others=1, seed=seed)
        drawn.append(estimate_difference(*samples, pairing="unpaired", method="classical"))
    assert found.labels != 0
    assert np.mean([each.low > 0 for each in drawn]) == pytest.approx(found.power_of_all, abs=0.07)
    assert np.mean([each.high - each.low for each in drawn]) == pytest.approx(found.high - found.low, rel=0.05)


def test_more_certainty_needs_more_labels():
    samples = typical(0.8), typical(0.7)
    usual, strict = (separation(*samples, pairing="unpaired", level=level).labels for level in (0.95, 0.99))
    assert 0 < usual < strict
