"""Coverage of our classifiers' label sets, and detection of foreign texts by several detectors.

No peer offers either, so there is one side; the scores are counted here and not by the package's own evaluation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness import table
from benchmarks.spread import spread

COVERAGES = (0.9, 0.95, 0.98)
KEPT = 0.95  # share of the validation texts below every threshold, the default of ours


@dataclass(frozen=True)
class Stated:
    """The answer of a classifier to one text.

    Attributes:
        sets: Its label sets, one for each of `COVERAGES`; the most probable label is always in them.
        bare_sets: The same without that rule: some are empty.
    """

    sets: tuple[tuple[str, ...], ...]
    bare_sets: tuple[tuple[str, ...], ...]


def stated(classifier: Any, texts: Sequence[str]) -> list[Stated]:  # noqa: ANN401
    """Ask a trained classifier."""
    if not texts:
        return []
    calibrated = classifier.predict(list(texts))
    labels = list(calibrated[0].probabilities)
    probabilities_NC = np.array([[each.probabilities[label] for label in labels] for each in calibrated])
    sets, bare = (_sets(classifier, labels, probabilities_NC, never_empty=never) for never in (True, False))
    return [Stated(kept, kept_bare) for kept, kept_bare in zip(sets, bare, strict=True)]


def _sets(
    classifier: Any,  # noqa: ANN401
    labels: Sequence[str],
    probabilities_NC: np.ndarray,
    *,
    never_empty: bool,
) -> list[tuple[tuple[str, ...], ...]]:
    """Return each text's label sets, as ``predict`` makes them or without its rule that none is empty."""
    included = [
        classifier.confidence.conformal.at(coverage).includes(probabilities_NC, never_empty=never_empty)
        for coverage in COVERAGES
    ]
    return [
        tuple(tuple(label for label, kept in zip(labels, row, strict=True) if kept) for row in rows)
        for rows in zip(*included, strict=True)
    ]


def coverage(inside: Sequence[Stated], labels: Sequence[str]) -> dict[str, float]:
    """Return coverage and size of the label sets."""
    found: dict[str, float] = {}
    for number, wanted in enumerate(COVERAGES):
        sets = [each.sets[number] for each in inside]
        kept = [label in kept_labels for label, kept_labels in zip(labels, sets, strict=True)]
        found[f"coverage of {wanted}"] = float(np.mean(kept))
        bare = [label in each.bare_sets[number] for label, each in zip(labels, inside, strict=True)]
        found[f"coverage of {wanted}, empty sets allowed"] = float(np.mean(bare))
        found[f"set size at {wanted}"] = float(np.mean([len(each) for each in sets]))
    return found


def detection(
    classifier: Any,  # noqa: ANN401
    texts: Mapping[str, Sequence[str]],
    foreign: Mapping[str, Sequence[str]],
) -> dict[str, dict[str, dict[str, float]]]:
    """Return how well each detector tells foreign texts from the test texts.

    All detectors read the same model; each threshold keeps as many of the validation texts as the default one's.

    Args:
        classifier: A trained classifier.
        texts: Its ``train``, ``validation`` and ``test`` texts.
        foreign: Texts from elsewhere, by where they are from.

    Returns:
        By kind of text and detector the ``AUROC`` and the share ``flagged``; of the test texts, ``own``, the share.
    """
    from bothways.confidence.confidence import OutOfDomain
    from bothways.evaluation import Energy, MaxSoftmax, Neighbours

    def evidence(of_texts: Sequence[str]) -> Any:  # noqa: ANN401
        return classifier.fitted.outputs.evidence(list(classifier.fitted.scores(of_texts, show_progress=False)))

    validation, test = evidence(texts["validation"]), evidence(texts["test"])
    features = evidence(texts["train"]).features_NLD
    default = classifier.confidence.out_of_domain
    detectors = {f"{default.kind} (default)": default}
    for name, detector in {
        "energy": Energy(),
        "neighbours": Neighbours.fit(features, min(10, len(features))),
        "softmax": MaxSoftmax(),
    }.items():
        detectors[name] = OutOfDomain.fit_threshold(detector, validation, KEPT)
    own = {name: each.detector.score(test) for name, each in detectors.items()}
    shares = {name: {"flagged": float((own[name] > each.threshold).mean())} for name, each in detectors.items()}
    found = {"own": shares}
    for kind, of_kind in foreign.items():
        there, found[kind] = evidence(of_kind), {}
        for name, each in detectors.items():
            scores = each.detector.score(there)
            flagged = float((scores > each.threshold).mean())
            found[kind][name] = {"AUROC": area(own[name].tolist(), scores.tolist()), "flagged": flagged}
    return found


def area(lower: Sequence[float], higher: Sequence[float]) -> float:
    """Area under the ROC curve: how often a member of ``higher`` lies above one of ``lower``; ties count half.

    Mann and Whitney 1947.
    """
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(higher, lower).statistic) / (len(lower) * len(higher))


def trust_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return coverage and set sizes, a line for each data set and side."""
    names = list(dict.fromkeys(name for run in runs for name in run["trust"]))
    rows = [
        [*_named(of_side), *(spread([run["trust"][name] for run in of_side]) for name in names)]
        for of_side in _grouped(runs)
    ]
    return table(("data", "side", *names), rows)


def detection_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return AUROC and shares flagged, a line for each data set, side and kind of text, a column for each detector."""
    rows = []
    for of_side in _grouped(runs):
        detectors = list(of_side[0]["out_of_domain"]["own"])
        for kind in of_side[0]["out_of_domain"]:
            cells = [[run["out_of_domain"][kind][name] for run in of_side] for name in detectors]
            rows.append([*_named(of_side), "its test texts" if kind == "own" else kind, *map(_detected, cells)])
    return table(("data", "side", "texts", *detectors), rows)


def _detected(found: Sequence[Mapping[str, float]]) -> str:
    flagged = f"flagged {spread([each['flagged'] for each in found])}"
    return f"{spread([each['AUROC'] for each in found])}, {flagged}" if "AUROC" in found[0] else flagged


def _grouped(runs: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The runs of each data set and side."""
    keys = dict.fromkeys((run["dataset"], run["side"]) for run in runs)
    return [[run for run in runs if (run["dataset"], run["side"]) == key] for key in keys]


def _named(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"{runs[0]['dataset']} ({len(runs)} seeds)", runs[0]["side"]]
