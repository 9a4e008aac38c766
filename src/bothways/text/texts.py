"""Checks of texts, and the portions in which texts go to the library."""

import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from bothways.errors import InvalidInput, shown

Text: TypeAlias = str | tuple[str, str]

MOST_CHARACTERS = 20_000_000
LONGEST_WORD = 1_000_000
"""A tokenizer takes a second and 60 MB for so many characters."""

_BLOCK_CHARACTERS = 2_000_000
_WORD = re.compile(r"\S+")


def check_text(index: int, text: object) -> bool:
    """Check one text or pair; return True for a pair.

    Raises:
        InvalidInput: It is neither, or holds a lone surrogate, or is far too long.
    """
    if isinstance(text, str):
        _check_unicode(index, text)
        return False
    if isinstance(text, tuple) and len(text) == 2 and all(isinstance(part, str) for part in text):
        for part in text:
            _check_unicode(index, part)
        return True
    found = type(text).__name__
    if isinstance(text, tuple):
        found = f"tuple[{', '.join(type(part).__name__ for part in text)}]"
    raise InvalidInput(f"expected text {index + 1} to be a str or a tuple of two str, got {found}: {shown(text)}")


def check_length(text: str, what: str) -> None:
    """Refuse a text or word so long that tokenizers take minutes and gigabytes; ``what`` begins the message.

    Raises:
        InvalidInput: It has more than 20 million characters, or more than a million without white space.
    """
    if len(text) > MOST_CHARACTERS:
        raise InvalidInput(
            f"{what} has {len(text):,} characters: expected at most {MOST_CHARACTERS:,}. Cut it into several texts."
        )
    if len(text) > LONGEST_WORD and any(each.end() - each.start() > LONGEST_WORD for each in _WORD.finditer(text)):
        raise InvalidInput(
            f"{what} has more than {LONGEST_WORD:,} characters without white space between them, which no tokenizer "
            "reads as words. Drop what is no text, or cut it."
        )


def _check_unicode(index: int, text: str) -> None:
    check_length(text, f"text {index + 1}")
    if text.isascii():  # known without looking at the characters
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"text {index + 1} has half of a surrogate pair (U+{ord(text[error.start]):04X}) at character "
            f"{error.start}, which no encoding can hold: it was decoded wrongly. Read the source as UTF-8, or drop "
            "that character."
        ) from error


def blocks(texts: Sequence[Text]) -> Iterator[list[Text]]:
    """Yield consecutive runs of texts of at most two million characters, or a single longer text."""
    block: list[Text] = []
    characters = 0
    for text in texts:
        length = len(text) if isinstance(text, str) else len(text[0]) + len(text[1])
        if block and characters + length > _BLOCK_CHARACTERS:
            yield block
            block, characters = [], 0
        block.append(text)
        characters += length
    if block:
        yield block
