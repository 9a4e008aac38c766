"""The page of an evaluation, of every kind of task."""

import re
from dataclasses import replace

import numpy as np
import pytest

import report_inputs as given
from bothways.data import Example
from bothways.evaluation.differences import BaselineReport, MetricDifference
from bothways.evaluation.intervals import Estimate
from bothways.evaluation.metrics.classification import class_outcomes, label_outcomes
from bothways.evaluation.metrics.question_answering import answer_outcomes, score_answers
from bothways.evaluation.metrics.regression import number_outcomes, similarity_outcomes
from bothways.evaluation.metrics.tagging import TaggedWords, span_outcomes, tag_outcomes
from bothways.report import render
from bothways.report.charts import MAX_POINTS, scatter
from bothways.report.evaluation import Evaluated, evaluation_page, verdict
from bothways.report.mistakes import MOST_SHOWN, Mistake, wrong_predictions
from bothways.tasks.question_answering.questions import GoldAnswer
from bothways.text import Words

CHECKSUM = "0123456789abcdef" * 4
CARD = {"base_model": "base", "data": {"rows": 3, "sha256": CHECKSUM}, "validations": [{"epoch": 1, "score": 0.5}]}


def reported(outcomes):
    return outcomes.report(resamples=20)


def classes(count, rows=300, names=None):
    rng = np.random.default_rng(5)
    truth_N = rng.integers(0, count, rows)
    logits_NC = rng.normal(size=(rows, count)) + 3 * np.eye(count)[truth_N] + 2 * np.eye(count)[(truth_N + 1) % count]
    exponentials_NC = np.exp(logits_NC)
    labels = names or [f"label {number}" for number in range(count)]
    return reported(class_outcomes(labels, truth_N, exponentials_NC / exponentials_NC.sum(axis=1, keepdims=True)))


def answers():
    found, annotated, stated_N = given.answers(1)
    return reported(answer_outcomes(score_answers(found, annotated), stated_N))


def spans():
    return reported(span_outcomes(*given.spans(1), TaggedWords(*given.words(1)), ["LOC", "PER"]))


KINDS = {
    "classes": (lambda: classes(4), ["Calibration", "Classes"]),
    "labels": (lambda: reported(label_outcomes(given.LABELS, *given.label_sets(1))), ["Calibration", "Labels"]),
    "spans": (spans, ["Calibration", "Spans"]),
    "tags": (lambda: reported(tag_outcomes(TaggedWords(*given.words(1)), given.LABELS)), ["Calibration", "Tags"]),
    "answers": (answers, ["Calibration"]),
    "numbers": (lambda: reported(number_outcomes(*given.numbers(1))), []),
    "similarities": (lambda: reported(similarity_outcomes(*given.numbers(1))), []),
}


def sections(page):
    return re.findall("<h2>(.*?)</h2>", page)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("calibrated", [True, False])
def test_every_kind_of_report_has_a_page(kind, calibrated):
    make, parts = KINDS[kind]
    report = make()
    page = render(evaluation_page("x", {"": Evaluated(report, CARD, make() if calibrated else None)}))
    assert sections(page) == ["Result", "Metrics", *parts, "The model"]
    for each in report.estimates.values():
        assert f"{each.value:.4f}" in page
        assert f"{each.low:.4f}\u00a0to\u00a0{each.high:.4f}" in page
    assert ("Without calibration" in page) is calibrated
    assert CHECKSUM in page
    assert "epoch 1, score 0.5" in page
    # Every table is numbered, in the order of the page.
    numbers = [int(number) for number in re.findall(r"<b>Table (\d+)\.</b>", page)]
    assert numbers == list(range(1, page.count("<table>") + 1))


def test_many_labels_have_a_table_of_what_is_confused_instead_of_a_matrix():
    report = classes(40)
    page = render(evaluation_page("x", {"": Evaluated(report, {})}))
    assert "Confusion matrix" not in page
    pairs = report.confused_pairs(30)
    assert [each.count for each in pairs] == sorted((each.count for each in pairs), reverse=True)
    for each in pairs:
        row, column = report.labels.index(each.truth), report.labels.index(each.predicted)
        assert row != column
        assert each.count == report.confusion[row][column]
        assert each.share == each.count / sum(report.confusion[row])
        assert f"<td>{each.truth}</td><td>{each.predicted}</td>" in page
    assert pairs[0].count == max(
        count for row, counts in enumerate(report.confusion) for column, count in enumerate(counts) if row != column
    )


def test_long_labels_are_written_out():
    names = [f"a label that is a sentence, number {number} of those that end alike" for number in range(3)]
    page = render(evaluation_page("x", {"": Evaluated(classes(3, names=names), {})}))
    assert all(f"<td>{name}</td>" in page for name in names)
    # In a matrix they would be cut, and all alike.
    assert "Confusion matrix" not in page
    short = [f"{number} {name}" for number, name in enumerate(names)]
    assert "Confusion matrix" in render(evaluation_page("x", {"": Evaluated(classes(3, names=short), {})}))


def test_members_of_an_ensemble_stand_side_by_side():
    members = (("runs/a", {"accuracy": 0.5, "nll": 0.75}), ("runs/b", {"accuracy": 0.25}))
    report = replace(classes(3), members=members, disagreement={"differing": 0.125})
    page = render(evaluation_page("x", {"": Evaluated(report, {})}))
    assert '<td>runs/a</td><td class="number">0.5000</td><td class="number">0.7500</td>' in page
    assert '<td>runs/b</td><td class="number">0.2500</td><td class="number"></td>' in page
    assert "differing 0.1250" in page


def test_several_tasks_have_sections_of_their_own():
    page = render(evaluation_page("x", {"topic": Evaluated(classes(3), CARD), "qa": Evaluated(answers(), CARD)}))
    assert sections(page) == [
        *("topic: Result", "topic: Metrics", "topic: Calibration", "topic: Classes"),
        *("qa: Result", "qa: Metrics", "qa: Calibration"),
        *("topic: the model", "qa: the model"),
    ]


def test_true_and_predicted_numbers_are_drawn():
    points = [(1.0, 1.5), (2.0, 1.5), (4.0, 4.0)]
    drawn = scatter(points, "true", "predicted")
    assert drawn.count('opacity="0.45"') == len(points)
    part = Evaluated(reported(number_outcomes(*given.numbers(1))), {}, None, points)
    assert "Predicted (vertical) against true numbers" in render(evaluation_page("x", {"": part}))
    many = [(float(at), float(at)) for at in range(MAX_POINTS + 1)]
    page = render(evaluation_page("x", {"": replace(part, points=many)}))
    assert f"{MAX_POINTS:,} of {MAX_POINTS + 1:,} rows" in page


def test_the_lowest_and_the_most_frequent_classes_are_chosen():
    report = classes(40)
    chosen = report.chosen_classes(10)
    assert len(chosen) == 10
    assert [report.labels.index(row.label) for row in chosen] == sorted(
        report.labels.index(row.label) for row in chosen
    )
    lowest = sorted(report.per_class, key=lambda row: row.f1.value)[:5]
    assert {row.f1.value for row in lowest} <= {row.f1.value for row in chosen}
    assert max(row.support for row in report.per_class) == max(row.support for row in chosen)
    assert report.chosen_classes(40) == report.per_class


@pytest.mark.parametrize(
    ("model", "baseline", "doubt", "said"),
    [
        (0.9, 0.8, False, "better than its baseline, a linear model (0.800)."),
        (0.9, 0.95, False, "worse than its baseline, a linear model (0.950)."),
        (
            0.9,
            0.88,
            True,
            "better than its baseline, a linear model (0.880); with so few rows, the difference may be chance.",
        ),
        (0.9, 0.9, True, "as good as its baseline, a linear model (0.900)."),
    ],
)
def test_a_page_begins_with_a_verdict_in_one_sentence(model, baseline, doubt, said):
    low, high = (-0.2, 0.2) if doubt else (model - baseline,) * 2
    of = MetricDifference(
        *(Estimate(value, value - 0.1, value + 0.1) for value in (baseline, model)),
        Estimate(model - baseline, low, high),
    )
    report = replace(
        classes(3, rows=100),
        estimates={"accuracy": of.second, "ece": of.first},
        baseline=BaselineReport("linear model", {"accuracy": of}, ()),
    )
    sentence = verdict(report)
    assert (
        sentence == f"90 of 100 predictions are right, an accuracy of 0.900 (95\u00a0% interval 0.800 to 1.000), {said}"
    )
    page = render(evaluation_page("x", {"": Evaluated(report, CARD)}))
    assert page.index(sentence) < page.index("<table>")


def test_a_calibration_error_stands_beside_that_of_chance_alone():
    report = classes(3)
    page = render(evaluation_page("x", {"": Evaluated(report, {})}))
    assert f"by chance alone {report.values['ece_noise']:.3f}" in page


@pytest.mark.parametrize("kind", ["labels", "spans", "tags", "answers"])
def test_reports_without_a_value_for_chance_estimate_it_from_their_bins(kind):
    report = KINDS[kind][0]()
    count, spread = np.array([(each.count, each.confidence * (1 - each.confidence)) for each in report.reliability]).T
    chance = np.sqrt(2 / np.pi * count * spread).sum() / count.sum()
    page = render(evaluation_page("x", {"": Evaluated(report, {}, report)}))
    assert page.count(f"by chance alone {chance:.3f}") == 2
    assert f"an error of {chance:.3f} on average" in page


def test_the_chance_of_a_classifier_is_near_that_of_its_bins():
    report = classes(3)
    count, spread = np.array([(each.count, each.confidence * (1 - each.confidence)) for each in report.reliability]).T
    assert report.values["ece_noise"] == pytest.approx(np.sqrt(2 / np.pi * count * spread).sum() / count.sum(), rel=0.1)


@pytest.mark.parametrize(
    ("above", "rest"),
    [(-0.01, "the rest is lack of calibration"), (0.01, "these rows show no lack of calibration")],
)
def test_an_error_that_chance_explains_is_no_lack_of_calibration(above, rest):
    report = classes(3)
    ece, chance = report.ece.value, report.ece.value + above
    report = replace(report, values={**report.values, "ece_noise": chance})
    page = render(evaluation_page("x", {"": Evaluated(report, {}, report)}))
    assert f"an error of {chance:.3f} on average; {rest}." in page
    assert f"is {ece:.3f} before (by chance alone {chance:.3f}), {ece:.3f} after calibration." in page


def test_the_card_is_folded_away_below_what_a_reader_needs_of_it():
    page = render(evaluation_page("x", {"": Evaluated(classes(3), CARD)}))
    above, _, folded = page.partition("<details>")
    assert "<td>Pretrained model</td><td>base</td>" in above
    assert CHECKSUM not in above
    assert CHECKSUM in folded


def test_the_learning_curve_shows_the_metric_and_the_loss_of_each_epoch():
    validations = [{"epoch": epoch, "metrics": {"accuracy": 0.5 + epoch / 10, "nll": 1.0}} for epoch in range(3)]
    card = {"training": {"validations": validations, "kept_epoch": 2}}
    page = render(evaluation_page("x", {"": Evaluated(classes(3), card)}))
    assert sections(page)[:3] == ["Result", "Training", "Metrics"]
    assert "Accuracy, per epoch" in page
    assert "NLL, per epoch" in page
    assert "without calibration; epoch 0 is the model before fine-tuning. Epoch 2 was kept." in page
    card["training"] |= {"kept_because": "the best validation score, 0.7", "seconds": 227.7}
    page = render(evaluation_page("x", {"": Evaluated(classes(3), card)}))
    assert "Epoch 2 was kept: the best validation score, 0.7." in page
    assert "3 min 48 s" in page


WORDS = [{"text": "Ada", "tag": "B-PER"}, {"text": "ran", "tag": "O"}]
WRONG = {
    "class": ({"label": "b", "probability": 0.75}, "t", "a", [("a", "b", 0.75)]),
    "right class": ({"label": "a", "probability": 0.75}, "t", "a", []),
    "number as a class": ({"label": 3, "probability": 0.5}, "t", "3", []),
    "labels": ({"labels": ["b", "a"]}, "t", ("a", "c"), [("a, c", "b, a", None)]),
    "labels in another order": ({"labels": ["b", "a"]}, "t", ("a", "b"), []),
    "no labels": ({"labels": []}, "t", ("a",), [("a", "none", None)]),
    "number": ({"value": 2.0}, "t", 0.5, [("0.5", "2", None)]),
    "words": ({"words": WORDS}, Words.of_list(["Ada", "ran"]), ("O", "O"), [("Ada: O", "B-PER", None)]),
    "right words": ({"words": WORDS}, Words.of_list(["Ada", "ran"]), ("B-PER", "O"), []),
    "answer": (
        {"answer": "in Rome", "probability": 0.5},
        ("q", "c"),
        (GoldAnswer("Paris", 0),),
        [("Paris", "in Rome", 0.5)],
    ),
    "answer with an article": ({"answer": "the town", "probability": 0.5}, ("q", "c"), (GoldAnswer("town", 0),), []),
    "no answer": ({"answer": None, "probability": 0.5}, ("q", "c"), (), []),
    "missed answer": (
        {"answer": None, "probability": 0.5},
        ("q", "c"),
        (GoldAnswer("Oslo", 0),),
        [("Oslo", "no answer", 0.5)],
    ),
    "answer to nothing": ({"answer": "x", "probability": 0.5}, ("q", "c"), (), [("no answer", "x", 0.5)]),
    "choice": ({"choice": "y", "index": 1, "probability": 0.5}, ("c", ["x", "y"]), 0, [("x", "y", 0.5)]),
    "embedding": ({"similarity": 0.5}, ("a", "b"), 1.0, []),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_predictions_of_every_task_are_listed_with_their_label(case):
    prediction, given_text, label, expected = WRONG[case]
    found = wrong_predictions([prediction], [Example(given_text, label, 1, "row 1")])
    assert [(each.label, each.predicted, each.probability) for each in found] == expected


def test_the_worst_predictions_come_first_and_the_others_are_counted():
    examples = [Example(f"text {number}", "a", number, f"row {number}") for number in range(MOST_SHOWN + 2)]
    stated = [{"label": "b", "probability": number / 100} for number in range(MOST_SHOWN + 2)]
    found = wrong_predictions(stated, examples)
    page = render(evaluation_page("x", {"": Evaluated(classes(3), {}, mistakes=found)}))
    assert f"The first {MOST_SHOWN} of {MOST_SHOWN + 2}." in page
    assert page.index(f"text {MOST_SHOWN + 1}") < page.index("text 2<")
    assert "text 1<" not in page
    largest = wrong_predictions([{"value": 1.0}, {"value": 9.0}], [Example("x", 0.0, 1), Example("y", 0.0, 2)])
    assert [each.text for each in largest] == ["y", "x"]
    assert isinstance(largest[0], Mistake)
