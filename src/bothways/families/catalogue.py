"""The published models of every family, with their numbers of parameters."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from bothways.encoder import Encoder, Pooler
from bothways.encoder.config import EncoderConfig, TanhPooler
from bothways.families.family import Family, Published


@dataclass(frozen=True, slots=True)
class PublishedSize:
    """The size of one published model; `name` is its hub name.

    `parameters` is the size of the bare encoder with its pooler, if the family stores one; `embedding_parameters` that
    of the tables of tokens, positions and segments, their norm and projection; `backbone_parameters` that of the rest.
    `context` is the maximum length in tokens; None for no limit.
    """

    name: str
    family: str
    year: int
    parameters: int
    embedding_parameters: int
    backbone_parameters: int
    layers: int
    hidden: int
    heads: int
    context: int | None
    vocabulary: int


def find_published(families: Iterable[Family], name: str) -> tuple[Family, Published] | None:
    """Return the published model with this hub name, and its family; None for an unknown name."""
    return next(((family, size) for family in families for size in family.published if size.name == name), None)


def sized(family: Family, size: Published) -> PublishedSize:
    """Return the size of a published model, computed without allocating its weights."""
    config = family.config(size.settings)
    embedding, others = count_parts(config)
    return PublishedSize(
        name=size.name,
        family=family.model_type,
        year=size.year,
        parameters=embedding + others,
        embedding_parameters=embedding,
        backbone_parameters=others,
        layers=config.layers,
        hidden=config.hidden,
        heads=config.heads,
        context=config.max_length,
        vocabulary=config.vocabulary,
    )


def count_parts(config: EncoderConfig) -> tuple[int, int]:
    """Return the numbers of parameters of the embedding and of the rest, without allocating weights."""
    with torch.device("meta"):
        encoder = Encoder(config)
        pooler = Pooler(config) if isinstance(config.pooler, TanhPooler) else None
    embedding = sum(parameter.numel() for parameter in encoder.embedding.parameters())
    everything = sum(parameter.numel() for parameter in encoder.parameters())
    pooling = sum(parameter.numel() for parameter in pooler.parameters()) if pooler else 0
    return embedding, everything - embedding + pooling
