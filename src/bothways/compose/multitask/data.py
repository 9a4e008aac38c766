"""Training data of each of several tasks."""

from typing import Any

from bothways.data import Source
from bothways.errors import InvalidInput
from bothways.tasks.registry import SPECS
from bothways.tasks.spec import TaskSpec

USUAL_TASK = "classification"


class TaskData:
    """Training data of one of several tasks.

    >>> TaskData("reviews.jsonl", label="stars", target="regression").options
    {'label': 'stars', 'target': 'regression'}

    Args:
        train: A file, or rows.
        validation: Held-out data; a tenth of the training data, drawn with the seed, when None.
        task: Name of the task, any with a head above the encoder.
        options: Columns and options of the task, as its ``fit`` takes them.

    Raises:
        InvalidInput: There is no such task.
    """

    def __init__(
        self,
        train: Source,
        validation: Source | None = None,
        *,
        task: str = USUAL_TASK,
        **options: Any,  # noqa: ANN401 (those of the task)
    ) -> None:
        known = list(SPECS)
        if task not in known:
            raise InvalidInput(f"expected a task of {', '.join(known)}, got {task!r}.")
        self.train = train
        self.validation = validation
        self.spec: TaskSpec = SPECS[task]
        self.options = options


class TaggingData(TaskData):
    """Training data of a task that tags words.

    Args:
        train: A file, or rows.
        validation: Held-out data; a tenth of the training data, drawn with the seed, when None.
        options: Columns and options as `TextTagger.fit` takes them: ``tokens``, ``tags``, ``scheme``.
    """

    def __init__(self, train: Source, validation: Source | None = None, **options: Any) -> None:  # noqa: ANN401 (those of the task)
        super().__init__(train, validation, task="tagging", **options)
