"""Peak memory of inference and of fine-tuning beside the peers, at equal tokens in a batch and as they usually are.

One fresh process for each figure: it loads its library and the model, forgets the peak of that, and does the work. What
is said of each is the most resident memory of the work above what was resident before it, and the whole.

Inference embeds some of the sentences and passages of the speed benchmark with MiniLM. Fine-tuning takes one epoch of a
classifier on some of them, with labels that mean nothing, in updates of 32 rows; "at once" are the rows that go through
the model together; gradients are accumulated over an update. Ours takes at most 1,024 tokens at once. The model of a
fine-tuning is loaded by it, so compare the whole. Its time is no matter here: ours draws texts of a label together
first, and is calibrated afterwards.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import contestants
from benchmarks.classifiers import Bothways, Data, Subject, Trainer
from benchmarks.harness import Options, say, table
from benchmarks.our_side import OURS
from benchmarks.texts import Workload, workloads
from benchmarks.trainer_peers import BATCH, common_settings, grouped_settings
from benchmarks.workers import AbsentPeerError, Worker

MIB = 2**20
TUNED = "transformers, sorted by tokens"
# Rows at once: the default, and as the trial of the speed benchmark chose them.
INFERENCE: dict[str, dict[str, tuple[int, ...]]] = {
    "sentences": {OURS: (0,), contestants.BASELINE: (32,), TUNED: (16,)},
    "passages": {OURS: (0,), contestants.BASELINE: (32,), TUNED: (8,)},
}
CHECKPOINTED = "activation checkpointing"
TEXTS = {"sentences": 600, "passages": 150}
ROWS, VALIDATION_ROWS = 96, 32


class Ours(Bothways):
    """Our classifier, with or without activation checkpointing."""

    def __init__(self, threads: int, *, lean: bool) -> None:
        super().__init__(threads, "cpu")
        self._side.more = {"activation_checkpointing": lean}


class Peer(Trainer):
    """transformers' Trainer with so many rows at once."""

    def __init__(self, threads: int, *, grouped: bool, rows: int, lean: bool) -> None:
        super().__init__(threads, "cpu", grouped=grouped)
        usual: Callable[[int], dict[str, Any]] = grouped_settings if grouped else common_settings

        def settings(epochs: int) -> dict[str, Any]:
            accumulated = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": BATCH // rows}
            return {**usual(epochs), **accumulated, "gradient_checkpointing": lean}

        self._peer.settings = settings


# Rows at once; ours decides by tokens. Four passages are about its 1,024.
SIDES: dict[str, dict[str, tuple[int, ...]]] = {
    "bothways": {"sentences": (0,), "passages": (0,)},
    f"bothways, {CHECKPOINTED}": {"sentences": (0,), "passages": (0,)},
    "Trainer, default": {"sentences": (32,), "passages": (32,)},
    "Trainer, length grouping": {"sentences": (32,), "passages": (32, 4)},
    f"Trainer, length grouping, {CHECKPOINTED}": {"sentences": (32,), "passages": (4,)},
}


def build(name: str, rows: int, threads: int) -> Subject:
    """Return the subject of a worker that trains."""
    lean = name.endswith(CHECKPOINTED)
    if name.startswith(OURS):
        return Subject(Ours(threads, lean=lean))
    return Subject(Peer(threads, grouped="grouping" in name, rows=rows, lean=lean))


def measured(options: Options) -> tuple[dict[str, Any], str]:
    """Return the figures of both kinds of work, and their tables."""
    loads = workloads(quick=options.quick)
    figures: dict[str, Any] = {"inference": [], "training": []}
    for load in loads:
        for name, batches in INFERENCE[load.name].items():
            figures["inference"] += [_inference(load, name, batch, options) for batch in batches]
        for name, rows in SIDES.items():
            figures["training"] += [_training(load, name, each, options) for each in rows[load.name]]
    header = ("texts", "contestant", "rows at once", "loaded, MiB", "above it, MiB", "peak, MiB", "CPU s")
    tables = (table(header, [_row(each) for each in figures[kind] if each]) for kind in ("inference", "training"))
    first, second = tables
    return figures, f"## Inference\n\n{first}\n\n## Fine-tuning\n\n{second}"


def _inference(load: Workload, name: str, batch: int, options: Options) -> dict[str, Any]:
    say(f"inference: {load.name}, {name}, {batch or 'its own'} rows at once")
    told = (batch,) if name in contestants.TUNED else ()
    try:
        with Worker(contestants.build, name, options.threads, Path()) as worker:
            worker.call("keep", load.name, load.texts[: TEXTS[load.name]])
            return _peak(worker, load, name, batch, "embed", load.name, *told)
    except AbsentPeerError as error:
        say(str(error))
        return {}


def _training(load: Workload, name: str, rows: int, options: Options) -> dict[str, Any]:
    say(f"fine-tuning: {load.name}, {name}, {rows or 'its own'} rows at once")
    texts = [{"text": text, "label": "ab"[number % 2]} for number, text in enumerate(load.texts)]
    count = len(texts) // 2 if options.quick else ROWS
    data = Data(texts[:count], texts[count : count + VALIDATION_ROWS])
    try:
        with Worker(build, name, rows, options.threads) as worker:
            return _peak(worker, load, name, rows, "train", data, 1, 1)
    except AbsentPeerError as error:
        say(str(error))
        return {}


def _peak(worker: Worker, load: Workload, name: str, rows: int, *call: Any) -> dict[str, Any]:  # noqa: ANN401
    loaded = worker.call("resident_memory")
    worker.call("forget_peak")
    times = worker.timed(*call)
    peak = worker.call("peak_memory")
    return {"texts": load.name, "name": name, "rows": rows, "loaded": loaded, "peak": peak, "cpu": times["cpu"]}


def _row(found: dict[str, Any]) -> list[str]:
    above = found["peak"] - found["loaded"]
    sizes = (f"{size / MIB:,.0f}" for size in (found["loaded"], above, found["peak"]))
    return [found["texts"], found["name"], str(found["rows"] or "by tokens"), *sizes, f"{found['cpu']:,.1f}"]
