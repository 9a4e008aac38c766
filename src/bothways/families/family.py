"""A family of published models, as data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bothways.encoder.config import EncoderConfig
from bothways.errors import InvalidInput
from bothways.families.config_keys import QUANTIZATION, ConfigReader, Settings, quantization_of
from bothways.families.stored_heads import HEAD_NAMES, CheckpointHead, FamilyHead, HeadName, head_beside, resolved
from bothways.families.weight_map import WeightRow
from bothways.text.recipes import TokenizerRecipe

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Published:
    """One published model of a family.

    Attributes:
        name: Its name on the model hub.
        year: Year of publication.
        settings: The settings in its ``config.json`` for the encoder's shape.
    """

    name: str
    year: int
    settings: Settings


@dataclass(frozen=True, slots=True)
class Family:
    """A family of encoders: its configurations, and the layout of its models on disk.

    Attributes:
        model_type: Name of the family in ``config.json``.
        title: Its name in running text.
        paper: The publication.
        reader: Reads its ``config.json``.
        prefix: Prefix of the encoder's tensor names in a model with a head.
        rows: Weight rows of the encoder and its pooler, without the prefix.
        base_architecture: Name of the bare encoder in ``config.json``.
        heads: Its heads.
        architectures: Names of models with heads in ``config.json``, with the heads that they have.
        pooler_training: The objective that trained the pooler, or None if nothing did and its output is meaningless.
        tokenizer: Recipe for its tokenizer if there is no ``tokenizer.json``.
        published: Its published models.
        layers_key: Setting for the number of layers.
    """

    model_type: str
    title: str
    paper: str
    reader: ConfigReader
    prefix: str
    rows: tuple[WeightRow, ...]
    base_architecture: str
    heads: Mapping[HeadName, FamilyHead]
    architectures: Mapping[str, tuple[HeadName, ...]]
    pooler_training: str | None
    tokenizer: TokenizerRecipe
    published: tuple[Published, ...]
    layers_key: str = "num_hidden_layers"

    def config(self, settings: Settings) -> EncoderConfig:
        """Return the encoder that a ``config.json`` of this family describes."""
        own = {} if quantization_of(settings) is None else {QUANTIZATION: None}
        return self.reader({**settings, **own})

    def head(self, name: str, settings: Settings) -> CheckpointHead:
        """Return one of the family's heads as a ``config.json`` describes it."""
        known = self.head_name(name)
        return head_beside(known, settings) or resolved(self.heads[known], settings)

    def head_name(self, name: str) -> HeadName:
        """Check that the family has a head of this name, and return the name."""
        found = next((known for known in HEAD_NAMES if known == name and known in self.heads), None)
        if found is None:
            raise InvalidInput(
                f"a {self.title} model can have one of the heads {', '.join(self.heads)}, but {name!r} was asked for."
            )
        return found

    def architecture(self, heads: Collection[HeadName], settings: Settings) -> str:
        """Return the name of a model with these heads in ``config.json``.

        Args:
            heads: Names of the heads.
            settings: Other settings in ``config.json``.
        """
        if not heads or (len(heads) == 1 and head_beside(next(iter(heads)), settings)):
            return self.base_architecture
        found = next((name for name, held in self.architectures.items() if set(held) == set(heads)), None)
        if found is None:
            known = ", ".join(" with ".join(held) for held in self.architectures.values())
            raise InvalidInput(
                f"a {self.title} model is stored with the heads {known}, but not with {' and '.join(heads)} alone."
            )
        return found

    def architecture_heads(self, settings: Settings) -> tuple[HeadName, ...]:
        """Return the heads that a ``config.json`` states, if its architecture is known."""
        named = settings.get("architectures")
        first = named[0] if isinstance(named, list) and named else None
        if isinstance(first, str) and first in self.architectures:
            return self.architectures[first]
        return ("sequence",) if head_beside("sequence", settings) else ()

    def canonical(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Add the prefix to every encoder name, and replace old spellings of the norms."""
        modern = {_modern(name): value for name, value in tensors.items()}
        if any(name.startswith(self.prefix) for name in modern):
            return modern
        return {self.prefix + name: value for name, value in modern.items()}


def _modern(name: str) -> str:
    """Replace gamma and beta, the norms' weight and bias in the first BERT checkpoints."""
    if name.endswith("LayerNorm.gamma"):
        return name.removesuffix("gamma") + "weight"
    if name.endswith("LayerNorm.beta"):
        return name.removesuffix("beta") + "bias"
    return name
