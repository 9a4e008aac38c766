"""What encoders learn from raw text: objectives for the training loop that need no labels."""

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
from bothways.objectives.pretraining import PretrainingObjective
from bothways.objectives.sequences import TextWindows

__all__ = [
    "MASKED_UNITS",
    "MaskedLM",
    "Masker",
    "Masking",
    "NGramMasking",
    "PretrainingObjective",
    "SpanMasking",
    "TextWindows",
    "TokenMasking",
    "WholeWordMasking",
    "masked_losses",
]
