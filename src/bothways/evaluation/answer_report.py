"""The report on extractive question answering: exact match, F1, and how far probabilities can be trusted.

Shapes: N questions, R resamples, B reliability bins, K statistics.
"""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike

from bothways.errors import InvalidInput
from bothways.evaluation.answers import AnswerScores, SquadVersion
from bothways.evaluation.bootstrap import Estimate, bootstrap_values, percentile_estimates
from bothways.evaluation.inputs import FloatArray, probability_array
from bothways.evaluation.reading import TextsRead
from bothways.evaluation.reliability import (
    BINS,
    ReliabilityBin,
    calibration_error_interval,
    equal_mass_bins,
    reliability_bins,
)
from bothways.evaluation.report import estimate_table, flat_estimates


@dataclass(frozen=True)
class AnsweringReport:
    """How well questions are answered.

    Attributes:
        n: questions.
        version: of SQuAD, whose rules were taken.
        exact_match: share answered exactly, from 0 to 1.
        f1: mean F1 of the words, from 0 to 1.
        ece: expected calibration error of the probability that an answer is an exact match.
        has_answer: questions that have an answer.
        no_answer: questions that have none.
        has_answer_exact_match: of the questions that have an answer; None where there are none.
        has_answer_f1: likewise.
        no_answer_accuracy: share of the questions without an answer that were given none; None where there are none.
        reliability: bins of equal mass.
        reading: what was read in windows, and what was not read; None where nobody counted.
    """

    n: int
    version: SquadVersion
    exact_match: Estimate
    f1: Estimate
    ece: Estimate
    has_answer: int
    no_answer: int
    has_answer_exact_match: Estimate | None
    has_answer_f1: Estimate | None
    no_answer_accuracy: Estimate | None
    reliability: tuple[ReliabilityBin, ...]
    reading: TextsRead | None = None

    def estimates(self) -> dict[str, Estimate]:
        """The numbers that carry an interval, by name."""
        known = {
            "exact_match": self.exact_match,
            "f1": self.f1,
            "has_answer_exact_match": self.has_answer_exact_match,
            "has_answer_f1": self.has_answer_f1,
            "no_answer_accuracy": self.no_answer_accuracy,
            "ece": self.ece,
        }
        return {name: estimate for name, estimate in known.items() if estimate is not None}

    def to_dict(self) -> dict[str, object]:
        """JSON-ready: ``exact_match``, ``exact_match_low``, ``exact_match_high`` and so on, then the bins."""
        return {
            "n": self.n,
            "squad_version": self.version,
            "has_answer": self.has_answer,
            "no_answer": self.no_answer,
            **flat_estimates(self.estimates()),
            "reliability": [asdict(each) for each in self.reliability],
            **({} if self.reading is None else {"reading": self.reading.to_dict()}),
        }

    def summary(self) -> str:
        """A short table of values and 95 % intervals."""
        without = f", {self.no_answer} of them without an answer" if self.no_answer else ""
        return estimate_table(f"{self.n} questions{without}", self.estimates(), self.reading)


def answering_report(
    scores: AnswerScores, probability_N: ArrayLike, *, resamples: int = 1000, seed: int = 0, bins: int = BINS
) -> AnsweringReport:
    """Gather the scores of questions, with 95 % bootstrap intervals over questions.

    In a resample that draws no question of a kind, the mean over that kind counts as 0.

    Args:
        scores: From `score_answers`.
        probability_N: Stated probability that each answer is an exact match.
        resamples: Bootstrap resamples.
        seed: Of the resamples.
        bins: Reliability bins to aim at.

    Raises:
        InvalidInput: The probabilities are none, or not one for each question.
    """
    stated_N = probability_array(probability_N, "probabilities", dimensions=1)
    n, has_N = len(scores.exact_N), scores.has_answer_N.astype(np.float64)
    if len(stated_N) != n:
        raise InvalidInput(f"probabilities: expected one for each of {n} questions, got {len(stated_N)}")
    lacks_N = 1 - has_N
    value_N5 = np.stack(
        [scores.exact_N, scores.f1_N, scores.exact_N * has_N, scores.f1_N * has_N, scores.exact_N * lacks_N], axis=1
    )
    kind_N5 = np.stack([np.ones(n), np.ones(n), has_N, has_N, lacks_N], axis=1)
    bin_N = equal_mass_bins(stated_N, bins)
    gap_NB = np.eye(bin_N.max() + 1)[bin_N] * (scores.exact_N - stated_N)[:, None] / n

    def statistic(counts_RN: FloatArray) -> FloatArray:
        means_R5 = (counts_RN @ value_N5) / np.maximum(counts_RN @ kind_N5, 1)
        return np.concatenate([means_R5, counts_RN @ gap_NB], axis=1)

    value_K = statistic(np.ones((1, n)))[0]
    values_RK = bootstrap_values(statistic, n, resamples=resamples, seed=seed)
    exact, f1, has_exact, has_f1, none = percentile_estimates(
        value_K[:5], values_RK[:, :5], of_rows=kind_N5.sum(axis=0)
    )
    interval = calibration_error_interval(value_K[5:], values_RK[:, 5:])
    answered = int(has_N.sum())
    return AnsweringReport(
        n=n,
        version=scores.version,
        exact_match=exact,
        f1=f1,
        ece=Estimate(float(np.abs(value_K[5:]).sum()), interval.low, interval.high),
        has_answer=answered,
        no_answer=n - answered,
        has_answer_exact_match=has_exact if answered else None,
        has_answer_f1=has_f1 if answered else None,
        no_answer_accuracy=none if answered < n else None,
        reliability=reliability_bins(stated_N, scores.exact_N, bins),
    )
