"""Saved models of every task, pickled: by their folder where they are unchanged, else whole."""

import multiprocessing
import pickle

import pytest
import torch
from test_frozen_models import MODELS, answer_of, frozen, opened, stored

from bothways import TextClassifier

SMALL = 100_000

TEXTS = ["one text", "another text of more words", "w5 w6"]


def answers(model, case):
    return [answer_of(model, call) for call in case["calls"]]


@frozen("kind")
def test_a_saved_model_travels_by_its_folder_and_answers_the_same_to_the_bit(name):
    case = stored(name)
    model = opened(MODELS, name, case)
    pickled = pickle.dumps(model)
    assert len(pickled) < SMALL
    back = pickle.loads(pickled)
    assert answers(back, case) == answers(model, case)
    assert answers(pickle.loads(pickle.dumps(back)), case) == answers(model, case)


def modules_of(value, seen):
    """The modules that a model holds, wherever they are."""
    if id(value) in seen or isinstance(value, (str, bytes, type, torch.Tensor)):
        return
    seen.add(id(value))
    if isinstance(value, torch.nn.Module):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from modules_of(each, seen)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from modules_of(each, seen)
    elif type(value).__module__.startswith("bothways"):
        names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        for name in {*names, *getattr(value, "__dict__", {})} - {"__weakref__"}:
            yield from modules_of(getattr(value, name, None), seen)


@frozen("kind")
def test_a_model_that_was_changed_in_memory_answers_the_same_to_the_bit(name):
    case = stored(name)
    model = opened(MODELS, name, case)
    before = answers(model, case)
    weights = {id(weight): weight for module in modules_of(model, set()) for weight in module.parameters()}
    assert weights
    with torch.no_grad():
        for weight in weights.values():
            weight.mul_(1.125)
    changed = answers(model, case)
    assert changed != before
    assert answers(pickle.loads(pickle.dumps(model)), case) == changed


def test_a_spawned_worker_predicts_the_same():
    classifier = TextClassifier.from_pretrained(MODELS / "classifier", device="cpu")
    with multiprocessing.get_context("spawn").Pool(1) as workers:
        found = workers.apply(classifier.predict, (TEXTS,))
    assert found == classifier.predict(TEXTS)


def test_workers_of_joblib_predict_the_same():
    joblib = pytest.importorskip("joblib", reason="joblib is not installed")
    classifier = TextClassifier.from_pretrained(MODELS / "classifier", device="cpu")
    parts = [TEXTS[:2], TEXTS[2:]]
    found = joblib.Parallel(n_jobs=2)(joblib.delayed(classifier.predict)(part) for part in parts)
    assert found == [classifier.predict(part) for part in parts]
