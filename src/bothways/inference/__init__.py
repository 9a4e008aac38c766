"""Running a trained encoder over texts.

The names are imported when they are first used (PEP 562), so that modules which need no torch do not load it.
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.inference.runner import Runner, text_runner
    from bothways.inference.texts import Rows, TextOptions, TextRows, TextRunner, TokenBudget, TokenOutputs

__all__ = [
    "Rows",
    "Runner",
    "TextOptions",
    "TextRows",
    "TextRunner",
    "TokenBudget",
    "TokenOutputs",
    "text_runner",
]

_MODULES = {
    "runner": ("Runner", "text_runner"),
    "texts": ("Rows", "TextOptions", "TextRows", "TextRunner", "TokenBudget", "TokenOutputs"),
}
__getattr__ = loader(__name__, _MODULES)
