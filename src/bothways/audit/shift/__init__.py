"""Shifts of hidden states under edits: the detector that uses them, and the comparison of two texts."""

from bothways.audit.shift.comparing import TextComparison, compare_texts
from bothways.audit.shift.detector import EmbeddingShiftDetector

__all__ = ["EmbeddingShiftDetector", "TextComparison", "compare_texts"]
