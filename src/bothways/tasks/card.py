"""What a saved classifier says of its making, and the columns that it goes on to read unless told otherwise."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bothways.checkpoints import PretrainedEncoder
from bothways.tasks.stored import damaged
from bothways.training.record import TrainingRecord


@dataclass(frozen=True, slots=True)
class Columns:
    """Where texts and labels stand in labelled data.

    Attributes:
        text: Columns of the texts, joined by a space.
        label: Column of the labels.
    """

    text: tuple[str, ...] = ("text",)
    label: str = "label"

    @classmethod
    def of(cls, text: str | tuple[str, ...], label: str) -> "Columns":
        """From one text column or several."""
        return cls((text,) if isinstance(text, str) else tuple(text), label)

    def to_dict(self) -> dict[str, object]:
        """As JSON values."""
        return {"text": list(self.text), "label": self.label}


@dataclass(frozen=True, slots=True)
class DataUsed:
    """What a model was trained on.

    Attributes:
        columns: Where texts and labels stood.
        training_rows: Rows that were learnt from.
        validation_rows: Rows that were held out.
        split: Whether those were drawn from the training data.
    """

    columns: Columns
    training_rows: int
    validation_rows: int
    split: bool


def written_card(model: PretrainedEncoder, record: TrainingRecord, data: DataUsed) -> dict[str, Any]:
    """The card of a model that was just trained."""
    summary = {name: value for name, value in record.to_dict().items() if name != "losses"}
    return {
        "base_model": model.name,
        "revision": model.revision,
        "columns": data.columns.to_dict(),
        "training_rows": data.training_rows,
        "validation_rows": data.validation_rows,
        "validation": "a tenth of the training data" if data.split else "given",
        "training": summary,
    }


def stored_columns(card: Mapping[str, object]) -> Columns:
    """The columns that a card names, or else ``text`` and ``label``.

    Raises:
        CorruptCheckpoint: They are not names.
    """
    stored = card.get("columns")
    if stored is None:
        return Columns()
    text, label = (stored.get("text"), stored.get("label")) if isinstance(stored, Mapping) else (None, None)
    named = isinstance(text, list) and text and all(isinstance(name, str) for name in text)
    if not named or not isinstance(label, str):
        raise damaged("the columns of its card", "a list of text columns and a label column", stored)
    return Columns(tuple(text or ()), label)
