"""How good vectors are: whether their cosines follow scores, and whether what belongs together is found first.

Shape letters: N rows, R bootstrap resamples.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bothways.errors import InvalidInput
from bothways.evaluation.bootstrap import Estimate, bootstrap_estimates
from bothways.evaluation.inputs import FloatArray, paired_vectors, real_array
from bothways.evaluation.regression import weighted_pearson, weighted_spearman


@dataclass(frozen=True)
class SimilarityReport:
    """How well cosines follow the scores of pairs.

    Attributes:
        n: pairs.
        pearson: linear correlation; 0.0 if undefined.
        spearman: rank correlation; 0.0 if undefined.
    """

    n: int
    pearson: Estimate
    spearman: Estimate

    def to_dict(self) -> dict[str, object]:
        """JSON-ready: ``pearson``, ``pearson_low``, ``pearson_high`` and so on."""
        return {"n": self.n, **self.pearson.named("pearson"), **self.spearman.named("spearman")}

    def summary(self) -> str:
        """A short table of values and 95 % intervals."""
        return _table(f"{self.n} pairs", {"pearson": self.pearson, "spearman": self.spearman})


@dataclass(frozen=True)
class RankingReport:
    """How early texts find what belongs to them among all others.

    Attributes:
        n: texts that looked.
        accuracy: share of them that found it at rank 1.
        mrr: mean reciprocal rank of the first that belongs to them.
    """

    n: int
    accuracy: Estimate
    mrr: Estimate

    def to_dict(self) -> dict[str, object]:
        """JSON-ready: ``accuracy``, ``accuracy_low``, ``accuracy_high`` and so on."""
        return {"n": self.n, **self.accuracy.named("accuracy"), **self.mrr.named("mrr")}

    def summary(self) -> str:
        """A short table of values and 95 % intervals."""
        return _table(f"{self.n} texts", {"accuracy": self.accuracy, "mrr": self.mrr})


def similarity_report(
    scores_N: ArrayLike, cosines_N: ArrayLike, *, resamples: int = 1000, seed: int = 0
) -> SimilarityReport:
    """Evaluate cosines of pairs that people scored.

    Raises:
        InvalidInput: empty, not finite, or of different lengths.
    """
    scores, cosines = paired_vectors(scores_N, cosines_N)

    def statistic(counts_RN: FloatArray) -> FloatArray:
        return np.column_stack(
            [weighted_pearson(scores, cosines, counts_RN), weighted_spearman(scores, cosines, counts_RN)]
        )

    pearson, spearman = bootstrap_estimates(statistic, len(scores), resamples=resamples, seed=seed)
    return SimilarityReport(len(scores), pearson=pearson, spearman=spearman)


def ranking_report(reciprocal_ranks_N: ArrayLike, *, resamples: int = 1000, seed: int = 0) -> RankingReport:
    """Evaluate ranks, given as 1 / rank of the first text that belongs to the one that looked.

    Raises:
        InvalidInput: empty, or not above 0 and up to 1.
    """
    ranks = real_array(reciprocal_ranks_N, "reciprocal ranks", dimensions=1)
    if ranks.min() <= 0 or ranks.max() > 1:
        raise InvalidInput(
            f"reciprocal ranks: expected numbers above 0 and up to 1, got {ranks.min()} to {ranks.max()}"
        )
    values_NK = np.column_stack([ranks == 1, ranks])
    accuracy, mrr = bootstrap_estimates(
        lambda counts_RN: counts_RN @ values_NK / len(ranks), len(ranks), resamples=resamples, seed=seed
    )
    return RankingReport(len(ranks), accuracy=accuracy, mrr=mrr)


def _table(title: str, estimates: Mapping[str, Estimate]) -> str:
    lines = [f"{name:<8}  {each.value:8.4f}  [{each.low:.4f}, {each.high:.4f}]" for name, each in estimates.items()]
    return "\n".join([f"{title}; 95 % intervals", *lines])
