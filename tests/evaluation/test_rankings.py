"""Rankings against judgments: the figures by hand, and their intervals."""

import sys
from math import log2

import numpy as np
import pytest
from reports import ranking_report

from bothways.errors import InvalidInput, MissingDependency
from bothways.evaluation.metrics.ranking import RANKING_MEASURES, ranking_differences, ranking_outcomes

JUDGEMENTS = {
    "q1": {"a": 3, "b": 1, "c": 0, "d": 2},
    "q2": {"x": 1},
    "q3": {"x": 0},
    "q4": {"z": 1, **{f"d{place}": 1 for place in range(14)}},
}


def values(report):
    return {name: estimate.value for name, estimate in report.estimates.items()}


@pytest.mark.parametrize(
    ("query", "ranking", "expected"),
    [
        # Found at 1 (grade 1) and 3 (grade 3), d not at all.
        (
            "q1",
            ["b", "c", "a", "unjudged"],
            {
                "ndcg@10": (1 / log2(2) + 3 / log2(4)) / (3 / log2(2) + 2 / log2(3) + 1 / log2(4)),
                "map": (1 / 1 + 2 / 3) / 3,
                "mrr": 1.0,
                "recall@10": 2 / 3,
                "recall@100": 2 / 3,
            },
        ),
        ("q2", ["a", "b", "x"], {"ndcg@10": 1 / log2(4), "map": 1 / 3, "mrr": 1 / 3, "recall@10": 1, "recall@100": 1}),
        ("q2", ["a"], dict.fromkeys(RANKING_MEASURES, 0.0)),
        ("q2", [], dict.fromkeys(RANKING_MEASURES, 0.0)),
        # The one relevant document of the ranking stands at 11, of 15 that there are.
        (
            "q4",
            [*"abcdefghij", "z"],
            {"ndcg@10": 0, "map": 1 / 11 / 15, "mrr": 1 / 11, "recall@10": 0, "recall@100": 1 / 15},
        ),
    ],
)
def test_figures_are_those_worked_out_by_hand(query, ranking, expected):
    assert values(ranking_report({query: ranking}, JUDGEMENTS)) == pytest.approx(expected, abs=1e-12)


def test_figures_are_means_over_the_queries_with_a_relevant_document():
    outcomes = ranking_outcomes({"q2": ["a", "x"], "q3": ["x"], "q9": ["x"], "q1": ["a", "d", "b"]}, JUDGEMENTS)
    report = outcomes.report()
    assert (outcomes.truth.tolist(), report.counts["unjudged"]) == (["q2", "q1"], 2)
    assert values(report)["mrr"] == (1 / 2 + 1) / 2
    assert values(report)["ndcg@10"] == pytest.approx((1 / log2(3) + 1) / 2)
    assert report.to_dict().keys() >= {"queries", "unjudged", "ndcg@10", "ndcg@10_low", "ndcg@10_high", "recall@100"}


def test_the_order_given_counts_whatever_the_documents_are_called():
    # trec_eval breaks ties by name: all places must therefore have scores of their own.
    for relevant in ("a", "m", "z"):
        report = ranking_report({"q": ["m", "z", "a"]}, {"q": {relevant: 1}})
        assert values(report)["mrr"] == 1 / (["m", "z", "a"].index(relevant) + 1)


def random_rankings(seed, queries=40):
    generator = np.random.default_rng(seed)
    return {f"q{query}": [str(each) for each in generator.permutation(30)] for query in range(queries)}


RANDOM_JUDGEMENTS = {f"q{query}": {str(query % 30): 1, str(query * 7 % 30): 2} for query in range(40)}


def test_a_difference_is_paired():
    one = ranking_outcomes(random_rankings(0), RANDOM_JUDGEMENTS)
    other = ranking_outcomes(random_rankings(1), RANDOM_JUDGEMENTS)
    difference = ranking_differences(one, other)["ndcg@10"]
    assert difference.value == pytest.approx(
        one.report().estimates["ndcg@10"].value - other.report().estimates["ndcg@10"].value
    )
    assert difference.low < difference.value < difference.high
    # The same rankings differ by nothing in every resample, however wide their own intervals are.
    same = ranking_differences(one, one)["ndcg@10"]
    assert (same.low, same.value, same.high) == (0, 0, 0)


@pytest.mark.parametrize(
    ("rankings", "problem"),
    [
        ({"q3": ["x"], "q9": ["x"]}, "none of the 2 queries has a relevant document"),
        ({"q1": ["a", "b", "a"]}, "ranking of query 'q1' has a document twice"),
    ],
)
def test_what_cannot_be_measured_is_refused(rankings, problem):
    with pytest.raises(InvalidInput, match=problem):
        ranking_report(rankings, JUDGEMENTS)


@pytest.mark.parametrize("grade", [1001, 2**31, 2**32, 2**63, -(10**40)])
def test_grades_that_trec_eval_cannot_count_are_refused(grade):
    with pytest.raises(InvalidInput, match=f"document 'b' of query 'q': the relevance .* got {str(grade)[:30]}"):
        ranking_report({"q": ["a", "b"]}, {"q": {"a": 1, "b": grade}})


def test_the_largest_grades_are_measured():
    report = ranking_report({"q": ["a", "b"]}, {"q": {"a": 1000, "b": -1000}})
    assert report.estimates["ndcg@10"].value == 1


def test_queries_that_were_judged_and_not_asked_are_counted():
    judgments = {"q1": {"a": 1}, "q2": {"a": 1}, "q3": {"a": 0}, "q4": {"b": 2}}
    report = ranking_report({"q1": ["a"], "q3": ["a"]}, judgments)
    assert (report.counts["missing_queries"], report.to_dict()["missing_queries"], report.counts["unjudged"]) == (
        2,
        2,
        1,
    )
    assert "1 more without a relevant document, 2 more judged but not ranked" in report.summary()


def test_rankings_of_other_queries_are_not_compared():
    with pytest.raises(InvalidInput, match="on the same queries"):
        ranking_differences(*(ranking_outcomes({query: ["a"]}, JUDGEMENTS) for query in ("q1", "q2")))


def test_measuring_without_ir_measures_names_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    with pytest.raises(MissingDependency, match=r"pip install 'bothways\[search\]'"):
        ranking_report({"q1": ["a"]}, JUDGEMENTS)
