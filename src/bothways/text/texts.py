"""What counts as a text, and in what portions texts go to the library."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from bothways.errors import InvalidInput

Text: TypeAlias = str | tuple[str, str]

_BLOCK_CHARACTERS = 2_000_000


def check_text(index: int, text: object) -> bool:
    """Check one text or pair; whether it is a pair.

    Raises:
        InvalidInput: It is neither, or holds a lone surrogate.
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
    raise InvalidInput(f"expected text {index + 1} to be a str or a tuple of two str, got {found}: {text!r:.80}")


def _check_unicode(index: int, text: str) -> None:
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
    """Consecutive runs of texts of at most two million characters; a longer text is a run of its own."""
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
