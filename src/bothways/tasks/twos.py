"""Two texts that belong together, as tasks on pairs are given them: a tuple of both, among many also a list."""

from collections.abc import Iterable
from dataclasses import dataclass

from bothways.errors import InvalidInput

Two = tuple[str, str]

# What stands for two texts among many: a list is what JSON makes of a tuple. Alone, a list is many.
OneOfMany = Two | list[str]


@dataclass(frozen=True, slots=True)
class Kind:
    """What two texts are called in messages.

    Attributes:
        whole: Both together.
        form: How they are to be given.
        parts: Each of them.
    """

    whole: str
    form: str
    parts: tuple[str, str]


PAIR = Kind("pair", "a tuple of two texts", ("first text", "second text"))
QUESTION = Kind("question", "a tuple of a question and its context", ("question", "context"))


def given_twos(value: object, kind: Kind) -> tuple[list[Two], bool]:
    """The two texts of each that `predict` was given, and whether it was one alone.

    Raises:
        InvalidInput: It is neither a tuple of two texts nor many such tuples or lists, or a text is empty.
    """
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidInput(f"expected {kind.form}, or a list of such tuples, got {_shown(value)}.")
    if isinstance(value, tuple) and len(value) == 2 and not any(isinstance(part, tuple | list) for part in value):
        return [checked_two(0, value, kind)], True
    return [checked_two(index, each, kind) for index, each in enumerate(value)], False


def checked_two(index: int, value: object, kind: Kind) -> Two:
    """One of many, checked.

    Args:
        index: Its place among them, from 0; messages count from 1.
        value: What was given: a tuple, or a list.
        kind: What it is to be.

    Raises:
        InvalidInput: It is not two texts, or one of them is empty.
    """
    name = f"{kind.whole} {index + 1}"
    if not (isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(part, str) for part in value)):
        raise InvalidInput(f"{name} must be {kind.form}, but it is {_shown(value)}.")
    for part, text in zip(kind.parts, value, strict=True):
        if not text.strip():
            whose = name if part == kind.whole else f"the {part} of {name}"
            raise InvalidInput(f"{whose} is empty or only white space: drop the {kind.whole} or fill it in.")
    first, second = value
    return first, second


def _shown(value: object) -> str:
    what = type(value).__name__
    if isinstance(value, tuple | list):
        parts = [type(part).__name__ for part in value[:3]] + ["..."] * (len(value) > 3)
        what = f"{what}[{', '.join(parts)}]"
    return f"{what}: {value!r:.80}"
