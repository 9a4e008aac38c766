"""How several models' answers become one, and what is said of their disagreement."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bothways.compose.ensembles import combining
from bothways.compose.ensembles.combining import (
    PENALTIES,
    Disagreement,
    Mean,
    Stacked,
    Vote,
    check_method,
    disagreement,
    features_of,
    fit_stacking,
)
from bothways.errors import InvalidInput
from bothways.evaluation.metrics.classification import negative_log_likelihood
from bothways.evaluation.temperature import Temperature, apply_temperature, sigmoid, softmax
from bothways.tasks.heads.target_training import losses
from bothways.tasks.heads.targets import MultiLabel, Regression, SingleLabel, calibrated_logits, probabilities_of

NAMES = ("ant", "bee", "cow")
SINGLE, MULTI, NUMBER = SingleLabel(NAMES), MultiLabel(NAMES), Regression()
logits = st.integers(1, 5).flatmap(lambda members: arrays(np.float64, (members, 4, 3), elements=st.floats(-9, 9)))


def disagreements(target, logits_MNC, combined_NC):
    """How far members are apart on each of several texts."""
    texts = range(len(combined_NC))
    return [disagreement(target, logits_MNC[:, [text]], combined_NC[[text]]) for text in texts]


every_target = pytest.mark.parametrize("target", [SINGLE, MULTI], ids=["single", "multi"])


@every_target
@given(logits)
def test_the_mean_is_that_of_the_probabilities(target, logits_MNC):
    squash = softmax if target is SINGLE else sigmoid
    found = probabilities_of(target, Mean().combine(target, logits_MNC))
    np.testing.assert_allclose(found, squash(logits_MNC).mean(0), rtol=0, atol=1e-9)


@pytest.mark.parametrize("combination", [Mean(), Vote()])
def test_answers_that_nobody_believes_keep_their_order(combination):
    logits_MNC = np.array([[[0.0, -40.0, -60.0]], [[0.0, -42.0, -61.0]]])
    found_C = combination.combine(SINGLE, logits_MNC)[0]
    assert found_C[1] - found_C[2] > 18
    # What a stacking learns its weights from is never that far apart.
    assert features_of(SINGLE, logits_MNC).min() == pytest.approx(np.log(1e-12))


def test_the_mean_of_numbers_is_their_mean():
    assert Mean().combine(NUMBER, np.array([[[1.0]], [[4.0]]])).tolist() == [[2.5]]


@every_target
@given(logits)
def test_one_member_decides_as_it_would_alone(target, logits_MNC):
    one = logits_MNC[:1]
    for combination in (Mean(), Vote(), Stacked((1.0,), (0.0, 0.0, 0.0))):
        found = probabilities_of(target, combination.combine(target, one))
        alone = probabilities_of(target, one[0])
        if target is SINGLE:
            best = alone.max(axis=1) - np.sort(alone, axis=1)[:, -2] > 1e-9
            assert (found.argmax(1) == alone.argmax(1))[best].all()
        else:
            clear = np.abs(alone - 0.5) > 1e-9
            assert ((found >= 0.5) == (alone >= 0.5))[clear].all()


@given(logits)
def test_a_majority_wins_a_vote_and_ties_go_by_probability(logits_MNC):
    probabilities_MNC = softmax(logits_MNC)
    votes_NC = (probabilities_MNC.argmax(2)[..., None] == np.arange(3)).sum(0)
    found_NC = softmax(Vote().combine(SINGLE, logits_MNC))
    np.testing.assert_allclose(found_NC.sum(1), 1)
    for votes_C, mean_C, found_C in zip(votes_NC, probabilities_MNC.mean(0), found_NC, strict=True):
        leading = np.flatnonzero(votes_C == votes_C.max())
        assert found_C.argmax() in leading
        assert mean_C[found_C.argmax()] >= mean_C[leading].max() - 1e-9
        np.testing.assert_allclose(found_C, (votes_C + mean_C) / (len(logits_MNC) + 1), atol=1e-9)


@given(logits)
def test_a_label_is_voted_for_by_more_than_half_or_half_and_the_mean(logits_MNC):
    own_MNC = sigmoid(logits_MNC) >= 0.5
    votes_NC, mean_NC = own_MNC.sum(0), sigmoid(logits_MNC).mean(0)
    found_NC = sigmoid(Vote().combine(MULTI, logits_MNC)) >= 0.5 - 1e-12
    half = len(logits_MNC) / 2
    clear = (votes_NC != half) | (np.abs(mean_NC - 0.5) > 1e-9)
    expected = (votes_NC > half) | ((votes_NC == half) & (mean_NC >= 0.5))
    assert (found_NC == expected)[clear].all()


def test_members_of_one_mind_do_not_disagree():
    logits_MNC = np.repeat(np.array([[[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]]]), 4, axis=0)
    for target in (SINGLE, MULTI):
        for each in disagreements(target, logits_MNC, Mean().combine(target, logits_MNC)):
            assert each.differing == 0
            assert each.information == pytest.approx(0, abs=1e-12)


def test_sure_members_of_opposite_minds_disagree_by_the_entropy_between_them():
    logits_MNC = np.array([[[50.0, 0.0, 0.0]], [[0.0, 50.0, 0.0]]])
    (found,) = disagreements(SINGLE, logits_MNC, Mean().combine(SINGLE, logits_MNC))
    assert found.differing == 0.5
    assert found.information == pytest.approx(np.log(2), abs=1e-6)
    assert found.to_dict() == {"disagreement": 0.5, "mutual_information": found.information}


def test_members_that_are_as_unsure_alike_do_not_disagree():
    (found,) = disagreements(SINGLE, np.zeros((3, 1, 3)), np.zeros((1, 3)))
    assert found == Disagreement(0.0, 0.0)


@every_target
@given(logits)
def test_disagreement_lies_within_its_bounds(target, logits_MNC):
    for each in disagreements(target, logits_MNC, Mean().combine(target, logits_MNC)):
        assert 0 <= each.differing <= 1
        assert 0 <= each.information <= np.log(3 if target is SINGLE else 2) + 1e-9


def test_numbers_disagree_by_their_standard_deviation():
    (found,) = disagreements(NUMBER, np.array([[[1.0]], [[5.0]]]), np.array([[3.0]]))
    assert found.to_dict() == {"deviation": 2.0}


def test_a_members_own_calibration_is_in_its_logits():
    logits_NC = np.array([[3.0, 1.0, 0.0], [0.5, 0.0, 0.2]])
    warm = Temperature(2.0, 0.3)
    found = softmax(calibrated_logits(SINGLE, logits_NC, warm))
    np.testing.assert_allclose(found, apply_temperature(logits_NC, warm), atol=1e-12)
    np.testing.assert_allclose(softmax(calibrated_logits(SINGLE, logits_NC, None)), softmax(logits_NC), atol=1e-12)
    np.testing.assert_allclose(
        sigmoid(calibrated_logits(MULTI, logits_NC, Temperature(2.0))), sigmoid(logits_NC / 2), atol=1e-9
    )
    assert np.array_equal(calibrated_logits(NUMBER, logits_NC[:, :1], None), logits_NC[:, :1])


# --- stacking ---


def members_of_different_worth(count, seed):
    """A member that knows, one that guesses, and one that knows half of the time."""
    generator = np.random.default_rng(seed)
    truth_N = generator.integers(0, 3, count)
    right_NC = 3.0 * np.eye(3)[truth_N]
    noise_MNC = generator.normal(size=(3, count, 3))
    known = generator.random(count) < 0.5
    return noise_MNC + np.stack([right_NC, 0 * right_NC, np.where(known[:, None], right_NC, 0)]), truth_N


def test_stacking_trusts_the_member_that_knows():
    logits_MNC, truth_N = members_of_different_worth(300, 0)
    fit = fit_stacking(SINGLE, logits_MNC, truth_N)
    best, worst, middling = fit.combination.weights
    assert best > middling > worst
    assert best > 3 * abs(worst)
    test_MNC, test_N = members_of_different_worth(300, 1)
    stacked, mean = (
        negative_log_likelihood(test_N, softmax(each.combine(SINGLE, test_MNC))) for each in (fit.combination, Mean())
    )
    assert stacked < mean


@pytest.mark.parametrize("target", [SINGLE, MULTI], ids=["single", "multi"])
def test_stacking_is_at_the_least_of_its_penalised_loss(target):
    logits_MNC, truth_N = members_of_different_worth(60, 2)
    truth = truth_N if target is SINGLE else np.eye(3, dtype=np.float32)[truth_N]
    fit = fit_stacking(target, logits_MNC, truth)

    def loss(numbers):
        made = Stacked(tuple(numbers[:3]), tuple(numbers[3:]))
        away = ((numbers[:3] - 1 / 3) ** 2).sum() + (numbers[3:] ** 2).sum()
        combined_NC = torch.from_numpy(made.combine(target, logits_MNC))
        known = torch.from_numpy(truth if target is SINGLE else truth.astype(np.float64))
        return losses(target, combined_NC, known).mean().item() + fit.penalty * away

    found = np.array([*fit.combination.weights, *fit.combination.biases])
    generator = np.random.default_rng(0)
    for nudge in 1e-3 * generator.normal(size=(50, 6)):
        assert loss(found + nudge) >= loss(found)


def test_what_stacking_says_of_a_row_comes_from_a_fit_without_it():
    logits_MNC, truth_N = members_of_different_worth(40, 3)
    fit = fit_stacking(SINGLE, logits_MNC, truth_N)
    # Random labels cannot be foretold: unseen rows are no better than the mean, seen ones look better.
    guesses_N = np.random.default_rng(0).integers(0, 3, 40)
    blind = fit_stacking(SINGLE, logits_MNC, guesses_N)
    seen = negative_log_likelihood(guesses_N, softmax(blind.combination.combine(SINGLE, logits_MNC)))
    unseen = negative_log_likelihood(guesses_N, softmax(blind.unseen_NC))
    assert unseen > seen
    assert fit.unseen_NC.shape == (40, 3)
    assert fit.penalty in PENALTIES


def test_stacking_with_few_rows_is_refused():
    logits_MNC, truth_N = members_of_different_worth(9, 0)
    with pytest.raises(InvalidInput, match="at least 10 held-out rows, but got 9"):
        fit_stacking(SINGLE, logits_MNC, truth_N)


@pytest.mark.parametrize(
    ("method", "target", "said"),
    [
        ("median", SINGLE, "must be 'mean', 'vote' or 'stacked'"),
        ("vote", NUMBER, "by 'mean'"),
        ("stacked", NUMBER, "by 'mean'"),
    ],
)
def test_a_method_that_a_target_does_not_have_is_refused(method, target, said):
    with pytest.raises(InvalidInput, match=said):
        check_method(method, target)


def test_words_of_one_text_are_not_fitted_on_to_judge_each_other(monkeypatch):
    monkeypatch.setattr(combining, "PENALTIES", (1e-2,))
    logits_MNC, truth_N = members_of_different_worth(120, 4)
    text_N = np.repeat(np.arange(30), 4)
    changed_N = np.where(text_N == 7, (truth_N + 1) % 3, truth_N)
    fit, other = (fit_stacking(SINGLE, logits_MNC, each, text_N) for each in (truth_N, changed_N))
    of_text = text_N == 7
    np.testing.assert_array_equal(fit.unseen_NC[of_text], other.unseen_NC[of_text])
    assert not np.array_equal(fit.unseen_NC[~of_text], other.unseen_NC[~of_text])
