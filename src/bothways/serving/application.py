"""The ASGI application: from a request to its answer.

The event loop reads requests, checks keys and limits, and sends answers; it never computes. A request is answered in a
thread, which tokenises and decides; the forward passes run in the thread of the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route as PathRoute

from bothways.errors import BothwaysError
from bothways.inference.texts import scheduled
from bothways.serving.errors import Left, Problem, Refused, problem_of
from bothways.serving.keys import ApiKeys
from bothways.serving.log import RequestLog
from bothways.serving.metrics import Metrics
from bothways.serving.models import Models
from bothways.serving.queue import COMING, BatchQueue, Ticket
from bothways.serving.routes import Call, ErrorForm, Reply, Route, own_form
from bothways.serving.settings import ServerSettings
from bothways.serving.studio import studio_route

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

_SHOWN_HEADERS = (
    *("x-total-time", "x-queue-time", "x-inference-time", "x-compute-tokens", "x-truncated", "x-warnings"),
    *("x-compute-type", "x-compute-characters", "x-request-id", "retry-after"),
)
_TIMEOUT = "x-timeout-ms"
CLIENT_LEFT = 499
# Seconds that a stopping server goes on answering 503, so that balancers can see that it is not ready.
_GRACE = 0.2


@dataclass(eq=False, slots=True)
class Server:
    """The state of a server that its requests share.

    Attributes:
        models: The models, once they are open.
        failure: Why they could not be opened.
        draining: True once the server has been told to end.
        opens_first: Whether no connection is taken before the models are open.
        running: Requests that came and have no answer yet.
        answering: Those of them that were read, and let in.
        bytes: Bytes of their bodies.
    """

    settings: ServerSettings
    open: Callable[[], Models]
    routes: Sequence[Route]
    keys: ApiKeys
    metrics: Metrics = field(default_factory=Metrics)
    log: RequestLog = field(default_factory=RequestLog)
    models: Models | None = None
    failure: BaseException | None = None
    on_failure: Callable[[], None] = lambda: None
    on_ready: Callable[[Models], None] = lambda _: None
    draining: bool = False
    opens_first: bool = False
    running: int = 0
    answering: int = 0
    bytes: int = 0
    at_once: int = 1
    queue: BatchQueue = field(init=False)
    pool: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self.queue = BatchQueue(self.metrics, self.at_once)
        self.pool = ThreadPoolExecutor(self.settings.limits.requests, "request")

    @property
    def refusal(self) -> Refused | None:
        """Why no request is answered now; None if they are."""
        if self.draining:
            return Refused.stopping()
        return Refused.starting() if self.models is None else None

    def start(self) -> None:
        """Open the models, and compute once with each, so that the first request is as fast as the others."""
        try:
            models = self.open()
            models.warm_up()
            # What is there by now stays: a collection that walked through all of it would hold up every request.
            gc.collect()
            gc.freeze()
            self.models = models
            self.on_ready(models)
        except BaseException as error:
            self.failure = error
            self.on_failure()

    def close(self) -> None:
        """End the threads."""
        self.queue.close()
        self.pool.shutdown(wait=False, cancel_futures=True)

    def admit(self, deadline: float | None) -> Models:
        """Return the models for a request that was read; raise `Refused` if it cannot be answered now."""
        limits, wait = self.settings.limits, self.queue.seconds_to_wait
        if (refusal := self.refusal) is not None or self.models is None:
            raise refusal or Refused.starting()
        if self.answering >= limits.requests:
            raise Refused.busy(f"{self.answering:,} requests are being answered, which is the limit", wait)
        if wait > limits.waiting_seconds:
            raise Refused.busy(f"the queue is {wait:.1f} seconds long", wait - limits.waiting_seconds / 2)
        if deadline is not None and time.monotonic() > deadline:
            raise Refused.deadline()
        if deadline is not None and time.monotonic() + COMING * wait > deadline:
            raise Refused.busy(f"the queue is {wait:.1f} seconds long, longer than the request allows", wait)
        return self.models


def application(server: Server) -> Starlette:
    """Return the ASGI application of a server."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        # The port is open while the models are being opened, so that /live answers.
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(None, server.start)
        if threading.current_thread() is threading.main_thread():
            _handle_signals(server, loop)
        if server.opens_first:
            await asyncio.wait([opening])
            if server.failure is not None:
                server.log.failure(server.failure)
                raise server.failure
        yield
        server.close()
        await asyncio.wait([opening])

    endpoints = [PathRoute(each.path, _endpoint(server, each), methods=[each.method]) for each in server.routes]
    middleware = []
    if server.settings.cors_origins:
        origins = list(server.settings.cors_origins)
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=origins,
                allow_methods=["GET", "POST"],
                allow_headers=["authorization", "content-type", "x-api-key", _TIMEOUT],
                expose_headers=list(_SHOWN_HEADERS),
            )
        )
    return Starlette(
        routes=[studio_route(), *_health(server), *endpoints],
        lifespan=lifespan,
        middleware=middleware,
        exception_handlers={HTTPException: _unrouted, Exception: _unrouted},
    )


def _handle_signals(server: Server, loop: asyncio.AbstractEventLoop) -> None:
    """Finish what runs before the server ends on SIGTERM or SIGINT, and read the API keys again on SIGHUP."""
    ending: set[asyncio.Task[None]] = set()

    async def drain(then: Callable[[], object]) -> None:
        end = time.monotonic() + server.settings.drain_seconds
        await asyncio.sleep(min(_GRACE, server.settings.drain_seconds))
        while server.running and time.monotonic() < end:
            await asyncio.sleep(0.02)
        # What still waits is told to come again.
        await loop.run_in_executor(None, server.queue.close)
        then()

    def handled(number: int, before: object) -> None:
        def then() -> None:
            if callable(before):
                before(number, None)

        def end() -> None:
            # Ctrl-C again ends at once. A supervisor and a service manager may both send the same SIGTERM.
            if server.draining and number == signal.SIGINT:
                then()
            elif not server.draining:
                server.draining = True
                ending.add(loop.create_task(drain(then)))

        signal.signal(number, lambda _, __: loop.call_soon_threadsafe(end))

    for number in (signal.SIGTERM, signal.SIGINT):
        handled(number, signal.getsignal(number))

    def reload() -> None:
        try:
            server.keys.reload()
        except BothwaysError as error:  # the keys of before stay
            server.log.write({"failure": str(error)})

    signal.signal(signal.SIGHUP, lambda _, __: loop.call_soon_threadsafe(reload))


def _health(server: Server) -> list[PathRoute]:
    """Return the routes that need no thread."""

    async def live(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_: Request) -> Response:
        refusal = server.refusal
        return PlainTextResponse("ok\n") if refusal is None else _refusal(refusal.problem, own_form)

    async def startup(_: Request) -> Response:
        started = server.models is not None
        return PlainTextResponse("ok\n") if started else _refusal(Refused.starting().problem, own_form)

    async def metrics(request: Request) -> Response:
        _check_host(server, request)
        server.keys.name_of(request.headers.get("authorization"), request.headers.get("x-api-key"))
        server.metrics.queued_tokens.set(server.queue.tokens)
        server.metrics.wait_seconds.set(server.queue.seconds_to_wait)
        return Response(server.metrics.text(), media_type="text/plain; version=0.0.4")

    paths = {"/live": live, "/ready": ready, "/startup": startup, "/health": ready, "/metrics": metrics}
    return [PathRoute(path, _refusing(each), methods=["GET"]) for path, each in paths.items()]


def _refusing(endpoint: Endpoint) -> Endpoint:
    async def answered(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Refused as error:
            return _refusal(error.problem, own_form)

    return answered


def _endpoint(server: Server, route: Route) -> Endpoint:
    """Return the endpoint of a route."""

    async def endpoint(request: Request) -> Response:
        begun, limits = time.perf_counter(), server.settings.limits
        ticket = Ticket(server.queue, most_tokens=limits.tokens, most_wait=limits.waiting_seconds)
        call: Call | None = None
        parts: list[bytes] = []
        server.running += 1
        server.metrics.running.inc()
        try:
            ticket.key, ticket.deadline = _checked(server, request, route)
            await _read(server, request, parts)
            call = Call(server.admit(ticket.deadline), server.queue, ticket, limits, request.path_params)
            reply, content = await _answered(server, request, route, call, b"".join(parts))
            response = _response(reply, content, call, begun)
        except (Left, ClientDisconnect):
            response = Response(status_code=CLIENT_LEFT)
        except Exception as error:
            problem = problem_of(error, server.models.private if server.models else {})
            if problem.status >= 500 and not isinstance(error, Refused):
                server.log.failure(error)
            server.metrics.refused.labels(problem.code).inc()
            response = _refusal(problem, route.form)
        finally:
            server.running -= 1
            server.metrics.running.dec()
            server.bytes -= sum(map(len, parts))
        _record(server, request, route, call, response, begun, parts)
        return response

    return endpoint


def _checked(server: Server, request: Request, route: Route) -> tuple[str, float | None]:
    """Check a request before its body is read; return the name of its key, and its deadline."""
    _check_host(server, request)
    headers = request.headers
    name = server.keys.name_of(headers.get("authorization"), headers.get("x-api-key"))
    if (refusal := server.refusal) is not None:
        raise refusal
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if route.method == "POST" and kind != "application/json":
        # A page of another site can send other types without being asked; this one it cannot.
        message = f"expected 'Content-Type: application/json', got {kind or 'none'!r}."
        raise Refused(415, message, code="unsupported_media_type")
    limit, size = server.settings.limits.body_bytes, headers.get("content-length", "0")
    if size.isdecimal() and int(size) > limit:
        raise _too_large(limit)
    timeout, deadline = headers.get(_TIMEOUT), None
    if timeout is not None:
        if not timeout.isdecimal() or not 0 < len(timeout) < 10 or not int(timeout):
            raise Refused(400, f"{_TIMEOUT} must be a number of milliseconds, got {timeout!r:.40}.", param=_TIMEOUT)
        deadline = time.monotonic() + int(timeout) / 1000
    if route.method == "POST":
        server.admit(deadline)  # before the work of reading what would be refused
    return name, deadline


def _check_host(server: Server, request: Request) -> None:
    """Refuse a name that is not this server's: a page could have its own name lead here."""
    allowed, host = server.settings.allowed_hosts, request.headers.get("host", "")
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    if allowed and name.strip("[]").lower() not in allowed:
        raise Refused(421, f"this server is not {name!r:.80}: name it with --allowed-hosts.", code="wrong_host")


def _too_large(limit: int) -> Refused:
    return Refused(413, f"expected a body of at most {limit:,} bytes: send several requests.", code="body_too_large")


async def _read(server: Server, request: Request, parts: list[bytes]) -> None:
    """Read the body within the limits of size and time, and count its bytes as they come."""
    limits, size = server.settings.limits, 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                size += len(part)
                if size > limits.body_bytes:
                    raise _too_large(limits.body_bytes)
                if server.bytes + len(part) > limits.waiting_bytes:
                    wait = server.queue.seconds_to_wait
                    raise Refused.busy("the requests that are being answered have too many bytes", wait)
                server.bytes += len(part)
                parts.append(part)
    except TimeoutError as error:
        raise Refused(408, "the body did not come in time: send it faster.", code="slow_body") from error


async def _answered(server: Server, request: Request, route: Route, call: Call, body: bytes) -> tuple[Reply, bytes]:
    """Answer in a thread; if the client leaves first, its request is dropped from the queue."""

    def answer() -> tuple[Reply, bytes]:
        with scheduled(call.ticket):
            reply = route.answer(call, body)
        return reply, reply.encoded()

    server.answering += 1
    working = asyncio.get_running_loop().run_in_executor(server.pool, answer)
    leaving = asyncio.create_task(_left(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            call.ticket.left = True
            with contextlib.suppress(BaseException):
                await working
            raise Left
        return working.result()
    finally:
        leaving.cancel()
        server.answering -= 1


async def _left(request: Request) -> None:
    """Return once the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _response(reply: Reply, content: bytes, call: Call, begun: float) -> Response:
    ticket = call.ticket
    headers = {
        "x-total-time": f"{(time.perf_counter() - begun) * 1000:.0f}",
        "x-queue-time": f"{ticket.waited * 1000:.0f}",
        "x-inference-time": f"{ticket.computed * 1000:.0f}",
        "x-compute-tokens": str(ticket.tokens),
        **reply.headers,
    }
    if call.dropped:
        headers["x-truncated"] = str(len(call.dropped))
    if warnings := call.all_warnings():
        headers["x-warnings"] = str(len(warnings))
    return Response(content, reply.status, headers, media_type="application/json")


def _refusal(problem: Problem, form: ErrorForm) -> Response:
    status, content = form(problem)
    return Response(Reply(content).encoded(), status, dict(problem.headers), media_type="application/json")


def _record(
    server: Server,
    request: Request,
    route: Route,
    call: Call | None,
    response: Response,
    begun: float,
    parts: Sequence[bytes],
) -> None:
    """Count a request, and write its line of the log."""
    seconds, model = time.perf_counter() - begun, call.model if call else ""
    metrics, ticket = server.metrics, call.ticket if call else None
    metrics.requests.labels(route.path, model, str(response.status_code)).inc()
    metrics.seconds.labels(route.path, model).observe(seconds)
    if call is not None and ticket is not None:
        metrics.inputs.labels(model).inc(call.inputs)
        metrics.tokens.labels(model).inc(ticket.tokens)
        metrics.truncated.labels(model).inc(len(call.dropped))
        metrics.queue_seconds.labels(model).observe(ticket.waited)
    line: dict[str, object] = {
        "method": route.method,
        "route": route.path,
        "status": response.status_code,
        "ms": round(seconds * 1000, 1),
        "model": model,
        "key": ticket.key if ticket else "",
        "inputs": call.inputs if call else 0,
        "tokens": ticket.tokens if ticket else 0,
        "queue_ms": round(ticket.waited * 1000, 1) if ticket else 0,
        "client": request.client.host if request.client else "",
    }
    if server.settings.log_texts:
        line["body"] = b"".join(parts).decode("utf-8", "replace")
    if not server.log.write(line):
        metrics.lost_lines.inc()


async def _unrouted(_: Request, error: Exception) -> Response:
    """Answer for paths and methods that are not there, and for errors outside of all routes."""
    match error:
        case HTTPException(status_code=404):
            problem = Problem(404, "this server has no such path: /openapi.json lists them.", "not_found")
        case HTTPException():
            code = "method_not_allowed" if error.status_code == 405 else "invalid_request"
            problem = Problem(error.status_code, f"{error.detail}.", code, headers=dict(error.headers or {}))
        case _:
            problem = problem_of(error, {})
    return _refusal(problem, own_form)
