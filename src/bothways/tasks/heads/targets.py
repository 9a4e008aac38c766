"""Targets of classifiers: one label, several labels, or a number.

Each variant knows how labels become numbers, which loss trains them, and how logits become probabilities,
predictions and reports.

Shapes: N texts, B windows of a batch or texts of a block, C outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bothways.choices import TargetKind
from bothways.data import Example, class_label, label_set, number
from bothways.errors import InvalidInput, did_you_mean
from bothways.evaluation.calibration import Calibration
from bothways.evaluation.comparison import naming_hint
from bothways.evaluation.inputs import row_blocks
from bothways.evaluation.intervals import mean_error, share_error
from bothways.evaluation.metrics.classification import MAJORITY, class_outcomes, label_outcomes
from bothways.evaluation.metrics.regression import (
    mean_squared_error,
    number_outcomes,
    r2,
    spearman,
    undefined_correlation,
)
from bothways.evaluation.metrics.scores import ClassCounts, macro_f1, multi_label_nll, nll_per_row
from bothways.evaluation.outcomes import Outcomes
from bothways.evaluation.report import Validation
from bothways.evaluation.temperature import (
    Temperature,
    apply_sigmoid_temperature,
    apply_temperature,
    fit_adaptive_temperature,
    fit_sigmoid_temperature,
    sigmoid,
    softmax,
)
from bothways.evaluation.thresholds import USUAL, fit_common_threshold, fit_thresholds
from bothways.tasks.heads.predictions import (
    Classification,
    MultiLabelPrediction,
    Prediction,
    RegressionPrediction,
)
from bothways.tasks.scores import TokensRead

if TYPE_CHECKING:
    from torch import Tensor

    from bothways.encoder import ScoreHead

Logits = NDArray[np.float64]

# Far below any probability that matters. What a stacking weighs goes no lower, nor what excludes nothing.
MIN_PROBABILITY = 1e-12
# That of one answer among several goes as low as a float64 can: a text's tags are chosen by sums of such logarithms.
TINY = float(np.finfo(np.float64).tiny)
# A standard deviation below this share of the largest number is rounding.
_ROUNDING = 1e-13

# Encoded labels: class numbers (N), 0 or 1 for each label (N, C), or numbers (N); which, the target knows.
Truth = NDArray[Any]


def _one_label(value: object) -> str:
    """Return a class name; see `class_label`, whose errors name the other targets here."""
    try:
        return class_label(value)
    except InvalidInput as error:
        other = {float: "score names a column of numbers to predict", list: "lists of labels need the target 'multi'"}
        if type(value) not in other:
            raise
        raise InvalidInput(f"{str(error).rstrip('.')}; {other[type(value)]}.") from None


@dataclass(frozen=True, slots=True)
class SingleLabel:
    """Exactly one of C labels."""

    labels: tuple[str, ...]

    kind: ClassVar[TargetKind] = "single"
    problem_type: ClassVar[str] = "single_label_classification"
    convert = staticmethod(_one_label)

    @staticmethod
    def names(label: str) -> tuple[str, ...]:
        """Return the labels that a row names."""
        return (label,)

    @property
    def outputs(self) -> int:
        """C."""
        return len(self.labels)

    def encode(self, examples: Sequence[Example[Any]]) -> Truth:
        """Class numbers (N).

        Raises:
            InvalidInput: A label is none of this target's; the message names its row.
        """
        numbers = {label: index for index, label in enumerate(self.labels)}
        for example in examples:
            if example.label not in numbers:
                raise _unknown_label(example.label, example.where, self.labels)
        return np.array([numbers[example.label] for example in examples], dtype=np.int64)

    def losses(self, logits_BC: Tensor, truth_B: Tensor, weights_B1: Tensor | None = None) -> Tensor:
        """Cross-entropy of each row (B)."""
        import torch.nn.functional as F  # noqa: N812  (the field's own name for it)

        losses_B = F.cross_entropy(logits_BC, truth_B, reduction="none")
        return losses_B if weights_B1 is None else losses_B * weights_B1[:, 0]

    @staticmethod
    def divergences(logits_UC: Tensor, taught_UC: Tensor, temperature: float) -> Tensor:
        """Return the divergence of each row from the probabilities of a teacher, see `soft_divergence` (U)."""
        from bothways.objectives.distillation import soft_divergence  # training alone needs the objectives

        return soft_divergence(logits_UC, taught_UC, temperature)

    def decided(self, logits_NC: Logits, calibration: Calibration | None) -> Truth:
        """Return the most probable class of each row (N)."""
        numbers_N: Truth = self.probabilities(logits_NC, calibration).argmax(axis=1)
        return numbers_N

    def balanced_weights(self, truth_N: Truth) -> Logits:
        """Weights (N, 1) by which all labels count alike, 1 on average."""
        rows_C = np.bincount(truth_N, minlength=self.outputs)
        return (len(truth_N) / (self.outputs * rows_C[truth_N]))[:, None]

    def probabilities(self, logits_NC: Logits, calibration: Calibration | None) -> Logits:
        """Class probabilities (N, C)."""
        return (calibration or Temperature(1.0)).apply(logits_NC)

    def validate(self, logits_NC: Logits, truth_N: Truth, *, balanced: bool = False) -> Validation:
        """Metrics on held-out texts; the score is accuracy, or balanced accuracy: the mean over labels of recall.

        Where one label is on most of the rows, ``majority_accuracy`` is what always giving it would have.
        """
        predicted_N, nll_N = np.empty(len(truth_N), dtype=np.int64), np.empty(len(truth_N))
        for rows in row_blocks(*logits_NC.shape):
            stated_BC = apply_temperature(logits_NC[rows], 1.0)
            predicted_N[rows] = stated_BC.argmax(1)
            nll_N[rows] = nll_per_row(truth_N[rows], stated_BC)
        counts = ClassCounts.of(truth_N, predicted_N, self.outputs)
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

    def outcomes(self, logits_NC: Logits, truth_N: Truth, calibration: Calibration | None) -> Outcomes:
        """Return what reports and comparisons are computed from."""
        stated = (self.probabilities(logits_NC[rows], calibration) for rows in row_blocks(*logits_NC.shape))
        return class_outcomes(self.labels, truth_N, stated)

    def predict(self, logits_C: Logits, calibration: Calibration | None, tokens_read: TokensRead) -> Prediction:
        """Return the most probable label."""
        probabilities_C = self.probabilities(logits_C[None], calibration)[0]
        by_label = _ranked(self.labels, probabilities_C)
        best = next(iter(by_label))
        return Classification(best, by_label[best], by_label, tokens_read)


@dataclass(frozen=True, slots=True)
class MultiLabel:
    """Any subset of C labels; those at or above their thresholds are predicted.

    Attributes:
        labels: Their names.
        thresholds: Calibrated probability from which each label is given; 0.5 where none are known.
    """

    labels: tuple[str, ...]
    thresholds: tuple[float, ...] = ()

    kind: ClassVar[TargetKind] = "multi"
    problem_type: ClassVar[str] = "multi_label_classification"
    convert = staticmethod(label_set)

    @staticmethod
    def names(label: tuple[str, ...]) -> tuple[str, ...]:
        """Return the labels that a row names."""
        return label

    @property
    def outputs(self) -> int:
        """C."""
        return len(self.labels)

    def encode(self, examples: Sequence[Example[Any]]) -> Truth:
        """1 where a label holds (N, C).

        Raises:
            InvalidInput: A label is none of this target's; the message names its row.
        """
        numbers = {label: index for index, label in enumerate(self.labels)}
        truth_NC = np.zeros((len(examples), len(self.labels)), dtype=np.float32)
        for row, example in enumerate(examples):
            for label in example.label:
                if label not in numbers:
                    raise _unknown_label(label, example.where, self.labels)
                truth_NC[row, numbers[label]] = 1.0
        return truth_NC

    @property
    def thresholds_C(self) -> Logits:
        """The threshold of each label."""
        return np.array(self.thresholds or (USUAL,) * self.outputs)

    def at(self, threshold: float) -> MultiLabel:
        """Return the same with one threshold for all labels."""
        return replace(self, thresholds=(threshold,) * self.outputs)

    def learnt(self, logits_NC: Logits, truth_NC: Truth, calibration: Calibration | None) -> MultiLabel:
        """Return the same with the thresholds that held-out rows teach."""
        thresholds_C = fit_thresholds(truth_NC.astype(np.int64), self.probabilities(logits_NC, calibration))
        return replace(self, thresholds=tuple(thresholds_C.tolist()))

    def without(self, calibration: Calibration | None) -> MultiLabel:
        """Return the same decisions on probabilities that are not calibrated."""
        if not self.thresholds or not isinstance(calibration, Temperature):
            return self
        odds_1C = logits_of(self, self.thresholds_C[None]) * calibration.value
        return replace(self, thresholds=tuple(sigmoid(odds_1C)[0].tolist()))

    def losses(self, logits_BC: Tensor, truth_BC: Tensor, weights_BC: Tensor | None = None) -> Tensor:
        """Mean binary cross-entropy over the labels of each row (B)."""
        import torch.nn.functional as F  # noqa: N812  (the field's own name for it)

        return F.binary_cross_entropy_with_logits(logits_BC, truth_BC, weights_BC, reduction="none").mean(1)

    @staticmethod
    def divergences(logits_UC: Tensor, taught_UC: Tensor, temperature: float) -> Tensor:
        """Mean over the labels of the divergence from a teacher's probabilities, times ``t^2`` (U)."""
        import torch.nn.functional as F  # noqa: N812  (the field's own name for it)

        ours_UC, theirs_UC = logits_UC / temperature, taught_UC / temperature
        wanted_UC = theirs_UC.sigmoid()
        cross_UC, least_UC = (
            F.binary_cross_entropy_with_logits(each, wanted_UC, reduction="none") for each in (ours_UC, theirs_UC)
        )
        return (cross_UC - least_UC).mean(1) * temperature**2

    def decided(self, logits_NC: Logits, calibration: Calibration | None) -> Truth:
        """1 where a label is at or above its threshold (N, C)."""
        return (self.probabilities(logits_NC, calibration) >= self.thresholds_C).astype(np.float32)

    def balanced_weights(self, truth_NC: Truth) -> Logits:
        """Weights (N, C) by which rows with a label count as much as those without, 1 on average for each label.

        A label that all rows have, or none, has the weight 1.
        """
        with_C = truth_NC.sum(axis=0, dtype=np.float64)
        rows_NC = np.where(truth_NC > 0, with_C, len(truth_NC) - with_C)
        both_C = (with_C > 0) & (with_C < len(truth_NC))
        return np.where(both_C, len(truth_NC) / (2 * rows_NC), 1.0)

    def probabilities(self, logits_NC: Logits, calibration: Calibration | None) -> Logits:
        """Probabilities of the labels (N, C).

        Raises:
            InvalidInput: The calibration is none for labels that exclude nothing.
        """
        if not isinstance(calibration, Temperature | None):
            raise InvalidInput(f"several labels are calibrated by a temperature, not by {type(calibration).__name__}.")
        return apply_sigmoid_temperature(logits_NC, calibration or 1.0)

    def validate(self, logits_NC: Logits, truth_NC: Truth) -> Validation:
        """Metrics on held-out texts; the score is micro-F1 at the best common threshold, or at those that are given."""
        probabilities_NC = apply_sigmoid_temperature(logits_NC, 1.0)
        if self.thresholds:
            return self._validation(probabilities_NC, truth_NC)
        chosen = self.at(fit_common_threshold(truth_NC > 0, probabilities_NC))
        found = chosen._validation(probabilities_NC, truth_NC)
        return replace(found, metrics={**found.metrics, "threshold": chosen.thresholds[0]})

    def metrics(self, logits_NC: Logits, truth_NC: Truth) -> dict[str, float]:
        """Metrics at the thresholds as they are."""
        return dict(self._validation(apply_sigmoid_temperature(logits_NC, 1.0), truth_NC).metrics)

    def _validation(self, probabilities_NC: Logits, truth_NC: Truth) -> Validation:
        truth = truth_NC.astype(np.int64)
        predicted = probabilities_NC >= self.thresholds_C
        # F1 = 2 TP / (positives in truth + positives predicted)
        labels = float(predicted.sum() + truth.sum())
        f1 = 2 * float((predicted * truth).sum()) / max(1.0, labels)
        nll = multi_label_nll(truth, probabilities_NC)
        return Validation({"micro_f1": f1, "nll": nll}, f1, share_error(f1, labels / 2))

    def outcomes(self, logits_NC: Logits, truth_NC: Truth, calibration: Calibration | None) -> Outcomes:
        """Return what reports and comparisons are computed from."""
        stated_NC = self.probabilities(logits_NC, calibration)
        thresholds = self.thresholds_C.tolist()
        return label_outcomes(self.labels, truth_NC.astype(np.int64), stated_NC, threshold=thresholds)

    def predict(self, logits_C: Logits, calibration: Calibration | None, tokens_read: TokensRead) -> Prediction:
        """Return the labels at or above their thresholds."""
        by_label = _ranked(self.labels, self.probabilities(logits_C[None], calibration)[0])
        least = dict(zip(self.labels, self.thresholds_C.tolist(), strict=True))
        return MultiLabelPrediction(
            tuple(name for name, value in by_label.items() if value >= least[name]), by_label, tokens_read
        )


@dataclass(frozen=True, slots=True)
class Regression:
    """A number.

    During a training the head gives standardised numbers, ``(number - mean) / scale``. When it ends, the scale goes
    into the head's last linear map (`unstandardize`), and the head gives the number itself.

    Attributes:
        training_mean: Mean of the numbers that the model learnt from, the baseline of reports; None where unknown.
        mean: Of the numbers that are 0 for the head.
        scale: Standard deviation of the numbers that are 1 for the head.
    """

    training_mean: float | None = None
    mean: float = 0.0
    scale: float = 1.0

    kind: ClassVar[TargetKind] = "regression"
    problem_type: ClassVar[str] = "regression"
    labels: ClassVar[tuple[str, ...]] = ("score",)
    outputs: ClassVar[int] = 1
    convert = staticmethod(number)

    @staticmethod
    def names(label: float) -> tuple[str, ...]:
        """Return a number names no label."""
        del label
        return ()

    @classmethod
    def standardized(cls, numbers: Sequence[float]) -> Regression:
        """Return the target of a training on these numbers; the scale of numbers that are all alike is 1."""
        numbers_N = np.array(numbers, dtype=np.float32).astype(np.float64)
        mean, deviation = float(numbers_N.mean()), float(numbers_N.std())
        alike = deviation <= _ROUNDING * float(np.abs(numbers_N).max())
        return cls(mean, mean, 1.0 if alike else deviation)

    def standardize(self, head: ScoreHead) -> None:
        """Change a head that gives numbers, in place, into one that gives standardised numbers."""
        import torch

        with torch.no_grad():
            head.output.weight.div_(self.scale)
            head.output.bias.sub_(self.mean).div_(self.scale)

    def unstandardize(self, head: ScoreHead) -> Regression:
        """Change a head that gives standardised numbers, in place, into one that gives numbers; return its target."""
        import torch

        with torch.no_grad():
            head.output.weight.mul_(self.scale)
            head.output.bias.mul_(self.scale).add_(self.mean)
        return Regression(self.training_mean)

    def encode(self, examples: Sequence[Example[Any]]) -> Truth:
        """Return the numbers (N)."""
        return np.array([example.label for example in examples], dtype=np.float32)

    def losses(self, logits_B1: Tensor, truth_B: Tensor, weights_B1: Tensor | None = None) -> Tensor:
        """Squared error of each row (B), in units of the variance of the training numbers."""
        losses_B = (logits_B1[:, 0] - (truth_B - self.mean) / self.scale) ** 2
        return losses_B if weights_B1 is None else losses_B * weights_B1[:, 0]

    def divergences(self, logits_U1: Tensor, taught_U1: Tensor, temperature: float) -> Tensor:
        """Squared distance of each row from a teacher's number, in units of the variance (U)."""
        del temperature
        return self.losses(logits_U1, taught_U1[:, 0])

    @staticmethod
    def decided(logits_N1: Logits, calibration: Calibration | None) -> Truth:
        """Return the numbers (N)."""
        del calibration
        return logits_N1[:, 0].astype(np.float32)

    def probabilities(self, logits_N1: Logits, calibration: Calibration | None) -> Logits:
        """Return the numbers (N, 1) themselves: they have no probabilities."""
        del calibration
        return logits_N1

    def validate(self, logits_N1: Logits, truth_N: Truth) -> Validation:
        """Metrics on held-out texts, in the units of the numbers; the score is the negative squared error."""
        numbers_N = self.mean + self.scale * logits_N1[:, 0]
        error = mean_squared_error(truth_N, numbers_N)
        metrics = {"mse": error, "rmse": math.sqrt(error)}
        if self.training_mean is not None:
            metrics["training_mean_rmse"] = math.sqrt(float(((truth_N - self.training_mean) ** 2).mean()))
        if undefined_correlation(truth_N, truth_N) is None:
            metrics["r2"] = r2(truth_N, numbers_N)
        metrics["spearman"] = spearman(truth_N, numbers_N)
        return Validation(metrics, -error, mean_error((numbers_N - truth_N) ** 2))

    def outcomes(self, logits_N1: Logits, truth_N: Truth, calibration: Calibration | None) -> Outcomes:
        """Return what reports and comparisons are computed from."""
        del calibration
        return number_outcomes(truth_N, logits_N1[:, 0], training_mean=self.training_mean)

    def predict(self, logits_1: Logits, calibration: Calibration | None, tokens_read: TokensRead) -> Prediction:
        """Return the number."""
        del calibration
        return RegressionPrediction(float(logits_1[0]), tokens_read)


Target = SingleLabel | MultiLabel | Regression


def at_threshold(target: Target, threshold: float | None) -> Target:
    """Return the target of several labels with one threshold for all; without a threshold, any target as it is.

    Raises:
        InvalidInput: A threshold is asked for, and the target is not several labels.
    """
    if threshold is None:
        return target
    if not isinstance(target, MultiLabel):
        raise InvalidInput(
            f"threshold: {threshold} was given, but this model predicts "
            f"{'a number' if isinstance(target, Regression) else 'one label'}; thresholds are for several labels."
        )
    return target.at(threshold)


def calibrated_logits(target: Target, logits_NC: Logits, calibration: Calibration | None) -> Logits:
    """Return a member's logits with its calibration in them: their softmax, or sigmoid, is calibrated."""
    if isinstance(target, Regression):
        return logits_NC
    return logits_of(target, target.probabilities(logits_NC, calibration))


def probabilities_of(target: Target, logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities (..., C) of logits; of numbers, the numbers."""
    match target:
        case SingleLabel():
            return softmax(logits)
        case MultiLabel():
            return sigmoid(logits)
        case Regression():
            return logits


def logits_of(target: Target, probabilities: NDArray[np.float64]) -> Logits:
    """Logits (..., C) whose probabilities these are."""
    match target:
        case SingleLabel():
            logits: Logits = np.log(np.maximum(probabilities, TINY))
            return logits
        case MultiLabel():
            inside = np.clip(probabilities, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
            odds: Logits = np.log(inside) - np.log1p(-inside)
            return odds
        case Regression():
            return probabilities


def fitted_temperature(target: Target, logits_NC: Logits, truth: Truth) -> Temperature | None:
    """Return the temperature that calibrates held-out logits; None for numbers, which have no probabilities."""
    match target:
        case SingleLabel():
            return fit_adaptive_temperature(logits_NC, truth)
        case MultiLabel():
            return Temperature(fit_sigmoid_temperature(logits_NC, truth.astype(np.int64)))
        case Regression():
            return None


def target_of(kind: TargetKind, examples: Sequence[Example[Any]]) -> Target:
    """Return the target that training examples call for.

    Raises:
        InvalidInput: There are fewer than two classes (or, of several labels, none at all).
    """
    if kind == "regression":
        return Regression.standardized([example.label for example in examples])
    if kind == "multi":
        names = tuple(sorted({name for example in examples for name in MultiLabel.names(example.label)}))
        if not names:
            raise InvalidInput("the training data must name at least one label, but no row does.")
        return MultiLabel(names)
    names = tuple(sorted({str(example.label) for example in examples}))
    if len(names) < 2:
        raise InvalidInput(
            f"a classifier needs at least two classes, but every row of the training data is labelled {names[0]!r}. "
            "Check the label column."
        )
    return SingleLabel(names)


def continued(target: Target, before: Target | None) -> Target:
    """Return the target with its labels in the order that they had before, where they are the same.

    That of the outputs.
    """
    if isinstance(target, Regression) or before is None or before.kind != target.kind:
        return target
    return replace(target, labels=before.labels) if set(before.labels) == set(target.labels) else target


def converter(kind: TargetKind) -> type[SingleLabel] | type[MultiLabel] | type[Regression]:
    """Return the variant of this name.

    Raises:
        InvalidInput: There is none.
    """
    for variant in (SingleLabel, MultiLabel, Regression):
        if variant.kind == kind:
            return variant
    raise InvalidInput(f"the target must be 'single', 'multi' or 'regression', but it is {kind!r}.")


def _ranked(labels: Sequence[str], probabilities_C: NDArray[np.float64]) -> dict[str, float]:
    order = np.argsort(-probabilities_C, kind="stable")
    return {labels[index]: float(probabilities_C[index]) for index in order}


def _unknown_label(label: str, where: str, known: Sequence[str]) -> InvalidInput:
    shown = ", ".join(repr(name) for name in known[:10]) + (f" and {len(known) - 10} more" if len(known) > 10 else "")
    return InvalidInput(
        f"{where} is labelled {label!r}, which this classifier does not know. It knows {shown}."
        f"{did_you_mean(label, known)}{naming_hint(known)}"
    )
