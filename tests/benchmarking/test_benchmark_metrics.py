"""The metrics that the benchmarks judge every side by, against seqeval, scikit-learn, SciPy and ir-measures."""

import ir_measures
import numpy as np
import pytest
import scipy.stats
import seqeval.metrics
from benchmarks.tasks import answer_metrics, correlation, label_metrics, mean_average_precision, span_f1, token_accuracy
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, average_precision_score

from bothways.evaluation.metrics.question_answering import score_answers
from bothways.evaluation.temperature import softmax
from classifier_cases import LABELS

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def tagged(seed, texts=40):
    random = np.random.default_rng(seed)
    return [[str(tag) for tag in random.choice(TAGS, random.integers(1, 12))] for _ in range(texts)]


def test_spans_and_tags_are_scored_as_by_seqeval():
    truth, random = tagged(0), np.random.default_rng(1)
    answers = [[tag if random.random() < 0.7 else str(random.choice(TAGS)) for tag in each] for each in truth]
    given_rows = [{"tags": each} for each in truth]
    share = seqeval.metrics.accuracy_score(truth, answers)
    found = span_f1(given_rows, answers)
    assert found == pytest.approx({"span F1": seqeval.metrics.f1_score(truth, answers), "token accuracy": share})
    assert 0.2 < found["span F1"] < found["token accuracy"] < 0.9
    assert token_accuracy(given_rows, answers) == pytest.approx({"token accuracy": share})


def stated(count, classes=3, seed=0):
    """Probabilities, and rows whose label is drawn from sharper ones."""
    random = np.random.default_rng(seed)
    stated_NC = softmax(random.normal(0, 2, (count, classes)))
    drawn_N = (random.random((count, 1)) > softmax(np.log(stated_NC) * 2).cumsum(1)).sum(1).clip(max=classes - 1)
    return stated_NC, [{"label": LABELS[index]} for index in drawn_N]


def test_accuracy_and_calibration_error_are_those_of_scikit_learn():
    stated_NC, made = stated(1_500)
    best = [LABELS[index] for index in stated_NC.argmax(1)]
    found = label_metrics(made, [dict(zip(LABELS, each, strict=True)) for each in stated_NC.tolist()])
    assert found["accuracy"] == pytest.approx(accuracy_score([row["label"] for row in made], best))
    right_N = [one == row["label"] for one, row in zip(best, made, strict=True)]
    # With 1,500 different confidences, quantiles cut 15 bins of 100 rows.
    true_B, confident_B = calibration_curve(right_N, stated_NC.max(1), n_bins=15, strategy="quantile")
    expected = np.abs(true_B - confident_B).mean()
    # Quantiles are interpolated, so that a row at a bin's edge may fall into the next.
    assert found["ECE"] == pytest.approx(expected, abs=0.005)
    assert expected > 0.05


def test_correlations_are_those_of_scipy_under_their_names():
    random = np.random.default_rng(0)
    truth = random.normal(size=60)
    answers = np.exp(truth + random.normal(size=60))
    found = correlation([{"score": each} for each in truth], list(answers))
    ranks = [scipy.stats.rankdata(each) for each in (truth, answers)]
    assert found["Spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert found["Pearson"] == pytest.approx(np.corrcoef(truth, answers)[0, 1])


def candidates(seed, questions=30):
    random, made = np.random.default_rng(seed), []
    for question in range(questions):
        for place in range(random.integers(1, 12)):
            label = "yes" if random.random() < 0.3 else "no"
            made.append(({"text_a": f"q{question}", "text_b": f"d{place}", "label": label}, float(random.random())))
    return [row for row, _ in made], [{"yes": score} for _, score in made]


def test_rankings_are_scored_as_by_ir_measures_and_scikit_learn():
    made, answers = candidates(0)
    asked = {}
    for row, answer in zip(made, answers, strict=True):
        asked.setdefault(row["text_a"], []).append((row, answer["yes"]))
    kept = {name: each for name, each in asked.items() if len({row["label"] for row, _ in each}) == 2}
    assert 10 < len(kept) < len(asked)
    qrels, run = [], []
    for name, each in kept.items():
        qrels += [ir_measures.Qrel(name, row["text_b"], int(row["label"] == "yes")) for row, _ in each]
        run += [ir_measures.ScoredDoc(name, row["text_b"], score) for row, score in each]
    theirs = ir_measures.calc_aggregate([ir_measures.AP, ir_measures.RR], qrels, run)
    found = mean_average_precision(made, answers)
    assert found == pytest.approx({"MAP": theirs[ir_measures.AP], "MRR": theirs[ir_measures.RR]})
    precisions = [
        average_precision_score([row["label"] == "yes" for row, _ in each], [score for _, score in each])
        for each in kept.values()
    ]
    assert found["MAP"] == pytest.approx(np.mean(precisions))


def test_a_model_that_scores_all_candidates_alike_profits_from_no_order():
    made = [{"text_a": "q", "text_b": f"d{place}", "label": "yes" if place < 2 else "no"} for place in range(4)]
    found = mean_average_precision(made, [{"yes": 0.5}] * 4)
    assert found == pytest.approx({"MAP": (1 / 3 + 2 / 4) / 2, "MRR": 1 / 3})


# What SQuAD's own script gives for these; no package of the development tools has it.
@pytest.mark.parametrize(
    ("golds", "answer", "f1", "exact"),
    [
        (["Denver Broncos"], "the Broncos.", 2 / 3, 0),
        (["Denver Broncos", "Broncos"], "The broncos", 1, 1),
        (["a cat and a dog"], "cat, dog", 4 / 5, 0),
        (["to to to"], "to to", 4 / 5, 0),
        (["U.S."], "us", 1, 1),
        ([], "", 1, 1),
        ([], "Paris", 0, 0),
        (["Paris"], "", 0, 0),
        (["the"], "a", 1, 1),
        (["theatre"], "the atre", 0, 0),
        (["The.", "cat"], "", 0, 0),
    ],
)
def test_answers_are_scored_as_by_squads_script(golds, answer, f1, exact):
    found = answer_metrics([{"answers": [{"text": gold} for gold in golds]}], [answer])
    assert found == pytest.approx({"F1": f1, "exact match": exact})


words = st.lists(st.sampled_from(["a", "the", "cat", "Cat", "sat,", "mat.", "an", "—", ""]), max_size=6).map(" ".join)


@given(st.lists(st.tuples(st.lists(words.filter(str.strip), max_size=3), words), min_size=1, max_size=5))
def test_answers_are_scored_as_by_the_package(made):
    found = answer_metrics(
        [{"answers": [{"text": gold} for gold in golds]} for golds, _ in made], [each for _, each in made]
    )
    theirs = score_answers([each for _, each in made], [golds for golds, _ in made], version="2.0")
    assert found == pytest.approx({"F1": theirs.f1_N.mean(), "exact match": theirs.exact_N.mean()})
