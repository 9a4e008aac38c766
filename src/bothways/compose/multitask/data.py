"""Training data of several tasks, and the share of each task in the updates of an epoch.

A task whose data make n updates gets a share of an epoch in proportion to n ** (1 / T) (Arivazhagan et al. 2019,
"Massively multilingual neural machine translation in the wild", arXiv:1907.05019, section 4.2). With T = 1, all data
are seen once per epoch; a higher T makes the shares more equal. The shares are exact counts, in an order drawn by the
seed, so a small task is never missed by chance.

Shapes: K tasks, U updates of an epoch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bothways.data import Source
from bothways.errors import InvalidInput
from bothways.tasks.registry import SPECS
from bothways.tasks.spec import TaskSpec

USUAL_TASK = "classification"


class TaskData:
    """The training data of one of several tasks.

    >>> TaskData("reviews.jsonl", label="stars", target="regression").options
    {'label': 'stars', 'target': 'regression'}

    Args:
        train: A file, or rows.
        validation: Held-out data. Default: a tenth of the training data, drawn with the seed.
        task: Name of a task with a head above the encoder.
        options: Columns and options of the task's ``fit``, and ``labels``: all labels or tags in their order.

    Raises:
        InvalidInput: There is no such task.
    """

    def __init__(
        self,
        train: Source,
        validation: Source | None = None,
        *,
        task: str = USUAL_TASK,
        **options: object,
    ) -> None:
        known = list(SPECS)
        if task not in known:
            raise InvalidInput(f"expected one of the tasks {', '.join(known)}, got {task!r}.")
        self.train = train
        self.validation = validation
        self.spec: TaskSpec = SPECS[task]
        self.options = options


class TaggingData(TaskData):
    """The training data of a tagging task.

    Args:
        train: A file, or rows.
        validation: Held-out data. Default: a tenth of the training data, drawn with the seed.
        options: Columns and options of `TextTagger.fit`, such as ``tokens``, ``tags`` and ``scheme``, and ``labels``.
    """

    def __init__(self, train: Source, validation: Source | None = None, **options: object) -> None:
        super().__init__(train, validation, task="tagging", **options)


# --- sampling ---


@dataclass(frozen=True, slots=True)
class Proportional:
    """Proportional sampling: every row of each task once per epoch (T = 1)."""

    exponent: ClassVar[float] = 1.0


@dataclass(frozen=True, slots=True)
class Tempered:
    """Temperature sampling: per epoch, small tasks are seen more than once, and large tasks only in part.

    Raises:
        InvalidInput: T is not a finite number of at least 1.
    """

    temperature: float = 2.0  # T; 1 is `Proportional`, infinity would be `Uniform`

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 1):
            raise InvalidInput(
                f"the temperature of the sampling must be a finite number of at least 1, got {self.temperature}. At 1, "
                "tasks are sampled in proportion to their data; higher values make their shares more equal."
            )

    @property
    def exponent(self) -> float:
        """Exponent of the tasks' sizes, 1 / T."""
        return 1.0 / self.temperature


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform sampling: the same number of updates for each task."""

    exponent: ClassVar[float] = 0.0


Sampling = Proportional | Tempered | Uniform


def shares(updates_K: Sequence[int], sampling: Sampling) -> tuple[int, ...]:
    """Return the number of updates of each task in an epoch, at least one each.

    ``updates_K`` has the updates of one pass through each task's data; the total stays the same.
    """
    total = sum(updates_K)
    weights_K = np.asarray(updates_K, dtype=np.float64) ** sampling.exponent
    # Each task gets one update; the largest-remainder method distributes the rest, ties to the first task.
    share_K = (total - len(updates_K)) * weights_K / weights_K.sum()
    given_K = np.floor(share_K + 1e-9).astype(int)
    left = total - len(updates_K) - int(given_K.sum())
    for task in np.argsort(given_K - share_K, kind="stable")[:left]:
        given_K[task] += 1
    if isinstance(sampling, Proportional):
        return tuple(updates_K)
    return tuple(int(count) + 1 for count in given_K)


def order(shares_K: Sequence[int], seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the task index of each update of an epoch (U)."""
    tasks_U = np.repeat(np.arange(len(shares_K)), shares_K)
    shuffled_U: NDArray[np.int64] = np.random.default_rng([seed, epoch, len(shares_K)]).permutation(tasks_U)
    return shuffled_U
