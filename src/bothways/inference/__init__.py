"""Running a trained encoder over texts.

The names are imported when they are first used (PEP 562), so that modules without torch load none.
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.inference.batching import TokenBudget
    from bothways.inference.runner import RequestQueue, Runner, text_runner
    from bothways.inference.texts import Rows, TextOptions, TextRows, TextRunner, TokenOutputs

__all__ = [
    "RequestQueue",
    "Rows",
    "Runner",
    "TextOptions",
    "TextRows",
    "TextRunner",
    "TokenBudget",
    "TokenOutputs",
    "text_runner",
]

_HOMES = {
    "RequestQueue": "bothways.inference.runner",
    "Rows": "bothways.inference.texts",
    "Runner": "bothways.inference.runner",
    "TextOptions": "bothways.inference.texts",
    "TextRows": "bothways.inference.texts",
    "TextRunner": "bothways.inference.texts",
    "TokenBudget": "bothways.inference.batching",
    "TokenOutputs": "bothways.inference.texts",
    "text_runner": "bothways.inference.runner",
}

__getattr__ = loader(__name__, _HOMES)
