"""What a saved model says of its making."""

from dataclasses import dataclass
from typing import Any

from bothways.checkpoints import PretrainedEncoder
from bothways.tasks.columns import column_settings
from bothways.training.record import TrainingRecord


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
