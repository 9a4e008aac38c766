"""Running a trained encoder over texts."""

from bothways.inference.engine import InferenceEngine, Reading, TextRows

__all__ = ["InferenceEngine", "Reading", "TextRows"]
