"""Pairs that rank are judged by which ones come first."""

import numpy as np
import pytest

import tiny_models
from bothways import PairClassifier
from bothways.data import Example
from bothways.tasks.classification.learner import PairRanking
from bothways.tasks.heads.targets import MultiLabel, Regression, SingleLabel

TWO = SingleLabel(("no", "yes"))


def pairs(questions, relevant=1, others=4):
    return [
        Example((f"q{question}", f"d{place}"), "yes" if place < relevant else "no", 0, f"row {question}")
        for question in range(questions)
        for place in range(relevant + others)
    ]


def test_questions_with_several_pairs_of_both_labels_rank():
    ranking = PairRanking.of(TWO, pairs(3))
    assert ranking.questions_N.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert ranking.relevant == 1
    assert PairRanking.of(TWO, pairs(3, relevant=4, others=1)).relevant == 0


@pytest.mark.parametrize(
    ("target", "rows"),
    [
        (TWO, pairs(6, relevant=1, others=1)),  # a premise with two hypotheses
        (TWO, pairs(6, relevant=1, others=0) + pairs(6, relevant=0, others=1)),
        (TWO, pairs(2) + [Example((f"other {each}", "d"), "no", 0, "") for each in range(20)]),
        (TWO, pairs(6, relevant=0)),
        (SingleLabel(("maybe", "no", "yes")), pairs(3)),
        (Regression(), pairs(3)),
        (MultiLabel(("no", "yes")), pairs(3)),
    ],
)
def test_others_do_not(target, rows):
    assert PairRanking.of(target, rows) is None


def test_the_metric_is_that_of_scikit_learn_over_questions_with_both_labels():
    rows = pairs(4, relevant=2, others=3) + pairs(5, relevant=0, others=2)[-2:]
    ranking = PairRanking.of(TWO, rows)
    truth = TWO.encode(rows)
    scores = np.random.default_rng(0).normal(size=len(rows))
    logits = np.stack([-scores, scores], axis=1)

    def average_precision(part):
        order = np.argsort(-scores[part])
        hits = truth[part][order] == 1
        return float((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].mean())

    by_hand = [average_precision(np.arange(5) + 5 * question) for question in range(4)]
    value, error = ranking.validate(logits, truth)
    assert value == pytest.approx(np.mean(by_hand))
    assert error == pytest.approx(np.std(by_hand, ddof=1) / 2)


def test_a_fit_on_pairs_that_rank_goes_by_it_and_forgets_the_questions(tmp_path):
    base = tmp_path / "base"
    tiny_models.write_checkpoint(base)
    rows = [
        {"text_a": f"w{5 + question} w{30 + question}", "text_b": f"w{5 + question + place}", "label": int(not place)}
        for question in range(12)
        for place in range(4)
    ]
    model = PairClassifier.from_pretrained(base, device="cpu")
    record = model.fit(rows[:32], validation=rows[32:], epochs=1, show_progress=False)
    assert [next(iter(each.metrics)) for each in record.validations] == ["map"] * len(record.validations)
    assert record.validations[-1].score == record.validations[-1].metrics["map"]
    assert "map" not in model.evaluate(rows[32:]).to_dict()
