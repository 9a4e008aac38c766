"""Targets of classifiers and regression models: a single label, multiple labels, or a number.

Each variant converts labels to numbers, and logits to probabilities, predictions and reports; `target_training` has
the losses.

Shapes: N texts, C outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.schema import StoredLabels, StoredTags, damaged
from bothways.choices import LabelValue, TargetKind
from bothways.data import Example, class_label, label_set, number
from bothways.data.label_rows import near_label, spelled
from bothways.data.labels import names_of, naming_of_numbers
from bothways.data.sources import PLAIN_READING, LabelReading
from bothways.errors import InvalidInput
from bothways.evaluation.calibration import Calibration
from bothways.evaluation.comparison import naming_hint
from bothways.evaluation.inputs import row_blocks
from bothways.evaluation.metrics.classification import class_outcomes, label_outcomes
from bothways.evaluation.metrics.regression import number_outcomes
from bothways.evaluation.outcomes import Outcomes
from bothways.evaluation.temperature import Temperature, apply_sigmoid_temperature, sigmoid, softmax
from bothways.evaluation.thresholds import USUAL
from bothways.tasks.scores import Probability, TaskPrediction, TokensRead

Logits: TypeAlias = NDArray[np.float64]

# Minimum probability for multi-label targets and in stacking: far below any probability that matters.
MIN_PROBABILITY = 1e-12
# Minimum probability of a single label: the smallest normal float64, since taggers add up log-probabilities.
TINY = float(np.finfo(np.float64).tiny)

AnyExample: TypeAlias = Example[Any]
"""An input with its label in the form of its target: a name, a tuple of names, or a number."""

Truth: TypeAlias = NDArray[Any]
"""Encoded labels: class indices (N), 0 or 1 for each label (N, C), or values (N), depending on the target."""


def _one_label(value: object) -> str:
    """Return a class name; errors for numbers and lists name the target to use instead."""
    try:
        return class_label(value)
    except InvalidInput as error:
        lists = "lists of labels need the target 'multi', and one-hot vectors labels=[...] (--labels a,b,c)"
        other = {float: "score names a column of numbers to predict", list: lists}
        if type(value) not in other:
            raise
        raise InvalidInput(f"{str(error).rstrip('.')}; {other[type(value)]}.") from None


# --- predictions ---


@dataclass(frozen=True, slots=True)
class Classification(TaskPrediction):
    """One label out of several.

    Labels have the type that they had in the training data.

    Attributes:
        label: The most probable label.
        probability: Its probability, calibrated if the model is.
        probabilities: The probability of each label, or of the ``top`` labels, most probable first.
        tokens_read: How much of the text was read.
        label_set: With ``coverage``: labels, most probable first, one of which is the true label with this probability.
        out_of_domain: True if the text is unlike the training texts. For models with an out-of-domain detector.
        out_of_domain_score: Distance from the training texts, in the detector's units.
    """

    label: LabelValue
    probability: Probability
    probabilities: dict[LabelValue, Probability]
    tokens_read: TokensRead
    label_set: tuple[LabelValue, ...] | None = None
    out_of_domain: bool | None = None
    out_of_domain_score: float | None = None


@dataclass(frozen=True, slots=True)
class MultiLabelPrediction(TaskPrediction):
    """Any number of labels.

    Attributes:
        labels: Labels whose probability reaches their threshold, most probable first.
        probabilities: The probability of each label, or of the ``top`` labels, most probable first; they do not sum
            to 1.
        tokens_read: How much of the text was read.
    """

    labels: tuple[LabelValue, ...]
    probabilities: dict[LabelValue, Probability]
    tokens_read: TokensRead


@dataclass(frozen=True, slots=True)
class RegressionPrediction(TaskPrediction):
    """A number.

    Attributes:
        value: The predicted value, in the units of the training labels.
        tokens_read: How much of the text was read.
        low: With ``coverage``: lower end of an interval that contains the true value with this probability.
        high: With ``coverage``: upper end of the interval.
    """

    value: float
    tokens_read: TokensRead
    low: float | None = None
    high: float | None = None


Prediction = Classification | MultiLabelPrediction | RegressionPrediction


# --- targets ---


def stored_label_reading(
    stored: StoredLabels | StoredTags, given: Sequence[LabelValue] | None, labels: Sequence[str]
) -> LabelReading:
    """Return the saved rules for reading labels, with the order of the ``given`` ones if a caller names them."""
    order = tuple(stored.vector_labels or ()) if given is None else names_of(given)
    if not set(order) <= set(labels):
        raise damaged("vector_labels", f"labels among {', '.join(labels)}", list(order))
    return LabelReading(order, stored.normalise_labels)


def reading_settings(reading: LabelReading) -> dict[str, object]:
    """Return the rules for reading labels, for ``bothways.json``."""
    order: dict[str, object] = {"vector_labels": list(reading.names)} if reading.names else {}
    return order | ({"normalise_labels": True} if reading.normalise else {})


@dataclass(frozen=True, slots=True)
class SingleLabel:
    """Exactly one of C labels.

    Attributes:
        labels: Names of the labels.
        values: The labels in the types of the data; empty if they are strings, as their names are.
        reading: Rules for reading labels from data.
    """

    labels: tuple[str, ...]
    values: tuple[LabelValue, ...] = ()
    reading: LabelReading = PLAIN_READING

    kind: ClassVar[TargetKind] = "single"
    problem_type: ClassVar[str] = "single_label_classification"
    convert = staticmethod(_one_label)

    @staticmethod
    def names(label: str) -> tuple[str, ...]:
        """Return the label names of a row, given its label."""
        return (label,)

    @property
    def outputs(self) -> int:
        """The number of outputs, C."""
        return len(self.labels)

    def encode(self, examples: Sequence[AnyExample]) -> Truth:
        """Return class indices (N); raise `InvalidInput`, naming the row, for an unknown label."""
        numbers = {label: index for index, label in enumerate(self.labels)}
        for example in examples:
            if example.label not in numbers:
                raise _unknown_label(example.label, example.where, self.labels)
        return np.array([numbers[example.label] for example in examples], dtype=np.int64)

    def decided(self, logits_NC: Logits, calibration: Calibration | None) -> Truth:
        """Return the most probable class of each row (N)."""
        numbers_N: Truth = self.probabilities(logits_NC, calibration).argmax(axis=1)
        return numbers_N

    def probabilities(self, logits_NC: Logits, calibration: Calibration | None) -> Logits:
        """Return class probabilities (N, C)."""
        return (calibration or Temperature(1.0)).apply(logits_NC)

    def outcomes(self, logits_NC: Logits, truth_N: Truth, calibration: Calibration | None) -> Outcomes:
        """Return the results on labelled rows, from which reports and comparisons are computed."""
        stated = (self.probabilities(logits_NC[rows], calibration) for rows in row_blocks(*logits_NC.shape))
        return class_outcomes(self.labels, truth_N, stated, values=self.values)

    def predict(self, logits_C: Logits, calibration: Calibration | None, tokens_read: TokensRead) -> Prediction:
        """Return the most probable label."""
        probabilities_C = self.probabilities(logits_C[None], calibration)[0]
        by_label = _ranked(self.values or self.labels, probabilities_C)
        best = next(iter(by_label))
        return Classification(best, by_label[best], by_label, tokens_read)


@dataclass(frozen=True, slots=True)
class MultiLabel:
    """Any subset of C labels; those at or above their thresholds are predicted.

    Attributes:
        labels: Names of the labels.
        thresholds: Minimum calibrated probability for predicting each label; 0.5 for all if empty.
        values: The labels in the types of the data; empty if they are strings, as their names are.
        reading: Rules for reading labels from data.
    """

    labels: tuple[str, ...]
    thresholds: tuple[float, ...] = ()
    values: tuple[LabelValue, ...] = ()
    reading: LabelReading = PLAIN_READING

    kind: ClassVar[TargetKind] = "multi"
    problem_type: ClassVar[str] = "multi_label_classification"
    convert = staticmethod(label_set)

    @staticmethod
    def names(label: tuple[str, ...]) -> tuple[str, ...]:
        """Return the label names of a row, given its labels."""
        return label

    @property
    def outputs(self) -> int:
        """The number of outputs, C."""
        return len(self.labels)

    def encode(self, examples: Sequence[AnyExample]) -> Truth:
        """Return 1 for each label of a row, else 0 (N, C); raise `InvalidInput` for an unknown label."""
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
        """Return the target with one threshold for all labels."""
        return replace(self, thresholds=(threshold,) * self.outputs)

    def decided(self, logits_NC: Logits, calibration: Calibration | None) -> Truth:
        """Return 1 for each label at or above its threshold, else 0 (N, C)."""
        return (self.probabilities(logits_NC, calibration) >= self.thresholds_C).astype(np.float32)

    def probabilities(self, logits_NC: Logits, calibration: Calibration | None) -> Logits:
        """Return the probabilities of the labels (N, C); the calibration must be a temperature."""
        match calibration:
            case Temperature() | None:
                return apply_sigmoid_temperature(logits_NC, calibration or 1.0)
            case _:
                kind = type(calibration).__name__
                raise InvalidInput(f"multi-label models are calibrated by a temperature, not by {kind}.")

    def outcomes(self, logits_NC: Logits, truth_NC: Truth, calibration: Calibration | None) -> Outcomes:
        """Return the results on labelled rows, from which reports and comparisons are computed."""
        stated_NC = self.probabilities(logits_NC, calibration)
        truth, thresholds = truth_NC.astype(np.int64), self.thresholds_C.tolist()
        return label_outcomes(self.labels, truth, stated_NC, values=self.values, threshold=thresholds)

    def predict(self, logits_C: Logits, calibration: Calibration | None, tokens_read: TokensRead) -> Prediction:
        """Return the labels at or above their thresholds."""
        labels = self.values or self.labels
        by_label = _ranked(labels, self.probabilities(logits_C[None], calibration)[0])
        least = dict(zip(labels, self.thresholds_C.tolist(), strict=True))
        return MultiLabelPrediction(
            tuple(name for name, value in by_label.items() if value >= least[name]), by_label, tokens_read
        )


@dataclass(frozen=True, slots=True)
class Regression:
    """A number to predict.

    During training the head predicts standardised values, ``(value - mean) / scale``. Afterwards, mean and scale are
    folded into the head's last linear map (`target_training.unstandardize`), and the head predicts the value itself.

    Attributes:
        training_mean: Mean of the training labels, the baseline of reports; None if unknown.
        mean: The value for which the head outputs 0.
        scale: The change in value for which the head's output changes by 1.
    """

    training_mean: float | None = None
    mean: float = 0.0
    scale: float = 1.0

    kind: ClassVar[TargetKind] = "regression"
    problem_type: ClassVar[str] = "regression"
    labels: ClassVar[tuple[str, ...]] = ("score",)
    values: ClassVar[tuple[LabelValue, ...]] = ()
    reading: ClassVar[LabelReading] = PLAIN_READING
    outputs: ClassVar[int] = 1
    convert = staticmethod(number)

    @staticmethod
    def names(label: float) -> tuple[str, ...]:
        """Return an empty tuple, since values have no label names."""
        del label
        return ()

    def encode(self, examples: Sequence[AnyExample]) -> Truth:
        """Return the values to predict (N)."""
        return np.array([example.label for example in examples], dtype=np.float32)

    @staticmethod
    def decided(logits_N1: Logits, calibration: Calibration | None) -> Truth:
        """Return the predicted values (N)."""
        del calibration
        return logits_N1[:, 0].astype(np.float32)

    def probabilities(self, logits_N1: Logits, calibration: Calibration | None) -> Logits:
        """Return the predicted values (N, 1) unchanged, since regression has no probabilities."""
        del calibration
        return logits_N1

    def outcomes(self, logits_N1: Logits, truth_N: Truth, calibration: Calibration | None) -> Outcomes:
        """Return the results on labelled rows, from which reports and comparisons are computed."""
        del calibration
        return number_outcomes(truth_N, logits_N1[:, 0], training_mean=self.training_mean)

    def predict(self, logits_1: Logits, calibration: Calibration | None, tokens_read: TokensRead) -> Prediction:
        """Return the predicted value."""
        del calibration
        return RegressionPrediction(float(logits_1[0]), tokens_read)


Target: TypeAlias = SingleLabel | MultiLabel | Regression


def at_threshold(target: Target, threshold: float | None) -> Target:
    """Return a multi-label target with one threshold for all labels; without a threshold, return the target."""
    if threshold is None:
        return target
    match target:
        case MultiLabel():
            return target.at(threshold)
        case SingleLabel():
            kind = "one label"
        case Regression():
            kind = "a number"
    raise InvalidInput(
        f"threshold is {threshold}, but this model predicts {kind}; thresholds are for multi-label models: omit it."
    )


def uncalibrated_target(target: Target, calibration: Calibration | None) -> Target:
    """Return a target with thresholds (if any) that lead to the same decisions on uncalibrated probabilities."""
    match target, calibration:
        case MultiLabel(thresholds=(_, *_)), Temperature(value):
            odds_1C = logits_of(target, target.thresholds_C[None]) * value
            return replace(target, thresholds=tuple(sigmoid(odds_1C)[0].tolist()))
        case _:
            return target


def without_thresholds(target: Target) -> Target:
    """Return a target without thresholds."""
    match target:
        case MultiLabel():
            return replace(target, thresholds=())
        case _:
            return target


def calibrated_logits(target: Target, logits_NC: Logits, calibration: Calibration | None) -> Logits:
    """Return logits whose softmax or sigmoid is the calibrated probability."""
    return logits_of(target, target.probabilities(logits_NC, calibration))


def probabilities_of(target: Target, logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probabilities (..., C) for logits; regression values are returned unchanged."""
    match target:
        case SingleLabel():
            return softmax(logits)
        case MultiLabel():
            return sigmoid(logits)
        case Regression():
            return logits


def logits_of(target: Target, probabilities: NDArray[np.float64]) -> Logits:
    """Return the logits (..., C) for probabilities; regression values are returned unchanged."""
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


def converter(kind: TargetKind) -> type[SingleLabel] | type[MultiLabel] | type[Regression]:
    """Return the target class for a kind."""
    for variant in (SingleLabel, MultiLabel, Regression):
        if variant.kind == kind:
            return variant
    raise InvalidInput(f"target must be 'single', 'multi' or 'regression', got {kind!r}.")


def _ranked(labels: Sequence[LabelValue], probabilities_C: NDArray[np.float64]) -> dict[LabelValue, float]:
    order = np.argsort(-probabilities_C, kind="stable")
    return {labels[index]: float(probabilities_C[index]) for index in order}


def _unknown_label(label: str, where: str, known: Sequence[str]) -> InvalidInput:
    shown = ", ".join(spelled(name, [label]) for name in known[:10]) + (
        f" and {len(known) - 10} more" if len(known) > 10 else ""
    )
    return InvalidInput(
        f"{where} is labelled {spelled(label, known)}, which this classifier does not know. It knows {shown}."
        f"{naming_of_numbers(label, known) or near_label(label, known)}{naming_hint(known)}"
    )
