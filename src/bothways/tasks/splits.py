"""Holding out a part of the data."""

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

    Of a label that occurs once only, the row stays; held-out labels all occur in what stays.

    Raises:
        InvalidInput: There are too few rows to hold any out.
    """
    order = np.random.default_rng(seed).permutation(len(examples))
    wanted = max(1, round(fraction * len(examples)))
    left: dict[Label, int] = {}
    for example in examples:
        left[example.label] = left.get(example.label, 0) + 1
    held: set[int] = set()
    for index in order:
        label = examples[index].label
        if len(held) < wanted and left[label] > 1:
            held.add(int(index))
            left[label] -= 1
    if not held:
        raise InvalidInput(
            f"no validation data were given, and {len(examples)} rows are too few to hold some out: "
            "give at least two rows of a label, or a validation file."
        )
    stays = [example for index, example in enumerate(examples) if index not in held]
    return stays, [examples[index] for index in sorted(held)]
