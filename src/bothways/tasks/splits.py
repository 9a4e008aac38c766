"""Holding out a part of the data."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from bothways.errors import InvalidInput


class Labelled(Protocol):
    """A row with a label."""

    @property
    def label(self) -> Any:  # noqa: ANN401 (each task has labels of its own)
        """Whatever the task calls so."""


ExampleT = TypeVar("ExampleT", bound=Labelled)


def hold_out(
    examples: Sequence[ExampleT],
    fraction: float,
    seed: int,
    names: Callable[[Any], tuple[str, ...]],
    what: str = "label",
) -> tuple[list[ExampleT], list[ExampleT]]:
    """Split at random into what stays and what is held out, at least one row each.

    A row is held out only while each of its labels still occurs in what stays, so that no label is there to be
    validated and not to be learnt.

    Args:
        examples: Two or more.
        fraction: How much to hold out.
        seed: Draws the rows.
        names: The labels that a row's label stands for; none for a number.
        what: What such a label is called in messages.

    Raises:
        InvalidInput: No row can be held out.
    """
    wanted = max(1, round(fraction * len(examples)))
    left = Counter(name for example in examples for name in names(example.label))
    held: set[int] = set()
    for index in np.random.default_rng(seed).permutation(len(examples)).tolist():
        labels = names(examples[index].label)
        if len(held) < min(wanted, len(examples) - 1) and all(left[name] > 1 for name in labels):
            held.add(index)
            left.subtract(labels)
    if not held:
        count = "1 row" if len(examples) == 1 else f"{len(examples)} rows, as each has a {what} that no other has"
        wanting = "rows" if len(examples) == 1 else f"rows of a {what}"
        raise InvalidInput(
            f"no validation data were given, and none can be held out of {count}: "
            f"give at least two {wanting}, or a validation file."
        )
    stays = [example for index, example in enumerate(examples) if index not in held]
    return stays, [examples[index] for index in sorted(held)]
