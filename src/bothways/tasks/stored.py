"""Settings of a task as ``bothways.json`` keeps them, checked when read back."""

import math
from collections.abc import Mapping

from bothways.errors import CorruptCheckpoint, InvalidInput
from bothways.evaluation import Temperature
from bothways.text import Overflow, check_overflow

Extras = Mapping[str, object]


def stored_length(extras: Extras, limit: int) -> int | None:
    """The most tokens read at once.

    Raises:
        CorruptCheckpoint: It is not a whole number from 1 to the model's limit.
    """
    return stored_whole(extras, "max_length", limit)


def stored_whole(extras: Extras, name: str, highest: int) -> int | None:
    """A whole number, or None where there is none.

    Raises:
        CorruptCheckpoint: It is not a whole number from 1 to ``highest``.
    """
    value = extras.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= highest:
        raise damaged(name, f"a whole number from 1 to {highest}", value)
    return value


def stored_overflow(extras: Extras) -> Overflow | None:
    """What becomes of longer texts.

    Raises:
        CorruptCheckpoint: It is none of the policies.
    """
    value = extras.get("on_overflow")
    try:
        return None if value is None else check_overflow(value)
    except InvalidInput as error:
        raise damaged("on_overflow", "the name of a policy", value) from error


def stored_temperature(extras: Extras) -> Temperature | None:
    """The temperature that calibrates, or None.

    Raises:
        CorruptCheckpoint: It is not a value above 0 and a slope from 0 on, both finite.
    """
    stored = extras.get("temperature")
    if stored is None:
        return None
    known = stored if isinstance(stored, dict) and stored.keys() == {"value", "slope"} else {}
    value, slope = (
        float(number) if isinstance(number, int | float) and not isinstance(number, bool) else math.nan
        for number in (known.get("value"), known.get("slope"))
    )
    try:
        return Temperature(value, slope)
    except InvalidInput as error:
        raise damaged("temperature", "a value above 0 and a slope from 0 on", stored) from error


def damaged(name: str, expected: str, value: object) -> CorruptCheckpoint:
    """The error for a value that cannot be what was saved."""
    return CorruptCheckpoint(
        f"bothways.json must give {name} as {expected}, but it is {value!r}: the file was altered or damaged. "
        "Get the model again from where it came."
    )
