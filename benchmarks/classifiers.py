"""The two sides of the training benchmarks: our classifier and transformers' Trainer, on the same rows.

Both sides: MiniLM, batch 32, AdamW, linear schedule with 10 % warm-up, the same learning rate and epochs. The Trainer
is used as its documentation shows (``DataCollatorWithPadding``); "length grouping" is its
``train_sampling_strategy="group_by_length"`` (``group_by_length=True`` before version 5). Its predictions are made by
a plain loop here, because its ``predict`` returns the rows out of order when lengths are grouped.
"""

import dataclasses
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from benchmarks import trust
from benchmarks.harness import MODEL, minilm_folder
from benchmarks.texts import MAX_TOKENS
from benchmarks.workers import AbsentPeerError

BATCH, LEARNING_RATE, WARM_UP = 32, 1e-4, 0.1
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
        try:
            import accelerate  # noqa: F401
            import transformers
        except ImportError as error:
            raise AbsentPeerError(str(error)) from error
        import torch

        torch.set_num_threads(threads)
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self._grouped = grouped
        self._device = device
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_folder(), model_max_length=MAX_TOKENS)
        self._labels: list[str] = []
        self._model: Any = None

    def fit(self, data: Data, epochs: int, seed: int) -> None:
        """Train a fresh model; the rows are tokenised before, as the documentation does with ``map``."""
        import transformers

        self._labels = data.labels()
        transformers.set_seed(seed)
        self._model = transformers.AutoModelForSequenceClassification.from_pretrained(
            minilm_folder(), num_labels=len(self._labels)
        )
        ids = self._tokenizer([row["text"] for row in data.train], truncation=True)["input_ids"]
        rows = [
            {"input_ids": sequence, "attention_mask": [1] * len(sequence), "labels": self._labels.index(row["label"])}
            for sequence, row in zip(ids, data.train, strict=True)
        ]
        with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as folder:
            trainer = transformers.Trainer(
                model=self._model,
                args=trainer_arguments(folder, epochs, seed, self._device, grouped=self._grouped),
                train_dataset=rows,
                data_collator=transformers.DataCollatorWithPadding(self._tokenizer),
                processing_class=self._tokenizer,
            )
            trainer.remove_callback(transformers.PrinterCallback)
            trainer.train()

    def probabilities(self, texts: Sequence[str]) -> Probabilities:
        """Softmax of the logits, in the order of the texts."""
        import torch

        ids = self._tokenizer(list(texts), truncation=True)["input_ids"]
        order = sorted(range(len(ids)), key=lambda row: -len(ids[row]))
        found = np.empty((len(ids), len(self._labels)))
        self._model.eval()
        with torch.inference_mode():
            for start in range(0, len(order), BATCH):
                rows = order[start : start + BATCH]
                batch = self._tokenizer.pad({"input_ids": [ids[row] for row in rows]}, return_tensors="pt")
                logits_BC = self._model(**batch.to(self._model.device)).logits
                found[rows] = logits_BC.double().softmax(-1).cpu().numpy()
        return Probabilities(self._labels, found, None)

    def trust(self, _: Data) -> None:
        """It says nothing."""


def trainer_arguments(folder: str, epochs: int, seed: int, device: str, *, grouped: bool) -> Any:  # noqa: ANN401
    """The settings of transformers' Trainer."""
    import transformers

    known = {entry.name for entry in dataclasses.fields(transformers.TrainingArguments)}
    grouping: dict[str, object] = {}
    if grouped:
        new = "train_sampling_strategy" in known
        grouping = {"train_sampling_strategy": "group_by_length"} if new else {"group_by_length": True}
    return transformers.TrainingArguments(
        output_dir=folder,
        num_train_epochs=epochs,
        per_device_train_batch_size=BATCH,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="linear",
        warmup_steps=WARM_UP,  # below 1 it is a share of all steps
        seed=seed,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=device == "cpu",
        dataloader_pin_memory=device != "cpu",
        **grouping,
    )


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
