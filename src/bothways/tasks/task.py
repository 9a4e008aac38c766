"""What every task that can be trained offers, so that one program can use any of them."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from bothways.data import Row, Source


class Prediction(Protocol):
    """What a task says of one row."""

    def to_dict(self) -> dict[str, object]:
        """As JSON values."""


class Report(Protocol):
    """How well a task does on labelled data."""

    def to_dict(self) -> dict[str, object]:
        """As JSON values, each number with its interval."""

    def summary(self) -> str:
        """A short table."""


class Task(Protocol):
    """A trained model of one task.

    Attributes:
        columns: Where the parts of a row stand, a frozen dataclass of column names.
        card: What the model says of its making.
    """

    columns: Any
    card: dict[str, Any]

    def facts(self) -> dict[str, object]:
        """What a user wants to know of a trained model, as JSON values: labels, calibration, thresholds."""

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """Rows as they would stand in a file, of texts that were typed in.

        Raises:
            InvalidInput: The task cannot be asked with texts alone, or not with this number.
        """

    def predict(self, given: Any, /, *, show_progress: bool | None = None) -> Any:  # noqa: ANN401 (the task says)
        """One prediction for one thing that the task reads, a list for a list of them, in order.

        Raises:
            InvalidInput: It is not what the task reads, or something is empty.
        """

    def predict_rows(self, rows: Iterable[Row], *, show_progress: bool | None = None) -> Iterator[Prediction]:
        """A prediction for each row, in order and in flat memory.

        Raises:
            InvalidInput: A row lacks what the task reads.
        """

    def evaluate(
        self, data: Source, *, resamples: int = 1000, seed: int = 0, show_progress: bool | None = None
    ) -> Report:
        """Metrics on labelled data, with 95 % bootstrap intervals."""

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the model, whole or not at all."""
