"""What an ensemble says of a row, and how well it does beside its members."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bothways.evaluation import AnsweringReport, SpanReport, TagReport
from bothways.tasks import targets
from bothways.tasks.answering.answers import QuestionAnswer
from bothways.tasks.ensembles.combining import Disagreement, Spread
from bothways.tasks.predictions import Prediction
from bothways.tasks.tagging.predictions import Tagging

Together: TypeAlias = Prediction | Tagging | QuestionAnswer
Report: TypeAlias = targets.Report | SpanReport | TagReport | AnsweringReport


@dataclass(frozen=True, slots=True)
class EnsemblePrediction:
    """What the members say together, and how far they are apart.

    Attributes:
        together: The prediction. Its reading is that of the member that needed most windows, or dropped most tokens.
        disagreement: How far the members are apart.
    """

    together: Together
    disagreement: Disagreement | Spread

    def to_dict(self) -> dict[str, object]:
        """As JSON values, flat."""
        return {**self.together.to_dict(), **self.disagreement.to_dict()}


@dataclass(frozen=True, slots=True)
class EnsembleReport:
    """Metrics of an ensemble.

    Attributes:
        report: Of what the members say together.
        disagreement: Means over the rows, by name.
        members: Metrics of each member alone, by its name.
    """

    report: Report
    disagreement: Mapping[str, float]
    members: Sequence[tuple[str, Mapping[str, float]]]

    def to_dict(self) -> dict[str, object]:
        """As JSON values: the report's, and those of disagreement and members."""
        members = [{"member": name, **metrics} for name, metrics in self.members]
        return {**self.report.to_dict(), "disagreement": dict(self.disagreement), "members": members}

    def summary(self) -> str:
        """A short table, and a line for each member."""
        lines = [self.report.summary(), "", "members"]
        lines += [f"  {name}: {_said(metrics)}" for name, metrics in self.members]
        return "\n".join([*lines, f"disagreement, mean: {_said(self.disagreement)}"])


def _said(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in numbers.items())
