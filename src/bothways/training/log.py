"""The log of a run (JSON Lines, each line flushed at once), experiment trackers, and statistics of updates.

Trackers (TensorBoard, MLflow, Weights & Biases, trackio) are configured as in their own documentation, by environment
variables such as ``MLFLOW_TRACKING_URI`` and ``WANDB_PROJECT``.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from bothways.choices import TrackerName
from bothways.errors import OutOfDisk, TrainingDiverged
from bothways.storage import OUT_OF_ROOM
from bothways.training.optimizers import Step


@dataclass(frozen=True, slots=True)
class Tracker:
    """An open run of a tracker: ``log`` takes metrics by name and the number of updates so far."""

    log: Callable[[dict[str, float], int], object]
    close: Callable[[], object]

    def write(self, values: Mapping[str, object]) -> None:
        """Log the numbers of a training log event, with the prefix ``train/`` or ``validation/``."""
        metrics, update = values.get("metrics"), values.get("update")
        prefix, found = ("validation/", metrics) if isinstance(metrics, Mapping) else ("train/", values)
        numbers = {
            f"{prefix}{name}": float(value)
            for name, value in found.items()
            if isinstance(value, int | float) and name not in ("update", "epoch")
        }
        if isinstance(update, int) and numbers:
            self.log(numbers, update)


def open_tracker(name: TrackerName, settings: Mapping[str, object]) -> Tracker:
    """Start a tracker run and log the settings of the training."""
    match name:
        case "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            writer = SummaryWriter()  # in ./runs, with date and host in its name
            writer.add_text("settings", "\n".join(f"    {key}: {value}" for key, value in settings.items()))

            def add(metrics: dict[str, float], update: int) -> None:
                for key, value in metrics.items():
                    writer.add_scalar(key, value, update)

            return Tracker(add, writer.close)
        case "mlflow":
            import mlflow

            mlflow.start_run()
            mlflow.log_params(dict(settings))
            return Tracker(lambda metrics, update: mlflow.log_metrics(metrics, step=update), mlflow.end_run)
        case "wandb":
            import wandb

            run = wandb.init(config=dict(settings))
            return Tracker(lambda metrics, update: run.log(metrics, step=update), run.finish)
        case "trackio":
            import trackio

            trackio.init(project="bothways", config=dict(settings))
            return Tracker(lambda metrics, update: trackio.log(metrics, step=update), trackio.finish)


class TrainingLog:
    """Writes one JSON object per line to ``path``, or nothing if it is None. An existing file is replaced.

    A resumed run keeps the first ``keep_lines`` lines, written before its checkpoint, so no update is logged twice.
    """

    def __init__(self, path: Path | None, *, keep_lines: int = 0, tracker: Tracker | None = None) -> None:
        self.lines = 0
        self._tracker = tracker
        self._path = path
        self._stream: FileIO | None = None  # unbuffered: a failed write must not be tried again on closing
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if keep_lines and path.exists():
                self.lines = _truncate(path, keep_lines)
                self._stream = path.open("ab", buffering=0)
            else:
                self._stream = path.open("wb", buffering=0)

    def write(self, event: str, **values: object) -> None:
        """Append one event."""
        if self._tracker is not None and event in ("update", "epoch"):
            self._tracker.write(values)
        if self._stream is None:
            return
        rest = (json.dumps({"event": event, **values}, allow_nan=False) + "\n").encode()
        try:
            while rest:
                rest = rest[self._stream.write(rest) :]
        except OSError as error:
            if error.errno in OUT_OF_ROOM:
                raise OutOfDisk(
                    f"no space left for the training log {self._path} ({error.strerror}): free disk space, then resume."
                ) from error
            raise
        self.lines += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tracker is not None:
            self._tracker.close()
        if self._stream is not None:
            self._stream.close()


def _truncate(path: Path, keep_lines: int) -> int:
    """Truncate the file after ``keep_lines`` complete lines; return the number of lines kept."""
    kept = 0
    with path.open("rb+") as stream:
        end = 0
        for line in stream:
            if kept == keep_lines or not line.endswith(b"\n"):
                break
            kept += 1
            end += len(line)
        stream.truncate(end)
    return kept


@dataclass(frozen=True, slots=True)
class MeasuredUpdate:
    """Statistics of one update: mean loss per unit, gradient norm before clipping, and number of units (`weight`)."""

    update: int
    loss: float
    gradient_norm: float
    learning_rate: float
    weight: float
    tokens: int

    @property
    def finite(self) -> bool:
        """True if loss and gradient are finite."""
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)

    def diverged(self) -> TrainingDiverged:
        """Return the error for an update that is not finite."""
        name, value = ("gradient norm", self.gradient_norm) if math.isfinite(self.loss) else ("loss", self.loss)
        return TrainingDiverged(
            f"the {name} of update {self.update} is {value} (learning rate {self.learning_rate:g}): training diverged, "
            "and the model was reset to the last kept weights. Lower the learning rate or max_gradient_norm, or "
            "lengthen the warm-up; if this is update 1, check the data for bad values."
        )


class Meter:
    """Collects the statistics of the updates between two lines of the log."""

    def __init__(self) -> None:
        self._unread: list[Step] = []
        self._window: list[MeasuredUpdate] = []
        self._seconds = 0.0
        self._started = time.perf_counter()

    def add(self, step: Step) -> None:
        """Add a step; its tensors stay on their device until `read`."""
        self._unread.append(step)

    def read(self) -> list[MeasuredUpdate]:
        """Return the updates since the last call, synchronising with the device once."""
        if not self._unread:
            return []
        unread, self._unread = self._unread, []
        table = torch.stack([torch.stack((one.loss.float(), one.gradient_norm.float())) for one in unread])
        measured = [
            MeasuredUpdate(one.update, loss, norm, one.learning_rate, one.weight, one.tokens)
            for one, (loss, norm) in zip(unread, table.tolist(), strict=True)
        ]
        self._window += [one for one in measured if one.finite]
        return measured

    def pause(self) -> None:
        """Stop the clock for work that is not training (validation, a checkpoint)."""
        self._seconds += time.perf_counter() - self._started

    def go_on(self) -> None:
        """Start the clock again."""
        self._started = time.perf_counter()

    def summary(self) -> dict[str, float] | None:
        """Return the statistics of the updates since the last call, for one line of the log; None without updates.

        ``loss`` is the mean per unit, ``gradient_norm`` the maximum, ``learning_rate`` that of the last update.
        """
        window, self._window = self._window, []
        if not window:
            return None
        self.pause()
        seconds, self._seconds = self._seconds, 0.0
        self.go_on()
        tokens = sum(one.tokens for one in window)
        return {
            "update": window[-1].update,
            "loss": sum(one.loss * one.weight for one in window) / sum(one.weight for one in window),
            "learning_rate": window[-1].learning_rate,
            "gradient_norm": max(one.gradient_norm for one in window),
            "tokens": tokens,
            "tokens_per_second": tokens / seconds if seconds > 0.0 else 0.0,
        }
