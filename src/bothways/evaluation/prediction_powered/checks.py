"""Warnings, in sentences, of what makes a prediction-powered interval doubtful."""

import numpy as np

from bothways.choices import PowerCorrection, PpiMethod
from bothways.evaluation.prediction_powered.samples import Sample

FEW_LABELS = 30
LARGE_BIAS = 0.1
"""Bias of the judge that is called large, on the scale of labels from 0 to 1."""

SHIFT_LEVEL = 0.01
"""Two-sample tests below this p-value warn: one in a hundred random samples does."""

SIGNIFICANT = 2.0
"""Standard errors from which a bias counts."""


def estimate_warnings(
    sample: Sample, *, name: str, method: PpiMethod, correction: PowerCorrection, bounded: bool
) -> list[str]:
    """Collect the warnings about one sample.

    Args:
        sample: Labelled and judged rows.
        name: That of a system or stratum, or empty.
        method: Of the estimate.
        correction: Of its interval.
        bounded: True if the labels have two known ends, so that the correction has pseudo-rows.
    """
    corrected = correction == "small-sample" and method != "bootstrap"
    found = [_few_labels(len(sample.labels), corrected, bounded), _one_value(sample)]
    if method != "classical" and not len(sample.unlabelled_judge_scores):
        found.append("there are no rows without labels: the judge adds nothing to the labels.")
    elif method != "classical":
        found += [_useless_judge(sample), _bias(sample), _shift(sample)]
    return [f"{name}: {sentence}" if name else sentence for sentence in found if sentence]


def power_warning(labels: int, effective_labels: float, method: PpiMethod) -> list[str]:
    """Say that a judge that counts in full makes the interval wider."""
    if method != "ppi" or effective_labels >= labels:
        return []
    return [
        f"with the judge in full, {labels} labels are worth {effective_labels:.0f}, less than the labels alone: "
        "use method 'ppi++', which weighs the judge by what it adds."
    ]


def shift_p_value(sample: Sample) -> float:
    """P-value of the judge's scores on labelled rows having another distribution than on the rest.

    Fisher's exact test of scores with two values, else the Kolmogorov-Smirnov test; 1 without unlabelled rows.
    """
    from scipy.stats import fisher_exact, ks_2samp

    judge_n, judge_N = sample.judge_scores, sample.unlabelled_judge_scores
    if not len(judge_N):
        return 1.0
    values = np.unique(np.concatenate([judge_n, judge_N]))
    if len(values) == 1:
        return 1.0
    if len(values) > 2:
        return float(ks_2samp(judge_n, judge_N).pvalue)
    here, there = int((judge_n == values[1]).sum()), int((judge_N == values[1]).sum())
    return float(fisher_exact([[here, len(judge_n) - here], [there, len(judge_N) - there]]).pvalue)


def _few_labels(count: int, corrected: bool, bounded: bool) -> str:
    """Figures: benchmarks/results/2026-11-25-coverage.md, the lowest coverage with 20 labels."""
    if count >= FEW_LABELS:
        return ""
    if not corrected:
        worth = "such 95 % intervals, without a correction for few labels, held in as few as 59 % of samples"
    elif bounded:
        worth = "such 95 % intervals held the truth in 94 % of samples or more, but they are wide"
    else:
        worth = "such 95 % intervals of skewed numbers held the truth in 93 % of samples"
    return f"{count} labels are fewer than {FEW_LABELS}: in simulations with 20 labels {worth}; label more rows."


def _one_value(sample: Sample) -> str:
    if np.ptp(sample.labels) > 0:
        return ""
    return (
        f"all {len(sample.labels)} labels are {sample.labels[0]:g}: they do not show how often the judge is wrong "
        "on the other kind of row; label more rows."
    )


def _useless_judge(sample: Sample) -> str:
    if np.ptp(sample.labels) == 0:
        return ""
    if np.ptp(sample.judge_scores) == 0:
        return "the judge gives every labelled row the same score: it adds nothing to the labels."
    correlation = float(np.corrcoef(sample.labels, sample.judge_scores)[0, 1])
    if correlation * np.sqrt(len(sample.labels)) > SIGNIFICANT:
        return ""
    return (
        f"the judge's correlation with the {len(sample.labels)} labels is {correlation:.2f}, which chance could give: "
        "it adds next to nothing to the labels."
    )


def _bias(sample: Sample) -> str:
    judge_scores = np.concatenate([sample.judge_scores, sample.unlabelled_judge_scores])
    if not sample.binary or judge_scores.min() < 0 or judge_scores.max() > 1:
        return ""
    errors_n = sample.judge_scores - sample.labels
    bias = float(errors_n.mean())
    error = float(errors_n.std()) / np.sqrt(len(errors_n))
    if abs(bias) < LARGE_BIAS or abs(bias) < SIGNIFICANT * error:
        return ""
    side = "above" if bias > 0 else "below"
    return (
        f"the judge's scores are on average {abs(bias):.2f} {side} the labels: the estimate corrects this, "
        "the judge's own mean does not."
    )


def _shift(sample: Sample) -> str:
    p_value = shift_p_value(sample)
    if p_value >= SHIFT_LEVEL:
        return ""
    return (
        f"the judge scores labelled rows differently from the others (mean {sample.judge_scores.mean():.2f} and "
        f"{sample.unlabelled_judge_scores.mean():.2f}, p = {p_value:.1g}): the labelled rows are perhaps not a random "
        "sample, and then the interval does not hold; label rows drawn at random."
    )
