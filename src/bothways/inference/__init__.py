"""Running a trained encoder over texts."""

from bothways.inference.engine import InferenceEngine, Reading, TextRows, TokenRows

__all__ = ["InferenceEngine", "Reading", "TextRows", "TokenRows"]
