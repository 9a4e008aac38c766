"""The linear model that a head begins with: scikit-learn's, for vectors of mean squared length 1."""

from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bothways import PairClassifier, TextClassifier, TextTagger
from bothways.data import Example
from bothways.data.windows import WindowStore
from bothways.tasks.classification.learner import LabelLearner
from bothways.tasks.classification.outputs import LabelOutputs
from bothways.tasks.heads import linear_start
from bothways.tasks.heads.linear_start import STRENGTH, LinearStart, fit_linear, start_head
from bothways.tasks.heads.objective import StoredInputs
from bothways.tasks.heads.splits import TrainingData, split_fit_options
from bothways.tasks.heads.target_training import TextLoss
from bothways.tasks.heads.targets import MultiLabel, Regression, SingleLabel
from bothways.tasks.heads.training import LINEAR, train_head
from bothways.tasks.torch_backend import HeadModel
from bothways.training.options import TrainingOptions
from bothways.training.state import seeded
from classifier_cases import noisy_rows, rows, without_dropout
from contract_cases import pair_rows
from contract_cases import rows as rows_of_target
from tiny_models import every_family, write_checkpoint

linear_model = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is not installed")


def points(count, width=7, seed=0, spread=1.0, shift=2.0):
    """Vectors that are not centred, of numbers of different sizes."""
    generator = np.random.default_rng(seed)
    sizes = np.linspace(0.2, 1.5, width)
    return spread * (generator.normal(size=(count, width)) * sizes + shift)


def labels_of(vectors, count, seed=1, noise=1.0):
    """Classes that a linear model tells, but not of every row."""
    generator = np.random.default_rng(seed)
    scores = (vectors - vectors.mean(0)) @ generator.normal(size=(vectors.shape[1], count))
    return (scores + noise * scores.std() * generator.normal(size=scores.shape)).argmax(1)


def length(vectors):
    """By what vectors are divided that have then mean squared length 1."""
    return np.sqrt((vectors**2).sum(1).mean())


def fitted(vectors, truth, target, strength=STRENGTH):
    """Weights and biases, as the head of a classifier of texts with one window each begins with them."""
    answers = TextLoss(target, truth, store_of([1] * len(truth)))
    numbers = list(range(len(truth)))
    weight, bias = fit_linear(
        torch.from_numpy(vectors).float(),
        target.outputs,
        lambda scores: answers.loss(scores, numbers),
        units=float(len(truth)),
        strength=strength,
    )
    return weight.numpy(), bias.numpy()


def store_of(counts):
    """A stand-in for a store of texts with so many windows each; what they say does not matter."""
    shares_W = np.repeat(1 / np.array(counts), counts)
    return SimpleNamespace(text_of_window=np.repeat(np.arange(len(counts)), counts), shares_W=shares_W)


def logistic(strength):
    return linear_model.LogisticRegression(C=strength, tol=1e-10, max_iter=10_000)


def names(count):
    return tuple(f"c{number}" for number in range(count))


# What is fitted


@pytest.mark.parametrize("classes", [3, 12])
def test_it_is_multinomial_logistic_regression_with_the_same_strength(classes):
    vectors = points(300)
    truth = labels_of(vectors, classes)
    weight, bias = fitted(vectors, truth, SingleLabel(names(classes)))
    expected = logistic(STRENGTH).fit(vectors / length(vectors), truth)
    found_NC = vectors @ weight.T + bias
    expected_NC = expected.decision_function(vectors / length(vectors))
    differences = (found_NC - found_NC.mean(1, keepdims=True)) - (expected_NC - expected_NC.mean(1, keepdims=True))
    np.testing.assert_allclose(differences, 0, atol=2e-3)
    np.testing.assert_allclose(weight * length(vectors), expected.coef_, atol=5e-3)


@pytest.mark.parametrize("strength", [0.1, STRENGTH])
def test_of_numbers_it_is_ridge_regression(strength):
    vectors = points(150)
    truth = (vectors @ np.linspace(-1, 1, 7) + np.random.default_rng(3).normal(size=150)).astype(np.float32)
    weight, bias = fitted(vectors, truth, Regression(), strength)
    expected = linear_model.Ridge(alpha=1 / (2 * strength)).fit(vectors / length(vectors), truth)
    np.testing.assert_allclose(weight[0] * length(vectors), expected.coef_, rtol=1e-3, atol=1e-3)
    assert bias[0] == pytest.approx(expected.intercept_, rel=1e-3)


def test_of_several_labels_it_is_a_logistic_regression_for_each():
    vectors = points(250)
    truth = np.stack([labels_of(vectors, 2, seed) for seed in range(5)], axis=1).astype(np.float32)
    outputs = LabelOutputs(MultiLabel(names(5)))
    learner = LabelLearner(outputs)
    assert learner.start_strength == 5 * STRENGTH  # the loss is the mean over the labels
    weight, bias = fitted(vectors, truth, outputs.row_target, learner.start_strength)
    for label in range(5):
        expected = logistic(STRENGTH).fit(vectors / length(vectors), truth[:, label])
        np.testing.assert_allclose(weight[label] * length(vectors), expected.coef_[0], rtol=5e-3, atol=5e-3)
        assert bias[label] == pytest.approx(expected.intercept_[0], abs=1e-2)


@pytest.mark.parametrize("scale", [1e-3, 1e4])
def test_the_scale_of_vectors_does_not_matter(scale):
    vectors = points(120)
    truth = labels_of(vectors, 3)
    weight, bias = fitted(vectors, truth, SingleLabel(names(3)))
    scaled, same_bias = fitted(scale * vectors, truth, SingleLabel(names(3)))
    np.testing.assert_allclose(scaled * scale, weight, atol=1e-4)
    np.testing.assert_allclose(same_bias, bias, atol=1e-3)


@pytest.mark.parametrize(("count", "width"), [(20, 50), (50, 50), (90, 20)])
def test_few_and_many_vectors_have_the_same_models_at_several_strengths_at_once_and_one_by_one(count, width):
    vectors = points(count, width=width)
    truth = labels_of(vectors, 2)
    target, strengths = SingleLabel(names(2)), (0.1, 10.0)
    answers, numbers = TextLoss(target, truth, store_of([1] * count)), list(range(count))
    path = linear_start.linear_path(
        torch.from_numpy(vectors).float(),
        2,
        lambda scores: answers.loss(scores, numbers),
        units=float(count),
        strengths=strengths,
    )
    for strength, (weight, bias) in zip(strengths, path, strict=True):
        alone, alone_bias = fitted(vectors, truth, target, strength)
        assert np.array_equal(weight.numpy(), alone)
        assert np.array_equal(bias.numpy(), alone_bias)
        expected = logistic(2 * strength).fit(vectors / length(vectors), truth)
        # Of two classes scikit-learn has one vector w, and here there are w/2 and -w/2: |w|²/2 in all.
        difference = (weight[1] - weight[0]).numpy() * length(vectors)
        np.testing.assert_allclose(difference, expected.coef_[0], rtol=1e-3, atol=1e-3)


def test_windows_of_a_text_count_together_as_one_text():
    vectors = points(40)
    truth = labels_of(vectors, 3)
    counts = [1 + number % 3 for number in range(40)]
    answers = TextLoss(SingleLabel(names(3)), truth, store_of(counts))
    numbers = list(range(sum(counts)))
    repeated = torch.from_numpy(np.repeat(vectors, counts, axis=0)).float()
    weight, _ = fit_linear(
        repeated, 3, lambda scores: answers.loss(scores, numbers), units=float(answers.weights_W[numbers].sum())
    )
    scale = length(np.repeat(vectors, counts, axis=0))
    expected = logistic(STRENGTH).fit(vectors / scale, truth)
    np.testing.assert_allclose(weight.numpy() * scale, expected.coef_, atol=5e-3)


def test_many_rows_are_fitted_in_float32_to_the_same_answer(monkeypatch):
    vectors = points(400)
    truth = labels_of(vectors, 4)
    exact, _ = fitted(vectors, truth, SingleLabel(names(4)))
    monkeypatch.setattr(linear_start, "_EXACT", 10.0)
    rounded, _ = fitted(vectors, truth, SingleLabel(names(4)))
    assert (exact.dtype, rounded.dtype) == (np.float64, np.float32)
    np.testing.assert_allclose(rounded, exact, atol=1e-2)


@pytest.mark.parametrize("target", [SingleLabel(names(3)), MultiLabel(names(3)), Regression()])
def test_vectors_that_are_all_the_same_leave_what_is_frequent(target):
    generator = np.random.default_rng(0)
    truth = {
        "single": np.array([0] * 6 + [1] * 3 + [2]),
        "multi": (generator.random((10, 3)) < 0.4).astype(np.float32),
        "regression": generator.normal(size=10).astype(np.float32),
    }[target.kind]
    for value in (0.0, 3.0):
        weight, bias = fitted(np.full((10, 5), value), truth, target)
        assert np.isfinite(weight).all()
        assert np.abs(weight).max() < 1e-3
        if target.kind == "single":
            np.testing.assert_allclose(np.exp(bias) / np.exp(bias).sum(), [0.6, 0.3, 0.1], atol=1e-3)
        elif target.kind == "multi":
            np.testing.assert_allclose(1 / (1 + np.exp(-bias)), truth.mean(0), atol=1e-3)
        else:
            assert bias[0] == pytest.approx(truth.mean(), abs=1e-3)


@pytest.mark.parametrize("spread", [1e-20, 1e-6, 1e6, 1e15])
def test_a_row_of_each_class_is_enough_whatever_the_size_of_the_vectors(spread):
    vectors = spread * np.eye(4, 6)
    weight, bias = fitted(vectors, np.arange(4), SingleLabel(names(4)))
    assert np.isfinite(weight).all()
    if spread > 1e-12:
        assert ((vectors @ weight.T + bias).argmax(1) == np.arange(4)).all()


# What it is fitted to


def prepared(task, data, **options):
    """The training that `fit` lays out, and the opened model."""
    columns, own, training = split_fit_options(task, {"show_progress": False, **options})
    backend = task.backend.copy_for_training(resumed=False)
    return train_head(task.spec, backend, task._fitted, TrainingData(data, data), columns, own, training), backend


def weights(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def differing(one, other):
    return {name for name, value in one.items() if not torch.equal(value, other[name])}


@every_family
def test_nothing_but_the_last_map_of_a_new_head_differs_from_one_that_is_drawn(tmp_path, model_type):
    write_checkpoint(tmp_path / "base", model_type)
    classifier = TextClassifier.from_pretrained(tmp_path / "base", device="cpu")
    before = weights(classifier.model.encoder)
    ready, opened = prepared(classifier, rows(12), seed=3)
    model = ready.objective.model
    assert not differing(weights(model.encoder), before)
    assert not model.training
    with seeded(3):
        drawn = opened.files.new_score_head("sequence", 3)
    assert differing(weights(drawn), weights(model.head)) == {"output.weight", "output.bias"}
    assert ready.objective.baseline.name == LINEAR
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("kind", "target"), [(TextClassifier, "single"), (PairClassifier, "multi"), (TextClassifier, "regression")]
)
def test_the_start_has_a_lower_training_loss_than_a_drawn_head(base, kind, target):
    task = kind.from_pretrained(without_dropout(base), device="cpu")
    data = rows_of_target(target, 24) if kind is TextClassifier else pair_rows(target, 24)
    ready, opened = prepared(task, data, target=target)
    model = ready.objective.model
    drawn = HeadModel(opened.model.encoder, opened.files.new_score_head("sequence", model.head.output.out_features))
    assert loss_of(ready.objective, model) < 0.95 * loss_of(ready.objective, drawn.eval())


def loss_of(objective, model):
    windows = list(range(len(objective.store.lengths)))
    with torch.no_grad():
        return float(objective.targets.loss(model(objective.store.pack(windows)).float(), windows))


def test_a_tagger_begins_at_the_linear_model_of_its_words(base):
    data = [{"tokens": [f"w{5 + (number + place) % 6}" for place in range(1 + number % 9)]} for number in range(40)]
    for row in data:
        row["tags"] = ["B-PER" if word in ("w5", "w7") else "O" for word in row["tokens"]]
    tagger = TextTagger.from_pretrained(without_dropout(base), device="cpu")
    ready, opened = prepared(tagger, data)
    objective, model = ready.objective, ready.objective.model
    windows = list(range(len(objective.store.lengths)))
    with torch.no_grad():
        hidden = model.head.transform(model.encoder(objective.store.pack(windows))).double().numpy()
    numbers, places = objective.targets._units.of(windows)
    tags = objective.targets._tags_U[numbers]
    scale = length(hidden)
    expected = logistic(2 * STRENGTH).fit(hidden[places] / scale, tags)
    found = model.head.output.weight.detach().numpy()
    np.testing.assert_allclose((found[1] - found[0]) * scale, expected.coef_[0], rtol=1e-2, atol=1e-2)
    drawn = HeadModel(opened.model.encoder, opened.files.new_score_head("token", 3)).eval()
    assert loss_of(objective, model) < 0.95 * loss_of(objective, drawn)


@pytest.mark.parametrize(
    ("limits", "windows"),
    [((10, 1e9), 2), ((1e9, 30), 2), ((1e9, 23), 1), ((3, 1e9), 1), ((24, 72), 6), ((23, 72), 5), ((24, 71), 5)],
)
def test_as_many_windows_are_drawn_as_rows_and_scores_have_room_for(monkeypatch, limits, windows):
    for name, limit in zip(("_MOST_ROWS", "_MOST_SCORES"), limits, strict=True):
        monkeypatch.setattr(linear_start, name, limit)
    drawn = linear_start._drawn(np.full(6, 4), 3, seed=0)  # six windows of four rows, three outputs
    assert len(drawn) == windows
    assert drawn.tolist() == sorted(set(drawn.tolist()))


def test_too_many_windows_are_drawn_before_the_encoder_reads_them(base, monkeypatch):
    classifier = TextClassifier.from_pretrained(without_dropout(base), device="cpu")
    ready, _ = prepared(classifier, noisy_rows(24))
    whole = weights(ready.objective.model.head)
    monkeypatch.setattr(linear_start, "_MOST_ROWS", 10)
    read = []
    pack_windows = WindowStore.windows
    monkeypatch.setattr(WindowStore, "windows", lambda self, *given: read.append(given) or pack_windows(self, *given))
    parts = [weights(prepared(classifier, noisy_rows(24), seed=seed)[0].objective.model.head) for seed in (1, 1, 2)]
    assert [len(given[0]) for given in read if given] == [10] * 3
    assert not differing(parts[0], parts[1])
    assert differing(parts[0], parts[2])
    assert differing(parts[0], whole)


def test_the_first_validation_is_that_of_the_linear_model(base):
    classifier = TextClassifier.from_pretrained(without_dropout(base), device="cpu")
    data = rows(18)
    ready, _ = prepared(classifier, data)
    expected = ready.objective.validate()
    record = classifier.fit(data, validation=data, epochs=1, learning_rate=1e-3)
    assert record.baseline == LINEAR
    assert (record.validations[0].epoch, record.validations[0].update) == (0, 0)
    assert record.validations[0].metrics == expected.metrics


# How little the weights are held back


def chosen(vectors, truth, target, usual=STRENGTH, seed=0):
    """The strength that cross-validation chooses for texts with one window each."""
    answers = TextLoss(target, truth, store_of([1] * len(truth)))
    numbers = np.arange(len(truth))
    data = linear_start._Rows(
        [row[None] for row in torch.from_numpy(vectors).float()], numbers, numbers, answers, target.outputs
    )
    return linear_start.chosen_strength(data, LinearStart(usual, seed, 1024))


@pytest.mark.parametrize("most_in_turn", [1e9, 1.0])
def test_vectors_that_say_nothing_are_held_back(monkeypatch, most_in_turn):
    monkeypatch.setattr(linear_start, "_MOST_IN_TURN", most_in_turn)
    vectors = points(80, width=60)
    truth = np.random.default_rng(5).normal(size=80).astype(np.float32)
    assert chosen(vectors, truth, Regression()) < 0.1


def test_vectors_that_say_much_are_held_back_less():
    vectors = points(400, width=5)
    truth = (vectors @ np.ones(5)).astype(np.float32)
    assert chosen(vectors, truth, Regression()) > STRENGTH


def test_few_rows_choose_nothing():
    vectors = points(49, width=60)
    truth = np.random.default_rng(5).normal(size=49).astype(np.float32)
    assert chosen(vectors, truth, Regression()) == STRENGTH


def test_the_usual_strength_stays_where_it_is_as_good():
    vectors = points(200, width=3)
    assert chosen(vectors, labels_of(vectors, 2, noise=2.0), SingleLabel(names(2))) == STRENGTH


def test_many_rows_are_chosen_by_a_part_of_them(monkeypatch):
    vectors = points(300, width=60)
    truth = np.random.default_rng(5).normal(size=300).astype(np.float32)
    monkeypatch.setattr(linear_start, "_MOST_TRIED", 80.0)
    sizes = []
    path = linear_start.linear_path

    def path_of(rows, *others, **options):
        sizes.append(len(rows))
        return path(rows, *others, **options)

    monkeypatch.setattr(linear_start, "linear_path", path_of)
    assert chosen(vectors, truth, Regression()) < 0.1
    assert set(sizes) == {60}


def test_windows_of_a_text_are_held_out_together(monkeypatch):
    counts = [1 + number % 3 for number in range(60)]
    vectors = torch.from_numpy(np.repeat(points(60), counts, axis=0)).float()
    answers = TextLoss(SingleLabel(names(3)), labels_of(points(60), 3), store_of(counts))
    numbers = np.arange(sum(counts))
    data = linear_start._Rows([row[None] for row in vectors], numbers, np.repeat(np.arange(60), counts), answers, 3)
    parts = []
    part = linear_start._Rows.part
    monkeypatch.setattr(
        linear_start._Rows, "part", lambda data, chosen_W: parts.append(part(data, chosen_W)) or parts[-1]
    )
    linear_start.chosen_strength(data, LinearStart(STRENGTH, 0, 1024))
    whole, *halves = parts
    assert len(whole.inputs) == len(numbers)
    for held, learnt in zip(halves[::2], halves[1::2], strict=True):
        assert not set(held.inputs) & set(learnt.inputs)
        assert len(held.inputs) + len(learnt.inputs) == len(numbers)


# Heads that were there


def test_a_trained_head_is_trained_further_and_is_its_own_baseline(base):
    classifier = TextClassifier.from_pretrained(without_dropout(base), device="cpu")
    data = rows(18)
    classifier.fit(data, validation=data, epochs=1)
    before = weights(classifier.fitted.backend.head_model)
    ready, _ = prepared(classifier, data)
    assert ready.objective.baseline.name == "model before the training"
    assert not differing(weights(ready.objective.model), before)


def test_start_head_reads_in_evaluation_mode_and_leaves_the_rest_alone(base):
    opened = TextClassifier.from_pretrained(base, device="cpu").backend  # with dropout
    outputs = LabelOutputs(SingleLabel(("ant", "bee", "cow")))
    examples = [Example(row["text"], row["label"], number, "a row") for number, row in enumerate(rows(18))]
    stored = StoredInputs.of(opened, outputs, examples)
    heads = []
    for training in (True, False):
        with seeded(0):
            head = opened.files.new_score_head("sequence", 3)
        model = HeadModel(deepcopy(opened.model.encoder), head).train(training)
        start_head(
            model,
            stored.store,
            LabelLearner(outputs).loss(stored),
            LinearStart(STRENGTH, 0, TrainingOptions().max_tokens),
        )
        heads.append(weights(head))
    assert not differing(*heads)


@pytest.mark.parametrize(
    ("texts", "per_token", "searched", "seconds"),
    [
        (40, False, True, 60 * 2.0),  # too few to try other strengths
        (60, False, True, 60 * 2.0 * (1 + 6 * 4 * 0.75)),  # six strengths in four folds, each on three quarters
        (60, False, False, 60 * 2.0),
        (40, True, True, 200 * 2.0),
        (1000, True, False, 200 * 2.0 * 2),  # 4,000 tokens, of which 2,000 are measured
    ],
)
def test_the_duration_of_fits_is_estimated_from_one_on_few_rows(monkeypatch, texts, per_token, searched, seconds):
    def fit(vectors_MH, outputs, loss, units):
        assert units == len(vectors_MH) <= 2000
        for _ in range(3):
            loss(torch.zeros(len(vectors_MH), outputs))

    monkeypatch.setattr(linear_start, "fit_linear", fit)
    monkeypatch.setattr(linear_start.time, "perf_counter", iter([0.0, 6.0]).__next__)
    model = SimpleNamespace(per_token=per_token, head=SimpleNamespace(output=torch.nn.Linear(8, 2)))
    none = np.zeros(4 * texts, np.int32)
    store = WindowStore(
        none, none.astype(np.uint8), np.arange(texts + 1) * 4, np.arange(texts), np.zeros(texts, np.int64)
    )
    start = LinearStart(STRENGTH, 0, 1024, searched)
    assert linear_start.fitting_seconds(model, store, start) == pytest.approx(seconds)
