"""Metrics of out-of-domain detection, for a score that is to separate texts of a domain from other texts.

Scores are higher for rows that are less like the domain. AUROC is the probability that an out-of-domain row scores
above an in-domain row, ties counting half. AUPR is the average precision for the out-of-domain rows, so it depends on
their share. FPR at 95 % is the share of out-of-domain rows accepted at the threshold that accepts 95 % of the in-domain
rows (Liang et al. 2018, arXiv:1706.02690).

Shape letters: N in-domain rows, M out-of-domain rows, G distinct scores, R bootstrap resamples.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from bothways.evaluation.inputs import FloatArray, real_array
from bothways.evaluation.intervals import check_draws, percentile_estimates, resampled_counts
from bothways.evaluation.metrics.classification import group_sums
from bothways.evaluation.report import Report

KEPT = 0.95
_CHUNK = 50
"""Resamples computed at once."""


def out_of_domain_report(
    inside_N: ArrayLike, outside_M: ArrayLike, *, threshold: float | None = None, resamples: int = 1000, seed: int = 0
) -> Report:
    """Evaluate a score by ``auroc``, ``aupr`` and ``fpr95``, with 95 % bootstrap intervals.

    In-domain (N) and out-of-domain rows (M) are resampled separately; rows above the threshold count as out-of-domain.
    """
    inside, outside = _scores(inside_N, outside_M)
    check_draws(resamples, seed)
    values_G, group_N = np.unique(np.concatenate([inside, outside]), return_inverse=True)
    group_of_inside, group_of_outside = group_N[: len(inside)], group_N[len(inside) :]

    def statistic(inside_RN: FloatArray, outside_RM: FloatArray) -> FloatArray:
        inside_RG = group_sums(inside_RN, group_of_inside, len(values_G))
        outside_RG = group_sums(outside_RM, group_of_outside, len(values_G))
        return np.column_stack(
            [_auroc(inside_RG, outside_RG), _aupr(inside_RG, outside_RG), _fpr(inside_RG, outside_RG)]
        )

    value_K = statistic(np.ones((1, len(inside))), np.ones((1, len(outside))))[0]
    values_RK = []
    for start in range(0, resamples, _CHUNK):
        size = min(_CHUNK, resamples - start)
        # Each chunk and each kind of row has its own seed, so that no draws are repeated.
        seeds = np.random.SeedSequence([seed, start]).generate_state(2).tolist()
        counts = [
            np.concatenate(list(resampled_counts(rows, resamples=size, seed=each)))
            for rows, each in zip((len(inside), len(outside)), seeds, strict=True)
        ]
        values_RK.append(statistic(*counts))
    fewer = min(len(inside), len(outside))
    auroc_, aupr_, fpr = percentile_estimates(value_K, np.concatenate(values_RK), of_rows=fewer)
    if aupr_.value == 1:  # a perfect score is above chance level, which is the share of out-of-domain rows
        aupr_ = replace(aupr_, low=max(aupr_.low, len(outside) / (len(inside) + len(outside))))
    accepted = passed = None
    notes: tuple[str, ...] = ()
    if threshold is not None:
        accepted, passed = float((inside <= threshold).mean()), float((outside <= threshold).mean())
        notes = (f"accepted as in-domain: {accepted:.1%} of in-domain rows, {passed:.1%} of out-of-domain rows",)
    return Report(
        kind="out-of-domain detection",
        title=f"{len(inside)} in-domain rows, {len(outside)} out-of-domain rows",
        counts={"n_in_domain": len(inside), "n_out_of_domain": len(outside)},
        estimates={"auroc": auroc_, "aupr": aupr_, "fpr95": fpr},
        values={"threshold": threshold, "accepted_in_domain": accepted, "accepted_out_of_domain": passed},
        notes=notes,
    )


def auroc(inside_N: ArrayLike, outside_M: ArrayLike) -> float:
    """Return the area under the ROC curve for scores of in-domain (N) and out-of-domain rows (M)."""
    inside, outside = _scores(inside_N, outside_M)
    values_G, group_N = np.unique(np.concatenate([inside, outside]), return_inverse=True)
    counts = (
        np.bincount(groups, minlength=len(values_G)).astype(np.float64)[None]
        for groups in (group_N[: len(inside)], group_N[len(inside) :])
    )
    return float(_auroc(*counts)[0])


def _scores(inside_N: ArrayLike, outside_M: ArrayLike) -> tuple[FloatArray, FloatArray]:
    inside = real_array(inside_N, "in-domain scores", dimensions=1)
    return inside, real_array(outside_M, "out-of-domain scores", dimensions=1)


def _auroc(inside_RG: FloatArray, outside_RG: FloatArray) -> FloatArray:
    below_RG = inside_RG.cumsum(axis=1) - inside_RG / 2
    area_R: FloatArray = (outside_RG * below_RG).sum(axis=1) / inside_RG.sum(axis=1) / outside_RG.sum(axis=1)
    return area_R


def _aupr(inside_RG: FloatArray, outside_RG: FloatArray) -> FloatArray:
    caught_RG = outside_RG[:, ::-1].cumsum(axis=1)
    called_RG = caught_RG + inside_RG[:, ::-1].cumsum(axis=1)
    precision_RG = np.divide(caught_RG, called_RG, out=np.zeros_like(caught_RG), where=called_RG > 0)
    average_R: FloatArray = (precision_RG * outside_RG[:, ::-1]).sum(axis=1) / outside_RG.sum(axis=1)
    return average_R


def _fpr(inside_RG: FloatArray, outside_RG: FloatArray) -> FloatArray:
    inside_sums_RG = inside_RG.cumsum(axis=1)
    # The counts are whole numbers; 1e-9 allows for rounding of the product.
    reached_RG = inside_sums_RG >= KEPT * inside_sums_RG[:, -1:] - 1e-9
    first_R = reached_RG.argmax(axis=1)
    passed_RG = outside_RG.cumsum(axis=1)
    share_R: FloatArray = passed_RG[np.arange(len(first_R)), first_R] / passed_RG[:, -1]
    return share_R
