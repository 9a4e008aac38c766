"""Objectives for the training loop that need no labels: learning from raw text.

Names are imported on first use (PEP 562), so torch is loaded only where it is needed.
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.objectives.corpus import CorpusPieces, FramedCorpus, PiecesAndSentences
    from bothways.objectives.corruption import Corruption, MaskedTokens, Unmasked
    from bothways.objectives.distillation import (
        AllTokens,
        ChosenTokens,
        MaskedLMDistillation,
        StateDistillation,
        StateLoss,
        TripleLoss,
    )
    from bothways.objectives.embedding_sharing import (
        DisentangledEmbeddings,
        EmbeddingSharing,
        OwnEmbeddings,
        SharedEmbeddings,
    )
    from bothways.objectives.masked_lm import MaskDecoder, MaskedLM, masked_losses
    from bothways.objectives.masking import (
        MASKED_UNITS,
        Masker,
        Masking,
        NGramMasking,
        SpanMasking,
        TokenMasking,
        WholeWordMasking,
    )
    from bothways.objectives.permutation_lm import PermutationLM
    from bothways.objectives.permutations import Permutation, Permuter
    from bothways.objectives.pretraining import PretrainingObjective
    from bothways.objectives.replaced_tokens import ReplacedTokens
    from bothways.objectives.segments import EitherDocument, NextSentence, SegmentPairs, SegmentRelation, SentenceOrder
    from bothways.objectives.sequences import TextWindows

__all__ = [
    "MASKED_UNITS",
    "AllTokens",
    "ChosenTokens",
    "CorpusPieces",
    "Corruption",
    "DisentangledEmbeddings",
    "EitherDocument",
    "EmbeddingSharing",
    "FramedCorpus",
    "MaskDecoder",
    "MaskedLM",
    "MaskedLMDistillation",
    "MaskedTokens",
    "Masker",
    "Masking",
    "NGramMasking",
    "NextSentence",
    "OwnEmbeddings",
    "Permutation",
    "PermutationLM",
    "Permuter",
    "PiecesAndSentences",
    "PretrainingObjective",
    "ReplacedTokens",
    "SegmentPairs",
    "SegmentRelation",
    "SentenceOrder",
    "SharedEmbeddings",
    "SpanMasking",
    "StateDistillation",
    "StateLoss",
    "TextWindows",
    "TokenMasking",
    "TripleLoss",
    "Unmasked",
    "WholeWordMasking",
    "masked_losses",
]

_HOMES = {
    "AllTokens": "bothways.objectives.distillation",
    "ChosenTokens": "bothways.objectives.distillation",
    "CorpusPieces": "bothways.objectives.corpus",
    "Corruption": "bothways.objectives.corruption",
    "DisentangledEmbeddings": "bothways.objectives.embedding_sharing",
    "EitherDocument": "bothways.objectives.segments",
    "EmbeddingSharing": "bothways.objectives.embedding_sharing",
    "FramedCorpus": "bothways.objectives.corpus",
    "MASKED_UNITS": "bothways.objectives.masking",
    "MaskDecoder": "bothways.objectives.masked_lm",
    "MaskedLM": "bothways.objectives.masked_lm",
    "MaskedLMDistillation": "bothways.objectives.distillation",
    "MaskedTokens": "bothways.objectives.corruption",
    "Masker": "bothways.objectives.masking",
    "Masking": "bothways.objectives.masking",
    "NGramMasking": "bothways.objectives.masking",
    "NextSentence": "bothways.objectives.segments",
    "OwnEmbeddings": "bothways.objectives.embedding_sharing",
    "Permutation": "bothways.objectives.permutations",
    "PermutationLM": "bothways.objectives.permutation_lm",
    "Permuter": "bothways.objectives.permutations",
    "PiecesAndSentences": "bothways.objectives.corpus",
    "PretrainingObjective": "bothways.objectives.pretraining",
    "ReplacedTokens": "bothways.objectives.replaced_tokens",
    "SegmentPairs": "bothways.objectives.segments",
    "SegmentRelation": "bothways.objectives.segments",
    "SentenceOrder": "bothways.objectives.segments",
    "SharedEmbeddings": "bothways.objectives.embedding_sharing",
    "SpanMasking": "bothways.objectives.masking",
    "StateDistillation": "bothways.objectives.distillation",
    "StateLoss": "bothways.objectives.distillation",
    "TextWindows": "bothways.objectives.sequences",
    "TokenMasking": "bothways.objectives.masking",
    "TripleLoss": "bothways.objectives.distillation",
    "Unmasked": "bothways.objectives.corruption",
    "WholeWordMasking": "bothways.objectives.masking",
    "masked_losses": "bothways.objectives.masked_lm",
}

__getattr__ = loader(__name__, _HOMES)
