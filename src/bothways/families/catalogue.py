"""The published sizes of every family, with their parameters counted."""

from dataclasses import dataclass

import torch

from bothways.encoder import Pooler, count_parameters
from bothways.encoder.config import EncoderConfig, TanhPooler
from bothways.families.family import Family, Published


@dataclass(frozen=True, slots=True)
class PublishedSize:
    """One published model.

    Attributes:
        name: Its name on the model hub.
        family: The ``model_type`` of its family.
        year: Of publication.
        parameters: Of the bare encoder, with its pooler where the family stores one; heads are not counted.
        layers: Number of layers.
        hidden: Width of the hidden states.
        heads: Attention heads of a layer.
        context: Most tokens that it reads at once, special ones included; None where there is no such limit.
        vocabulary: Number of tokens.
    """

    name: str
    family: str
    year: int
    parameters: int
    layers: int
    hidden: int
    heads: int
    context: int | None
    vocabulary: int


def published_sizes(*families: Family) -> tuple[PublishedSize, ...]:
    """The published sizes of families, in their order."""
    return tuple(_sized(family, size) for family in families for size in family.published)


def _sized(family: Family, size: Published) -> PublishedSize:
    config = family.config(size.settings)
    return PublishedSize(
        name=size.name,
        family=family.model_type,
        year=size.year,
        parameters=count_parameters(config) + _pooler_parameters(config),
        layers=config.layers,
        hidden=config.hidden,
        heads=config.heads,
        context=config.max_length,
        vocabulary=config.vocabulary,
    )


def _pooler_parameters(config: EncoderConfig) -> int:
    if not isinstance(config.pooler, TanhPooler):
        return 0
    with torch.device("meta"):
        return sum(value.numel() for value in Pooler(config).parameters())
