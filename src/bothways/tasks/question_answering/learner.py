"""Training of a question answerer: data, loss, threshold and temperature.

Shapes: W windows, B windows of a batch, S tokens of the longest window, T tokens, E targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from torch import Tensor
from typing_extensions import override

from bothways.confidence.confidence import Confidence
from bothways.data.windows import WindowStore, digest_of
from bothways.devices import on_device
from bothways.evaluation.intervals import share_error
from bothways.evaluation.metrics.question_answering import fit_answer_temperature
from bothways.evaluation.report import Validation
from bothways.evaluation.temperature import Temperature
from bothways.packing import to_padded
from bothways.tasks.card import LIKE_THESE, NOTICES_NOTHING, optimistic
from bothways.tasks.columns import AnyColumns
from bothways.tasks.heads.learner import Identity, Learner
from bothways.tasks.heads.objective import LabelLoss, StoredInputs
from bothways.tasks.heads.splits import TrainingData
from bothways.tasks.question_answering.outputs import (
    AnswerOutputs,
    Gold,
    SpanScored,
    no_answer_index,
    scores_at,
    span_table,
    threshold_of,
)
from bothways.tasks.question_answering.questions import Answered, GoldAnswer, hold_out_contexts, read_questions
from bothways.tasks.question_answering.spans import CONTEXT, FoundSpans
from bothways.tasks.question_answering.spec import (
    ALWAYS_ANSWERS,
    QUESTION_ANSWERING,
    AnswerFitting,
    AnswerOpening,
    QuestionColumns,
)
from bothways.tasks.spec import options_of
from bothways.tasks.torch_backend import TorchBackend
from bothways.text import Places, behind_marks


@dataclass(frozen=True, slots=True, eq=False)
class AnswerLearner(Learner[AnswerOutputs, Gold, FoundSpans]):
    """Trains a question answerer; ``calibrates`` is True to fit a temperature."""

    calibrates: bool = True

    @classmethod
    def from_data(
        cls,
        backend: TorchBackend,
        data: TrainingData,
        columns: AnyColumns,
        options: object,
        before: AnswerOutputs | None,
    ) -> tuple[Self, list[Answered], list[Answered]]:
        """Read annotated questions; without validation data, hold out about a tenth, grouped by context."""
        own = options_of(QuestionColumns, columns)
        given = options_of(AnswerFitting, options)
        questions = read_questions(data.train, own, given.unlabelled)
        if data.validation is None:
            questions, held_out = hold_out_contexts(questions, 0.1, data.seed)
        else:
            held_out = read_questions(data.validation, own, given.unlabelled)
        held_out = data.unshared(questions, held_out, given.shared)
        opened = options_of(AnswerOpening, backend.options).max_answer_tokens
        longest = before.max_answer_tokens if before is not None else 30 if opened is None else opened
        outputs = AnswerOutputs(no_answer_index(backend.tokenizer), longest)
        return cls(outputs, given.calibration is not None), questions, held_out

    @override
    def is_compatible_with(self, before: AnswerOutputs) -> bool:
        del before  # the start and end scores mean the same in all models
        return True

    @override
    def loss(self, stored: StoredInputs) -> LabelLoss:
        contexts = [context for _, context in stored.inputs]
        return SpanLoss(contexts, stored.truth, stored.store, self.outputs.no_answer)

    def validate(self, scores: Sequence[SpanScored], truth: Gold) -> Validation:
        """Return exact match and F1 at the best threshold; the score is F1."""
        found = scores_at(scores, truth, threshold_of(scores, truth))
        exact, f1 = float(found.exact_N.mean()), float(found.f1_N.mean())
        return Validation({"exact_match": exact, "f1": f1}, f1, share_error(f1, len(found.f1_N)))

    @property
    def identity(self) -> Identity:
        """The task and the maximum length of an answer."""
        return {"task": QUESTION_ANSWERING.name, "longest answer": self.outputs.max_answer_tokens}

    @override
    def calibrated(self, scores: Sequence[SpanScored], truth: Gold) -> AnswerOutputs:
        return calibrated(self.outputs, scores, truth, temperature=self.calibrates)

    def data_facts(self, stored: StoredInputs) -> dict[str, object]:
        """Return the number of questions without an answer, and SHA-256 of the answers."""
        without = sum(not answers for answers in stored.truth)
        return {"without_answer": without, "answers_sha256": self.loss(stored).digest}

    @property
    def limits(self) -> tuple[str, ...]:
        """Sentences on the limits of the card's metrics."""
        chose = optimistic("questions", "the epoch to keep, the threshold and the temperature")
        always = () if self.outputs.threshold is not None else (ALWAYS_ANSWERS,)
        return chose, *always, LIKE_THESE, NOTICES_NOTHING


def calibrated(
    outputs: AnswerOutputs, scores: Sequence[SpanScored], truth: Gold, *, temperature: bool = True
) -> AnswerOutputs:
    """Fit the threshold, and the temperature if ``temperature`` is true, on held-out questions."""
    threshold = threshold_of(scores, truth)
    confidence = Confidence()
    if temperature:
        right_N = scores_at(scores, truth, threshold).exact_N > 0
        confidence = Confidence(Temperature(fit_answer_temperature(span_table(scores), right_N, threshold)))
    return replace(outputs, threshold=threshold, confidence=confidence)


# --- the loss ---


class SpanLoss:
    """Cross-entropy of the answers' first and last tokens; the windows of a question share its weight of 1.

    The targets of a window are the annotated answers that it contains whole; if there are none, its token for no answer
    (the first or last: ``no_answer`` is 0 or -1). Several answers in a window share the target probability equally, so
    the model learns all of them. Tokens of the question are excluded.
    """

    joint: ClassVar[bool] = False

    def __init__(
        self,
        contexts: Sequence[str],
        answers: Sequence[Sequence[GoldAnswer]],
        store: WindowStore,
        no_answer: int,
    ) -> None:
        self._store = store
        text_W = store.text_of_window
        windows = len(text_W)
        self.weights_W = store.shares_W
        self._possible_T = np.zeros(len(store.ids_T), dtype=bool)
        targets: list[list[tuple[int, int]]] = []
        for window in range(windows):
            places, question = store.places(window), int(text_W[window])
            last = window + 1 == windows or text_W[window + 1] != question
            complete = last and not store.dropped_tokens[question]
            nowhere = no_answer % len(places.sequences_n)
            self._possible_T[store.starts[window] : store.starts[window + 1]] = places.sequences_n == CONTEXT
            self._possible_T[store.starts[window] + nowhere] = True
            context = contexts[question]
            spans = [tokens_of(answer, places, context, last=complete) for answer in answers[question]]
            targets.append([span for span in spans if span is not None] or [(nowhere, nowhere)])
        counts_W = np.array(list(map(len, targets)))
        self._first_W = np.cumsum(counts_W) - counts_W
        self._count_W = counts_W
        self._targets_E2 = np.array([span for spans in targets for span in spans], dtype=np.int64)

    @property
    def digest(self) -> str:
        """A checksum of the answers."""
        return digest_of(self._targets_E2, self._count_W)

    def loss(self, scores: Tensor, windows: Sequence[int]) -> Tensor:
        """Return the weighted sum over windows of the mean cross-entropy of start and end, from token scores (T, 2)."""
        starts, count_B = self._store.starts, self._count_W[list(windows)]
        possible_T = np.concatenate([self._possible_T[starts[each] : starts[each + 1]] for each in windows])
        entries = np.concatenate([self._first_W[each] + np.arange(self._count_W[each]) for each in windows])
        row_E = np.repeat(np.arange(len(windows)), count_B)
        weight_E = (self.weights_W[list(windows)] / (2 * count_B))[row_E].astype(np.float32)
        impossible_T = on_device(~possible_T, scores.device)
        allowed_T2 = scores.masked_fill(impossible_T[:, None], float("-inf"))
        padded_BS2 = to_padded(allowed_T2, self._store.lengths[list(windows)].tolist(), float("-inf"))
        logs_BS2 = padded_BS2.log_softmax(dim=1)
        rows, targets_E2 = (on_device(each, scores.device) for each in (row_E, self._targets_E2[entries]))
        logs_E = logs_BS2[rows, targets_E2[:, 0], 0] + logs_BS2[rows, targets_E2[:, 1], 1]
        return -(logs_E * on_device(weight_E, scores.device)).sum()


def tokens_of(answer: GoldAnswer, places: Places, context: str, *, last: bool) -> tuple[int, int] | None:
    """Return the first and last token of an answer in a window; None if the window does not hold all of it.

    A combining mark after the window's last token belongs to that token. If the context ends in this window (``last``),
    the tokenizer has dropped the characters after the last token; otherwise a later window has their tokens.
    """
    begin = answer.start + len(answer.text) - len(answer.text.lstrip())
    end = answer.end - len(answer.text) + len(answer.text.rstrip())
    inside = np.flatnonzero(places.sequences_n == CONTEXT)
    if not len(inside):
        return None
    begins, ends = places.begins_n[inside], places.ends_n[inside]
    if (places.start > 0 and begin < begins[0]) or (not last and end > behind_marks(context, int(ends[-1]))):
        return None
    first = int(np.searchsorted(ends, begin, side="right"))
    final = int(np.searchsorted(begins, end, side="left")) - 1
    return (int(inside[first]), int(inside[final])) if first <= final else None
