"""Predictions of classifiers."""

import warnings
from dataclasses import asdict, dataclass

from bothways.errors import TextsTruncated
from bothways.evaluation import TextsRead
from bothways.tasks.scores import TokensRead


def warn_of_cut(read: TextsRead) -> None:
    """Tell the caller of the function that calls this that texts were cut, where its result has no place for that.

    Warns:
        TextsTruncated: Texts were cut (only with ``on_overflow="truncate"``).
    """
    if read.cut:
        message = f"{read.cut:,} of {read.texts:,} texts were cut: {read.dropped_tokens:,} tokens were not read."
        warnings.warn(TextsTruncated(message), stacklevel=3)


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
        return _flat(asdict(self))


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
        return _flat(asdict(self))


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
        return _flat(asdict(self))


@dataclass(frozen=True, slots=True)
class Similarity:
    """The similarity of two texts.

    Attributes:
        similarity: Cosine of their vectors, -1 to 1.
        tokens_read: How much of them was read: the windows of the one that was read in more, and the tokens of both
            that were not read.
    """

    similarity: float
    tokens_read: TokensRead

    def to_dict(self) -> dict[str, object]:
        """Return JSON values, flat."""
        return _flat(asdict(self))


Prediction = Classification | MultiLabelPrediction | RegressionPrediction


def _flat(values: dict[str, object]) -> dict[str, object]:
    """Return the entries of ``tokens_read`` among the others, without what was not asked for."""
    tokens_read = values.pop("tokens_read")
    flat = {**values, **tokens_read} if isinstance(tokens_read, dict) else values
    return {name: value for name, value in flat.items() if value is not None}
