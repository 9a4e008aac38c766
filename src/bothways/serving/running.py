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
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
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
            timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
            workers=settings.workers,
        )
        self.limits = settings.limits


class LimitedProtocol(HttpToolsProtocol):
    """HTTP/1.1 by uvicorn, with a limit for the time of the head of a request, and for the number of connections."""

    def __init__(
        self,
        config: LimitedConfig,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._seconds = config.limits.header_seconds
        self._too_many = len(self.connections) >= config.limits.connections
        self._timer: asyncio.TimerHandle | None = None
        self._wait_for_head()

    def _wait_for_head(self) -> None:
        self._timer = self.loop.call_later(self._seconds, self._close)

    def _close(self) -> None:
        self.transport.close()

    @override
    def data_received(self, data: bytes) -> None:
        """Read bytes of a request, or refuse the connection if there are too many."""
        if self._too_many:
            self.transport.write(_FULL)
            self.transport.close()
        else:
            super().data_received(data)

    @override
    def on_message_begin(self) -> None:
        """Begin to wait for the head of a further request."""
        super().on_message_begin()
        if self._timer is None:  # a further request on the same connection
            self._wait_for_head()

    @override
    def on_headers_complete(self) -> None:
        """End the wait for the head."""
        self._stop_waiting()
        super().on_headers_complete()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """End the wait with the connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def make_server(settings: ServerSettings) -> Server:
    """Return the state of a server, whose models are opened once it runs."""
    open_all: Callable[[], Models] = partial(open_models, settings.models, settings.indexes, settings.opening)
    at_once = max(1, min(compute_threads(), _AT_ONCE)) if settings.opening.device in ("auto", "cpu") else 1
    routes = (*ROUTES, document_route(ROUTES))
    return Server(settings, open_all, routes, ApiKeys(settings.api_keys), log=standard_error(), at_once=at_once)


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
    # Uvicorn raises a signal again once it has ended, which is no failure here.
    before = {each: signal.signal(each, signal.SIG_IGN) for each in _ENDING}
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
    """Return the application of a worker, whose process ends if the models cannot be opened."""
    server = make_server(settings)

    def stop() -> None:
        print(f"bothways serve: {server.failure}", file=sys.stderr, flush=True)
        os._exit(STARTUP_FAILURE)

    server.on_failure = stop
    return application(server)
