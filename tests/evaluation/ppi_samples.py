"""Samples of a judge that decides 0 or 1."""

import numpy as np

from bothways.evaluation.prediction_powered import Sample


def drawn(rate=0.8, accuracy=0.9, labels=100, others=1000, seed=0):
    rng = np.random.default_rng(seed)
    truth = (rng.random(labels + others) < rate).astype(float)
    judge_scores = np.where(rng.random(labels + others) < accuracy, truth, 1 - truth)
    return Sample(truth[:labels], judge_scores[:labels], judge_scores[labels:])
