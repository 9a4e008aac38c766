"""Printing: results on standard output, everything else on standard error."""

import json
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDE = 10_000  # columns of a console that is no terminal


def print_json(value: object) -> None:
    """Print a value as one line of JSON, in ASCII unless standard output is UTF-8."""
    encoding = (sys.stdout.encoding or "utf-8").lower().replace("-", "")
    print(json.dumps(value, ensure_ascii=encoding != "utf8", allow_nan=False))


def six_digits(value: object) -> object:
    """Round numbers to six digits, also inside lists and objects.

    >>> six_digits({"probability": 0.12345678901234568, "windows": 1})
    {'probability': 0.123457, 'windows': 1}
    """
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {name: six_digits(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [six_digits(each) for each in value]
    return value


def rounded(values: Mapping[str, object]) -> dict[str, object]:
    """Return a row of results with its numbers rounded to six digits."""
    return {name: six_digits(each) for name, each in values.items()}


def note(message: str) -> None:
    """Print a remark on standard error."""
    _print(printable(message))


def complain(message: str) -> None:
    """Print an error on standard error."""
    from rich.text import Text

    _print(Text.assemble(("error: ", "bold red"), printable(message)))


def progress_beside(output: str, *, quiet: bool) -> bool | None:
    """Decide on a progress bar: never on the terminal that results are printed on."""
    return False if quiet or (output == "-" and sys.stderr is not None and sys.stderr.isatty()) else None


def interrupted_code(number: int | None) -> int:
    """Return the exit code after a signal, by the convention of shells; None counts as Ctrl-C."""
    return 128 + (number or signal.SIGINT)


def plain_table(*right: str, left: tuple[str, ...] = (), fold: tuple[str, ...] = (), header: bool = True) -> "Table":
    """Return a table without lines.

    Args:
        right: Columns aligned to the right, after the others.
        left: Columns aligned to the left.
        fold: Columns aligned to the left whose long words are broken.
        header: Whether to show the names of the columns.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", show_header=header)
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in fold:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def print_table(table: "Table") -> None:
    """Print a table, fitted to a terminal or, elsewhere, as wide as it needs."""
    target = _console()
    with target.capture() as capture:
        target.print(table)
    # Cells are padded with spaces, which the last column does not need.
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def printable(text: str) -> str:
    r"""Escape control characters, so that a text cannot steer the terminal.

    >>> print(printable("\x1b[31mred"))
    \x1b[31mred
    """
    return "".join(
        each if each.isprintable() or each in "\n " else each.encode("unicode_escape").decode("ascii") for each in text
    )


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 text``, ``2,000 texts``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def shortened(text: str, longest: int) -> str:
    """Return the text, without its middle if it is long, since names differ most at their ends.

    >>> shortened("transfer_not_received_by_recipient", 20)
    'transfer_n…recipient'
    """
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[half + 1 - longest :]}"


def one_line(text: str) -> str:
    """Return the text on one line, with single spaces and control characters escaped."""
    return printable(" ".join(text.split()))


def _print(message: object) -> None:
    target = _console(stderr=True)
    # A terminal gets its lines broken between words, a file as they are.
    target.print(message, soft_wrap=not target.is_terminal)


def _console(*, stderr: bool = False) -> "Console":
    from rich.console import Console

    # No markup and no colours of its own: texts are printed as they are.
    console = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    return console
