"""The two sides of the training benchmarks: our classifier and transformers' Trainer, on the same rows.

Both sides: MiniLM, batch 32, AdamW, linear schedule with 10 % warm-up, the same learning rate and epochs. "Length
grouping" is the Trainer's ``train_sampling_strategy="group_by_length"``.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from benchmarks import trust
from benchmarks.harness import MODEL
from benchmarks.task_data import TaskData, label_accuracy
from benchmarks.trainer_peers import BATCH, LEARNING_RATE, SequencePeer, common_settings, grouped_settings

OURS, TRAINER, GROUPED = "bothways", "Trainer, default", "Trainer, length grouping"

Row = dict[str, str]


@dataclass(frozen=True)
class Data:
    """Rows of ``text`` and ``label``; ``outside`` are test texts that have none of the labels."""

    train: list[Row]
    validation: list[Row]
    test: list[Row] = field(default_factory=list)
    outside: list[Row] = field(default_factory=list)

    def labels(self) -> list[str]:
        """The label names, sorted."""
        return sorted({row["label"] for row in self.train})


@dataclass(frozen=True)
class Probabilities:
    """Class probabilities [rows, classes] of the rows that were asked for, as the model gives them and calibrated."""

    labels: list[str]
    raw: np.ndarray
    calibrated: np.ndarray | None


class Side(Protocol):
    """A classifier that can be trained and asked."""

    def fit(self, data: Data, epochs: int, seed: int) -> None:
        """Train a fresh model."""

    def probabilities(self, texts: Sequence[str]) -> Probabilities:
        """Ask the trained model."""

    def trust(self, data: Data) -> dict[str, float] | None:
        """What it says of its own answers, judged on the test rows; None where it says nothing."""


class Bothways:
    """This package, as a user calls it."""

    def __init__(self, threads: int, device: str) -> None:
        import torch

        torch.set_num_threads(threads)
        self._device = device
        self._classifier: Any = None

    def fit(self, data: Data, epochs: int, seed: int) -> None:
        """Train a fresh classifier; it fits its temperature on the validation rows."""
        from bothways import TextClassifier

        self._classifier = TextClassifier.from_pretrained(MODEL, device=self._device)
        self._classifier.fit(
            data.train,
            validation=data.validation,
            text="text",
            label="label",
            epochs=epochs,
            learning_rate=LEARNING_RATE,
            batch_size=BATCH,
            seed=seed,
        )

    def probabilities(self, texts: Sequence[str]) -> Probabilities:
        """Calibrated probabilities, and those of temperature 1."""
        calibrated = self._classifier.predict(list(texts))
        raw = self._classifier.predict(list(texts), calibrated=False)
        labels = sorted(calibrated[0].probabilities)
        return Probabilities(labels, _matrix(raw, labels), _matrix(calibrated, labels))

    def trust(self, data: Data) -> dict[str, float]:
        """Coverage of the label sets, and how foreign texts are told apart, on the test rows."""
        inside, outside = (
            trust.stated(self._classifier, [row["text"] for row in rows]) for rows in (data.test, data.outside)
        )
        return trust.figures(inside, [row["label"] for row in data.test], outside)


class Trainer:
    """transformers' Trainer."""

    def __init__(self, threads: int, device: str, *, grouped: bool) -> None:
        self._peer = SequencePeer(threads, device, settings=grouped_settings if grouped else common_settings)

    def fit(self, data: Data, epochs: int, seed: int) -> None:
        """Train a fresh model; the rows are tokenised before, as the documentation does with ``map``."""
        self._peer.fit(TaskData("texts", data.train, data.validation, data.test, epochs, label_accuracy), seed)

    def probabilities(self, texts: Sequence[str]) -> Probabilities:
        """Softmax of the logits, in the order of the texts."""
        return Probabilities(self._peer.labels, self._peer.probabilities([{"text": text} for text in texts]), None)

    def trust(self, _: Data) -> None:
        """It says nothing."""


@dataclass
class StepClock:
    """When training began and when each optimiser step ended, by hooks that torch offers; the same for every side.

    Attributes:
        wall: ``perf_counter`` at the first module's forward in training mode, then after each step.
        cpu: ``process_time`` at the same moments.
    """

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def stamp(self) -> None:
        """Note the time."""
        self.wall.append(time.perf_counter())
        self.cpu.append(time.process_time())


@contextmanager
def step_clock() -> Iterator[StepClock]:
    """Watch whatever trains inside the block."""
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_post_hook

    clock = StepClock()

    def began(module: torch.nn.Module, _: object) -> None:
        if module.training and torch.is_grad_enabled() and not clock.wall:
            clock.stamp()
            first.remove()

    def stepped(*_: object) -> None:
        clock.stamp()

    first = register_module_forward_pre_hook(began)
    steps = register_optimizer_step_post_hook(stepped)
    try:
        yield clock
    finally:
        first.remove()
        steps.remove()


class Subject:
    """What a worker of the training benchmarks serves."""

    def __init__(self, side: Side) -> None:
        self._side = side

    def train(self, data: Data, epochs: int, seed: int) -> dict[str, float]:
        """Train once; seconds from the first forward to the end of the last step, and what the whole call took."""
        began = time.perf_counter()
        with step_clock() as clock:
            self._side.fit(data, epochs, seed)
        if len(clock.wall) < 2:
            raise RuntimeError("expected training to step a torch.optim.Optimizer at least once; no step was seen")
        texts = [row["text"] for row in data.validation]
        return {
            "wall": clock.wall[-1] - clock.wall[0],
            "cpu": clock.cpu[-1] - clock.cpu[0],
            "steps": len(clock.wall) - 1,
            "fit_wall": time.perf_counter() - began,
            "validation_accuracy": accuracy(self._side.probabilities(texts), data.validation),
        }

    def probabilities(self, texts: Sequence[str]) -> Probabilities:
        """Ask the model that was trained last."""
        return self._side.probabilities(texts)

    def trust(self, data: Data) -> dict[str, float] | None:
        """What the model that was trained last says of its own answers."""
        return self._side.trust(data)


def build(name: str, threads: int, device: str) -> Subject:
    """The subject of a worker."""
    if name == OURS:
        return Subject(Bothways(threads, device))
    if name in (TRAINER, GROUPED):
        return Subject(Trainer(threads, device, grouped=name == GROUPED))
    raise ValueError(f"expected one of {(OURS, TRAINER, GROUPED)}, got {name!r}")


def accuracy(found: Probabilities, rows: Sequence[Row]) -> float:
    """Share of rows whose most probable label is theirs."""
    best = found.raw.argmax(1)
    return float(np.mean([found.labels[index] == row["label"] for index, row in zip(best, rows, strict=True)]))


def expected_calibration_error(
    probabilities: np.ndarray, labels: Sequence[str], rows: Sequence[Row], bins: int = 15
) -> float:
    """Mean gap between confidence and accuracy over bins of equally many rows, weighted by their size.

    Naeini et al. 2015, with the equal-mass bins of Nguyen and O'Connor 2015. Written apart from the package's own, so
    that both sides are judged by something that neither of them ships.
    """
    right = np.array([labels[best] == row["label"] for best, row in zip(probabilities.argmax(1), rows, strict=True)])
    return _binned_gap(probabilities.max(1), right, bins)


def error_of_chance(probabilities: np.ndarray, bins: int = 15, draws: int = 20) -> float:
    """The mean calibration error that these confidences would show if each were right exactly as often as it says."""
    confidence, generator = probabilities.max(1), np.random.default_rng(0)
    drawn = (generator.random(len(confidence)) < confidence for _ in range(draws))
    return float(np.mean([_binned_gap(confidence, right, bins) for right in drawn]))


def _binned_gap(confidence: np.ndarray, right: np.ndarray, bins: int) -> float:
    order = np.argsort(confidence, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    return float(sum(len(part) * abs(confidence[part].mean() - right[part].mean()) for part in parts) / len(order))


def _matrix(predictions: Sequence[Any], labels: Sequence[str]) -> np.ndarray:
    return np.array([[prediction.probabilities[label] for label in labels] for prediction in predictions])
