"""Results on standard output; notes and errors on standard error."""

import itertools
import json
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from bothways.errors import PromptsDiffer
from bothways.progress import figure, reporting

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


FAILED, BAD_USAGE, BROKEN_PIPE = 1, 2, 141
"""Exit codes of the program, besides those of `interrupted_code`."""

_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)
_WIDE = 10_000  # characters per line if the output is not a terminal

# Tables of predictions for people.
_AT_ONCE = 50  # rows of a table; the next rows have a table of their own
_LONGEST, _MOST = 60, 3  # characters of a text, and probabilities or words in a cell
_BAR = 24
# Figures for programs, which --json prints.
_HIDDEN = {"windows", "start", "end", "out_of_domain_score", "row"}
_SELDOM = {"out_of_domain", "dropped_tokens"}  # shown if they are not false or 0


def print_json(value: object) -> None:
    """Print a value as one line of JSON, in ASCII unless standard output is UTF-8."""
    encoding = (sys.stdout.encoding or "utf-8").lower().replace("-", "")
    print(json.dumps(value, ensure_ascii=encoding != "utf8", allow_nan=False))


def note(message: str, *, always: bool = False) -> None:
    """Print a remark on standard error; with ``--quiet`` only if it is to be printed ``always``."""
    if always or not _QUIET.get():
        _print(printable(message))


@contextmanager
def quietly(quiet: bool) -> Iterator[None]:
    """Show no progress and no notes within the block if ``quiet``."""
    before = _QUIET.set(quiet)
    try:
        with reporting(False if quiet else None), warnings.catch_warnings():
            if quiet:
                warnings.simplefilter("ignore", PromptsDiffer)
            yield
    finally:
        _QUIET.reset(before)


def complain(message: str) -> None:
    """Print an error on standard error."""
    from rich.text import Text

    _print(Text.assemble(("error: ", "bold red"), printable(message)))


def progress_beside(output: str) -> bool | None:
    """Return the library's ``show_progress``: False if results go to the terminal, else None (default)."""
    return False if output == "-" and sys.stderr is not None and sys.stderr.isatty() else None


def interrupted_code(number: int | None) -> int:
    """Return the exit code after a signal, by the convention of shells; None counts as Ctrl-C."""
    return 128 + (number or signal.SIGINT)


def print_table(columns: Sequence[str], rows: "Iterable[Sequence[str | Text]]", *, header: bool = True) -> None:
    """Print a table without border lines. On a terminal it fits the width; elsewhere, lines may have any length.

    The first character of a heading sets the layout of its column: ``<`` aligns it left and ``>`` right, both without
    line breaks; ``~`` breaks lines, also within long words. Columns with other headings break lines between words.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", show_header=header)
    for column in columns:
        match column[:1]:
            case "<":
                table.add_column(column[1:], no_wrap=True)
            case ">":
                table.add_column(column[1:], justify="right", no_wrap=True)
            case "~":
                table.add_column(column[1:], overflow="fold")
            case _:
                table.add_column(column)
    for row in rows:
        table.add_row(*row)
    target = _console()
    with target.capture() as capture:
        target.print(table)
    # Remove the padding of the last column.
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def printable(text: str) -> str:
    r"""Escape control characters, so that a text cannot control the terminal.

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
    """Replace the middle of a long text by an ellipsis, since names differ most at their ends.

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
    # Lines are wrapped on a terminal only.
    target.print(message, soft_wrap=not target.is_terminal)


def _console(*, stderr: bool = False) -> "Console":
    from rich.console import Console

    # Without markup and automatic colours, texts are printed unchanged.
    console = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    return console


# --- predictions as tables for people, on a terminal ---


def on_terminal(output: str, *, json: bool) -> bool:
    """Return True if results are for a person: on a terminal, and not asked for as JSON."""
    return output == "-" and not json and sys.stdout.isatty()


def print_rows(rows: Iterable[Mapping[str, object]]) -> int:
    """Print rows of inputs and predictions as tables, without columns that are empty; return the number of rows."""
    count = 0
    flat = ({name: _cell(value) for name, value in _figures(row)} for row in rows)
    while block := list(itertools.islice(flat, _AT_ONCE)):
        names = [name for name in dict.fromkeys(itertools.chain(*block)) if any(row.get(name) for row in block)]
        headings = [f">{name}" if _is_number(block, name) else f"~{name}" for name in names]
        print_table(headings, [[row.get(name) or "-" for name in names] for row in block])
        count += len(block)
    return count


def bar(share: float) -> str:
    """Return a bar for a share of the largest value, solid for positive and light for negative shares."""
    full, light = ("\u2588", "\u2591") if "utf" in (sys.stdout.encoding or "utf-8").lower() else ("#", "-")
    return (full if share > 0 else light) * round(_BAR * abs(share))


def described(prediction: Mapping[str, object]) -> str:
    """Return a prediction on one line.

    >>> described({"label": "good", "probability": 0.91, "probabilities": {"good": 0.91, "bad": 0.09}, "windows": 1})
    'label: good, probability: 0.910, probabilities: good 0.910  bad 0.090'
    """
    cells = ((name, _cell(value)) for name, value in _figures(prediction))
    return ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in cells if value)


def _figures(row: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    """Yield the names and values to show; those of the tasks of a model begin with the name of the task."""
    tagged = bool(row.get("spans"))
    for name, value in row.items():
        if isinstance(value, Mapping) and not all(isinstance(each, float) for each in value.values()):
            yield from _figures(value, f"{before}{name} ")
        elif name not in _HIDDEN and not (name in _SELDOM and not value) and not (name == "words" and tagged):
            yield f"{before}{name}", value


def _cell(value: object) -> str:
    match value:
        case None | () | []:
            return ""
        case float():
            return figure(value, 3)
        case Mapping():
            listed = [f"{name} {_cell(share)}" for name, share in itertools.islice(value.items(), _MOST)]
            return "  ".join(map(one_line, [*listed, "..."] if len(value) > _MOST else listed))
        case list() | tuple():
            return "  ".join(map(_item, value))
        case _:
            return shortened(one_line(str(value)), _LONGEST)


def _item(item: object) -> str:
    """Return a label, a tagged word, a span, or an answer."""
    match item:
        case {"text": str(text), "tag": tag}:
            return f"{one_line(text)}/{tag}"
        case {**values}:
            return " ".join(filter(None, (_cell(value) for name, value in values.items() if name not in _HIDDEN)))
        case _:
            return one_line(str(item))


def _is_number(block: Sequence[Mapping[str, str]], name: str) -> bool:
    return all(not (cell := row.get(name)) or cell.replace(".", "").replace("-", "").isdigit() for row in block)
