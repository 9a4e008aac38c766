"""Every task by its name. Loads no torch: a task's class is imported when it is asked for.

A new task is one line of `SPECS`.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from bothways.tasks.classification.spec import CLASSIFICATION, PAIRS
from bothways.tasks.embedding.spec import EMBEDDING, FEW_SHOT
from bothways.tasks.question_answering.spec import QUESTION_ANSWERING
from bothways.tasks.spec import TaskSpec
from bothways.tasks.tagging.spec import TAGGING

SPECS: Mapping[str, TaskSpec] = {
    spec.name: spec
    for spec in (
        CLASSIFICATION,
        PAIRS,
        QUESTION_ANSWERING,
        TAGGING,
        EMBEDDING,
        FEW_SHOT,
    )
}


def task_class(spec: TaskSpec) -> Any:  # noqa: ANN401 (a subclass of Task)
    """Import the class of a task."""
    module, name = spec.home.split(":")
    return getattr(import_module(module), name)
