"""A head that was exported with the encoder below it: an ONNX graph answers, and torch need not be there.

Shapes: W windows of a text, K numbers that the graph gives.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from bothways.errors import CorruptCheckpoint
from bothways.tasks.columns import stored_columns
from bothways.tasks.head import rows_of_inputs, run_of
from bothways.tasks.opened import OpenedExport
from bothways.tasks.outputs import HeadOutputs
from bothways.tasks.scores import Scores
from bothways.tasks.spec import TaskSpec


@dataclass(frozen=True, slots=True, eq=False)
class ExportedHead:
    """An exported head, and all that is known of its answers: an immutable value.

    Attributes:
        spec: What its task declares.
        opened: The export, and how it reads texts.
        outputs: What the head's outputs mean.
        columns: Where the parts of a row stand.
        card: What the model says of its making.
    """

    spec: TaskSpec
    opened: OpenedExport
    outputs: Any  # HeadOutputs of the task
    columns: Any
    card: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, spec: TaskSpec, opened: OpenedExport, outputs: HeadOutputs[Any, Any], card: Mapping[str, Any]
    ) -> "ExportedHead":
        """Return an exported head with what was saved beside it.

        Raises:
            CorruptCheckpoint: The graph gives other numbers than the task reads.
        """
        rows = opened.exported.rows
        wanted = rows.size + outputs.layers * opened.config.hidden
        if (rows.width, rows.per_token) != (wanted, outputs.per_token):
            unit = "token" if outputs.per_token else "window"
            raise CorruptCheckpoint(
                f"the graph of {opened.name!r} must give {wanted} numbers for each {unit} to answer {spec.name}, but "
                f"it gives {rows.width}: its files do not belong together. Export the model again."
            )
        return cls(spec, opened, outputs, stored_columns(card, spec.columns), card)

    @property
    def name(self) -> str:
        """The model's."""
        return self.opened.name

    def scores(
        self,
        inputs: Iterable[Any],
        options: object = None,
        *,
        description: str = "predicting",
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[Scores[Any]]:
        """Yield the scores of inputs, in order and in flat memory."""
        outputs: HeadOutputs[Any, Any] = self.outputs
        run = run_of(self.opened.engine(), outputs.per_token, description, total, show_progress)
        for value, rows in rows_of_inputs(outputs, inputs, run):
            yield outputs.scores(value, rows, options)

    def facts(self) -> dict[str, object]:
        """Return what a user wants to know of the model, as JSON values."""
        facts: dict[str, object] = self.outputs.facts()
        return facts

    def write(self, folder: Path, task: str) -> NoReturn:
        """Refuse: there are no weights to write.

        Raises:
            InvalidInput: Always.
        """
        del folder, task
        raise self.opened.exported.no_weights("save")
