"""A judge held against human labels: accuracy, AUROC, calibration, and whether it orders systems as people do.

Shapes: N labelled triples, S systems.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bothways.evaluation import Estimate, Report, class_outcomes, out_of_domain_report
from bothways.judging.triples import Triple


@dataclass(frozen=True, slots=True)
class JudgeDisagreement:
    """A labelled triple that the judge is confident about, against its label.

    Attributes:
        triple: The row.
        probability: That it is good, according to the judge.
    """

    triple: Triple
    probability: float

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        return {
            "where": self.triple.where,
            "system": self.triple.system,
            "query": self.triple.query,
            "passage": self.triple.passage,
            "answer": self.triple.answer,
            "label": self.triple.label,
            "probability": self.probability,
        }


@dataclass(frozen=True, slots=True)
class JudgeReport:
    """Agreement of a judge with human labels.

    Attributes:
        report: Accuracy, F1, Brier score and calibration error, with intervals.
        auroc: How often a good triple has a higher probability than a bad one; None where all labels are the same.
        tau: Kendall's tau between the systems' mean probability and their mean label; None with fewer than two systems.
        systems: Mean label and mean probability of each system.
        disagreements: The most confident ones, most confident first.
    """

    report: Report
    auroc: Estimate | None
    tau: float | None
    systems: Mapping[str, tuple[float, float]]
    disagreements: tuple[JudgeDisagreement, ...]

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        found = self.report.to_dict()
        found |= {"auroc": None} if self.auroc is None else self.auroc.named("auroc")
        systems = {name: {"labels": truth, "judge": stated} for name, (truth, stated) in self.systems.items()}
        shown = [each.to_dict() for each in self.disagreements]
        return {**found, "kendall_tau": self.tau, "systems": systems, "disagreements": shown}

    def summary(self) -> str:
        """Return the figures, a line each."""
        named = {**self.report.estimates, **({} if self.auroc is None else {"auroc": self.auroc})}
        lines = [f"{name:<12} {each.value:.4f}  [{each.low:.4f}, {each.high:.4f}]" for name, each in named.items()]
        lines += [f"kendall_tau  {self.tau:.4f}  over {len(self.systems)} systems"] if self.tau is not None else []
        return "\n".join(lines)


def judge_report(
    labelled: Sequence[Triple],
    stated_N: NDArray[np.float64],
    *,
    most: int = 10,
    resamples: int = 1000,
    seed: int = 0,
) -> JudgeReport:
    """Return how well probabilities agree with the labels of triples.

    Args:
        labelled: Triples with labels.
        stated_N: The probability that each is good.
        most: Disagreements to keep.
        resamples: Bootstrap resamples.
        seed: Of the bootstrap.
    """
    label_N = np.array([each.label for each in labelled], np.int64)
    both_NC = np.column_stack([1 - stated_N, stated_N])
    report = class_outcomes(("0", "1"), label_N, both_NC).report(resamples=resamples, seed=seed)
    parts = stated_N[label_N == 0], stated_N[label_N == 1]
    auroc = None
    if all(map(len, parts)):
        auroc = out_of_domain_report(*parts, resamples=resamples, seed=seed).estimates["auroc"]
    rows: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for triple, label, stated in zip(labelled, label_N.tolist(), stated_N.tolist(), strict=True):
        if triple.system is not None:
            rows[triple.system].append((label, stated))
    means = {name: tuple(np.mean(each, axis=0).tolist()) for name, each in rows.items()}
    tau = tau_of(*zip(*means.values(), strict=True)) if len(means) > 1 else None
    return JudgeReport(report, auroc, tau, means, confident_disagreements(labelled, stated_N, most))


def confident_disagreements(
    labelled: Sequence[Triple], stated_N: NDArray[np.float64], most: int
) -> tuple[JudgeDisagreement, ...]:
    """Return the labelled triples that the judge is most confident about and wrong, most confident first."""
    label_N = np.array([each.label for each in labelled], np.float64)
    gap_N = np.abs(stated_N - label_N)
    order = np.argsort(-gap_N, kind="stable")[:most].tolist()
    return tuple(
        JudgeDisagreement(labelled[number], float(stated_N[number])) for number in order if gap_N[number] > 0.5
    )


def tau_of(first_S: ArrayLike, second_S: ArrayLike) -> float | None:
    """Return Kendall's tau-b of two orders of systems; None if one of them ties all."""
    from scipy.stats import kendalltau

    if np.ptp(first_S) == 0 or np.ptp(second_S) == 0:
        return None
    return float(kendalltau(first_S, second_S).statistic)
