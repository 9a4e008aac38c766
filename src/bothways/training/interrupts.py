"""Ctrl-C and SIGTERM during training: finish what must not be torn, then stop."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self


class Terminated(KeyboardInterrupt):
    """SIGTERM, by which schedulers and containers end a program; it ends what Ctrl-C ends, and in the same way."""


def interruption(number: int | None) -> KeyboardInterrupt:
    """Return what a signal raises."""
    return Terminated() if number == signal.SIGTERM else KeyboardInterrupt()


@contextmanager
def raising_terminated() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM, where nothing else is to be done then and this is the main thread."""
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


class Interrupts:
    """Holds back the first SIGINT or SIGTERM until `check` is called; a second one raises where it comes.

    What is raised is a KeyboardInterrupt, of SIGTERM a `Terminated`. Outside the main thread, or where a signal is
    ignored (SIGINT in a background job), it changes nothing.

    Attributes:
        received: The number of the first signal.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._at_once = self._unbroken = False
        self._second: int | None = None
        self._before: dict[int, Any] = {}  # what getsignal returned

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.getsignal(number)
                # None: installed by something other than Python, and not ours to put back.
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
    def requested(self) -> bool:
        """True if there was a signal that was held back."""
        return self.received is not None

    def check(self) -> None:
        """Raise the interruption that was held back, if any."""
        if self.requested:
            raise interruption(self.received)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a stretch (validation) be left anywhere: nothing is held back in it."""
        self._at_once = True
        try:
            self.check()
            yield
        finally:
            self._at_once = False

    @contextmanager
    def unbroken(self) -> Iterator[None]:
        """Let no signal leave a short stretch halfway: a second one raises behind it."""
        self._unbroken = True
        try:
            yield
        finally:
            self._unbroken = False
        if self._second is not None:
            raise interruption(self._second)

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 (the signal module's signature)
        held_back = not (self.requested or self._at_once)
        self.received = self.received or number
        if self._unbroken:
            self._second = None if held_back else number
        elif not held_back:
            raise interruption(number)
