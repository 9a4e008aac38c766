"""Saved models of every task, pickled: by their folder, as they are unchanged."""

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


def test_a_spawned_worker_predicts_the_same():
    classifier = TextClassifier.from_pretrained(MODELS / "classifier", device="cpu")
    with multiprocessing.get_context("spawn").Pool(1) as workers:
        found = workers.apply(classifier.predict, (TEXTS,))
    assert found == classifier.predict(TEXTS)


@pytest.mark.slow  # every day: a spawned process
def test_workers_of_joblib_predict_the_same():
    joblib = pytest.importorskip("joblib", reason="joblib is not installed")
    classifier = TextClassifier.from_pretrained(MODELS / "classifier", device="cpu")
    parts = [TEXTS[:2], TEXTS[2:]]
    # As many threads as here, since their number decides on the last bits.
    with joblib.parallel_config(backend="loky", inner_max_num_threads=torch.get_num_threads()):
        found = joblib.Parallel(n_jobs=2)(joblib.delayed(classifier.predict)(part) for part in parts)
    assert found == [classifier.predict(part) for part in parts]
