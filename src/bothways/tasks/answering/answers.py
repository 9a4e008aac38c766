"""What a question answerer says of a question.

Shapes: N questions, K candidates.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InvalidInput
from bothways.evaluation import (
    AnswerScores,
    Outcomes,
    answer_outcomes,
    answer_probabilities,
    score_answers,
)
from bothways.tasks.answering.spans import Span, SpanScores
from bothways.tasks.predictions import Reading, texts_read

CANDIDATES = 20
"""Probabilities are shared among this many spans and no answer."""

LONGEST_ANSWER = 100_000
"""No model reads as many tokens at once."""


@dataclass(frozen=True, slots=True)
class Answering:
    """How answers are looked for.

    Attributes:
        max_answer_tokens: Most tokens in an answer, up to `LONGEST_ANSWER`.
        top: How many answers to give that do not overlap.

    Raises:
        InvalidInput: One of them is out of range.
    """

    max_answer_tokens: int = 30
    top: int = 1

    def __post_init__(self) -> None:
        for name in ("max_answer_tokens", "top"):
            value = getattr(self, name)
            if value < 1:
                raise InvalidInput(f"{name} must be at least 1, but it is {value}.")
        if self.max_answer_tokens > LONGEST_ANSWER:
            raise InvalidInput(
                f"max_answer_tokens must be at most {LONGEST_ANSWER:,}, but it is {self.max_answer_tokens:,}: give as "
                "many tokens as the longest answer that you want can have."
            )


@dataclass(frozen=True, slots=True)
class Answer:
    """A part of the context: ``context[start:end] == text``.

    Attributes:
        text: The answer.
        start: Its first character in the context.
        end: The character behind its last.
        probability: Calibrated where the model was: that just this, and not a longer or shorter part, is what an
            annotator would have marked, articles and punctuation aside.
        score: Log odds against no answer, as the model gives them.
    """

    text: str
    start: int
    end: int
    probability: float
    score: float


@dataclass(frozen=True, slots=True)
class QuestionAnswer:
    """What the model says of a question on a context.

    Attributes:
        answer: The answer as it stands in the context; None where the model says that there is none.
        start: Its first character in the context.
        end: The character behind its last.
        probability: That this, be it an answer or none, is right; calibrated where the model was.
        no_answer_probability: That there is no answer; 0 of a model that was never shown such a question.
        answers: The best that do not overlap, best first, also where ``answer`` is None.
        reading: How much of question and context was read.
    """

    answer: str | None
    start: int | None
    end: int | None
    probability: float
    no_answer_probability: float
    answers: tuple[Answer, ...]
    reading: Reading

    def to_dict(self) -> dict[str, object]:
        """As JSON values, flat but for the list of answers."""
        values = asdict(self)
        reading = values.pop("reading")
        return {**values, "answers": list(values["answers"]), **reading}


@dataclass(frozen=True, slots=True)
class FoundSpans:
    """What is said of a question before it is decided.

    Attributes:
        context: The text.
        candidates: The best spans, best first; they may overlap.
        apart: The best of which no two overlap, best first: as many as answers are asked for, if there are.
        reading: How much of question and context was read.
    """

    context: str
    candidates: tuple[Span, ...]
    apart: tuple[Span, ...]
    reading: Reading

    @classmethod
    def of(cls, context: str, scores: SpanScores, top: int, reading: Reading) -> "FoundSpans":
        """The best of all spans, and the ``top`` that do not overlap."""
        best = tuple(scores.best(CANDIDATES))
        return cls(context, best, best[:1] if top == 1 else tuple(scores.apart(top)), reading)


def answered(found: FoundSpans, threshold: float | None, temperature: float) -> QuestionAnswer:
    """The answer to a question, given the best spans of its context.

    Args:
        found: The spans.
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
    if not answers or nothing >= each:
        return QuestionAnswer(None, None, None, nothing, nothing, answers, found.reading)
    first = answers[0]
    return QuestionAnswer(first.text, first.start, first.end, first.probability, nothing, answers, found.reading)


def candidate_scores(candidates: Sequence[Sequence[Span]]) -> NDArray[np.float64]:
    """The scores of each question's candidates (N, K), minus infinity where there are fewer; `CANDIDATES` or more."""
    scores_NK = np.full((len(candidates), max([CANDIDATES, *map(len, candidates)])), -np.inf)
    for row, spans in enumerate(candidates):
        scores_NK[row, : len(spans)] = [span.score for span in spans]
    return scores_NK


def scores_of(found: Sequence[QuestionAnswer], annotated: Sequence[Sequence[str]]) -> AnswerScores:
    """How good answers are, given the annotated ones of each question."""
    return score_answers([each.answer or "" for each in found], annotated)


def outcomes_of(found: Sequence[QuestionAnswer], annotated: Sequence[Sequence[str]]) -> Outcomes:
    """Return what reports and comparisons of answers are computed from."""
    outcomes = answer_outcomes(scores_of(found, annotated), [each.probability for each in found])
    return replace(outcomes, tokens_read=texts_read([each.reading for each in found]))
