"""Thresholds for giving no answer, and the confidence of answers.

Answers to a question are candidates with scores, log odds against no answer. No answer is given where the best score
does not lie above a threshold t. Probabilities are a softmax over the best candidates and no answer, whose score is t::

    p = softmax([s_1, ..., s_K, t] / T)

so that what is given is always what is likeliest. T is fitted on held-out questions by the log loss of one event: that
what is given is right, an exact match with an annotated answer. Where a model was never shown a question without an
answer, t is left out and the model always answers.

Shapes: N questions, K candidates.
"""

import numpy as np
from numpy.typing import NDArray

from bothways.evaluation.calibration import TEMPERATURE_BOUNDS, prior, softmax
from bothways.evaluation.inputs import FloatArray

_STEPS = 241
"""Temperatures that are tried, 2.5 % apart."""

_LEAST = 1e-12
"""Log loss is taken of no probability below this, nor that near 1."""


def best_threshold(score_N: FloatArray, f1_N: FloatArray, has_answer_N: NDArray[np.bool_]) -> float | None:
    """Return the threshold of the highest mean F1, half way between two scores.

    None where every question has an answer.

    Of several, the highest: the one that gives the fewest answers.

    Args:
        score_N: The best score of each question; minus infinity where there is no candidate.
        f1_N: F1 of the best candidate.
        has_answer_N: Whether there is an answer.
    """
    if has_answer_N.all():
        return None
    known_N = np.isfinite(score_N)
    order = np.argsort(-score_N[known_N], kind="stable")
    score_M, gain_M = score_N[known_N][order], (f1_N - ~has_answer_N)[known_N][order]
    if not len(score_M):
        return 0.0
    # Answer none, one, two ...; equal scores are answered together.
    total = np.concatenate([[0.0], np.cumsum(gain_M)])
    total[1:-1][score_M[:-1] == score_M[1:]] = -np.inf
    borders = np.concatenate([[score_M[0] + 1], (score_M[:-1] + score_M[1:]) / 2, [score_M[-1] - 1]])
    return float(borders[total.argmax()])


def answer_probabilities(score_NK: FloatArray, threshold: float | None, temperature: float) -> FloatArray:
    """Probabilities of the candidates and, last, of no answer: (N, K + 1), rows summing to 1.

    Args:
        score_NK: Scores of the candidates; minus infinity where there are fewer.
        threshold: The score of no answer; None rules it out where there is a candidate.
        temperature: Above 0.
    """
    none_N = np.isfinite(score_NK).any(axis=1)
    nothing_N = np.where(none_N, -np.inf if threshold is None else threshold, 0.0)
    return softmax(np.concatenate([score_NK, nothing_N[:, None]], axis=1) / temperature)


def fit_answer_temperature(score_NK: FloatArray, right_N: NDArray[np.bool_], threshold: float | None) -> float:
    """Return the temperature of the least log loss and prior (`calibration.prior`), within `TEMPERATURE_BOUNDS`.

    Args:
        score_NK: Scores of the candidates of held-out questions, as for `answer_probabilities`.
        right_N: Whether what is given, the likeliest, is right.
        threshold: The score of no answer.
    """
    temperatures = np.geomspace(*TEMPERATURE_BOUNDS, _STEPS)
    losses = [_log_loss(answer_probabilities(score_NK, threshold, each).max(axis=1), right_N) for each in temperatures]
    return float(temperatures[int(np.argmin(np.array(losses) + prior(1 / temperatures)))])


def _log_loss(stated_N: FloatArray, right_N: NDArray[np.bool_]) -> float:
    stated_N = np.clip(stated_N, _LEAST, 1 - _LEAST)
    return float(-np.log(np.where(right_N, stated_N, 1 - stated_N)).sum())
