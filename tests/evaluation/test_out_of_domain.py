"""Out-of-domain metrics against scikit-learn, thresholds, and detectors on data whose outside is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.covariance import LedoitWolf
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from sklearn.neighbors import NearestNeighbors

from bothways.errors import InvalidInput
from bothways.evaluation.detectors import (
    Cosine,
    DetectorInput,
    Energy,
    Mahalanobis,
    MaxSoftmax,
    Neighbours,
    out_of_domain_threshold,
    threshold_between,
)
from bothways.evaluation.out_of_domain import auroc, out_of_domain_report


@given(st.integers(0, 2**16), st.integers(1, 40), st.integers(1, 40), st.integers(1, 30))
def test_areas_are_those_of_scikit_learn_with_and_without_ties(seed, inside, outside, values):
    random = np.random.default_rng(seed)
    inside_N, outside_M = random.integers(0, values, inside), random.integers(0, values + 5, outside)
    truth, scores = np.repeat([0, 1], [inside, outside]), np.concatenate([inside_N, outside_M])
    assert auroc(inside_N, outside_M) == pytest.approx(roc_auc_score(truth, scores))
    report = out_of_domain_report(inside_N, outside_M, resamples=1)
    assert report.auroc.value == auroc(inside_N, outside_M)
    assert report.aupr.value == pytest.approx(average_precision_score(truth, scores))


@given(st.integers(0, 2**16), st.integers(1, 60))
def test_the_share_that_passes_is_read_off_the_roc_curve(seed, inside):
    random = np.random.default_rng(seed)
    inside_N, outside_M = random.integers(0, 20, inside), random.integers(3, 30, 25)
    # Theirs calls the inside positive, by a falling score.
    truth, scores = np.repeat([1, 0], [inside, 25]), -np.concatenate([inside_N, outside_M])
    passed, found, _ = roc_curve(truth, scores, drop_intermediate=False)
    report = out_of_domain_report(inside_N, outside_M, resamples=1)
    assert report.fpr95.value == pytest.approx(passed[np.argmax(found >= 0.95 - 1e-12)])


def test_a_threshold_keeps_new_rows_as_promised():
    random = np.random.default_rng(0)
    kept = [
        (random.normal(size=2_000) <= out_of_domain_threshold(random.normal(size=100), 0.9)).mean() for _ in range(300)
    ]
    assert np.mean(kept) == pytest.approx(0.9 + 0.1 / 101, abs=3 * np.sqrt(0.09 / 100 / 300))


def test_a_threshold_between_two_kinds_is_where_balanced_accuracy_is_best():
    assert threshold_between([0, 1, 2, 3], [4, 5, 6]) == 3.5
    assert threshold_between([0, 1, 2, 5], [4, 5, 6, 7]) == 3
    random = np.random.default_rng(0)
    inside_N, outside_M = random.normal(0, 1, 3_000), random.normal(2, 1, 3_000)
    assert threshold_between(inside_N, outside_M) == pytest.approx(1, abs=0.25)


@pytest.mark.parametrize("call", [auroc, threshold_between, out_of_domain_report])
def test_no_rows_and_scores_that_are_not_finite_are_refused(call):
    with pytest.raises(InvalidInput):
        call([], [1.0])
    with pytest.raises(InvalidInput):
        call([1.0], [float("nan")])


@pytest.mark.parametrize("kept", [0.0, 1.0, 2.0])
def test_a_share_to_keep_outside_of_0_to_1_is_refused(kept):
    with pytest.raises(InvalidInput):
        out_of_domain_threshold([1.0], kept)


def clusters(rows, classes=4, layers=2, width=8, seed=0):
    """Features around one centre for each class, on stretched axes, and their classes."""
    random = np.random.default_rng(seed)
    centres_CLD = np.random.default_rng(99).normal(0, 4, (classes, layers, width))
    labels_N = random.integers(0, classes, rows)
    stretch_D = np.geomspace(0.1, 2, width)
    return centres_CLD[labels_N] + random.normal(size=(rows, layers, width)) * stretch_D, labels_N


def detectors(features_MLD, labels_M):
    return [
        Mahalanobis.fit(features_MLD, labels_M, 4),
        Neighbours.fit(features_MLD, 5),
        Cosine.fit(features_MLD, labels_M, 4),
    ]


@pytest.mark.parametrize("number", range(3))
def test_detectors_of_features_tell_clusters_from_other_places(number):
    detector = detectors(*clusters(400))[number]
    inside = DetectorInput.of(np.zeros((200, 4)), clusters(200, seed=1)[0])
    elsewhere = np.random.default_rng(2).normal(0, 4, (200, 2, 8))
    outside = DetectorInput.of(np.zeros((200, 4)), elsewhere)
    assert auroc(detector.score(inside), detector.score(outside)) > 0.97


def test_scores_of_logits_are_their_formulas():
    logits_NC = np.random.default_rng(0).normal(0, 3, (20, 5))
    evidence = DetectorInput.of(logits_NC)
    stated_NC = np.exp(logits_NC) / np.exp(logits_NC).sum(1, keepdims=True)
    np.testing.assert_allclose(MaxSoftmax().score(evidence), 1 - stated_NC.max(1), atol=1e-12)
    np.testing.assert_allclose(Energy(2.0).score(evidence), -2 * np.log(np.exp(logits_NC / 2).sum(1)))


def test_max_softmax_still_orders_rows_that_round_to_1():
    scores = MaxSoftmax().score(DetectorInput.of([[50.0, 0.0], [60.0, 0.0], [1e5, 0.0]]))
    assert scores[0] > scores[1] > 0
    assert Energy().score(DetectorInput.of([[1e5, 0.0]])) == pytest.approx([-1e5])


def test_mahalanobis_is_the_distance_under_the_shrunk_covariance_within_classes():
    features_MLD, labels_M = clusters(300, layers=1)
    detector = Mahalanobis.fit(features_MLD, labels_M, 4)
    x = features_MLD[:, 0] / np.linalg.norm(features_MLD[:, 0], axis=1, keepdims=True)
    means = np.stack([x[labels_M == each].mean(0) for each in range(4)])
    inverse = np.linalg.inv(LedoitWolf(assume_centered=True).fit(x - means[labels_M]).covariance_)
    gaps = x[:, None] - means
    expected = np.einsum("ncd,de,nce->nc", gaps, inverse, gaps).min(1)
    found = detector.score(DetectorInput.of(np.zeros((300, 4)), features_MLD))
    np.testing.assert_allclose(found, expected / expected.mean(), rtol=1e-6)


def test_the_length_of_features_does_not_matter_to_mahalanobis_unless_a_model_was_saved_so():
    features_MLD, labels_M = clusters(200)
    lengths_N11 = np.random.default_rng(3).uniform(0.1, 9, (200, 1, 1))
    asked = [DetectorInput.of(np.zeros((200, 4)), each) for each in (features_MLD, lengths_N11 * features_MLD)]
    detector = Mahalanobis.fit(features_MLD, labels_M, 4)
    np.testing.assert_allclose(*map(detector.score, asked), rtol=1e-9)
    raw = Mahalanobis.fit(features_MLD, labels_M, 4, unit_length=False)
    assert np.ptp(raw.score(asked[1]) / raw.score(asked[0])) > 1


def test_neighbours_are_those_of_scikit_learn():
    features_MLD, _ = clusters(120, layers=1)
    asked_NLD, _ = clusters(30, layers=1, seed=5)
    unit = [each[:, 0] / np.linalg.norm(each[:, 0], axis=1, keepdims=True) for each in (features_MLD, asked_NLD)]
    distances, _ = NearestNeighbors(n_neighbors=7).fit(unit[0]).kneighbors(unit[1])
    found = Neighbours.fit(features_MLD, 7).score(DetectorInput.of(np.zeros((30, 4)), asked_NLD))
    np.testing.assert_allclose(found, distances[:, 6], atol=1e-7)


def test_fewer_training_rows_than_dimensions_and_an_absent_class_are_no_problem():
    features_MLD = np.random.default_rng(0).normal(size=(5, 1, 20))
    for detector, width in (
        (Mahalanobis.fit(features_MLD, [0, 0, 1, 1, 1], 3), 20),
        (Cosine.fit(features_MLD, [0, 0, 1, 1, 1], 3), 20),
        (Mahalanobis.fit(np.ones((4, 1, 3)), [0, 0, 1, 1], 2), 3),
    ):
        rows = np.random.default_rng(1).normal(size=(7, 1, width))
        assert np.isfinite(detector.score(DetectorInput.of(np.zeros((7, 3)), rows))).all()


@pytest.mark.parametrize("kind", [Mahalanobis, Cosine])
def test_a_class_without_rows_draws_nothing_into_the_domain(kind):
    features_MLD, labels_M = clusters(200, classes=2)
    asked = DetectorInput.of(np.zeros((2, 4)), np.stack([features_MLD.mean(axis=0), features_MLD[0]]))
    all_there = kind.fit(features_MLD, labels_M, 2)
    # Classes 0 and 3 of four: neither the first of those that are absent nor the last.
    some_absent = kind.fit(features_MLD, 3 * labels_M, 4)
    np.testing.assert_array_equal(some_absent.score(asked), all_there.score(asked))
    between, inside = some_absent.score(asked)
    assert between > 3 * inside


def test_features_of_another_width_and_too_few_neighbours_are_refused():
    detector = Cosine.fit(np.ones((4, 1, 3)), [0, 0, 1, 1], 2)
    with pytest.raises(InvalidInput, match=r"of \(1, 3\), as when the detector was fitted, got \(1, 4\)"):
        detector.score(DetectorInput.of(np.zeros((2, 2)), np.ones((2, 1, 4))))
    with pytest.raises(InvalidInput, match="k from 1 to 4 rows"):
        Neighbours.fit(np.ones((4, 1, 3)), 5)
    with pytest.raises(InvalidInput, match="expected 2 rows"):
        DetectorInput.of(np.zeros((2, 2)), np.ones((3, 1, 4)))
    with pytest.raises(InvalidInput):
        Energy(0.0)
