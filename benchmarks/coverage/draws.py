"""Many samples at once, drawn from populations whose truth is known.

Shape letters: D draws, n labelled rows, N others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bothways.evaluation.inputs import FloatArray
from bothways.evaluation.prediction_powered.samples import Moments, Sample

ACCURACIES = (0.6, 0.7, 0.8, 0.9, 0.95)
RATES = (0.7, 0.8, 0.9)
BIASES = ("none", "strict", "generous")


@dataclass(frozen=True)
class Judge:
    """A judge that decides 0 or 1.

    Attributes:
        sensitivity: Share of rows labelled 1 that it gives a 1.
        specificity: Share of rows labelled 0 that it gives a 0.
    """

    sensitivity: float
    specificity: float

    def cells(self, rate: float) -> FloatArray:
        """Probabilities of (label, decision) where ``rate`` of the labels are 1: (1, 1), (1, 0), (0, 1), (0, 0)."""
        right, zeros = rate * self.sensitivity, (1 - rate) * self.specificity
        return np.array([right, rate - right, 1 - rate - zeros, zeros])


ARES = Judge(sensitivity=0.8305, specificity=0.7205)
"""The judge of the counter-example in the tracker of ARES (pull request 51 of stanford-futuredata/ARES).

It follows from its two accuracies there: .781 where .55 of the answers are relevant, .792 where .65 are.
"""


@dataclass(frozen=True)
class Population:
    """Rows with 0 or 1 as the label, and the judge's decision on them.

    Attributes:
        rate: Share of ones.
        accuracy: Of the judge.
        bias: ``none`` (as many false ones as false zeros), ``strict`` (errors are false zeros as far as possible: up
            to 90 %) or ``generous`` (false ones).
    """

    rate: float
    accuracy: float
    bias: str

    @property
    def judge(self) -> Judge:
        """The judge with that accuracy and bias."""
        wrong = 1 - self.accuracy
        if self.bias == "none":
            false_zero = wrong / 2
        elif self.bias == "strict":
            false_zero = 0.9 * wrong
        else:
            false_zero = wrong - min(0.9 * wrong, 0.9 * (1 - self.rate))
        return Judge(1 - false_zero / self.rate, 1 - (wrong - false_zero) / (1 - self.rate))


def populations() -> Iterator[Population]:
    """All that are possible: a judge's errors of one kind are at most the rows of that kind."""
    for accuracy in ACCURACIES:
        for rate in RATES:
            for bias in BIASES:
                found = Population(rate, accuracy, bias)
                if min(found.judge.sensitivity, found.judge.specificity) >= 0:
                    yield found


def draw_counts(
    population: Population, labels: int, unlabelled: int, draws: int, generator: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Counts of the labelled cells (D, 4) and of ones among the decisions on the other rows (D,)."""
    cells = population.judge.cells(population.rate)
    counts_D4 = generator.multinomial(labels, cells, size=draws).astype(np.float64)
    ones_D = generator.binomial(unlabelled, cells[0] + cells[2], size=draws).astype(np.float64)
    return counts_D4, ones_D


def moments_of_counts(counts_D4: FloatArray, ones_D: FloatArray, unlabelled: int) -> Moments:
    """The moments (D,) of samples that are given by their counts."""
    labels = int(counts_D4[0].sum())
    shares_D4 = counts_D4 / labels
    label_D, judged_D = shares_D4[:, 0] + shares_D4[:, 1], shares_D4[:, 0] + shares_D4[:, 2]
    other_D = ones_D / unlabelled
    return Moments(
        labels=labels,
        unlabelled=unlabelled,
        label_mean=label_D,
        judged_mean=judged_D,
        label_variance=label_D * (1 - label_D),
        judged_variance=judged_D * (1 - judged_D),
        covariance=shares_D4[:, 0] - label_D * judged_D,
        unlabelled_mean=other_D,
        unlabelled_variance=other_D * (1 - other_D),
    )


def samples_of_counts(counts_D4: FloatArray, ones_D: FloatArray, unlabelled: int) -> Iterator[Sample]:
    """The samples themselves, one after the other."""
    for counts_4, ones in zip(counts_D4.astype(int), ones_D.astype(int), strict=True):
        labels_n = np.repeat((1.0, 1.0, 0.0, 0.0), counts_4)
        judged_n = np.repeat((1.0, 0.0, 1.0, 0.0), counts_4)
        yield Sample(labels_n, judged_n, np.repeat((1.0, 0.0), (ones, unlabelled - ones)))


def moments_of_rows(labels_Dn: FloatArray, judged_Dn: FloatArray, judged_DN: FloatArray) -> Moments:
    """The moments (D,) of samples that are given by their rows."""
    label_D, judged_D = labels_Dn.mean(axis=1), judged_Dn.mean(axis=1)
    gaps_Dn = (labels_Dn - label_D[:, None]) * (judged_Dn - judged_D[:, None])
    return Moments(
        labels=labels_Dn.shape[1],
        unlabelled=judged_DN.shape[1],
        label_mean=label_D,
        judged_mean=judged_D,
        label_variance=labels_Dn.var(axis=1),
        judged_variance=judged_Dn.var(axis=1),
        covariance=gaps_Dn.mean(axis=1),
        unlabelled_mean=judged_DN.mean(axis=1),
        unlabelled_variance=judged_DN.var(axis=1),
    )


def joined(moments: list[Moments]) -> Moments:
    """The moments of all draws of several blocks."""
    fields = ("label_mean", "judged_mean", "label_variance", "judged_variance", "covariance")
    others = ("unlabelled_mean", "unlabelled_variance")
    stacked = {name: np.concatenate([getattr(each, name) for each in moments]) for name in (*fields, *others)}
    return replace(moments[0], **stacked)


def draw_scores(
    separation: float, shape: tuple[int, int], generator: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Labels, .8 of them 1, and probabilities by a judge that sees them through normal noise; it is too generous."""
    labels = (generator.random(shape) < 0.8).astype(np.float64)
    seen = generator.normal(size=shape) + separation * (2 * labels - 1)
    return labels, 1 / (1 + np.exp(-(2 * separation * seen + 1)))


def draw_numbers(noise: float, shape: tuple[int, int], generator: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Labels of a gamma distribution of mean 2 and variance 2, and a judge that adds normal noise and 0.5."""
    labels = generator.gamma(2.0, 1.0, size=shape)
    return labels, labels + 0.5 + noise * generator.normal(size=shape)


def draw_pairs(
    rates: Sequence[float], accuracy: float, labels: int, unlabelled: int, draws: int, generator: np.random.Generator
) -> Moments:
    """Moments of the differences of two systems on the same questions.

    Half of the questions are easy or hard for both alike; the judge is right with the same probability on either.
    """
    cells = _pair_cells(rates, accuracy)
    counts_D16 = generator.multinomial(labels, cells.ravel(), size=draws) / labels
    others_D16 = generator.multinomial(unlabelled, cells.ravel(), size=draws) / unlabelled
    first, second, first_judged, second_judged = (axis.ravel() for axis in np.indices((2, 2, 2, 2)))
    gap, judged = (first - second).astype(float), (first_judged - second_judged).astype(float)
    label_D, judged_D, other_D = counts_D16 @ gap, counts_D16 @ judged, others_D16 @ judged
    return Moments(
        labels=labels,
        unlabelled=unlabelled,
        label_mean=label_D,
        judged_mean=judged_D,
        label_variance=counts_D16 @ gap**2 - label_D**2,
        judged_variance=counts_D16 @ judged**2 - judged_D**2,
        covariance=counts_D16 @ (gap * judged) - label_D * judged_D,
        unlabelled_mean=other_D,
        unlabelled_variance=others_D16 @ judged**2 - other_D**2,
    )


def _pair_cells(rates: Sequence[float], accuracy: float) -> FloatArray:
    """Probabilities (2, 2, 2, 2) of both labels and both decisions."""
    first, second = rates
    both = 0.5 * min(first, second) + 0.5 * first * second
    labels = np.array([[1 - first - second + both, second - both], [first - both, both]])
    decisions = np.array([[accuracy, 1 - accuracy], [1 - accuracy, accuracy]])
    return np.einsum("ab,ac,bd->abcd", labels, decisions, decisions)
