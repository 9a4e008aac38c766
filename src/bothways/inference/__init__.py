"""Running a trained encoder over texts."""

from bothways.inference.batching import TokenBudget
from bothways.inference.engine import InferenceEngine, TextOptions, TextRows, TokenOutputs
from bothways.inference.runner import RequestQueue, Runner

__all__ = ["InferenceEngine", "RequestQueue", "Runner", "TextOptions", "TextRows", "TokenBudget", "TokenOutputs"]
