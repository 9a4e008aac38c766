"""Ctrl-C during training: finish what must not be torn, then stop."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self


class Interrupts:
    """Holds back the first SIGINT until `check` is called; a second one raises KeyboardInterrupt where it comes.

    Outside the main thread, or where SIGINT is ignored (a background job), it changes nothing.
    """

    def __init__(self) -> None:
        self._requested = False
        self._at_once = False
        self._installed = False
        self._before: object = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            # None: installed by something other than Python, and not ours to put back.
            if before is not None and before is not signal.SIG_IGN:
                signal.signal(signal.SIGINT, self._handle)
                self._before, self._installed = before, True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._before)  # type: ignore[arg-type]  # what getsignal returned

    @property
    def requested(self) -> bool:
        """Whether there was a SIGINT that was held back."""
        return self._requested

    def check(self) -> None:
        """Raise the KeyboardInterrupt that was held back, if any."""
        if self._requested:
            raise KeyboardInterrupt

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A stretch (validation) that may be left anywhere: nothing is held back in it."""
        self._at_once = True
        try:
            self.check()
            yield
        finally:
            self._at_once = False

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 (the signal module's signature)
        if self._requested or self._at_once:
            raise KeyboardInterrupt
        self._requested = True
