"""Which model for which task: the catalogue, recommendations, measurements on this machine, and costs."""

from bothways.advice.cards import ModelCard, card, catalogue
from bothways.advice.facts import Score, StatedSize

__all__ = ["ModelCard", "Score", "StatedSize", "card", "catalogue"]
