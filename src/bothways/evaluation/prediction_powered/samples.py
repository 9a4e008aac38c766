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
        judge_scores: The judge's decisions or scores on the same rows (n,), in the same order.
        unlabelled_judge_scores: The judge's decisions or scores on the rows without labels (N,); may be empty.

    Raises:
        InvalidInput: not finite vectors, fewer than two labels, or another number of scores than labels.
    """

    labels: FloatArray
    judge_scores: FloatArray
    unlabelled_judge_scores: FloatArray

    def __init__(self, labels: ArrayLike, judge_scores: ArrayLike, unlabelled_judge_scores: ArrayLike) -> None:
        known = real_array(labels, "labels", dimensions=1)
        if len(known) < LEAST_LABELS:
            raise InvalidInput(f"labels: expected at least {LEAST_LABELS}, got {len(known)}; label more rows")
        scores = real_array(judge_scores, "judge_scores", dimensions=1)
        if len(scores) != len(known):
            raise InvalidInput(f"judge_scores: expected {len(known)} scores, one for each label, got {len(scores)}")
        others = np.asarray(unlabelled_judge_scores)
        empty = others.ndim == 1 and others.size == 0
        others = np.empty(0) if empty else real_array(unlabelled_judge_scores, "unlabelled_judge_scores", dimensions=1)
        for name, values in (("labels", known), ("judge_scores", scores), ("unlabelled_judge_scores", others)):
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
        judge_mean: Mean of the judge's scores on the labelled rows.
        label_variance: Variance of the labels.
        judge_variance: Variance of the judge's scores on the labelled rows.
        covariance: Covariance of labels and scores.
        unlabelled_mean: Mean of the judge's scores on the rows without labels.
        unlabelled_variance: Variance of these.
    """

    labels: float
    unlabelled: float
    label_mean: FloatArray
    judge_mean: FloatArray
    label_variance: FloatArray
    judge_variance: FloatArray
    covariance: FloatArray
    unlabelled_mean: FloatArray
    unlabelled_variance: FloatArray

    @classmethod
    def of(cls, sample: Sample) -> "Moments":
        """Compute the moments of a sample."""
        labels_n, judge_n = sample.labels, sample.judge_scores
        label_mean, judge_mean = labels_n.mean(), judge_n.mean()
        judge_N = sample.unlabelled_judge_scores if len(sample.unlabelled_judge_scores) else np.zeros(1)
        return cls(
            labels=len(labels_n),
            unlabelled=len(sample.unlabelled_judge_scores),
            label_mean=np.asarray(label_mean),
            judge_mean=np.asarray(judge_mean),
            label_variance=np.asarray(labels_n.var()),
            judge_variance=np.asarray(judge_n.var()),
            covariance=np.asarray(((labels_n - label_mean) * (judge_n - judge_mean)).mean()),
            unlabelled_mean=np.asarray(judge_N.mean()),
            unlabelled_variance=np.asarray(judge_N.var()),
        )

    def with_rows(
        self, labels: Sequence[float], judge_scores: Sequence[float | FloatArray], *, weight: float = 1.0
    ) -> "Moments":
        """Return the moments with further labelled rows, each counted ``weight`` times."""
        moments = self
        for label, score in zip(labels, judge_scores, strict=True):
            moments = moments._with_row(label, score, weight)
        return moments

    def _with_row(self, label: float, score: float | FloatArray, weight: float) -> "Moments":
        rows = self.labels + weight
        kept, share = self.labels / rows, weight / rows
        label_gap, score_gap = label - self.label_mean, score - self.judge_mean
        return Moments(
            labels=rows,
            unlabelled=self.unlabelled,
            label_mean=self.label_mean + share * label_gap,
            judge_mean=self.judge_mean + share * score_gap,
            label_variance=kept * (self.label_variance + share * label_gap**2),
            judge_variance=kept * (self.judge_variance + share * score_gap**2),
            covariance=kept * (self.covariance + share * label_gap * score_gap),
            unlabelled_mean=self.unlabelled_mean,
            unlabelled_variance=self.unlabelled_variance,
        )
