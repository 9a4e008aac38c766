"""The peers of the small-data benchmark that train an encoder: transformers' Trainer and SetFit."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, isnan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.peers import SequencePeer
from benchmarks.tasks import SCORED, Row, TaskData
from benchmarks.trainer import WARM_UP, WEIGHT_DECAY, quiet_settings
from benchmarks.workers import installed, set_torch_threads

HELD_OUT = 0.1
# Epochs to choose from, by the largest number of training rows that they are tried with.
EPOCHS_TRIED: dict[float, tuple[int, ...]] = {500: (3, 10, 30), 2_000: (3, 10), float("inf"): (3, 5)}
# Two texts of 20 pairs for each training text: SetFit's default before its version 1 (Tunstall et al. 2022).
SETFIT_BATCH, SETFIT_ITERATIONS = 16, 20


class TrainerAtDefaults:
    """transformers' Trainer as it comes: batches of 8, 5e-5, three epochs."""

    standardises = False

    def __init__(self, threads: int, device: str, checkpoint: Path) -> None:
        self._arguments = threads, device, checkpoint
        self._peer: Any = None
        self.notes: dict[str, Any] = {}

    def settings(self, epochs: int) -> dict[str, Any]:  # noqa: ARG002
        return {}

    def fit(self, data: TaskData, seed: int) -> None:
        self._peer = SequencePeer(*self._arguments, self.settings)
        self._peer.standardises = self.standardises
        self._peer.fit(data, seed)

    def answers(self, rows: Sequence[Row]) -> list[Any]:
        return list(self._peer.answers(rows))


class TrainerTuned(TrainerAtDefaults):
    """transformers' Trainer with the epochs that rows held out as by ours choose, then trained on all rows.

    It has our weight decay and warm-up, and learns standardised numbers. Of equally good numbers of epochs the largest
    is taken: few rows want long training (Mosbach et al. 2021, arXiv:2006.04884).
    """

    standardises = True

    def settings(self, epochs: int) -> dict[str, Any]:
        return {"num_train_epochs": epochs, "weight_decay": WEIGHT_DECAY, "warmup_steps": WARM_UP}

    def fit(self, data: TaskData, seed: int) -> None:
        learnt, held = held_out(data, seed)
        tried = {}
        for epochs in next(epochs for most, epochs in EPOCHS_TRIED.items() if len(data.train) <= most):
            super().fit(replace(data, train=learnt, epochs=epochs), seed)
            figure = next(iter(data.score(held, self.answers(held)).values()))
            tried[epochs] = 0.0 if isnan(figure) else figure
        best = max(tried, key=lambda epochs: (tried[epochs], epochs))
        super().fit(replace(data, epochs=best), seed)
        self.notes = {"epochs": best, "tried": {str(epochs): figure for epochs, figure in tried.items()}}


class SetFit:
    """SetFit at its defaults; where those need too many updates, with the number of pairs that it had before them."""

    def __init__(self, threads: int, device: str, checkpoint: Path, most_updates: int) -> None:
        setfit = installed("setfit", "; README.md says how it is installed")
        set_torch_threads(threads)
        self._package, self._device, self._checkpoint = setfit, device, checkpoint
        self._most_updates = most_updates
        self._model: Any = None
        self.notes: dict[str, Any] = {}

    def fit(self, data: TaskData, seed: int) -> None:
        import datasets

        labels = sorted({row["label"] for row in data.train})
        settings = setfit_settings([row["label"] for row in data.train], self._most_updates)
        if settings is None:
            raise ValueError("expected rows whose pairs need no more updates than are allowed")
        self.notes = dict(settings)
        self._model = self._package.SetFitModel.from_pretrained(
            str(self._checkpoint), labels=labels, device=self._device
        )
        datasets.disable_progress_bars()
        with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as folder:
            quiet = {name: value for name, value in quiet_settings(folder, seed).items() if name != "disable_tqdm"}
            arguments = self._package.TrainingArguments(**quiet, show_progress_bar=False, **settings)
            rows = datasets.Dataset.from_list(data.train)
            self._package.Trainer(model=self._model, args=arguments, train_dataset=rows).train()

    def answers(self, rows: Sequence[Row]) -> list[dict[str, float]]:
        found_BC = self._model.predict_proba([row["text"] for row in rows], as_numpy=True, show_progress_bar=False)
        return [dict(zip(self._model.labels, each, strict=True)) for each in found_BC.tolist()]


def setfit_settings(labels: Sequence[str], most_updates: int) -> dict[str, int] | None:
    """Return SetFit's settings that need no more updates than this, or None.

    By default it draws every pair of texts, each with itself too, and the rarer of like and unlike pairs as often as
    the others.
    """
    count = len(labels)
    like = sum(of_label * (of_label + 1) // 2 for of_label in np.unique(labels, return_counts=True)[1].tolist())
    pairs = 2 * max(like, count * (count + 1) // 2 - like)
    if ceil(pairs / SETFIT_BATCH) <= most_updates:
        return {}
    before = ceil(2 * SETFIT_ITERATIONS * count / SETFIT_BATCH)
    return {"num_iterations": SETFIT_ITERATIONS} if before <= most_updates else None


def held_out(data: TaskData, seed: int) -> tuple[list[Row], list[Row]]:
    """Return the rows to learn from and those to choose by, drawn as `fit` of ours draws them."""
    from bothways.tasks.heads.splits import hold_out

    scored = data.kind in SCORED
    examples = [SimpleNamespace(label=row["score" if scored else "label"], row=row) for row in data.train]
    names: Callable[[Any], tuple[str, ...]] = (lambda _: ()) if scored else (lambda label: (label,))
    parts = hold_out(examples, HELD_OUT, seed, names, group=lambda each: each.row.get("text", each.row.get("text_a")))
    learnt, held = ([each.row for each in part] for part in parts)
    return learnt, held
