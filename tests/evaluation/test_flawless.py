"""Where every row is right, or none is, reports do not claim to know the score exactly."""

import numpy as np
import pytest
from reports import (
    answering_report,
    classification_report,
    compare_classifications,
    compare_row_scores,
    multi_label_report,
    rank_report,
    span_report,
)

from bothways.evaluation.metrics.classification import single_label_rows
from bothways.evaluation.metrics.question_answering import score_answers
from bothways.evaluation.metrics.ranking import ranking_differences, ranking_outcomes
from bothways.evaluation.metrics.tagging import TaggedWords
from bothways.evaluation.out_of_domain import out_of_domain_report
from bothways.evaluation.tag_schemes import TagSpan

N = 20
LEAST = 0.025 ** (1 / N)
TRUTH_N = np.arange(N) % 2
SURE_N2 = np.eye(2)[TRUTH_N] * 0.8 + 0.1


def flawless_spans():
    spans = [[TagSpan("PER", 0, 1), TagSpan("PER", 1, 2)] for _ in range(N)]
    words = TaggedWords(np.zeros(2 * N, int), np.zeros(2 * N, int), np.full(2 * N, 0.9), np.repeat(np.arange(N), 2))
    return span_report(spans, spans, words, ("PER", "LOC"))


def flawless_rankings():
    judged = {str(query): {"a": 1} for query in range(N)}
    return ranking_outcomes({query: ["a", "b"] for query in judged}, judged)


REPORTS = {
    "labels": (lambda: classification_report("ab", TRUTH_N, SURE_N2), ("accuracy",)),
    "label sets": (lambda: multi_label_report("ab", SURE_N2 > 0.5, SURE_N2), ("micro_f1", "subset_accuracy")),
    "spans": (flawless_spans, ("span_f1", "span_precision", "span_recall", "accuracy")),
    "answers": (
        lambda: answering_report(score_answers(["x"] * N, [["x"]] * N), np.full(N, 0.9)),
        ("exact_match", "f1", "has_answer_f1"),
    ),
    "ranks": (lambda: rank_report(np.ones(N)), ("accuracy", "mrr")),
    "rankings": (lambda: flawless_rankings().report(), ("ndcg@10", "map", "mrr", "recall@10")),
    "texts from elsewhere": (lambda: out_of_domain_report(np.zeros(N), np.ones(5 * N)), ("auroc",)),
}


@pytest.mark.parametrize("kind", REPORTS)
def test_a_flawless_test_leaves_the_doubt_of_its_size(kind):
    make, names = REPORTS[kind]
    found = make().to_dict()
    for name in names:
        assert (found[name], found[f"{name}_high"]) == pytest.approx((1, 1)), name
        assert found[f"{name}_low"] == pytest.approx(LEAST), name


def test_the_error_rates_of_a_flawless_test_have_an_upper_end():
    labelled = multi_label_report("ab", SURE_N2 > 0.5, SURE_N2)
    assert (labelled.hamming_loss.low, labelled.hamming_loss.high) == (0, pytest.approx(1 - LEAST))
    for inside, outside in ((5 * N, N), (N, 5 * N)):  # the threshold hangs on the one, the rate on the other
        told = out_of_domain_report(np.zeros(inside), np.ones(outside))
        assert (told.fpr95.low, told.fpr95.high) == (0, pytest.approx(1 - LEAST))
    assert out_of_domain_report(np.zeros(2), np.ones(98)).aupr.low == pytest.approx(0.98)


def test_the_scores_of_a_class_are_of_its_own_rows_alone():
    truth_N = np.array([0] * 17 + [1] * 3)
    report = classification_report("abc", truth_N, np.eye(3)[truth_N] * 0.7 + 0.1)
    often, rare, never = report.per_class
    for each, rows in ((often, 17), (rare, 3)):
        for estimate in (each.precision, each.recall, each.f1):
            assert (estimate.low, estimate.high) == (pytest.approx(0.025 ** (1 / rows)), 1)
    # 0 by definition, not by what was seen.
    assert (never.recall.value, never.recall.low, never.recall.high) == (0, 0, 0)
    (of_spans, _) = flawless_spans().per_class
    assert of_spans.recall.low == pytest.approx(LEAST)  # 40 spans, but in 20 texts


def test_scores_hang_on_the_rows_that_they_are_made_of():
    truth_N = np.array([0] * 58 + [1] * 2)
    report = classification_report("ab", truth_N, np.eye(2)[truth_N])
    assert report.accuracy.low == pytest.approx(0.025 ** (1 / 60))
    assert report.macro_f1.low == report.mcc.low == pytest.approx(0.025 ** (1 / 2))
    labels_NC = np.zeros((100, 2))
    labels_NC[:3, 0] = labels_NC[:7, 1] = 1
    labelled = multi_label_report("ab", labels_NC, labels_NC)
    assert labelled.micro_f1.low == pytest.approx(0.025 ** (1 / 7))
    assert labelled.macro_f1.low == pytest.approx(0.025 ** (1 / 3))
    assert labelled.subset_accuracy.low == pytest.approx(0.025 ** (1 / 100))


def few_spans(said):
    """100 texts of one word, spans in three of them; the words' tags are all right."""
    truth = [[TagSpan("PER", 0, 1)]] * 3 + [[]] * 97
    words = TaggedWords(np.zeros(100, int), np.zeros(100, int), np.full(100, 0.9), np.arange(100))
    return span_report(truth, truth if said else [[]] * 100, words, ("PER",))


def test_spans_are_of_the_texts_that_hold_them():
    found, missed = few_spans(said=True), few_spans(said=False)
    least = 0.025 ** (1 / 3)
    for each in (found.span_f1, found.span_precision, found.span_recall, found.macro_span_f1):
        assert (each.low, each.high) == (pytest.approx(least), 1)
    assert found.accuracy.low == pytest.approx(0.025 ** (1 / 100))
    assert missed.span_recall.high == pytest.approx(1 - least)
    assert (missed.span_precision.low, missed.span_precision.high) == (0, 0)  # by definition


def test_a_correlation_that_is_0_by_definition_stays_so():
    always = np.tile([0.9, 0.1], (N, 1))
    for truth_N in (TRUTH_N, np.zeros(N, int)):
        mcc = classification_report("ab", truth_N, always).mcc
        assert (mcc.value, mcc.low, mcc.high) == (0, 0, 0)


@pytest.mark.parametrize(
    ("truth", "predicted", "macro", "correlation"),
    [
        ([0, 1, 1], [0, 1, 1], 1, 1),
        ([0, 1, 1], [0, 1, 0], 2, 0),
        ([1, 1, 1], [1, 1, 1], 3, 0),
        ([1] * 3, [1, 0, 1], 1, 0),
    ],
)
def test_a_mean_hangs_on_the_rarest_class_that_occurs_and_a_correlation_too_where_it_is_1(
    truth, predicted, macro, correlation
):
    assert single_label_rows(np.array(truth), np.array(predicted), 3) == (3, macro, correlation)


def test_answers_of_which_none_is_right_have_an_upper_end():
    report = answering_report(score_answers(["x"] * N, [["y"]] * N), np.full(N, 0.1))
    assert (report.exact_match.low, report.exact_match.high) == (0, pytest.approx(1 - LEAST))


def test_models_that_are_compared_have_the_intervals_of_their_own_reports():
    found = compare_classifications(TRUTH_N, SURE_N2, SURE_N2[::-1])
    for name, rows in (("accuracy", N), ("macro_f1", N // 2), ("mcc", N // 2)):
        assert found.metrics[name].first.low == pytest.approx(0.025 ** (1 / rows))
    scores = compare_row_scores({"f1": np.ones(N)}, {"f1": np.zeros(N)}).metrics["f1"]
    assert (scores.first.low, scores.second.high) == (pytest.approx(LEAST), pytest.approx(1 - LEAST))
    rankings = flawless_rankings()
    same = ranking_differences(rankings, rankings)["map"]
    assert (same.low, same.high) == (0, 0)
