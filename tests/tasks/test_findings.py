"""What a training says against itself, its data and its labels."""

import json

import numpy as np
import pytest

from bothways import SentenceEmbedder, TextClassifier, TextTagger
from bothways.data import Example
from bothways.evaluation.calibration import fit_isotonic
from bothways.evaluation.metrics.tagging import TaggedWords
from bothways.evaluation.report import Validation
from bothways.evaluation.temperature import Temperature
from bothways.tasks.heads.diagnostics import (
    MOST_MISTAKES,
    LabelIssue,
    confident_mistakes,
    contradictions,
    diagnostics_of_words,
    notes_on_labels,
    notes_on_training,
)
from bothways.tasks.heads.target_training import validate
from bothways.tasks.heads.targets import MultiLabel, Regression, SingleLabel
from bothways.text import Words
from bothways.training.options import TrainingOptions
from bothways.training.state import EpochValidation, TrainingRecord
from classifier_cases import rows, without_dropout

ANIMALS = SingleLabel(("ant", "bee", "cow"))
IMPERFECT = Validation({}, 0.9)


def record(kept=2, updates=200, baseline="toy", scores=()):
    epochs = tuple(EpochValidation(number, number, score, {}) for number, score in enumerate(scores, start=1))
    return TrainingRecord(
        (), epochs, kept, updates, 0, 0.0, False, False, None, TrainingOptions(), 3, baseline=baseline
    )


def examples(labels, texts=None):
    texts = texts or [f"text {number}" for number in range(len(labels))]
    return [
        Example(text, label, number, f"row {number}")
        for number, (text, label) in enumerate(zip(texts, labels, strict=True), start=1)
    ]


def logits(*predicted, sure=2.0):
    """Rows that predict these labels."""
    return sure * np.eye(3)[list(predicted)]


ISOTONIC = fit_isotonic(logits(0, 1, 2, 0, 1, 2), np.array([0, 1, 2, 0, 1, 2]))
SETS, SAME_SETS = MultiLabel(("a", "b", "c")), np.array([[1.0, -1, -1], [1, -1, -1]])
ONE_EACH = np.array([[1, 0, 0], [0, 1, 0]])
TWO, TURNED = np.array([1.0, 3.0]), np.array([[3.0], [1.0]])


# The course of a training


def notes_of(given, held_out=50, validation=IMPERFECT, **options):
    return notes_on_training(given, held_out, lambda: validation, **options)


def test_a_training_that_went_well_has_no_notes():
    assert notes_of(record()) == []
    assert notes_of(record(kept=None)) == []


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("1", "2", "3"), True),  # stars
        (("1", "10", "-2.5"), True),
        (("0", "1", "2"), False),  # numbers of classes
        (("1", "2"), False),
        (("1", "2", "many"), False),
    ],
)
def test_numbers_that_were_learnt_as_classes_are_named(names, said):
    truth = np.array([0, 1, len(names) - 1])
    notes = notes_on_labels(SingleLabel(names), 2.0 * np.eye(len(names))[truth], truth, None)
    assert any("--score" in note for note in notes) == said


def test_what_a_training_did_not_achieve_is_said():
    (kept,) = notes_of(record(kept=0, baseline="linear model of frozen hidden states"))
    assert kept.startswith("Fine-tuning did not do better than the linear model of frozen hidden states, which is kept")
    (short,) = notes_of(record(updates=49, scores=(0.5, 0.6)))
    assert "only 49 updates, and its last epoch was the best" in short
    for scores in ((), (0.6,), (0.6, 0.5), (0.6, 0.6)):  # nothing shows that more updates would help
        assert notes_of(record(updates=49, scores=scores)) == []
    # Few texts that were brought together first
    assert notes_of(record(updates=21, scores=(0.5, 0.6)), enough=20) == []
    (few,) = notes_of(record(), 49)
    assert "only 49 held-out rows" in few
    # Of a training whose start is kept, more updates would not help.
    assert notes_of(record(kept=0, updates=10)) == notes_of(record(kept=0))


@pytest.mark.parametrize(
    ("validation", "perfect"),
    [
        (Validation({}, 1.0), True),
        (Validation({}, 1.0 - 1e-12), True),  # a correlation
        (Validation({}, 0.999), False),
        (validate(Regression(), TURNED[::-1], TWO), True),
        (validate(Regression(), TURNED, TWO), False),
        (validate(SingleLabel(("a", "b")), np.eye(2), np.array([0, 1])), True),
        (validate(SingleLabel(("a", "b")), np.eye(2), np.array([1, 1])), False),
        (validate(SETS, 2 * ONE_EACH - 1.0, ONE_EACH), True),
        (validate(SETS, 1.0 - 2 * ONE_EACH, ONE_EACH), False),
    ],
)
def test_nothing_is_advised_for_a_model_that_cannot_be_better(validation, perfect):
    (kept,) = notes_of(record(kept=0), validation=validation)
    assert ("would help" in kept) != perfect
    assert kept.endswith("which is kept: its validation score is the highest possible.") == perfect
    assert (notes_of(record(updates=10, scores=(0.5, 0.6)), validation=validation) == []) == perfect


# Labels


@pytest.mark.parametrize(
    ("target", "predicted", "truth", "calibration", "said"),
    [
        (ANIMALS, logits(0, 1, 2, 0), [0, 1, 2, 1], Temperature(1.2), None),
        (ANIMALS, logits(1, 1, 1), [0, 1, 1], None, "predicts the same label, 'bee', for every held-out row"),
        (ANIMALS, logits(0, 1, 1, 2), [0, 0, 1, 0], None, "predicting 'ant' has accuracy 0.7500, the model 0.5000"),
        (ANIMALS, logits(0, 1, 1, 0), [0, 0, 1, 0], None, "predicting 'ant' has accuracy 0.7500, the model 0.7500"),
        (ANIMALS, logits(0, 0, 1, 0), [0, 0, 1, 0], None, None),
        (ANIMALS, logits(1, 1, 1), [1, 1, 1], None, "All held-out rows have the label 'bee'"),
        (ANIMALS, logits(1, 0, 1), [1, 1, 1], None, "All held-out rows have the label 'bee'"),
        (ANIMALS, logits(1), [1], None, None),
        (ANIMALS, logits(0, 1, 2), [0, 1, 2], Temperature(3.5), "very overconfident (temperature 3.50)"),
        (ANIMALS, logits(0, 1, 2), [0, 1, 2], Temperature(0.2), "very underconfident (temperature 0.20)"),
        (ANIMALS, logits(0, 1, 2), [0, 1, 2], Temperature(3.0), None),
        (ANIMALS, logits(0, 1, 2), [0, 1, 2], Temperature(1 / 3), None),
        (ANIMALS, logits(0, 1, 2), [0, 1, 2], ISOTONIC, None),
        (SETS, SAME_SETS, ONE_EACH, None, "predicts the same labels for every held-out row ('a'): it is a constant."),
        (SETS, -np.ones((2, 3)), ONE_EACH, None, "for every held-out row (no label)"),
        (SETS, 2 * ONE_EACH - 1.0, ONE_EACH, None, None),
        (SETS, -np.ones((2, 3)), np.zeros((2, 3)), None, "All held-out rows have the same labels (no label)"),
        (SETS, -np.ones((2, 3)), [[1, 0, 0], [1, 0, 0]], None, "All held-out rows have the same labels ('a')"),
        (SETS, -np.ones((1, 3)), [[1, 0, 0]], None, None),
        (Regression(2.0), TURNED, TWO, None, "always predicting 2 has a mean squared error of 1, the model 4"),
        (Regression(2.0), np.array([[1.5], [2.5]]), TWO, None, None),
        (Regression(), TURNED, TWO, None, None),
        (Regression(2.0), np.array([[2.0], [2.0]]), [2.0, 2.0], None, None),
    ],
)
def test_what_held_out_rows_say_against_a_model_is_noted(target, predicted, truth, calibration, said):
    notes = notes_on_labels(target, predicted, np.array(truth), calibration)
    assert len(notes) == (said is not None)
    assert said is None or said in notes[0]


# Contradictions


def test_texts_with_different_labels_are_named_by_their_rows():
    (note,) = contradictions(examples(["ant", "bee", "ant", "cow"], ["same", "same", "other", " SAME"]))
    assert note == "Texts that occur with different labels: row 1 ('ant') and row 2 ('bee') and row 4 ('cow')."


def test_what_occurs_twice_with_the_same_label_is_no_contradiction():
    assert contradictions(examples(["ant", "ant"], ["same", "same"])) == []
    assert contradictions([]) == []
    pairs = examples(["yes", "no"], [("a", "b"), ("b", "a")])
    assert contradictions(pairs) == []
    (note,) = contradictions(examples(["yes", "no"], [("a", "b"), ("a", "b")]))
    assert "row 1 ('yes') and row 2 ('no')" in note
    (several,) = contradictions(examples([("x",), ("x", "y"), ()], ["same", "same", "same"]))
    assert "row 1 ('x') and row 2 ('x', 'y') and row 3 (no label)" in several


def test_of_many_contradictions_the_first_are_listed_and_the_others_counted():
    texts = [f"t{number // 2}" for number in range(2 * 1005)]
    (note,) = contradictions(examples(["ant", "bee"] * 1005, texts))
    assert note.count(";") == 20
    assert note.endswith("row 39 ('ant') and row 40 ('bee'); and 985 more.")


# LabelIssues


def test_the_most_probable_mistakes_come_first():
    stated = np.array([[0.7, 0.2, 0.1], [0.05, 0.9, 0.05], [0.2, 0.7, 0.1], [0.3, 0.3, 0.4], [0.7, 0.3, 0.0]])
    truth = np.array([0, 0, 2, 1, 1])
    found = confident_mistakes(ANIMALS, stated, truth, examples(["ant", "ant", "cow", "bee", "bee"]))
    assert [mistake.where for mistake in found] == ["row 2", "row 3", "row 5", "row 4"]  # of equals the first
    assert found[0] == LabelIssue("row 2", "text 1", "ant", "bee", 0.9)


def test_only_so_many_mistakes_are_kept():
    found = confident_mistakes(ANIMALS, logits(*[0] * 30), np.ones(30, dtype=int), examples(["bee"] * 30))
    assert [mistake.where for mistake in found] == [f"row {number}" for number in range(1, MOST_MISTAKES + 1)]
    assert confident_mistakes(ANIMALS, logits(1, 1), np.array([1, 1]), examples(["bee", "bee"])) == ()


def test_mistakes_of_several_labels_are_one_too_many_or_one_missed():
    target = MultiLabel(("a", "b"), (0.5, 0.8))
    stated, truth = np.array([[0.9, 0.7], [0.3, 0.1], [0.6, 0.2]]), np.array([[1, 1], [0, 0], [0, 0]])
    found = confident_mistakes(target, stated, truth, examples([("a", "b"), (), ()]))
    assert [(each.where, each.label, each.predicted) for each in found] == [
        ("row 3", "", "a"),
        ("row 1", "a, b", "not b"),
    ]
    assert [each.probability for each in found] == pytest.approx([0.6, 0.3])
    assert confident_mistakes(Regression(), np.zeros((1, 1)), np.zeros(1), examples([1.0])) == ()


def test_mistakes_of_a_tagger_name_the_word():
    texts = [Words.of_list(["ada", "sleeps"]), Words.of_list(["in", "rome"])]
    words = TaggedWords(
        np.array([1, 0, 0, 1]), np.array([1, 1, 0, 0]), np.array([0.9, 0.6, 0.9, 0.8]), np.array([0, 0, 1, 1])
    )
    notes, found = diagnostics_of_words(("O", "B-X"), words, examples([(), ()], texts))
    assert notes == [
        "The model is not better than the most frequent tag: always predicting 'O' has accuracy 0.5000, the model "
        "0.5000."
    ]
    assert [(each.where, each.label, each.predicted, each.probability) for each in found] == [
        ("row 2, word 2 ('rome')", "B-X", "O", 0.8),
        ("row 1, word 2 ('sleeps')", "O", "B-X", 0.6),
    ]
    never = TaggedWords(np.array([1, 0]), np.array([0, 0]), np.array([0.6, 0.9]), np.array([0, 0]))
    (note,) = diagnostics_of_words(("O", "B-X"), never, examples([()], texts[:1]))[0]
    assert "the same tag, 'O', for every held-out word" in note
    nothing = TaggedWords(np.array([0, 0]), np.array([0, 1]), np.array([0.6, 0.9]), np.array([0, 0]))
    (note,) = diagnostics_of_words(("O", "B-X"), nothing, examples([()], texts[:1]))[0]
    assert note.startswith("All held-out words have the tag 'O'")


# In a fit


LISTED = "of the given list"
QUICK = {"epochs": 2, "batch_size": 8, "learning_rate": 3e-3, "show_progress": False}


def mislabelled(count=60):
    """Rows that a linear model tells, one of them with another label, and one text twice."""
    made = rows(count)
    made[7]["label"] = "ant"  # w6 ...: a bee
    return [*made, {"text": made[0]["text"], "label": "cow"}]


@pytest.fixture(scope="module")
def fitted(bert):
    classifier = TextClassifier.from_pretrained(bert, device="cpu")
    classifier.fit(rows(60, 100), validation=mislabelled(), **{**QUICK, "epochs": 6})
    return classifier


def test_a_fit_finds_the_label_that_is_wrong(fitted):
    assert {mistake.where for mistake in fitted.fitted.issues} >= {f"row 8 {LISTED}", f"row 61 {LISTED}"}
    first = next(mistake for mistake in fitted.fitted.issues if mistake.where == f"row 8 {LISTED}")
    assert (first.text, first.label, first.predicted) == (mislabelled()[7]["text"], "ant", "bee")
    answer = fitted.predict(first.text)
    assert (answer.label, answer.probability) == (first.predicted, pytest.approx(first.probability))
    assert any(f"('ant') and row 61 {LISTED} ('cow')" in note for note in fitted.card["notes"])


def test_notes_are_saved_and_mistakes_are_not(fitted, tmp_path):
    fitted.save(tmp_path / "saved")
    again = TextClassifier.from_pretrained(tmp_path / "saved", device="cpu")
    assert again.card["notes"] == fitted.card["notes"] != []
    assert again.fitted.issues == ()
    text = fitted.fitted.issues[0].text
    assert text not in (tmp_path / "saved" / "bothways.json").read_text()
    readme = (tmp_path / "saved" / "README.md").read_text()
    assert text not in readme
    assert "## Notes" in readme
    assert all(note.split("(")[0].strip() in readme for note in fitted.card["notes"])
    json.dumps(fitted.card, allow_nan=False)


def test_a_start_that_is_kept_is_noted(base):
    classifier = TextClassifier.from_pretrained(without_dropout(base), device="cpu")
    record = classifier.fit(rows(60), validation=rows(60), **{**QUICK, "learning_rate": 1.0, "epochs": 1})
    assert record.kept_epoch == 0
    kept = "Fine-tuning did not do better than the linear model of frozen hidden states"
    (note,) = (note for note in classifier.card["notes"] if note.startswith(kept))
    assert ("would help" in note) == (classifier.card["metrics"]["accuracy"] < 1)


def test_an_embedder_that_is_better_untrained_is_kept_and_says_so(base):
    embedder = SentenceEmbedder.from_pretrained(without_dropout(base), device="cpu")
    first, second = ([f"w{5 + at} w{20 + at}" for at in range(start, start + 30)] for start in (0, 1))
    # Validated on its own cosines, and trained on the opposite.
    right = np.diagonal(embedder.similarity(first, second))
    data, wrong = (
        [{"text_a": a, "text_b": b, "score": float(score)} for a, b, score in zip(first, second, scores, strict=True)]
        for scores in (right, 1.0 - right)
    )
    record = embedder.fit(wrong, validation=data, **QUICK)
    spearman = [each.metrics["spearman"] for each in record.validations]
    assert spearman[0] == pytest.approx(1.0)
    assert max(spearman[1:]) < 0.9
    assert record.kept_epoch == 0
    kept = "Fine-tuning did not do better than the embedder before the training, which is kept"
    assert f"{kept}: its validation score is the highest possible." in embedder.card["notes"]


@pytest.mark.parametrize("target", ["multi", "regression"])
def test_other_targets_have_notes_on_the_training(tiny_bert, target):
    label = (lambda at: ["a"] if at < 15 else ["b"]) if target == "multi" else float
    data = [{"text": f"w{5 + at % 15}", "label": label(at)} for at in range(20)]
    classifier = TextClassifier.from_pretrained(tiny_bert, device="cpu")
    classifier.fit(data, validation=data, target=target, **QUICK)
    notes = classifier.card["notes"]
    assert any("20 held-out rows" in note for note in notes)
    contradiction = f"row 1 {LISTED} ('a') and row 16 {LISTED} ('b')"
    assert any(contradiction in note for note in notes) == (target == "multi")
    assert all(mistake.label in ("a", "b") for mistake in classifier.fitted.issues)


def test_a_tagger_has_notes_on_the_training(tiny_bert):
    data = [{"tokens": ["w5", "w6"], "tags": ["B-X", "O"]} for _ in range(10)]
    tagger = TextTagger.from_pretrained(tiny_bert, device="cpu")
    tagger.fit(data, validation=data, **QUICK)
    assert any("10 held-out rows" in note for note in tagger.card["notes"])
