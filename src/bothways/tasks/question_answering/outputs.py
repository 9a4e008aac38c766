"""The outputs of a span head, which scores each token as the start and as the end of an answer. Loads no torch.

Shapes: N questions, K candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from bothways.checkpoints.schema import StoredAnswers, at_most
from bothways.confidence.confidence import Confidence
from bothways.confidence.fitting import stored_temperature, temperature_settings
from bothways.data import Source
from bothways.errors import InvalidInput
from bothways.evaluation.metrics.question_answering import AnswerScores, answer_outcomes, best_threshold, score_answers
from bothways.evaluation.outcomes import Outcomes
from bothways.inference import Rows, TokenOutputs
from bothways.tasks.backend import Backend
from bothways.tasks.columns import AnyColumns
from bothways.tasks.heads.targets import SingleLabel
from bothways.tasks.outputs import Outputs
from bothways.tasks.question_answering.questions import Answered, GoldAnswer, read_questions
from bothways.tasks.question_answering.spans import (
    FoundSpans,
    QuestionAnswer,
    SpanScores,
    answered,
    candidate_scores,
)
from bothways.tasks.question_answering.spec import LONGEST_ANSWER, AnswerOpening, AnswerPrediction, QuestionColumns
from bothways.tasks.scores import Scores, TokensRead, texts_read
from bothways.tasks.spec import LabelData, options_of
from bothways.text import TextTokenizer, blanked_in_front

SpanScored: TypeAlias = Scores[FoundSpans]
Gold: TypeAlias = Sequence[Sequence[GoldAnswer]]
QuestionAndContext: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class AnswerOutputs(Outputs[QuestionAndContext, Gold, FoundSpans, QuestionAnswer]):
    """The outputs of a question answerer: spans, and the threshold for returning one.

    ``no_answer`` is the index of the token for no answer in each window, 0 or -1. The best span is returned if its log
    odds against no answer exceed the ``threshold``; always if the threshold is None.
    """

    no_answer: int
    max_answer_tokens: int = 30
    threshold: float | None = None
    confidence: Confidence = Confidence()  # noqa: RUF009 (frozen)

    head: ClassVar = "span"
    head_title: ClassVar = "question answering head"
    per_token: ClassVar = True

    @property
    @override
    def row_target(self) -> SingleLabel:
        return SingleLabel(())  # spans have no names

    @override
    def read(self, data: Source, columns: AnyColumns, options: object = None) -> list[Answered]:
        unlabelled = options_of(LabelData, options).unlabelled
        return read_questions(data, options_of(QuestionColumns, columns), unlabelled)

    @override
    def encode(self, examples: Sequence[Answered]) -> Gold:
        return [example.label for example in examples]

    # --- from questions to answers ---

    @override
    def texts(self, value: QuestionAndContext) -> tuple[QuestionAndContext, ...]:
        return ((value[0], blanked_in_front(value[1])),)

    @override
    def scores(self, value: QuestionAndContext, rows: Sequence[Rows], options: object = None) -> SpanScored:
        given, context = options_of(AnswerPrediction, options), value[1]
        longest = given.max_answer_tokens or self.max_answer_tokens
        match rows:
            case [TokenOutputs(windows, places, dropped)]:
                spans = SpanScores(context, windows, places, no_answer=self.no_answer, longest=longest)
                return spans_scored(FoundSpans.of(context, spans, given.top or 1), TokensRead(len(windows), dropped))
            case _:
                raise TypeError("expected one text, with start and end scores for each token")

    @override
    def decide(self, scores: Sequence[SpanScored], options: object = None) -> list[QuestionAnswer]:
        given = options_of(AnswerPrediction, options)
        threshold = self.threshold if given.threshold is None else given.threshold
        temperature = None if given.calibrated is False else self.confidence.temperature
        heat = 1.0 if temperature is None else temperature.value
        return [answered(each.places, each.read, threshold, heat) for each in scores]

    @override
    def outcomes(self, scores: Sequence[SpanScored], truth: Gold, *, calibrated: bool | None = None) -> Outcomes:
        found = self.decide(scores, AnswerPrediction(calibrated=calibrated))
        outcomes = answer_outcomes(scores_of_answers(found, truth), [each.probability for each in found])
        return replace(outcomes, tokens_read=texts_read(each.read for each in scores))

    @override
    def facts(self) -> dict[str, object]:
        return {
            "no_answer_threshold": self.threshold,
            "can_decline": self.threshold is not None,
            **temperature_settings(self.confidence.temperature),
            "max_answer_tokens": self.max_answer_tokens,
        }

    # --- on disk ---

    @classmethod
    @override
    def check_untrained(cls, backend: Backend) -> None:
        no_answer_index(backend.tokenizer)

    @classmethod
    @override
    def open(cls, backend: Backend, size: int, *, ours: bool) -> Self:
        del size
        options = options_of(AnswerOpening, backend.options)
        stored = StoredAnswers.of(backend.files.extras if ours else {})
        own = at_most("max_answer_tokens", stored.max_answer_tokens, LONGEST_ANSWER)
        given = options.max_answer_tokens
        longest = given if given is not None else 30 if own is None else own
        threshold = stored.no_answer_threshold if options.threshold is None else options.threshold
        no_answer = no_answer_index(backend.tokenizer)
        return cls(no_answer, longest, threshold, Confidence(stored_temperature(stored)))

    @override
    def write(self, folder: Path) -> dict[str, object]:
        del folder
        return {name: value for name, value in self.facts().items() if name != "can_decline"}


def spans_scored(found: FoundSpans, read: TokensRead) -> SpanScored:
    """Wrap found spans as the scores of one question."""
    return Scores(np.array([span.score for span in found.candidates], dtype=np.float64).reshape(-1, 1), found, read)


def span_table(scores: Sequence[SpanScored]) -> NDArray[np.float64]:
    """Return the scores of each question's candidate spans (N, K)."""
    return candidate_scores([each.places.candidates for each in scores])


def threshold_of(scores: Sequence[SpanScored], truth: Gold) -> float | None:
    """Return the threshold with the highest F1; None if every question has an answer."""
    best = score_answers([each.places.best for each in scores], annotated(truth))
    return best_threshold(span_table(scores)[:, 0], best.f1_N, best.has_answer_N)


def scores_at(scores: Sequence[SpanScored], truth: Gold, threshold: float | None) -> AnswerScores:
    """Return exact match and F1 of the best spans above a threshold."""
    gives_N = span_table(scores)[:, 0] > (-np.inf if threshold is None else threshold)
    given = [each.places.best if gives else "" for each, gives in zip(scores, gives_N.tolist(), strict=True)]
    return score_answers(given, annotated(truth))


def scores_of_answers(found: Sequence[QuestionAnswer], truth: Gold) -> AnswerScores:
    """Return exact match and F1 of predicted answers."""
    return score_answers([each.answer or "" for each in found], annotated(truth))


def annotated(truth: Gold) -> list[list[str]]:
    """Return the texts of the annotated answers of each question."""
    return [[answer.text for answer in answers] for answers in truth]


def no_answer_index(tokenizer: TextTokenizer) -> int:
    """Return the index of the [CLS] token, which stands for no answer: 0 or -1; refuse tokenizers without it there."""
    ids = tokenizer.encode([("", "")], max_length=64)[0].windows[0].ids
    for index in (0, -1):
        if ids and ids[index] == tokenizer.cls_id:
            return index
    raise InvalidInput(
        f"question answering needs a {tokenizer.token(tokenizer.cls_id)!r} token, which stands for no answer, at the "
        "beginning or end of the input, but this tokenizer adds none there. Choose a model whose tokenizer does."
    )
