"""Metrics of a masked language model on masked tokens.

Shape letters: N texts, R bootstrap resamples.
"""

from dataclasses import dataclass

import numpy as np

from bothways.evaluation.inputs import FloatArray
from bothways.evaluation.outcomes import Outcomes
from bothways.evaluation.report import Report


@dataclass(frozen=True)
class TokenLosses:
    """Losses of masked tokens, summed over each text."""

    losses_N: FloatArray  # negative log-probabilities of the tokens, in nats
    right_N: FloatArray  # tokens that were predicted right
    tokens_N: FloatArray  # masked tokens; at least one in all


def token_outcomes(losses: TokenLosses) -> Outcomes:
    """Return the outcomes of masked tokens; texts are resampled with all of their tokens."""

    def statistic(counts_RN: FloatArray) -> FloatArray:
        # A resample without masked tokens counts as the whole.
        tokens_R = counts_RN @ losses.tokens_N
        empty_R = tokens_R == 0
        counts_RN = np.where(empty_R[:, None], 1.0, counts_RN)
        tokens_R = counts_RN @ losses.tokens_N
        loss_R = counts_RN @ losses.losses_N / tokens_R
        return np.stack([loss_R, np.exp(loss_R), counts_RN @ losses.right_N / tokens_R], axis=1)

    texts, tokens = len(losses.tokens_N), int(losses.tokens_N.sum())
    return Outcomes(
        frame=Report(
            kind="masked language modelling",
            title=f"{texts} texts, {tokens} masked tokens",
            counts={"n": texts, "tokens": tokens},
        ),
        truth=losses.tokens_N,
        metrics=("loss", "perplexity", "accuracy"),
        statistic=statistic,
        of_rows=[0, 0, texts],
    )
