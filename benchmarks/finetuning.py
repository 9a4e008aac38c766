"""Fine-tuning speed: real tokens per second of the training loop, ours beside transformers' Trainer.

One process per contestant for all rounds, each trains a fresh MiniLM every round. A fresh process a round would put
the libraries' first-call costs (kernel selection, allocator growth) into the loop; a shared process would let one side
inherit the other's. An unrecorded short training comes first.

README.md says what the clock includes.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import DATA, Options, interleaved, say, table, write_results
from benchmarks.peers import OURS, OurSide, SequencePeer
from benchmarks.reference import (
    PRODUCTS,
    TRAINING_FACTOR,
    MatrixProducts,
    floating_point_operations,
    speedup,
    timed_figures,
)
from benchmarks.tasks import TaskData, label_metrics
from benchmarks.texts import read_rows, token_counts
from benchmarks.trainer import BATCH, common_settings, grouped_settings
from benchmarks.workers import Worker, started

TRAINER, GROUPED = "Trainer, default", "Trainer, length grouping"
# Above 2,000 rows `fit` draws no texts of a label together first, which the peers do not do either.
ROWS, VALIDATION_ROWS = 2_400, 200


@contextmanager
def step_clock() -> Iterator[list[tuple[float, float]]]:
    """Watch whatever trains inside the block, by hooks that torch offers; the same for every side.

    The list takes wall and process time of the first forward in training mode and of the end of each optimiser step.
    """
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_post_hook

    times: list[tuple[float, float]] = []

    def stamp(*_: object) -> None:
        times.append((time.perf_counter(), time.process_time()))

    def began(module: torch.nn.Module, _: object) -> None:
        if module.training and torch.is_grad_enabled() and not times:
            stamp()
            first.remove()

    first = register_module_forward_pre_hook(began)
    steps = register_optimizer_step_post_hook(stamp)
    try:
        yield times
    finally:
        first.remove()
        steps.remove()


class Subject:
    """The subject of a worker: one side that trains a classifier."""

    def __init__(self, side: OurSide | SequencePeer) -> None:
        self._side = side

    def train(self, data: TaskData, seed: int) -> dict[str, float]:
        """Train once and return the seconds of the loop and the accuracy on the validation rows."""
        with step_clock() as times:
            self._side.fit(data, seed)
        if len(times) < 2:
            raise RuntimeError("expected training to step a torch.optim.Optimizer at least once; no step was seen")
        wall, cpu = (last - first for first, last in zip(times[0], times[-1], strict=True))
        right = data.score(data.validation, self._side.answers(data.validation))["accuracy"]
        return {"wall": wall, "cpu": cpu, "steps": len(times) - 1, "validation_accuracy": right}


def build(name: str, threads: int) -> Subject:
    if name == OURS:
        return Subject(OurSide(threads, "cpu"))
    settings = {TRAINER: common_settings, GROUPED: grouped_settings}[name]
    return Subject(SequencePeer(threads, "cpu", settings=settings))


def classification(train: list[dict[str, Any]], validation: list[dict[str, Any]]) -> TaskData:
    """Return rows of text and label as a task of one epoch."""
    return TaskData("texts", train, validation, [], 1, label_metrics)


def run(options: Options) -> Path:
    """Time and write the results."""
    if not (DATA / "sst2").exists():
        raise SystemExit("the fine-tuning benchmark needs SST-2 at ../shared/data/sst2, which is not there")
    train = read_rows(DATA / "sst2" / "train.jsonl.gz")[: 40 if options.quick else ROWS]
    validation = read_rows(DATA / "sst2" / "validation.jsonl.gz")[: 20 if options.quick else VALIDATION_ROWS]
    data = classification(train, validation)
    tokens = token_counts([row["text"] for row in train])
    figures: dict[str, Any] = {"absent": {}, "rows": len(train), "tokens": sum(tokens), "batch": BATCH}
    with ExitStack() as stack:
        names = options.chosen((OURS, TRAINER, GROUPED))
        workers = started(build, names, (options.threads,), stack, figures["absent"])
        for name, worker in workers.items():
            say(f"{name}: a short training to warm up")
            worker.call("train", classification(train[:64], validation[:16]), 1)
        products = stack.enter_context(Worker(MatrixProducts, options.threads))

        def once(name: str, number: int) -> dict[str, float]:
            if name == PRODUCTS:
                rows = round(BATCH * sum(tokens) / len(tokens))
                return dict(products.call("rate", rows, 0.1 if options.quick else 1.5))
            return dict(workers[name].call("train", data, 1 + number))

        rounds = interleaved([*workers, PRODUCTS], options.rounds, once, what="fine-tuning")
        figures["peak_memory"] = {name: worker.call("peak_memory") for name, worker in workers.items()}
    markdown = _summary(rounds, tokens, options, figures)
    return write_results(f"finetuning-{options.threads_suffix}", options, figures, markdown)


def _summary(
    rounds: dict[str, list[dict[str, float]]], tokens: list[int], options: Options, figures: dict[str, Any]
) -> str:
    flop = TRAINING_FACTOR * floating_point_operations(tokens)
    figures["contestants"] = {}
    rows = []
    for name in (each for each in rounds if each != PRODUCTS):
        singles = rounds[name]
        entry = timed_figures(name, rounds, tokens, flop, options.clock)
        for peer in (TRAINER, GROUPED):
            for key in ("wall", "cpu"):
                entry[f"speedup_{key}_of_{peer}"] = speedup(rounds, peer, name, key)
        figures["contestants"][name] = entry
        speedups = (f"speedup_cpu_of_{TRAINER}", f"speedup_cpu_of_{GROUPED}", f"speedup_wall_of_{GROUPED}")
        rows.append(
            [
                name,
                entry["wall"].text(),
                entry["cpu"].text(),
                entry["tokens_per_second"].text(0),
                *(entry[key].ratio() if entry[key] else "" for key in speedups),
                f"{entry['fraction_of_products'].median:.2f}",
                f"{singles[0]['steps']:.0f}",
                f"{sum(single['validation_accuracy'] for single in singles) / len(singles):.3f}",
                f"{figures['peak_memory'][name] / 2**20:,.0f}",
            ]
        )
    header = (
        "contestant", "loop wall s", "loop CPU s", "real tokens/s", f"times {TRAINER} (CPU)", f"times {GROUPED} (CPU)",
        f"times {GROUPED} (wall)", "of the matrix-product rate", "steps", "validation accuracy", "peak MiB",
    )  # fmt: skip
    heading = f"SST-2, {figures['rows']:,} rows, {figures['tokens']:,} real tokens, one epoch, batch {BATCH}."
    return f"{heading}\n\n{table(header, rows)}"
