"""Ctrl-C and SIGTERM during training: finish the current step, then stop."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM, which schedulers and containers send to end a program; handled like Ctrl-C."""


def interruption(number: int | None) -> KeyboardInterrupt:
    """Return the exception for a signal number: `Terminated` for SIGTERM, else KeyboardInterrupt."""
    return Terminated() if number == signal.SIGTERM else KeyboardInterrupt()


@contextmanager
def raising_terminated() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM in the block, in the main thread only and if no other handler is installed."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def terminate(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 (the signal module's signature)
        raise interruption(number)

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


# Numbers of signals that did not come from the operating system, see `interrupt`.
_told: list[int] = []


def interrupt(number: int) -> None:
    """Interrupt what this process trains, now or later, as a held-back signal would; called from any thread."""
    _told.append(number)


class Interrupts:
    """Holds back the first SIGINT or SIGTERM until `check` is called; a second one raises immediately.

    SIGINT raises KeyboardInterrupt, SIGTERM `Terminated`; `interrupt` stands for either. Outside the main thread, and
    for ignored signals (SIGINT in a background job), only `interrupt` changes anything.
    """

    def __init__(self) -> None:
        self._received: int | None = None
        self._at_once = self._unbroken = False
        self._second: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.getsignal(number)
                # None: the handler was not installed from Python, so it could not be restored.
                if before is not None and before is not signal.SIG_IGN:
                    signal.signal(number, self._handle)
                    self._before[number] = before
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    @property
    def received(self) -> int | None:
        """The number of the first signal, or None."""
        return self._received or next(iter(_told), None)

    @property
    def requested(self) -> bool:
        """True if a signal was held back."""
        return self.received is not None

    def check(self) -> None:
        """Raise the exception for a signal if one was held back."""
        if self.requested:
            raise interruption(self.received)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let signals raise immediately within the block, such as a validation."""
        self._at_once = True
        try:
            self.check()
            yield
        finally:
            self._at_once = False

    @contextmanager
    def unbroken(self) -> Iterator[None]:
        """Let no signal interrupt the block; a second signal raises when the block ends."""
        self._unbroken = True
        try:
            yield
        finally:
            self._unbroken = False
        if self._second is not None:
            raise interruption(self._second)

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 (the signal module's signature)
        held_back = not (self.requested or self._at_once)
        self._received = self._received or number
        if self._unbroken:
            self._second = None if held_back else number
        elif not held_back:
            raise interruption(number)
