"""The success rate of a system: the estimates are those of prediction-powered inference on the judge's answers."""

import json

import pytest
from judging_cases import LABEL, fake_judge, triples, without

from bothways.errors import InvalidInput
from bothways.evaluation.prediction_powered import Sample, estimate_mean
from bothways.judging import rank_systems, read_triples, score_system

ROWS = triples(400, rate=0.7)


def test_estimates_are_those_of_the_labels_and_the_judge():
    judge = fake_judge()
    found = score_system(judge, without(ROWS, LABEL), ROWS[:100], name="a")
    stated = judge.probabilities(read_triples(ROWS, judge.dimension).triples)
    sample = Sample([row[LABEL] for row in ROWS[:100]], stated[:100], stated[100:])
    for method, estimate in found.estimates.items():
        assert estimate == estimate_mean(sample, method=method)
    assert list(found.estimates) == ["ppi++", "ppi", "classical"]
    assert found.estimate.effective_labels > 100
    assert found.estimate.low < sum(row[LABEL] for row in ROWS) / 400 < found.estimate.high


def test_json_has_an_estimate_by_every_method():
    found = score_system(fake_judge(), without(ROWS, LABEL), ROWS[:100], method="classical").to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["method"] == "classical"
    assert {"value", "low", "high"} <= found["estimates"]["ppi++"].keys()
    assert {"accuracy", "auroc", "ece"} == found["agreement"].keys()


def test_labels_in_the_data_are_taken_where_no_file_is_given():
    rows = ROWS[:100] + without(ROWS[100:], LABEL)
    assert score_system(fake_judge(), rows).estimate == score_system(fake_judge(), ROWS, ROWS[:100]).estimate


def test_labelled_rows_that_are_not_among_the_data_are_judged_by_their_own_texts():
    judge, others = fake_judge(), [{**row, "id": f"x{at}"} for at, row in enumerate(triples(120, seed=7, rate=0.7))]
    found = score_system(judge, without(ROWS, LABEL), others, name="a")
    stated = [judge.probabilities(read_triples(rows, judge.dimension).triples) for rows in (others, ROWS)]
    sample = Sample([row[LABEL] for row in others], *stated)
    for method, estimate in found.estimates.items():
        assert estimate == estimate_mean(sample, method=method)
    assert found.judge_mean == stated[1].mean()
    assert (found.rows, found.separate, found.estimate.labels) == (400, 120, 120)
    assert found.to_dict()["labels_not_among_rows"] == 120
    assert "120 of 120 labelled rows are not among the data" in found.warnings[0]
    assert found.labelled == "120, 120 of them not among the 400 rows"
    # Some labels of rows of the data beside them.
    mixed = score_system(judge, without(ROWS, LABEL), [*others, *ROWS[:30]], name="a")
    assert (mixed.estimate.labels, mixed.estimate.unlabelled, mixed.separate) == (150, 370, 120)
    assert mixed.quality.report.n == 150


def test_rows_that_the_judge_was_trained_on_are_warned_of_or_dropped():
    judge, data = fake_judge(training=[*ROWS[:20], *ROWS[390:]]), without(ROWS, LABEL)
    found = score_system(judge, data, ROWS[:100], name="a")
    assert found.warnings[0].startswith("30 of 400 rows are training rows: the interval holds for rows that the judge")
    counts = {"rows": 400, "checked": 400, "shared": 30, "other_label": 0, "left_out": False}
    assert found.to_dict()["training_rows"] == counts
    dropped = score_system(judge, data, ROWS[:100], name="a", shared="drop")
    assert dropped.estimates == score_system(judge, data[20:390], ROWS[20:100], name="a").estimates
    assert (dropped.rows, dropped.estimate.labels) == (370, 80)
    assert dropped.warnings[0] == "Left out 30 of 400 rows: they are training rows."
    # Of labelled rows that are not among the data, some are left out too.
    others = [{**row, "id": f"x{at}", "query": f"{row['query']} new"} for at, row in enumerate(triples(60, seed=7))]
    apart = score_system(fake_judge(training=others[:10]), data, others, shared="drop")
    assert (apart.rows, apart.separate, apart.estimate.labels) == (400, 50, 50)
    ranked = rank_systems(judge, {"a": data, "b": without(others, LABEL)}, [*ROWS[:100], *others], shared="drop")
    assert {each.system: each.rows for each in ranked.systems} == {"a": 370, "b": 60}
    assert "a: Left out 30 of 400 rows: they are training rows." in ranked.warnings


def test_rows_that_all_name_one_system_give_the_score_its_name():
    rows, gold = ([{**row, "system": "b"} for row in each] for each in (without(ROWS, LABEL), ROWS[:40]))
    found = score_system(fake_judge(), rows, gold, name="a")
    assert (found.system, found.estimate.labels, found.separate) == ("b", 40, 0)
    with pytest.raises(InvalidInput, match="expected one of the systems 'b', got 'c'"):
        score_system(fake_judge(), rows, [{**row, "system": "c"} for row in ROWS[:40]])


def test_no_labels_are_refused():
    with pytest.raises(InvalidInput, match="expected human labels, got no file of labels and none in the column"):
        score_system(fake_judge(), without(ROWS, LABEL))
    with pytest.raises(InvalidInput, match="at least 2 human labels of the system 'system', got 1"):
        score_system(fake_judge(), without(ROWS, LABEL), ROWS[:1])


def test_fewer_than_30_labels_are_warned_of():
    found = score_system(fake_judge(), without(ROWS, LABEL), ROWS[:20])
    assert any("20 labels are fewer than 30" in warning for warning in found.warnings)
    assert not any("fewer" in each for each in score_system(fake_judge(), without(ROWS, LABEL), ROWS[:30]).warnings)


def test_labels_of_one_class_are_warned_of():
    good = [row for row in ROWS if row[LABEL] == 1][:40]
    found = score_system(fake_judge(), without(ROWS, LABEL), good)
    assert any("all 40 labels are 1" in warning for warning in found.warnings)
    assert found.quality.auroc is None


def test_rows_that_lack_a_text_are_warned_of():
    rows = [*without(ROWS, LABEL), {**ROWS[0], "id": "empty", "passage": "", LABEL: None}]
    found = score_system(fake_judge(), rows, ROWS[:100])
    assert found.incomplete == 1
    assert any("1 rows lack a text" in warning for warning in found.warnings)


def test_confident_disagreements_come_first():
    found = score_system(fake_judge(0.2), without(ROWS, LABEL), ROWS[:100]).quality.disagreements
    assert found
    gaps = [abs(each.probability - each.triple.label) for each in found]
    assert gaps == sorted(gaps, reverse=True)
    assert min(gaps) > 0.5
