"""The metrics that the benchmarks judge every side by, against seqeval, scikit-learn, SciPy, ir-measures and MAPIE."""

import ir_measures
import numpy as np
import pytest
import scipy.stats
import seqeval.metrics
from benchmarks import trust
from benchmarks.classifiers import Probabilities, accuracy, error_of_chance, expected_calibration_error
from benchmarks.contrasts import _sentences
from benchmarks.task_data import (
    _answers,
    _token_accuracy,
    correlation,
    label_accuracy,
    mean_average_precision,
    span_f1,
)
from hypothesis import given
from hypothesis import strategies as st
from mapie.metrics.classification import classification_coverage_score, classification_mean_width_score
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, average_precision_score, roc_auc_score

from bothways import TextClassifier
from bothways.evaluation import softmax
from bothways.evaluation.answers import score_answers
from classifier_cases import LABELS, noisy_rows, rows

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
    assert _token_accuracy(given_rows, answers) == pytest.approx({"token accuracy": share})


def stated(count, classes=3, seed=0):
    """Probabilities, and rows whose label is drawn from sharper ones."""
    random = np.random.default_rng(seed)
    stated_NC = softmax(random.normal(0, 2, (count, classes)))
    drawn_N = (random.random((count, 1)) > softmax(np.log(stated_NC) * 2).cumsum(1)).sum(1).clip(max=classes - 1)
    return stated_NC, [{"label": LABELS[index]} for index in drawn_N]


def test_accuracies_are_those_of_scikit_learn():
    stated_NC, made = stated(300)
    truth, best = [row["label"] for row in made], [LABELS[index] for index in stated_NC.argmax(1)]
    expected = accuracy_score(truth, best)
    assert accuracy(Probabilities(list(LABELS), stated_NC, stated_NC), made) == pytest.approx(expected)
    answers = [dict(zip(LABELS, each, strict=True)) for each in stated_NC]
    assert label_accuracy(made, answers) == pytest.approx({"accuracy": expected})


def test_the_calibration_error_is_that_of_scikit_learns_curve():
    stated_NC, made = stated(1_500)
    right_N = [LABELS[best] == row["label"] for best, row in zip(stated_NC.argmax(1), made, strict=True)]
    # With 1,500 different confidences, quantiles cut 15 bins of 100 rows.
    true_B, confident_B = calibration_curve(right_N, stated_NC.max(1), n_bins=15, strategy="quantile")
    expected = np.abs(true_B - confident_B).mean()
    # Quantiles are interpolated, so that a row at a bin's edge may fall into the next.
    assert expected_calibration_error(stated_NC, LABELS, made) == pytest.approx(expected, abs=0.005)
    assert expected > 0.05


def test_the_error_of_chance_is_the_mean_of_its_normal_approximation():
    confidence_N = np.sort(np.random.default_rng(0).uniform(0.5, 1, 3_000))
    stated_N2 = np.column_stack([confidence_N, 1 - confidence_N])
    deviations = [np.sqrt((part * (1 - part)).sum()) / len(part) for part in np.split(confidence_N, 15)]
    assert error_of_chance(stated_N2, draws=200) == pytest.approx(np.mean(deviations) * np.sqrt(2 / np.pi), rel=0.05)


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
    found = _answers([{"answers": [{"text": gold} for gold in golds]}], [answer])
    assert found == pytest.approx({"F1": f1, "exact match": exact})


words = st.lists(st.sampled_from(["a", "the", "cat", "Cat", "sat,", "mat.", "an", "—", ""]), max_size=6).map(" ".join)


@given(st.lists(st.tuples(st.lists(words.filter(str.strip), max_size=3), words), min_size=1, max_size=5))
def test_answers_are_scored_as_by_the_package(made):
    found = _answers([{"answers": [{"text": gold} for gold in golds]} for golds, _ in made], [each for _, each in made])
    theirs = score_answers([each for _, each in made], [golds for golds, _ in made], version="2.0")
    assert found == pytest.approx({"F1": theirs.f1_N.mean(), "exact match": theirs.exact_N.mean()})


def test_sentences_make_up_the_text():
    text = 'It rained.  "Go," he said! At 9.5 a. m. they left? (Yes.) Why'
    found = [text[start:end] for start, end in _sentences(text)]
    assert found == ["It rained.", '"Go," he said!', "At 9.5 a. m. they left?", "(Yes.) Why"]


# --- what our classifiers say of their own answers ---


def test_the_area_is_that_of_scikit_learn():
    random = np.random.default_rng(0)
    lower, higher = random.integers(0, 9, 70) / 4, random.integers(3, 12, 50) / 4
    expected = roc_auc_score([0] * 70 + [1] * 50, [*lower, *higher])
    assert trust.area(list(lower), list(higher)) == pytest.approx(expected)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    from tiny_models import write_checkpoint

    folder = tmp_path_factory.mktemp("tiny") / "base"
    write_checkpoint(folder)
    made = TextClassifier.from_pretrained(folder, device="cpu")
    settings = {"epochs": 3, "learning_rate": 5e-3, "batch_size": 6, "show_progress": False}
    made.fit(rows(36), validation=noisy_rows(60), **settings)
    return made


def test_what_is_noted_of_a_classifier_is_what_it_says(classifier):
    texts = [row["text"] for row in rows(30)]
    found = trust.stated(classifier, texts)
    for number, wanted in enumerate(trust.COVERAGES):
        said = classifier.predict(texts, coverage=wanted)
        assert [set(each.sets[number]) for each in found] == [set(each.label_set) for each in said]
        assert all(set(each.bare_sets[number]) <= set(each.sets[number]) for each in found)


def test_coverage_and_size_are_those_of_mapie(classifier):
    data = noisy_rows(90)
    inside = trust.stated(classifier, [row["text"] for row in data])
    truth = [row["label"] for row in data]
    found = trust.coverage(inside, truth)
    numbers_N = np.array([LABELS.index(label) for label in truth])
    for number, wanted in enumerate(trust.COVERAGES):
        sets_NC = np.array([[label in each.sets[number] for label in LABELS] for each in inside])
        covered, width = classification_coverage_score(numbers_N, sets_NC), classification_mean_width_score(sets_NC)
        assert found[f"coverage of {wanted}"] == pytest.approx(covered.item())
        assert found[f"set size at {wanted}"] == pytest.approx(width.item())
        bare_NC = np.array([[label in each.bare_sets[number] for label in LABELS] for each in inside])
        bare = classification_coverage_score(numbers_N, bare_NC)
        assert found[f"coverage of {wanted}, empty sets allowed"] == pytest.approx(bare.item())


def test_foreign_texts_are_detected_by_default_as_predict_says(classifier):
    texts = {
        "train": [row["text"] for row in rows(36)],
        "validation": [row["text"] for row in noisy_rows(60)],
        # Others than those that set the border: of a text on it, rounding says which side it is on.
        "test": [row["text"] for row in noisy_rows(150)[60:]],
    }
    others = [f"w{60 + number % 20} w{59 - number % 7}" for number in range(20)]
    found = trust.detection(classifier, texts, {"others": others})
    inside, outside = (classifier.predict(each) for each in (texts["test"], others))
    truth = [0] * len(inside) + [1] * len(outside)
    of_default = found["others"]["mahalanobis (default)"]
    assert of_default["AUROC"] == pytest.approx(
        roc_auc_score(truth, [each.out_of_domain_score for each in inside + outside])
    )
    assert of_default["flagged"] == np.mean([each.out_of_domain for each in outside])
    assert found["own"]["mahalanobis (default)"]["flagged"] == np.mean([each.out_of_domain for each in inside])
    raw = [each.probability for each in classifier.predict([*texts["test"], *others], calibrated=False)]
    assert found["others"]["softmax"]["AUROC"] == pytest.approx(roc_auc_score(truth, [-each for each in raw]))
    assert set(found["others"]) == {"mahalanobis (default)", "energy", "neighbours", "softmax"}
    table = trust.detection_table([{"dataset": "made", "side": "bothways", "out_of_domain": found}] * 2)
    assert "| made (2 seeds) | bothways | its test texts | flagged" in table
