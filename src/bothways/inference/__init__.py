"""Running a trained encoder over texts."""

from bothways.inference.batching import TokenBudget
from bothways.inference.engine import InferenceEngine, Reading, TextRows, TokenRows
from bothways.inference.runner import RequestQueue, Runner

__all__ = ["InferenceEngine", "Reading", "RequestQueue", "Runner", "TextRows", "TokenBudget", "TokenRows"]
