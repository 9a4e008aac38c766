"""Predictions of a question answerer.

Shapes: N questions, K candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.evaluation.metrics.question_answering import answer_probabilities
from bothways.tasks.question_answering.spans import Span, SpanScores
from bothways.tasks.scores import Count, Probability, TaskPrediction, TokensRead

CANDIDATES = 20
"""Probabilities are shared among this many spans and no answer."""


@dataclass(frozen=True, slots=True)
class Answer(TaskPrediction):
    """A part of the context: ``context[start:end] == text``.

    Attributes:
        text: The answer.
        start: Offset of its first character in the context, in code points.
        end: Offset behind its last character.
        probability: Probability that an annotator would have marked exactly this part, apart from articles and
            punctuation; calibrated if the model is.
        score: Log odds against no answer, uncalibrated.
    """

    text: str
    start: Count
    end: Count
    probability: Probability
    score: float


@dataclass(frozen=True, slots=True)
class QuestionAnswer(TaskPrediction):
    """The answer to a question on a context, or the decision that the context holds none.

    Attributes:
        answer: The answer as it stands in the context; null if the model decides that there is none.
        start: Offset of its first character in the context, in code points; null without an answer.
        end: Offset behind its last character; null without an answer.
        probability: Probability that this decision is right; calibrated if the model is.
        no_answer_probability: Probability that the context holds no answer; null for models trained without such
            questions.
        answers: The ``top`` answers that do not overlap, best first, also if ``answer`` is null.
        tokens_read: How much of question and context was read.
    """

    answer: str | None
    start: Count | None
    end: Count | None
    probability: Probability
    no_answer_probability: Probability | None
    answers: tuple[Answer, ...]
    tokens_read: TokensRead


@dataclass(frozen=True, slots=True)
class FoundSpans:
    """Scores of a question's candidates, before a decision.

    Attributes:
        context: The context.
        candidates: The best spans, best first; they may overlap.
        apart: The best spans that do not overlap, best first, up to the requested number of answers.
    """

    context: str
    candidates: tuple[Span, ...]
    apart: tuple[Span, ...]

    @classmethod
    def of(cls, context: str, scores: SpanScores, top: int) -> "FoundSpans":
        """Return the best spans of all, and the ``top`` that do not overlap."""
        best = tuple(scores.best(CANDIDATES))
        return cls(context, best, best[:1] if top == 1 else tuple(scores.apart(top)))

    @property
    def best(self) -> str:
        """Text of the best span; empty if there is none."""
        return self.context[self.candidates[0].start : self.candidates[0].end] if self.candidates else ""


def answered(found: FoundSpans, read: TokensRead, threshold: float | None, temperature: float) -> QuestionAnswer:
    """Return the answer to a question, given the best spans in its context.

    Args:
        found: The spans.
        read: How much of question and context was read.
        threshold: Score from which an answer is given; None always gives one.
        temperature: Divides the scores.
    """
    context, best = found.context, found.candidates
    probabilities = answer_probabilities(candidate_scores([best]), threshold, temperature)[0]
    nothing = float(probabilities[-1])
    # One of the candidates, or one that is less likely than they are and so hardly adds to what they share.
    each = float(probabilities[0]) if best else 0.0
    answers = tuple(
        Answer(
            context[span.start : span.end],
            span.start,
            span.end,
            each * float(np.exp((span.score - best[0].score) / temperature)),
            span.score,
        )
        for span in found.apart
    )
    declining = None if threshold is None else nothing
    if not answers or nothing >= each:
        return QuestionAnswer(None, None, None, nothing, declining, answers, read)
    first = answers[0]
    return QuestionAnswer(first.text, first.start, first.end, first.probability, declining, answers, read)


def candidate_scores(candidates: Sequence[Sequence[Span]]) -> NDArray[np.float64]:
    """Return the scores of each question's candidates (N, K), filled up with minus infinity.

    K is at least `CANDIDATES`.
    """
    scores_NK = np.full((len(candidates), max([CANDIDATES, *map(len, candidates)])), -np.inf)
    for row, spans in enumerate(candidates):
        scores_NK[row, : len(spans)] = [span.score for span in spans]
    return scores_NK
