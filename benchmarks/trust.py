"""What our classifiers say of their own answers: do label sets keep their promise, are foreign texts told apart.

No peer offers either, so there is one side; the scores are counted here and not by the package's own evaluation.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness import table

PROMISES = (0.9, 0.95, 0.98)


@dataclass(frozen=True)
class Stated:
    """What a classifier said of one text.

    Attributes:
        sets: The label sets, one for each of `PROMISES`; the most probable label is always in them.
        bare_sets: The same without that rule: some are empty.
        confidence: Probability of the most probable label.
        outside_score: Higher for texts from elsewhere.
        outside: Whether it called the text one from elsewhere.
    """

    sets: tuple[tuple[str, ...], ...]
    bare_sets: tuple[tuple[str, ...], ...]
    confidence: float
    outside_score: float
    outside: bool


def stated(classifier: Any, texts: Sequence[str]) -> list[Stated]:  # noqa: ANN401
    """Ask a trained classifier."""
    if not texts:
        return []
    calibrated = classifier.predict(list(texts))
    labels = list(calibrated[0].probabilities)
    probabilities_NC = np.array([[each.probabilities[label] for label in labels] for each in calibrated])
    sets, bare = (_sets(classifier, labels, probabilities_NC, never_empty=never) for never in (True, False))
    return [
        Stated(kept, kept_bare, each.probability, each.outside_score, each.outside)
        for kept, kept_bare, each in zip(sets, bare, calibrated, strict=True)
    ]


def _sets(
    classifier: Any,  # noqa: ANN401
    labels: Sequence[str],
    probabilities_NC: np.ndarray,
    *,
    never_empty: bool,
) -> list[tuple[tuple[str, ...], ...]]:
    """For each text the label set of each promise, as ``predict`` makes it, or without its rule that none is empty."""
    included = [
        classifier.confidence.conformal.at(promise).includes(probabilities_NC, never_empty=never_empty)
        for promise in PROMISES
    ]
    return [
        tuple(tuple(label for label, kept in zip(labels, row, strict=True) if kept) for row in rows)
        for rows in zip(*included, strict=True)
    ]


def figures(inside: Sequence[Stated], labels: Sequence[str], outside: Sequence[Stated]) -> dict[str, float]:
    """Coverage and size of the label sets; with texts from elsewhere, how well those are told apart."""
    found: dict[str, float] = {}
    for number, promise in enumerate(PROMISES):
        sets = [each.sets[number] for each in inside]
        kept = [label in kept_labels for label, kept_labels in zip(labels, sets, strict=True)]
        found[f"coverage of {promise}"] = float(np.mean(kept))
        bare = [label in each.bare_sets[number] for label, each in zip(labels, inside, strict=True)]
        found[f"coverage of {promise}, empty sets allowed"] = float(np.mean(bare))
        found[f"set size at {promise}"] = float(np.mean([len(each) for each in sets]))
    if outside:
        here, there = ([each.outside_score for each in texts] for texts in (inside, outside))
        found["AUROC"] = area(here, there)
        found["AUROC of softmax"] = area([-each.confidence for each in inside], [-each.confidence for each in outside])
        found["foreign texts flagged"] = float(np.mean([each.outside for each in outside]))
        found["own texts flagged"] = float(np.mean([each.outside for each in inside]))
    return found


def area(lower: Sequence[float], higher: Sequence[float]) -> float:
    """Area under the ROC curve: how often a member of ``higher`` lies above one of ``lower``; ties count half.

    Mann and Whitney 1947.
    """
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(higher, lower).statistic) / (len(lower) * len(higher))


def trust_table(runs: Sequence[dict[str, Any]]) -> str:
    """Means over the seeds, a line for each data set; a column that some seeds lack says of how many it is."""
    names = list(dict.fromkeys(name for run in runs for name in run["trust"]))
    rows = []
    for dataset in dict.fromkeys(run["dataset"] for run in runs):
        kept = [run["trust"] for run in runs if run["dataset"] == dataset]
        rows.append([f"{dataset} ({len(kept)} seeds)", *(_mean_of(kept, name) for name in names)])
    return table(("data", *names), rows)


def _mean_of(runs: Sequence[dict[str, float]], name: str) -> str:
    """Over the runs that have it."""
    found = [run[name] for run in runs if name in run]
    of = "" if len(found) == len(runs) else f" (of {len(found)})"
    return f"{statistics.mean(found):.4f}{of}" if found else ""
