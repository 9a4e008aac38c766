"""What each of several tasks learns from."""

from dataclasses import dataclass

from bothways.data import Source
from bothways.evaluation.tag_schemes import Scheme
from bothways.tasks.columns import TagColumns, TextColumns
from bothways.tasks.targets import TargetKind


@dataclass(frozen=True, slots=True)
class TaskData:
    """What a task that labels texts learns from.

    Attributes:
        train: A file, or a list of mappings.
        validation: Held-out data; a tenth of the training data, drawn with the seed, when None.
        text: Columns of the texts, joined by a space.
        label: Column of the labels.
        target: One label, several, or a number.
    """

    train: Source
    validation: Source | None = None
    text: str | tuple[str, ...] = "text"
    label: str = "label"
    target: TargetKind = "single"

    @property
    def columns(self) -> TextColumns:
        """The columns' names."""
        return TextColumns((self.text,) if isinstance(self.text, str) else tuple(self.text), self.label)


@dataclass(frozen=True, slots=True)
class TaggingData:
    """What a task that tags words learns from.

    Attributes:
        train: A file, or a list of mappings.
        validation: Held-out data; a tenth of the training data, drawn with the seed, when None.
        tokens: Column of the words.
        tags: Column of their tags.
        scheme: How tags say spans; by default what they look like.
    """

    train: Source
    validation: Source | None = None
    tokens: str = "tokens"
    tags: str = "tags"
    scheme: Scheme | None = None

    @property
    def columns(self) -> TagColumns:
        """The columns' names."""
        return TagColumns(self.tokens, self.tags)
