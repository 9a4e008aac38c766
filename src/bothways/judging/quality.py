"""The agreement of a judge with human labels: accuracy, AUROC, calibration, and the order of systems.

Shapes: N labelled triples, S systems.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bothways.evaluation.intervals import Estimate
from bothways.evaluation.metrics.classification import class_outcomes
from bothways.evaluation.out_of_domain import out_of_domain_report
from bothways.evaluation.report import Report
from bothways.judging.triples import Triple


@dataclass(frozen=True, slots=True)
class JudgeDisagreement:
    """A labelled triple that the judge is confident about, against its label."""

    triple: Triple
    probability: float  # the judge's probability that it is good

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        names = ("where", "system", "query", "passage", "answer", "label")
        return {**{name: getattr(self.triple, name) for name in names}, "probability": self.probability}


@dataclass(frozen=True, slots=True)
class JudgeReport:
    """The agreement of a judge with human labels."""

    report: Report  # accuracy, F1, Brier score and calibration error, with intervals
    # How often a good triple has a higher probability than a bad one; None if all labels are the same.
    auroc: Estimate | None
    # Kendall's tau between the systems' mean probability and their mean label; None for fewer than two systems.
    tau: float | None
    systems: Mapping[str, tuple[float, float]]  # mean label and mean probability of each system
    disagreements: tuple[JudgeDisagreement, ...]  # the most confident ones, most confident first

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        auroc = {"auroc": None} if self.auroc is None else self.auroc.named("auroc")
        systems = {name: {"labels": label, "judge": mean} for name, (label, mean) in self.systems.items()}
        shown = [each.to_dict() for each in self.disagreements]
        return {**self.report.to_dict(), **auroc, "kendall_tau": self.tau, "systems": systems, "disagreements": shown}

    def summary(self) -> str:
        """Return the figures, one per line."""
        named = {**self.report.estimates, **({} if self.auroc is None else {"auroc": self.auroc})}
        lines = [f"{name:<12} {each.value:.4f}  [{each.low:.4f}, {each.high:.4f}]" for name, each in named.items()]
        lines += [f"kendall_tau  {self.tau:.4f}  over {len(self.systems)} systems"] if self.tau is not None else []
        return "\n".join(lines)


def judge_report(
    labelled: Sequence[Triple],
    probability_N: NDArray[np.float64],
    *,
    disagreements: int = 10,
    resamples: int = 1000,
    seed: int = 0,
) -> JudgeReport:
    """Compare probabilities with the labels of triples.

    Args:
        labelled: Triples with labels.
        probability_N: The probability that each is good.
        disagreements: Maximum number of disagreements to keep.
        resamples: Bootstrap resamples.
        seed: Seed of the bootstrap.
    """
    label_N = np.array([each.label for each in labelled], np.int64)
    both_NC = np.column_stack([1 - probability_N, probability_N])
    report = class_outcomes(("0", "1"), label_N, both_NC).report(resamples=resamples, seed=seed)
    parts = probability_N[label_N == 0], probability_N[label_N == 1]
    auroc = None
    if all(map(len, parts)):
        auroc = out_of_domain_report(*parts, resamples=resamples, seed=seed).estimates["auroc"]
    rows: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for triple, label, probability in zip(labelled, label_N.tolist(), probability_N.tolist(), strict=True):
        if triple.system is not None:
            rows[triple.system].append((label, probability))
    means = {name: tuple(np.mean(each, axis=0).tolist()) for name, each in rows.items()}
    tau = tau_of(*zip(*means.values(), strict=True)) if len(means) > 1 else None
    gap_N = np.abs(probability_N - label_N)
    confident = [number for number in np.argsort(-gap_N, kind="stable")[:disagreements].tolist() if gap_N[number] > 0.5]
    wrong = tuple(JudgeDisagreement(labelled[number], float(probability_N[number])) for number in confident)
    return JudgeReport(report, auroc, tau, means, wrong)


def tau_of(first_S: ArrayLike, second_S: ArrayLike) -> float | None:
    """Return Kendall's tau-b of two orders of systems; None if one of them ties all."""
    from scipy.stats import kendalltau

    if np.ptp(first_S) == 0 or np.ptp(second_S) == 0:
        return None
    return float(kendalltau(first_S, second_S).statistic)
