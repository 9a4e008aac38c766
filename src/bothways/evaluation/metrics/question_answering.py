"""Metrics of extractive question answering, thresholds for giving no answer, and confidence in answers.

Exact match and F1 are those of SQuAD. Both compare texts in a normal form: lower case, without punctuation, articles
and superfluous white space. F1 compares the words as multisets. The best of several annotated answers counts. For a
question without an answer, only an empty prediction (``""``) is right. The versions of SQuAD differ for texts whose
normal form is empty ("the", "?"): version 1.1 compares them like any other, and none of their words match; version 2.0
drops such annotated answers, treats a question without other annotated answers as unanswerable, and counts two texts
without words as equal. Definitions: Rajpurkar et al. (2016), arXiv:1606.05250, section 6; Rajpurkar et al. (2018),
arXiv:1806.03822.

The score of a candidate answer is its log odds against no answer. The model gives no answer unless the best score is
above a threshold t. Probabilities are a softmax over the best candidates and no answer, whose score is t::

    p = softmax([s_1, ..., s_K, t] / T)

so the predicted answer is always the most probable. T is fitted on held-out questions by the log loss of one event: the
predicted answer is an exact match. A model trained without unanswerable questions has no t and always answers.

Shapes: N questions, K metrics or candidates.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bothways.errors import InvalidInput
from bothways.evaluation.inputs import FloatArray, probability_array
from bothways.evaluation.outcomes import BINS, Outcomes, equal_mass_bins, reliability_bins
from bothways.evaluation.report import Report
from bothways.evaluation.temperature import TEMPERATURE_BOUNDS, prior, softmax

SquadVersion = Literal["1.1", "2.0"]

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalized(text: str) -> str:
    """Return an answer in the normal form of SQuAD: lower case, without punctuation and articles.

    >>> normalized("The  Denver Broncos!")
    'denver broncos'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


@dataclass(frozen=True, slots=True)
class AnswerScores:
    """Exact match and F1 of each question."""

    exact_N: FloatArray  # 1 if the answer is one of the annotated ones in normal form, else 0
    f1_N: FloatArray  # F1 of the words, the best over the annotated answers
    has_answer_N: NDArray[np.bool_]  # True if an answer was annotated
    version: SquadVersion  # version of SQuAD's rules, see the module


def score_answers(
    predicted: Sequence[str], annotated: Sequence[Sequence[str]], *, version: SquadVersion | None = None
) -> AnswerScores:
    """Compute exact match and F1 of each question.

    Args:
        predicted: An answer for each question; ``""`` for no answer.
        annotated: The annotated answers of each question; empty if it has no answer.
        version: Version of the rules; default: 2.0 if some question has no answer, else 1.1.
    """
    if not annotated or len(predicted) != len(annotated):
        raise InvalidInput(f"expected a prediction for each of {len(annotated)} questions, got {len(predicted)}")
    chosen = version or version_of(annotated)
    scores = [score_answer(text, gold, chosen) for text, gold in zip(predicted, annotated, strict=True)]
    exact_N, f1_N = np.array(scores, dtype=np.float64).T
    return AnswerScores(exact_N, f1_N, np.array([bool(gold) for gold in annotated]), chosen)


def version_of(annotated: Sequence[Sequence[str]]) -> SquadVersion:
    """Return the version of SQuAD's rules that fits the data: 2.0 if some question has no answer, else 1.1."""
    return "1.1" if all(annotated) else "2.0"


def score_answer(predicted: str, annotated: Sequence[str], version: SquadVersion) -> tuple[float, float]:
    """Compute exact match and F1 of one question."""
    golds = [normalized(text) for text in annotated]
    if version == "2.0":
        golds = [gold for gold in golds if gold] or [""]
    if not golds:
        return 0.0, 0.0
    answer = normalized(predicted)
    return float(answer in golds), max(_f1(answer, gold, version) for gold in golds)


def _f1(answer: str, gold: str, version: SquadVersion) -> float:
    answer_words, gold_words = answer.split(), gold.split()
    if version == "2.0" and not (answer_words and gold_words):
        return float(answer_words == gold_words)
    shared = sum((Counter(answer_words) & Counter(gold_words)).values())
    return 2 * shared / (len(answer_words) + len(gold_words)) if shared else 0.0


def answer_outcomes(scores: AnswerScores, probability_N: ArrayLike, *, bins: int = BINS) -> Outcomes:
    """Return the outcomes of questions: exact match and F1 of all, of those with and of those without an answer.

    ``probability_N`` is the probability that each answer is an exact match. If a resample has no questions with an
    answer, or no questions without one, the mean over that kind of question is 0.
    """
    stated_N = probability_array(probability_N, "probabilities", dimensions=1)
    n, has_N = len(scores.exact_N), scores.has_answer_N
    if len(stated_N) != n:
        raise InvalidInput(f"probabilities: expected one for each of {n} questions, got {len(stated_N)}")
    all_N, answered = np.ones(n, dtype=np.bool_), int(has_N.sum())
    means = {"exact_match": (scores.exact_N, all_N), "f1": (scores.f1_N, all_N)}
    if answered:
        means |= {"has_answer_exact_match": (scores.exact_N, has_N), "has_answer_f1": (scores.f1_N, has_N)}
    if answered < n:
        means["no_answer_accuracy"] = (scores.exact_N, ~has_N)
    value_NK = np.stack([value_N * kind_N for value_N, kind_N in means.values()], axis=1)
    kind_NK = np.stack([kind_N for _, kind_N in means.values()], axis=1).astype(np.float64)
    bin_N = equal_mass_bins(stated_N, bins)
    without = f", {n - answered} of them without an answer" if answered < n else ""
    return Outcomes(
        frame=Report(
            kind="question answering",
            title=f"{n} questions{without}",
            counts={"n": n, "has_answer": answered, "no_answer": n - answered},
            settings={"squad_version": scores.version},
            reliability=reliability_bins(stated_N, scores.exact_N, bins),
        ),
        truth=has_N,
        metrics=tuple(means),
        statistic=lambda counts_RN: (counts_RN @ value_NK) / np.maximum(counts_RN @ kind_NK, 1),
        of_rows=kind_NK.sum(axis=0).tolist(),
        compared=("f1", "exact_match"),
        tested=("f1", scores.f1_N),
        bins=(np.eye(bin_N.max() + 1)[bin_N] * (scores.exact_N - stated_N)[:, None] / n,),
    )


_STEPS = 241  # temperatures on the grid, 2.5 % apart
_LEAST = 1e-12  # minimum distance of probabilities from 0 and 1 in the log loss


def best_threshold(score_N: FloatArray, f1_N: FloatArray, has_answer_N: NDArray[np.bool_]) -> float | None:
    """Return the threshold with the highest mean F1, half way between two scores; the highest one in a tie.

    ``score_N`` is the best score of each question (minus infinity without candidates), and ``f1_N`` is the F1 of the
    candidate with this score. Return None if every question has an answer.
    """
    if has_answer_N.all():
        return None
    known_N = np.isfinite(score_N)
    order = np.argsort(-score_N[known_N], kind="stable")
    score_M, gain_M = score_N[known_N][order], (f1_N - ~has_answer_N)[known_N][order]
    if not len(score_M):
        return 0.0
    # The total if no, one, two ... questions are answered; equal scores cannot be separated.
    total = np.concatenate([[0.0], np.cumsum(gain_M)])
    total[1:-1][score_M[:-1] == score_M[1:]] = -np.inf
    borders = np.concatenate([[score_M[0] + 1], (score_M[:-1] + score_M[1:]) / 2, [score_M[-1] - 1]])
    return float(borders[total.argmax()])


def answer_probabilities(score_NK: FloatArray, threshold: float | None, temperature: float) -> FloatArray:
    """Return probabilities of the candidates and, last, of no answer: (N, K + 1), rows summing to 1.

    Scores are padded with minus infinity. ``threshold`` is the score of no answer; None rules it out for questions with
    a candidate.
    """
    found_N = np.isfinite(score_NK).any(axis=1)
    nothing_N = np.where(found_N, -np.inf if threshold is None else threshold, 0.0)
    return softmax(np.concatenate([score_NK, nothing_N[:, None]], axis=1) / temperature)


def fit_answer_temperature(score_NK: FloatArray, right_N: NDArray[np.bool_], threshold: float | None) -> float:
    """Return the temperature that minimises log loss plus prior within `TEMPERATURE_BOUNDS`.

    ``right_N`` is True if the most probable answer is right; the other arguments are those of `answer_probabilities`.
    """
    temperatures = np.geomspace(*TEMPERATURE_BOUNDS, _STEPS)
    losses = []
    for each in temperatures:
        stated_N = np.clip(answer_probabilities(score_NK, threshold, each).max(axis=1), _LEAST, 1 - _LEAST)
        losses.append(-np.log(np.where(right_N, stated_N, 1 - stated_N)).sum())
    return float(temperatures[int(np.argmin(np.array(losses) + prior(1 / temperatures)))])
