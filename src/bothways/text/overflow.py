"""What to do with a text that has more tokens than the model reads.

``"window"``
    Cut it into overlapping windows that together hold every token; nothing is lost.
``"error"``
    Raise ``TextTooLong``.
``"truncate"``
    Keep the first window and report how many tokens were dropped.
"""

from typing import Literal, TypeAlias, TypeGuard, get_args

from bothways.errors import InvalidInput

Overflow: TypeAlias = Literal["window", "error", "truncate"]

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
