"""Fine-tuning speed: real tokens per second of the training loop, ours beside transformers' Trainer.

One process per contestant for all rounds, each trains a fresh MiniLM every round. A fresh process a round would put
the libraries' first-call costs (kernel selection, allocator growth) into the loop; a shared process would let one side
inherit the other's. An unrecorded short training comes first.

The clock runs from the first forward in training mode to the end of the last optimiser step, by torch's own hooks, so
imports, loading, tokenising ahead and the final validation are outside on every side. Every side trains for one epoch
on the same rows, so the real tokens are the same.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import classifiers
from benchmarks.classifiers import GROUPED, TRAINER, Data
from benchmarks.harness import DATA, Options, Spread, interleaved, ratios, say, table, write_results
from benchmarks.our_side import OURS
from benchmarks.reference import MatrixProducts, floating_point_operations
from benchmarks.texts import read_rows, token_counts
from benchmarks.trainer_peers import BATCH
from benchmarks.workers import AbsentPeerError, Worker

# Above 2,000 rows `fit` draws no texts of a label together first, which the peers do not do either.
ROWS, VALIDATION_ROWS = 2_400, 200
PRODUCTS = "matrix products"
# A backward pass multiplies twice for each product of the forward.
TRAINING_FACTOR = 3


def run(options: Options) -> Path:
    """Time and write the results."""
    if not (DATA / "sst2").exists():
        raise SystemExit("the fine-tuning benchmark needs SST-2 at ../shared/data/sst2, which is not there")
    train = read_rows(DATA / "sst2" / "train.jsonl.gz")[: 40 if options.quick else ROWS]
    validation = read_rows(DATA / "sst2" / "validation.jsonl.gz")[: 20 if options.quick else VALIDATION_ROWS]
    data = Data(train, validation)
    tokens = token_counts([row["text"] for row in train])
    figures: dict[str, Any] = {"absent": {}, "rows": len(train), "tokens": sum(tokens), "batch": BATCH}
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in options.chosen((OURS, TRAINER, GROUPED)):
            say(f"starting {name}, with a short training to warm up")
            try:
                workers[name] = stack.enter_context(Worker(classifiers.build, name, options.threads, "cpu"))
            except AbsentPeerError as error:
                figures["absent"][name] = str(error)
                continue
            workers[name].call("train", Data(train[:64], validation[:16]), 1, 1)
        products = stack.enter_context(Worker(MatrixProducts, options.threads))

        def once(name: str, number: int) -> dict[str, float]:
            if name == PRODUCTS:
                rows = round(BATCH * sum(tokens) / len(tokens))
                return dict(products.call("rates", rows, 0.1 if options.quick else 1.5))
            return dict(workers[name].call("train", data, 1, 1 + number))

        rounds = interleaved([*workers, PRODUCTS], options.rounds, once, what="fine-tuning")
        figures["peak_memory"] = {name: worker.call("peak_memory") for name, worker in workers.items()}
    markdown = _summary(rounds, tokens, options, figures)
    suffix = "1-thread" if options.threads == 1 else f"{options.threads}-threads"
    return write_results(f"finetuning-{suffix}", options, figures, markdown)


def _summary(
    rounds: dict[str, list[dict[str, float]]], tokens: list[int], options: Options, figures: dict[str, Any]
) -> str:
    flop = TRAINING_FACTOR * floating_point_operations(tokens)
    clock = "cpu" if options.threads == 1 else "wall"
    rates = [single["encoder"] for single in rounds.pop(PRODUCTS)]
    figures["contestants"] = {}
    rows = []
    for name, singles in rounds.items():
        entry: dict[str, Any] = {"rounds": singles}
        entry["tokens_per_second"] = Spread.of([sum(tokens) / single["wall"] for single in singles])
        for key in ("wall", "cpu"):
            entry[key] = Spread.of([single[key] for single in singles])
            for peer in (TRAINER, GROUPED):
                if peer in rounds:
                    base = [single[key] for single in rounds[peer]]
                    entry[f"speedup_{key}_of_{peer}"] = ratios(base, [single[key] for single in singles])
        entry["fraction_of_products"] = Spread.of(
            [flop / single[clock] / rate for single, rate in zip(singles, rates, strict=True)]
        )
        figures["contestants"][name] = entry
        rows.append(_row(name, entry, singles, figures["peak_memory"][name]))
    header = (
        "contestant", "loop wall s", "loop CPU s", "real tokens/s", f"times {TRAINER} (CPU)", f"times {GROUPED} (CPU)",
        f"times {GROUPED} (wall)", "of the matrix-product rate", "steps", "validation accuracy", "peak MiB",
    )  # fmt: skip
    heading = f"SST-2, {figures['rows']:,} rows, {figures['tokens']:,} real tokens, one epoch, batch {BATCH}."
    return f"{heading}\n\n{table(header, rows)}"


def _row(name: str, entry: dict[str, Any], singles: list[dict[str, float]], peak: int) -> list[str]:
    speedups = [
        entry[key].ratio() if key in entry else ""
        for key in (f"speedup_cpu_of_{TRAINER}", f"speedup_cpu_of_{GROUPED}", f"speedup_wall_of_{GROUPED}")
    ]
    return [
        name,
        entry["wall"].text(),
        entry["cpu"].text(),
        entry["tokens_per_second"].text(0),
        *speedups,
        f"{entry['fraction_of_products'].median:.2f}",
        f"{singles[0]['steps']:.0f}",
        f"{sum(single['validation_accuracy'] for single in singles) / len(singles):.3f}",
        f"{peak / 2**20:,.0f}",
    ]
