"""How good vectors are: whether their cosines follow scores, and whether what belongs together is found first.

Shape letters: N rows, P pairs of them, R bootstrap resamples.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bothways.errors import InvalidInput
from bothways.evaluation.bootstrap import CHUNK_CELLS, Estimate, bootstrap_estimates
from bothways.evaluation.inputs import FloatArray, real_array
from bothways.evaluation.reading import TextsRead
from bothways.evaluation.regression import correlated_vectors, weighted_pearson, weighted_spearman
from bothways.evaluation.report import estimate_table, flat_estimates, reading_values


@dataclass(frozen=True)
class SimilarityReport:
    """How well cosines follow the scores of pairs.

    Attributes:
        n: pairs.
        pearson: linear correlation.
        spearman: rank correlation.
        reading: how much of the texts was read; None where the report is of numbers alone.
    """

    n: int
    pearson: Estimate
    spearman: Estimate
    reading: TextsRead | None = None

    def estimates(self) -> dict[str, Estimate]:
        """The numbers that carry an interval, by name."""
        return {"pearson": self.pearson, "spearman": self.spearman}

    def to_dict(self) -> dict[str, object]:
        """JSON-ready: ``pearson``, ``pearson_low``, ``pearson_high`` and so on."""
        return {"n": self.n, **flat_estimates(self.estimates()), **reading_values(self.reading)}

    def summary(self) -> str:
        """A short table of values and 95 % intervals."""
        return estimate_table(f"{self.n} pairs", self.estimates(), self.reading)


@dataclass(frozen=True)
class RankingReport:
    """How early texts find what belongs to them among all others.

    Attributes:
        n: texts that looked.
        accuracy: share of them that found it at rank 1.
        mrr: mean reciprocal rank of the first that belongs to them.
        reading: how much of the texts was read; None where the report is of numbers alone.
    """

    n: int
    accuracy: Estimate
    mrr: Estimate
    reading: TextsRead | None = None

    def estimates(self) -> dict[str, Estimate]:
        """The numbers that carry an interval, by name."""
        return {"accuracy": self.accuracy, "mrr": self.mrr}

    def to_dict(self) -> dict[str, object]:
        """JSON-ready: ``accuracy``, ``accuracy_low``, ``accuracy_high`` and so on."""
        return {"n": self.n, **flat_estimates(self.estimates()), **reading_values(self.reading)}

    def summary(self) -> str:
        """A short table of values and 95 % intervals."""
        return estimate_table(f"{self.n} texts", self.estimates(), self.reading)


@dataclass(frozen=True)
class AgreementReport:
    """How far an embedder finds the same texts alike as another.

    Attributes:
        n: texts.
        spearman: rank correlation of the cosines of each text with each other, the one's with the other's.
    """

    n: int
    spearman: Estimate

    def estimates(self) -> dict[str, Estimate]:
        """The numbers that carry an interval, by name."""
        return {"spearman_with_teacher": self.spearman}


def similarity_report(
    scores_N: ArrayLike, cosines_N: ArrayLike, *, resamples: int = 1000, seed: int = 0
) -> SimilarityReport:
    """Evaluate cosines of pairs that people scored.

    Raises:
        InvalidInput: empty, not finite, of different lengths, fewer than three, or scores or cosines are all equal.
    """
    scores, cosines = correlated_vectors(scores_N, cosines_N)

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
        lambda counts_RN: counts_RN @ values_NK / len(ranks),
        len(ranks),
        resamples=resamples,
        seed=seed,
        of_rows=len(ranks),
    )
    return RankingReport(len(ranks), accuracy=accuracy, mrr=mrr)


def agreement_report(
    theirs_NN: FloatArray, ours_NN: FloatArray, *, resamples: int = 200, seed: int = 0
) -> AgreementReport:
    """Evaluate the cosines of all pairs of texts against those of another embedder.

    Texts are resampled and not pairs, for the pairs of one text belong together; a text that is drawn twice makes no
    pair with itself.

    Args:
        theirs_NN: Cosines of each text with each.
        ours_NN: Those of the other embedder.
        resamples: Of the texts; fewer than elsewhere, as one takes 20 ms of 512 texts.
        seed: Of the resamples.

    Raises:
        InvalidInput: Fewer than three pairs, or the cosines of either are all equal.
    """
    first_P, second_P = np.triu_indices(len(theirs_NN), 1)
    theirs_P, ours_P = correlated_vectors(theirs_NN[first_P, second_P], ours_NN[first_P, second_P])
    chunk = max(1, CHUNK_CELLS // len(theirs_P))

    def of_chunk(counts_RN: FloatArray) -> FloatArray:
        counts_RP = counts_RN[:, first_P] * counts_RN[:, second_P]
        # A resample of one text alone has no pairs and says nothing; it counts as the whole.
        counts_RP[~counts_RP.any(axis=1)] = 1.0
        return weighted_spearman(theirs_P, ours_P, counts_RP)

    def statistic(counts_RN: FloatArray) -> FloatArray:
        chunks = [of_chunk(counts_RN[start : start + chunk]) for start in range(0, len(counts_RN), chunk)]
        return np.concatenate(chunks)[:, None]

    (spearman,) = bootstrap_estimates(statistic, len(theirs_NN), resamples=resamples, seed=seed)
    return AgreementReport(len(theirs_NN), spearman)
