"""Running a trained encoder over texts.

The names are imported when they are first used (PEP 562), so that what needs no torch loads none.
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.inference.batching import TokenBudget
    from bothways.inference.engine import InferenceEngine
    from bothways.inference.runner import RequestQueue, Runner
    from bothways.inference.texts import TextOptions, TextRows, TokenOutputs

__all__ = ["InferenceEngine", "RequestQueue", "Runner", "TextOptions", "TextRows", "TokenBudget", "TokenOutputs"]

_HOMES = {
    "InferenceEngine": "bothways.inference.engine",
    "RequestQueue": "bothways.inference.runner",
    "Runner": "bothways.inference.runner",
    "TextOptions": "bothways.inference.texts",
    "TextRows": "bothways.inference.texts",
    "TokenBudget": "bothways.inference.batching",
    "TokenOutputs": "bothways.inference.texts",
}

__getattr__ = loader(__name__, _HOMES)
