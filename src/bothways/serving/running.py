"""Running a server: its socket, its processes, its signals, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import uvicorn
from starlette.applications import Starlette
from typing_extensions import override
from uvicorn.config import STARTUP_FAILURE
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState
from uvicorn.supervisors import Multiprocess

from bothways.errors import InvalidInput, WorkerLost
from bothways.serving.application import Server, application
from bothways.serving.keys import ApiKeys
from bothways.serving.log import standard_error
from bothways.serving.metrics import SHARED_FOLDER
from bothways.serving.models import Models, open_models
from bothways.serving.openapi import document_route
from bothways.serving.settings import ServerSettings
from bothways.serving.tables import ROUTES
from bothways.threads import choose_threads, compute_threads, granted_cores

# Batches that torch computes at once on a CPU, see `bothways.inference.runner`.
_AT_ONCE = 4
_ALONE = b"content-length: 0\r\nconnection: close\r\n\r\n"
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n" + _ALONE
_LARGE_HEAD = b"HTTP/1.1 431 Request Header Fields Too Large\r\n" + _ALONE
_HEAD_BYTES = 65_536
# Seconds in which a client must take some bytes of its answer.
_READ_SECONDS = 30.0
# Seconds for the last answers to be sent, once all of them are there.
_LAST_SECONDS = 5
# Connections that wait to be taken.
_BACKLOG = 2048
# Seconds in which a worker must say that it is alive, or that a new one is ready.
_ALIVE_SECONDS = 30
_ENDING = (signal.SIGTERM, signal.SIGINT)


class LimitedConfig(uvicorn.Config):
    """The configuration of uvicorn, with our limits of connections."""

    def __init__(self, app: Callable[..., object], settings: ServerSettings, *, factory: bool = False) -> None:
        super().__init__(
            app,
            factory=factory,
            http=LimitedProtocol,
            loop="uvloop",
            lifespan="on",
            access_log=False,
            log_level="critical",
            server_header=False,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=_LAST_SECONDS,
            timeout_worker_healthcheck=_ALIVE_SECONDS,
            workers=settings.workers,
        )
        self.limits = settings.limits


class LimitedProtocol(HttpToolsProtocol):
    """HTTP/1.1 by uvicorn, with limits of the number of connections, of the size of a head, and of times.

    The head and the body of a request must come in time, and the client must take its answer.
    """

    def __init__(
        self,
        config: LimitedConfig,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = config.limits
        self._too_many = len(self.connections) >= config.limits.connections
        self._head = 0  # bytes of a head that is not complete
        self._unsent = 0
        self._sending: asyncio.TimerHandle | None = None
        self._coming: asyncio.TimerHandle | None = None
        self._expect(self._limits.header_seconds)

    def _expect(self, seconds: float | None) -> None:
        """Close the connection unless what comes next is there in so many seconds."""
        if self._coming is not None:
            self._coming.cancel()
        self._coming = None if seconds is None else self.loop.call_later(seconds, self._close)

    def _close(self) -> None:
        self.transport.close()

    @override
    def data_received(self, data: bytes) -> None:
        """Take bytes of requests, unless there are too many connections or the head is too large."""
        if self._too_many:
            self._refuse(_FULL)
            return
        self._head += len(data)
        super().data_received(data)
        if self._head > _HEAD_BYTES and not self.transport.is_closing():
            self._refuse(_LARGE_HEAD)

    def _refuse(self, answer: bytes) -> None:
        self.transport.write(answer)
        self.transport.close()

    @override
    def on_message_begin(self) -> None:
        """Wait for the head of a request."""
        super().on_message_begin()
        self._expect(self._limits.header_seconds)

    @override
    def on_headers_complete(self) -> None:
        """Wait for the body of a request."""
        self._expect(self._limits.body_seconds + 1)  # the application says more, in time
        super().on_headers_complete()

    @override
    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._head = 0
        super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        """End the wait with the request."""
        self._head = 0
        self._expect(None)
        super().on_message_complete()

    @override
    def pause_writing(self) -> None:
        """Watch whether the client takes its answer."""
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size())

    def _watch(self, unsent: int) -> None:
        self._unsent = unsent
        self._sending = self.loop.call_later(_READ_SECONDS, self._check_reader)

    def _check_reader(self) -> None:
        """Give up a client that takes nothing of its answer."""
        unsent = self.transport.get_write_buffer_size()
        if unsent >= self._unsent:
            self.transport.abort()
        else:
            self._watch(unsent)

    def _stop_watching(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    @override
    def resume_writing(self) -> None:
        """Watch no more."""
        self._stop_watching()
        super().resume_writing()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """End all waits with the connection."""
        self._expect(None)
        self._stop_watching()
        super().connection_lost(exc)


def make_server(settings: ServerSettings, *, opens_first: bool = False) -> Server:
    """Return the state of a server, whose models are opened once its `application` runs.

    With ``opens_first`` the application starts up only when they are open, and fails if they cannot be opened: for a
    process that others run, such as a replica of Ray Serve.
    """
    shared = settings.workers > 1
    open_all: Callable[[], Models] = partial(
        open_models, settings.models, settings.indexes, settings.opening, shared=shared
    )
    at_once = max(1, min(compute_threads(), _AT_ONCE)) if settings.opening.device in ("auto", "cpu") else 1
    routes = (*ROUTES, document_route(ROUTES))
    return Server(
        settings,
        open_all,
        routes,
        ApiKeys(settings.api_keys),
        log=standard_error(),
        at_once=at_once,
        opens_first=opens_first,
    )


def serve(
    settings: ServerSettings,
    started: Callable[[str], None] = lambda _: None,
    ready: Callable[[str, Models], None] = lambda _, __: None,
) -> None:
    """Serve until the process is told to end by SIGTERM or SIGINT.

    ``started`` is called with the address once the socket is open, and ``ready`` once the models are, unless several
    workers open their own.

    Raises:
        InvalidInput: The address cannot be listened on, or the file of API keys is not usable. Also raises everything
            that opening the models raises.
    """
    ApiKeys(settings.api_keys)  # refuses a bad file before anything starts
    with _listening(settings) as listener:
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{port}"
        started(address)
        if settings.workers > 1:
            _serve_workers(settings, listener)
        else:
            _serve_here(settings, [listener], partial(ready, address))


@contextmanager
def _listening(settings: ServerSettings) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            message = f"cannot listen on {settings.host}:{settings.port}: {error.strerror}. Choose another --port."
            raise InvalidInput(message) from error
        listener.listen(_BACKLOG)  # connections wait from now on
        listener.set_inheritable(True)
        yield listener


def _serve_here(settings: ServerSettings, sockets: list[socket.socket], ready: Callable[[Models], None]) -> None:
    if settings.threads is not None:
        choose_threads(settings.threads)
    server = make_server(settings)
    running = uvicorn.Server(LimitedConfig(application(server), settings))

    def stop() -> None:
        running.should_exit = True

    server.on_failure, server.on_ready = stop, ready
    # Uvicorn handles the signals while it runs, and raises them again once it has ended, which is no failure here.
    before = {each: signal.signal(each, lambda _, __: stop()) for each in _ENDING}
    try:
        running.run(sockets)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if server.failure is not None:
        raise server.failure


def _serve_workers(settings: ServerSettings, listener: socket.socket) -> None:
    """Run several processes; the supervisor replaces one that ends, and restarts all of them on SIGHUP."""
    choose_threads(settings.threads or max(1, granted_cores() // settings.workers))
    with tempfile.TemporaryDirectory(prefix="bothways-metrics-") as folder:
        os.environ[SHARED_FOLDER] = folder
        supervisor = Multiprocess(LimitedConfig(partial(_worker, settings), settings, factory=True), [listener])
        supervisor.run()
    if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
        raise WorkerLost("a worker could not open its models; the reason is above.")


def _worker(settings: ServerSettings) -> Starlette:
    """Return the application of a worker, whose process ends if the models cannot be opened.

    It takes connections once its models are open: until then the other workers answer.
    """
    server = make_server(settings, opens_first=True)

    def stop() -> None:
        print(f"bothways serve: {server.failure}", file=sys.stderr, flush=True)
        os._exit(STARTUP_FAILURE)

    server.on_failure = stop
    return application(server)
