"""Exact match and F1 are those of SQuAD's scripts; thresholds and temperatures are the best there are."""

import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reports import answering_report

from bothways.errors import InvalidInput
from bothways.evaluation.metrics.question_answering import (
    answer_probabilities,
    best_threshold,
    fit_answer_temperature,
    normalized,
    score_answer,
    score_answers,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Denver Broncos", "denver broncos"),
        ("  a\tDenver\n the   Broncos ", "denver broncos"),
        ("U.S.", "us"),
        ("24–10", "24–10"),  # noqa: RUF001 (only ASCII punctuation goes)
        ("24-10", "2410"),
        ("$1.5 million", "15 million"),
        ("theatre and an anthem", "theatre and anthem"),
        ("a-ha", "aha"),
        ("A.", ""),
        (string.punctuation, ""),
        ("Ä an É", "ä é"),
    ],
)
def test_the_normal_form_drops_case_punctuation_articles_and_spaces_in_this_order(text, expected):
    assert normalized(text) == expected


# Worked out by hand from the definitions in the scripts: (predicted, annotated, exact and F1 by 1.1, by 2.0).
CASES = [
    ("Denver Broncos", ["Denver Broncos"], (1, 1), (1, 1)),
    ("the Broncos", ["Denver Broncos"], (0, 2 / 3), (0, 2 / 3)),
    # Precision 2/5, recall 2/3.
    ("a b c b d e", ["b b f"], (0, 0.5), (0, 0.5)),
    ("Carolina", ["Denver", "Carolina Panthers", "Panthers of Carolina"], (0, 2 / 3), (0, 2 / 3)),
    ("Carolina", ["Denver"], (0, 0), (0, 0)),
    ("", ["Denver"], (0, 0), (0, 0)),
    ("", [], (0, 0), (1, 1)),
    ("Denver", [], (0, 0), (0, 0)),
    # Nothing is left of these in normal form.
    ("The", ["the"], (1, 0), (1, 1)),
    ("the", ["the", "band"], (1, 0), (0, 0)),
    ("band", ["the", "band"], (1, 1), (1, 1)),
    ("the", [], (0, 0), (1, 1)),
    ("", ["?"], (1, 0), (1, 1)),
]


@pytest.mark.parametrize(("predicted", "annotated", "first", "second"), CASES)
def test_a_question_scores_as_in_either_version_of_the_script(predicted, annotated, first, second):
    assert score_answer(predicted, annotated, "1.1") == pytest.approx(first)
    assert score_answer(predicted, annotated, "2.0") == pytest.approx(second)


def test_the_rules_are_those_of_the_version_that_the_data_are_like():
    whole = score_answers(["the", "x"], [["the"], ["x"]])
    assert (whole.version, whole.f1_N.tolist()) == ("1.1", [0, 1])
    some = score_answers(["the", ""], [["the"], []])
    assert (some.version, some.f1_N.tolist(), some.has_answer_N.tolist()) == ("2.0", [1, 1], [True, False])


@pytest.mark.parametrize(("predicted", "annotated"), [([], []), (["x"], []), (["x"], [["x"], ["y"]])])
def test_other_numbers_of_predictions_and_questions_are_refused(predicted, annotated):
    with pytest.raises(InvalidInput, match="a prediction for each of"):
        score_answers(predicted, annotated)


def mean_f1(score_N, f1_N, has_N, threshold):
    return np.where(score_N > threshold, f1_N * has_N, ~has_N).mean()


@given(
    st.lists(st.tuples(st.integers(-4, 4), st.sampled_from((0.0, 0.4, 1.0)), st.booleans()), min_size=1, max_size=12)
)
def test_no_threshold_gives_a_higher_f1_than_the_one_that_is_chosen(questions):
    score_N, f1_N, has_N = map(np.array, zip(*questions, strict=True))
    score_N, f1_N = score_N.astype(float), np.where(has_N, f1_N, 0.0)
    threshold = best_threshold(score_N, f1_N, has_N)
    if has_N.all():
        assert threshold is None
        return
    found = mean_f1(score_N, f1_N, has_N, threshold)
    assert found == pytest.approx(max(mean_f1(score_N, f1_N, has_N, each) for each in np.arange(-5.5, 6)))


def test_a_question_without_candidates_does_not_move_the_threshold():
    score_N, f1_N = np.array([3.0, 1.0, -np.inf]), np.array([1.0, 0.0, 0.0])
    assert best_threshold(score_N, f1_N, np.array([True, False, True])) == 2
    assert best_threshold(score_N[2:], f1_N[2:], np.array([False])) == 0


def test_probabilities_are_a_softmax_over_candidates_and_no_answer():
    score_NK = np.array([[2.0, 0.0, -np.inf], [-np.inf] * 3])
    expected = np.exp(np.array([2.0, 0.0, 1.0]) / 2)
    found = answer_probabilities(score_NK, 1.0, 2.0)
    np.testing.assert_allclose(found[0, [0, 1, 3]], expected / expected.sum())
    np.testing.assert_allclose(found[1], [0, 0, 0, 1])
    always = answer_probabilities(score_NK, None, 1.0)
    assert always[0, 3] == 0
    np.testing.assert_allclose(always.sum(axis=1), 1)
    np.testing.assert_allclose(always[1], [0, 0, 0, 1])


@pytest.mark.parametrize("truth", [0.5, 1.0, 3.0])
def test_the_temperature_under_which_answers_came_true_is_found_again(truth):
    generator = np.random.default_rng(1)
    score_NK = -np.sort(-generator.normal(0, 3, (6_000, 6)), axis=1)
    stated_N = answer_probabilities(score_NK, 0.5, truth).max(axis=1)
    right_N = generator.random(len(stated_N)) < stated_N
    assert fit_answer_temperature(score_NK, right_N, 0.5) == pytest.approx(truth, rel=0.1)


def test_few_questions_without_an_error_do_not_make_a_model_certain():
    score_NK = np.array([[3.0, 1.0], [2.0, 0.0], [4.0, 3.0]])
    assert 0.4 < fit_answer_temperature(score_NK, np.ones(3, dtype=bool), 0.5) < 1


def test_a_report_has_both_kinds_of_question_and_their_intervals():
    predicted = ["x", "x y", "", "", "z"] * 20
    annotated = [["x"], ["x"], ["x"], [], []] * 20
    report = answering_report(score_answers(predicted, annotated), np.full(100, 0.4), resamples=200)
    assert report.exact_match.value == pytest.approx(2 / 5)
    assert report.f1.value == pytest.approx((1 + 2 / 3 + 0 + 1 + 0) / 5)
    assert report.has_answer_exact_match.value == pytest.approx(1 / 3)
    assert report.has_answer_f1.value == pytest.approx((1 + 2 / 3) / 3)
    assert report.no_answer_accuracy.value == pytest.approx(1 / 2)
    assert report.ece.value == pytest.approx(0)
    widths = {name: each.high - each.low for name, each in report.estimates.items()}
    for name, share, rows in (("exact_match", 2 / 5, 100), ("has_answer_exact_match", 1 / 3, 60)):
        assert widths[name] == pytest.approx(2 * 1.96 * np.sqrt(share * (1 - share) / rows), rel=0.15), name
    given = report.to_dict()
    assert (given["n"], given["has_answer"], given["no_answer"], given["squad_version"]) == (100, 60, 40, "2.0")
    assert given["exact_match_low"] < given["exact_match"] < given["exact_match_high"]
    assert "100 questions, 40 of them without an answer" in report.summary()


def test_a_report_leaves_out_the_kind_of_question_that_is_not_there():
    report = answering_report(score_answers(["x"], [["x"]]), [0.9], resamples=20)
    assert "no_answer_accuracy" not in report.estimates
    assert "no_answer_accuracy" not in report.to_dict()
    with pytest.raises(InvalidInput, match="one for each of 1 questions"):
        answering_report(score_answers(["x"], [["x"]]), [0.9, 0.8])
