"""Losses and gradient norms of the updates, read from the device no more often than needed."""

import math
import time
from dataclasses import dataclass

import torch

from bothways.errors import TrainingDiverged
from bothways.training.step import Step


@dataclass(frozen=True, slots=True)
class MeasuredUpdate:
    """One update, read: its mean loss per unit, and the gradient's norm before clipping."""

    update: int
    loss: float
    gradient_norm: float
    learning_rate: float
    weight: float
    tokens: int

    @property
    def finite(self) -> bool:
        """True if loss and gradient are numbers."""
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)

    def diverged(self) -> TrainingDiverged:
        """Return the error of an update that is not finite."""
        name, value = ("gradient norm", self.gradient_norm) if math.isfinite(self.loss) else ("loss", self.loss)
        return TrainingDiverged(
            f"the {name} of update {self.update} is {value} (learning rate {self.learning_rate:g}): training diverged, "
            "and the model was set back to the weights kept so far. Lower the learning rate, lengthen the warm-up or "
            "clip harder (max_gradient_norm); if it is update 1, look for bad values in the data."
        )


class Meter:
    """Collects the updates between two lines of the log."""

    def __init__(self) -> None:
        self._unread: list[Step] = []
        self._window: list[MeasuredUpdate] = []
        self._seconds = 0.0
        self._started = time.perf_counter()

    def add(self, step: Step) -> None:
        """Take note of one step; its tensors stay on their device until `read`."""
        self._unread.append(step)

    def read(self) -> list[MeasuredUpdate]:
        """Return the updates since the last reading; one synchronisation with the device for all of them."""
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
        """Stop the clock: what follows (validation, a checkpoint) is not training."""
        self._seconds += time.perf_counter() - self._started

    def go_on(self) -> None:
        """Start the clock again."""
        self._started = time.perf_counter()

    def summary(self) -> dict[str, float] | None:
        """Return the read updates since the last summary as one line of the log; None if there are none.

        ``loss`` is per unit over all of them; ``gradient_norm`` is the largest, ``learning_rate`` the last.
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
