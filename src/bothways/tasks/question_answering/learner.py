"""The training of answers in a context: data, loss, threshold and temperature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from bothways.confidence.confidence import Confidence, TemperatureOptions
from bothways.evaluation.intervals import share_error
from bothways.evaluation.metrics.question_answering import fit_answer_temperature
from bothways.evaluation.report import Validation
from bothways.evaluation.temperature import Temperature
from bothways.progress import phase
from bothways.tasks.card import LIKE_THESE, NOTICES_NOTHING, optimistic
from bothways.tasks.heads.inputs import StoredInputs
from bothways.tasks.heads.learner import Identity, Learner
from bothways.tasks.heads.objective import LabelLoss
from bothways.tasks.question_answering.answers import FoundSpans
from bothways.tasks.question_answering.outputs import (
    AnswerOutputs,
    Gold,
    SpanScored,
    no_answer_index,
    scores_at,
    span_table,
    threshold_of,
)
from bothways.tasks.question_answering.questions import Answered, hold_out_contexts, read_questions
from bothways.tasks.question_answering.span_targets import SpanLoss
from bothways.tasks.question_answering.spec import (
    ALWAYS_ANSWERS,
    QUESTION_ANSWERING,
    AnswerOpening,
    QuestionColumns,
)
from bothways.tasks.spec import options_of
from bothways.tasks.splits import TrainingData
from bothways.tasks.torch_backend import HeadModel, TorchBackend


@dataclass(frozen=True, slots=True, eq=False)
class AnswerLearner(Learner[AnswerOutputs, Gold, FoundSpans]):
    """The training side of answers in a context.

    Attributes:
        outputs: The outputs.
        calibrates: Whether to fit a temperature.
    """

    outputs: AnswerOutputs
    calibrates: bool = True

    @classmethod
    def from_data(
        cls,
        backend: TorchBackend,
        data: TrainingData,
        columns: QuestionColumns,
        options: TemperatureOptions,
        seed: int,
        before: AnswerOutputs | None,
    ) -> tuple[Self, list[Answered], list[Answered]]:
        """Read annotated questions; those on the same context are held out together."""
        questions = read_questions(data.train, columns)
        if data.validation is None:
            questions, held_out = hold_out_contexts(questions, 0.1, seed)
        else:
            held_out = read_questions(data.validation, columns)
        given = options_of(AnswerOpening, backend.options).max_answer_tokens
        longest = before.max_answer_tokens if before is not None else 30 if given is None else given
        outputs = AnswerOutputs(no_answer_index(backend.tokenizer), longest)
        return cls(outputs, options.calibration is not None), questions, held_out

    def is_compatible_with(self, before: AnswerOutputs) -> bool:
        """Return True: start and end mean the same in all models."""
        del before
        return True

    def loss(self, stored: StoredInputs) -> LabelLoss:
        """Return the start and end of answers in windows as targets."""
        contexts = [context for _, context in stored.inputs]
        return SpanLoss(contexts, stored.truth, stored.store, self.outputs.no_answer)

    def validate(self, scores: Sequence[SpanScored], truth: Gold) -> Validation:
        """Return metrics with the best threshold; the score is F1."""
        found = scores_at(scores, truth, threshold_of(scores, truth))
        exact, f1 = float(found.exact_N.mean()), float(found.f1_N.mean())
        return Validation({"exact_match": exact, "f1": f1}, f1, share_error(f1, len(found.f1_N)))

    @property
    def identity(self) -> Identity:
        """The task and the maximum length of an answer."""
        return {"task": QUESTION_ANSWERING.name, "longest answer": self.outputs.max_answer_tokens}

    def fit_confidence(
        self, model: HeadModel, training: StoredInputs, held: StoredInputs, seed: int, tokens: int
    ) -> tuple[Self, list[SpanScored]]:
        """Choose the threshold of the highest F1, then fit the temperature."""
        del training, seed
        phase("choosing when to answer, and calibrating" if self.calibrates else "choosing when to answer")
        scores = held.scores(self.outputs, model, tokens)
        return self.with_outputs(calibrated(self.outputs, scores, held.truth, temperature=self.calibrates)), scores

    def data_facts(self, stored: StoredInputs) -> dict[str, object]:
        """Return the number of questions without an answer, and SHA-256 of the answers."""
        without = sum(not answers for answers in stored.truth)
        return {"without_answer": without, "answers_sha256": self.loss(stored).digest}

    @property
    def limits(self) -> tuple[str, ...]:
        """Limits of the card's metrics, in sentences."""
        chose = optimistic("questions", "the epoch to keep, the threshold and the temperature")
        always = () if self.outputs.threshold is not None else (ALWAYS_ANSWERS,)
        return chose, *always, LIKE_THESE, NOTICES_NOTHING


def calibrated(
    outputs: AnswerOutputs, scores: Sequence[SpanScored], truth: Gold, *, temperature: bool = True
) -> AnswerOutputs:
    """Return outputs with the threshold and, with ``temperature``, the temperature fitted on held-out questions."""
    threshold = threshold_of(scores, truth)
    confidence = Confidence()
    if temperature:
        right_N = scores_at(scores, truth, threshold).exact_N > 0
        confidence = Confidence(Temperature(fit_answer_temperature(span_table(scores), right_N, threshold)))
    return replace(outputs, threshold=threshold, confidence=confidence)
