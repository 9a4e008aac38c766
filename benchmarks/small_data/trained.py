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
SETFIT_BATCH, SETFIT_MOST = 16, 3_000  # pairs of an update, and updates


class TrainerTuned:
    """transformers' Trainer with the epochs that rows held out as by ours choose, then trained on all rows.

    It has our weight decay and warm-up. Of equally good numbers of epochs the largest is taken: few rows want long
    training (Mosbach et al. 2021, arXiv:2006.04884).
    """

    def __init__(self, threads: int, device: str, checkpoint: Path) -> None:
        self._arguments = threads, device, checkpoint
        self._peer: Any = None
        self.notes: dict[str, Any] = {}

    def fit(self, data: TaskData, seed: int) -> None:
        learnt, held = held_out(data, seed)
        tried = {}
        for epochs in next(epochs for most, epochs in EPOCHS_TRIED.items() if len(data.train) <= most):
            self._train(replace(data, train=learnt, epochs=epochs), seed)
            figure = next(iter(data.score(held, self.answers(held)).values()))
            tried[epochs] = 0.0 if isnan(figure) else figure
        best = max(tried, key=lambda epochs: (tried[epochs], epochs))
        self._train(replace(data, epochs=best), seed)
        self.notes = {"epochs": best, "tried": {str(epochs): figure for epochs, figure in tried.items()}}

    def _train(self, data: TaskData, seed: int) -> None:
        settings = {"num_train_epochs": data.epochs, "weight_decay": WEIGHT_DECAY, "warmup_steps": WARM_UP}
        self._peer = SequencePeer(*self._arguments, lambda _: settings)
        self._peer.fit(data, seed)

    def answers(self, rows: Sequence[Row]) -> list[Any]:
        return list(self._peer.answers(rows))


class SetFit:
    """SetFit at its defaults."""

    def __init__(self, threads: int, device: str, checkpoint: Path) -> None:
        setfit = installed("setfit", "; README.md says how it is installed")
        set_torch_threads(threads)
        self._package, self._device, self._checkpoint = setfit, device, checkpoint
        self._model: Any = None
        self.notes: dict[str, Any] = {}

    def fit(self, data: TaskData, seed: int) -> None:
        import datasets

        labels = sorted({row["label"] for row in data.train})
        self._model = self._package.SetFitModel.from_pretrained(
            str(self._checkpoint), labels=labels, device=self._device
        )
        datasets.disable_progress_bars()
        with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as folder:
            quiet = {name: value for name, value in quiet_settings(folder, seed).items() if name != "disable_tqdm"}
            arguments = self._package.TrainingArguments(**quiet, show_progress_bar=False)
            rows = datasets.Dataset.from_list(data.train)
            self._package.Trainer(model=self._model, args=arguments, train_dataset=rows).train()

    def answers(self, rows: Sequence[Row]) -> list[dict[str, float]]:
        found_BC = self._model.predict_proba([row["text"] for row in rows], as_numpy=True, show_progress_bar=False)
        return [dict(zip(self._model.labels, each, strict=True)) for each in found_BC.tolist()]


def setfit_updates(labels: Sequence[str]) -> int:
    """Return the updates that SetFit's defaults need.

    It draws every pair of texts, each with itself too, and the rarer of like and unlike pairs as often as the others.
    """
    like = sum(of_label * (of_label + 1) // 2 for of_label in np.unique(labels, return_counts=True)[1].tolist())
    return ceil(2 * max(like, len(labels) * (len(labels) + 1) // 2 - like) / SETFIT_BATCH)


def held_out(data: TaskData, seed: int) -> tuple[list[Row], list[Row]]:
    """Return the rows to learn from and those to choose by, drawn as `fit` of ours draws them."""
    from bothways.tasks.heads.splits import hold_out

    scored = data.kind == SCORED
    examples = [SimpleNamespace(label=row["score" if scored else "label"], row=row) for row in data.train]
    names: Callable[[Any], tuple[str, ...]] = (lambda _: ()) if scored else (lambda label: (label,))
    parts = hold_out(examples, HELD_OUT, seed, names, group=lambda each: each.row.get("text", each.row.get("text_a")))
    learnt, held = ([each.row for each in part] for part in parts)
    return learnt, held
