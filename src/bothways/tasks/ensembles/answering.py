"""Members that answer questions: the spans that any of them has among its best, and no answer, are what they choose of.

A member gives a span that it has not among its best no probability. What comes out are log odds against no answer
again, so threshold, temperature and answers are those of one model.

Shapes: M members, K spans and, first, no answer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bothways.data import Row, Source
from bothways.data.windows import digest_of_texts
from bothways.errors import InvalidInput
from bothways.evaluation import Outcomes, Temperature
from bothways.tasks.answering.answerer import QuestionAndContext, QuestionAnswerer
from bothways.tasks.answering.answers import (
    FoundSpans,
    QuestionAnswer,
    answered,
    candidate_scores,
    outcomes_of,
    scores_of,
)
from bothways.tasks.answering.fitting import Candidates, stored_threshold, without_answer
from bothways.tasks.answering.questions import annotated_questions
from bothways.tasks.answering.spans import Span
from bothways.tasks.columns import QuestionColumns
from bothways.tasks.ensembles.combining import (
    LEAST,
    Combination,
    Disagreement,
    Method,
    Stacked,
    check_method,
    mutual_information,
)
from bothways.tasks.ensembles.committee import most, no_promise, texts_part
from bothways.tasks.ensembles.files import combination_settings, stored_combination
from bothways.tasks.ensembles.results import Together
from bothways.tasks.stored import Extras, damaged, stored_temperature
from bothways.tasks.targets import SingleLabel

# For each question the texts of its annotated answers.
Annotated = Sequence[Sequence[str]]

# One of so many spans, or none, is right; they have no names.
ONE_OF_THEM = SingleLabel(())


@dataclass(frozen=True, slots=True)
class AnswerCommittee:
    """Models that answer questions, see `bothways.tasks.ensembles.committee.Committee`.

    Attributes:
        models: The members. As many answers are given as the first one is to give.
        combination: How their answers become one.
        threshold: Log odds against no answer from which an answer is given; None always gives one.
        temperature: What calibrates the result; None without.
    """

    models: tuple[QuestionAnswerer, ...]
    combination: Combination
    threshold: float | None
    temperature: Temperature | None = None

    @classmethod
    def of(cls, members: Sequence[tuple[Path, QuestionAnswerer]], combination: Combination) -> Self:
        """Gather answerers: until they are calibrated, what is likeliest is given."""
        models = tuple(model for _, model in members)
        always = all(model.threshold is None for model in models)
        return cls(models, combination, None if always else 0.0)

    @property
    def knows_its_domain(self) -> bool:
        """No member tells texts from elsewhere."""
        return False

    def check_method(self, method: str) -> None:
        """Refuse a way to combine that answers do not have.

        Raises:
            InvalidInput: There is no such way, or answers are to be stacked.
        """
        check_method(method, ONE_OF_THEM)
        if method == "stacked":
            raise InvalidInput(
                "models that answer questions are combined by 'mean' or 'vote', not by 'stacked': a stacking weighs "
                "outputs that are the same for every row, but the answers to choose from are other ones in every text."
            )

    def columns_of(self, _: int) -> QuestionColumns:
        """Where the first member has questions and contexts: all are asked the same."""
        return self.models[0].columns

    def asked(self, row: Row, columns: QuestionColumns) -> QuestionAndContext:
        """The question of a row, and its context."""
        return columns.inputs.read(row)

    def given(self, what: object) -> tuple[list[QuestionAndContext], bool]:
        """Questions with their contexts, and whether it was one alone."""
        return self.models[0].given(what)

    def labelled(self, data: Source, columns: QuestionColumns) -> tuple[list[QuestionAndContext], Annotated]:
        """Questions with their contexts, and the annotated answers."""
        return annotated_questions(data, columns)

    def part(self, items: Sequence[QuestionAndContext], truth: Annotated) -> dict[str, object]:
        """What a card says of answered questions."""
        answers = {"without_answer": without_answer(truth), "answers_sha256": digest_of_texts(truth)}
        return {**texts_part(items), **answers}

    def said(
        self, member: int, items: Iterable[QuestionAndContext], description: str, total: int | None, show: bool | None
    ) -> Iterator[FoundSpans]:
        """What one member says of questions: an answer is likelier than none where its score is above 0."""
        model = self.models[member]
        for found in model.spans(items, description, total, show):
            yield _calibrated(found, model.threshold, _heat(model.temperature))

    def combined(self, said: Sequence[FoundSpans]) -> FoundSpans:
        """What all say of a question together."""
        places, scores_MK = _table(said)
        scores_K = self.combination.combine(ONE_OF_THEM, scores_MK[:, None])[0]
        odds = (scores_K[1:] - scores_K[0]).tolist()
        spans = [Span(*place, score) for place, score in zip(places, odds, strict=True)]
        best = tuple(sorted(spans, key=lambda span: -span.score))
        top, reading = self.models[0].answering.top, most([each.reading for each in said])
        return FoundSpans(said[0].context, best, _apart(best, top), reading)

    def promise(self, coverage: float | None) -> Callable[[Together], Together]:
        """Of answers to questions, nothing for any coverage."""
        return no_promise(coverage, "answers to questions")

    def predicted(self, combined: FoundSpans) -> QuestionAnswer:
        """The answer, or that there is none."""
        return answered(combined, self.threshold, _heat(self.temperature))

    def disagreement(self, said: Sequence[FoundSpans], combined: FoundSpans) -> Disagreement:
        """How far the members are apart: whose answer reads otherwise, and on all that they choose of."""
        together, own = self.predicted(combined).answer, [each.answer for each in map(_alone, said)]
        _, scores_MK = _table(said)
        information = float(mutual_information(ONE_OF_THEM, scores_MK[:, None])[0])
        return Disagreement(float(np.mean([each != together for each in own])), information)

    def fitted(
        self, method: Method, said: Sequence[Sequence[FoundSpans]], truth: Annotated
    ) -> tuple[Self, dict[str, Any]]:
        """With the threshold and the temperature that held-out questions say; of the method there is nothing to fit."""
        del method
        combined = [self.combined(each) for each in said]
        best = [_text(each) for each in combined]
        candidates = Candidates(best, candidate_scores([each.candidates for each in combined]), truth)
        threshold = candidates.threshold()
        return replace(self, threshold=threshold, temperature=candidates.temperature(threshold)), {}

    def outcomes(self, combined: Sequence[FoundSpans], truth: Annotated) -> Outcomes:
        """Return the results of the members together."""
        return outcomes_of([self.predicted(each) for each in combined], truth)

    def alone(self, said: Sequence[FoundSpans], truth: Annotated) -> Mapping[str, float]:
        """Metrics of what one member says."""
        scores = scores_of([_alone(each) for each in said], truth)
        return {"exact_match": float(scores.exact_N.mean()), "f1": float(scores.f1_N.mean())}

    def facts(self) -> dict[str, object]:
        """Method, threshold and calibration."""
        return self.stored()

    def stored(self) -> dict[str, object]:
        """Method, threshold and calibration."""
        return {**combination_settings(self.combination, self.temperature), "no_answer_threshold": self.threshold}

    def restored(self, stored: Extras) -> Self:
        """With what was stored."""
        combination = stored_combination(stored, len(self.models), 0)
        if isinstance(combination, Stacked):
            raise damaged("method", "'mean' or 'vote' of models that answer questions", "stacked")
        threshold, temperature = stored_threshold(stored), stored_temperature(stored)
        return replace(self, combination=combination, threshold=threshold, temperature=temperature)


def _heat(temperature: Temperature | None) -> float:
    return 1.0 if temperature is None else temperature.value


def _calibrated(found: FoundSpans, threshold: float | None, heat: float) -> FoundSpans:
    """The spans with scores of which softmax, with 0 for no answer, gives the member's calibrated probabilities."""
    if threshold is not None:
        nothing = threshold / heat
    else:
        # No answer is ruled out: all that there is to share belongs to the spans.
        shared = np.logaddexp.reduce([span.score / heat for span in found.candidates], initial=-np.inf)
        nothing = float(shared + np.log(LEAST))

    def scored(spans: Sequence[Span]) -> tuple[Span, ...]:
        return tuple(replace(span, score=span.score / heat - nothing) for span in spans)

    return replace(found, candidates=scored(found.candidates), apart=scored(found.apart))


def _text(found: FoundSpans) -> str:
    """That of the best span; empty where there is none."""
    return found.context[found.candidates[0].start : found.candidates[0].end] if found.candidates else ""


def _alone(said: FoundSpans) -> QuestionAnswer:
    """The answer of one member."""
    return answered(said, 0.0, 1.0)


def _table(said: Sequence[FoundSpans]) -> tuple[list[tuple[int, int]], NDArray[np.float64]]:
    """The places of all spans that a member has (K), and the members' scores (M, 1 + K) of no answer and of them."""
    own = [{(span.start, span.end): span.score for span in (*each.candidates, *each.apart)} for each in said]
    places = list(dict.fromkeys(place for scores in own for place in scores))
    return places, np.array([[0.0, *(scores.get(place, -np.inf) for place in places)] for scores in own])


def _apart(best: Sequence[Span], top: int) -> tuple[Span, ...]:
    """The best spans of which no two overlap."""
    found: list[Span] = []
    for span in best:
        if len(found) < top and all(span.end <= each.start or each.end <= span.start for each in found):
            found.append(span)
    return tuple(found)
