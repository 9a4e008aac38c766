"""Class weights are scikit-learn's, weigh the loss as torch does, and help rare labels."""

import json

import numpy as np
import pytest
import sklearn.metrics as oracle
import torch
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight

from bothways import MultiTask, TaskData, TextClassifier
from bothways.data.windows import WindowStore
from bothways.errors import InvalidInput
from bothways.evaluation.intervals import share_error
from bothways.evaluation.metrics.classification import class_outcomes, label_outcomes
from bothways.tasks.heads.target_training import TextLoss, balanced_weights, validate
from bothways.tasks.heads.targets import MultiLabel, SingleLabel
from bothways.text import EncodedText, Window

NAMES = ("ant", "bee", "cow")
SINGLE, MULTI = SingleLabel(NAMES), MultiLabel(NAMES)
QUICK = {"epochs": 2, "learning_rate": 3e-3, "batch_size": 16}


def truth_of(kind, rows=60):
    rng = np.random.default_rng(0)
    if kind == "single":
        return np.append(rng.choice(3, rows - 3, p=[0.8, 0.15, 0.05]), [0, 1, 2])
    return (rng.random((rows, 3)) < [0.7, 0.2, 0.05]).astype(np.float32)


def store_of(windows):
    """A text of so many windows for each number."""
    made = [EncodedText(tuple(Window((5, 6), (0, 0)) for _ in range(count)), 0) for count in windows]
    return WindowStore.of(made)


def test_weights_of_labels_are_those_of_scikit_learn():
    truth = truth_of("single")
    expected = compute_class_weight("balanced", classes=np.arange(3), y=truth)
    found = balanced_weights(SINGLE, truth)[:, 0]
    assert found == pytest.approx(expected[truth])
    assert found.mean() == pytest.approx(1)


def test_weights_of_several_labels_are_those_of_scikit_learn_for_each():
    truth = truth_of("multi")
    found = balanced_weights(MULTI, truth)
    for label in range(3):
        assert found[:, label] == pytest.approx(compute_sample_weight("balanced", truth[:, label]))
    assert found.mean(axis=0) == pytest.approx([1, 1, 1])
    # The ratio is what torch calls pos_weight.
    rows = truth[:, 2].sum()
    assert found[truth[:, 2] > 0, 2][0] / found[truth[:, 2] == 0, 2][0] == pytest.approx((len(truth) - rows) / rows)


def test_a_label_that_all_rows_have_or_none_counts_as_before():
    truth = np.array([[1, 0, 1], [1, 0, 0], [1, 0, 0]], dtype=np.float32)
    assert (balanced_weights(MULTI, truth)[:, :2] == 1).all()


@pytest.mark.parametrize("kind", ["single", "multi"])
def test_the_loss_of_an_update_is_the_weighted_mean_however_it_is_split(kind):
    target, truth = (SINGLE if kind == "single" else MULTI), truth_of(kind)
    store = store_of([1 + number % 3 for number in range(len(truth))])
    answers = TextLoss(target, truth, store, balanced_weights(target, truth))
    windows = list(range(len(store.text_of_window)))
    logits = torch.randn(len(truth), 3, generator=torch.Generator().manual_seed(0))
    scores = logits[store.text_of_window]  # all windows of a text say the same
    parts = [windows[:7], windows[7:50], windows[50:]]
    weight = sum(answers.weights_W[part].sum() for part in parts)
    loss = sum(answers.loss(scores[part], part) for part in parts) / weight
    if kind == "single":
        weights = torch.tensor(compute_class_weight("balanced", classes=np.arange(3), y=truth), dtype=torch.float32)
        expected = torch.nn.functional.cross_entropy(logits, torch.from_numpy(truth), weights)
    else:
        weights = torch.from_numpy(
            np.column_stack([compute_sample_weight("balanced", truth[:, each]) for each in range(3)])
        )
        losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(truth), reduction="none")
        expected = (losses * weights).sum() / weights.sum()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert weight == pytest.approx(len(truth))


def rows(count=120, seed=0):
    """A tenth of the texts has the rare label, and half of those with its word have it."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        rare = number % 10 == 0
        word = "w6" if rare or number % 10 == 1 else "w5"
        filler = " ".join(f"w{20 + rng.integers(40)}" for _ in range(3))
        made.append({"text": f"{word} {filler}", "label": "rare" if rare else "common"})
    return made


def fitted(folder, data, **options):
    classifier = TextClassifier.from_pretrained(folder, device="cpu")
    classifier.fit(data, validation=rows(60, seed=1), **{**QUICK, **options})
    return classifier


@pytest.mark.slow
def test_rare_labels_are_found_with_class_weights(tiny_bert, tmp_path):
    plain, balanced = (fitted(tiny_bert, rows(400), class_weights=each, epochs=8) for each in (None, "balanced"))
    recalls = [model.evaluate(rows(60, seed=2), resamples=5).per_class[1].recall.value for model in (plain, balanced)]
    assert recalls[1] > recalls[0]
    balanced.save(tmp_path / "saved")
    card = json.loads((tmp_path / "saved" / "bothways.json").read_text())["card"]
    assert card["class_weights"] == "balanced"
    assert any("All labels had the same weight in training" in limit for limit in card["limits"])
    assert "class_weights" not in plain.card


def test_the_epoch_is_chosen_by_balanced_accuracy(tiny_bert):
    classifier, held_out = fitted(tiny_bert, rows(), class_weights="balanced", epochs=1), rows(60, seed=1)
    _, validation = classifier.card["training"]["validations"]
    assert classifier.card["training"]["kept_epoch"] == 1
    truth = [row["label"] for row in held_out]
    # Before calibration, which is fitted after the epoch.
    said = [each.label for each in classifier.predict([row["text"] for row in held_out], calibrated=False)]
    balanced = oracle.balanced_accuracy_score(truth, said)
    metrics = validation["metrics"]
    assert validation["score"] == metrics["balanced_accuracy"] == pytest.approx(balanced)
    assert metrics["accuracy"] == pytest.approx(oracle.accuracy_score(truth, said))
    assert metrics["macro_f1"] == pytest.approx(oracle.f1_score(truth, said, average="macro"))
    assert metrics["majority_accuracy"] == pytest.approx(0.9)


def test_the_standard_error_of_balanced_accuracy_is_that_of_a_mean_of_shares():
    truth = np.array([0] * 80 + [1] * 15 + [2] * 5)
    logits = np.eye(3)[np.where(np.arange(100) % 4 == 0, 0, truth)]
    found = validate(SINGLE, logits, truth, balanced=True)
    hits = [np.mean(logits[truth == label].argmax(1) == label) for label in range(3)]
    errors = [share_error(share, rows) for share, rows in zip(hits, (80, 15, 5), strict=True)]
    assert found.score == pytest.approx(np.mean(hits))
    assert found.standard_error == pytest.approx(np.sqrt(np.sum(np.square(errors))) / 3)


def test_a_run_is_not_resumed_with_other_weights(tiny_bert, tmp_path):
    options = {"checkpoints": tmp_path / "run", "checkpoint_every_updates": 1, "epochs": 1}
    fitted(tiny_bert, rows(40), class_weights="balanced", **options)
    with pytest.raises(InvalidInput, match="class weights"):
        fitted(tiny_bert, rows(40), **options, resume=True)


def test_several_labels_and_tasks_take_class_weights(tiny_bert):
    data = [{**row, "label": [row["label"]]} for row in rows(40)]
    both = MultiTask.from_pretrained(tiny_bert, device="cpu")
    parts = {
        "sets": TaskData(data, data, target="multi", class_weights="balanced"),
        "one": TaskData(rows(40), rows(40), class_weights="balanced"),
    }
    both.fit(parts, **{**QUICK, "epochs": 1})
    assert [part.card["class_weights"] for part in both.parts.values()] == ["balanced"] * 2


def test_weights_that_there_are_not_are_refused(tiny_bert):
    with pytest.raises(InvalidInput, match="class_weights must be one of 'balanced', got 'equal'"):
        fitted(tiny_bert, rows(), class_weights="equal")
    with pytest.raises(InvalidInput, match="class_weights need labels, but this model predicts a number"):
        fitted(tiny_bert, [{**row, "label": 1.0} for row in rows()], target="regression", class_weights="balanced")


# --- what always giving the most frequent label would score ---


def test_a_report_says_what_always_giving_the_most_frequent_label_would_score():
    truth = np.array([0] * 90 + [1] * 7 + [2] * 3)
    stated = np.full((100, 3), 1 / 3)
    report = class_outcomes(NAMES, truth, stated).report(resamples=5)
    always = np.zeros(100, dtype=int)
    expected = oracle.accuracy_score(truth, always), oracle.f1_score(truth, always, average="macro")
    assert (report.values["majority_accuracy"], report.values["majority_macro_f1"]) == pytest.approx(expected)
    assert "'ant' is the label of 90.0% of the rows: always predicting it has an accuracy of 0.9000" in report.summary()
    assert f"and a macro F1 of {expected[1]:.4f}." in report.summary()
    evenly = class_outcomes(NAMES, np.arange(99) % 3, stated[:99]).report(resamples=5)
    assert "majority_accuracy" not in evenly.values
    assert "always predicting" not in evenly.summary()


def test_a_report_on_several_labels_says_so_too():
    truth = np.zeros((50, 3), dtype=int)
    truth[:45, 1], truth[:10, 0] = 1, 1
    report = label_outcomes(NAMES, truth, np.full((50, 3), 0.4)).report(resamples=5)
    expected = oracle.f1_score(truth, np.tile([0, 1, 0], (50, 1)), average="micro")
    assert report.values["majority_micro_f1"] == pytest.approx(expected)
    assert f"90.0% of the rows have 'bee': always predicting it alone has micro F1 {expected:.4f}." in str(report)
