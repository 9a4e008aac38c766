"""What a family of published models is: data."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from bothways.encoder.config import EncoderConfig
from bothways.encoder.heads import MaskedLMHeadKind, SequenceHeadKind
from bothways.families.config_keys import ConfigKeys, Settings, read_config
from bothways.families.weight_map import WeightRow
from bothways.text.recipes import Recipe


@dataclass(frozen=True, slots=True)
class Published:
    """One published size.

    Attributes:
        name: Its name on the model hub.
        year: Of publication.
        settings: What its ``config.json`` says of the encoder's shape.
    """

    name: str
    year: int
    settings: Settings


@dataclass(frozen=True, slots=True)
class HeadRows:
    """One head as the family stores it.

    Attributes:
        architecture: What ``config.json`` calls a model with this head.
        rows: Weight rows of the head; names are whole, with the prefix where the family writes one.
    """

    architecture: str
    rows: tuple[WeightRow, ...]


@dataclass(frozen=True, slots=True)
class Family:
    """A region in the space of encoders, and how its models lie on disk.

    Attributes:
        model_type: What ``config.json`` calls the family.
        title: Its name in running text.
        paper: Where it was published.
        keys: Names of its settings.
        prefix: Before the encoder's tensor names in a model with a head.
        rows: Weight rows of the encoder and its pooler, without the prefix.
        base_architecture: What ``config.json`` calls the bare encoder.
        masked_lm: The masked language modelling head as stored.
        masked_lm_kind: And as computed.
        sequence: The sequence classification head as stored.
        sequence_kind: And as computed.
        pooler_training: What trained the pooler, or None when nothing did, so that its output means nothing.
        tokenizer: How to build its tokenizer where there is no ``tokenizer.json``.
        published: Its sizes.
    """

    model_type: str
    title: str
    paper: str
    keys: ConfigKeys
    prefix: str
    rows: tuple[WeightRow, ...]
    base_architecture: str
    masked_lm: HeadRows
    masked_lm_kind: MaskedLMHeadKind
    sequence: HeadRows
    sequence_kind: SequenceHeadKind
    pooler_training: str | None
    tokenizer: Recipe
    published: tuple[Published, ...]

    def config(self, settings: Settings) -> EncoderConfig:
        """The encoder that a ``config.json`` of this family describes.

        Raises:
            UnsupportedConfig: A setting asks for something that is not built.
            CorruptCheckpoint: A setting is missing or has the wrong type.
        """
        return read_config(self.keys, settings)

    def canonical(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors with the prefix before every encoder name, and with old spellings of the norms made new."""
        modern = {_modern(name): value for name, value in tensors.items()}
        if any(name.startswith(self.prefix) for name in modern):
            return modern
        return {self.prefix + name: value for name, value in modern.items()}


def _modern(name: str) -> str:
    """The first BERT checkpoints call the weight and bias of a norm gamma and beta."""
    if name.endswith("LayerNorm.gamma"):
        return name.removesuffix("gamma") + "weight"
    if name.endswith("LayerNorm.beta"):
        return name.removesuffix("beta") + "bias"
    return name
