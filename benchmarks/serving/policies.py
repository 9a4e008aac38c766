"""``python -m benchmarks.serving.policies POLICY serve ...``: the server with another queue, or another server.

``fifo`` serves in the order of arrival. ``tei-4`` and ``tei-8`` follow what text-embeddings-inference publishes of its
queue: in the order of arrival, 4 or 8 texts to a batch, padded to the longest. (Its limit of 16,384 tokens and batches
of several requests' texts would change nothing here.) Our engine computes no padding, so texts are lengthened instead:
the work is that of padding, and the vectors are wrong.
``no-torch`` hides torch. ``plain --threads N --port PORT`` is sentence-transformers behind an endpoint without a queue:
a request is encoded in a thread of the pool that Starlette, and so FastAPI, has for functions that block.
"""

import base64
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias
from unittest.mock import patch

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.embedders import SentenceTransformers
from bothways.cli import main
from bothways.inference.texts import BatchRunner
from bothways.serving.queue import BatchQueue, Observer, Ticket
from bothways.text.windows import Window

Runner: TypeAlias = BatchRunner[Any, Any]


class TeiQueue(BatchQueue):
    """One request after the other, with so many texts in a batch, padded to the longest."""

    def __init__(self, observer: Observer, at_once: int = 1, *, most: int) -> None:
        super().__init__(observer, at_once)
        self._told, self._most, self._one = observer, most, ThreadPoolExecutor(1)

    def run(self, ticket: Ticket, runner: Runner, windows: Sequence[Window]) -> list[Any]:
        ticket.tokens += sum(len(window.ids) for window in windows)
        return self._one.submit(self._padded, runner, windows).result()

    def _padded(self, runner: Runner, windows: Sequence[Window]) -> list[Any]:
        answers: list[Any] = []
        for start in range(0, len(windows), self._most):
            begun, batch = time.monotonic(), windows[start : start + self._most]
            longest = max(len(window.ids) for window in batch)
            answers += runner.run([Window(filled(each.ids, longest), filled(each.types, longest)) for each in batch])
            self._told.batch(longest * len(batch), time.monotonic() - begun)
        return answers


def filled(values: Sequence[int], length: int) -> list[int]:
    return [*values, *[values[-1]] * (length - len(values))]


def plain(threads: int) -> Starlette:
    """Return the application of sentence-transformers, with the model loaded and used once."""
    embedder = SentenceTransformers(threads)
    embedder.encode(["one"])

    async def embeddings(request: Request) -> Response:
        body = orjson.loads(await request.body())
        rows = await run_in_threadpool(embedder.encode, body["input"])
        return Response(orjson.dumps({"data": [{"embedding": base64.b64encode(row).decode()} for row in rows]}))

    async def ready(_: Request) -> Response:
        return Response()

    return Starlette(routes=[Route("/v1/embeddings", embeddings, methods=["POST"]), Route("/ready", ready)])


class NoTorch:
    """A finder of modules that finds no torch."""

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] == "torch":
            raise ImportError("torch is not to be used here")


QUEUES = {"tei-4": partial(TeiQueue, most=4), "tei-8": partial(TeiQueue, most=8), "no-torch": BatchQueue}
QUEUES["fifo"] = partial(BatchQueue, in_order=True)

if __name__ == "__main__":
    policy, *arguments = sys.argv[1:]
    if policy == "plain":
        _, threads, _, port = arguments
        uvicorn.run(plain(int(threads)), port=int(port), log_level="warning")
        sys.exit()
    if policy == "no-torch":
        sys.meta_path.insert(0, NoTorch())
    with patch.object(import_module("bothways.serving.application"), "BatchQueue", QUEUES[policy]):
        sys.exit(main(arguments))
