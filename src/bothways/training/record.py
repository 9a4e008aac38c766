"""The record of a training run."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from bothways.training.options import TrainingOptions


@dataclass(frozen=True, slots=True)
class EpochValidation:
    """The validation after one epoch.

    Attributes:
        epoch: Counted from 1; 0 before the first update.
        update: Updates done by then.
        score: Score of the validation; higher is better.
        standard_error: Standard error of the score, estimated on the held-out rows; 0 if unknown. For epoch 0, the
            amount by which a later epoch may be worse; negative if it must be better.
    """

    epoch: int
    update: int
    score: float
    metrics: Mapping[str, float]
    standard_error: float = 0.0

    def to_dict(self) -> dict[str, object]:
        return {**dataclasses.asdict(self), "metrics": finite_or_none(self.metrics)}


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """The course of a training run.

    Attributes:
        losses: Mean loss per unit (example or target token) of each update that was not skipped.
        validations: One for each validated epoch.
        kept_epoch: Epoch, from 1, of the model's weights (see `kept_of`); 0 for the initial weights. None if nothing
            was validated: the model has the last weights, after a divergence those of the latest epoch.
        updates: Optimizer steps.
        tokens: Tokens read in training.
        seconds: Wall time of training, validation and checkpoints, without the pause before a resumption.
        stopped_early: True if patience ended the run.
        interrupted: True if Ctrl-C or SIGTERM ended the run, or came at its end.
        resumed_from: Updates of the checkpoint that this run resumed; None for a fresh run.
        settings: The options of the run.
        epochs: Finished epochs, their validation included.
        diverged: Message about the loss, gradient or score that was not finite and ended the run; else None.
        baseline: Name of the initial model, if it was validated (as epoch 0).
        signal: Number of the signal that interrupted the run, or None.
        skipped: Skipped updates, whose loss or gradient was not finite.
    """

    losses: tuple[float, ...]
    validations: tuple[EpochValidation, ...]
    kept_epoch: int | None
    updates: int
    tokens: int
    seconds: float
    stopped_early: bool
    interrupted: bool
    resumed_from: int | None
    settings: TrainingOptions
    epochs: int
    diverged: str | None = None
    baseline: str | None = None
    signal: int | None = None
    skipped: int = 0

    @property
    def finished_no_epoch(self) -> bool:
        """True if an interruption ended the run before the end of the first epoch."""
        return self.interrupted and self.epochs == 0

    def to_dict(self) -> dict[str, object]:
        """Return the record as JSON values; a metric that is not finite becomes None."""
        # asdict would copy the settings without naming the schedule's class.
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "signal"}
        return {
            **values,
            "losses": list(self.losses),
            "validations": [validation.to_dict() for validation in self.validations],
            "settings": self.settings.to_dict(),
        }


def highest_of(validations: list[EpochValidation]) -> EpochValidation | None:
    """Return the validation with the highest score, the earliest of equals."""
    return max(validations, key=lambda validation: validation.score, default=None)


def kept_of(validations: list[EpochValidation]) -> EpochValidation | None:
    """Return the latest validation within one standard error below the highest score, and below that of the start.

    This is the rule of one standard error (Breiman et al. 1984, section 3.4.3): prefer what is better a priori unless
    the data clearly contradict it. Here that is longer training, whose last steps are small by the schedule; with
    few rows, the highest of several scores often belongs to a lucky early epoch. Another validation never moves the
    choice to an earlier epoch.
    """
    highest = highest_of(validations)
    if highest is None:
        return None
    start = validations[0] if validations[0].epoch == 0 else highest
    threshold = max(each.score - each.standard_error for each in (highest, start))
    return next((each for each in reversed(validations) if each.score >= threshold), start)


def finite_or_none(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Return ``metrics`` for JSON, with None for values that are not finite."""
    return {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
