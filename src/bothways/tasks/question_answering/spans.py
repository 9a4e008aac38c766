"""Search for the best answer spans of a context, given the scores of the tokens in all its windows.

The score of a span is its log odds against no answer in its window::

    start[i] + end[j] - (start[n] + end[n])        n: the window's token for no answer

The denominators of both softmaxes cancel, so spans of different windows are comparable; no answer always scores 0.

Shapes: n tokens of one window, T context tokens in all windows, L tokens of the longest allowed span, N questions,
K candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from bothways.evaluation.metrics.question_answering import answer_probabilities
from bothways.tasks.scores import Count, Probability, TaskPrediction, TokensRead
from bothways.text import Places, behind_marks, is_mark

N = TypeVar("N", np.float64, np.int64)

CONTEXT = 1
"""Index of the context in the pair of texts that the model reads."""


CANDIDATES = 20
"""Number of best spans in the softmax that gives the probabilities; no answer is its last entry."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span of a context in characters, without white space around it and with its last character's combining marks.

    Its score is its log odds against no answer.
    """

    start: int
    end: int
    score: float


class SpanScores:
    """The scores of all spans of up to ``longest`` tokens, from each token's scores as start and as end (n, 2).

    ``no_answer`` is the index of the token for no answer in each window, 0 or -1.
    """

    def __init__(
        self,
        context: str,
        rows: Sequence[NDArray[np.floating]],
        places: Sequence[Places],
        *,
        no_answer: int,
        longest: int,
    ) -> None:
        self._context = context
        self._windows = len(rows)
        inside = [np.flatnonzero(each.sequences_n == CONTEXT) for each in places]
        self._begins_T = np.concatenate([each.begins_n[at] for each, at in zip(places, inside, strict=True)])
        stated_T = np.concatenate([each.ends_n[at] for each, at in zip(places, inside, strict=True)])
        self._ends_T = _behind_marks(context, stated_T)
        longest = min(longest, max(1, *map(len, inside)))
        starts_T = np.concatenate([row[at, 0] - row[no_answer].sum() for row, at in zip(rows, inside, strict=True)])
        ends_T = np.concatenate([row[at, 1] for row, at in zip(rows, inside, strict=True)])
        # Row t holds the spans that begin at token t, by their length.
        self._scores_TL = starts_T.astype(np.float64)[:, None] + _ahead(ends_T.astype(np.float64), longest, -np.inf)
        if self._windows > 1:
            window_T = np.repeat(np.arange(self._windows), list(map(len, inside)))
            self._scores_TL[_ahead(window_T, longest, -1) != window_T[:, None]] = -np.inf

    def best(self, count: int) -> list[Span]:
        """Return the best ``count`` different spans, best first; they may overlap."""
        # A span may occur in every window, and several times in one window, with and without white space around it.
        wanted = count * self._windows
        found = self._first(wanted, count)
        while len(found) < count and wanted < self._scores_TL.size:
            wanted *= 4
            found = self._first(wanted, count)
        return found

    def _first(self, wanted: int, count: int) -> list[Span]:
        """Return up to ``count`` different spans, found among the ``wanted`` highest scores."""
        scores = self._scores_TL.ravel()
        skipped = max(0, len(scores) - wanted)
        chosen = np.argpartition(scores, skipped)[skipped:] if skipped else np.arange(len(scores))
        chosen = chosen[np.isfinite(scores[chosen])]
        chosen = chosen[np.lexsort((chosen, -scores[chosen]))]
        first, further = np.divmod(chosen, self._scores_TL.shape[1])
        found: dict[tuple[int, int], float] = {}
        for begin, end, score in zip(
            self._begins_T[first].tolist(), self._ends_T[first + further].tolist(), scores[chosen].tolist(), strict=True
        ):
            begin, end = self._trimmed(begin, end)
            if begin < end:
                found.setdefault((begin, end), score)
            if len(found) == count:
                break
        return [Span(begin, end, score) for (begin, end), score in found.items()]

    def apart(self, count: int) -> list[Span]:
        """Return the best ``count`` spans that do not overlap, best first."""
        scores_TL = self._scores_TL.copy()
        found: list[Span] = []
        while len(found) < count and scores_TL.size:
            first, further = divmod(int(scores_TL.argmax()), scores_TL.shape[1])
            score = float(scores_TL[first, further])
            if not np.isfinite(score):
                break
            begin, end = self._trimmed(int(self._begins_T[first]), int(self._ends_T[first + further]))
            scores_TL[first, further] = -np.inf
            if begin < end:
                found.append(Span(begin, end, score))
                scores_TL[self._touching(begin, end, scores_TL.shape[1])] = -np.inf
        return found

    def _touching(self, begin: int, end: int, longest: int) -> NDArray[np.bool_]:
        """Return a mask (T, L) of the spans that overlap these characters."""
        taken_T = (self._begins_T < end) & (self._ends_T > begin)
        before_T: NDArray[np.int64] = np.cumsum(taken_T) - taken_T
        touching_TL: NDArray[np.bool_] = _ahead(before_T + taken_T, longest, 0) > before_T[:, None]
        return touching_TL

    def _trimmed(self, begin: int, end: int) -> tuple[int, int]:
        text = self._context[begin:end]
        if all(map(is_mark, text.strip())):  # combining marks of the character before the span
            return begin, begin
        return begin + len(text) - len(text.lstrip()), end - len(text) + len(text.rstrip())


def _behind_marks(context: str, ends_T: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the tokens' ends (T), each moved past the combining marks that the tokenizer drops after it."""
    if context.isascii():
        return ends_T
    return np.fromiter((behind_marks(context, end) for end in ends_T.tolist()), np.int32, len(ends_T))


def _ahead(values_T: NDArray[N], longest: int, fill: float) -> NDArray[N]:
    """Return for each token its own value and the values of the next L - 1 tokens (T, L)."""
    filled = np.concatenate([values_T, np.full(longest, fill, dtype=values_T.dtype)])
    ahead_TL: NDArray[N] = sliding_window_view(filled, longest)[: len(values_T)]
    return ahead_TL


# --- answers ---


@dataclass(frozen=True, slots=True)
class Answer(TaskPrediction):
    """An answer span: ``context[start:end] == text``.

    Attributes:
        text: The answer.
        start: Offset of its first character in the context, in code points.
        end: Offset just past its last character.
        probability: Probability that an annotator would have marked exactly this span, ignoring articles and
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
    """The answer to a question, or the decision that the context has none.

    Attributes:
        answer: The answer, copied from the context; null if the model decides that there is none.
        start: Offset of its first character in the context, in code points; null without an answer.
        end: Offset just past its last character; null without an answer.
        probability: Probability that this decision is right; calibrated if the model is.
        no_answer_probability: Probability that the context has no answer; null for models trained without unanswerable
            questions.
        answers: The best ``top`` answers that do not overlap, best first; given even if ``answer`` is null.
        tokens_read: Number of windows that the context was read in, and tokens dropped from it.
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
    """A question's candidate spans, best first, before a decision.

    The candidates may overlap; ``apart`` has the best spans that do not overlap, up to the requested number of answers.
    """

    context: str
    candidates: tuple[Span, ...]
    apart: tuple[Span, ...]

    @classmethod
    def of(cls, context: str, scores: SpanScores, top: int) -> FoundSpans:
        """Find the best spans, and the ``top`` best spans that do not overlap."""
        best = tuple(scores.best(CANDIDATES))
        return cls(context, best, best[:1] if top == 1 else tuple(scores.apart(top)))

    @property
    def best(self) -> str:
        """Text of the best span; empty if there is none."""
        return self.context[self.candidates[0].start : self.candidates[0].end] if self.candidates else ""


def answered(found: FoundSpans, read: TokensRead, threshold: float | None, temperature: float) -> QuestionAnswer:
    """Return the answer to a question, given the best spans in its context.

    If ``threshold`` is None, an answer is always returned. ``temperature`` divides the scores.
    """
    context, best = found.context, found.candidates
    probabilities = answer_probabilities(candidate_scores([best]), threshold, temperature)[0]
    nothing = float(probabilities[-1])
    # An answer outside the candidates is less likely than each of them, so it hardly changes their probabilities.
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
    """Return the scores of each question's candidates (N, K), padded with minus infinity.

    K is at least `CANDIDATES`.
    """
    scores_NK = np.full((len(candidates), max([CANDIDATES, *map(len, candidates)])), -np.inf)
    for row, spans in enumerate(candidates):
        scores_NK[row, : len(spans)] = [span.score for span in spans]
    return scores_NK
