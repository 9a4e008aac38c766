"""Answers of extractive question answering against the annotated ones: exact match and F1 as SQuAD defines them.

Both compare texts in a normal form: lower case, without punctuation, articles and superfluous white space. F1 is that
of the words as multisets. Where several answers were annotated the best counts. A question without an answer is
answered by nothing, written ``""``.

The two versions of SQuAD treat texts of which the normal form leaves nothing ("the", "?") differently: version 1.1
compares them like any other, and by words none of them matches; version 2.0 drops such annotated answers, takes a
question that is left with none for one without an answer, and counts two texts without words as equal.

Definitions: Rajpurkar et al. (2016), arXiv:1606.05250, section 6; Rajpurkar et al. (2018), arXiv:1806.03822.

Shapes: N questions, R resamples, K statistics.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InvalidInput
from bothways.evaluation.inputs import FloatArray

SquadVersion = Literal["1.1", "2.0"]

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalized(text: str) -> str:
    """The normal form of an answer.

    >>> normalized("The  Denver Broncos!")
    'denver broncos'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


@dataclass(frozen=True, slots=True)
class AnswerScores:
    """How well each question was answered.

    Attributes:
        exact_N: 1 where the answer is one of the annotated ones in normal form, else 0.
        f1_N: F1 of the words, the best of the annotated answers.
        has_answer_N: Whether an answer was annotated.
        version: The rules.
    """

    exact_N: FloatArray
    f1_N: FloatArray
    has_answer_N: NDArray[np.bool_]
    version: SquadVersion


def score_answers(
    predicted: Sequence[str], annotated: Sequence[Sequence[str]], *, version: SquadVersion | None = None
) -> AnswerScores:
    """Exact match and F1 of each question.

    Args:
        predicted: An answer for each question; ``""`` where there is none.
        annotated: The annotated answers of each question; none where there is no answer.
        version: Whose rules; 2.0 where some question has no answer, else 1.1, when left out.

    Raises:
        InvalidInput: There are no questions, or not one prediction for each.
    """
    if not annotated or len(predicted) != len(annotated):
        raise InvalidInput(f"expected a prediction for each of {len(annotated)} questions, got {len(predicted)}")
    chosen = version or version_of(annotated)
    scores = [score_answer(text, gold, chosen) for text, gold in zip(predicted, annotated, strict=True)]
    exact_N, f1_N = np.array(scores, dtype=np.float64).T
    return AnswerScores(exact_N, f1_N, np.array([bool(gold) for gold in annotated]), chosen)


def version_of(annotated: Sequence[Sequence[str]]) -> SquadVersion:
    """The version of SQuAD that data are like: 2.0 where some question has no answer."""
    return "1.1" if all(annotated) else "2.0"


def score_answer(predicted: str, annotated: Sequence[str], version: SquadVersion) -> tuple[float, float]:
    """Exact match and F1 of one question."""
    golds = [normalized(text) for text in annotated]
    if version == "2.0":
        golds = [gold for gold in golds if gold] or [""]
    if not golds:
        return 0.0, 0.0
    found = normalized(predicted)
    return float(found in golds), max(_f1(found, gold, version) for gold in golds)


def _f1(found: str, gold: str, version: SquadVersion) -> float:
    found_words, gold_words = found.split(), gold.split()
    if version == "2.0" and not (found_words and gold_words):
        return float(found_words == gold_words)
    shared = sum((Counter(found_words) & Counter(gold_words)).values())
    return 2 * shared / (len(found_words) + len(gold_words)) if shared else 0.0
