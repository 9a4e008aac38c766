"""Rows and texts that a command is given: in a file, on standard input, or on the command line."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bothways.choices import Format
from bothways.cli.options import usage_error

if TYPE_CHECKING:
    from bothways.data import Row, Source

GO_ON = "To go on without such rows: --on-empty skip or --on-empty null."


def given_rows(
    texts: tuple[str, ...],
    data: str | None,
    text: tuple[str, ...],
    format_: Format | None,
    columns: Collection[str] | None = None,
) -> "Iterable[Row]":
    """Rows of ``--data``, or one for each text of the command line; ``columns`` where others are not read.

    Raises:
        CycloptsError: Both were given, or neither.
    """
    from bothways.data import read_rows

    check_given(texts, data)
    # Texts as if they lay in a file with the text column that was asked for.
    return (
        typed_rows({text[0]: each} for each in texts)
        if data is None
        else read_rows(data, format=format_, columns=columns)
    )


def check_output(data: str | None, output: str) -> None:
    """Want ``--output`` to be another file than ``--data``, which it would replace.

    Raises:
        CycloptsError: They are the same.
    """
    if data is None or "-" in (data, output):
        return
    if Path(data).resolve() == Path(output).resolve():
        raise usage_error(f"--output is the same file as --data, {data!r}: choose another.")


def check_given(texts: tuple[str, ...], data: str | None) -> None:
    """Want texts of the command line, or ``--data``.

    Raises:
        CycloptsError: Both were given, or neither.
    """
    if texts and data is not None:
        raise usage_error("give texts or --data, not both.")
    if not texts and data is None:
        raise usage_error("nothing to read: give texts, or --data with a file ('-' for standard input).")


def typed_rows(values: Iterable[dict[str, object]]) -> "list[Row]":
    """Rows of what was typed in."""
    from bothways.data import Row

    return [Row(number, each, f"text {number}") for number, each in enumerate(values, start=1)]


def texts_of(rows: "Iterable[Row]", text: tuple[str, ...]) -> Iterator[str]:
    """Yield the texts of rows, checked."""
    from bothways.data import text_at

    for row in rows:
        yield text_at(row, text)


def labelled_source(data: str, format_: Format | None) -> "Source":
    """Return what the library is given to read labelled rows from."""
    from bothways.data import read_rows

    return data if format_ is None else list(read_rows(data, format=format_))


def optional_source(data: str | None, format_: Format | None) -> "Source | None":
    """Return the same of rows that may be left out."""
    return None if data is None else labelled_source(data, format_)
