"""Policies for texts that have more tokens than the model reads.

``"window"``
    Cut it into overlapping windows that together hold every token; nothing is lost.
``"error"``
    Raise ``TextTooLong``.
``"truncate"``
    Keep the first window and report how many tokens were dropped.

Of a pair that is too long, windows hold parts of

``"longer"``
    the longer text, beside the whole of the other; where that one has more than half of the room, parts of both, side
    by side from their beginnings to their ends.
``"second"``
    the second text, beside the whole of the first, as a question stands beside its context.
"""

from typing import TypeGuard, get_args

from bothways.choices import Cut as Cut
from bothways.choices import Overflow as Overflow
from bothways.errors import InvalidInput

OVERFLOWS: tuple[Overflow, ...] = get_args(Overflow)


def check_overflow(value: object) -> Overflow:
    """Return ``value`` if it names a policy.

    Raises:
        InvalidInput: ``value`` is not one of ``OVERFLOWS``.
    """
    if _is_overflow(value):
        return value
    raise InvalidInput(
        f"expected on_overflow to be one of {', '.join(map(repr, OVERFLOWS))}, got {value!r}: "
        "'window' reads the whole text in overlapping windows, 'error' refuses it, 'truncate' keeps its start."
    )


def _is_overflow(value: object) -> TypeGuard[Overflow]:
    return isinstance(value, str) and value in OVERFLOWS
