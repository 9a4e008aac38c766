"""Ensembles and models of several tasks as Python values: pickled, asked by threads, shown, given unknown options."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from bothways import Ensemble, MultiTask, TaggingData, TaskData
from bothways.errors import UnreadColumn
from bothways.tasks import TextClassifier
from classifier_cases import rows
from tiny_models import write_checkpoint

QUICK = {"epochs": 1, "learning_rate": 3e-3, "batch_size": 6}
TEXTS = [*(row["text"] for row in rows(30)), "w5 " * 40]
TAGGED = [{"tokens": row["text"].split(), "tags": ["X", *["Y"] * 6][: len(row["text"].split())]} for row in rows(12)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classifiers of two families."""
    made = tmp_path_factory.mktemp("values")
    for seed, family in enumerate(("bert", "distilbert")):
        write_checkpoint(made / family, family, seed=seed)
        classifier = TextClassifier.from_pretrained(made / family, device="cpu")
        classifier.fit(rows(), validation=rows(9), seed=seed, **QUICK)
        classifier.save(made / f"{family}-animals")
    return made


@pytest.fixture(scope="module")
def models(folder):
    """An ensemble of them, and a model of two tasks."""
    members = [folder / "bert-animals", folder / "distilbert-animals"]
    several = MultiTask.from_pretrained(folder / "bert", device="cpu")
    several.fit({"animal": TaskData(rows(), rows(9)), "names": TaggingData(TAGGED, TAGGED)}, **QUICK)
    together = Ensemble.of(members, method="stacked", calibrate=rows(30), device="cpu")
    return {"ensemble": together, "several tasks": several}


each_kind = pytest.mark.parametrize("kind", ["ensemble", "several tasks"])


@each_kind
def test_pickled_it_answers_the_same(models, kind):
    model = models[kind]
    again = pickle.loads(pickle.dumps(model))
    assert again.predict(TEXTS) == model.predict(TEXTS)
    assert again.card == model.card
    assert again.fitted.facts() == model.fitted.facts()


@each_kind
def test_eight_threads_at_once_are_answered_as_one_is(models, kind):
    model = models[kind]
    expected = model.predict(TEXTS)
    with ThreadPoolExecutor(8) as threads:
        for found in threads.map(lambda _: model.predict(TEXTS), range(16)):
            assert found == expected


@each_kind
def test_threads_that_read_other_columns_do_not_disturb_each_other(models, kind):
    model = models[kind]
    other = model.with_columns(text="body")
    data = [{"text": text, "body": "w9 w9"} for text in TEXTS]
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda each: list(each.predict(data)), (model, other))
    assert first == model.predict(TEXTS)
    assert second == model.predict(["w9 w9"] * len(TEXTS))


def test_it_is_shown_by_what_it_is(folder, models):
    members = " + ".join(str(folder / f"{family}-animals") for family in ("bert", "distilbert"))
    assert repr(models["ensemble"]) == f"Ensemble({members!r}, labels=['ant', 'bee', 'cow'], calibrated=True)"
    model = MultiTask.from_pretrained(folder / "bert", device="cpu")
    name = str(folder / "bert")
    assert repr(model) == f"MultiTask({name!r}, not fitted)"
    assert repr(models["several tasks"]) == f"MultiTask({name!r}, animal=classification, names=tagging)"


@pytest.mark.parametrize(
    ("kind", "call", "said"),
    [
        (
            "ensemble",
            lambda model: model.predict("w5", topp=3),
            "predict.. .*'topp'. Known: calibrated, coverage",
        ),
        (
            "ensemble",
            lambda model: model.evaluate(rows(9), lable="x"),
            "evaluate.. .*'lable'. Known: unlabelled, .*text, label",
        ),
        ("several tasks", lambda model: model.predict("w5", top=3), "predict.. .*'top'. Known: show_progress"),
        (
            "several tasks",
            lambda model: model.evaluate(rows(9), lable="x"),
            "evaluate.. .*'lable'. Known: unlabelled, .*text, t",
        ),
        ("several tasks", lambda model: model.fit({}, epoch=3), "fit.. .*'epoch'. Known: sampling, epochs"),
    ],
)
def test_it_says_which_options_are_known(models, kind, call, said):
    with pytest.raises(TypeError, match=rf"^{type(models[kind]).__name__}\.{said}"):
        call(models[kind])


def test_columns_of_a_call_are_those_of_all_members_or_tasks(models):
    renamed = [{"body": row["text"], "kind": row["label"]} for row in rows(12)]
    together = models["ensemble"]
    found = together.evaluate(renamed, text="body", label="kind", resamples=5)
    assert found.to_dict() == together.evaluate(rows(12), resamples=5).to_dict()
    model = models["several tasks"]
    data = [{**row, "label": "ant"} for row in TAGGED]
    moved = [{"words": row["tokens"], "tags": row["tags"], "label": row["label"]} for row in data]
    found = model.evaluate(moved, tokens="words", resamples=5)
    assert found.to_dict() == model.evaluate(data, resamples=5).to_dict()
    with pytest.raises(UnreadColumn, match=r"has no column argument 'question'\. It has: text, tokens"):
        model.with_columns(question="q")
