"""Answers in a context: what the two outputs of a head mean that scores each token as start and as end.

Shapes: N questions, K candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.schema import StoredAnswers, StoredEnsemble, at_most
from bothways.confidence.confidence import Confidence
from bothways.confidence.files import stored_temperature
from bothways.data import Source
from bothways.data.windows import digest_of_texts
from bothways.errors import InvalidInput
from bothways.evaluation import (
    AnswerScores,
    Outcomes,
    Temperature,
    answer_outcomes,
    best_threshold,
    fit_answer_temperature,
    score_answers,
    share_error,
)
from bothways.inference import TokenOutputs
from bothways.progress import phase
from bothways.tasks.card import LIKE_THESE, NOTICES_NOTHING, optimistic
from bothways.tasks.head import StoredInputs, TrainingData
from bothways.tasks.opened import Opened
from bothways.tasks.outputs import Identity, Rows
from bothways.tasks.question_answering.answers import FoundSpans, QuestionAnswer, answered, candidate_scores
from bothways.tasks.question_answering.questions import Answered, GoldAnswer, hold_out_contexts, read_questions
from bothways.tasks.question_answering.span_targets import SpanAnswers
from bothways.tasks.question_answering.spans import Span, SpanScores
from bothways.tasks.question_answering.spec import (
    ALWAYS_ANSWERS,
    LONGEST_ANSWER,
    QUESTION_ANSWERING,
    AnswerLearning,
    AnswerOpening,
    AnswerPrediction,
    QuestionColumns,
)
from bothways.tasks.scores import Scores, TokensRead, most_read, texts_read
from bothways.tasks.targets import LEAST, SingleLabel
from bothways.tasks.together import TemperatureOutputs
from bothways.text import TextTokenizer, blanked_in_front
from bothways.training.objective import Validation

if TYPE_CHECKING:
    from bothways.tasks.objective import Answers, HeadModel
    from bothways.tasks.opening import OpenedModel

SpanScored: TypeAlias = Scores[FoundSpans]
Gold: TypeAlias = Sequence[Sequence[GoldAnswer]]
QuestionAndContext: TypeAlias = tuple[str, str]

# ``config.json`` of what a model was fine-tuned for before says how many outputs its head had; this one has two.
OF_OTHER_HEADS: Mapping[str, object] = dict.fromkeys(("id2label", "label2id", "num_labels", "problem_type"))


@dataclass(frozen=True, slots=True, eq=False)
class AnswerOutputs(TemperatureOutputs[QuestionAndContext, FoundSpans]):
    """The best spans of a context, and when to give no answer.

    Attributes:
        no_answer: Index of the token for no answer in each window, 0 or -1.
        max_answer_tokens: Most tokens in an answer.
        threshold: Log odds against no answer from which an answer is given; None always gives one.
        confidence: The temperature that calibrates answers.
        calibrates: Whether a temperature is to be learnt.
    """

    no_answer: int
    max_answer_tokens: int = 30
    threshold: float | None = None
    confidence: Confidence = Confidence()  # noqa: RUF009 (frozen)
    calibrates: bool = True

    head: ClassVar = "span"
    head_title: ClassVar = "question answering head"
    per_token: ClassVar = True
    keeps_inputs: ClassVar = True
    shares_inputs: ClassVar = True
    stackable: ClassVar = False
    labels: ClassVar[tuple[str, ...]] = ()  # type: ignore[misc]

    @property
    def size(self) -> int:
        """Start and end."""
        return 2

    # --- from questions to answers ---

    def texts(self, value: QuestionAndContext) -> tuple[QuestionAndContext, ...]:
        """Return question and context as a pair."""
        return ((value[0], blanked_in_front(value[1])),)

    def scores(
        self, value: QuestionAndContext, rows: Sequence[Rows], options: AnswerPrediction | None = None
    ) -> SpanScored:
        """Return the log odds of the best spans against no answer (K, 1), over all windows."""
        (only,) = rows
        if not isinstance(only, TokenOutputs):
            raise TypeError("spans are read from a row for each token")
        chosen = options or AnswerPrediction()
        longest = chosen.max_answer_tokens or self.max_answer_tokens
        spans = SpanScores(value[1], only.rows, only.places, no_answer=self.no_answer, longest=longest)
        found = FoundSpans.of(value[1], spans, chosen.top or 1)
        return spans_scored(found, TokensRead(len(only.rows), only.dropped_tokens))

    def decide(self, scores: Iterable[SpanScored], options: AnswerPrediction | None = None) -> Iterator[QuestionAnswer]:
        """Yield the answer to each question, or that there is none."""
        chosen = options or AnswerPrediction()
        threshold = self.threshold if chosen.threshold is None else chosen.threshold
        temperature = None if chosen.calibrated is False else self.temperature
        heat = 1.0 if temperature is None else temperature.value
        for each in scores:
            yield answered(each.places, each.read, threshold, heat)

    def outcomes(self, scores: Sequence[SpanScored], truth: Gold, *, calibrated: bool | None = None) -> Outcomes:
        """Return F1 and exact match of each question, and the stated probability of its answer."""
        found = list(self.decide(scores, AnswerPrediction(calibrated=calibrated)))
        outcomes = answer_outcomes(_scores_of(found, truth), [each.probability for each in found])
        return replace(outcomes, tokens_read=texts_read(each.read for each in scores))

    def facts(self) -> dict[str, object]:
        """Return the threshold, whether there is one, temperature and the longest answer."""
        return {
            "no_answer_threshold": self.threshold,
            "can_decline": self.threshold is not None,
            "temperature": None if self.temperature is None else asdict(self.temperature),
            "max_answer_tokens": self.max_answer_tokens,
        }

    # --- learning ---

    @classmethod
    def begin(
        cls,
        opened: OpenedModel,
        data: TrainingData,
        columns: QuestionColumns,
        options: AnswerLearning,
        seed: int,
        before: Self | None,
    ) -> tuple[Self, list[Answered], list[Answered]]:
        """Read answered questions; those on one context are held out together."""
        questions = read_questions(data.train, columns)
        if data.validation is None:
            questions, held_out = hold_out_contexts(questions, 0.1, seed)
        else:
            held_out = read_questions(data.validation, columns)
        asked: int | None = getattr(opened.options, "max_answer_tokens", None)
        longest = before.max_answer_tokens if before is not None else 30 if asked is None else asked
        no_answer = no_answer_index(opened.tokenizer)
        return cls(no_answer, longest, calibrates=options.calibration is not None), questions, held_out

    def read(self, data: Source, columns: QuestionColumns, options: object = None) -> list[Answered]:
        """Return questions with their contexts and annotated answers."""
        del options
        return read_questions(data, columns)

    def encode(self, examples: Sequence[Answered]) -> Gold:
        """Return the annotated answers of each question."""
        return [example.label for example in examples]

    def continues(self, before: Self) -> bool:
        """Start and end mean the same in every model."""
        del before
        return True

    def answers(self, stored: StoredInputs) -> Answers:
        """Return the start and end of windows."""
        return SpanAnswers([context for _, context in stored.inputs], stored.truth, stored.store, self.no_answer)

    def validate(self, scores: Sequence[SpanScored], truth: Gold) -> Validation:
        """Return metrics with the best threshold; the score is F1."""
        found = _with_threshold(scores, truth, _threshold(scores, truth))
        exact, f1 = float(found.exact_N.mean()), float(found.f1_N.mean())
        return Validation({"exact_match": exact, "f1": f1}, f1, share_error(f1, len(found.f1_N)))

    def learn(
        self, model: HeadModel, training: StoredInputs, held: StoredInputs, seed: int, tokens: int
    ) -> tuple[Self, list[SpanScored]]:
        """Choose the threshold of the highest F1, then fit the temperature."""
        del training, seed
        phase("choosing when to answer, and calibrating" if self.calibrates else "choosing when to answer")
        scores = held.scores(self, model, tokens)
        return self.calibrated(scores, held.truth, temperature=self.calibrates), scores

    def calibrated(self, scores: Sequence[SpanScored], truth: Gold, *, temperature: bool = True) -> Self:
        """Return the same with the threshold and, if wanted, the temperature that held-out questions teach."""
        threshold = _threshold(scores, truth)
        confidence = Confidence()
        if temperature:
            right_N = _with_threshold(scores, truth, threshold).exact_N > 0
            heat = fit_answer_temperature(_table(scores), right_N, threshold)
            confidence = Confidence(Temperature(heat))
        return replace(self, threshold=threshold, confidence=confidence)

    @property
    def identity(self) -> Identity:
        """The task and the longest answer."""
        return {"task": QUESTION_ANSWERING.name, "longest answer": self.max_answer_tokens}

    def part(self, stored: StoredInputs) -> dict[str, object]:
        """Return how many questions have no answer, and SHA-256 of the answers."""
        nothing = sum(not answers for answers in stored.truth)
        return {"without_answer": nothing, "answers_sha256": self.answers(stored).digest}

    @property
    def limits(self) -> tuple[str, ...]:
        """Limits that a reader of the card's metrics has to know."""
        chose = optimistic("questions", "the epoch to keep, the threshold and the temperature")
        return chose, *self.always, LIKE_THESE, NOTICES_NOTHING

    @property
    def always(self) -> tuple[str, ...]:
        """The limit of a model that always gives an answer."""
        return () if self.threshold is not None else (ALWAYS_ANSWERS,)

    # --- several models together: they choose of the spans that any of them has among its best, and of no answer ---

    @property
    def row_target(self) -> SingleLabel:
        """One of so many spans, or none, is right; they have no names."""
        return SingleLabel(())

    def stated(self, scores: SpanScored) -> SpanScored:
        """Return scores of which softmax, with 0 for no answer, gives the calibrated probabilities."""
        found, heat = scores.places, 1.0 if self.temperature is None else self.temperature.value
        if self.threshold is not None:
            nothing = self.threshold / heat
        else:
            # No answer is ruled out: all that there is to share belongs to the spans.
            shared = np.logaddexp.reduce([span.score / heat for span in found.candidates], initial=-np.inf)
            nothing = float(shared + np.log(LEAST))
        candidates, apart = (
            tuple(replace(span, score=span.score / heat - nothing) for span in spans)
            for spans in (found.candidates, found.apart)
        )
        return spans_scored(replace(found, candidates=candidates, apart=apart), scores.read)

    def together(self, members: Sequence[Self]) -> Self:
        """Return outputs that give what is likeliest until they are calibrated."""
        always = all(each.threshold is None for each in members)
        return replace(self, confidence=Confidence(), threshold=None if always else 0.0)

    def rows(self, members: Sequence[SpanScored]) -> NDArray[np.float64]:
        """Return the members' scores of no answer and of all spans (M, 1, 1 + K); minus infinity where one has none."""
        own = [_by_place(each) for each in members]
        places = _places(members)
        table = [[0.0, *(scores.get(place, -np.inf) for place in places)] for scores in own]
        return np.array(table)[:, None]

    def joined(
        self,
        members: Sequence[SpanScored],
        combined_RC: NDArray[np.float64],
        options: AnswerPrediction | None = None,
    ) -> SpanScored:
        """Return the spans of all members with log odds against no answer again."""
        odds = (combined_RC[0, 1:] - combined_RC[0, 0]).tolist()
        spans = [Span(*place, score) for place, score in zip(_places(members), odds, strict=True)]
        best = tuple(sorted(spans, key=lambda span: -span.score))
        top = 1 if options is None or options.top is None else options.top
        found = FoundSpans(members[0].places.context, best, _apart(best, top))
        return spans_scored(found, most_read(each.read for each in members))

    def differs(self, member: SpanScored, together: QuestionAnswer) -> float:
        """Return whether a member's answer reads otherwise."""
        return float(answered(member.places, member.read, 0.0, 1.0).answer != together.answer)

    def calibrated_on(self, scores: Sequence[SpanScored], truth: Gold) -> Self:
        """Return the same with threshold and temperature."""
        return self.calibrated(scores, truth)

    def metrics(self, scores: Sequence[SpanScored], truth: Gold) -> dict[str, float]:
        """Return exact match and F1 of a member by itself."""
        found = _scores_of([answered(each.places, each.read, 0.0, 1.0) for each in scores], truth)
        return {"exact_match": float(found.exact_N.mean()), "f1": float(found.f1_N.mean())}

    def names(self) -> dict[str, object]:
        """Return the threshold; answers have no names."""
        return self.stored_together()

    def stored_together(self) -> dict[str, object]:
        """Return the threshold."""
        return {"no_answer_threshold": self.threshold}

    def restored_together(self, stored: StoredEnsemble) -> Self:
        """Return the same with threshold and temperature."""
        return replace(self, threshold=stored.no_answer_threshold, confidence=Confidence(stored_temperature(stored)))

    def limits_together(self, chose: str) -> tuple[str, ...]:
        """Return what a reader has to know of metrics on the questions that also chose the threshold."""
        return optimistic("questions", f"the threshold, and {chose}"), *self.always, LIKE_THESE

    def part_together(self, inputs: Sequence[QuestionAndContext], truth: Gold) -> dict[str, object]:
        """Return how many questions, also without an answer, and SHA-256 of texts and answers."""
        annotated = _annotated(truth)
        return {
            "rows": len(inputs),
            "texts_sha256": digest_of_texts(inputs),
            "without_answer": sum(not answers for answers in annotated),
            "answers_sha256": digest_of_texts(annotated),
        }

    # --- on disk ---

    @classmethod
    def open(cls, opened: Opened, options: AnswerOpening, size: int, *, ours: bool) -> Self:
        """Return threshold, temperature and longest answer of a trained head."""
        del size
        stored = StoredAnswers.of(opened.extras if ours else {})
        own = at_most("max_answer_tokens", stored.max_answer_tokens, LONGEST_ANSWER)
        asked = options.max_answer_tokens
        longest = asked if asked is not None else 30 if own is None else own
        threshold = stored.no_answer_threshold if options.threshold is None else options.threshold
        no_answer = no_answer_index(opened.tokenizer)
        return cls(no_answer, longest, threshold, Confidence(stored_temperature(stored)))

    def settings(self) -> Mapping[str, object]:
        """Take out what other heads had."""
        return OF_OTHER_HEADS

    def write(self, folder: Path) -> dict[str, object]:
        """Return threshold, temperature and the longest answer."""
        del folder
        return {name: value for name, value in self.facts().items() if name != "can_decline"}


def spans_scored(found: FoundSpans, read: TokensRead) -> SpanScored:
    """Return the scores of spans that were found."""
    return Scores(np.array([span.score for span in found.candidates], dtype=np.float64).reshape(-1, 1), found, read)


def _by_place(scores: SpanScored) -> dict[tuple[int, int], float]:
    found = scores.places
    return {(span.start, span.end): span.score for span in (*found.candidates, *found.apart)}


def _places(members: Sequence[SpanScored]) -> list[tuple[int, int]]:
    """Return the places of all spans that a member has (K)."""
    return list(dict.fromkeys(place for each in members for place in _by_place(each)))


def _apart(best: Sequence[Span], top: int) -> tuple[Span, ...]:
    """Return the best spans of which no two overlap."""
    found: list[Span] = []
    for span in best:
        if len(found) < top and all(span.end <= each.start or each.end <= span.start for each in found):
            found.append(span)
    return tuple(found)


def _table(scores: Sequence[SpanScored]) -> NDArray[np.float64]:
    """Return the scores of all candidates (N, K)."""
    return candidate_scores([each.places.candidates for each in scores])


def _threshold(scores: Sequence[SpanScored], truth: Gold) -> float | None:
    """Return the threshold of the highest F1; None where every question has an answer."""
    best = score_answers([each.places.best for each in scores], _annotated(truth))
    return best_threshold(_table(scores)[:, 0], best.f1_N, best.has_answer_N)


def _with_threshold(scores: Sequence[SpanScored], truth: Gold, threshold: float | None) -> AnswerScores:
    """Return how good the answers are with a threshold."""
    gives_N = _table(scores)[:, 0] > (-np.inf if threshold is None else threshold)
    given = [each.places.best if gives else "" for each, gives in zip(scores, gives_N.tolist(), strict=True)]
    return score_answers(given, _annotated(truth))


def _scores_of(found: Sequence[QuestionAnswer], truth: Gold) -> AnswerScores:
    return score_answers([each.answer or "" for each in found], _annotated(truth))


def _annotated(truth: Gold) -> list[list[str]]:
    return [[answer.text for answer in answers] for answers in truth]


def no_answer_index(tokenizer: TextTokenizer) -> int:
    """Return where a window has the token that stands for no answer: 0, or -1 where it is the last.

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
