"""One process per contestant, driven through a pipe; README.md says why."""

import gc
import importlib
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeVar, cast

from benchmarks.harness import forget_peak, peak_memory, resident_memory, say

T = TypeVar("T")
# What every worker answers, whatever its subject.
_OF_THE_PROCESS = {each.__name__: each for each in (peak_memory, resident_memory, forget_peak)}
# Seconds of silence after which a progress line says that a call is still running.
HEARTBEAT = 60


class AbsentPeerError(Exception):
    """A peer's package is not installed; the contestant is left out, and the result says so."""


def installed(package: str, hint: str = "") -> Any:  # noqa: ANN401
    """Import a peer's package.

    Raises:
        AbsentPeerError: It, or what it needs, is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise AbsentPeerError(f"{error}{hint}") from error


def set_torch_threads(threads: int) -> None:
    """Compute with so many threads of torch."""
    import torch

    torch.set_num_threads(threads)


class WorkerError(Exception):
    """The contestant raised; carries its traceback."""


class Worker(AbstractContextManager["Worker"]):
    """A process that builds a subject, by a module-level function, and answers calls to its methods."""

    def __init__(self, build: Callable[..., Any], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, build, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self._receive()

    def call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401
        """Call a method and return what it returned."""
        self._pipe.send((method, arguments, False))
        return self._receive()

    def timed(self, method: str, *arguments: object) -> dict[str, float]:
        """Call a method, drop what it returned, and return ``wall`` and ``cpu`` in seconds."""
        self._pipe.send((method, arguments, True))
        return dict(self._receive())

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(timeout=20)
        if self._process.is_alive():
            self._process.terminate()

    def _receive(self) -> Any:  # noqa: ANN401
        began = time.monotonic()
        try:
            while not self._pipe.poll(HEARTBEAT):
                say(f"still at it, {time.monotonic() - began:,.0f} s")
            kind, value = self._pipe.recv()
        except EOFError as error:
            self._process.join(timeout=5)
            raise WorkerError(f"the worker ended with exit code {self._process.exitcode}") from error
        if kind == "absent":
            raise AbsentPeerError(value)
        if kind == "error":
            raise WorkerError(value)
        return value


def started(
    build: Callable[..., Any], names: Sequence[str], given: tuple[object, ...], stack: ExitStack, absent: dict[str, str]
) -> dict[str, Worker]:
    """Start a worker per contestant, built from its name and ``given``; peers not installed go to ``absent``."""
    workers = {}
    for name in names:
        say(f"starting {name}")
        try:
            workers[name] = stack.enter_context(Worker(build, name, *given))
        except AbsentPeerError as error:
            absent[name] = str(error)
    return workers


def in_a_process(function: Callable[..., T], *arguments: object) -> T:
    """Call a function in a process of its own and return what it returned."""
    with Worker(partial, function) as worker:
        return cast("T", worker.call("__call__", *arguments))


def _end_with_parent() -> None:
    """End this process when the benchmark that waits for it was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _serve(pipe: Connection, build: Callable[..., Any], arguments: tuple[object, ...]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        subject = build(*arguments)
        pipe.send(("ready", None))
    except AbsentPeerError as error:
        pipe.send(("absent", str(error)))
        return
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
        return
    while True:
        try:
            method, values, timed = pipe.recv()
        except EOFError:
            return
        try:
            function = _OF_THE_PROCESS.get(method) or getattr(subject, method)
            pipe.send(("value", _clocked(function, values) if timed else function(*values)))
        except AbsentPeerError as error:
            pipe.send(("absent", str(error)))
        except BaseException:
            pipe.send(("error", traceback.format_exc()))


def _clocked(function: Callable[..., object], arguments: tuple[object, ...]) -> dict[str, float]:
    gc.collect()
    cpu = time.process_time()
    wall = time.perf_counter()
    function(*arguments)
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
