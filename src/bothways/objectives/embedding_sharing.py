"""Embeddings that a generator and a discriminator share.

Shapes: T packed tokens, E embedding width.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from bothways.encoder import Encoder
from bothways.encoder.embeddings import Embedding, EmbeddingTable
from bothways.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class OwnEmbeddings:
    """Keep the embeddings of both apart."""

    name: ClassVar = "own"


@dataclass(frozen=True, slots=True)
class SharedEmbeddings:
    """Use the generator's tables, and the norm behind them, in both (Clark et al. 2020, arXiv:2003.10555, 3.2).

    The paper names tokens and positions; its code shares segments and the norm as well, and so does this.
    """

    name: ClassVar = "shared"


@dataclass(frozen=True, slots=True)
class DisentangledEmbeddings:
    """Add a difference to the generator's tables, which get no gradient (He et al. 2021, arXiv:2111.09543, 3.3).

    ``E_D = sg(E_G) + E_delta``, and E_delta begins at zero. The paper's code does so for tokens and positions; here
    it is done for segments too.
    """

    name: ClassVar = "disentangled"


EmbeddingSharing = OwnEmbeddings | SharedEmbeddings | DisentangledEmbeddings


class DisentangledTable(EmbeddingTable):
    """A table that is the sum of another one, which it does not train, and of its own ``weight``.

    Args:
        shared: The other table, which is no submodule.
    """

    def __init__(self, shared: EmbeddingTable) -> None:
        super().__init__(shared.num_embeddings, shared.embedding_dim)
        self.weight = nn.Parameter(torch.zeros_like(shared.weight))
        self._shared = (shared,)

    def forward(self, ids_T: Tensor) -> Tensor:
        """Return the vectors (T, E)."""
        return super().forward(ids_T) + nn.functional.embedding(ids_T, self._shared[0].weight.detach())

    def merged(self) -> EmbeddingTable:
        """Return an ordinary table with the same vectors."""
        table = EmbeddingTable(self.num_embeddings, self.embedding_dim)
        table.weight = nn.Parameter((self.weight + self._shared[0].weight).detach())
        return table


def share_embeddings(generator: Encoder, discriminator: Encoder, sharing: EmbeddingSharing) -> None:
    """Replace the discriminator's embeddings by the generator's.

    Raises:
        InvalidInput: A table is of another shape in the discriminator.
    """
    if isinstance(sharing, OwnEmbeddings):
        return
    ours, theirs = discriminator.embedding, generator.embedding
    _check_shapes(theirs, ours)
    for name in _TABLES:
        table = getattr(theirs, name)
        if table is not None:
            setattr(ours, name, table if isinstance(sharing, SharedEmbeddings) else DisentangledTable(table))
    # A norm after a projection to the hidden size does not belong to the embeddings.
    if isinstance(sharing, SharedEmbeddings) and ours.early_projection is None and theirs.early_projection is None:
        ours.norm = theirs.norm


def own_copy(encoder: Encoder) -> Encoder:
    """Return a copy of an encoder with ordinary tables, for saving or further training."""
    copied = deepcopy(encoder)
    for name in _TABLES:
        table = getattr(copied.embedding, name)
        if isinstance(table, DisentangledTable):
            setattr(copied.embedding, name, table.merged())
    return copied


def _check_shapes(theirs: Embedding, ours: Embedding) -> None:
    for name in _TABLES:
        shapes = [tuple(getattr(table, "weight", torch.empty(0)).shape) for table in _tables(name, theirs, ours)]
        if shapes[0] != shapes[1]:
            raise InvalidInput(
                f"shared embeddings need tables of one shape, but the table of {name} is {shapes[0]} in the generator "
                f"and {shapes[1]} in the discriminator: give both the same vocabulary, positions, types and "
                "embedding_size, or keep the embeddings separate."
            )


def _tables(name: str, *embeddings: Embedding) -> list[EmbeddingTable | None]:
    return [getattr(each, name) for each in embeddings]


_TABLES = ("tokens", "positions", "types")
