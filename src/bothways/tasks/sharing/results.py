"""What several tasks say of one text, and how well each of them does."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bothways.evaluation import Report, TextsRead
from bothways.tasks.predictions import Prediction
from bothways.tasks.tagging.predictions import Tagging


@dataclass(frozen=True, slots=True)
class MultiPrediction:
    """A prediction of each task, by name.

    Attributes:
        predictions: By task; each says how much of the text was read.
    """

    predictions: Mapping[str, Prediction | Tagging]

    def __getitem__(self, task: str) -> Any:  # noqa: ANN401 (which of them it is, the task says)
        """That of one task."""
        return self.predictions[task]

    def to_dict(self) -> dict[str, object]:
        """As JSON values: an object for each task."""
        return {name: each.to_dict() for name, each in self.predictions.items()}


@dataclass(frozen=True, slots=True)
class MultiReport:
    """A report of each task, by name.

    Attributes:
        reports: By task.
        reading: How much of the texts was read.
    """

    reports: Mapping[str, Report]
    reading: TextsRead

    def __getitem__(self, task: str) -> Report:
        """That of one task."""
        return self.reports[task]

    def to_dict(self) -> dict[str, object]:
        """As JSON values: an object for each task, and how texts were read."""
        return {**{name: each.to_dict() for name, each in self.reports.items()}, "reading": self.reading.to_dict()}

    def summary(self) -> str:
        """A short table for each task."""
        tables = [f"{name}: {each.summary()}" for name, each in self.reports.items()]
        return "\n\n".join([*tables, *([self.reading.summary()] if self.reading.summary() else [])])
