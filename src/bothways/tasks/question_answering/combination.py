"""Question answerers in an ensemble, which chooses among "no answer" and the best spans of all members.

Shapes: M members, K spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.schema import StoredEnsemble
from bothways.confidence.confidence import Confidence
from bothways.confidence.fitting import stored_temperature
from bothways.data.windows import digest_of_texts
from bothways.tasks.card import LIKE_THESE, optimistic
from bothways.tasks.heads.combination import Combiner
from bothways.tasks.heads.targets import MIN_PROBABILITY
from bothways.tasks.question_answering.learner import calibrated
from bothways.tasks.question_answering.outputs import (
    AnswerOutputs,
    Gold,
    QuestionAndContext,
    SpanScored,
    annotated,
    scores_of_answers,
    spans_scored,
)
from bothways.tasks.question_answering.spans import FoundSpans, QuestionAnswer, Span, answered
from bothways.tasks.question_answering.spec import ALWAYS_ANSWERS, AnswerPrediction
from bothways.tasks.scores import most_read
from bothways.tasks.spec import options_of


@dataclass(frozen=True, slots=True, eq=False)
class AnswerCombiner(Combiner[AnswerOutputs, QuestionAndContext, Gold, FoundSpans]):
    """Combines the answers of several question answerers."""

    shares_inputs: ClassVar = True
    stackable: ClassVar = False

    def calibrated_scores(self, scores: SpanScored) -> SpanScored:
        """Return scores whose softmax, with a 0 appended for no answer, gives the calibrated probabilities."""
        found, temperature, threshold = scores.places, self.outputs.confidence.temperature, self.outputs.threshold
        heat = 1.0 if temperature is None else temperature.value
        if threshold is not None:
            nothing = threshold / heat
        else:
            # The member always answers, so the spans get all the probability.
            shared = np.logaddexp.reduce([span.score / heat for span in found.candidates], initial=-np.inf)
            nothing = float(shared + np.log(MIN_PROBABILITY))
        candidates, apart = (
            tuple(replace(span, score=span.score / heat - nothing) for span in spans)
            for spans in (found.candidates, found.apart)
        )
        return spans_scored(replace(found, candidates=candidates, apart=apart), scores.read)

    def uncalibrated(self, members: Sequence[Self]) -> Self:
        """Return the outputs of the uncalibrated ensemble, with threshold 0 (None if all members always answer)."""
        always = all(each.outputs.threshold is None for each in members)
        threshold = None if always else 0.0
        return replace(self, outputs=replace(self.outputs, confidence=Confidence(), threshold=threshold))

    def rows(self, members: Sequence[SpanScored]) -> NDArray[np.float64]:
        """Return each member's scores of no answer and all spans (M, 1, 1 + K), minus infinity for spans it lacks."""
        own = [_scores_by_offsets(each) for each in members]
        places = _offsets(members)
        table = [[0.0, *(scores.get(place, -np.inf) for place in places)] for scores in own]
        return np.array(table)[:, None]

    def combine(
        self, members: Sequence[SpanScored], combined_RC: NDArray[np.float64], options: object = None
    ) -> SpanScored:
        """Return the spans of all members, with their combined log odds against no answer."""
        odds = (combined_RC[0, 1:] - combined_RC[0, 0]).tolist()
        spans = [Span(*place, score) for place, score in zip(_offsets(members), odds, strict=True)]
        best = tuple(sorted(spans, key=lambda span: -span.score))
        top = options_of(AnswerPrediction, options).top or 1
        found = FoundSpans(members[0].places.context, best, _without_overlap(best, top))
        return spans_scored(found, most_read(each.read for each in members))

    def disagrees(self, member: SpanScored, prediction: object) -> float | None:
        """Return 1 if a member's answer differs from the ensemble's, else 0."""
        own = answered(member.places, member.read, 0.0, 1.0).answer
        return float(isinstance(prediction, QuestionAnswer) and own != prediction.answer)

    def calibrated(self, scores: Sequence[SpanScored], truth: Gold) -> Self:
        """Return the outputs with a fitted threshold and temperature."""
        return replace(self, outputs=calibrated(self.outputs, scores, truth))

    def metrics(self, scores: Sequence[SpanScored], truth: Gold) -> dict[str, float]:
        """Return exact match and F1 of one member."""
        found = scores_of_answers([answered(each.places, each.read, 0.0, 1.0) for each in scores], truth)
        return {"exact_match": float(found.exact_N.mean()), "f1": float(found.f1_N.mean())}

    def names(self) -> dict[str, object]:
        """Return the threshold; answers have no label names."""
        return self.state()

    def state(self) -> dict[str, object]:
        """Return the threshold."""
        return {"no_answer_threshold": self.outputs.threshold}

    def restored(self, stored: StoredEnsemble) -> Self:
        """Return the outputs with the stored threshold and temperature."""
        confidence = Confidence(stored_temperature(stored))
        outputs = replace(self.outputs, threshold=stored.no_answer_threshold, confidence=confidence)
        return replace(self, outputs=outputs)

    def limits(self, chose: str) -> tuple[str, ...]:
        """Return the limits of the card's metrics, whose questions also chose the threshold."""
        always = () if self.outputs.threshold is not None else (ALWAYS_ANSWERS,)
        return optimistic("questions", f"the threshold, and {chose}"), *always, LIKE_THESE

    def data_facts(self, inputs: Sequence[QuestionAndContext], truth: Gold) -> dict[str, object]:
        """Return the number of questions, the number without an answer, and SHA-256 of texts and answers."""
        answers = annotated(truth)
        return {
            "rows": len(inputs),
            "texts_sha256": digest_of_texts(inputs),
            "without_answer": sum(not each for each in answers),
            "answers_sha256": digest_of_texts(answers),
        }


def _scores_by_offsets(scores: SpanScored) -> dict[tuple[int, int], float]:
    found = scores.places
    return {(span.start, span.end): span.score for span in (*found.candidates, *found.apart)}


def _offsets(members: Sequence[SpanScored]) -> list[tuple[int, int]]:
    """Return the start and end of each different span of any member (K)."""
    return list(dict.fromkeys(place for each in members for place in _scores_by_offsets(each)))


def _without_overlap(best: Sequence[Span], top: int) -> tuple[Span, ...]:
    """Return up to ``top`` of the best spans that do not overlap."""
    found: list[Span] = []
    for span in best:
        if len(found) < top and all(span.end <= each.start or each.end <= span.start for each in found):
            found.append(span)
    return tuple(found)
