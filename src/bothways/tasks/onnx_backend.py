"""The backend of exported models, which runs an ONNX graph and needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from typing_extensions import override

from bothways.checkpoints.exported import ExportedModel, open_exported
from bothways.checkpoints.hub import LocatedModel
from bothways.encoder.config import EncoderConfig
from bothways.errors import CorruptCheckpoint, InvalidInput, NotFitted
from bothways.inference import TextRunner, TokenBudget
from bothways.inference.graph import GRAPH_TOKENS, Graph, GraphRunner
from bothways.tasks.backend import Backend, OpenOptions, text_options
from bothways.text import TextTokenizer

if TYPE_CHECKING:
    from bothways.choices import HeadName


@dataclass(frozen=True)
class OnnxBackend(Backend):
    """An exported model: its files and its graph."""

    files: ExportedModel
    graph: Graph

    @classmethod
    def open(cls, located: LocatedModel, task: str, options: OpenOptions) -> OnnxBackend:
        """Open an exported model for a task; raise `InvalidInput` if the options ask for a GPU or another precision."""
        device, dtype = str(options.get("device", "auto")), options.get("dtype")
        if device not in ("auto", "cpu") or str(dtype).removeprefix("torch.") not in ("None", "auto", "float32"):
            raise InvalidInput(
                f"expected device 'cpu' and dtype 'float32' for {located.name!r}, an ONNX export, got {device!r} and "
                f"{str(dtype or 'float32')!r}: leave them out, or open the original model."
            )
        exported = open_exported(located)
        reading = text_options(exported.extras, exported.config, exported.tokenizer, task, options)
        return cls(reading, TokenBudget(GRAPH_TOKENS), exported, Graph(exported.graph))

    @property
    @override
    def name(self) -> str:
        return self.files.name

    @property
    @override
    def export(self) -> ExportedModel:
        return self.files

    @property
    @override
    def config(self) -> EncoderConfig:
        return self.files.config

    @property
    @override
    def tokenizer(self) -> TextTokenizer:
        return self.files.tokenizer

    @property
    @override
    def arithmetic(self) -> tuple[str, str]:
        return "float32", "cpu"

    @cached_property
    @override
    def runner(self) -> TextRunner:
        per_token = self.files.rows.per_token
        windows = GraphRunner(self.graph, per_token=per_token, budget=self.budget)
        return TextRunner(self.tokenizer, windows, self.reading, per_token=per_token)

    @override
    def score_count(self, head: HeadName) -> int | None:
        rows = self.files.rows
        return rows.size if rows.head == head else None

    @override
    def with_trained_head(self, task: str, head: HeadName, layers: int, *, per_token: bool) -> OnnxBackend:
        rows = self.files.rows
        width = (self.score_count(head) or 0) + layers * self.config.hidden
        if (rows.width, rows.per_token) != (width, per_token):
            unit = "token" if per_token else "window"
            raise CorruptCheckpoint(
                f"expected the graph of {self.name!r} to return {width} numbers per {unit} for {task}, got "
                f"{rows.width}: its files are from different exports. Export the model again."
            )
        return self

    @override
    def not_fitted(self, task: str, head: str) -> NotFitted:
        del head
        stored = self.files.rows.head
        untrained = "an embedder" if stored is None else f"a model with a {stored} head"
        made = f"a model for {self.trained_for}" if self.trained_for else untrained
        return NotFitted(
            f"expected an exported model for {task}, got {self.name!r}, exported from {made}: "
            f"export a model that was trained for {task}."
        )

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "runner"}
