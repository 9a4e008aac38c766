"""Systems in order: rates, differences query by query, the truth, and the rows to label next."""

import json

import numpy as np
import pytest
from judging_cases import LABEL, fake_judge, triples, without

from bothways.errors import InvalidInput
from bothways.judging import Triple, TripleColumns, rank_systems
from bothways.judging.labels import tau_of
from bothways.judging.ranking import read_truth, rows_to_label_next, truth_in_labels
from bothways.judging.scoring import JudgedSystem

RATES = {"low": 0.5, "high": 0.9, "middle": 0.7}
SYSTEMS = {name: triples(300, seed=at, rate=rate) for at, (name, rate) in enumerate(RATES.items())}
UNLABELLED = {name: without(rows, LABEL) for name, rows in SYSTEMS.items()}
GOLD = [{**row, "system": name} for name, rows in SYSTEMS.items() for row in rows[:100]]


@pytest.fixture(scope="module")
def ranking():
    return rank_systems(fake_judge(), UNLABELLED, GOLD, truth=RATES, next_rows=20)


def test_systems_come_in_the_order_of_their_rates(ranking):
    assert [each.system for each in ranking.systems] == ["high", "middle", "low"]
    assert ranking.tau == 1.0
    assert ranking.probability("high", "low") > 0.999
    assert ranking.probability("low", "high") == pytest.approx(1 - ranking.probability("high", "low"))


def test_the_same_queries_are_compared_query_by_query(ranking):
    assert {each.pairing for each in ranking.comparisons} == {"paired"}
    shifted = {name: [{**row, "query": f"{name} {row['query']}"} for row in rows] for name, rows in SYSTEMS.items()}
    found = rank_systems(fake_judge(), shifted)
    assert {each.pairing for each in found.comparisons} == {"unpaired"}


def test_labels_that_would_separate_close_systems_are_counted():
    rows = {name: triples(2000, seed=at, rate=rate) for at, (name, rate) in enumerate({"a": 0.7, "b": 0.75}.items())}
    gold = [{**row, "system": name} for name, each in rows.items() for row in each[:60]]
    found = rank_systems(fake_judge(), {name: without(each, LABEL) for name, each in rows.items()}, gold)
    gap = found.comparisons[0].difference
    assert (found.separating.labels == 0) == (gap.low > 0)
    assert rank_systems(fake_judge(), SYSTEMS).separating.labels == 0


def test_a_sentence_says_how_many_labels_and_with_what_power_or_what_interval_all_labels_would_give(ranking):
    assert ranking.separation.startswith("The 95% interval of the difference between high and middle excludes 0")

    def said(count, labels, rates):
        rows = {name: triples(count, seed=at, rate=rate) for at, (name, rate) in enumerate(rates.items())}
        gold = [{**row, "system": name} for name, each in rows.items() for row in each[:labels]]
        return rank_systems(fake_judge(0.4), {name: without(each, LABEL) for name, each in rows.items()}, gold)

    found = said(3000, 50, {"a": 0.7, "b": 0.75})
    more = found.separating
    assert f"labels of {more.labels:,} more random rows each would separate" in found.separation
    assert "with a power of 80%: the probability that the 95% interval of the difference then excludes 0" in (
        found.separation
    )
    assert more.power_of_all > more.power == 0.8
    found = said(100, 50, {"a": 0.7, "b": 0.72})
    more = found.separating
    assert (more.labels, found.to_dict()["labels_to_separate_first_two"]) == (None, None)
    assert f"would be about {more.low:+.4f} to {more.high:+.4f}" in found.separation
    assert f"excludes 0 with a probability of {more.power_of_all:.0%} (the power; 80% is usual)" in found.separation
    assert found.to_dict()["separation"]["power_of_all"] == more.power_of_all < 0.8
    assert "only more rows can separate" in said(40, 40, {"a": 0.7, "b": 0.72}).separation


def test_labelled_rows_of_both_systems_may_be_other_queries():
    others = {name: triples(100, seed=at + 10, rate=rate) for at, (name, rate) in enumerate(RATES.items())}
    gold = [
        {**row, "system": name, "id": f"x{row['id']}", "query": f"{row['query']} again"}
        for name, rows in others.items()
        for row in rows
    ]
    found = rank_systems(fake_judge(), UNLABELLED, gold, next_rows=6)
    assert [each.system for each in found.systems] == ["high", "middle", "low"]
    assert {(each.rows, each.separate, each.estimate.labels) for each in found.systems} == {(300, 100, 100)}
    assert {each.pairing for each in found.comparisons} == {"paired"}
    assert not any("again" in each.triple.query for each in found.next_rows)


def test_rows_to_label_next_are_those_on_which_the_judge_sees_the_first_two_apart(ranking):
    assert len(ranking.next_rows) == 20
    assert {each.system for each in ranking.next_rows} == {"high", "middle"}
    by_query = {}
    for each in ranking.next_rows:
        by_query.setdefault(each.triple.query, []).append(each.probability)
    assert all(max(each) - min(each) == pytest.approx(0.8) for each in by_query.values())
    labelled = {(row["system"], row["query"]) for row in GOLD}
    assert not labelled & {(each.system, each.triple.query) for each in ranking.next_rows}
    row = ranking.next_rows[0].to_dict(TripleColumns())
    assert row.keys() == {"id", "system", "query", "passage", "answer", "judge"}


def judged(name, probabilities):
    rows = [Triple(f"query {at}", "passage", "answer", None, where="") for at in range(len(probabilities))]
    return JudgedSystem(name, rows, np.array(probabilities))


def queries_to_label(*systems, count, seed=0):
    return [each.triple.query.removeprefix("query ") for each in rows_to_label_next(systems, count, seed)]


def test_the_most_uncertain_rows_come_first_and_ties_are_drawn_by_the_seed():
    two = judged("a", [0.9, 0.5, 0.9, 0.1]), judged("b", [0.1, 0.5, 0.8, 0.1])
    assert queries_to_label(*two, count=6) == ["0", "0", "2", "2", "1", "1"]
    assert queries_to_label(judged("a", [0.95, 0.5, 0.1, 0.7]), count=2) == ["1", "3"]
    assert sorted(queries_to_label(judged("a", [0.95, 0.5]), count=9)) == ["0", "1"]
    tied = judged("a", [1.0, 0.0] * 100), judged("b", [0.0, 0.0] * 100)
    first, again, other = (queries_to_label(*tied, count=20, seed=seed) for seed in (0, 0, 1))
    assert first == again != other
    assert all(int(query) % 2 == 0 for query in first)


def test_kendalls_tau_of_orders():
    assert tau_of([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert tau_of([1, 2, 3], [1, 3, 2]) == pytest.approx(1 / 3)
    assert tau_of([1, 1], [1, 2]) is None


def test_one_system_is_a_ranking_too():
    found = rank_systems(fake_judge(), {"a": UNLABELLED["low"]}, without(GOLD[:100], "system"), next_rows=5)
    assert (len(found.systems), found.comparisons, found.separating) == (1, (), None)
    assert found.separation == ""
    assert len(found.next_rows) == 5


def test_a_file_may_hold_several_systems():
    rows = [{**row, "system": name} for name, each in UNLABELLED.items() for row in each]
    together, apart = rank_systems(fake_judge(), {"all": rows}, GOLD), rank_systems(fake_judge(), UNLABELLED, GOLD)
    assert together.comparisons == apart.comparisons
    assert [each.estimates for each in together.systems] == [each.estimates for each in apart.systems]


def test_json_is_json(ranking):
    found = ranking.to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["comparisons"][0].keys() >= {"first", "second", "difference", "difference_low", "probability_better"}


def test_a_system_without_labels_is_refused_by_name():
    with pytest.raises(InvalidInput, match="at least 2 human labels of the system 'high', got 0"):
        rank_systems(fake_judge(), UNLABELLED, [row for row in GOLD if row["system"] != "high"])


def test_the_truth_is_of_the_same_systems():
    with pytest.raises(InvalidInput, match="'other' is only in the truth or only in the data"):
        rank_systems(fake_judge(), UNLABELLED, GOLD, truth={**RATES, "other": 0.5})
    with pytest.raises(InvalidInput, match=r"a success rate from 0 to 1 in 'value', got 1.5"):
        read_truth([{"system": "a", "value": 1.5}])
    assert read_truth([{"system": "a", "value": "0.5"}]) == {"a": 0.5}


def test_the_truth_of_labelled_rows_is_their_mean():
    judge, columns = fake_judge(), TripleColumns()
    found = truth_in_labels(SYSTEMS, judge.dimension, columns)
    assert found["low"] == sum(row[LABEL] for row in SYSTEMS["low"]) / 300
    with pytest.raises(InvalidInput, match="expected a label for every row"):
        truth_in_labels(UNLABELLED, judge.dimension, columns)


def test_pages_show_every_system_the_warnings_and_the_assumptions(ranking):
    from bothways.judging import score_system
    from bothways.report import render
    from bothways.report.judging import ranking_page, score_page

    page = render(ranking_page(ranking, judge={"question": "Good?", "folder": "runs/judge"}, command="bothways judge"))
    assert all(name in page for name in RATES)
    assert "random sample" in page
    score = score_system(fake_judge(), UNLABELLED["low"], SYSTEMS["low"][:20], name="<low>")
    page = render(score_page(score, judge={"question": "Good?"}, command="bothways judge score"))
    assert "&lt;low&gt;" in page
    assert "fewer than 30" in page
