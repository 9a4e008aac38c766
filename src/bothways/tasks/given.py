"""What tasks on texts are given to answer: one text, or many."""

from collections.abc import Iterable, Mapping
from typing import Any

from bothways.errors import InvalidInput


def given_many(value: object, kind: str = "a text") -> tuple[list[Any], bool]:
    """What ``predict`` was given as a list, and whether it was one text alone; each is still to be checked.

    Args:
        value: A string, or many of what the task reads.
        kind: What the task reads, for messages.

    Raises:
        InvalidInput: It is neither.
    """
    if isinstance(value, str):
        return [value], True
    if isinstance(value, Mapping | bytes) or not isinstance(value, Iterable):
        raise InvalidInput(f"expected {kind}, or a list of such, got {type(value).__name__}: {value!r:.80}")
    return list(value), False
