"""Labelled and judged rows, and their moments.

Shape letters: n labelled rows, N rows without labels; ``...`` any number of samples computed at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bothways.errors import InvalidInput
from bothways.evaluation.inputs import FloatArray, real_array

LEAST_LABELS = 2


@dataclass(frozen=True, init=False, eq=False)
class Sample:
    """Human labels of a few rows, and a judge's scores on them and on many rows without labels.

    The labelled rows must be a random sample of all rows: the intervals rest on that.

    Attributes:
        labels: Human labels (n,): 0 and 1, or numbers.
        judged: The judge's decisions or scores on the same rows (n,), in the same order.
        unlabelled_judged: The judge's decisions or scores on the rows without labels (N,); may be empty.

    Raises:
        InvalidInput: not finite vectors, fewer than two labels, or another number of scores than labels.
    """

    labels: FloatArray
    judged: FloatArray
    unlabelled_judged: FloatArray

    def __init__(self, labels: ArrayLike, judged: ArrayLike, unlabelled_judged: ArrayLike) -> None:
        known = real_array(labels, "labels", dimensions=1)
        if len(known) < LEAST_LABELS:
            raise InvalidInput(f"labels: expected at least {LEAST_LABELS}, got {len(known)}; label more rows")
        scores = real_array(judged, "judged", dimensions=1)
        if len(scores) != len(known):
            raise InvalidInput(f"judged: expected {len(known)} scores, one for each label, got {len(scores)}")
        others = np.asarray(unlabelled_judged)
        empty = others.ndim == 1 and others.size == 0
        others = np.empty(0) if empty else real_array(unlabelled_judged, "unlabelled_judged", dimensions=1)
        for name, values in (("labels", known), ("judged", scores), ("unlabelled_judged", others)):
            values = values.copy()
            values.setflags(write=False)
            object.__setattr__(self, name, values)

    @property
    def binary(self) -> bool:
        """True if every label is 0 or 1, so that their mean is a proportion."""
        return bool(np.isin(self.labels, (0.0, 1.0)).all())


@dataclass(frozen=True, eq=False)
class Moments:
    """Means, variances (divided by the number of rows) and the covariance of one sample or of many, shape (...).

    Attributes:
        labels: Labelled rows; pseudo-rows count too.
        unlabelled: Rows without labels.
        label_mean: Mean of the labels.
        judged_mean: Mean of the judge's scores on the labelled rows.
        label_variance: Variance of the labels.
        judged_variance: Variance of the judge's scores on the labelled rows.
        covariance: Covariance of labels and scores.
        unlabelled_mean: Mean of the judge's scores on the rows without labels.
        unlabelled_variance: Variance of these.
    """

    labels: float
    unlabelled: float
    label_mean: FloatArray
    judged_mean: FloatArray
    label_variance: FloatArray
    judged_variance: FloatArray
    covariance: FloatArray
    unlabelled_mean: FloatArray
    unlabelled_variance: FloatArray

    @classmethod
    def of(cls, sample: Sample) -> "Moments":
        """Compute the moments of a sample."""
        labels_n, judged_n = sample.labels, sample.judged
        label_mean, judged_mean = labels_n.mean(), judged_n.mean()
        judged_N = sample.unlabelled_judged if len(sample.unlabelled_judged) else np.zeros(1)
        return cls(
            labels=len(labels_n),
            unlabelled=len(sample.unlabelled_judged),
            label_mean=np.asarray(label_mean),
            judged_mean=np.asarray(judged_mean),
            label_variance=np.asarray(labels_n.var()),
            judged_variance=np.asarray(judged_n.var()),
            covariance=np.asarray(((labels_n - label_mean) * (judged_n - judged_mean)).mean()),
            unlabelled_mean=np.asarray(judged_N.mean()),
            unlabelled_variance=np.asarray(judged_N.var()),
        )

    def with_rows(
        self, labels: Sequence[float], judged: Sequence[float | FloatArray], *, weight: float = 1.0
    ) -> "Moments":
        """Return the moments with further labelled rows, each counted ``weight`` times."""
        moments = self
        for label, score in zip(labels, judged, strict=True):
            moments = moments._with_row(label, score, weight)
        return moments

    def _with_row(self, label: float, score: float | FloatArray, weight: float) -> "Moments":
        rows = self.labels + weight
        kept, share = self.labels / rows, weight / rows
        label_gap, score_gap = label - self.label_mean, score - self.judged_mean
        return Moments(
            labels=rows,
            unlabelled=self.unlabelled,
            label_mean=self.label_mean + share * label_gap,
            judged_mean=self.judged_mean + share * score_gap,
            label_variance=kept * (self.label_variance + share * label_gap**2),
            judged_variance=kept * (self.judged_variance + share * score_gap**2),
            covariance=kept * (self.covariance + share * label_gap * score_gap),
            unlabelled_mean=self.unlabelled_mean,
            unlabelled_variance=self.unlabelled_variance,
        )
