"""Reports of embedders: correlations, ranks, and agreement with a teacher, with their intervals."""

import numpy as np
import pytest
import scipy.stats
from reports import agreement_report, rank_report, similarity_report

from bothways.errors import InvalidInput


def cosines(rng, texts, noise=0.0):
    """Of each of a few texts with each, and those of vectors that are a little off."""
    vectors_TH = rng.normal(size=(texts, 5))
    made = []
    for each_TH in (vectors_TH, vectors_TH + noise * rng.normal(size=vectors_TH.shape)):
        unit_TH = each_TH / np.linalg.norm(each_TH, axis=1, keepdims=True)
        made.append(unit_TH @ unit_TH.T)
    return made


@pytest.mark.parametrize(
    ("scores", "found", "said"),
    [
        ([1.0], [0.3], "at least 3 rows, got 1"),
        ([1.0, 2.0], [0.3, 0.4], "at least 3 rows, got 2"),
        ([2.5] * 5, [0.1, 0.2, 0.3, 0.4, 0.5], "all 5 true values are 2.5"),
        ([1.0, 2.0, 3.0], [0.7] * 3, "all 3 predicted values are 0.7"),
    ],
)
def test_a_correlation_that_says_nothing_is_refused_with_the_reason(scores, found, said):
    with pytest.raises(InvalidInput, match=said):
        similarity_report(scores, found)


def test_ranks_have_their_mean_and_the_share_of_first_ones():
    report = rank_report([1.0, 0.5, 1.0, 0.25], resamples=100)
    assert (report.accuracy.value, report.mrr.value) == (0.5, pytest.approx(2.75 / 4))
    assert set(report.to_dict()) >= {"n", "accuracy_low", "mrr_high"}


def test_agreement_with_a_teacher_is_the_rank_correlation_over_all_pairs():
    theirs_NN, ours_NN = cosines(np.random.default_rng(2), 25, noise=0.4)
    pairs = np.triu_indices(25, 1)
    report = agreement_report(theirs_NN, ours_NN, resamples=200)
    expected = scipy.stats.spearmanr(theirs_NN[pairs], ours_NN[pairs])[0]
    estimate = report.estimates["spearman_with_teacher"]
    assert report.n == 25
    assert estimate.value == pytest.approx(expected)
    assert estimate.low < estimate.value < estimate.high


def test_the_interval_of_an_agreement_is_as_wide_as_its_scatter_over_sets_of_texts():
    rng = np.random.default_rng(3)
    reports = [agreement_report(*cosines(rng, 30, noise=0.7), resamples=100, seed=trial) for trial in range(24)]
    found = [report.spearman_with_teacher.value for report in reports]
    width = np.mean([report.spearman_with_teacher.high - report.spearman_with_teacher.low for report in reports])
    # Resampled pairs would give intervals of half that width, as if the 435 pairs of 30 texts were so many rows.
    assert 0.75 < width / (2 * 1.96 * np.std(found)) < 1.6


def test_few_texts_have_an_agreement_where_resamples_are_of_one_text():
    report = agreement_report(*cosines(np.random.default_rng(4), 3, noise=0.5), resamples=300)
    assert np.isfinite([report.spearman_with_teacher.low, report.spearman_with_teacher.high]).all()
    with pytest.raises(InvalidInput, match="at least 3 rows, got 1"):
        agreement_report(*cosines(np.random.default_rng(4), 2))
