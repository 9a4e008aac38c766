"""Progress on standard error: a bar on a terminal; elsewhere one line per minute, if requested.

Without a terminal the library is silent, since programs that use it write their own logs. The command line requests
lines with `reporting`: a job whose output goes to a file would otherwise print nothing for hours.
"""

import contextlib
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Protocol

FIRST_LINE_AFTER, LINE_EVERY = 10.0, 60.0  # seconds


class Progress(Protocol):
    """The progress of a long loop."""

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Add ``amount`` finished units; a ``note`` replaces the text after the bar."""

    def say(self, line: str) -> None:
        """Print a permanent line, such as the result of an epoch."""


@dataclass(frozen=True, slots=True)
class _Reporting:
    show: bool | None = None
    lines: bool = False


_DEFAULT = _Reporting()
_REPORTING: ContextVar[_Reporting] = ContextVar("reporting", default=_DEFAULT)


@contextmanager
def reporting(show: bool | None = None, *, lines: bool = False) -> Iterator[None]:
    """Set how progress is reported within the block.

    Args:
        show: Default of the ``show`` argument of `progress` within the block.
        lines: Print lines if standard error is not a terminal.
    """
    before = _REPORTING.get()
    inner = replace(before, show=before.show if show is None else show, lines=before.lines or lines)
    token = _REPORTING.set(inner)
    try:
        yield
    finally:
        _REPORTING.reset(token)


def phase(description: str) -> None:
    """Print ``description``, the name of a phase that begins, if progress is shown."""
    now = _REPORTING.get()
    if now.show is not False and (now.show or now.lines or _on_terminal()):
        _write(description)


@contextmanager
def progress(
    description: str, total: int | None = None, *, done: int = 0, show: bool | None = None
) -> Iterator[Progress]:
    """Report progress on standard error while the block runs.

    Args:
        description: Name of the work.
        total: Number of units; None if unknown.
        done: Units finished before the block.
        show: Force the bar on or off. By default, it is shown on a terminal only, and not if ``total`` is 1; elsewhere,
            lines are printed if `reporting` requests them.
    """
    now = _REPORTING.get()
    show = now.show if show is None else show
    if now.lines and show is not False and not _on_terminal():
        yield _Lines(description, total, done)
    elif _on_terminal() and total != 1 if show is None else show:
        with _bar(description, total, done) as bar:
            yield bar
    else:
        yield _Silent()


class _Silent:
    def advance(self, amount: int = 1, note: str = "") -> None:
        pass

    def say(self, line: str) -> None:
        pass


class _Lines:
    """Prints at most one line per minute, the first after ten seconds."""

    def __init__(self, description: str, total: int | None, done: int) -> None:
        self._description, self._total = description, total
        self._before = self._done = done
        self._note = ""
        self._began = time.monotonic()
        self._due = self._began + FIRST_LINE_AFTER

    def advance(self, amount: int = 1, note: str = "") -> None:
        self._done += amount
        self._note = note or self._note
        now = time.monotonic()
        if now >= self._due:
            self._due = now + LINE_EVERY
            _write(f"{self._description}: {', '.join(self._parts(now - self._began))}")

    def say(self, line: str) -> None:
        self._due = time.monotonic() + LINE_EVERY
        _write(f"{self._description}: {line}")

    def _parts(self, seconds: float) -> Iterator[str]:
        done, total = self._done, self._total
        yield f"{done:,} done" if total is None else f"{done:,} of {total:,} ({done / max(total, 1):.0%})"
        yield duration(seconds)
        if total is not None and self._before < done < total:
            yield f"about {duration(seconds * (total - done) / (done - self._before))} left"
        if self._note:
            yield self._note


def duration(seconds: float) -> str:
    """Format a duration in seconds.

    >>> duration(9.4), duration(150), duration(7500)
    ('9 s', '2 min 30 s', '2 h 5 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def _bar(description: str, total: int | None, done: int) -> Iterator[Progress]:
    # Imported here: rich.progress costs start-up time that a pipe never needs.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", style="dim"),
    )
    with Bars(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(description, total=total, completed=done, note="")

        class _Bar:
            def advance(self, amount: int = 1, note: str = "") -> None:
                if note:
                    bars.update(task, advance=amount, note=note)
                else:
                    bars.update(task, advance=amount)

            def say(self, line: str) -> None:
                bars.console.print(line, markup=False, highlight=False)

        yield _Bar()


def _on_terminal() -> bool:
    # sys.stderr is None in a program that was started without standard error.
    return sys.stderr is not None and sys.stderr.isatty()


def _write(line: str) -> None:
    # A failed write (closed pipe, full disk) must not end the work.
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(line, file=sys.stderr, flush=True)
