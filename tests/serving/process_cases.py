"""Sockets of clients that behave badly, processes of servers, and waiting for things that others do."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from bothways.serving.queue import Ticket

SOURCE = Path(__file__).parents[2] / "src"
ADDRESS = re.compile(r"http://[\w.:\[\]]+:\d+")
JSON = "Content-Type: application/json\r\n"


def until(true, seconds=20.0):
    """Wait until a function returns something true, and give it back; fail after so many seconds."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.002)
    return found


@contextmanager
def held(server):
    """Nothing is computed by a server in this process until the block ends."""
    queue, begun, opened = server.server.queue, threading.Event(), threading.Event()

    def wait():
        begun.set()
        opened.wait(30)

    waiting = threading.Thread(target=queue.call, args=(Ticket(queue), wait), daemon=True)
    waiting.start()
    assert begun.wait(20)
    try:
        yield
    finally:
        opened.set()
        waiting.join(20)


@contextmanager
def connected(url, seconds=20.0):
    """A connection to a server."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), seconds) as connection:
        yield connection


def head(path="/v1/predict", more=JSON, method="POST"):
    """The head of a request, without the line that ends it."""
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{more}".encode()


def request(path="/v1/predict", body=None, more=JSON):
    """A whole request; the body may be bytes that are no JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(path, f"{more}Content-Length: {len(content)}\r\n") + b"\r\n" + content


def read(connection):
    """Status and body of an answer, or None if the server closed the connection instead."""
    found = b""
    try:
        while b"\r\n\r\n" not in found:
            if not (part := connection.recv(65536)):
                return None
            found += part
        start, _, body = found.partition(b"\r\n\r\n")
        names = dict(line.lower().split(": ", 1) for line in start.decode("latin-1").split("\r\n")[1:])
        while len(body) < int(names.get("content-length", 0)):
            if not (part := connection.recv(65536)):
                return None
            body += part
    except ConnectionResetError:
        return None
    return int(start.split()[1]), body


# --- processes ---


class Process:
    """A server in a process of its own, and the lines that it wrote on standard error."""

    def __init__(self, words, stderr, program):
        known = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
        port = () if "--port" in words else ("--port", "0")
        command = [sys.executable, *program, "serve", *map(str, words), *port]
        self.process = subprocess.Popen(command, stderr=stderr, text=True, env=known)
        self.lines = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stderr or ():
            self.lines.append(line)

    @property
    def url(self):
        """The address that it said, once it said one."""
        return until(lambda: next((found[0] for line in self.lines if (found := ADDRESS.search(line))), None), 180)

    def wait_until_ready(self, url=None):
        with httpx.Client(base_url=url or self.url, timeout=60, transport=httpx.HTTPTransport(retries=9)) as client:
            until(lambda: client.get("/ready").status_code == 200, 180)

    def end(self, number=signal.SIGTERM):
        """Send a signal, and return the exit code."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self):
        code = self.process.wait(120)
        self.reader.join(10)
        return code

    def log(self):
        """The lines of the log, which are JSON."""
        return [json.loads(line) for line in self.lines if line.startswith("{")]


@contextmanager
def process(*words, stderr=subprocess.PIPE, program=("-m", "bothways")):
    """Serve in a process of its own until the block ends; ``program`` takes the words of ``bothways``."""
    found = Process(words, stderr, program)
    try:
        yield found
    finally:
        if found.process.poll() is None:
            found.process.terminate()
            try:
                found.process.wait(20)
            except subprocess.TimeoutExpired:
                found.process.kill()
        found.reader.join(10)


class Load:
    """Clients that ask again and again, and what each request came to."""

    def __init__(self, url, body, clients=6, **headers):
        self.outcomes = []
        self.ended = threading.Event()
        self.threads = [
            threading.Thread(target=self._ask, args=(url, body, headers), daemon=True) for _ in range(clients)
        ]

    def _ask(self, url, body, headers):
        with httpx.Client(base_url=url, timeout=60, headers=headers) as client:
            while not self.ended.is_set():
                self.outcomes.append(outcome(lambda: client.post("/v1/predict", json=body)))

    def count(self, *kinds):
        return sum(each in kinds for each in list(self.outcomes))

    def __enter__(self):
        for each in self.threads:
            each.start()
        until(lambda: self.count("answered") > 20, 180)
        return self

    def __exit__(self, *_):
        self.ended.set()
        for each in self.threads:
            each.join(60)


def outcome(ask):
    """The end of a request: ``answered``, ``refused`` (come again), ``closed`` before any answer, or what is wrong."""
    try:
        answer = ask()
    except (httpx.ConnectError, httpx.ReadError, httpx.WriteError):
        return "closed"
    except httpx.RemoteProtocolError as error:
        return "closed" if "without sending a response" in str(error) else f"cut: {error}"
    except httpx.HTTPError as error:
        return repr(error)
    if answer.status_code == 200:
        return "answered"
    if answer.status_code in (429, 503) and "retry-after" in answer.headers:
        return "refused"
    return f"{answer.status_code}: {answer.text}"
