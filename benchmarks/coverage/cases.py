"""What is simulated: proportions, means, differences, strata, quantiles, and labelled rows that are not random.

Each function returns rows of a table with the coverage and the mean width of the intervals of one method.

Shape letters: D draws, n labelled rows, N others.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.coverage.draws import (
    ARES,
    Judge,
    Population,
    draw_counts,
    draw_numbers,
    draw_pairs,
    draw_scores,
    joined,
    moments_of_counts,
    moments_of_rows,
    populations,
    samples_of_counts,
)
from bothways.choices import PowerCorrection, PpiMethod
from bothways.evaluation.prediction_powered import Sample, estimate_mean, estimate_quantile
from bothways.evaluation.prediction_powered.checks import SHIFT_LEVEL, shift_p_value
from bothways.evaluation.prediction_powered.located import (
    PAIRED_WEIGHT,
    Ends,
    Located,
    locate,
    shared_weight,
    weighted_sum,
)
from bothways.evaluation.prediction_powered.samples import Moments

LABELS = (20, 50, 150, 300)
UNLABELLED = 2_000
LEVEL = 0.95
BINARY = Ends(0.0, 1.0, 0.0, 1.0)

METHODS: dict[str, tuple[PpiMethod, PowerCorrection]] = {
    "ppi++": ("ppi++", "small-sample"),
    "ppi++, uncorrected": ("ppi++", "none"),
    "ppi": ("ppi", "small-sample"),
    "ppi, uncorrected": ("ppi", "none"),
    "classical": ("classical", "small-sample"),
    "classical, uncorrected": ("classical", "none"),
}

Row = dict[str, Any]


def proportions(draws: int, generator: np.random.Generator) -> list[Row]:
    """Proportions with a judge that decides 0 or 1."""
    rows = []
    for labels in LABELS:
        for population in populations():
            moments = _moments(population, labels, draws, generator)
            for name, (method, correction) in METHODS.items():
                located = locate(moments, BINARY, method=method, correction=correction)
                rows.append({**_about(population, labels), "method": name, **_covered(located, population.rate)})
    return rows


def bootstrap(draws: int, generator: np.random.Generator) -> list[Row]:
    """The bootstrap on some of the same populations."""
    rows = []
    for labels in LABELS:
        for population in populations():
            if population.rate != 0.8 or population.accuracy not in (0.6, 0.8, 0.95) or population.bias == "strict":
                continue
            counts = draw_counts(population, labels, UNLABELLED, draws, generator)
            found = [
                estimate_mean(sample, method="bootstrap", seed=seed)
                for seed, sample in enumerate(samples_of_counts(*counts, UNLABELLED))
            ]
            ends = [(each.low, each.high) for each in found]
            rows.append({**_about(population, labels), "method": "bootstrap", **_held(ends, population.rate)})
    return rows


def scores(draws: int, generator: np.random.Generator) -> list[Row]:
    """Proportions by a judge's probabilities, and means of numbers."""
    cases = {
        "0/1, probabilities of a judge of accuracy .9": (draw_scores, 1.28, 0.8, (0.0, 1.0)),
        "0/1, probabilities of a judge of accuracy .7": (draw_scores, 0.52, 0.8, (0.0, 1.0)),
        "skewed numbers, correlation .95": (draw_numbers, 0.46, 2.0, None),
        "skewed numbers, correlation .45": (draw_numbers, 2.8, 2.0, None),
    }
    rows = []
    for labels in LABELS:
        for name, (draw, setting, truth, bounds) in cases.items():
            blocks, least, most = [], [], []
            for start in range(0, draws, 500):
                labels_D, judged_D = draw(setting, (min(500, draws - start), labels + UNLABELLED), generator)
                blocks.append(moments_of_rows(labels_D[:, :labels], judged_D[:, :labels], judged_D[:, labels:]))
                least.append(judged_D.min(axis=1))
                most.append(judged_D.max(axis=1))
            moments = joined(blocks)
            ends = None if bounds is None else Ends(*bounds, np.concatenate(least), np.concatenate(most))
            for method, (kind, correction) in METHODS.items():
                located = locate(moments, ends, method=kind, correction=correction)
                rows.append({"labels": labels, "case": name, "method": method, **_covered(located, truth)})
    return rows


def differences(draws: int, generator: np.random.Generator) -> list[Row]:
    """Two systems on the same questions, where their successes depend on each other, or on questions of their own."""
    rows = []
    for labels in LABELS:
        for rates in ((0.8, 0.8), (0.9, 0.8), (0.75, 0.7)):
            for accuracy in (0.6, 0.8, 0.95):
                about = {"labels": labels, "rates": list(rates), "accuracy": accuracy}
                truth = rates[0] - rates[1]
                apart = [_moments(Population(rate, accuracy, "generous"), labels, draws, generator) for rate in rates]
                paired = draw_pairs(rates, accuracy, labels, UNLABELLED, draws, generator)
                for name, (method, correction) in METHODS.items():
                    located = _each(apart, method, correction)
                    found = _covered(weighted_sum(located, (1.0, -1.0)), truth)
                    rows.append({**about, "pairing": "unpaired", "method": name, **found})
                    ends = Ends(-1.0, 1.0, -1.0, 1.0)
                    one = locate(paired, ends, method=method, correction=correction, weight=PAIRED_WEIGHT)
                    rows.append({**about, "pairing": "paired", "method": name, **_covered(one, truth)})
    return rows


def strata(draws: int, generator: np.random.Generator) -> list[Row]:
    """Equal strata with equally many labels, of different rates; the judge is better on some."""
    rows = []
    for count, each in ((2, 10), (2, 75), (5, 10), (5, 30), (10, 10), (10, 30)):
        rates, accuracies = np.linspace(0.6, 0.95, count), np.linspace(0.7, 0.95, count)
        unlabelled = UNLABELLED // count
        parts = []
        for rate, accuracy in zip(rates, accuracies, strict=True):
            population = Population(float(rate), float(accuracy), "none")
            drawn = draw_counts(population, each, unlabelled, draws, generator)
            parts.append(moments_of_counts(*drawn, unlabelled))
        for name, (method, correction) in METHODS.items():
            located = weighted_sum(_each(parts, method, correction), [1 / count] * count)
            found = _covered(located, float(rates.mean()))
            rows.append({"strata": count, "labels": each, "method": name, **found})
    return rows


def quantiles(draws: int, generator: np.random.Generator) -> list[Row]:
    """The median and the 90th percentile of skewed numbers."""
    from scipy.stats import gamma

    rows = []
    for labels in LABELS:
        labels_D, judged_D = draw_numbers(0.46, (draws, labels + UNLABELLED), generator)
        pairs = zip(labels_D, judged_D, strict=True)
        samples = [Sample(known[:labels], judged[:labels], judged[labels:]) for known, judged in pairs]
        for probability in (0.5, 0.9):
            truth = float(gamma.ppf(probability, 2.0))
            for name in ("ppi++", "ppi++, uncorrected", "ppi, uncorrected", "classical"):
                method, correction = METHODS[name]
                found = [estimate_quantile(one, probability, method=method, correction=correction) for one in samples]
                held = _held([(each.low, each.high) for each in found], truth)
                rows.append({"labels": labels, "probability": probability, "method": name, **held})
    return rows


def not_at_random(draws: int, generator: np.random.Generator) -> list[Row]:
    """Labelled rows with another rate than the rest, and labelled rows on which the judge is better."""
    easy = Judge(sensitivity=0.95, specificity=0.95)
    rows = []
    for labels in (50, 150, 300):
        for rate, labelled_rate in ((0.65, 0.65), (0.65, 0.60), (0.65, 0.55), (0.65, 0.50), (0.65, 0.44), (0.55, 0.44)):
            about = {"case": f"rate {rate:.2f}, of the labelled rows {labelled_rate:.2f}", "labels": labels}
            rows.append({**about, **_shifted(labels, (labelled_rate, ARES), (rate, ARES), draws, generator)})
        about = {"case": "rate 0.65; judge 95 % right on labelled rows, 79 % on the rest", "labels": labels}
        rows.append({**about, **_shifted(labels, (0.65, easy), (0.65, ARES), draws, generator)})
    return rows


def _shifted(
    labels: int,
    labelled: tuple[float, Judge],
    others: tuple[float, Judge],
    draws: int,
    generator: np.random.Generator,
) -> Row:
    unlabelled = 4_081  # As in the published example.
    counts_D4 = generator.multinomial(labels, labelled[1].cells(labelled[0]), size=draws).astype(float)
    share = float(others[1].cells(others[0])[[0, 2]].sum())
    ones_D = generator.binomial(unlabelled, share, size=draws).astype(float)
    moments = moments_of_counts(counts_D4, ones_D, unlabelled)
    samples = samples_of_counts(counts_D4, ones_D, unlabelled)
    warned = float(np.mean([shift_p_value(each) < SHIFT_LEVEL for each in samples]))
    row: Row = {"warned": warned}
    for name, (method, correction) in (("ppi++", METHODS["ppi++"]), ("ppi", METHODS["ppi, uncorrected"])):
        located = locate(moments, BINARY, method=method, correction=correction)
        row[name] = {"value": float(located.value.mean()), **_covered(located, others[0])}
    return row


def _moments(population: Population, labels: int, draws: int, generator: np.random.Generator) -> Moments:
    return moments_of_counts(*draw_counts(population, labels, UNLABELLED, draws, generator), UNLABELLED)


def _each(parts: Sequence[Moments], method: PpiMethod, correction: PowerCorrection) -> list[Located]:
    weight = shared_weight(len(parts))
    return [locate(each, BINARY, method=method, correction=correction, weight=weight) for each in parts]


def _about(population: Population, labels: int) -> Row:
    return {
        "labels": labels,
        "rate": population.rate,
        "accuracy": population.accuracy,
        "bias": population.bias,
    }


def _covered(located: Located, truth: float) -> Row:
    low_D, high_D = located.interval(LEVEL)
    return _held(np.stack([low_D, high_D], axis=1).tolist(), truth)


def _held(ends: Sequence[Sequence[float]], truth: float) -> Row:
    # A bound that is the truth but for rounding holds it.
    low_D, high_D = np.asarray(ends, dtype=float).T
    held_D = (low_D <= truth + 1e-12) & (truth - 1e-12 <= high_D)
    return {"coverage": float(held_D.mean()), "width": float((high_D - low_D).mean())}
