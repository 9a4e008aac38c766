"""What the user sees: results on standard output, everything else on standard error."""

import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_WIDE = 10_000


def print_json(value: object) -> None:
    """Print a value as one line of JSON, in ASCII where standard output has no UTF-8."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    print(json.dumps(value, ensure_ascii=encoding != "utf8", allow_nan=False))


def note(message: str) -> None:
    """Say something about the course of the work on standard error."""
    _print(console(stderr=True), message)


def complain(message: str) -> None:
    """Report an error on standard error."""
    from rich.text import Text

    _print(console(stderr=True), Text.assemble(("error: ", "bold red"), printable(message)))


def console(*, stderr: bool = False) -> "Console":
    """A console that prints text as it is: no markup, no colours of its own, and no cropping in a pipe."""
    from rich.console import Console

    plain = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not plain.is_terminal:
        plain.width = _WIDE
    return plain


def printable(text: str) -> str:
    r"""The text with control characters made visible, so that it cannot steer the terminal.

    >>> print(printable("\x1b[31mred"))
    \x1b[31mred
    """
    return "".join(each if each.isprintable() or each in "\n " else _escaped(each) for each in text)


def one_line(text: str) -> str:
    """The text on one line, with runs of white space as one space, and control characters made visible."""
    return printable(" ".join(text.split()))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _print(target: "Console", message: object) -> None:
    target.print(message, soft_wrap=not target.is_terminal)
