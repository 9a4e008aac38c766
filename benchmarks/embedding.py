"""Sentence embeddings: throughput on sentences and passages, and latency of one short text.

Trials of batches and a comparison with a float64 reference come first, then the rounds. README.md has the rules.
"""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import embedders
from benchmarks.embedders import BASELINE, BATCH, OURS, TUNED
from benchmarks.harness import Options, Spread, interleaved, say, table, write_results
from benchmarks.reference import (
    BATCHES,
    PRODUCTS,
    Deviation,
    MatrixProducts,
    Reference,
    Trial,
    floating_point_operations,
    speedup,
    timed_figures,
)
from benchmarks.texts import SENTENCES, Workload, texts_of_length, workloads
from benchmarks.workers import AbsentPeerError, Worker, in_a_process, started

LATENCY_NAMES = tuple(name for name in embedders.ALL if name != "transformers, sorted by tokens")
LATENCY_TOKENS, LATENCY_CALLS, LATENCY_BLOCK = 16, 200, 20

RUN = max(BATCHES)
"""Neighbours in length in a trial of batches; all texts would take longer than the measurement."""

Rounds = Mapping[str, list[dict[str, float]]]


def run(options: Options) -> Path:
    """Compare, time and write the results; those in int8, in bfloat16 and without torch only where they are named."""
    names = options.chosen(embedders.ALL) if options.contestants else embedders.NAMES
    figures: dict[str, Any] = {"absent": {}, "workloads": {}}
    sections: list[str] = []
    loads = workloads(quick=options.quick)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bothways-benchmark-")))
        graph = folder / "minilm.onnx"
        say("writing what the contestants read")
        figures["int8"] = in_a_process(embedders.write_files, names, graph, 100 if options.quick else SENTENCES)
        trials = _trials(options, names, graph, loads)
        workers = started(embedders.Subject, names, (options.threads, graph), stack, figures["absent"])
        products = stack.enter_context(Worker(MatrixProducts, options.threads))
        deviations = _deviations(options, workers, loads, trials)
        for load in loads:
            rounds = _rounds(options, load, workers, products, trials[load.name])
            found, section = _summary(load, rounds, deviations[load.name], trials[load.name], options)
            figures["workloads"][load.name] = found
            sections.append(section)
        figures["latency"], section = _latency(options, workers)
        sections.append(section)
        figures["peak_memory"] = {name: worker.call("peak_memory") for name, worker in workers.items()}
    return write_results(f"embedding-{options.threads_suffix}", options, figures, "\n\n".join(sections))


def _sample(load: Workload) -> tuple[str, ...]:
    """Return a quarter of the texts, in runs of neighbours in length, so that batches are padded as with all."""
    order = sorted(range(len(load.texts)), key=load.tokens.__getitem__)
    runs = [order[start : start + RUN] for start in range(0, len(order), 4 * RUN)]
    return tuple(load.texts[place] for run in runs for place in run)


def _trials(options: Options, names: Sequence[str], graph: Path, loads: list[Workload]) -> dict[str, dict[str, Trial]]:
    """Return the batch per workload and tuned contestant; in processes of their own, for the sake of memory."""
    found: dict[str, dict[str, Trial]] = {load.name: {} for load in loads}
    for name in (each for each in names if each in TUNED):
        with suppress(AbsentPeerError), Worker(embedders.Subject, name, options.threads, graph) as worker:
            for load in loads:
                sample = _sample(load)
                worker.call("keep", load.name, sample)
                worker.call("embed", load.name, BATCH)

                def seconds_at(batch: int, worker: Worker = worker, workload: str = load.name) -> float:
                    return worker.timed("embed", workload, batch)[options.clock]

                trial = found[load.name][name] = Trial.of(seconds_at, len(sample))
                say(f"{load.name}: {name}: batches of {trial.batch}")
    return found


def _batch(name: str, trials: Mapping[str, Trial]) -> tuple[int, ...]:
    """Return the arguments of a contestant besides the texts."""
    return (trials[name].batch,) if name in trials else ()


def _deviations(
    options: Options, workers: Mapping[str, Worker], loads: list[Workload], trials: Mapping[str, Mapping[str, Trial]]
) -> dict[str, dict[str, Deviation]]:
    """Return the distance from the reference per workload and contestant; this also warms everybody up."""
    found: dict[str, dict[str, Deviation]] = {load.name: {} for load in loads}
    with Worker(Reference, options.threads) as reference:
        for load in loads:
            say(f"{load.name}: reference vectors in float64")
            expected = reference.call("vectors", load.texts)
            for name, worker in workers.items():
                worker.call("keep", load.name, load.texts)
                vectors = worker.call("vectors", load.name, *_batch(name, trials[load.name]))
                deviation = Deviation.between(vectors, expected, load)
                found[load.name][name] = deviation
                say(f"{load.name}: {name}: min cosine {deviation.min_cosine:.7f}, {deviation.text()}")
    return found


def _rounds(
    options: Options, load: Workload, workers: Mapping[str, Worker], products: Worker, trials: Mapping[str, Trial]
) -> Rounds:
    rows = max(1, round(BATCH * sum(load.tokens) / len(load.tokens)))
    seconds = 0.1 if options.quick else 1.5

    def once(name: str, number: int) -> dict[str, float]:  # noqa: ARG001
        if name == PRODUCTS:
            return dict(products.call("rate", rows, seconds))
        return workers[name].timed("embed", load.name, *_batch(name, trials))

    return interleaved([*workers, PRODUCTS], options.rounds, once, what=load.name)


def _summary(
    load: Workload, rounds: Rounds, deviations: Mapping[str, Deviation], trials: Mapping[str, Trial], options: Options
) -> tuple[dict[str, Any], str]:
    flop, clock = floating_point_operations(load.tokens), options.clock
    rates = Spread.of([single["rate"] / 1e9 for single in rounds[PRODUCTS]])
    found: dict[str, Any] = {"texts": load.summary(), "flop": flop, "contestants": {}, "matrix_products": rates}
    rows = []
    for name, deviation in deviations.items():
        entry = timed_figures(name, rounds, load.tokens, flop, clock) | {"against_reference": asdict(deviation)}
        for key in ("wall", "cpu"):
            entry[f"speedup_{key}"] = speedup(rounds, BASELINE, name, key)
        entry["ours_faster"] = speedup(rounds, name, OURS, clock) if OURS in rounds else None
        if name in trials:
            entry["batch"], entry["batch_trial"] = trials[name].batch, trials[name].seconds
        found["contestants"][name] = entry
        quotients = entry["speedup_wall"], entry["speedup_cpu"], entry["ours_faster"] if name != OURS else None
        rows.append(
            [
                name, str(entry.get("batch", "")), entry["wall"].text(), entry["cpu"].text(),
                entry["tokens_per_second"].text(0), *(each.ratio() if each else "" for each in quotients),
                entry["fraction_of_products"].text(), f"{deviation.min_cosine:.7f}",
                f"{deviation.max_difference:.1e}", deviation.text(),
            ]
        )  # fmt: skip
    header = (
        "contestant", "batch", "wall s", "CPU s", "tokens/s", "times sentence-transformers (wall)", "(CPU)",
        f"bothways, times faster ({'CPU' if clock == 'cpu' else 'wall'})", "of the matrix-product rate",
        "min cosine", "max difference", "vectors",
    )  # fmt: skip
    summary = load.summary()
    heading = (
        f"## {load.name}\n\n{summary['texts']:,} texts, {summary['tokens']:,} real tokens (median {summary['median']}, "
        f"longest {summary['longest']}), {summary['source']}; {flop / 1e12:.2f} TFLOP. Matrix products of the "
        f"encoder's shapes: {rates.text(1)} GFLOP/s."
    )
    return found, f"{heading}\n\n{table(header, rows)}"


def _latency(options: Options, workers: Mapping[str, Worker]) -> tuple[dict[str, Any], str]:
    """Time one text of 16 tokens a call, in turns by blocks; the texts differ, so that no cache helps."""
    names = [name for name in LATENCY_NAMES if name in workers]
    block = 5 if options.quick else LATENCY_BLOCK
    blocks = 2 if options.quick else LATENCY_CALLS // LATENCY_BLOCK
    for name in names:
        workers[name].call("keep", "warm-up", texts_of_length(LATENCY_TOKENS, 3))
        workers[name].call("one_by_one", "warm-up")

    texts = texts_of_length(LATENCY_TOKENS, 3 + block * blocks)[3:]

    def once(name: str, number: int) -> list[tuple[float, float]]:
        workers[name].call("keep", "latency", texts[number * block : (number + 1) * block])
        return list(workers[name].call("one_by_one", "latency"))

    found: dict[str, Any] = {}
    quantile = partial(np.quantile, method="higher")
    for name, parts in interleaved(names, blocks, once, what="latency").items():
        wall_BC, cpu_BC = np.moveaxis(1e3 * np.array(parts), 2, 0)  # blocks and their calls
        found[name] = {
            "calls": wall_BC.size,
            "p50_ms": float(quantile(wall_BC, 0.5)),
            "p95_ms": float(quantile(wall_BC, 0.95)),
            "cpu_p50_ms": float(quantile(cpu_BC, 0.5)),
            "block_p50_ms": asdict(Spread.of(quantile(wall_BC, 0.5, axis=1).tolist())),
        }
    header = ("one text of 16 tokens", "calls", "p50 ms", "p95 ms", "CPU p50 ms", "p50 of the blocks, ms")
    rows = [
        [
            name, str(entry["calls"]), f"{entry['p50_ms']:.2f}", f"{entry['p95_ms']:.2f}",
            f"{entry['cpu_p50_ms']:.2f}", Spread(**entry["block_p50_ms"]).text(),
        ]
        for name, entry in found.items()
    ]  # fmt: skip
    return found, f"## latency\n\n{table(header, rows)}"
