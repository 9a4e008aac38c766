"""Memory: the peaks of inference and of fine-tuning beside the peers, and a stream's over time.

Peaks: one fresh process for each figure loads its library and the model, forgets the peak of that, and does the work.
Inference embeds some of the sentences and passages of the speed benchmark with MiniLM. Fine-tuning takes one epoch of a
classifier on some of them, with labels that mean nothing, in updates of 32 rows; "at once" are the rows that go through
the model together. Ours takes at most 1,024 tokens at once. The model of a fine-tuning is loaded by it, so compare the
whole.

The stream is constant memory: a million short texts from a generator through ``encode_stream``. The encoder is tiny and
random, so that the stream and not the arithmetic is what runs. Warm-up is the first tenth.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import embedders, finetuning
from benchmarks.harness import Options, peak_memory, resident_memory, say, table, write_results
from benchmarks.peers import OURS, OurSide, SequencePeer
from benchmarks.texts import Workload, workloads
from benchmarks.trainer import BATCH, grouped_settings
from benchmarks.workers import AbsentPeerError, Worker, in_a_process, set_torch_threads

MIB = 2**20
TUNED = "transformers, sorted by tokens"
# Rows at once: the default, and as the trial of the speed benchmark chose them; 0 where ours decides by tokens.
INFERENCE: dict[str, dict[str, int]] = {
    "sentences": {OURS: 0, embedders.BASELINE: 32, TUNED: 16},
    "passages": {OURS: 0, embedders.BASELINE: 32, TUNED: 8},
}
CHECKPOINTED = "activation checkpointing"
# Four passages are about the 1,024 tokens of ours.
TRAINING: dict[str, dict[str, tuple[int, ...]]] = {
    OURS: {"sentences": (0,), "passages": (0,)},
    f"{OURS}, {CHECKPOINTED}": {"sentences": (0,), "passages": (0,)},
    "Trainer, length grouping": {"sentences": (32,), "passages": (32, 4)},
    f"Trainer, length grouping, {CHECKPOINTED}": {"sentences": (32,), "passages": (4,)},
}
TEXTS = {"sentences": 600, "passages": 150}
ROWS, VALIDATION_ROWS = 96, 32
WARM_UP, END = 0.1, 0.9
SAMPLES, CHECKS = 200, 20
TINY = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 64,
}  # fmt: skip
WORDS = tuple(f"{first}{second}" for first in "bdfglmnprst" for second in ("ab", "ed", "in", "or", "un", "ay"))


def run(options: Options) -> Path:
    """Measure peaks and the stream, and write the results."""
    figures, tables = peaks(options)
    streamed, stream = _stream(options)
    text = f"{tables}\n\n## Stream\n\n{stream}"
    return write_results("memory", replace(options, rounds=0), {**figures, **streamed}, text)


def build(name: str, rows: int, threads: int) -> finetuning.Subject:
    """Build the subject of a worker that trains with so many rows at once."""
    lean = name.endswith(CHECKPOINTED)
    if name.startswith(OURS):
        return finetuning.Subject(OurSide(threads, "cpu", activation_checkpointing=lean))

    def settings(epochs: int) -> dict[str, Any]:
        accumulated = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": BATCH // rows}
        return {**grouped_settings(epochs), **accumulated, "gradient_checkpointing": lean}

    return finetuning.Subject(SequencePeer(threads, "cpu", settings=settings))


def peaks(options: Options) -> tuple[dict[str, Any], str]:
    """Return the figures of both kinds of work, and their tables."""
    figures: dict[str, Any] = {"inference": [], "training": []}
    for load in workloads(quick=options.quick):
        texts = [{"text": text, "label": "ab"[number % 2]} for number, text in enumerate(load.texts)]
        count = len(texts) // 2 if options.quick else ROWS
        data = finetuning.classification(texts[:count], texts[count : count + VALIDATION_ROWS])
        for name, batch in INFERENCE[load.name].items():
            told = (batch,) if name in embedders.TUNED else ()
            made = (embedders.Subject, name, options.threads, Path())
            figures["inference"] += _peak(load, name, batch, made, ("embed", load.name, *told))
        for name, rows in TRAINING.items():
            for each in rows[load.name]:
                made = (build, name, each, options.threads)
                figures["training"] += _peak(load, name, each, made, ("train", data, 1))
    header = ("texts", "contestant", "rows at once", "loaded, MiB", "above it, MiB", "peak, MiB", "CPU s")
    first, second = (table(header, [_row(each) for each in figures[kind]]) for kind in figures)
    return figures, f"## Inference\n\n{first}\n\n## Fine-tuning\n\n{second}"


def _peak(load: Workload, name: str, rows: int, made: Any, call: tuple[Any, ...]) -> list[dict[str, Any]]:  # noqa: ANN401
    """Return the peak of one call in a process of its own; nothing where the peer is not installed."""
    say(f"{call[0]}: {load.name}, {name}, {rows or 'its own'} rows at once")
    try:
        with Worker(*made) as worker:
            if call[0] == "embed":
                worker.call("keep", load.name, load.texts[: TEXTS[load.name]])
            loaded = worker.call("resident_memory")
            worker.call("forget_peak")
            cpu = worker.timed(*call)["cpu"]
            peak = worker.call("peak_memory")
    except AbsentPeerError as error:
        say(str(error))
        return []
    return [{"texts": load.name, "name": name, "rows": rows, "loaded": loaded, "peak": peak, "cpu": cpu}]


def _row(found: dict[str, Any]) -> list[str]:
    above = found["peak"] - found["loaded"]
    sizes = (f"{size / MIB:,.0f}" for size in (found["loaded"], above, found["peak"]))
    return [found["texts"], found["name"], str(found["rows"] or "by tokens"), *sizes, f"{found['cpu']:,.1f}"]


# --- the stream ---


def streamed(threads: int, folder: Path, count: int) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Stream texts through an embedder, and return about 200 samples of the process's memory and what came of it.

    Some vectors are compared with ``encode`` of the same text, so that an empty or disordered stream cannot pass.
    """
    from bothways import SentenceEmbedder

    set_torch_threads(threads)
    embedder = SentenceEmbedder.from_pretrained(folder, device="cpu")
    began = time.perf_counter()
    every, check_every = max(1, count // SAMPLES), max(1, count // CHECKS)
    samples: list[dict[str, float]] = []
    done, worst = 0, 0.0
    stream: Iterator[np.ndarray] = iter(embedder.encode_stream(_text(number) for number in range(count)))
    for done, vector in enumerate((each for part in stream for each in np.atleast_2d(np.asarray(part))), start=1):
        if (done - 1) % check_every == 0:
            alone = np.asarray(embedder.encode([_text(done - 1)]))[0]
            difference = float(np.abs(alone - vector).max())
            # Written so that NaN counts as the worst.
            worst = worst if difference <= worst else difference
        if done % every == 0:
            samples.append({"done": done, "resident": resident_memory(), "seconds": time.perf_counter() - began})
    seconds = time.perf_counter() - began
    return samples, {"total": done, "peak": peak_memory(), "worst_difference": worst, "seconds": seconds}


def _stream(options: Options) -> tuple[dict[str, Any], str]:
    """Stream in a process of its own."""
    count = min(options.texts, 20_000) if options.quick else options.texts
    with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as folder:
        say("making a tiny checkpoint")
        in_a_process(partial(embedders.write_bert, **TINY), Path(folder), WORDS)  # it imports transformers
        say(f"streaming {count:,} texts")
        samples, end = in_a_process(streamed, options.threads, Path(folder), count)
    return _report(end, samples, count)


def _report(end: dict[str, float], samples: list[dict[str, float]], count: int) -> tuple[dict[str, Any], str]:
    if end["total"] != count:
        raise RuntimeError(f"expected {count} vectors, got {end['total']}")
    if not end["worst_difference"] <= 1e-4:
        raise RuntimeError(f"the stream's vectors differ from encode's by {end['worst_difference']:.1e}")
    warm = [single["resident"] for single in samples if WARM_UP <= single["done"] / count <= WARM_UP + 0.05]
    last = [single["resident"] for single in samples if single["done"] / count >= END]
    growth = statistics.median(last) - statistics.median(warm)
    rows = [
        ["texts", f"{count:,}"],
        ["texts per second", f"{count / end['seconds']:,.0f}"],
        ["resident after the first tenth, MiB", f"{statistics.median(warm) / MIB:,.1f}"],
        ["growth after the first tenth, MiB", f"{growth / MIB:,.2f}"],
        ["growth per text, bytes", f"{growth / (0.825 * count):,.2f}"],
        ["peak resident, MiB", f"{end['peak'] / MIB:,.1f}"],
        ["worst difference from encode", f"{end['worst_difference']:.1e}"],
    ]
    return {"samples": samples, "end": end, "growth_bytes": growth}, table(("encode_stream", ""), rows)


def _text(number: int) -> str:
    """Return text ``number``: 3 to 9 words, always the same."""
    chooser = random.Random(number)
    return " ".join(chooser.choices(WORDS, k=chooser.randint(3, 9)))
