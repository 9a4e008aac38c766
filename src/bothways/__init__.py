"""A toolkit for encoder-only language models: fine-tune, calibrate, embed, search and explain.

The public names are imported on first use (PEP 562), so ``import bothways`` does not import torch.
"""

from typing import TYPE_CHECKING

import bothways.threads  # noqa: F401 (registers a fork handler)
from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.audit import scan
    from bothways.checkpoints import load
    from bothways.compose.ensembles.ensemble import Ensemble
    from bothways.compose.multitask.data import TaggingData, TaskData
    from bothways.compose.multitask.multitask import MultiTask
    from bothways.compose.opening import open_trained
    from bothways.errors import BothwaysError
    from bothways.retrieval import SearchIndex, SemanticSearch
    from bothways.tasks import (
        FillMask,
        MultipleChoice,
        PairClassifier,
        QuestionAnswerer,
        SentenceEmbedder,
        TextClassifier,
        TextTagger,
        compare,
    )

    __version__: str

__all__ = [
    "BothwaysError",
    "Ensemble",
    "FillMask",
    "MultiTask",
    "MultipleChoice",
    "PairClassifier",
    "QuestionAnswerer",
    "SearchIndex",
    "SemanticSearch",
    "SentenceEmbedder",
    "TaggingData",
    "TaskData",
    "TextClassifier",
    "TextTagger",
    "__version__",
    "compare",
    "load",
    "open_trained",
    "scan",
]

_MODULES = {
    "audit": ("scan",),
    "checkpoints": ("load",),
    "compose.ensembles.ensemble": ("Ensemble",),
    "compose.multitask.data": ("TaggingData", "TaskData"),
    "compose.multitask.multitask": ("MultiTask",),
    "compose.opening": ("open_trained",),
    "errors": ("BothwaysError",),
    "retrieval": ("SearchIndex", "SemanticSearch"),
    "tasks": (
        "FillMask",
        "MultipleChoice",
        "PairClassifier",
        "QuestionAnswerer",
        "SentenceEmbedder",
        "TextClassifier",
        "TextTagger",
        "compare",
    ),
}


_load = loader(__name__, _MODULES)


def __getattr__(name: str) -> object:
    """Load a public name on its first use."""
    value: object
    if name == "__version__":
        from importlib.metadata import version

        value = version("bothways")
        globals()[name] = value
        return value
    return _load(name)


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted({*globals(), *__all__})
