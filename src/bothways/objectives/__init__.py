"""What encoders learn from raw text: objectives for the training loop that need no labels."""

from bothways.objectives.masked_lm import MaskedLM, MaskedLMObjective, masked_losses
from bothways.objectives.masking import Masker, Masking

__all__ = ["MaskedLM", "MaskedLMObjective", "Masker", "Masking", "masked_losses"]
