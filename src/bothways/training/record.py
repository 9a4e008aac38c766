"""What a run leaves behind, besides the trained model."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bothways.training.settings import TrainingSettings


@dataclass(frozen=True, slots=True)
class EpochValidation:
    """The validation after one epoch.

    Attributes:
        epoch: Counted from 1.
        update: Updates done by then.
        score: Higher is better.
        metrics: By name.
    """

    epoch: int
    update: int
    score: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """The course of a training run.

    Attributes:
        losses: Mean loss per unit (example or target token) of each update.
        validations: One for each epoch that was validated.
        best_epoch: Epoch, from 1, whose weights the model has now; None if nothing was validated, and then it has the
            last weights.
        updates: Optimizer steps done.
        tokens: Tokens read in training.
        seconds: Wall time of training, validation and checkpoints, without what lay between an interruption and the
            checkpoint that was resumed.
        stopped_early: Patience ended the run.
        interrupted: Ctrl-C ended the run.
        resumed_from: Updates done at the checkpoint that this run continued; None if it began afresh.
        settings: What was asked for.
    """

    losses: tuple[float, ...]
    validations: tuple[EpochValidation, ...]
    best_epoch: int | None
    updates: int
    tokens: int
    seconds: float
    stopped_early: bool
    interrupted: bool
    resumed_from: int | None
    settings: TrainingSettings

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON values; a metric that is not finite becomes None."""
        # asdict would copy the settings without naming the schedule's class.
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            **values,
            "losses": list(self.losses),
            "validations": [
                {
                    "epoch": validation.epoch,
                    "update": validation.update,
                    "score": validation.score,
                    "metrics": finite_or_none(validation.metrics),
                }
                for validation in self.validations
            ],
            "settings": self.settings.to_dict(),
        }


def best_of(validations: list[EpochValidation]) -> EpochValidation | None:
    """The validation with the highest score, the earliest of equals."""
    return max(validations, key=lambda validation: validation.score, default=None)


def finite_or_none(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """``metrics`` as JSON can carry them."""
    return {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
