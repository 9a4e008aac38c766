"""Replaced token detection: a discriminator detects the tokens that a small generator has replaced.

Clark et al. 2020, arXiv:2003.10555. The generator fills masks, and its samples are the discriminator's input.
The loss is the generator's masked language modelling loss plus 50 times the discriminator's binary cross-entropy. As in
the published code (google-research/electra, run_pretraining.py), the latter is a mean over all tokens, special ones
included; a sampled token that is the original one counts as original; and sampling has no gradient. That code masks
85 % of the chosen tokens and leaves the others as they are, which is ``Masking(masked=0.85, random=0.0)``; DeBERTa-v3
masks all of them.

Shapes: T packed tokens, M chosen positions, H hidden, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from bothways.encoder import Encoder, MaskedLMHead
from bothways.encoder.heads import ScoreHead, read_rows
from bothways.encoder.rows import SelectedRows
from bothways.errors import InvalidInput
from bothways.objectives.embedding_sharing import EmbeddingSharing, SharedEmbeddings, own_copy, share_embeddings
from bothways.objectives.pretraining import MASKED, PartOutput, PretrainingModel, UnitPredictions
from bothways.objectives.sequences import MaskedBatch
from bothways.objectives.vocabulary import predict_tokens
from bothways.packing import Packed

REPLACED = "replaced tokens"
"""Name of the discriminator's loss."""

DISCRIMINATOR_WEIGHT = 50.0
"""Weight of the discriminator's loss in the paper (section 3.2 and table 6)."""


class ReplacedTokens(PretrainingModel):
    """A generator and a discriminator.

    Args:
        generator: The encoder that fills masks, usually smaller.
        generator_head: Its masked language modelling head.
        discriminator: The encoder to pre-train; it may use the generator's embeddings.
        discriminator_head: Its head, one score for each token.
        embeddings: The kind of embedding sharing.
        weight: Weight of the discriminator's loss.

    Raises:
        InvalidInput: The two have different vocabularies, or tables that cannot be shared.
    """

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
                f"expected a generator and a discriminator of one vocabulary, got {sizes[0]} and {sizes[1]} tokens."
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
        """The kind of embedding sharing."""
        return {"embeddings": self.embeddings.name}

    @property
    def weights(self) -> Mapping[str, float]:
        """Weight of each head's mean loss."""
        return {MASKED: 1.0, REPLACED: self.weight}

    def units(self, batch: MaskedBatch) -> Mapping[str, int]:
        """Return the numbers of chosen positions and of tokens."""
        return {MASKED: len(batch.rows_M), REPLACED: len(batch.packed.ids_T)}

    def outputs(self, batch: MaskedBatch) -> Mapping[str, PartOutput]:
        """Return the generator's predictions at the chosen positions, and the discriminator's scores of all tokens."""
        hidden_MH = self.generator(batch.packed, rows=SelectedRows(batch.rows_M))
        sampled_M = torch.empty_like(batch.targets_M)

        def draw(probabilities_mV: Tensor, places: slice) -> None:
            sampled_M[places] = sample(probabilities_mV, batch.uniform_M[places])

        table = self.generator.embedding.tokens.weight
        filled = predict_tokens(self.generator_head, table, hidden_MH, batch.targets_M, batch.rows_M, draw)
        corrupted, replaced_T = corrupt(batch, sampled_M)
        scores_T = self.scores(corrupted)
        return {
            MASKED: filled,
            REPLACED: UnitPredictions(scores_T, replaced_T, torch.arange(len(scores_T), device=scores_T.device)),
        }

    def scores(self, packed: Packed) -> Tensor:
        """Return the discriminator's logits (T) that tokens were replaced."""
        hidden_TH = read_rows(self.discriminator_head.kind.read, self.discriminator, packed)
        scores_T1: Tensor = self.discriminator_head(hidden_TH)
        return scores_T1.squeeze(-1)

    def separate(self) -> tuple[Encoder, Encoder]:
        """Return copies of generator and discriminator without shared tables, for saving."""
        return own_copy(self.generator), own_copy(self.discriminator)


def sample(probabilities_MV: Tensor, uniform_M: Tensor) -> Tensor:
    """Draw a token for each position, without a gradient, by the inverse of the distribution function.

    The random numbers come with the masks from seed, epoch and sequence, so a draw does not depend on the batch or on
    earlier draws, and those of validation stay the same.

    Args:
        probabilities_MV: The generator's.
        uniform_M: Random numbers in [0, 1).

    Returns:
        Token ids (M).
    """
    sums_MV = probabilities_MV.cumsum(-1)
    # Rounding lets the sum of all probabilities miss 1.
    wanted_M1 = uniform_M[:, None] * sums_MV[:, -1:]
    return torch.searchsorted(sums_MV, wanted_M1, right=True).squeeze(1).clamp(max=sums_MV.shape[1] - 1)


def corrupt(batch: MaskedBatch, sampled_M: Tensor) -> tuple[Packed, Tensor]:
    """Replace the chosen tokens of the original sequences by sampled ones.

    Returns:
        The discriminator's input, and 1 for tokens that differ from the original (T).
    """
    original_T = batch.packed.ids_T.index_copy(0, batch.rows_M, batch.targets_M)
    corrupted_T = original_T.index_copy(0, batch.rows_M, sampled_M)
    return replace(batch.packed, ids_T=corrupted_T), (corrupted_T != original_T).long()
