"""Holding out a part of the data."""

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from bothways.data import Example
from bothways.errors import InvalidInput

Label = TypeVar("Label")


def hold_out(
    examples: Sequence[Example[Label]], fraction: float, seed: int
) -> tuple[list[Example[Label]], list[Example[Label]]]:
    """Split at random into what stays and what is held out, at least one row each.

    Every class, or label of several, that is held out also occurs in what stays; numbers are drawn freely.

    Raises:
        InvalidInput: There are too few rows to hold any out.
    """
    order = np.random.default_rng(seed).permutation(len(examples))
    wanted = min(max(1, round(fraction * len(examples))), len(examples) - 1)
    left = Counter(name for example in examples for name in _names(example.label))
    held: set[int] = set()
    for index in map(int, order):
        names = _names(examples[index].label)
        if len(held) < wanted and all(left[name] > 1 for name in names):
            held.add(index)
            left.subtract(names)
    if not held:
        raise InvalidInput(
            f"no validation data were given, and {len(examples)} rows are too few to hold some out: "
            "give at least two rows of a label, or a validation file."
        )
    stays = [example for index, example in enumerate(examples) if index not in held]
    return stays, [examples[index] for index in sorted(held)]


def _names(label: object) -> tuple[object, ...]:
    """The classes that a label names: one, several, or for a number none."""
    if isinstance(label, tuple):
        return label
    return (label,) if isinstance(label, str) else ()
