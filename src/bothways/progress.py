"""Progress bars: on a terminal, and nowhere else."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """What a long loop tells whoever watches it."""

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Say that ``amount`` more units are done; ``note`` replaces the remark behind the bar."""


def _on_terminal() -> bool:
    # A program that was started without standard error has None in its place.
    return sys.stderr is not None and sys.stderr.isatty()


class _Silent:
    def advance(self, amount: int = 1, note: str = "") -> None:
        """Nobody watches."""


@contextmanager
def progress(description: str, total: int | None = None, *, show: bool | None = None) -> Iterator[Progress]:
    """A bar on standard error while the block runs.

    Args:
        description: What is being done.
        total: Number of units, or None when it is not known.
        show: Force the bar on or off; by default it shows on a terminal only, never in a pipe, and never for a single
            unit, of which it could say nothing.
    """
    if not (_on_terminal() and total != 1 if show is None else show):
        yield _Silent()
        return
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
        task = bars.add_task(description, total=total, note="")

        class _Bar:
            def advance(self, amount: int = 1, note: str = "") -> None:
                """Move the bar."""
                if note:
                    bars.update(task, advance=amount, note=note)
                else:
                    bars.update(task, advance=amount)

        yield _Bar()
