"""Targets of question answering: the right start and end in each window of a question.

A window that holds an annotated answer whole points to it; one that holds none points to its token for no answer. If
several answers were annotated, start and end are spread equally over all that the window holds: the model learns
that each is right, and how certain to be. Tokens of the question are excluded.

Shapes: N questions, W windows, B windows of a batch, S tokens of the longest window, T tokens, E targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from bothways.data.windows import WindowStore, digest_of
from bothways.tasks.question_answering.questions import GoldAnswer
from bothways.tasks.question_answering.spans import CONTEXT
from bothways.text import Places, behind_marks

if TYPE_CHECKING:
    from torch import Tensor

Tokens = tuple[int, int]


class SpanLoss:
    """Targets of the windows of a store; windows of the same question share its weight of 1.

    Args:
        contexts: The contexts of the questions.
        answers: The annotated answers of each question.
        store: Questions and contexts, with the offsets of their tokens.
        no_answer: Index of the token for no answer in each window, 0 or -1.
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
        self._share_W = 1.0 / np.bincount(text_W)[text_W]
        self._possible_T = np.zeros(len(store.ids_T), dtype=bool)
        targets: list[list[Tokens]] = []
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

    def weights(self, windows: Sequence[int]) -> NDArray[np.float64]:
        """Return each window's share of the weight of its question (B)."""
        shares_B: NDArray[np.float64] = self._share_W[list(windows)]
        return shares_B

    def loss(self, scores: Tensor, windows: Sequence[int]) -> Tensor:
        """Return the sum over windows of the mean cross-entropy of start and end, weighted with the window's share.

        Args:
            scores: Scores of the tokens of all windows (T, 2).
            windows: Numbers of the windows in the store.
        """
        from bothways.devices import on_device
        from bothways.packing import to_padded

        starts, count_B = self._store.starts, self._count_W[list(windows)]
        possible_T = np.concatenate([self._possible_T[starts[each] : starts[each + 1]] for each in windows])
        entries = np.concatenate([self._first_W[each] + np.arange(self._count_W[each]) for each in windows])
        row_E = np.repeat(np.arange(len(windows)), count_B)
        weight_E = (self.weights(windows) / (2 * count_B))[row_E].astype(np.float32)
        impossible_T = on_device(~possible_T, scores.device)
        allowed_T2 = scores.masked_fill(impossible_T[:, None], float("-inf"))
        padded_BS2 = to_padded(allowed_T2, self._store.lengths[list(windows)].tolist(), float("-inf"))
        logs_BS2 = padded_BS2.log_softmax(dim=1)
        rows, targets_E2 = (on_device(each, scores.device) for each in (row_E, self._targets_E2[entries]))
        logs_E = logs_BS2[rows, targets_E2[:, 0], 0] + logs_BS2[rows, targets_E2[:, 1], 1]
        return -(logs_E * on_device(weight_E, scores.device)).sum()


def tokens_of(answer: GoldAnswer, places: Places, context: str, *, last: bool) -> Tokens | None:
    """Return the first and last token of an answer in a window; None if the window does not hold all of it.

    Args:
        answer: The answer.
        places: Places of the window's tokens in the context.
        context: The context; a mark behind the window's last token belongs to that token.
        last: Whether the context ends in this window. Then characters behind its last token have no token at all (the
            tokenizer drops them), rather than one in a later window.
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
