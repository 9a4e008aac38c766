"""Pre-training speed: real tokens per second of the training loop, ours beside transformers.

Masked language modelling (MLM) and replaced token detection (RTD) with random weights, at MiniLM's and BERT-base's
shapes, on sequences of one length and of mixed lengths from Wikipedia. One process per contestant for all rounds. The
clock runs from the first forward to the end of the last optimizer step, as in `benchmarks.finetuning`. An update has 32
sequences on both sides; the peer's batches are as large as is fastest in a trial, and it accumulates their gradients.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import DATA, Options, Spread, interleaved, minilm_folder, ratios, say, table, write_results
from benchmarks.pretraining_sides import OURS, PEER, SHAPES, UPDATE, Work, build, training_flop
from benchmarks.reference import MatrixProducts
from benchmarks.workers import AbsentPeerError, Worker

BATCHES = (4, 8, 16, 32)
"""Batches of the peer that are tried."""

FIXED = 128
"""Tokens of a sequence where all have one length."""

PRODUCTS = "matrix products"

UPDATES = {"MiniLM": 4, "BERT-base": 1}
"""Updates of a round."""

TARGETS = {("MLM", "128 tokens"): 1.9, ("MLM", "mixed lengths"): 2.5, ("RTD", "128 tokens"): 1.8}
"""How many times as fast as the peer ours is meant to be."""


def run(options: Options) -> Path:
    """Time and write the results."""
    text = DATA / "wikipedia_text" / "validation.txt.gz"
    if not text.exists():
        raise SystemExit("the pre-training benchmark needs ../shared/data/wikipedia_text, which is not there")
    figures: dict[str, Any] = {"absent": {}, "cases": []}
    shapes = SHAPES[:1] if options.quick else SHAPES
    for work in (Work(objective, shape) for shape in shapes for objective in ("MLM", "RTD")):
        updates = 1 if options.quick else UPDATES[work.shape]
        for name, sequences in _data(text, updates).items():
            figures["cases"].append(_case(work, name, sequences, options, figures["absent"]))
    return write_results("pretraining", options, figures, _tables(figures["cases"]))


def _data(text: Path, updates: int) -> dict[str, list[np.ndarray]]:
    """Return sequences of one length, and paragraphs of all lengths up to 512 tokens, in random order."""
    import gzip

    from bothways import load

    tokenizer = load(minilm_folder()).tokenizer
    with gzip.open(text, "rt", encoding="utf-8") as lines:
        paragraphs = [line.strip() for line in islice(lines, 2000) if len(line) > 60 and not line.startswith("=")]
    drawn = np.random.default_rng(0).permutation(len(paragraphs))[: updates * UPDATE]
    bare = tokenizer.encode_bare(paragraphs)
    stream = np.concatenate([np.array(ids) for ids in bare])

    def framed(ids: Sequence[int] | np.ndarray) -> np.ndarray:
        return np.array([tokenizer.cls_id, *ids, tokenizer.sep_id], dtype=np.int32)

    width = FIXED - 2
    return {
        f"{FIXED} tokens": [framed(stream[place * width : (place + 1) * width]) for place in range(len(drawn))],
        "mixed lengths": [framed(bare[place][:510]) for place in drawn],
    }


def _case(
    work: Work, data: str, sequences: list[np.ndarray], options: Options, absent: dict[str, str]
) -> dict[str, Any]:
    """Time both sides on the same sequences."""
    label = f"{work.objective}, {work.shape}, {data}"
    batches, peaks = {OURS: UPDATE, PEER: UPDATE}, {}
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in options.chosen((OURS, PEER)):
            try:
                workers[name] = stack.enter_context(Worker(build, name, work, options.threads))
            except AbsentPeerError as error:
                absent[name] = str(error)
                continue
            if name == PEER:
                say(f"{label}: trial of the peer's batch")
                batches[name] = _fastest(work, sequences, options)
            workers[name].call("train", sequences[:UPDATE], batches[name], 0)

        products = stack.enter_context(Worker(MatrixProducts, options.threads))

        def once(name: str, number: int) -> dict[str, float]:
            if name == PRODUCTS:
                return dict(products.call("rates", 1024, 0.5))
            return dict(workers[name].call("train", sequences, batches[name], 1 + number))

        rounds = interleaved([*workers, PRODUCTS], options.rounds, once, what=label)
        peaks = {name: worker.call("peak_memory") for name, worker in workers.items()}
    lengths = [len(each) for each in sequences]
    tokens, rates = sum(lengths), [single["encoder"] for single in rounds.pop(PRODUCTS)]
    flop = training_flop(work, lengths)
    return {
        "objective": work.objective,
        "shape": work.shape,
        "data": data,
        "tokens": tokens,
        "batch": batches[PEER],
        "rounds": rounds,
        "tokens_per_second": {
            name: Spread.of([tokens / single["cpu"] for single in singles]) for name, singles in rounds.items()
        },
        "of_products": Spread.of(
            [flop / single["cpu"] / rate for single, rate in zip(rounds[OURS], rates, strict=True)]
        )
        if OURS in rounds
        else None,
        "times": ratios(*([single["cpu"] for single in rounds[name]] for name in (PEER, OURS)))
        if len(rounds) == 2
        else None,
        "peak": peaks,
    }


def _fastest(work: Work, sequences: list[np.ndarray], options: Options) -> int:
    """Return the peer's fastest batch on one update, in a process that does not count."""
    with Worker(build, PEER, work, options.threads) as worker:
        worker.call("train", sequences[:UPDATE], UPDATE, 0)
        seconds = {batch: worker.call("train", sequences[:UPDATE], batch, 0)["cpu"] for batch in BATCHES}
    return min(seconds, key=seconds.__getitem__)


def _tables(cases: Sequence[dict[str, Any]]) -> str:
    header = (
        "objective", "shape", "sequences", "ours, tokens/s", "transformers, tokens/s", "its batch", "times as fast",
        "target", "of the matrix-product rate", "peak MiB, ours", "theirs",
    )  # fmt: skip
    rows = []
    for case in cases:
        rates, peak, times = case["tokens_per_second"], case["peak"], case["times"]
        target = TARGETS.get((case["objective"], case["data"]))
        rows.append(
            [
                case["objective"],
                case["shape"],
                case["data"],
                *(rates[name].text(0) if name in rates else "" for name in (OURS, PEER)),
                str(case["batch"]),
                "" if times is None else times.ratio(),
                "" if target is None else f"{target:.1f}",
                "" if case["of_products"] is None else case["of_products"].text(),
                *(f"{peak[name] / 2**20:,.0f}" if name in peak else "" for name in (OURS, PEER)),
            ]
        )
    return (
        "Real tokens a second of processor time, without padding; medians, least and most of the rounds.\n\n"
        + table(header, rows)
    )
