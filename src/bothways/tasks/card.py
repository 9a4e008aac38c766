"""What a saved model says of its making."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from bothways.checkpoints import PretrainedEncoder
from bothways.evaluation import Estimate
from bothways.evaluation.report import flat_estimates
from bothways.tasks.columns import column_settings
from bothways.tasks.labelling.trust import Trust
from bothways.tasks.targets import Report
from bothways.training.record import TrainingRecord


class Measured(Protocol):
    """A report of any task."""

    @property
    def n(self) -> int:
        """Rows."""

    def estimates(self) -> dict[str, Estimate]:
        """The numbers that carry an interval, by name."""


@dataclass(frozen=True, slots=True)
class DataUsed:
    """What a model was trained on.

    Attributes:
        columns: Where texts and labels stood, the task's dataclass of names.
        training_rows: Rows that were learnt from.
        validation_rows: Rows that were held out.
        split: Whether those were drawn from the training data.
    """

    columns: Any
    training_rows: int
    validation_rows: int
    split: bool


def written_card(model: PretrainedEncoder, record: TrainingRecord, data: DataUsed) -> dict[str, Any]:
    """The card of a model that was just trained."""
    summary = {name: value for name, value in record.to_dict().items() if name != "losses"}
    return {
        "base_model": model.name,
        "revision": model.revision,
        "columns": column_settings(data.columns),
        "training_rows": data.training_rows,
        "validation_rows": data.validation_rows,
        "validation": "a tenth of the training data" if data.split else "given",
        "training": summary,
    }


def measured(metrics: Measured) -> dict[str, Any]:
    """What the card says of metrics on the held-out rows."""
    return {"of": "the validation rows", "n": metrics.n, **flat_estimates(metrics.estimates())}


def trust_card(
    training: Mapping[str, object], validation: Mapping[str, object], metrics: Report, trust: Trust
) -> dict[str, Any]:
    """What the card of a model adds that learnt on held-out rows how far it can be trusted.

    Args:
        training: Number and checksums of the rows that were learnt from.
        validation: Of those that were held out.
        metrics: On the held-out rows, with calibration.
        trust: What else was learnt on those.
    """
    return {
        "data": {"training": dict(training), "validation": dict(validation)},
        "metrics": measured(metrics),
        "trust": trust.to_card(),
        "limits": _limits(trust),
    }


def _limits(trust: Trust) -> list[str]:
    """What a reader of the numbers has to know."""
    limits = [
        "The metrics are of the rows that also chose the epoch to keep and the calibration, so they flatter the "
        "model a little. Rows that it has never met say more.",
        "Metrics, probabilities and coverage hold for texts like the validation rows.",
    ]
    if trust.border is None:
        limits.append("The model does not notice texts that are unlike those of its training.")
    return limits
