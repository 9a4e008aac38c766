"""An opened model, with weights or exported, as far as its answers need it. Loads no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bothways.checkpoints.exported import ExportedModel, is_exported, open_exported
from bothways.checkpoints.hub import LocatedModel
from bothways.checkpoints.schema import Extras
from bothways.data.windows import WindowStore
from bothways.encoder.config import EncoderConfig
from bothways.errors import InvalidInput, NotFitted
from bothways.families import Family
from bothways.inference import TextOptions, TokenBudget
from bothways.inference.graph import Graph, GraphEngine, graph_budget
from bothways.tasks.reading import OpenOptions, stored_reading, stored_texts
from bothways.text import TextTokenizer
from bothways.text.texts import Text

if TYPE_CHECKING:
    from bothways.choices import HeadName
    from bothways.tasks.opening import OpenedModel


class Opened(ABC):
    """An opened model, and how it is to read texts.

    Attributes:
        reading: How texts are read.
        budget: Tokens of a batch, lowered where memory runs out.
        options: What the task was opened with besides: the ``open_options`` of its spec.
    """

    __slots__ = ()

    reading: TextOptions
    budget: TokenBudget
    options: Any

    @property
    @abstractmethod
    def name(self) -> str:
        """The name that the caller gave."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """The folder of the files."""

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, object]:
        """The contents of ``config.json``."""

    @property
    @abstractmethod
    def extras(self) -> Extras:
        """The contents of ``bothways.json``."""

    @property
    @abstractmethod
    def family(self) -> Family:
        """The family."""

    @property
    @abstractmethod
    def config(self) -> EncoderConfig:
        """The encoder's configuration."""

    @property
    @abstractmethod
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer."""

    @abstractmethod
    def score_count(self, head: HeadName) -> int | None:
        """Return how many scores its trained head of this name gives; None where it has none."""

    @abstractmethod
    def weights(self, verb: str) -> OpenedModel:
        """Return the model with its weights.

        Args:
            verb: What is to be done with them.

        Raises:
            InvalidInput: It is an ONNX export, which has none.
        """

    @property
    def trained_for(self) -> str | None:
        """The task that it was trained for here; None where it was not."""
        task = self.extras.get("task")
        return task if isinstance(task, str) else None

    def not_fitted(self, task: str, head: str) -> NotFitted:
        """Return the error of asking it for what it was not trained for.

        Args:
            task: What it is asked to do.
            head: What would do that.
        """
        if self.trained_for not in (None, task):
            return NotFitted(
                f"{self.name!r} was trained for {self.trained_for} and not for {task}: open it as that "
                "(bothways.open_trained opens any), or call fit to train it for this."
            )
        return NotFitted(f"{self.name!r} has no trained {head} yet: call fit first.")

    def stored(self, texts: Sequence[Text], *, offsets: bool = False) -> WindowStore:
        """Texts, tokenised and kept compactly; with ``offsets`` also where each token stands."""
        return stored_texts(self.tokenizer, texts, self.reading, offsets=offsets)

    def stored_reading(self) -> dict[str, object]:
        """Return how texts are read, for ``bothways.json``."""
        reading = self.reading
        return {
            "max_length": reading.max_length,
            "on_overflow": reading.on_overflow,
            "stride": reading.stride,
            "as_words": reading.as_words,
        }


@dataclass(frozen=True, slots=True)
class OpenedExport(Opened):
    """An exported model, and how it is to read texts.

    Attributes:
        exported: The files.
        graph: Its graph.
        reading: How texts are read.
        budget: Tokens of a batch, padding included.
        options: What the task was opened with besides: the ``open_options`` of its spec.
    """

    exported: ExportedModel
    graph: Graph
    reading: TextOptions
    budget: TokenBudget
    options: Any = None

    @property
    def name(self) -> str:
        """The name that the caller gave."""
        return self.exported.name

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return self.exported.folder

    @property
    def settings(self) -> Mapping[str, object]:
        """The contents of ``config.json``."""
        return self.exported.settings

    @property
    def extras(self) -> Extras:
        """The contents of ``bothways.json``."""
        return self.exported.extras

    @property
    def family(self) -> Family:
        """The family."""
        return self.exported.family

    @property
    def config(self) -> EncoderConfig:
        """The configuration of the encoder that it was made of."""
        return self.exported.config

    @property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer."""
        return self.exported.tokenizer

    def score_count(self, head: HeadName) -> int | None:
        """Return how many scores the graph gives; None where it has another head."""
        rows = self.exported.rows
        return rows.size if rows.head == head else None

    def weights(self, verb: str) -> OpenedModel:
        """Refuse: the graph answers, and no more.

        Raises:
            InvalidInput: Always.
        """
        raise self.exported.no_weights(verb)

    def engine(self) -> GraphEngine:
        """Return an engine that reads texts in this way and runs the graph."""
        return GraphEngine(self.tokenizer, self.graph, self.reading, self.budget)

    def not_fitted(self, task: str, head: str) -> NotFitted:
        """Return the error of asking it for what it does not answer."""
        del head
        made = self.trained_for or (f"a model with a {self.exported.rows.head} head" if self.exported.rows.head else "")
        return NotFitted(
            f"expected an exported model for {task}, got {self.name!r}, which was made of {made or 'an embedder'}: "
            "export a model that was trained for it."
        )


def open_export(located: LocatedModel, task: str, options: OpenOptions) -> OpenedExport:
    """Open an exported model; what is left out is as ``bothways.json`` says, or else as the model can.

    Args:
        located: Its folder.
        task: What it is opened for, see `bothways.tasks.opening.open_model`.
        options: See `OpenOptions`.

    Raises:
        InvalidInput: A setting is out of range, or the model is to run on another device or in another precision.
        NotFitted: The export answers no task.
        CorruptCheckpoint: A file is damaged.
    """
    device, dtype = str(options.get("device", "auto")), options.get("dtype")
    if device not in ("auto", "cpu") or str(dtype).removeprefix("torch.") not in ("None", "auto", "float32"):
        raise InvalidInput(
            f"expected device 'cpu' and dtype 'float32' for {located.name!r}, an ONNX export, got {device!r} and "
            f"{str(dtype or 'float32')!r}: leave them out, or open the model that it was made of."
        )
    found = open_exported(located)
    reading = stored_reading(found.extras, found.config, found.tokenizer, task, options)
    return OpenedExport(found, Graph(found.graph), reading, graph_budget())


def open_located(located: LocatedModel, task: str, options: OpenOptions) -> Opened:
    """Open a model that was found: one with weights, or an exported one.

    Args:
        located: Where it is.
        task: What it is opened for, see `bothways.tasks.opening.open_model`.
        options: See `OpenOptions`.

    Raises:
        InvalidInput: A setting is out of range.
        CorruptCheckpoint: A file is damaged. And everything that `bothways.load` raises.
    """
    if is_exported(located.folder):
        return open_export(located, task, options)
    from bothways.tasks.opening import open_model

    return open_model(located, task, **options)
