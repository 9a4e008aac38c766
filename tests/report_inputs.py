"""Inputs of every kind of report and comparison, drawn by seeds."""

import numpy as np

from bothways.evaluation.tag_schemes import TagSpan

LABELS = ("card", "cash", "transfer")


def stated(seed, more=1.0):
    """Class numbers of 60 rows, and probabilities that follow them more or less."""
    rng = np.random.default_rng(0)
    truth_N = rng.integers(0, 3, 60)
    logits_NC = np.random.default_rng(seed).normal(size=(60, 3)) + np.eye(3)[truth_N] * more
    exponentials_NC = np.exp(logits_NC)
    return truth_N, exponentials_NC / exponentials_NC.sum(axis=1, keepdims=True)


def label_sets(seed):
    """Labels of 50 rows, any of three, and probabilities."""
    truth_NC = np.random.default_rng(1).integers(0, 2, (50, 3))
    return truth_NC, np.clip(truth_NC * 0.3 + np.random.default_rng(seed).random((50, 3)) * 0.7, 0, 1)


def numbers(seed, noise=1.0):
    """Numbers of 40 rows, true and predicted."""
    truth_N = np.random.default_rng(2).normal(size=40)
    return truth_N, truth_N + noise * np.random.default_rng(seed).normal(size=40)


def spans(seed):
    """True and predicted spans of 30 texts of six words."""
    rng, other = np.random.default_rng(3), np.random.default_rng(seed)
    truth = [[TagSpan(("LOC", "PER")[rng.integers(2)], start, start + 2) for start in (0, 3)] for _ in range(30)]
    predicted = [[span._replace(label="LOC") for span in each if other.random() < 0.7] for each in truth]
    return truth, predicted


def words(seed, tags=3):
    """Numbers of the true and predicted tags of 30 texts of six words, and probabilities."""
    truth_W = np.random.default_rng(4).integers(0, tags, 180)
    other = np.random.default_rng(seed)
    predicted_W = np.where(other.random(180) < 0.7, truth_W, other.integers(0, tags, 180))
    return truth_W, predicted_W, other.uniform(0.4, 1, 180), np.repeat(np.arange(30), 6)


def answers(seed):
    """Given and annotated answers of 40 questions, a fifth of them without one, and probabilities."""
    rng = np.random.default_rng(seed)
    annotated = [[] if number % 5 == 0 else [f"the tower of town {number}"] for number in range(40)]
    given = [("" if rng.random() < 0.5 else "tower") if rng.random() < 0.4 else (each or [""])[0] for each in annotated]
    return given, annotated, rng.uniform(0.2, 0.95, 40)


def ranks(seed):
    """1 / rank of 40 texts."""
    return 1 / np.random.default_rng(seed).integers(1, 4, 40)


def rankings(seed):
    """Documents for 12 queries, best first, and which are relevant; one query is not judged, two were not asked."""
    rng = np.random.default_rng(seed)
    found = {f"q{query}": [str(each) for each in rng.permutation(20)] for query in range(13)}
    relevant = {f"q{query}": {str(query % 20): 1, str(query * 7 % 20): 2} for query in [*range(12), 20, 21]}
    return found, relevant


def token_losses():
    """Losses, right tokens and tokens of 20 texts."""
    rng = np.random.default_rng(6)
    tokens_N = rng.integers(1, 6, 20).astype(float)
    return rng.uniform(0.5, 3, 20) * tokens_N, np.floor(tokens_N * rng.random(20)), tokens_N


def detector_scores():
    """Scores of rows of the domain, and of others."""
    rng = np.random.default_rng(7)
    return rng.normal(size=50), rng.normal(1.5, 1, size=40)


READ = {"texts": 60, "in_windows": 2, "cut": 1, "dropped_tokens": 9}
