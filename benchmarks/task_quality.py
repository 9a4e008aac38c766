"""The quality table of the tasks besides text classification, and one run of any side."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.harness import Options, table
from benchmarks.kept import stated_origin
from benchmarks.our_side import OURS, OURS_DEFAULTS, OurSide
from benchmarks.spread import lead, spread
from benchmarks.stsb_causes import CAUSES, OURS_BEFORE
from benchmarks.task_data import TaskData, load
from benchmarks.task_peers import PEERS, QA_LENGTH
from benchmarks.trainer_peers import BATCH, LEARNING_RATE
from benchmarks.workers import Worker

STSB_CAUSES = "stsb_causes"
# Where ours trains otherwise by default: for three epochs, and in batches of 16 up to 2,000 rows.
OTHER_DEFAULTS = ("wnut17", "squad_v1", "squad_v2", "squad_v2_halves", "subjqa")
CHOSEN_ON_TEST = {
    "sick": "that the latest epoch within a standard error is kept was decided on SICK's test rows (docs/LOG.md), so "
    "that SICK confirms nothing of it",
}

Run = Mapping[str, Any]


def sides_of(name: str) -> dict[str, Callable[[int, str], Any]]:
    """Return who is trained on a data set: from names to makers that take threads and device."""
    if name == STSB_CAUSES:
        return CAUSES
    ours: dict[str, Callable[[int, str], Any]] = {OURS: OurSide}
    if name in OTHER_DEFAULTS:
        ours[OURS_DEFAULTS] = lambda threads, device: OurSide(threads, device, defaults=True)
    return {**ours, **PEERS[load(name, quick=True).kind]}


class Subject:
    """What a worker serves: one side, trained and measured."""

    def __init__(self, name: str, side: str, threads: int, device: str) -> None:
        self._name, self._side = name, sides_of(name)[side](threads, device)

    def run(self, seed: int, quick: bool) -> dict[str, Any]:
        """Train once, and the figures on the test rows."""
        return measured(self._side, load(self._name, quick=quick), seed)


def measured(side: Any, data: TaskData, seed: int) -> dict[str, Any]:  # noqa: ANN401
    """Train a side once; the figures on the test rows, the seconds and the rows."""
    began = time.perf_counter()
    side.fit(data, seed)
    trained = time.perf_counter()
    answers = side.all_answers(data.test) if hasattr(side, "all_answers") else {"": side.answers(data.test)}
    figures = {name: data.score(data.test, each) for name, each in answers.items()}
    return {
        "figures": figures.pop(""),
        **({"readings": figures} if figures else {}),
        "fit_seconds": trained - began,
        "test_seconds": time.perf_counter() - trained,
        "rows": {"train": len(data.train), "validation": len(data.validation), "test": len(data.test)},
        "epochs": data.epochs,
        "notes": getattr(side, "notes", {}),
    }


def single(name: str, seed: int, side: str, options: Options) -> dict[str, Any]:
    """Train and test once, in a process of its own."""
    with Worker(Subject, name, side, options.threads, options.device) as worker:
        return dict(worker.call("run", seed, options.quick))


def with_readings(runs: Sequence[Run]) -> list[Run]:
    """Return the runs, and after each the other readings of the same outputs as runs of their own."""
    found: list[Run] = []
    for run in runs:
        found.append(run)
        for name, figures in run.get("readings", {}).items():
            found.append({**run, "side": f"{run['side']}, {name}", "figures": figures})
    return found


def tasks_table(entries: Sequence[Run], options: Options) -> str:
    """Return mean and spread of each side over its seeds, and ours minus it over those of both."""
    rows = []
    for name in dict.fromkeys(entry["dataset"] for entry in entries):
        of_data = with_readings([entry for entry in entries if entry["dataset"] == name])
        reference = _figures(of_data, OURS_BEFORE if name == STSB_CAUSES else OURS)
        for side in dict.fromkeys(entry["side"] for entry in of_data):
            runs = [entry for entry in of_data if entry["side"] == side]
            first, *others = runs[0]["figures"]
            own = _figures(of_data, side)
            mark = " *" if name in CHOSEN_ON_TEST else ""
            rows.append(
                [
                    f"{name}{mark} ({runs[0]['rows']['train']:,} rows, {runs[0]['epochs']} epochs)",
                    side,
                    f"{first} {spread(list(own.values()))}",
                    str(len(own)),
                    lead(reference, own) if own != reference else "",
                    ", ".join(f"{each} {spread([run['figures'][each] for run in runs])}" for each in others),
                ]
            )
    header = ("data", "side", "mean and deviation", "seeds", "ours minus it", "also")
    return f"{_note(entries, options)}\n\n{table(header, rows)}"


def _note(entries: Sequence[Run], options: Options) -> str:
    ours = [entry for entry in entries if entry["side"].startswith(("bothways", "ours"))]
    others = [entry for entry in entries if entry not in ours]
    chosen = [text for name, text in CHOSEN_ON_TEST.items() if any(entry["dataset"] == name for entry in entries)]
    starred = f" *: {'; '.join(chosen)}." if chosen else ""
    return (
        f"Batch {BATCH}, learning rate {LEARNING_RATE:g}, linear with 10 % warm-up, weight decay 0.01, device "
        f"{options.device}; both sides keep the latest epoch within a standard error of the best on the validation "
        "rows. The peer is transformers' Trainer with rows in random order; of embeddings (stsb_bi) "
        "sentence-transformers with CoSENT. Its taggers' outputs are read word by word, as transformers' example does, "
        "and as the best valid sequence of tags; its threshold of no answer is the best of the validation rows. Of "
        f"questions with several answers ours learns all, the peer the first, in windows of {QA_LENGTH} tokens, as in "
        "transformers' example. No training: cosines of the embedder as it comes, which a training should beat; "
        "embedders of either side go back to it (epoch 0) where no epoch is as good on the validation rows. A mean "
        "difference not larger than its deviation over the seeds is a tie. stsb_causes: ours as published minus each "
        f"(`benchmarks/stsb_causes.py`). {stated_origin(ours, others)}{starred}"
    )


def _figures(runs: Sequence[Run], side: str) -> dict[int, float]:
    """A side's first figure for each seed."""
    return {run["seed"]: next(iter(run["figures"].values())) for run in runs if run["side"] == side}
