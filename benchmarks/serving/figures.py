"""The figures of a server: each function measures one question, and returns its values and a table.

Rounds are interleaved as in the other benchmarks, and ratios are formed inside a round.
"""

import json
import statistics
import subprocess
import timeit
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np

from benchmarks import embedders
from benchmarks.harness import Spread, interleaved, say, table
from benchmarks.serving.load import closed_loop, loaded, open_loop
from benchmarks.serving.servers import (
    FIFO,
    INFINITY,
    INT8,
    LIGHT,
    NAMES,
    OURS,
    PLAIN,
    TEI_4,
    TEI_8,
    Running,
    first_cores,
    model_of,
)
from benchmarks.serving.servers import ServingOptions as Options
from benchmarks.texts import texts_of_length, workloads
from benchmarks.workers import Worker
from bothways.serving.api.vectors import as_base64, typed
from bothways.serving.routes import Reply

Rounds: TypeAlias = dict[str, list[dict[str, Any]]]
Figure: TypeAlias = tuple[dict[str, Any], str]

LIBRARY, LIBRARY_INT8 = "the library", "the library, int8"
_workloads = cache(workloads)
CONNECTIONS, BULK_TEXTS, BULK_CONNECTIONS, QUERIES = 16, 16, 4, 20.0
DEADLINE = 2.5  # an edge of the server's buckets
# One request again and again from the file `body`; the last line that is printed is JSON.
WRK = """
wrk.method, wrk.path, wrk.headers["content-type"] = "POST", "/v1/embeddings", "application/json"
wrk.body = io.open("body"):read("*a")
done = function(all, latency)
  local bad = all.errors.connect + all.errors.read + all.errors.write + all.errors.status + all.errors.timeout
  if bad > 0 then os.exit(1) end
  local found = {all.requests / all.duration * 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3}
  print(string.format('{"rate": %f, "p50": %f, "p99": %f}', unpack(found)))
end
"""
# Connections at the peak, by the sentences of a request: enough for a full batch to wait.
PEAK = {32: 16, 1: 64}


@dataclass(frozen=True)
class Work:
    """Requests: the texts of each, and its tokens."""

    name: str
    texts: list[list[str]]
    tokens: list[int]

    @classmethod
    def of(cls, texts: Sequence[str], tokens: Sequence[int], size: int, kind: str) -> "Work":
        parts = [slice(start, start + size) for start in range(0, len(texts), size)]
        return cls(f"{size} {kind}", [list(texts[part]) for part in parts], [sum(tokens[part]) for part in parts])


class Bench(ExitStack):
    """What the figures share: options, the servers and libraries that run, and texts."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        self.server = cache(self._server)
        self.library = cache(self._library)

    def _server(self, name: str) -> Running:
        say(f"starting {name}")
        return self.enter_context(Running(name, self.options))

    def _library(self, name: str) -> Worker:
        graph = self.options.folder / "minilm.onnx"
        kind = embedders.OURS
        if name == LIBRARY_INT8:
            kind = embedders.OURS_INT8
            model_of(INT8, self.options)  # writes it
        with first_cores(self.options.threads):
            return self.enter_context(Worker(embedders.Subject, kind, self.options.threads, graph))

    def chosen(self, names: Sequence[str]) -> list[str]:
        """Return the names that were asked for and are there."""
        chosen = self.options.chosen(names)
        return [name for name in chosen if self.options.infinity or not name.startswith("infinity")]

    def sentences(self, size: int) -> Work:
        load, most = _workloads(quick=False)[0], 64 if self.options.quick else None
        return Work.of(load.texts[:most], load.tokens[:most], size, "sentences" if size > 1 else "sentence")

    def of_length(self, tokens: int, count: int, size: int) -> Work:
        count = min(count, 2 * size) if self.options.quick else count
        return Work.of(texts_of_length(tokens, count), [tokens] * count, size, f"texts of {tokens} tokens")


def spreads(title: str, found: Rounds, columns: Mapping[str, tuple[str, int]]) -> str:
    """Return a table of medians and spreads; a column has a key of the rounds and its digits."""
    rows = [
        [name, *(Spread.of([each.get(key, 0.0) for each in rounds]).text(digits) for key, digits in columns.values())]
        for name, rounds in found.items()
    ]
    return table((title, *columns), rows)


def saturation(bench: Bench) -> Figure:
    """Compare tokens a second through HTTP with those of the library."""
    return _rates(bench, {OURS: LIBRARY, LIBRARY: LIBRARY, INT8: LIBRARY_INT8, LIBRARY_INT8: LIBRARY_INT8})


def peers(bench: Bench) -> Figure:
    """Compare tokens a second of all servers."""
    return _rates(bench, {name: INT8 if name.endswith("int8") else OURS for name in NAMES})


def _rates(bench: Bench, versus: Mapping[str, str]) -> Figure:
    """Do the same work with everybody; the ratio is to the rate of another one in the same round."""
    names, tables, values = bench.chosen([*versus]), [], {}
    for work in (bench.sentences(32), bench.of_length(256, 400, 8)):
        for name in names:
            if name in (LIBRARY, LIBRARY_INT8):
                bench.library(name).call("keep", work.name, [text for texts in work.texts for text in texts])
            _rate(bench, work, name)  # everybody does the whole work once before the clock runs
        found: Rounds = interleaved(names, bench.options.rounds, partial(_rate, bench, work), what=work.name)
        for name, rounds in found.items():
            for one, base in zip(rounds, found.get(versus[name], []), strict=False):
                one["ratio"] = one["rate"] / base["rate"]
        columns = {"tokens/s": ("rate", 0), f"times {', '.join(dict.fromkeys(versus.values()))}": ("ratio", 2)}
        columns |= {"cores of the server": ("server", 2), "of the client": ("client", 2)}
        values[work.name] = found
        tables.append(spreads(f"requests of {work.name}", found, columns | {"largest 1 - cosine": ("deviation", 6)}))
    return values, "\n\n".join(tables)


def _rate(bench: Bench, work: Work, name: str, _: int = 0) -> dict[str, float]:
    """Do the whole work; return tokens a second, the cores in use, and how far the vectors are from the library's."""
    if name in (LIBRARY, LIBRARY_INT8):
        timed = bench.library(name).timed("embed", work.name)
        return {"rate": sum(work.tokens) / timed["wall"], "server": timed["cpu"] / timed["wall"]}
    server = bench.server(name)
    before = server.usage()[1]
    load = loaded(server.port, closed_loop(server.requests(work.texts), CONNECTIONS)).checked()
    cores = {"server": (server.usage()[1] - before) / load.seconds, "client": load.cpu / load.seconds}
    bench.library(LIBRARY).call("keep", "check", work.texts[0])
    expected_NK, found_NK = bench.library(LIBRARY).call("vectors", "check"), server.vectors(work.texts[0])
    lengths_N = np.linalg.norm(found_NK, axis=1) * np.linalg.norm(expected_NK, axis=1)
    deviation = float((1 - (found_NK * expected_NK).sum(1) / lengths_N).max())
    return {"rate": load.done(work.tokens) / load.seconds, "deviation": deviation, **cores}


def single(bench: Bench) -> Figure:
    """Compare the time of one text of 16 tokens by HTTP with the library's call, and time the encoding of vectors."""
    work = bench.of_length(16, 200, 1)
    server, library = bench.server(OURS), bench.library(LIBRARY)
    library.call("keep", work.name, [text for (text,) in work.texts])
    as_text = server.requests(work.texts)
    asked = {
        "HTTP, base64": as_text,
        "HTTP, JSON numbers": [each.replace(b'"base64"', b'"float" ') for each in as_text],
    }

    def once(name: str, _: int) -> dict[str, float]:
        if name == LIBRARY:
            return {"ms": 1000 * statistics.median(wall for wall, _ in library.call("one_by_one", work.name))}
        return {"ms": loaded(server.port, closed_loop(asked[name], 1)).checked().latency(0.5)}

    for name in (LIBRARY, *asked):
        once(name, 0)
    found: Rounds = interleaved((LIBRARY, *asked), bench.options.rounds, once, what="one text")
    for rounds in found.values():
        for one, base in zip(rounds, found[LIBRARY], strict=True):
            one["more"] = one["ms"] - base["ms"]
    text = spreads("one text of 16 tokens", found, {"ms, median": ("ms", 3), "ms more": ("more", 3)})
    encoding: Rounds = {"JSON numbers": _encoding(lambda row: row), "base64": _encoding(as_base64)}
    text += "\n\n" + spreads("encoding 32 x 384 vectors, 200 times", encoding, {"ms": ("ms", 3)})
    return {"rounds": found, "encoding": encoding}, text


def _encoding(each: Callable[[np.ndarray], object]) -> list[dict[str, float]]:
    """Return the milliseconds of encoding an answer."""
    vectors_NK = np.random.default_rng(0).normal(size=(32, 384)).astype(np.float32)

    def encode() -> None:
        rows = enumerate(typed(vectors_NK, "f32"))
        Reply(
            {"data": [{"object": "embedding", "index": place, "embedding": each(row)} for place, row in rows]}
        ).encoded()

    return [{"ms": 1000 * seconds} for seconds in timeit.repeat(encode, number=1, repeat=200)]


def mixed(bench: Bench) -> Figure:
    """Measure queries of 16 tokens while texts of 512 are embedded in bulk, and the time of one bulk batch."""
    size = 2 if bench.options.quick else BULK_TEXTS
    bulk, queries = bench.of_length(512, size * BULK_CONNECTIONS, size), bench.of_length(16, 200, 1)

    def once(name: str, _: int) -> dict[str, float]:
        server, seconds = bench.server(name), bench.options.seconds
        in_bulk, before = server.requests(bulk.texts), server.metrics()
        loaded(server.port, closed_loop(in_bulk, BULK_CONNECTIONS, seconds / 2)).checked()
        more = server.metrics() - before
        # Servers of others do not tell the time of a batch.
        batch = 1000 * more["bothways_batch_seconds_sum"] / (more["bothways_batch_seconds_count"] or 1)
        asked = open_loop(server.requests(queries.texts), QUERIES, seconds)
        load = loaded(server.port, asked, closed_loop(in_bulk, BULK_CONNECTIONS, seconds)).checked()
        p99, done = load.latency(0.99), sum(bulk.tokens[answer.place] for answer in load.beside)
        found = {"p50": load.latency(0.5), "p99": p99, "batch": batch, "batches": p99 / batch if batch else 0.0}
        return {**found, "rate": done / load.seconds, "late": load.late()}

    names = bench.chosen((OURS, FIFO, TEI_4, TEI_8, PLAIN, INFINITY))
    for name in names:
        bench.server(name).vectors(bulk.texts[0])
    found: Rounds = interleaved(names, bench.options.rounds, once, what="mixed load")
    columns = {"p50, ms": ("p50", 0), "p99, ms": ("p99", 0), "one bulk batch, ms": ("batch", 0)}
    columns |= {"p99 / batch": ("batches", 2), "bulk tokens/s": ("rate", 0), "client late, ms": ("late", 1)}
    return {"rounds": found}, spreads("queries of 16 tokens beside bulk", found, columns)


def overload(bench: Bench) -> Figure:
    """Send three times what the server can do, with deadlines, and compare what it does with its peak."""
    works = {work.name: work for work in map(bench.sentences, PEAK)}
    server, seconds = bench.server(OURS), bench.options.seconds

    def once(name: str, _: int) -> dict[str, Any]:
        work = works[name]
        connections = PEAK[len(work.texts[0])]
        peak = loaded(server.port, closed_loop(server.requests(work.texts), connections, seconds)).checked()
        timed = server.requests(work.texts, f"x-timeout-ms: {1000 * DEADLINE:.0f}")
        before = server.metrics()
        load = loaded(server.port, open_loop(timed, 3 * len(peak.answers) / peak.seconds, seconds))
        more = server.metrics() - before
        # The queue tells when the first batch of a request began, in buckets.
        late = more["bothways_queue_seconds_count"] - more[f"bothways_queue_seconds_bucket{DEADLINE}"]
        wasted = more["bothways_batch_tokens_sum"] - load.done(work.tokens)
        goodput = load.done(work.tokens) / load.seconds / (peak.done(work.tokens) / peak.seconds)
        found = {"goodput": goodput, "begun_late": late, "wasted": wasted, "statuses": load.statuses()}
        found |= {"p99_429": load.latency(0.99, 429), "p99": load.latency(0.99), "late": load.late()}
        return {**found, "cores": load.cpu / load.seconds}

    found: Rounds = interleaved([*works], bench.options.rounds, once, what="overload")
    columns = {"goodput / peak": ("goodput", 2), "p99 of 429, ms": ("p99_429", 1), "p99 of 200, ms": ("p99", 0)}
    columns |= {f"begun after {DEADLINE} s": ("begun_late", 0), "tokens computed in vain": ("wasted", 0)}
    columns |= {"client late, ms": ("late", 1), "cores of the client": ("cores", 2)}
    return {"rounds": found}, spreads("three times overloaded, requests of", found, columns)


def memory(bench: Bench) -> Figure:
    """Measure the memory of the server over many requests of one sentence; every 50th is refused."""
    server, part, mebibytes = bench.server(OURS), max(1, bench.options.requests // 10), []
    good, bad = server.requests(bench.sentences(1).texts), server.requests([[""] * 3000])[0]
    asked = [bad if place % 50 == 49 else good[place % len(good)] for place in range(part)]
    for number in range(10):
        say(f"memory: part {number + 1} of 10")
        statuses = loaded(server.port, closed_loop(asked, CONNECTIONS)).statuses()
        mebibytes.append(server.usage()[0])
    rows = [
        [f"{(row + 1) * part:,}", f"{each:.1f}", f"{each - mebibytes[0]:+.1f}"] for row, each in enumerate(mebibytes)
    ]
    values = {"part": part, "mebibytes": mebibytes, "statuses_of_a_part": statuses}
    return values, table(("after so many requests", "resident MiB", "more than at first"), rows)


def start(bench: Bench) -> Figure:
    """Measure the seconds from starting a server until it is ready, with torch and without."""

    def once(name: str, _: int) -> dict[str, float]:
        with Running(name, bench.options) as server:
            return {"seconds": server.seconds}

    names = bench.chosen((OURS, LIGHT))
    for name in names:  # an unrecorded start: the files are in the system's cache
        once(name, 0)
    found: Rounds = interleaved(names, bench.options.rounds, once, what="start")
    return {"rounds": found}, spreads("server", found, {"start to ready, s": ("seconds", 2)})


def wrk(bench: Bench) -> Figure:
    """Compare our closed loop with wrk's on one request of 32 sentences; wrk counts nothing in flight at its end."""
    server, seconds, folder = bench.server(OURS), round(bench.options.seconds), bench.options.folder
    asked = server.requests(bench.sentences(32).texts)[0]
    (folder / "body").write_bytes(asked.partition(b"\r\n\r\n")[2])
    (folder / "wrk.lua").write_text(WRK)
    command = f"wrk -t1 -c{CONNECTIONS} -d{seconds}s --timeout 60s -s wrk.lua http://127.0.0.1:{server.port}".split()

    def once(name: str, _: int) -> dict[str, float]:
        if name == "wrk":
            printed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
            found: dict[str, float] = json.loads(printed.splitlines()[-1])
            return found
        load = loaded(server.port, closed_loop([asked], CONNECTIONS, seconds)).checked()
        return {"rate": len(load.answers) / load.seconds, "p50": load.latency(0.5), "p99": load.latency(0.99)}

    found: Rounds = interleaved(("ours", "wrk"), bench.options.rounds, once, what="wrk")
    columns = {"requests/s": ("rate", 2), "p50, ms": ("p50", 0), "p99, ms": ("p99", 0)}
    return {"rounds": found}, spreads(f"load generator, {CONNECTIONS} connections", found, columns)
