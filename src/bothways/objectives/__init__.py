"""Objectives for the training loop that need no labels: learning from raw text."""

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
from bothways.objectives.mask_decoder import MaskDecoder
from bothways.objectives.masked_lm import MaskedLM, masked_losses
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
