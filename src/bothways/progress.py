"""Progress on standard error: a bar on a terminal and in a notebook; elsewhere one line per minute, if requested.

Without a terminal the library is silent, since programs that use it write their own logs. The command line requests
lines with `reporting`: a job whose output goes to a file would otherwise print nothing for hours. The time that is
shown goes on while the work reports nothing.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

FIRST_LINE_AFTER, LINE_EVERY = 10.0, 60.0  # seconds
_REFRESH, _CELLS = 0.5, 20  # seconds between two drawings of a notebook's bar, and its width


class Progress(Protocol):
    """The progress of a long loop."""

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Add ``amount`` finished units; a ``note`` replaces the text after the bar."""

    def say(self, line: str) -> None:
        """Print a permanent line, such as the result of an epoch."""


def figure(value: float, places: int = 4, *, sign: bool = False) -> str:
    """Format a number with this many decimal places; with three significant digits if it is small or very large.

    >>> figure(0.91234), figure(1.5e-7), figure(0.5, 3, sign=True), figure(0.0)
    ('0.9123', '1.5e-07', '+0.500', '0.0000')
    """
    plus = "+" if sign else ""
    if value and not 10 ** (1 - places) <= abs(value) < 1e7:
        return f"{value:{plus}.3g}"
    return f"{value:{plus}.{places}f}"


def six_digits(value: object) -> object:
    """Round numbers to six significant digits, also inside lists and objects.

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
    """Return a row of results with its numbers rounded to six significant digits."""
    return {name: six_digits(each) for name, each in values.items()}


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
    """Print ``description``, such as the name of a phase that begins, if progress is shown."""
    if shown():
        _write(description)


@dataclass(slots=True)
class Times:
    """The seconds of the stages of a job, by name; of nested stages, only the outermost counts."""

    stages: dict[str, float] = field(default_factory=dict)
    earlier: float = 0.0  # seconds before an interruption, see `add_time`
    began: float = field(default_factory=lambda: time.monotonic())
    inside: bool = False

    @property
    def seconds(self) -> float:
        """Seconds since the beginning of the job, and those of stages before an interruption."""
        return time.monotonic() - self.began + self.earlier

    def add(self, name: str, seconds: float) -> None:
        self.stages[name] = self.stages.get(name, 0.0) + seconds


_TIMES: ContextVar[Times | None] = ContextVar("times", default=None)


@contextmanager
def timed() -> Iterator[Times]:
    """Measure the stages within the block; a block within another adds to the times of both."""
    before, times = _TIMES.get(), Times()
    token = _TIMES.set(times)
    try:
        yield times
    finally:
        _TIMES.reset(token)
        if before is not None and not before.inside:
            before.earlier += times.earlier
            for name, seconds in times.stages.items():
                before.add(name, seconds)


def elapsed(name: str | None = None) -> float:
    """Return the seconds of the job that is `timed`, or of one of its stages; 0 if there is none."""
    times = _TIMES.get()
    return 0.0 if times is None else times.seconds if name is None else times.stages.get(name, 0.0)


def stage_seconds() -> dict[str, float]:
    """Return the seconds of each stage of the job that is `timed`, by name."""
    times = _TIMES.get()
    return {} if times is None else dict(times.stages)


def shown() -> bool:
    """Return True if `stage` shows anything."""
    now = _REPORTING.get()
    return now.show is not False and bool(now.show or now.lines or _on_terminal() or _in_notebook())


def add_time(name: str, seconds: float) -> None:
    """Add the seconds that a stage of a resumed job took before the interruption."""
    if (times := _TIMES.get()) is not None and not times.inside:
        times.earlier += seconds
        times.add(name, seconds)


@contextmanager
def stage(name: str, total: int | None = None, *, done: int = 0, show: bool | None = None) -> Iterator[Progress]:
    """Report the progress of a stage of a longer job, see `progress`, and measure its time.

    Lines begin with one that has only the name.
    """
    now, times, began = _REPORTING.get(), _TIMES.get(), time.monotonic()
    outermost = times is not None and not times.inside
    if times is not None:
        times.inside = True
    show = now.show if show is None else show
    if show is not False and (show or now.lines) and not (_on_terminal() or _in_notebook()):
        _write(name)
    try:
        with progress(name, total, done=done, show=show) as bar:
            yield bar
    finally:
        if times is not None and outermost:
            times.inside = False
            times.add(name, time.monotonic() - began)


@contextmanager
def progress(
    description: str, total: int | None = None, *, done: int = 0, show: bool | None = None
) -> Iterator[Progress]:
    """Report progress on standard error while the block runs.

    Args:
        description: Name of the work.
        total: Number of units; None if unknown.
        done: Units finished before the block.
        show: Force progress on (elsewhere than on a terminal or in a notebook, as lines) or off. By default, a bar is
            shown on a terminal and in a notebook only, and not if ``total`` is 1; elsewhere, lines are printed if
            `reporting` requests them.
    """
    now = _REPORTING.get()
    show = now.show if show is None else show
    if show is False or (show is None and total == 1 and not now.lines):
        yield _Silent()
    elif _on_terminal():
        with _bar(description, total, done) if show or total != 1 else contextlib.nullcontext(_Silent()) as bar:
            yield bar
    elif show or now.lines or _in_notebook():
        lines = _Lines(description, total, done, in_place=_in_notebook())
        try:
            yield lines
        finally:
            lines.close()
    else:
        yield _Silent()


class _Silent:
    def advance(self, amount: int = 1, note: str = "") -> None:
        pass

    def say(self, line: str) -> None:
        pass


class _Lines:
    """Prints at most one line per minute, the first after ten seconds; or a bar that is drawn ``in_place``.

    A thread prints them too, so that work that reports nothing is not silent.
    """

    def __init__(self, description: str, total: int | None, done: int, *, in_place: bool) -> None:
        self._description, self._total = description, total
        self._before = self._done = done
        self._note = ""
        self._in_place, self._drawn, self._used = in_place, 0, False
        self._began = time.monotonic()
        self._due = self._began + (_REFRESH if in_place else FIRST_LINE_AFTER)
        self._lock, self._closed = threading.Lock(), threading.Event()
        threading.Thread(target=self._keep_printing, daemon=True).start()

    def advance(self, amount: int = 1, note: str = "") -> None:
        with self._lock:
            self._done += amount
            self._note = note or self._note
        self._print_if_due()

    def say(self, line: str) -> None:
        with self._lock:
            self._due = time.monotonic() + (_REFRESH if self._in_place else LINE_EVERY)
            self._draw(line if self._in_place else f"{self._description}: {line}", last=True)

    def close(self) -> None:
        """Stop printing; a bar is drawn once more and stays."""
        self._closed.set()
        with self._lock:
            if self._in_place and self._used:
                self._draw(self._line(time.monotonic()), last=True)

    def _keep_printing(self) -> None:
        while not self._closed.wait(_REFRESH):
            self._print_if_due()

    def _print_if_due(self) -> None:
        with self._lock:
            now = time.monotonic()
            if now >= self._due and not self._closed.is_set():
                self._due = now + (_REFRESH if self._in_place else LINE_EVERY)
                self._draw(self._line(now), last=not self._in_place)

    def _draw(self, line: str, *, last: bool) -> None:
        self._used = True
        if self._in_place:  # over the bar that was drawn before
            line, self._drawn = f"\r{line:<{self._drawn}}", 0 if last else len(line)
        _write(line, end="\n" if last else "")

    def _line(self, now: float) -> str:
        filled = 0 if self._total is None else _CELLS * self._done // max(self._total, 1)
        bar = f" {'█' * filled}{'░' * (_CELLS - filled)}" if self._in_place and self._total is not None else ""
        return f"{self._description}:{bar} {', '.join(self._parts(now - self._began))}"

    def _parts(self, seconds: float) -> Iterator[str]:
        done, total = self._done, self._total
        if total is not None:
            yield f"{done:,} of {total:,} ({done / max(total, 1):.0%})"
        elif done:
            yield f"{done:,} done"
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


_SHOWN: "list[Bars]" = []  # the bars on the terminal; a bar within another is a line of the same display


@contextmanager
def _bar(description: str, total: int | None, done: int) -> Iterator[Progress]:
    with contextlib.ExitStack() as stack:
        bars = _SHOWN[-1] if _SHOWN else stack.enter_context(_display())
        task = bars.add_task(description, total=total, completed=done, note="")
        if len(bars.task_ids) > 1:
            stack.callback(bars.remove_task, task)

        class _Bar:
            def advance(self, amount: int = 1, note: str = "") -> None:
                if note:
                    bars.update(task, advance=amount, note=note)
                else:
                    bars.update(task, advance=amount)

            def say(self, line: str) -> None:
                bars.console.print(line, markup=False, highlight=False)

        yield _Bar()


@contextmanager
def _display() -> "Iterator[Bars]":
    # Imported here: rich.progress costs start-up time that a pipe never needs.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.text import Text

    class Count(MofNCompleteColumn):
        def render(self, task: Task) -> Text:
            return super().render(task) if task.total or task.completed else Text()

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        Count(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", style="dim"),
    )
    with Bars(*columns, console=Console(stderr=True)) as bars:
        _SHOWN.append(bars)
        try:
            yield bars
        finally:
            _SHOWN.remove(bars)


def _on_terminal() -> bool:
    # sys.stderr is None in a program that was started without standard error.
    return sys.stderr is not None and sys.stderr.isatty()


def _in_notebook() -> bool:
    """Return True within the kernel of a notebook, whose standard error is no terminal but draws a bar in place."""
    shell = sys.modules.get("IPython") if "ipykernel" in sys.modules else None
    return shell is not None and shell.get_ipython() is not None


def _write(line: str, end: str = "\n") -> None:
    # A failed write (closed pipe, full disk) must not end the work.
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(line, file=sys.stderr, end=end, flush=True)
