"""How well a masked language model predicts the tokens that it was asked about.

Shape letters: N texts, R bootstrap resamples.
"""

import math
from dataclasses import dataclass

import numpy as np

from bothways.evaluation.bootstrap import bootstrap_estimates
from bothways.evaluation.inputs import FloatArray
from bothways.evaluation.report import MaskedLMReport


@dataclass(frozen=True)
class TokenLosses:
    """What masked tokens of texts cost, summed over each text.

    Attributes:
        losses_N: negative log-probabilities of the tokens, in nats.
        right_N: tokens that were thought the likeliest.
        tokens_N: tokens that were asked about; at least one in all.
    """

    losses_N: FloatArray
    right_N: FloatArray
    tokens_N: FloatArray


def masked_lm_metrics(losses: TokenLosses) -> dict[str, float]:
    """``loss`` (mean over the tokens), ``perplexity`` (its exponential) and ``accuracy``."""
    tokens = losses.tokens_N.sum()
    loss = float(losses.losses_N.sum() / tokens)
    return {"loss": loss, "perplexity": math.exp(loss), "accuracy": float(losses.right_N.sum() / tokens)}


def masked_lm_report(losses: TokenLosses, *, resamples: int = 1000, seed: int = 0) -> MaskedLMReport:
    """The metrics with intervals over the texts: a text is drawn with all of its tokens.

    Raises:
        InvalidInput: no texts or no resamples.
    """

    def statistic(counts_RN: FloatArray) -> FloatArray:
        # A resample of texts without a token that was asked about says nothing; it counts as the whole.
        tokens_R = counts_RN @ losses.tokens_N
        empty_R = tokens_R == 0
        counts_RN = np.where(empty_R[:, None], 1.0, counts_RN)
        tokens_R = counts_RN @ losses.tokens_N
        loss_R = counts_RN @ losses.losses_N / tokens_R
        return np.stack([loss_R, np.exp(loss_R), counts_RN @ losses.right_N / tokens_R], axis=1)

    texts = len(losses.tokens_N)
    loss, perplexity, accuracy = bootstrap_estimates(
        statistic, texts, resamples=resamples, seed=seed, of_rows=[0, 0, texts]
    )
    return MaskedLMReport(texts, int(losses.tokens_N.sum()), loss, perplexity, accuracy)
