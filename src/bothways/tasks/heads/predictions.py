"""Predictions of classifiers."""

from dataclasses import asdict, dataclass

from bothways.tasks.scores import TokensRead, flat


@dataclass(frozen=True, slots=True)
class Classification:
    """One label out of several.

    Attributes:
        label: The most probable label.
        probability: Its probability, calibrated where the model was.
        probabilities: All of them, by label, most probable first.
        tokens_read: How much of the text was read.
        label_set: Labels of which one is right as often as the coverage that was asked for says, most probable first;
            None where none was asked for.
        out_of_domain: True if the text is unlike those that the model was trained on; None where the model cannot say.
        out_of_domain_score: The more, the less it is like them.
    """

    label: str
    probability: float
    probabilities: dict[str, float]
    tokens_read: TokensRead
    label_set: tuple[str, ...] | None = None
    out_of_domain: bool | None = None
    out_of_domain_score: float | None = None

    def to_dict(self) -> dict[str, object]:
        """Return JSON values, flat."""
        return flat(asdict(self))


@dataclass(frozen=True, slots=True)
class MultiLabelPrediction:
    """Any number of labels.

    Attributes:
        labels: Those at or above the threshold, most probable first.
        probabilities: All of them, by label, most probable first; they do not sum to 1.
        tokens_read: How much of the text was read.
    """

    labels: tuple[str, ...]
    probabilities: dict[str, float]
    tokens_read: TokensRead

    def to_dict(self) -> dict[str, object]:
        """Return JSON values, flat."""
        return flat(asdict(self))


@dataclass(frozen=True, slots=True)
class RegressionPrediction:
    """A number.

    Attributes:
        value: In the units of the training labels.
        tokens_read: How much of the text was read.
        low: Lower end of an interval that holds the truth as often as the coverage that was asked for says; None where
            none was asked for.
        high: Its upper end.
    """

    value: float
    tokens_read: TokensRead
    low: float | None = None
    high: float | None = None

    def to_dict(self) -> dict[str, object]:
        """Return JSON values, flat."""
        return flat(asdict(self))


Prediction = Classification | MultiLabelPrediction | RegressionPrediction
