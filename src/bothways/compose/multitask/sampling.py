"""Shares of the tasks of one encoder in the updates of an epoch.

A task with n updates of data of its own gets a share of an epoch in proportion to n ** (1 / T) (Arivazhagan et al.
2019, "Massively multilingual neural machine translation in the wild", arXiv:1907.05019, section 4.2): at T = 1 each
task is seen once, and the higher T is, the more alike all of them are seen. Shares are exact counts in an order drawn
by the seed, and not draws, so a small task is never missed by chance.

Shapes: K tasks, U updates of an epoch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Proportional:
    """Every row of every task once an epoch (T = 1)."""

    @property
    def exponent(self) -> float:
        """1 / T."""
        return 1.0


@dataclass(frozen=True, slots=True)
class Tempered:
    """Temperature sampling: small tasks are seen more often than once an epoch, large ones less.

    Attributes:
        temperature: T; 1 is `Proportional`, infinity would be `Uniform`.

    Raises:
        InvalidInput: T is not a finite number from 1 on.
    """

    temperature: float = 2.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 1):
            raise InvalidInput(
                f"the temperature of the sampling must be a finite number from 1 on, but it is {self.temperature}: at "
                "1 tasks are seen in proportion to their data, and the higher it is, the more alike."
            )

    @property
    def exponent(self) -> float:
        """1 / T."""
        return 1.0 / self.temperature


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform sampling: as many updates for each task, however much data it has."""

    @property
    def exponent(self) -> float:
        """1 / T."""
        return 0.0


Sampling = Proportional | Tempered | Uniform


def shares(updates_K: Sequence[int], sampling: Sampling) -> tuple[int, ...]:
    """Return the updates that each task gets in an epoch; together as many as all have, and at least one each.

    Args:
        updates_K: Updates that each task's own data make.
        sampling: How to share.
    """
    total = sum(updates_K)
    weights_K = np.asarray(updates_K, dtype=np.float64) ** sampling.exponent
    # Everyone has one, and the rest goes by largest remainders, of equals to the first.
    wanted_K = (total - len(updates_K)) * weights_K / weights_K.sum()
    given_K = np.floor(wanted_K + 1e-9).astype(int)
    left = total - len(updates_K) - int(given_K.sum())
    for task in np.argsort(given_K - wanted_K, kind="stable")[:left]:
        given_K[task] += 1
    if isinstance(sampling, Proportional):
        return tuple(updates_K)
    return tuple(int(count) + 1 for count in given_K)


def order(shares_K: Sequence[int], seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the task of each update of an epoch (U)."""
    tasks_U = np.repeat(np.arange(len(shares_K)), shares_K)
    shuffled_U: NDArray[np.int64] = np.random.default_rng([seed, epoch, len(shares_K)]).permutation(tasks_U)
    return shuffled_U
