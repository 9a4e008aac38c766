"""The figures of jobs: each function measures one question, and returns its values and a table."""

import heapq
import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import psutil

from benchmarks.harness import MODEL, Options, Spread, interleaved, ratios, table
from benchmarks.texts import stream_of_sentences
from benchmarks.workers import in_a_process
from bothways.jobs.blocks import InputFile
from bothways.jobs.files import FileState
from bothways.jobs.manifest import BlockRecord, JobManifest, header_of

Figure: TypeAlias = tuple[dict[str, Any], str]

LIBRARY, JOB = "encode_stream in one process", "a job with one worker"
TWO, RAY = "two workers", "two actors of a local Ray"
_ROWS_A_FILE = 50_000


@dataclass
class Bench:
    """Options, a folder for models, texts and outputs, the numbers of texts, and the URL of a database."""

    options: Options
    folder: Path
    texts: int
    sentences: int
    store: str | None = None

    def corpus(self, name: str, count: int) -> Path:
        """Return a folder of JSON Lines with so many texts: ``short`` ones of a few words, or ``sentences``."""
        folder = self.folder / name
        if not folder.exists():
            folder.mkdir()
            texts = stream_of_sentences()
            for start in range(0, count, _ROWS_A_FILE):
                with (folder / f"{start:08d}.jsonl").open("w") as stream:
                    for number in range(start, min(start + _ROWS_A_FILE, count)):
                        text = " ".join(next(texts).split()[: 8 if name == "short" else None])
                        stream.write(json.dumps({"id": number, "text": text}) + "\n")
        return folder

    def tiny(self) -> str:
        """Return the folder of a model of one narrow layer with random weights."""
        folder = self.folder / "tiny"
        if not folder.exists():
            in_a_process(write_tiny, folder)
        return str(folder)


def write_tiny(folder: Path) -> None:
    """Write a BERT of one layer of 64 units with MiniLM's vocabulary."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from benchmarks.harness import minilm_folder

    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    torch.manual_seed(1)
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    config = BertConfig(vocab_size=len(tokenizer), **sizes)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def library_rate(model: str, corpus: Path) -> float:
    """Return the texts per second of the library's stream over all files of a folder, in a process of its own."""
    from bothways import SentenceEmbedder
    from bothways.data import read_rows

    embedder = SentenceEmbedder.from_pretrained(model, device="cpu")
    embedder.encode(["to begin with"])
    begun, count = time.perf_counter(), 0
    rows = (row.values["text"] for file in sorted(corpus.iterdir()) for row in read_rows(file))
    for _ in embedder.encode_stream(rows, show_progress=False):
        count += 1
    return count / (time.perf_counter() - begun)


@dataclass(frozen=True)
class Ran:
    """A job that ran: texts per second from the begin of its first block to the end of the last, and all seconds."""

    rate: float
    seconds: float
    memory: list[float]


def run_job(bench: Bench, model: str, corpus: Path, *more: str) -> Ran:
    """Run ``bothways embed`` in a process of its own; ``memory`` is the sum of all its processes in MiB."""
    output = bench.folder / "output"
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "-m", "bothways", "embed", model, "--data", str(corpus), "--output-dir", str(output)]
    begun = time.perf_counter()
    process = psutil.Popen([*command, "--device", "cpu", *more], stderr=subprocess.PIPE, text=True)
    memory: list[float] = []
    watcher = threading.Thread(target=_watch, args=(process, memory), daemon=True)
    watcher.start()
    _, said = process.communicate()
    if process.returncode:
        raise RuntimeError(said)
    seconds = time.perf_counter() - begun
    records = JobManifest.open(str(output)).records.values()
    span = max(each.ended for each in records) - min(each.ended - each.seconds for each in records)
    return Ran(sum(each.rows for each in records) / span, seconds, memory)


def _watch(process: psutil.Popen, memory: list[float]) -> None:
    while process.poll() is None:
        total = 0
        for each in _family(process):
            try:
                total += each.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        memory.append(round(total / 2**20, 1))
        time.sleep(1)


def _family(process: psutil.Process) -> Iterator[psutil.Process]:
    try:
        yield process
        yield from process.children(recursive=True)
    except psutil.NoSuchProcess:
        return


def rate(bench: Bench) -> Figure:
    """Compare a job of one worker with the library's stream, and look at its memory: short texts, a tiny model."""
    return _rate(bench, bench.tiny(), "short", bench.texts)


def minilm(bench: Bench) -> Figure:
    """Do the same with sentences and MiniLM."""
    return _rate(bench, MODEL, "sentences", bench.sentences)


def _rate(bench: Bench, model: str, name: str, count: int) -> Figure:
    corpus = bench.corpus(name, count)
    growth: list[float] = []

    def once(who: str, _: int) -> float:
        if who == LIBRARY:
            return in_a_process(library_rate, model, corpus)
        ran = run_job(bench, model, corpus, "--workers", "1")
        growth.append(_growth(ran.memory))
        return ran.rate

    found = interleaved((LIBRARY, JOB), bench.options.rounds, once, what=name)
    share, rates = ratios(found[JOB], found[LIBRARY]), [Spread.of(found[who]).text(0) for who in (LIBRARY, JOB)]
    return {"texts": count, **found, "growth": growth}, table(
        ("texts", f"{LIBRARY}, texts/s", f"{JOB}, texts/s", "ratio", "MiB that memory grew"),
        [[f"{count:,} {name}", *rates, share.ratio(), Spread.of(growth).text(1)]],
    )


def _growth(memory: Sequence[float]) -> float:
    """Return the MiB between the first and the last tenth of the time after a fifth of it, in which all was opened."""
    later = memory[len(memory) // 5 :] or [0.0]
    part = max(1, len(later) // 10)
    return sum(later[-part:]) / part - sum(later[:part]) / part


def workers(bench: Bench) -> Figure:
    """Compare one worker, two, and two actors of Ray."""
    corpus = bench.corpus("sentences", bench.sentences)
    options = {JOB: ("--workers", "1"), TWO: ("--workers", "2"), RAY: ("--workers", "2", "--ray", "local")}
    found = interleaved(
        tuple(options),
        bench.options.rounds,
        lambda who, _: run_job(bench, MODEL, corpus, *options[who]),
        what="workers",
    )
    rates = {who: [each.rate for each in rounds] for who, rounds in found.items()}
    base = {JOB: JOB, TWO: JOB, RAY: TWO}
    rows = [
        [
            who,
            Spread.of(rates[who]).text(0),
            ratios(rates[who], rates[base[who]]).text(),
            base[who],
            Spread.of([each.seconds for each in found[who]]).text(1),
        ]
        for who in options
    ]
    values = {"rates": rates, "seconds": {who: [each.seconds for each in rounds] for who, rounds in found.items()}}
    return values, table(("", "texts/s", "times", "those of", "seconds in all"), rows)


def blocks(bench: Bench) -> Figure:
    """Measure the cost of a block: the same texts in a few blocks and in many."""
    corpus = bench.corpus("short", bench.texts)
    small = bench.folder / "few"
    small.mkdir(exist_ok=True)
    lines = (corpus / "00000000.jsonl").read_text().splitlines(keepends=True)[:2_000]
    (small / "texts.jsonl").write_text("".join(lines))
    whole = sum(map(len, lines)) + 1
    size = {"one block": whole, "1,000 blocks": whole // 1_000}

    def once(who: str, _: int) -> float:
        output = ("--workers", "1", "--block-bytes", str(size[who]))
        return len(lines) / run_job(bench, bench.tiny(), small, *output).rate

    found = interleaved(tuple(size), bench.options.rounds, once, what="blocks")
    # Milliseconds, of one of a thousand blocks more.
    cost = [many - few for many, few in zip(*reversed(found.values()), strict=True)]
    return {"seconds": found, "ms": cost}, table(
        ("texts", *size, "ms of a block"),
        [[f"{len(lines):,}", *(f"{Spread.of(each).text(2)} s" for each in found.values()), Spread.of(cost).text(2)]],
    )


def manifest(bench: Bench) -> Figure:
    """Write a manifest of a million blocks, open it, and enter one more."""
    count = 10_000 if bench.options.quick else 1_000_000
    folder, step = bench.folder / "manifest-job", 2**20
    size = count * step
    file = InputFile(
        FileState("/data/corpus.jsonl", size, "0"), "jsonl", None, "lines", tuple(range(0, size + 1, step))
    )
    header = header_of({"verb": "embed"}, {"format": "npy"}, [file])
    written = JobManifest.create(str(folder), header, [file])
    made = [
        BlockRecord(number, 10_000, 15_360_128, f"{number:064x}", 33.5, 1.8e9 + number, [])
        for number in range(count - 1)
    ]
    written.enter(made)
    seconds, entering = [], []
    for _ in range(bench.options.rounds):
        begun = time.perf_counter()
        found = JobManifest.open(str(folder))
        seconds.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        found.enter([BlockRecord(count - 1, 1, 1, "0" * 64, 1.0, 1.8e9, [])])
        entering.append(1000 * (time.perf_counter() - begun))
    mib = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file()) / 2**20
    cells = [f"{count:,}", f"{mib:.0f}", Spread.of(seconds).text(2), Spread.of(entering).text(1)]
    values = {"blocks": count, "mib": mib, "open": seconds, "enter": entering}
    return values, table(("blocks", "MiB", "seconds to open", "ms to enter a block"), [cells])


# What `plan` assumes of a cluster: workers that differ, some slow ones, and spot machines that are taken away.
PLAN_TEXTS, PLAN_WORKERS, PLAN_SLOW = 1_000_000_000, (64, 1_024, 8_192), 0.02


def plan(_: Bench) -> Figure:
    """Simulate a billion texts: blocks of two sizes on many workers, of which some are slow and some are lost."""
    rows, values = [], []
    rate = 300.0  # sentences a second of MiniLM on one core, see the part workers
    for texts_a_block in (2_000, 10_000, 100_000):
        for count in PLAN_WORKERS:
            found = simulated(PLAN_TEXTS, texts_a_block, count, rate)
            values.append({"texts_a_block": texts_a_block, "workers": count, **found})
            hours = found["seconds"] / 3600
            rows.append(
                [
                    f"{texts_a_block:,}",
                    f"{PLAN_TEXTS // texts_a_block:,}",
                    f"{count:,}",
                    f"{hours:,.1f}",
                    f"{found['seconds'] / found['ideal']:.3f}",
                    f"{found['lost']:.4f}",
                    f"{found['last']:,.0f}",
                ]
            )
    header = (
        "texts a block",
        "blocks",
        "workers",
        "hours",
        "times the ideal",
        "share computed again",
        "seconds of the last blocks",
    )
    return {"rate": rate, "runs": values}, table(header, rows)


def simulated(texts: int, texts_a_block: int, workers: int, rate: float, lives: float = 6 * 3600.0) -> dict[str, float]:
    """Return seconds of a job in which workers have speeds of their own and live ``lives`` seconds on average.

    A worker that is lost comes back after two minutes; its block is computed again.
    """
    draw = random.Random(1)
    speeds = [rate * (0.3 if draw.random() < PLAN_SLOW else draw.uniform(0.9, 1.1)) for _ in range(workers)]
    ends = [(0.0, number, draw.expovariate(1 / lives)) for number in range(workers)]
    heapq.heapify(ends)
    lost, finished = 0, []
    todo = texts // texts_a_block
    while todo:
        now, number, death = heapq.heappop(ends)
        seconds = texts_a_block / speeds[number]
        if now + seconds > death:
            lost += 1
            born = death + 120
            heapq.heappush(ends, (born, number, born + draw.expovariate(1 / lives)))
            continue
        todo -= 1
        finished.append(now + seconds)
        heapq.heappush(ends, (now + seconds, number, death))
    end = max(finished)
    ideal = texts / sum(speeds)
    idle = sorted(finished)[-workers:] if len(finished) >= workers else finished
    return {"seconds": end, "ideal": ideal, "lost": lost / (texts // texts_a_block), "last": end - idle[0]}


def store(bench: Bench) -> Figure:
    """Compare an index in PostgreSQL with one in files: build, queries at equal recall, memory."""
    assert bench.store is not None
    found = in_a_process(compare_stores, bench.store, 500 if bench.options.quick else STORED, bench.options.rounds)
    header = ("sentences", "index", "s to build", "queries/s", "by 8 threads", "recall@10", "MiB with the server")
    rows = [
        [f"{found['sentences']:,}", name, *(Spread.of(each[key]).text(digits) for key, digits in STORE_COLUMNS.items())]
        for name, each in found["indexes"].items()
    ]
    return found, table(header, rows)


STORED, STORE_COLUMNS = 20_000, {"build": 1, "rate": 0, "threads": 0, "recall": 4, "memory": 0}


def compare_stores(url: str, count: int, rounds: int) -> dict[str, Any]:
    """Build both indexes of sentences, and search them with one query after the other, and in several threads."""
    from itertools import islice

    from bothways import SentenceEmbedder
    from bothways.retrieval import RowBatch, SearchIndex
    from bothways.retrieval.postgres.index import PostgresIndex
    from bothways.retrieval.search import identity_of

    embedder = SentenceEmbedder.from_pretrained(MODEL, device="cpu")
    texts = list(islice(stream_of_sentences(), count + 500))
    vectors = embedder.encode(texts, show_progress=False)
    queries, encoder = vectors[count:], identity_of(embedder)
    batch, address = RowBatch(vectors[:count], texts[:count]), f"{url}#benchmark"
    builds = {
        "files": lambda: SearchIndex.build_from_batches([batch], encoder=encoder),
        "PostgreSQL": lambda: PostgresIndex.build_from_batches(address, [batch], encoder=encoder, overwrite=True),
    }
    found: dict[str, dict[str, list[float]]] = {name: {key: [] for key in STORE_COLUMNS} for name in builds}
    expected: list[set[str]] = []
    for _ in range(rounds):
        for name, build in builds.items():
            before, begun = _memory(), time.perf_counter()
            index = build()
            found[name]["build"].append(time.perf_counter() - begun)
            begun = time.perf_counter()
            hits = [{hit.id for hit in index.search(query[None], 10)[0]} for query in queries]
            found[name]["rate"].append(len(queries) / (time.perf_counter() - begun))
            expected = hits if name == "files" else expected  # faiss compares with all rows
            begun = time.perf_counter()
            with ThreadPoolExecutor(8) as threads:
                list(threads.map(lambda query, index=index: index.search(query[None], 10), queries))
            found[name]["threads"].append(len(queries) / (time.perf_counter() - begun))
            found[name]["recall"].append(sum(len(a & b) for a, b in zip(hits, expected, strict=True)) / 10 / len(hits))
            found[name]["memory"].append(_memory() - before)
    return {"sentences": count, "indexes": found}


def _memory() -> float:
    """Return the MiB of this process and of the server's on this machine; what they share counts once for each."""
    servers = [each for each in psutil.process_iter(["name"]) if each.info["name"] == "postgres"]
    return sum(each.memory_full_info().pss for each in (psutil.Process(), *servers)) / 2**20
