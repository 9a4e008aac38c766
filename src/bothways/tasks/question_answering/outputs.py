"""Answers in a context: what the two outputs of a head mean that scores each token as start and as end.

Shapes: N questions, K candidates.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.stored import Extras, damaged, stored_whole
from bothways.confidence.confidence import Confidence
from bothways.confidence.files import stored_temperature
from bothways.data import Source
from bothways.errors import InvalidInput
from bothways.evaluation import (
    AnsweringReport,
    AnswerScores,
    RowScores,
    Temperature,
    answering_report,
    best_threshold,
    fit_answer_temperature,
    score_answers,
    share_error,
)
from bothways.inference import TokenRows
from bothways.tasks.card import LIKE_THESE, NOTICES_NOTHING, optimistic
from bothways.tasks.head import StoredInputs, TrainingData
from bothways.tasks.objective import Answers, HeadModel
from bothways.tasks.opening import OpenedModel
from bothways.tasks.outputs import HeadOutputs, Identity, Rows
from bothways.tasks.question_answering.answers import FoundSpans, QuestionAnswer, answered, candidate_scores
from bothways.tasks.question_answering.questions import Answered, GoldAnswer, hold_out_contexts, read_questions
from bothways.tasks.question_answering.span_targets import SpanAnswers
from bothways.tasks.question_answering.spans import SpanScores
from bothways.tasks.question_answering.spec import (
    LONGEST_ANSWER,
    QUESTION_ANSWERING,
    AnswerLearning,
    AnswerOpening,
    AnswerPrediction,
    QuestionColumns,
)
from bothways.tasks.scores import Scores, TokensRead, texts_read
from bothways.text import TextTokenizer, blanked_in_front
from bothways.training.objective import Validation

SpanScored: TypeAlias = Scores[FoundSpans]
Gold: TypeAlias = Sequence[Sequence[GoldAnswer]]
QuestionAndContext: TypeAlias = tuple[str, str]

# ``config.json`` of what a model was fine-tuned for before says how many outputs its head had; this one has two.
OF_OTHER_HEADS: Mapping[str, object] = dict.fromkeys(("id2label", "label2id", "num_labels", "problem_type"))


@dataclass(frozen=True, slots=True, eq=False)
class AnswerOutputs(HeadOutputs[QuestionAndContext, FoundSpans]):
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
    labels: ClassVar[tuple[str, ...]] = ()  # type: ignore[misc]

    @property
    def size(self) -> int:
        """Start and end."""
        return 2

    @property
    def temperature(self) -> Temperature | None:
        """What calibrates the probabilities of answers."""
        found = self.confidence.calibration
        return found if isinstance(found, Temperature) else None

    # --- from questions to answers ---

    def texts(self, value: QuestionAndContext) -> tuple[QuestionAndContext, ...]:
        """Return question and context as a pair."""
        return ((value[0], blanked_in_front(value[1])),)

    def scores(
        self, value: QuestionAndContext, rows: Sequence[Rows], options: AnswerPrediction | None = None
    ) -> SpanScored:
        """Return the log odds of the best spans against no answer (K, 1), over all windows."""
        (only,) = rows
        if not isinstance(only, TokenRows):
            raise TypeError("spans are read from a row for each token")
        chosen = options or AnswerPrediction()
        longest = chosen.max_answer_tokens or self.max_answer_tokens
        spans = SpanScores(value[1], only.rows, only.places, no_answer=self.no_answer, longest=longest)
        found = FoundSpans.of(value[1], spans, chosen.top or 1)
        logits_K1 = np.array([[span.score] for span in found.candidates]).reshape(-1, 1)
        return Scores(logits_K1, found, TokensRead(len(only.rows), only.dropped_tokens))

    def decide(
        self, scores: Iterable[SpanScored], options: AnswerPrediction | None = None
    ) -> Iterator[QuestionAnswer]:
        """Yield the answer to each question, or that there is none."""
        chosen = options or AnswerPrediction()
        threshold = self.threshold if chosen.threshold is None else chosen.threshold
        temperature = None if chosen.calibrated is False else self.temperature
        heat = 1.0 if temperature is None else temperature.value
        for each in scores:
            yield answered(each.places, each.read, threshold, heat)

    def report(
        self,
        scores: Sequence[SpanScored],
        truth: Gold,
        *,
        calibrated: bool | None = None,
        resamples: int = 1000,
        seed: int = 0,
    ) -> AnsweringReport:
        """Return exact match and F1 with intervals, and how far the probabilities can be trusted."""
        found = list(self.decide(scores, AnswerPrediction(calibrated=calibrated)))
        stated_N = [each.probability for each in found]
        report = answering_report(_scores_of(found, truth), stated_N, resamples=resamples, seed=seed)
        return replace(report, reading=texts_read(each.read for each in scores))

    def outcomes(self, scores: Sequence[SpanScored], truth: Gold) -> RowScores:
        """Return F1 and exact match of each question."""
        found = _scores_of(list(self.decide(scores)), truth)
        read = texts_read(each.read for each in scores)
        return RowScores({"f1": found.f1_N, "exact_match": found.exact_N}, reading=read)

    def facts(self) -> dict[str, object]:
        """Return threshold, temperature and the longest answer."""
        return {
            "no_answer_threshold": self.threshold,
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
        no_answer = no_answer_index(opened.model.tokenizer)
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
        """What a reader of the card's metrics has to know."""
        chose = optimistic("questions", "the epoch to keep, the threshold and the temperature")
        return chose, *self.always, LIKE_THESE, NOTICES_NOTHING

    @property
    def always(self) -> tuple[str, ...]:
        """The limit of a model that always gives an answer."""
        if self.threshold is not None:
            return ()
        return ("No held-out question was without an answer, so the model always gives one.",)

    # --- on disk ---

    @classmethod
    def open(cls, opened: OpenedModel, options: AnswerOpening, size: int, *, ours: bool) -> Self:
        """Return threshold, temperature and longest answer of a trained head."""
        del size
        extras = opened.extras if ours else {}
        stored = stored_whole(extras, "max_answer_tokens", LONGEST_ANSWER)
        asked = options.max_answer_tokens
        longest = asked if asked is not None else 30 if stored is None else stored
        threshold = stored_threshold(extras) if options.threshold is None else options.threshold
        no_answer = no_answer_index(opened.model.tokenizer)
        return cls(no_answer, longest, threshold, Confidence(stored_temperature(extras)))

    def settings(self) -> Mapping[str, object]:
        """Take out what other heads had."""
        return OF_OTHER_HEADS

    def write(self, folder: Path) -> dict[str, object]:
        """Return threshold, temperature and the longest answer."""
        del folder
        return self.facts()


def _table(scores: Sequence[SpanScored]) -> NDArray[np.float64]:
    """The scores of all candidates (N, K)."""
    return candidate_scores([each.places.candidates for each in scores])


def _threshold(scores: Sequence[SpanScored], truth: Gold) -> float | None:
    """The threshold of the highest F1; None where every question has an answer."""
    best = score_answers([each.places.best for each in scores], _annotated(truth))
    return best_threshold(_table(scores)[:, 0], best.f1_N, best.has_answer_N)


def _with_threshold(scores: Sequence[SpanScored], truth: Gold, threshold: float | None) -> AnswerScores:
    """How good the answers are with a threshold."""
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


def stored_threshold(extras: Extras) -> float | None:
    """Return the threshold in ``bothways.json``, or None.

    Raises:
        CorruptCheckpoint: It is not a finite number.
    """
    value = extras.get("no_answer_threshold")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise damaged("no_answer_threshold", "a finite number, or null", value)
    return float(value)
