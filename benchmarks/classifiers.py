"""The two sides of the training benchmarks: our classifier and transformers' Trainer, on the same rows.

Both sides: MiniLM, batch 32, AdamW, linear schedule with 10 % warm-up, the same learning rate, weight decay and epochs,
the same choice of the epoch to keep, probabilities calibrated on the validation rows. "Length grouping" is the
Trainer's ``train_sampling_strategy="group_by_length"``, for where speed is measured.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from benchmarks import trust
from benchmarks.our_side import OURS, OURS_DEFAULTS, OurSide
from benchmarks.task_data import TaskData, label_accuracy
from benchmarks.trainer_peers import SequencePeer, common_settings, grouped_settings

TRAINER, GROUPED = "Trainer, default", "Trainer, length grouping"

Row = dict[str, str]


@dataclass(frozen=True)
class Data:
    """Rows of ``text`` and ``label``; ``foreign`` are texts that have none of the labels, by where they are from."""

    train: list[Row]
    validation: list[Row]
    test: list[Row] = field(default_factory=list)
    foreign: dict[str, list[str]] = field(default_factory=dict)

    def task(self, epochs: int) -> TaskData:
        """The rows as those of a task."""
        return TaskData("texts", self.train, self.validation, self.test, epochs, label_accuracy)


@dataclass(frozen=True)
class Probabilities:
    """Class probabilities [rows, classes] of the rows that were asked for, as the model gives them and calibrated."""

    labels: list[str]
    raw: np.ndarray
    calibrated: np.ndarray


class Side(Protocol):
    """A classifier that can be trained and asked."""

    def fit(self, data: Data, epochs: int, seed: int) -> None:
        """Train a fresh model."""

    def probabilities(self, texts: Sequence[str]) -> Probabilities:
        """Ask the trained model."""

    def trust(self, data: Data) -> dict[str, Any]:
        """Coverage of label sets and detection of foreign texts on the test rows; empty where it has neither."""


class Bothways:
    """This package, as a user calls it."""

    def __init__(self, threads: int, device: str, *, defaults: bool = False) -> None:
        self._side = OurSide(threads, device, defaults=defaults)

    def fit(self, data: Data, epochs: int, seed: int) -> None:
        """Train a fresh classifier; it is calibrated on the validation rows."""
        self._side.fit(data.task(epochs), seed)

    def probabilities(self, texts: Sequence[str]) -> Probabilities:
        """Calibrated probabilities, and those of temperature 1."""
        calibrated = self._side.model.predict(list(texts))
        raw = self._side.model.predict(list(texts), calibrated=False)
        labels = sorted(calibrated[0].probabilities)
        return Probabilities(labels, _matrix(raw, labels), _matrix(calibrated, labels))

    def trust(self, data: Data) -> dict[str, Any]:
        """Coverage of the label sets, and how foreign texts are detected, on the test rows."""
        texts = {part: [row["text"] for row in getattr(data, part)] for part in ("train", "validation", "test")}
        stated = trust.stated(self._side.model, texts["test"])
        return {
            "trust": trust.coverage(stated, [row["label"] for row in data.test]),
            "out_of_domain": trust.detection(self._side.model, texts, data.foreign),
        }


class Trainer:
    """transformers' Trainer, and a temperature for its probabilities."""

    def __init__(self, threads: int, device: str, *, grouped: bool) -> None:
        self._peer = SequencePeer(threads, device, settings=grouped_settings if grouped else common_settings)
        self._temperature = 1.0

    def fit(self, data: Data, epochs: int, seed: int) -> None:
        """Train a fresh model; the rows are tokenised before, as the documentation does with ``map``."""
        self._peer.fit(data.task(epochs), seed)
        truth = np.array([self._peer.labels.index(row["label"]) for row in data.validation])
        self._temperature = least_temperature(self._peer.logits(data.validation), truth)

    def probabilities(self, texts: Sequence[str]) -> Probabilities:
        """Softmax of the logits as they are and by the temperature, in the order of the texts."""
        logits_NC = self._peer.logits([{"text": text} for text in texts])
        return Probabilities(
            self._peer.labels, softmax(logits_NC, axis=1), softmax(logits_NC / self._temperature, axis=1)
        )

    def trust(self, _: Data) -> dict[str, Any]:
        """It offers nothing of the kind."""
        return {}


def least_temperature(logits_NC: np.ndarray, truth_N: np.ndarray) -> float:
    """Return the temperature of least negative log-likelihood (Guo et al. 2017, arXiv:1706.04599)."""

    def nll(log_temperature: float) -> float:
        scores_NC = log_softmax(logits_NC / np.exp(log_temperature), axis=1)
        return -float(scores_NC[np.arange(len(truth_N)), truth_N].mean())

    return float(np.exp(minimize_scalar(nll, bounds=(-3, 3), method="bounded").x))


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

    def trust(self, data: Data) -> dict[str, Any]:
        """Coverage and detection of the model that was trained last."""
        return self._side.trust(data)


def build(name: str, threads: int, device: str) -> Subject:
    """The subject of a worker."""
    if name in (OURS, OURS_DEFAULTS):
        return Subject(Bothways(threads, device, defaults=name == OURS_DEFAULTS))
    if name in (TRAINER, GROUPED):
        return Subject(Trainer(threads, device, grouped=name == GROUPED))
    raise ValueError(f"expected one of {(OURS, OURS_DEFAULTS, TRAINER, GROUPED)}, got {name!r}")


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
