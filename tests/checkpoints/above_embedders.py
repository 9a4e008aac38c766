"""Classifiers above sentence embedders: they read the mean of the tokens, or the texts of a pair apart."""

import contextlib
from unittest import mock

import numpy as np
import pytest

from bothways import PairClassifier, TextClassifier
from bothways.encoder.head_kinds import MeanOfTokens, TextsOfPair
from bothways.tasks.heads.training import APART
from bothways.tasks.outputs import score_inputs
from bothways.training.objective import Baseline
from contract_cases import pair_rows, rows, texts_of

QUICK = {"epochs": 2, "batch_size": 8, "learning_rate": 3e-3, "show_progress": False}
STILL = {"epochs": 1, "batch_size": 8, "learning_rate": 1e-9, "show_progress": False}
KINDS = {
    "text": (TextClassifier, rows, MeanOfTokens),
    "pair": (PairClassifier, pair_rows, MeanOfTokens),
    "apart": (PairClassifier, pair_rows, TextsOfPair),
}
HEAD = "head/model.safetensors"
every_kind = pytest.mark.parametrize("kind", KINDS)


class BeyondReach(Baseline):
    """A baseline that no epoch is better than, where it is another model than the one that is trained."""

    def __init__(self, name, margin=-1.0, validate=None):
        super().__init__(name, 1e6 if validate else margin, validate)


def trained(folder, kind="text", target="single", **options):
    """A classifier above the embedder in a folder."""
    task, made, _ = KINDS[kind]
    classifier, data = task.from_pretrained(folder, device="cpu"), made(target)
    with contextlib.ExitStack() as patches:
        if kind == "apart":
            patches.enter_context(mock.patch("bothways.tasks.heads.training.Baseline", BeyondReach))
            record = classifier.fit(data, validation=data, target=target, **STILL, **options)
            assert (record.baseline, record.kept_epoch) == (APART, 0)
            return classifier
        for module in ("heads.training", "classification.learner"):
            patches.enter_context(mock.patch(f"bothways.tasks.{module}.reads_mean", return_value=False))
        classifier.fit(data, validation=data, target=target, **QUICK, **options)
    return classifier


def asked(kind="text"):
    return texts_of(KINDS[kind][1]("single"))


def read_by(classifier):
    """What the head of a classifier reads."""
    return classifier.fitted.backend.head_model.head.kind.read


def logits(classifier, texts):
    return np.concatenate([each.logits_RC for each in score_inputs(classifier.fitted, texts)])


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
