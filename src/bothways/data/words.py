"""Checked words of a row, and their tags."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from bothways.data.columns import check_encodable, text_at, value_at, written_list
from bothways.data.row import Row
from bothways.data.sources import Source, read_rows
from bothways.errors import EmptyInput, InvalidInput, shown
from bothways.text import Words


@dataclass(frozen=True, slots=True)
class TaggedRow:
    """Words with a tag for each.

    Attributes:
        words: The words.
        label: The tags, as many as words.
        where: The row in words, for messages.
    """

    words: Words
    label: tuple[str, ...]
    where: str = field(default="a row", compare=False)


def words_at(row: Row, column: str) -> Words:
    """Return the words in a column: a list of strings, or one string with white space between the words.

    A string that spells a list of strings, as a csv file has those of JSON or Python, is that list.

    Raises:
        InvalidInput: The column is missing, there are no words, or one of them is empty or no string.
    """
    words = _strings_at(row, column)
    if not words:
        raise EmptyInput(f"{row.where}: there are no words in {column!r}. Drop the row or fill it in.")
    for number, word in enumerate(words, start=1):
        if not word:
            raise InvalidInput(f"{row.where}: word {number} in {column!r} is empty. Drop it, with its tag.")
        check_encodable(word, f"{row.where}: word {number} in {column!r}")
    return Words.of_list(words)


def given_words(row: Row, tokens: str, text: tuple[str, ...]) -> Words:
    """Return the words of a row: its column of words if it has one, else the words of its text.

    Raises:
        InvalidInput: It has neither, or they are not usable.
    """
    if tokens in row.values:
        return words_at(row, tokens)
    if not any(name in row.values for name in text):
        raise InvalidInput(
            f"{row.where} has neither a column {tokens!r} with words nor one {' or '.join(map(repr, text))} with a "
            f"text. It has: {', '.join(map(repr, row.values))}."
        )
    words = Words.of_text(text_at(row, text))
    if not words.spans:
        raise EmptyInput(f"{row.where}: no character of its text can be seen. Drop the row or fill it in.")
    return words


def read_tagged(source: Source, tokens: str = "tokens", tags: str = "tags") -> Iterator[TaggedRow]:
    """Yield words with their tags, row by row.

    Args:
        source: As for `read_rows`.
        tokens: Column of the words.
        tags: Column of the tags.

    Raises:
        InvalidInput: As for `read_rows` and `words_at`, or the tags are not as many as the words.
    """
    for row in read_rows(source):
        words, labels = words_at(row, tokens), _strings_at(row, tags)
        if len(labels) != len(words):
            raise InvalidInput(
                f"{row.where} has {len(words)} words in {tokens!r} but {len(labels)} tags in {tags!r}: each word needs "
                "one tag."
            )
        for number, label in enumerate(labels, start=1):
            if not label.strip():
                raise InvalidInput(f"{row.where}: tag {number} in {tags!r} is empty. A word outside of all spans is O.")
            check_encodable(label, f"{row.where}: tag {number} in {tags!r}")
        yield TaggedRow(words, tuple(labels), row.where)


def _strings_at(row: Row, column: str) -> list[str]:
    value = value_at(row, column)
    if isinstance(value, str):
        listed = _written_list_at(row, column, value)
        if listed is None:
            return value.split()
        value = listed
    if not isinstance(value, list | tuple):
        found = "null" if value is None else f"of type {type(value).__name__}"
        raise (EmptyInput if value is None else InvalidInput)(
            f"{row.where}: {column!r} is {found}. Expected a list of strings, or a string with white space between."
        )
    for number, each in enumerate(value, start=1):
        if not isinstance(each, str):
            raise InvalidInput(
                f"{row.where}: number {number} in {column!r} is {shown(each, 40)}, of type {type(each).__name__}. "
                "Expected a string."
            )
    return list(value)


def _written_list_at(row: Row, column: str, text: str) -> list[object] | None:
    try:
        return written_list(text, "Put white space between the strings")
    except InvalidInput as error:
        raise InvalidInput(f"{row.where}: {column!r}: {error}") from error
