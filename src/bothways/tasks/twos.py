"""Two texts that belong together, as tasks on pairs are given them: a tuple of both."""

from bothways.errors import InvalidInput

Two = tuple[str, str]


def single_two(value: object) -> Two | None:
    """The two texts, if it is a tuple of two; None for many such tuples."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], str):
        return value
    return None


def checked_two(index: int, value: object, what: str, parts: str) -> Two:
    """One of many, checked.

    Args:
        index: Its number, for messages.
        value: What was given.
        what: What it is called: a pair, a question.
        parts: What its two texts are.

    Raises:
        InvalidInput: It is no tuple of two texts.
    """
    if (known := single_two(value)) is not None:
        return known
    raise InvalidInput(f"{what} {index} must be a tuple of {parts}, but it is {type(value).__name__}: {value!r:.80}")
