"""Pairs that rank: first texts, as questions, each with relevant and irrelevant second texts.

Accuracy is a poor measure of a ranking, since most pairs of a question are irrelevant; the order counts.

Shapes: N pairs, C outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bothways.data import Example
from bothways.tasks.heads.targets import Logits, SingleLabel, Target, Truth

# Pairs of a first text, on average, from which on pairs are a ranking: fewer are premises with a hypothesis or two.
_FEWEST = 3.0


@dataclass(frozen=True, slots=True, eq=False)
class PairRanking:
    """The questions of held-out pairs.

    Attributes:
        questions_N: Number of each pair's question.
        relevant: Number of the label of relevant pairs: the rarer of the two.
    """

    questions_N: NDArray[np.int64]
    relevant: int

    @classmethod
    def of(cls, target: Target, pairs: Sequence[Example[object]]) -> Self | None:
        """Return the questions of held-out pairs; None if they are not a ranking.

        They are a ranking if there are two labels, and most pairs belong to questions with both labels and on average
        three pairs or more.
        """
        if not isinstance(target, SingleLabel) or target.outputs != 2:
            return None
        truth_N = target.encode(pairs)
        numbers: dict[str, int] = {}
        questions_N = np.array([numbers.setdefault(each.text[0], len(numbers)) for each in pairs], np.int64)
        rows_Q, positive_Q = np.bincount(questions_N), np.bincount(questions_N, truth_N)
        telling_Q = (positive_Q > 0) & (positive_Q < rows_Q)
        if not telling_Q.any() or rows_Q[telling_Q].mean() < _FEWEST or rows_Q[telling_Q].sum() < len(pairs) / 2:
            return None
        return cls(questions_N, int(truth_N.mean() <= 0.5))

    def validate(self, logits_NC: Logits, truth_N: Truth) -> tuple[float, float]:
        """Return the mean average precision over the questions that have both labels, and its standard error."""
        from sklearn.metrics import average_precision_score

        if not np.isfinite(logits_NC).all():
            return float("nan"), 0.0
        scores_N = logits_NC[:, self.relevant] - logits_NC[:, 1 - self.relevant]
        order_N = np.argsort(self.questions_N, kind="stable")
        parts = np.split(order_N, np.cumsum(np.bincount(self.questions_N))[:-1])
        telling = [part for part in parts if 0 < truth_N[part].sum() < len(part)]
        values = [average_precision_score(truth_N[part] == self.relevant, scores_N[part]) for part in telling]
        error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
        return float(np.mean(values)), float(error)
