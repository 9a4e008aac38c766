"""Output for the user: results on standard output, everything else on standard error."""

import json
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDE = 10_000  # columns where there is no terminal


def print_json(value: object) -> None:
    """Print a value as one line of JSON, in ASCII where standard output has no UTF-8."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    print(json.dumps(value, ensure_ascii=encoding != "utf8", allow_nan=False))


def six_digits(value: object) -> object:
    """Numbers with six digits, also those in lists and objects: more of a probability or a score say nothing.

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
    """Return a row of results, its numbers with six digits."""
    return {name: six_digits(each) for name, each in values.items()}


def note(message: str) -> None:
    """Say something about the course of the work on standard error."""
    _print(printable(message))


def complain(message: str) -> None:
    """Report an error on standard error."""
    from rich.text import Text

    _print(Text.assemble(("error: ", "bold red"), printable(message)))


def progress_beside(output: str, *, quiet: bool) -> bool | None:
    """Return how to show progress: not as a bar beside results on the same terminal."""
    return False if quiet or (output == "-" and sys.stderr is not None and sys.stderr.isatty()) else None


def interrupted_code(number: int | None) -> int:
    """Return the exit code after a signal, as shells have it; after Ctrl-C where it is not known."""
    return 128 + (number or signal.SIGINT)


def plain_table() -> "Table":
    """Return a table without lines."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")


def print_table(table: "Table") -> None:
    """Print a table, fitted to a terminal and as wide as it likes elsewhere."""
    target = _console()
    with target.capture() as capture:
        target.print(table)
    # Cells are filled up with spaces, which in the last column nobody needs.
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def printable(text: str) -> str:
    r"""Return the text with control characters made visible, so that it cannot steer the terminal.

    >>> print(printable("\x1b[31mred"))
    \x1b[31mred
    """
    return "".join(each if each.isprintable() or each in "\n " else _escaped(each) for each in text)


def counted(count: int, noun: str) -> str:
    """``1 text``, ``2,000 texts``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def shortened(text: str, longest: int) -> str:
    """Return the text, without its middle if it is long: the ends are what tells names apart.

    >>> shortened("transfer_not_received_by_recipient", 20)
    'transfer_n…recipient'
    """
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[half + 1 - longest :]}"


def one_line(text: str) -> str:
    """Return the text on one line, with runs of white space as one space, and control characters made visible."""
    return printable(" ".join(text.split()))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _print(message: object) -> None:
    target = _console(stderr=True)
    # A terminal gets its lines broken between words, a file as they are.
    target.print(message, soft_wrap=not target.is_terminal)


def _console(*, stderr: bool = False) -> "Console":
    """Return a console that prints text as it is: no markup and no colours of its own."""
    from rich.console import Console

    console = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    return console
