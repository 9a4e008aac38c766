"""What question answering learns besides weights: when to give no answer, and how sure to be.

Shapes: N questions, K candidates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.data.windows import WindowStore
from bothways.errors import InvalidInput
from bothways.evaluation import (
    AnswerScores,
    Report,
    Temperature,
    answer_outcomes,
    answer_probabilities,
    best_threshold,
    fit_answer_temperature,
    score_answers,
    share_error,
)
from bothways.tasks.answering.answers import CANDIDATES, candidate_scores
from bothways.tasks.answering.questions import Question
from bothways.tasks.answering.span_targets import SpanAnswers
from bothways.tasks.answering.spans import SpanScores
from bothways.tasks.card import LIKE_THESE, data_part, flattered
from bothways.tasks.objective import HeadModel, window_scores
from bothways.tasks.stored import Extras, damaged
from bothways.text import TextTokenizer
from bothways.training.objective import Validation


@dataclass(frozen=True, slots=True)
class StoredQuestions:
    """Questions with their answers, tokenised.

    Attributes:
        questions: With contexts and answers.
        store: Their windows, with the places of the tokens.
        no_answer: Index of the token for no answer in each window, 0 or -1.
    """

    questions: Sequence[Question]
    store: WindowStore
    no_answer: int

    @property
    def annotated(self) -> list[list[str]]:
        """The texts of the annotated answers."""
        return [[answer.text for answer in question.answers] for question in self.questions]

    def answers(self) -> SpanAnswers:
        """What the windows are to be answered with."""
        return SpanAnswers(self.questions, self.store, self.no_answer)

    @property
    def part(self) -> dict[str, object]:
        """What a card says of the questions: how many, also without an answer, and SHA-256 of tokens and answers."""
        answers = {"without_answer": without_answer(self.annotated), "answers_sha256": self.answers().digest}
        return {**data_part(len(self.questions), self.store), **answers}

    def candidates(self, module: HeadModel, tokens: int, longest: int) -> "Candidates":
        """The best spans that a model finds.

        Args:
            module: The model.
            tokens: Budget of a batch.
            longest: Most tokens in an answer.
        """
        rows = window_scores(module, self.store, tokens)
        found = []
        for number, question in enumerate(self.questions):
            windows = self.store.windows_of([number])
            scores = SpanScores(
                question.context,
                [rows[window] for window in windows],
                [self.store.places(window) for window in windows],
                no_answer=self.no_answer,
                longest=longest,
            )
            found.append(scores.best(CANDIDATES))
        best = [
            question.context[spans[0].start : spans[0].end] if spans else ""
            for question, spans in zip(self.questions, found, strict=True)
        ]
        return Candidates(best, candidate_scores(found), self.annotated)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The best spans of held-out questions.

    Attributes:
        best: The text of each question's best span; empty where there is none.
        score_NK: Log odds of the best spans against no answer, best first; minus infinity where there are fewer.
        annotated: The annotated answers.
    """

    best: Sequence[str]
    score_NK: NDArray[np.float64]
    annotated: Sequence[Sequence[str]]

    def threshold(self) -> float | None:
        """The threshold of the highest F1; None where every question has an answer."""
        scores = score_answers(self.best, self.annotated)
        return best_threshold(self.score_NK[:, 0], scores.f1_N, scores.has_answer_N)

    def scores(self, threshold: float | None) -> AnswerScores:
        """How good the answers are with a threshold."""
        gives_N = self.score_NK[:, 0] > (-np.inf if threshold is None else threshold)
        given = [text if gives else "" for text, gives in zip(self.best, gives_N.tolist(), strict=True)]
        return score_answers(given, self.annotated)

    def temperature(self, threshold: float | None) -> Temperature:
        """The temperature that calibrates the probabilities of what is given."""
        right_N = self.scores(threshold).exact_N > 0
        return Temperature(fit_answer_temperature(self.score_NK, right_N, threshold))

    def report(self, threshold: float | None, temperature: Temperature | None) -> Report:
        """Metrics with intervals, and how far the probabilities can be trusted."""
        heat = 1.0 if temperature is None else temperature.value
        stated_N = answer_probabilities(self.score_NK, threshold, heat).max(axis=1)
        return answer_outcomes(self.scores(threshold), stated_N).report()

    def validation(self) -> Validation:
        """Metrics with the best threshold; the score is F1."""
        scores = self.scores(self.threshold())
        exact, f1 = float(scores.exact_N.mean()), float(scores.f1_N.mean())
        return Validation({"exact_match": exact, "f1": f1}, f1, share_error(f1, len(scores.f1_N)))


def answering_limits(metrics: Report, chose: str) -> tuple[str, ...]:
    """What a reader of metrics on questions has to know.

    Args:
        metrics: Of the held-out questions.
        chose: What those decided.
    """
    always = (
        ()
        if metrics.counts["no_answer"]
        else ("No held-out question was without an answer, so the model always gives one.",)
    )
    return flattered("questions", chose), *always, LIKE_THESE


def without_answer(annotated: Sequence[Sequence[str]]) -> int:
    """How many questions have no annotated answer."""
    return sum(not answers for answers in annotated)


def no_answer_index(tokenizer: TextTokenizer) -> int:
    """Where a window has the token that stands for no answer: 0, or -1 where it is the last.

    Raises:
        InvalidInput: The tokenizer puts no such token at either end of a pair.
    """
    ids = tokenizer.encode([("", "")], max_length=64)[0].windows[0].ids
    for index in (0, -1):
        if ids and ids[index] == tokenizer.cls_id:
            return index
    raise InvalidInput(
        f"question answering needs a {tokenizer.token(tokenizer.cls_id)!r} token, which stands for no answer, at one "
        "end of question and context, but this tokenizer puts none there. Take a model whose tokenizer does."
    )


def stored_threshold(extras: Extras) -> float | None:
    """The score from which an answer is given, or None.

    Raises:
        CorruptCheckpoint: It is not a finite number.
    """
    value = extras.get("no_answer_threshold")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise damaged("no_answer_threshold", "a finite number, or null", value)
    return float(value)
