"""Predictions of classifiers."""

from dataclasses import dataclass

from bothways.tasks.scores import Probability, TaskPrediction, TokensRead


@dataclass(frozen=True, slots=True)
class Classification(TaskPrediction):
    """One label out of several.

    Attributes:
        label: The most probable label.
        probability: Its probability, calibrated if the model is.
        probabilities: The probability of each label, or of the ``top`` labels, most probable first.
        tokens_read: How much of the text was read.
        label_set: With ``coverage``: labels that include the right one with this probability, most probable first.
        out_of_domain: True if the text is unlike the training texts. For models with an out-of-domain detector.
        out_of_domain_score: Distance from the training texts, in the detector's units.
    """

    label: str
    probability: Probability
    probabilities: dict[str, Probability]
    tokens_read: TokensRead
    label_set: tuple[str, ...] | None = None
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

    labels: tuple[str, ...]
    probabilities: dict[str, Probability]
    tokens_read: TokensRead


@dataclass(frozen=True, slots=True)
class RegressionPrediction(TaskPrediction):
    """A number.

    Attributes:
        value: The predicted number, in the units of the training labels.
        tokens_read: How much of the text was read.
        low: With ``coverage``: lower end of an interval that includes the true number with this probability.
        high: With ``coverage``: upper end of the interval.
    """

    value: float
    tokens_read: TokensRead
    low: float | None = None
    high: float | None = None


Prediction = Classification | MultiLabelPrediction | RegressionPrediction
