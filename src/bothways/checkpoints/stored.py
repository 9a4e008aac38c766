"""Settings in ``bothways.json``, checked when read."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from bothways.errors import CorruptCheckpoint, InvalidInput
from bothways.text import Overflow, check_overflow

Extras = Mapping[str, object]

T = TypeVar("T")


def stored_length(extras: Extras, limit: int) -> int | None:
    """The most tokens read at once.

    Raises:
        CorruptCheckpoint: It is not a whole number from 1 to the model's limit.
    """
    return stored_whole(extras, "max_length", limit)


def stored_whole(extras: Extras, name: str, highest: int, *, least: int = 1) -> int | None:
    """A whole number, or None where there is none.

    Raises:
        CorruptCheckpoint: It is not a whole number from ``least`` to ``highest``.
    """
    value = extras.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= highest:
        raise damaged(name, f"a whole number from {least} to {highest}", value)
    return value


def stored_flag(extras: Extras, name: str) -> bool:
    """Whether something is so; false where nothing is said.

    Raises:
        CorruptCheckpoint: It is neither true nor false.
    """
    value = extras.get(name, False)
    if not isinstance(value, bool):
        raise damaged(name, "true or false", value)
    return value


def stored_overflow(extras: Extras) -> Overflow | None:
    """What becomes of longer texts.

    Raises:
        CorruptCheckpoint: It is none of the policies.
    """
    return stored_choice(extras, "on_overflow", check_overflow)


def stored_choice(extras: Extras, name: str, check: Callable[[object], T]) -> T | None:
    """A value that names one of several choices, or None where there is none.

    Raises:
        CorruptCheckpoint: ``check`` refuses it with `InvalidInput`.
    """
    value = extras.get(name)
    try:
        return None if value is None else check(value)
    except InvalidInput as error:
        raise damaged(name, "one of the names that it can have", value) from error


def stored_card(extras: Extras) -> dict[str, Any]:
    """What the model says of its making; nothing where it says nothing."""
    card = extras.get("card")
    return dict(card) if isinstance(card, Mapping) else {}


def damaged(name: str, expected: str, value: object) -> CorruptCheckpoint:
    """The error for a value that cannot be what was saved."""
    return CorruptCheckpoint(
        f"bothways.json must give {name} as {expected}, but it is {value!r}: the file was altered or damaged. "
        "Get the model again from where it came."
    )
