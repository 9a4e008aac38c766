"""Measures of how well a score tells members from non-members, with bootstrap intervals.

Carlini et al. 2022, arXiv:2112.03570: a mean over all rows hides an attack that is sure of a few, so the true positive
rate at low false positive rates stands beside the AUC.

Shapes: M members, N non-members, R resamples, F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from bothways.evaluation import out_of_domain_report
from bothways.evaluation.intervals import Estimate
from bothways.evaluation.out_of_domain import auroc
from bothways.text import Words

Numbers = NDArray[np.float64]

RESAMPLES = 500
_RATES = (0.01, 0.001)
_FEATURES, _FOLDS = 512, 5


@dataclass(frozen=True, slots=True)
class Separation:
    """The measures of one score.

    Attributes:
        auc: Area under the ROC curve.
        rates: True positive rate by the false positive rate that it is read at.
        chance: AUC below which 99 % of draws stay where membership is drawn by lot.
    """

    auc: Estimate
    rates: dict[float, Estimate]
    chance: float

    @classmethod
    def of(cls, members_M: Numbers, others_N: Numbers, rng: np.random.Generator) -> "Separation":
        """Measure the scores of members and of non-members; higher ones say "member"."""
        seed = int(rng.integers(2**31))
        report = out_of_domain_report(others_N, members_M, resamples=RESAMPLES, seed=seed)
        drawn = [(rng.choice(members_M, len(members_M)), rng.choice(others_N, len(others_N))) for _ in range(RESAMPLES)]
        rates = {}
        for rate in _RATES:
            values_R = [true_positives(some, others, rate) for some, others in drawn]
            low, high = np.quantile(values_R, [0.025, 0.975])
            rates[rate] = Estimate(true_positives(members_M, others_N, rate), float(low), float(high))
        together, cut = np.concatenate([members_M, others_N]), len(members_M)
        mixed = (rng.permutation(together) for _ in range(RESAMPLES))
        chance = float(np.quantile([auroc(each[cut:], each[:cut]) for each in mixed], 0.99))
        return cls(report.auroc, rates, chance)

    def details(self) -> dict[str, float]:
        """Return the numbers as flat JSON values."""
        numbers = self.auc.named("auc")
        for rate, each in self.rates.items():
            numbers |= each.named(f"tpr_at_{100 * rate:g}_percent_fpr")
        return numbers


def true_positives(members_M: Numbers, others_N: Numbers, rate: float) -> float:
    """Return the share of members above the threshold that at most a share of non-members passes."""
    passing = int(rate * len(others_N))
    threshold = np.sort(others_N)[::-1][passing]
    return float((members_M > threshold).mean())


def blind_scores(texts: Sequence[str], member_N: NDArray[np.bool_], rng: np.random.Generator) -> Numbers:
    """Return scores of membership from the words alone, by cross-validation; no model is asked.

    Where they tell members from others, the two sets differ by themselves, and attacks say little (Das et al. 2024,
    Blind baselines beat membership inference attacks for foundation models, arXiv:2406.16201).

    Args:
        texts: Members and non-members.
        member_N: Which are members.
        rng: Draws the folds.
    """
    features_NF = np.zeros((len(texts), _FEATURES + 1))
    for row, text in enumerate(texts):
        words = [word.lower() for word in Words.of_text(text).listed()]
        for word in words:
            features_NF[row, crc32(word.encode()) % _FEATURES] = 1.0
        features_NF[row, _FEATURES] = np.log1p(len(words))
    features_NF -= features_NF.mean(axis=0)
    fold_N = rng.permutation(len(texts)) % _FOLDS
    scores_N = np.zeros(len(texts))
    for fold in range(_FOLDS):
        held_N = fold_N == fold
        inside = features_NF[~held_N]
        wanted = member_N[~held_N] - member_N[~held_N].mean()
        kernel = inside @ inside.T + 10.0 * np.eye(len(inside))
        scores_N[held_N] = features_NF[held_N] @ (inside.T @ np.linalg.solve(kernel, wanted))
    return scores_N
