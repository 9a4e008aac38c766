"""Replaced token detection: a discriminator detects the tokens that a small generator has replaced.

Clark et al. 2020, arXiv:2003.10555. The generator fills masks, and its samples are the discriminator's input; the two
may share their embeddings. The loss is the generator's masked language modelling loss plus 50 times the discriminator's
binary cross-entropy. As in the published code (google-research/electra, run_pretraining.py), the cross-entropy is a
mean over all tokens, special ones included; a sampled token equal to the original counts as original; and no gradient
flows through the samples. That code masks 85 % of the chosen tokens and leaves the rest unchanged, as does
``Masking(masked=0.85, random=0.0)``; DeBERTa-v3 masks all chosen tokens.

Shapes: T packed tokens, M chosen positions, E embedding width, H hidden, V vocabulary.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from bothways.encoder import Encoder, MaskedLMHead
from bothways.encoder.encoder import Embedding
from bothways.encoder.heads import ScoreHead, read_rows
from bothways.encoder.modules import EmbeddingTable
from bothways.errors import InvalidInput
from bothways.objectives.masked_lm import predict_tokens
from bothways.objectives.pretraining import MASKED, PretrainingModel, UnitLosses
from bothways.objectives.sequences import MaskedBatch
from bothways.packing import Packed, SelectedRows


@dataclass(frozen=True, slots=True)
class OwnEmbeddings:
    """Keep the embeddings of the two models separate."""

    name: ClassVar = "own"


@dataclass(frozen=True, slots=True)
class SharedEmbeddings:
    """Use the generator's embedding tables and norm in both models (Clark et al. 2020, arXiv:2003.10555, 3.2).

    The paper names tokens and positions; its code shares segments and the norm as well, as here.
    """

    name: ClassVar = "shared"


@dataclass(frozen=True, slots=True)
class DisentangledEmbeddings:
    """Add learned differences to the generator's embedding tables (He et al. 2021, arXiv:2111.09543, 3.3).

    ``E_D = sg(E_G) + E_delta``: the generator's tables get no gradient from the discriminator, and E_delta starts at
    zero. The paper's code does this for tokens and positions, this package for segments too.
    """

    name: ClassVar = "disentangled"


EmbeddingSharing = OwnEmbeddings | SharedEmbeddings | DisentangledEmbeddings


class DisentangledTable(EmbeddingTable):
    """The sum of its own ``weight`` and another table, which gets no gradient and is not a submodule."""

    def __init__(self, shared: EmbeddingTable) -> None:
        super().__init__(shared.num_embeddings, shared.embedding_dim)
        self.weight = nn.Parameter(torch.zeros_like(shared.weight))
        self._shared = (shared,)

    def forward(self, ids_T: Tensor) -> Tensor:
        return super().forward(ids_T) + nn.functional.embedding(ids_T, self._shared[0].weight.detach())

    def merged(self) -> EmbeddingTable:
        """Return an ordinary table with the same vectors."""
        table = EmbeddingTable(self.num_embeddings, self.embedding_dim)
        table.weight = nn.Parameter((self.weight + self._shared[0].weight).detach())
        return table


def share_embeddings(generator: Encoder, discriminator: Encoder, sharing: EmbeddingSharing) -> None:
    """Make the discriminator use the generator's embeddings, unless ``sharing`` is `OwnEmbeddings`."""
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
        tables: list[EmbeddingTable | None] = [getattr(each, name) for each in (theirs, ours)]
        shapes = [(0,) if table is None else tuple(table.weight.shape) for table in tables]
        if shapes[0] != shapes[1]:
            raise InvalidInput(
                f"shared embeddings need tables of equal shape, but the {name} table is {shapes[0]} in the generator "
                f"and {shapes[1]} in the discriminator: give both the same vocabulary, positions, types and "
                "embedding_size, or keep the embeddings separate."
            )


_TABLES = ("tokens", "positions", "types")


REPLACED = "replaced tokens"
"""Name of the discriminator's loss."""

DISCRIMINATOR_WEIGHT = 50.0
"""Weight of the discriminator's loss in the paper (section 3.2 and table 6)."""


class ReplacedTokens(PretrainingModel):
    """A generator with its masked language modelling head, and a discriminator with one score for each token."""

    def __init__(
        self,
        generator: Encoder,
        generator_head: MaskedLMHead,
        discriminator: Encoder,
        discriminator_head: ScoreHead,
        *,
        embeddings: EmbeddingSharing = SharedEmbeddings(),
        weight: float = DISCRIMINATOR_WEIGHT,
    ) -> None:
        super().__init__()
        sizes = generator.config.vocabulary, discriminator.config.vocabulary
        if sizes[0] != sizes[1]:
            raise InvalidInput(
                f"expected a generator and a discriminator of equal vocabulary, got {sizes[0]} and {sizes[1]} tokens."
            )
        share_embeddings(generator, discriminator, embeddings)
        self.generator = generator
        self.generator_head = generator_head
        self.discriminator = discriminator
        self.discriminator_head = discriminator_head
        self.embeddings = embeddings
        self.weight = weight

    @property
    def identity(self) -> Mapping[str, str]:
        return {"embeddings": self.embeddings.name}

    @property
    def weights(self) -> Mapping[str, float]:
        return {MASKED: 1.0, REPLACED: self.weight}

    def units(self, batch: MaskedBatch) -> Mapping[str, int]:
        return {MASKED: len(batch.rows_M), REPLACED: len(batch.packed.ids_T)}

    def outputs(self, batch: MaskedBatch) -> Mapping[str, UnitLosses]:
        filled, scores_T, replaced_T = self.detect(batch)
        rows_T = torch.arange(len(scores_T), device=scores_T.device)
        return {MASKED: filled, REPLACED: UnitLosses.of_classes(scores_T, replaced_T, rows_T)}

    def detect(self, batch: MaskedBatch) -> tuple[UnitLosses, Tensor, Tensor]:
        """Return the generator's losses, the discriminator's logits (T), and 1 for replaced tokens (T)."""
        hidden_MH = self.generator(batch.packed, rows=SelectedRows(batch.rows_M))
        sampled_M = torch.empty_like(batch.targets_M)

        def draw(probabilities_mV: Tensor, places: slice) -> None:
            sampled_M[places] = sample(probabilities_mV, batch.uniform_M[places])

        table = self.generator.embedding.tokens.weight
        filled = predict_tokens(self.generator_head, table, hidden_MH, batch.targets_M, batch.rows_M, draw)
        corrupted, replaced_T = corrupt(batch, sampled_M)
        hidden_TH = read_rows(self.discriminator_head.kind.read, self.discriminator, corrupted)
        scores_T1: Tensor = self.discriminator_head(hidden_TH)
        return filled, scores_T1.squeeze(-1), replaced_T

    def separate(self) -> tuple[Encoder, Encoder]:
        """Return copies of generator and discriminator without shared tables, for saving."""
        return own_copy(self.generator), own_copy(self.discriminator)


def sample(probabilities_MV: Tensor, uniform_M: Tensor) -> Tensor:
    """Sample a token at each position (M), without a gradient, by inverse transform sampling.

    ``uniform_M`` are random numbers in [0, 1). Like the masks, they depend only on seed, epoch and sequence;
    for validation they are always the same.
    """
    sums_MV = probabilities_MV.cumsum(-1)
    # Because of rounding, the probabilities may not sum to 1.
    thresholds_M1 = uniform_M[:, None] * sums_MV[:, -1:]
    return torch.searchsorted(sums_MV, thresholds_M1, right=True).squeeze(1).clamp(max=sums_MV.shape[1] - 1)


def corrupt(batch: MaskedBatch, sampled_M: Tensor) -> tuple[Packed, Tensor]:
    """Replace the chosen tokens of the original sequences by the sampled ones.

    Returns the discriminator's input, and labels: 1 for tokens that differ from the original (T).
    """
    original_T = batch.packed.ids_T.index_copy(0, batch.rows_M, batch.targets_M)
    corrupted_T = original_T.index_copy(0, batch.rows_M, sampled_M)
    return replace(batch.packed, ids_T=corrupted_T), (corrupted_T != original_T).long()
