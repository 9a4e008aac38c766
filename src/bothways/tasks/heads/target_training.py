"""Training for classification and regression: the target of the data, losses, weights and validation.

Shapes: N texts, B windows in a batch, C outputs, K labels or 1.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from numpy.typing import NDArray
from torch import Tensor

from bothways.choices import LabelValue, TargetKind
from bothways.data.label_rows import class_label, in_order, values_of
from bothways.data.sources import PLAIN_READING, LabelReading
from bothways.data.windows import WindowStore, digest_of
from bothways.devices import on_device
from bothways.encoder import ScoreHead
from bothways.errors import InvalidInput
from bothways.evaluation.calibration import Calibration
from bothways.evaluation.inputs import row_blocks
from bothways.evaluation.intervals import mean_error, share_error
from bothways.evaluation.metrics.classification import MAJORITY, ClassCounts, macro_f1, multi_label_nll, nll_per_row
from bothways.evaluation.metrics.regression import mean_squared_error, r2, spearman, undefined_correlation
from bothways.evaluation.report import Validation
from bothways.evaluation.temperature import (
    Temperature,
    apply_sigmoid_temperature,
    apply_temperature,
    fit_adaptive_temperature,
    fit_sigmoid_temperature,
)
from bothways.evaluation.thresholds import fit_common_threshold, fit_thresholds
from bothways.tasks.heads.targets import (
    AnyExample,
    Logits,
    MultiLabel,
    Regression,
    SingleLabel,
    Target,
    Truth,
)

# A standard deviation below this fraction of the largest value is a rounding error.
_ROUNDING = 1e-13


def target_of(
    kind: TargetKind,
    examples: Sequence[AnyExample],
    before: Target | None = None,
    declared: Sequence[LabelValue] = (),
    categories: Sequence[str] = (),
    reading: LabelReading = PLAIN_READING,
) -> Target:
    """Return the target of training examples.

    The labels are the ``declared`` ones, else those of the examples, in the order of ``before`` if they are the same,
    else in that of the ``categories`` of their column.
    """
    target: Target
    match kind:
        case "regression":
            return standardized(np.array([example.label for example in examples], dtype=np.float32))
        case "multi":
            names = in_order({name for example in examples for name in MultiLabel.names(example.label)}, categories)
            if not names:
                raise InvalidInput("expected at least one label in the rows, got none: check the label column.")
            target = MultiLabel(names)
        case "single":
            names = in_order({str(example.label) for example in examples}, categories)
            if len(names) < 2:
                raise InvalidInput(
                    "a classifier needs at least two classes, but every row of the training data is labelled "
                    f"{names[0]!r}. Check the label column."
                )
            target = SingleLabel(names)
    if before is not None and before.kind == kind and set(before.labels) == set(names):
        names = before.labels
    given: Iterable[object] = (example.given for example in examples)
    if declared:
        names, given = tuple(map(class_label, declared)), declared
    if set(reading.names) != set(names):  # those of the labels before
        reading = replace(reading, names=())
    return replace(target, labels=names, values=values_of(names, given), reading=reading)


# --- the scale of regression targets ---


def standardized(numbers_N: NDArray[np.float32]) -> Regression:
    """Return the target for training on these values; the scale is 1 if they are all equal."""
    numbers = numbers_N.astype(np.float64)
    mean, deviation = float(numbers.mean()), float(numbers.std())
    alike = deviation <= _ROUNDING * float(np.abs(numbers).max())
    return Regression(mean, mean, 1.0 if alike else deviation)


def standardize(target: Target, head: ScoreHead) -> None:
    """Change a regression head, in place, to predict standardised values."""
    match target:
        case Regression(_, mean, scale):
            with torch.no_grad():
                head.output.weight.div_(scale)
                head.output.bias.sub_(mean).div_(scale)


def unstandardize(target: Target, head: ScoreHead) -> Target:
    """Change a regression head, in place, back to the original units; return its target."""
    match target:
        case Regression(training_mean, mean, scale):
            with torch.no_grad():
                head.output.weight.mul_(scale)
                head.output.bias.mul_(scale).add_(mean)
            return Regression(training_mean)
        case _:
            return target


def score_unit(target: Target, truth: Truth) -> float:
    """Return the divisor that makes validation scores comparable: the variance of regression labels, else 1."""
    return float(np.var(truth)) or 1.0 if target.kind == "regression" else 1.0


# --- losses ---


def losses(target: Target, logits_BC: Tensor, truth: Tensor, weights_BK: Tensor | None = None) -> Tensor:
    """Return the loss of each row (B).

    The loss is the cross-entropy for a single label, the mean of the binary cross-entropies for multi-label targets,
    and for regression the squared error divided by the variance of the training labels.
    """
    match target:
        case SingleLabel():
            losses_B = F.cross_entropy(logits_BC, truth, reduction="none")
        case MultiLabel():
            return F.binary_cross_entropy_with_logits(logits_BC, truth, weights_BK, reduction="none").mean(1)
        case Regression(_, mean, scale):
            losses_B = (logits_BC[:, 0] - (truth - mean) / scale) ** 2
    return losses_B if weights_BK is None else losses_B * weights_BK[:, 0]


def balanced_weights(target: Target, truth: Truth) -> Logits | None:
    """Return weights (N, K) that balance the labels, with mean 1 per label; None for regression.

    For multi-label targets, the rows with a label have the same total weight as the rows without it; the weights are 1
    for a label that all rows have, or no row.
    """
    match target:
        case SingleLabel():
            rows_C = np.bincount(truth, minlength=target.outputs)
            return (len(truth) / (target.outputs * rows_C[truth]))[:, None]
        case MultiLabel():
            with_C = truth.sum(axis=0, dtype=np.float64)
            rows_NC = np.where(truth > 0, with_C, len(truth) - with_C)
            both_C = (with_C > 0) & (with_C < len(truth))
            return np.where(both_C, len(truth) / (2 * rows_NC), 1.0)
        case Regression():
            return None


class TextLoss:
    """The labels of texts and their loss; the windows of a text share its weight (default 1).

    A long text therefore counts as much as a short one. ``weights_NK`` has a weight for each text, or for each label of
    each text.
    """

    joint: ClassVar[bool] = False

    def __init__(
        self, target: Target, truth: Truth, store: WindowStore, weights_NK: NDArray[np.float64] | None = None
    ) -> None:
        self.target = target
        self.truth = truth
        self._text_of_window = store.text_of_window
        self._share_of_window = store.shares_W
        self._weights_NK = weights_NK
        self.weights_W = self._share_of_window
        if weights_NK is not None:
            self.weights_W = self.weights_W * weights_NK.mean(axis=1)[store.text_of_window]

    @property
    def digest(self) -> str:
        """A checksum of the labels."""
        return digest_of(self.truth)

    def loss(self, scores: Tensor, windows: Sequence[int]) -> Tensor:
        """Return the sum of the windows' losses, each weighted by its share of the text's weight."""
        texts_B = self._text_of_window[list(windows)]
        truth = on_device(self.truth[texts_B], scores.device)
        shares_B = on_device(self._share_of_window[list(windows)].astype(np.float32), scores.device)
        weights_BK = None
        if self._weights_NK is not None:
            weights_BK = on_device(self._weights_NK[texts_B].astype(np.float32), scores.device)
        return (losses(self.target, scores, truth, weights_BK) * shares_B).sum()


# --- held-out rows ---


def validate(
    target: Target, logits_NC: Logits, truth: Truth, *, balanced: bool = False, fits_threshold: bool = True
) -> Validation:
    """Compute the metrics of held-out texts, and the score that selects the epoch.

    The score is the accuracy (if ``balanced``, the mean recall over labels), micro-F1 for multi-label targets, or the
    negative mean squared error, in the units of the labels, for regression. If most rows have the same label,
    ``majority_accuracy`` is the accuracy of always predicting it. With ``fits_threshold``, a multi-label target without
    thresholds is evaluated at the best common threshold instead of 0.5.
    """
    match target:
        case SingleLabel():
            return _validate_classes(target, logits_NC, truth, balanced=balanced)
        case MultiLabel():
            return _validate_labels(target, logits_NC, truth, fits_threshold=fits_threshold)
        case Regression():
            return _validate_numbers(target, logits_NC, truth)


def _validate_classes(target: SingleLabel, logits_NC: Logits, truth_N: Truth, *, balanced: bool) -> Validation:
    predicted_N, nll_N = np.empty(len(truth_N), dtype=np.int64), np.empty(len(truth_N))
    for rows in row_blocks(*logits_NC.shape):
        stated_BC = apply_temperature(logits_NC[rows], 1.0)
        predicted_N[rows] = stated_BC.argmax(1)
        nll_N[rows] = nll_per_row(truth_N[rows], stated_BC)
    counts = ClassCounts.of(truth_N, predicted_N, target.outputs)
    right = float((predicted_N == truth_N).mean())
    metrics = {"accuracy": right, "macro_f1": float(macro_f1(counts))}
    score, error = right, share_error(right, len(truth_N))
    if balanced:
        shares = [(hits / rows, rows) for hits, rows in zip(counts.hits, counts.truth, strict=True) if rows]
        score = metrics["balanced_accuracy"] = float(np.mean([share for share, _ in shares]))
        error = math.hypot(*(share_error(*each) for each in shares)) / len(shares)
    most = float(counts.truth.max()) / len(truth_N)
    if most > MAJORITY:
        metrics["majority_accuracy"] = most
    return Validation({**metrics, "nll": float(nll_N.mean())}, score, error)


def _validate_labels(target: MultiLabel, logits_NC: Logits, truth_NC: Truth, *, fits_threshold: bool) -> Validation:
    probabilities_NC = apply_sigmoid_temperature(logits_NC, 1.0)
    fitted = {}
    if fits_threshold and not target.thresholds:
        threshold = fit_common_threshold(truth_NC > 0, probabilities_NC)
        target, fitted = target.at(threshold), {"threshold": threshold}
    truth, predicted = truth_NC.astype(np.int64), probabilities_NC >= target.thresholds_C
    # F1 = 2 TP / (positives in truth + positives predicted)
    labels = float(predicted.sum() + truth.sum())
    f1 = 2 * float((predicted * truth).sum()) / max(1.0, labels)
    metrics = {"micro_f1": f1, "nll": multi_label_nll(truth, probabilities_NC), **fitted}
    return Validation(metrics, f1, share_error(f1, labels / 2))


def _validate_numbers(target: Regression, logits_N1: Logits, truth_N: Truth) -> Validation:
    numbers_N = target.mean + target.scale * logits_N1[:, 0]
    error = mean_squared_error(truth_N, numbers_N)
    metrics = {"mse": error, "rmse": math.sqrt(error)}
    if target.training_mean is not None:
        metrics["training_mean_rmse"] = math.sqrt(float(((truth_N - target.training_mean) ** 2).mean()))
    if undefined_correlation(truth_N, truth_N) is None:
        metrics["r2"] = r2(truth_N, numbers_N)
    metrics["spearman"] = spearman(truth_N, numbers_N)
    return Validation(metrics, -error, mean_error((numbers_N - truth_N) ** 2), highest=0.0)


def constant_logits(target: Target, truth: Truth) -> tuple[float, ...]:
    """Return the logits of the constant prediction with the lowest loss on training labels; 1 is added to each count.

    They are the logarithms of the label frequencies, the log odds of each label, or the mean of the values.
    """
    match target:
        case SingleLabel():
            logits_C = np.log((np.bincount(truth, minlength=target.outputs) + 1) / (len(truth) + target.outputs))
        case MultiLabel():
            with_C = truth.sum(axis=0, dtype=np.float64)
            logits_C = np.log((with_C + 1) / (len(truth) - with_C + 1))
        case Regression():
            logits_C = np.array([truth.mean(dtype=np.float64)])
    return tuple(logits_C.tolist())


def fitted_temperature(target: Target, logits_NC: Logits, truth: Truth) -> Temperature | None:
    """Return the temperature that calibrates held-out logits; None for regression, which has no probabilities."""
    match target:
        case SingleLabel():
            return fit_adaptive_temperature(logits_NC, truth)
        case MultiLabel():
            return Temperature(fit_sigmoid_temperature(logits_NC, truth.astype(np.int64)))
        case Regression():
            return None


def with_fitted_thresholds(target: Target, logits_NC: Logits, truth: Truth, calibration: Calibration | None) -> Target:
    """Return the target with multi-label thresholds fitted on held-out rows, unless they are already set."""
    match target:
        case MultiLabel(thresholds=()):
            thresholds_C = fit_thresholds(truth.astype(np.int64), target.probabilities(logits_NC, calibration))
            return replace(target, thresholds=tuple(thresholds_C.tolist()))
        case _:
            return target
