"""Load over HTTP/1.1: requests that are encoded beforehand, on connections that are kept open.

In the open loop the times of all requests are fixed beforehand, and a latency counts from the planned time: a server
that stalls pays for every request that it kept waiting (no coordinated omission).
"""

import asyncio
import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import uvloop

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Answer(NamedTuple):
    """When a request was to be sent, was sent and was answered; status 0 if its connection ended before."""

    place: int
    planned: float
    sent: float
    done: float
    status: int


@dataclass(frozen=True)
class Load:
    """What came of a load: its answers, those of a load beside it, its seconds, and the CPU seconds of the client."""

    answers: Sequence[Answer]
    beside: Sequence[Answer]
    seconds: float
    cpu: float

    def statuses(self) -> dict[int, int]:
        """Return the number of answers of each status."""
        return dict(sorted(Counter(answer.status for answer in (*self.answers, *self.beside)).items()))

    def late(self) -> float:
        """Return the most milliseconds by which the client sent late; large if it could not keep up."""
        return 1000 * max(answer.sent - answer.planned for answer in self.answers)

    def done(self, tokens: Sequence[int]) -> int:
        """Return the tokens of the requests that were answered, given those of each."""
        return sum(tokens[answer.place] for answer in self.answers if answer.status == 200)

    def latency(self, share: float, status: int = 200) -> float:
        """Return a quantile of the milliseconds from the planned times to the answers of a status; 0 without any."""
        times = [answer.done - answer.planned for answer in self.answers if answer.status == status]
        return 1000 * float(np.quantile(times or [0.0], share, method="higher"))

    def checked(self) -> "Load":
        """Return the load; raise if an answer is not 200."""
        if set(self.statuses()) != {200}:
            raise RuntimeError(f"expected answers of 200 only, got {self.statuses()}")
        return self


def request(path: str, body: object, *headers: str) -> bytes:
    """Return the bytes of a POST request with a JSON body."""
    content = json.dumps(body).encode()
    own = ("host: 127.0.0.1", "content-type: application/json", f"content-length: {len(content)}")
    return "\r\n".join([f"POST {path} HTTP/1.1", *own, *headers, "", ""]).encode() + content


class Client:
    """Connections to a port of this machine; one is opened when none is free."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, place: int, content: bytes, planned: float | None = None) -> Answer:
        """Send a request and await its answer; without a planned time it was planned for now."""
        sent, status = time.perf_counter(), 0
        try:
            # A server may close a connection that was idle for a while, just as it is used again.
            while self._free:
                pair = self._free.pop()
                pair[1].write(content)
                with suppress(OSError, EOFError):
                    head = await pair[0].readuntil(b"\r\n\r\n")
                    break
            else:
                pair = await asyncio.open_connection("127.0.0.1", self._port)
                pair[1].write(content)
                head = await pair[0].readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            await pair[0].readexactly(int(length[1]) if length else 0)
            status = int(head[9:12])
            if b"connection: close" not in head.lower():
                self._free.append(pair)
        except (OSError, EOFError):  # an IncompleteReadError is an EOFError
            pass
        return Answer(place, sent if planned is None else planned, sent, time.perf_counter(), status)


Run: TypeAlias = Callable[[Client], Coroutine[Any, Any, list[Answer]]]
"""A load, given its connections."""


def open_loop(requests: Sequence[bytes], rate: float, seconds: float) -> Run:
    """Return a load of so many requests a second at constant intervals, whatever comes back."""

    async def run(client: Client) -> list[Answer]:
        begun, asked = time.perf_counter() + 0.05, []
        for number in range(max(1, round(rate * seconds))):
            planned, place = begun + number / rate, number % len(requests)
            await asyncio.sleep(max(0.0, planned - time.perf_counter()))
            asked.append(asyncio.create_task(client.ask(place, requests[place], planned)))
        return await asyncio.gather(*asked)

    return run


def closed_loop(requests: Sequence[bytes], connections: int, seconds: float | None = None) -> Run:
    """Return a load on so many connections that are never idle: all requests once, or over and over for a while."""

    async def run(client: Client) -> list[Answer]:
        answers, places = [], iter(cycle(range(len(requests))) if seconds else range(len(requests)))
        end = time.perf_counter() + (seconds or math.inf)

        async def connection() -> None:
            while time.perf_counter() < end and (place := next(places, None)) is not None:
                answers.append(await client.ask(place, requests[place]))

        await asyncio.gather(*(connection() for _ in range(connections)))
        return answers

    return run


def loaded(port: int, run: Run, beside: Run | None = None) -> Load:
    """Run a load to its end, and another one at the same time."""

    async def both() -> list[list[Answer]]:
        client = Client(port)
        return [*await asyncio.gather(*(each(client) for each in (run, beside) if each is not None)), []]

    wall, cpu = time.perf_counter(), time.process_time()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        answers, others, *_ = runner.run(both())
    return Load(answers, others, time.perf_counter() - wall, time.process_time() - cpu)
