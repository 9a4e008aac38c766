"""Estimators for scikit-learn: its tools take them, its checks pass, and they answer as the tasks below them."""

import importlib.util
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted, validate_data

import bothways
from bothways import sklearn
from bothways.errors import InvalidInput, MissingDependency
from classifier_cases import rows
from pair_cases import pairs, scored

TEXTS = [row["text"] for row in rows(30)]
NAMES = [row["label"] for row in rows(30)]
NUMBERS = [{"ant": 10, "bee": -3, "cow": 2}[name] for name in NAMES]  # sorted as text: -3, 10, 2
PAIRS = [(row["text_a"], row["text_b"]) for row in pairs(30)]
RELATIONS = [row["label"] for row in pairs(30)]
BRIEF = {"updates": 1, "show_progress": False}

KINDS = [sklearn.TextClassifier, sklearn.PairClassifier, sklearn.TextRegressor, sklearn.PairRegressor]
KINDS += [sklearn.SentenceEmbedder]


@pytest.fixture(scope="module")
def model(tiny_bert):
    return tiny_bert


@pytest.fixture(scope="module")
def classifier(model):
    """A classifier of integers."""
    return sklearn.TextClassifier(model, epochs=1).fit(TEXTS, NUMBERS)


@pytest.fixture(scope="module")
def pair_classifier(model):
    return sklearn.PairClassifier(model, fit_options=BRIEF).fit(PAIRS, RELATIONS)


def test_a_classifier_answers_as_its_task_in_the_labels_of_its_data(classifier, model):
    task = bothways.TextClassifier.from_pretrained(model)
    task.fit(TEXTS, NUMBERS, epochs=1, seed=0)
    expected = task.predict(TEXTS)
    assert classifier.classes_.tolist() == [-3, 2, 10]
    predicted = classifier.predict(TEXTS)
    assert predicted.dtype == np.int64
    assert predicted.tolist() == [int(each.label) for each in expected]
    by_label = [{int(label): value for label, value in each.probabilities.items()} for each in expected]
    assert classifier.predict_proba(TEXTS).tolist() == [[each[label] for label in (-3, 2, 10)] for each in by_label]


def test_scores_and_reports_are_of_the_rows_at_hand(classifier):
    hits = np.mean(classifier.predict(TEXTS[:20]) == np.array(NUMBERS[:20]))
    report = classifier.evaluate(TEXTS[:20], NUMBERS[:20], resamples=20)
    assert classifier.score(TEXTS[:20], NUMBERS[:20]) == hits == report.accuracy.value
    with pytest.raises(InvalidInput, match="labelled '7', which this classifier does not know"):
        classifier.evaluate(TEXTS[:2], [7, 2])


def test_a_fitted_estimator_can_be_pickled_and_its_clone_is_not_fitted(classifier):
    stored = pickle.loads(pickle.dumps(classifier))
    assert np.array_equal(stored.predict_proba(TEXTS), classifier.predict_proba(TEXTS))
    with pytest.raises(NotFittedError):
        clone(classifier).predict_proba(TEXTS)
    assert clone(classifier).get_params() == classifier.get_params()


@pytest.mark.parametrize(
    "labels",
    [
        pd.Series(NAMES, dtype="category", index=range(100, 130)),
        np.array(NUMBERS, float),
        [number > 0 for number in NUMBERS],
        pd.Series(NUMBERS, dtype="Int64"),
    ],
    ids=["category", "float", "bool", "Int64"],
)
def test_labels_come_back_in_their_type(labels, model):
    estimator = sklearn.TextClassifier(model, fit_options=BRIEF).fit(TEXTS, labels)
    predicted = estimator.predict(TEXTS)
    assert estimator.classes_.tolist() == sorted(set(labels))
    assert {type(each) for each in predicted.tolist()} == {type(each) for each in np.asarray(labels).tolist()}
    assert estimator.score(TEXTS, labels) == np.mean(predicted == np.asarray(labels))
    assert (
        estimator.predict_proba(TEXTS).argmax(axis=1).tolist()
        == np.searchsorted(estimator.classes_, predicted).tolist()
    )


@pytest.mark.parametrize(
    "wrapped",
    [
        tuple,
        lambda texts: np.array(texts, object),
        np.array,
        lambda texts: np.array(texts, object)[:, None],
        lambda texts: pd.Series(texts, index=range(7, 37)),
        lambda texts: pd.DataFrame({"review": texts}),
    ],
    ids=["tuple", "objects", "strings", "one column", "Series", "DataFrame"],
)
@pytest.mark.filterwarnings("ignore:X has feature names")
def test_texts_come_in_many_containers(wrapped, classifier):
    assert np.array_equal(classifier.predict_proba(wrapped(TEXTS)), classifier.predict_proba(TEXTS))


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda given: [list(pair) for pair in given],
        lambda given: np.array(given, object),
        lambda given: pd.DataFrame(given, columns=["left", "right"]),
    ],
    ids=["lists", "array", "DataFrame"],
)
@pytest.mark.filterwarnings("ignore:X has feature names")
def test_pairs_come_in_many_containers(wrapped, pair_classifier):
    assert np.array_equal(pair_classifier.predict_proba(wrapped(PAIRS)), pair_classifier.predict_proba(PAIRS))


def test_columns_of_pairs_may_not_change_places(model):
    frame = pd.DataFrame(PAIRS, columns=["left", "right"])
    estimator = sklearn.PairClassifier(model, fit_options=BRIEF).fit(frame, RELATIONS)
    assert estimator.evaluate(frame, RELATIONS, resamples=20).accuracy.value == estimator.score(frame, RELATIONS)
    with pytest.raises(ValueError, match="must be in the same order"):
        estimator.predict(frame[["right", "left"]])


def test_several_labels_are_columns_of_zeros_and_ones(model):
    truth = np.array([[name != "cow", name == "bee", False] for name in NAMES], int)  # no row has the last label
    estimator = sklearn.TextClassifier(model, fit_options=BRIEF).fit(TEXTS, truth)
    predicted, probabilities = estimator.predict(TEXTS), estimator.predict_proba(TEXTS)
    assert predicted.shape == probabilities.shape == (30, 3)
    assert probabilities[:, 2].max() == 0
    assert predicted[:, 2].max() == 0
    expected = [set(each.labels) for each in estimator.model_.predict(TEXTS)]
    assert [{f"class_{place}" for place in np.flatnonzero(row)} for row in predicted] == expected
    assert estimator.score(TEXTS, truth) == np.mean((predicted == truth).all(axis=1))
    assert estimator.evaluate(TEXTS, truth, resamples=20).subset_accuracy.value == estimator.score(TEXTS, truth)
    sparse = sklearn.TextClassifier(model, fit_options=BRIEF).fit(TEXTS, csr_matrix(truth))
    assert np.array_equal(sparse.predict_proba(TEXTS), probabilities)


@pytest.mark.parametrize(
    ("kind", "inputs", "numbers"),
    [
        (sklearn.TextRegressor, TEXTS, np.array(NUMBERS)),
        (sklearn.PairRegressor, PAIRS, [row["score"] for row in scored(30)]),
    ],
)
def test_numbers_are_predicted(kind, inputs, numbers, model):
    estimator = kind(model, fit_options=BRIEF).fit(inputs, numbers)
    predicted = estimator.predict(inputs)
    rest = ((predicted - numbers) ** 2).sum() / ((numbers - np.mean(numbers)) ** 2).sum()
    assert estimator.score(inputs, numbers) == pytest.approx(1 - rest)
    assert estimator.evaluate(inputs, numbers, resamples=20).mse.value == pytest.approx(
        np.mean((predicted - numbers) ** 2), rel=1e-5
    )


def test_an_embedder_transforms_texts_with_its_settings(model):
    embedder = sklearn.SentenceEmbedder(model, dimensions=6, prompt="w9 ").set_output(transform="pandas")
    frame = embedder.fit_transform(TEXTS)
    vectors = bothways.SentenceEmbedder.from_pretrained(model, dimensions=6).encode(TEXTS, prompt="w9 ")
    assert np.array_equal(frame.to_numpy(), vectors)
    assert frame.columns.tolist() == [f"sentenceembedder{number}" for number in range(6)]


def test_an_embedder_is_trained_on_labels_only_where_it_is_asked(model):
    frozen = sklearn.SentenceEmbedder(model).fit(TEXTS, NAMES).transform(TEXTS)
    trained = sklearn.SentenceEmbedder(model, fine_tune=True, fit_options=BRIEF, learning_rate=1e-2)
    assert np.array_equal(frozen, sklearn.SentenceEmbedder(model).fit(TEXTS).transform(TEXTS))
    assert not np.allclose(frozen, trained.fit(TEXTS, NAMES).transform(TEXTS))
    with pytest.raises(ValueError, match="requires y to be passed"):
        trained.fit(TEXTS)


def test_pipelines_searches_and_cross_validation_take_estimators(model):
    brief = sklearn.TextClassifier(model, fit_options=BRIEF)
    assert cross_val_score(brief, pd.Series(TEXTS), NAMES, cv=2, scoring="neg_log_loss", error_score="raise").max() < 0
    pairs_of = sklearn.PairClassifier(model, fit_options=BRIEF)
    assert cross_val_score(pairs_of, PAIRS, RELATIONS, cv=2, error_score="raise").min() >= 0
    grid = {"sentenceembedder__dimensions": [2, 12], "logisticregression__C": [1.0]}
    pipeline = make_pipeline(sklearn.SentenceEmbedder(model), LogisticRegression())
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(TEXTS, NAMES)
    assert search.best_estimator_[0].transform(TEXTS[:1]).shape == (
        1,
        search.best_params_["sentenceembedder__dimensions"],
    )
    search = GridSearchCV(brief, {"learning_rate": [1e-3, 1e-2]}, cv=2, error_score="raise", refit=False)
    search.fit(TEXTS, NAMES)
    assert len(set(search.cv_results_["params"][0])) == 1


def test_parameters_reach_the_task(model, monkeypatch):
    found = {}

    def note(task, texts, labels, **options):
        found.update(options, max_length=task.backend.reading.max_length, on_overflow=task.backend.reading.on_overflow)

    monkeypatch.setattr(bothways.TextClassifier, "fit", note)
    given = {"epochs": 2, "learning_rate": 1e-3, "layer_decay": 0.9, "batch_size": 5, "class_weights": "balanced"}
    reading = {"max_length": 12, "on_overflow": "truncate"}
    sklearn.TextClassifier(model, **given, **reading, random_state=7, fit_options={"patience": 2}).fit(TEXTS, NAMES)
    assert found == {**given, **reading, "seed": 7, "patience": 2, "target": "single"}
    seeds = []
    for state in (np.int64(3), np.random.RandomState(3), None, None):
        sklearn.TextClassifier(model, random_state=state).fit(TEXTS, NAMES)
        seeds.append(found["seed"])
    assert seeds[:2] == [3, np.random.RandomState(3).randint(2**31)]
    assert len(set(seeds)) == 4


@pytest.mark.parametrize(
    ("inputs", "labels", "error", "match"),
    [
        ("w5 w6", NAMES, InvalidInput, "expected a list of texts, got a text alone"),
        (pd.DataFrame({"title": TEXTS, "body": TEXTS}), NAMES, InvalidInput, "one text in each row, got 2 values"),
        (np.arange(30), NAMES, InvalidInput, "Expected a string"),
        (["", *TEXTS[1:]], NAMES, InvalidInput, "row 1 .* is empty"),
        (TEXTS, None, ValueError, "requires y to be passed"),
        (TEXTS, NAMES[:-1], ValueError, "inconsistent numbers of samples"),
        (TEXTS, ["ant"] * 30, ValueError, "at least two classes, got the one class 'ant'"),
        (TEXTS, np.linspace(0, 1, 30), ValueError, "Unknown label type: continuous"),
        (TEXTS, [None, *NAMES[1:]], ValueError, "Unknown label type"),
        (TEXTS, [np.nan, *map(float, NUMBERS[1:])], ValueError, "NaN"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_unusable_data_are_refused(inputs, labels, error, match, model):
    with pytest.raises(error, match=match):
        sklearn.TextClassifier(model, fit_options=BRIEF).fit(inputs, labels)


@pytest.mark.parametrize(
    ("inputs", "error", "match"),
    [
        (("w5 w6", "w7"), InvalidInput, "got a pair of texts alone"),
        ([("w5", "w6", "w7")], ValueError, "3 features, but PairClassifier is expecting 2"),
        ([("w5", " ")], InvalidInput, "second text of pair 1 is empty"),
    ],
)
def test_unusable_pairs_are_refused(inputs, error, match, pair_classifier):
    with pytest.raises(error, match=match):
        pair_classifier.predict(inputs)


# --- the checks of scikit-learn ---


@pytest.mark.parametrize("kind", KINDS)
def test_the_checks_for_readers_of_text_pass(kind):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Can't test estimator")  # the checks that give numbers: see below
        assert {each["status"] for each in check_estimator(kind())} == {"passed"}


class _OfNumbers:
    """Reads rows of numbers as texts, a word for each, so that the checks that give numbers can run."""

    def _inputs(self, X, y="no_validation", *, fitting=False):
        if fitting:
            validate_data(self, "no_validation" if y is None else X, y, skip_check_array=True)
        else:
            check_is_fitted(self)
        table = validate_data(self, X, reset=fitting)
        texts = [" ".join(f"w{5 + int(abs(value) * 7) % 50}" for value in row) for row in table]
        return [(text, text) for text in texts] if self.texts_per_input > 1 else texts

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.one_d_array, tags.input_tags.string = True, False, False
        return tags


class TextClassifier(_OfNumbers, sklearn.TextClassifier):
    pass


class PairRegressor(_OfNumbers, sklearn.PairRegressor):
    pass


class SentenceEmbedder(_OfNumbers, sklearn.SentenceEmbedder):
    pass


FAILING = {
    "check_classifiers_train": "one update of a random model learns too little",
    "check_regressors_train": "one update of a random model learns too little",
    "check_methods_subset_invariance": "in other batches float32 rounds by 1e-6; the check allows 1e-7",
    "check_methods_sample_order_invariance": "in other batches float32 rounds by 1e-6; the check allows 1e-7",
    "check_fit2d_1sample": "a row must be held out, and InvalidInput, which says so, is no ValueError",
}


@pytest.mark.parametrize(
    "kind",
    [
        SentenceEmbedder,
        pytest.param(TextClassifier, marks=pytest.mark.slow),  # 15 s
        pytest.param(PairRegressor, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_the_checks_that_give_numbers_pass(kind, model):
    found = check_estimator(kind(model, fit_options=BRIEF), expected_failed_checks=FAILING, on_skip=None)
    assert len(found) > 40
    assert {each["status"] for each in found} <= {"passed", "skipped", "xfail"}


# --- what is imported ---


def test_without_scikit_learn_the_message_says_what_to_install(monkeypatch):
    spec = importlib.util.spec_from_file_location("without", sklearn.__file__)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(MissingDependency, match=r"bothways.sklearn needs .* pip install 'bothways\[torch\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_only_who_imports_estimators_loads_scikit_learn_and_nobody_torch():
    code = (
        "import sys, bothways; print('sklearn' in sys.modules); import bothways.sklearn; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False", "False"], done.stderr
